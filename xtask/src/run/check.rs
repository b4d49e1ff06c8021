//! Whether the demonstration ended as it must.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::entries::Kept;
use super::tell::count;
use crate::sandbox::Sandbox;

/// Collects what failed, while it prints what holds.
#[derive(Default)]
pub(super) struct Verdict {
    failed: Vec<String>,
}

impl Verdict {
    /// What failed, in words.
    pub(super) fn failed(&self) -> &[String] {
        &self.failed
    }

    /// One statement: `good` where it holds, else the first few of what speaks against it.
    pub(super) fn state(&mut self, statement: &str, against: &[String]) {
        if against.is_empty() {
            println!("  yes  {statement}");
        } else {
            let few: Vec<&str> = against.iter().take(3).map(String::as_str).collect();
            println!("  NO   {statement}: {}{}", few.join("; "), if against.len() > 3 { "; ..." } else { "" });
            self.failed.push(statement.to_owned());
        }
    }

    /// The counts of a pass add up, and the reasons are those that the entries give.
    pub(super) fn sums(&mut self, passes: &[Value]) {
        let against: Vec<String> = passes.iter().filter_map(sum_fault).collect();
        self.state("in every pass what was listed is what went plus what stays", &against);
    }

    /// None of the paths is there any more.
    pub(super) fn gone(&mut self, statement: &str, paths: &[PathBuf]) {
        self.state(statement, &shown(paths.iter().filter(|path| path.symlink_metadata().is_ok())));
    }

    /// All of the paths are there.
    pub(super) fn there(&mut self, statement: &str, paths: &[PathBuf]) {
        self.state(statement, &shown(paths.iter().filter(|path| path.symlink_metadata().is_err())));
    }

    /// Each entry that a fence held back was told with that fence's reason, in the last pass.
    pub(super) fn reasons(&mut self, groups: &[Kept], entries: &[Value]) {
        let told: BTreeMap<&str, &str> =
            entries.iter().filter_map(|entry| Some((entry["name"].as_str()?, entry["reason"].as_str()?))).collect();
        let against: Vec<String> = groups
            .iter()
            .flat_map(|group| group.paths.iter().map(|path| (group.reason, path)))
            .filter_map(|(wanted, path)| {
                let name = path.file_name()?.to_str()?;
                let reason = told.get(name).copied().unwrap_or("not told");
                (reason != wanted).then(|| format!("{name}: {reason}, and not {wanted}"))
            })
            .collect();
        self.state("each of them was told with its own reason", &against);
    }

    /// Every sandbox can still write, to the very directory it was given.
    pub(super) fn working(&mut self, sandboxes: &mut [Sandbox], identities: &BTreeMap<PathBuf, u64>) {
        let against: Vec<String> = sandboxes
            .iter_mut()
            .filter_map(|sandbox| {
                let entry = sandbox.entries.first()?;
                let replaced = identity(entry) != identities.get(entry).copied();
                match sandbox.write() {
                    Ok(()) if replaced => Some(format!("process {}: its entry is another one", sandbox.pid())),
                    Ok(()) => None,
                    Err(error) => Some(format!("process {}: {error:#}", sandbox.pid())),
                }
            })
            .collect();
        self.state("every sandbox that lives can still write to its directory", &against);
    }
}

/// Inode number of an entry; None where it is gone.
pub(super) fn identity(path: &Path) -> Option<u64> {
    path.symlink_metadata().ok().map(|metadata| metadata.ino())
}

fn sum_fault(summary: &Value) -> Option<String> {
    let kept: u64 = summary["kept"].as_object().into_iter().flatten().filter_map(|(_, number)| number.as_u64()).sum();
    let told = count(summary, "removed") + count(summary, "condemned") + kept;
    let listed = count(summary, "listed");
    (listed == 0 || told != listed).then(|| format!("listed {listed}, accounted for {told}"))
}

fn shown<'a>(paths: impl Iterator<Item = &'a PathBuf>) -> Vec<String> {
    paths.filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned())).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn sums_that_do_not_add_up_are_told() {
        assert_eq!(sum_fault(&json!({"listed": 5, "removed": 2, "condemned": 1, "kept": {"pinned": 2}})), None);
        assert!(sum_fault(&json!({"listed": 5, "removed": 2, "condemned": 1, "kept": {"pinned": 1}})).is_some());
        assert!(sum_fault(&json!({})).is_some());
    }

    #[test]
    fn what_speaks_against_a_statement_makes_it_fail() {
        let mut verdict = Verdict::default();
        verdict.gone("gone", &[PathBuf::from("/nonexistent")]);
        verdict.there("there", &[PathBuf::from("/")]);
        assert_eq!(verdict.failed(), [""; 0]);
        verdict.gone("gone", &[PathBuf::from("/proc")]);
        verdict.there("there", &[PathBuf::from("/nonexistent/a")]);
        verdict.reasons(
            &[Kept { reason: "mode", paths: vec![PathBuf::from("/root/a")] }],
            &[json!({"name": "a", "reason": "owner"})],
        );
        assert_eq!(verdict.failed().len(), 3);
    }
}
