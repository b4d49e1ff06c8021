//! A purge for people, and what its command ends with. Both from the JSON form, for a running service hands it over in no
//! other.

use super::pass::{name, number, pin, string, unhex};
use super::table::Table;
use super::text;
use crate::error::Outcome;
use serde_json::Value;

/// Pins and tasks shown of one target.
const SHOWN: usize = 3;

/// The targets.
#[must_use]
pub fn table(report: &Value) -> Table {
    let mut table = Table::new(&["VERDICT", "TARGET", "REASON", "DETAIL", "HELD BY"]);
    for target in targets(report) {
        let text = |key: &str| target.get(key).and_then(Value::as_str);
        let command = target.get("command").and_then(Value::as_array);
        let called = match (command, text("path_hex").and_then(unhex)) {
            (Some(words), _) => self::command(words),
            (None, Some(bytes)) => text::escape(&bytes),
            (None, None) => name(target, "path"),
        };
        let mut detail: Vec<String> =
            text("detail").map(|detail| text::escape(detail.as_bytes())).into_iter().collect();
        if target.get("weaker_proof").and_then(Value::as_bool) == Some(true) {
            let how = match command {
                Some(_) => "by its manager's command, who alone knows of it",
                None => "by its manager's command, proved under its own name alone",
            };
            detail.push(how.to_owned());
        }
        let dash = |text: String| if text.is_empty() { "-".to_owned() } else { text };
        table.row([
            string(target, "verdict").to_owned(),
            called,
            dash(string(target, "reason").to_owned()),
            dash(detail.join("; ")),
            dash(holders(target)),
        ]);
    }
    table
}

/// A command on one line. Words that would not be seen to be one are between quotes.
fn command(words: &[Value]) -> String {
    let words = words.iter().filter_map(Value::as_str).map(|word| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:=@%+,".contains(&byte) || byte >= 0x80;
        let escaped = text::escape(word.as_bytes());
        if !word.is_empty() && word.bytes().all(is_plain) { escaped } else { format!("'{escaped}'") }
    });
    words.collect::<Vec<_>>().join(" ")
}

/// One line on the whole.
#[must_use]
pub fn line(report: &Value) -> String {
    let id = name(report, "id");
    let dry_run = report.get("dry_run").and_then(Value::as_bool) == Some(true);
    let count = |verdict: &str| targets(report).filter(|target| string(target, "verdict") == verdict).count();
    let parts: Vec<String> = [
        ("removed", "removed"),
        ("would-remove", "would go"),
        ("absent", "absent"),
        ("refused", "refused"),
        ("failed", "failed"),
        ("kept", "kept because of that"),
    ]
    .into_iter()
    .filter_map(|(verdict, words)| Some((count(verdict), words)).filter(|(count, _)| *count > 0))
    .map(|(count, words)| format!("{count} {words}"))
    .collect();
    match (parts.is_empty(), number(report, "refused")) {
        (true, _) => format!("{id}: nothing belongs to it"),
        (false, 1..) if !dry_run => format!("{id}: {}; nothing was removed", parts.join(", ")),
        (false, _) => format!("{id}: {}", parts.join(", ")),
    }
}

/// What the command ends with: 3 where a target is in use, 4 where too little was seen, 1 for what else speaks against one
/// and for what failed.
#[must_use]
pub fn outcome(report: &Value) -> Outcome {
    let of = |target: &Value| match (string(target, "verdict"), string(target, "reason")) {
        ("refused", "pinned" | "leased") => Outcome::Differs,
        ("refused", "no-evidence") => Outcome::Weak,
        ("refused" | "failed", _) => Outcome::Failed,
        _ => Outcome::Done,
    };
    targets(report).map(of).max().unwrap_or(Outcome::Done)
}

/// Whether what was refused was so for nothing but what passes: use, and doubt about it.
#[must_use]
pub fn may_pass(report: &Value) -> bool {
    matches!(outcome(report), Outcome::Differs | Outcome::Weak)
}

fn targets(report: &Value) -> impl Iterator<Item = &Value> {
    report.get("targets").and_then(Value::as_array).into_iter().flatten()
}

fn holders(target: &Value) -> String {
    let pins = target.get("pins").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let mut shown: Vec<String> = pins
        .iter()
        .take(SHOWN)
        .map(|held| {
            let tasks = held.get("tasks").and_then(Value::as_array).into_iter().flatten();
            let tasks: Vec<String> =
                tasks.take(SHOWN).map(|task| format!("{} {}", number(task, "pid"), name(task, "comm"))).collect();
            if tasks.is_empty() { pin(held) } else { format!("{} ({})", pin(held), tasks.join(", ")) }
        })
        .collect();
    if pins.len() > SHOWN {
        shown.push(format!("and {} more", pins.len() - SHOWN));
    }
    shown.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn report(targets: &Value) -> Value {
        json!({"type": "purge", "id": "a\u{1b}", "targets": targets, "removed": 0, "refused": 1, "failed": 0})
    }

    #[test]
    fn a_refusal_says_that_nothing_was_removed() {
        let targets =
            json!([{"path": "/a", "verdict": "refused", "reason": "pinned"}, {"path": "/b", "verdict": "kept"}]);
        let told = line(&report(&targets));
        assert_eq!(told, "a\\u{1b}: 1 refused, 1 kept because of that; nothing was removed");
    }

    #[test]
    fn a_holder_is_told_with_its_tasks() {
        let pin = json!({"role": "source", "namespace": 7, "mount_point": "/m", "state": "attached",
            "tasks": [{"pid": 9, "comm": "sh"}]});
        assert_eq!(holders(&json!({"pins": [pin]})), "source of /m in namespace 7 (9 sh)");
    }

    #[test]
    fn what_has_no_path_is_told_by_its_command() {
        let words = json!(["acme", "rm", "n-a b", "--id=7", ""]);
        assert_eq!(command(words.as_array().expect("words")), "acme rm 'n-a b' --id=7 ''");
    }

    #[test]
    fn the_worst_target_decides() {
        let of = |reasons: &[(&str, &str)]| {
            let targets: Vec<Value> = reasons
                .iter()
                .map(|(verdict, reason)| json!({"path": "/a", "verdict": verdict, "reason": reason}))
                .collect();
            outcome(&report(&json!(targets)))
        };
        assert_eq!(of(&[("removed", ""), ("absent", "")]), Outcome::Done);
        assert_eq!(of(&[("refused", "pinned"), ("kept", "")]), Outcome::Differs);
        assert_eq!(of(&[("refused", "no-evidence")]), Outcome::Weak);
        assert_eq!(of(&[("refused", "owner"), ("refused", "pinned")]), Outcome::Failed);
        assert_eq!(of(&[("failed", "failed"), ("removed", "")]), Outcome::Failed);
        assert_eq!(of(&[]), Outcome::Done);
    }
}
