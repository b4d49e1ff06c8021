//! What a full scan tells of itself.

use super::coverage::Coverage;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// The accounting of one scan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename = "scan")]
pub struct ScanReport {
    /// Processes listed.
    pub tasks: u64,
    /// Threads listed.
    pub threads: u64,
    /// Mount namespaces known to exist.
    pub namespaces: u64,
    /// Mount namespaces read from their own root.
    pub namespaces_read: u64,
    /// Mounts in them.
    pub mounts: u64,
    /// Every task and namespace was accounted for.
    pub complete: bool,
    /// For each user asked about: every task that could hold an entry of that user was read.
    pub covered: BTreeMap<u32, bool>,
    /// Gaps by cause.
    pub gaps: BTreeMap<&'static str, u64>,
    /// How long it took.
    pub elapsed_ms: u64,
}

/// The claim of some evidence for each of these users.
#[must_use]
pub fn covered(coverage: &Coverage, users: &BTreeSet<u32>) -> BTreeMap<u32, bool> {
    users.iter().map(|user| (*user, coverage.complete() || coverage.covered(*user))).collect()
}

/// Gaps by the names that reports use.
#[must_use]
pub fn gaps(coverage: &Coverage) -> BTreeMap<&'static str, u64> {
    coverage.gaps().iter().map(|(cause, count)| (cause.name(), *count)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shape_is_that_of_the_contract() {
        let report = ScanReport {
            tasks: 1,
            threads: 2,
            namespaces: 3,
            namespaces_read: 4,
            mounts: 5,
            complete: false,
            covered: BTreeMap::from([(0, true), (1000, false)]),
            gaps: BTreeMap::from([("task-unreadable", 1)]),
            elapsed_ms: 6,
        };
        assert_eq!(
            serde_json::to_string(&report).expect("json"),
            r#"{"type":"scan","tasks":1,"threads":2,"namespaces":3,"namespaces_read":4,"mounts":5,"complete":false,"covered":{"0":true,"1000":false},"gaps":{"task-unreadable":1},"elapsed_ms":6}"#
        );
    }
}
