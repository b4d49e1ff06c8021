//! The house rules: what no compiler lint says.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::tokens::{self, Seen};

/// Longest Rust file, in lines. A longer one has a second job.
const LONGEST_FILE: usize = 600;
/// What the pure room may not name: anything that asks the machine or the clock.
const IMPURE: [&[&str]; 10] = [
    &["std", "fs"],
    &["std", "env"],
    &["std", "net"],
    &["std", "process"],
    &["SystemTime", "now"],
    &["Instant", "now"],
    &["tokio"],
    &["aya"],
    &["nix"],
    &["libc"],
];
/// The pure room.
const PURE: &str = "reclaim-user/src/model";
/// The rooms where `unsafe` may stand.
const UNSAFE_ROOMS: [&str; 2] = ["reclaim-user/src/sys", "reclaim-ebpf"];
/// Marks of unfinished work, put together here so that this file passes its own rule.
const MARKS: [&str; 2] = [concat!("TO", "DO"), concat!("FIX", "ME")];
/// Macros that stand for unfinished work.
const STUBS: [&str; 2] = ["todo", "unimplemented"];

/// One place that breaks a rule.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Finding {
    file: PathBuf,
    line: usize,
    what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}: {}", self.file.display(), self.line, self.what)
    }
}

/// Reads every Rust file of the workspace and returns what breaks a rule.
///
/// # Errors
/// A directory or file cannot be read, or a file is not Rust.
pub(super) fn check(workspace: &Path) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for package in ["reclaim-ebpf", "reclaim-user", "tests", "xtask"] {
        for path in rust_files(&workspace.join(package))? {
            let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            let file = path.strip_prefix(workspace).unwrap_or(&path);
            findings.extend(check_file(file, &text).with_context(|| format!("cannot check {}", file.display()))?);
        }
    }
    Ok(findings)
}

fn rust_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))? {
            let entry = entry.with_context(|| format!("cannot list {}", folder.display()))?;
            let path = entry.path();
            if entry.file_type().with_context(|| format!("cannot look at {}", path.display()))?.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Checks one file, named relative to the workspace.
fn check_file(file: &Path, text: &str) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let mut found = |line: usize, what: String| findings.push(Finding { file: file.to_owned(), line, what });
    let lines: Vec<&str> = text.lines().collect();
    if lines.len() > LONGEST_FILE {
        found(
            LONGEST_FILE + 1,
            format!("{} lines, and {LONGEST_FILE} are the most: look for a second job", lines.len()),
        );
    }
    for (index, line) in lines.iter().enumerate() {
        for mark in MARKS.iter().filter(|mark| has_word(line, mark)) {
            found(index + 1, format!("{mark} stands for work that is not done"));
        }
    }
    let pure = file.starts_with(PURE);
    let unsafe_room = UNSAFE_ROOMS.iter().any(|room| file.starts_with(room));
    for (line, seen) in tokens::read(text)? {
        match seen {
            Seen::Path(path) if pure => {
                if let Some(impure) = IMPURE.iter().find(|impure| names(&path, impure)) {
                    found(line, format!("{PURE} is pure and may not name {}", impure.join("::")));
                }
            }
            Seen::Unsafe(_) if !unsafe_room => {
                found(line, format!("unsafe stands only below {}", UNSAFE_ROOMS.join(" and ")));
            }
            Seen::Unsafe(true) if !explained(&lines, line) => {
                found(line, "no SAFETY comment directly above this unsafe".to_owned());
            }
            Seen::Macro(name) if STUBS.contains(&name.as_str()) => {
                found(line, format!("{name}! stands for work that is not done"));
            }
            Seen::Allow => found(line, "allow hides a lint for ever: use expect with a reason".to_owned()),
            Seen::Path(_) | Seen::Unsafe(_) | Seen::Macro(_) => {}
        }
    }
    Ok(findings)
}

/// Whether the path names the forbidden one: a crate by its first segment, two segments anywhere in a row.
fn names(path: &[String], forbidden: &[&str]) -> bool {
    match forbidden {
        [single] => path.len() > 1 && path.first().is_some_and(|first| first == single),
        _ => path.windows(forbidden.len()).any(|window| window == forbidden),
    }
}

/// Whether a SAFETY comment stands directly above the line, or above the statement that the line goes on with.
fn explained(lines: &[&str], line: usize) -> bool {
    let above = lines.get(..line.saturating_sub(1)).unwrap_or_default().iter().rev().map(|text| text.trim());
    above
        .skip_while(|text| continues(text))
        .take_while(|text| text.starts_with("//") || text.starts_with("#["))
        .any(|text| text.starts_with("// SAFETY:"))
}

