//! The name pattern of a root.

use regex::bytes::Regex;

/// Groups that mean something.
const GROUPS: [&str; 2] = ["pid", "id"];

/// What is wrong with a pattern, and the remedy.
pub(super) struct Fault(pub(super) String, pub(super) String);

/// Compiles a pattern and checks its groups. Gives also what is allowed in it but looks like a mistake.
pub(super) fn compile(text: &str) -> Result<(Regex, Vec<String>), Fault> {
    let regex = Regex::new(text).map_err(|error| {
        let reason = error.to_string();
        let reason = reason.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it does not compile").trim();
        Fault(
            format!("the pattern does not compile: {}", reason.trim_start_matches("error: ")),
            "mend it; the syntax is that of https://docs.rs/regex, and a TOML string in single quotes keeps backslashes".to_owned(),
        )
    })?;
    if let Some(stray) = regex.capture_names().flatten().find(|group| !GROUPS.contains(group)) {
        return Err(Fault(
            format!("the group `{stray}` means nothing"),
            "call it `pid` or `id`, or make it a plain group `(?:...)`".to_owned(),
        ));
    }
    let mut notes = Vec::new();
    if !(text.starts_with('^') && text.ends_with('$')) {
        notes.push("the pattern is not held by ^ and $, so it also takes names that merely contain it".to_owned());
    }
    if let Some(body) = group(text, "pid")
        && !body.replace("[0-9]", r"\d").replace(r"\d", "").chars().all(|c| "+{},0123456789".contains(c))
    {
        notes.push("the group `pid` can take more than digits; an entry whose pid is not a number is kept".to_owned());
    }
    Ok((regex, notes))
}

/// Text inside the named group, without regard to parentheses inside it.
fn group<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let start = [format!("(?<{name}>"), format!("(?P<{name}>")]
        .iter()
        .find_map(|open| text.find(open.as_str()).map(|at| at + open.len()))?;
    let body = &text[start..];
    Some(&body[..body.find(')').unwrap_or(body.len())])
}

#[cfg(test)]
mod tests {
    use super::compile;

    fn notes(text: &str) -> usize {
        compile(text).map_or_else(|fault| panic!("{}", fault.0), |(_, notes)| notes.len())
    }

    #[test]
    fn groups_pid_and_id_are_understood_and_no_other() {
        assert_eq!(notes(r"^acme_sb_(?<pid>\d+)_[0-9a-f]{8}$"), 0);
        assert_eq!(notes(r"^(?P<id>[a-z]+)-(?<pid>[0-9]{1,7})$"), 0);
        assert!(compile(r"^(?<pdi>\d+)$").is_err());
        assert!(compile(r"^(\d+$").is_err());
    }

    #[test]
    fn a_loose_pattern_is_said() {
        assert_eq!(notes(r"sb_(?<pid>\d+)"), 1);
        assert_eq!(notes(r"^sb_(?<pid>.+)$"), 1);
    }
}