/// Whether a line is code whose statement goes on in the next one.
fn continues(text: &str) -> bool {
    !text.is_empty() && !text.starts_with("//") && !text.starts_with("#[") && !text.ends_with([';', '{', '}', ','])
}

fn has_word(line: &str, word: &str) -> bool {
    line.split(|letter: char| !letter.is_alphanumeric() && letter != '_').any(|part| part == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is found in a file of this name and text.
    fn found(file: &str, text: &str) -> Vec<(usize, String)> {
        let findings = check_file(Path::new(file), text).expect("the text is Rust");
        findings.into_iter().map(|finding| (finding.line, finding.what)).collect()
    }

    const MODEL: &str = "reclaim-user/src/model/pin.rs";
    const SYS: &str = "reclaim-user/src/sys/mount.rs";

    #[test]
    fn the_model_names_nothing_that_asks_the_machine() {
        for text in [
            "use std::fs;",
            "use std::{fmt, fs::File};",
            "fn f() { std::env::var(\"A\"); }",
            "use std::{net};",
            "type T = std::process::Child;",
            "fn f() { let t = std::time::SystemTime::now(); }",
            "fn f() { macro_of!(Instant::now()); }",
            "use tokio::sync;",
            "use aya::Ebpf;",
            "use nix::{sys};",
            "fn f() -> libc::c_int { 0 }",
        ] {
            assert_eq!(found(MODEL, text).len(), 1, "{text}");
            assert_eq!(found("reclaim-user/src/evidence/scan.rs", text), [], "{text}");
        }
        let fine =
            "//! not std::fs\nuse std::fmt;\nconst A: &str = \"std::fs::read\";\nfn f(now: Instant, aya: u32) {}";
        assert_eq!(found(MODEL, fine), []);
    }

    #[test]
    fn unsafe_stays_in_its_rooms_even_when_explained() {
        let text = "// SAFETY: nothing is read.\nunsafe impl Send for A {}";
        assert_eq!(found("reclaim-user/src/evidence/ring.rs", text).len(), 1);
        assert_eq!(found("xtask/src/main.rs", "fn f() { unsafe { g() } }").len(), 1);
        assert_eq!(found(SYS, text), []);
        assert_eq!(found("reclaim-ebpf/src/main.rs", text), []);
        assert_eq!(found("xtask/src/main.rs", "// unsafe\nconst A: &str = \"unsafe { }\";"), []);
    }

    #[test]
    fn each_unsafe_block_has_its_reason_directly_above() {
        let bare = "fn f() {\n    unsafe { g() }\n}";
        let distant = "// SAFETY: far away.\nfn f() {\n    h();\n    unsafe { g() }\n}";
        let direct = "fn f() {\n    // SAFETY: g is fine,\n    // always.\n    unsafe { g() }\n}";
        let statement = "fn f() {\n    // SAFETY: g is fine.\n    let a =\n        unsafe { g() };\n}";
        assert_eq!(found(SYS, bare), [(2, "no SAFETY comment directly above this unsafe".to_owned())]);
        assert_eq!(found(SYS, distant).len(), 1);
        assert_eq!(found(SYS, direct), []);
        assert_eq!(found(SYS, statement), []);
        assert_eq!(found(SYS, "#[unsafe(no_mangle)]\nunsafe extern \"C\" fn f() {}"), []);
    }

    #[test]
    fn allow_is_refused_and_expect_is_not() {
        assert_eq!(found(SYS, "#[allow(dead_code)]\nfn f() {}").len(), 1);
        assert_eq!(found(SYS, "#![allow(unsafe_code)]").len(), 1);
        assert_eq!(found(SYS, "#[cfg_attr(test, allow(dead_code))]\nfn f() {}").len(), 1);
        assert_eq!(found(SYS, "#[expect(dead_code, reason = \"allow(x)\")]\nfn f() { allow(1) }"), []);
    }

    #[test]
    fn unfinished_work_is_refused() {
        for mark in MARKS {
            assert_eq!(found(SYS, &format!("// {mark}: later")).len(), 1);
            assert_eq!(found(SYS, &format!("// {mark}S are refused")), []);
        }
        assert_eq!(found(SYS, "fn f() { todo!() }").len(), 1);
        assert_eq!(found(SYS, "fn f() { core::unimplemented!(\"x\") }").len(), 1);
        assert_eq!(found(SYS, "fn f() { let todo = !true; }"), []);
    }

    #[test]
    fn a_long_file_is_refused() {
        assert_eq!(found(SYS, &"\n".repeat(LONGEST_FILE)), []);
        assert_eq!(found(SYS, &"\n".repeat(LONGEST_FILE + 1)).len(), 1);
    }
}
