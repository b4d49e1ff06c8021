//! What became of the targets of one id.

use super::id::Id;
use crate::model::answer::PinReport;
use crate::model::report::{Name, Reason};
use serde::Serialize;

/// What became of one target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TargetVerdict {
    /// It is gone.
    Removed,
    /// It was not there.
    Absent,
    /// Something speaks against it, so nothing of the id was removed.
    Refused,
    /// A dry run found nothing that speaks against it.
    WouldRemove,
    /// Nothing speaks against it, and it is still there because of another target.
    Kept,
    /// It was to be removed, and that failed.
    Failed,
}

/// What a target is called.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum TargetName {
    /// It lies at a path.
    Path {
        /// The path.
        path: Name,
        /// Its exact bytes where it is not UTF-8.
        #[serde(skip_serializing_if = "Option::is_none")]
        path_hex: Option<String>,
    },
    /// It has no path, and is what its manager's command is about.
    Command {
        /// The program and its arguments, filled.
        command: Vec<String>,
    },
}

/// One target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TargetReport {
    /// What it is called.
    #[serde(flatten)]
    pub name: TargetName,
    /// What became of it.
    pub verdict: TargetVerdict,
    /// Why it was refused, or failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// Who holds it, where it is pinned.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pins: Vec<PinReport>,
    /// More, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// It is proved under its own name alone, for the command that removes it has to find it there; or it has no path, and
    /// nothing is proved but what its manager says.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub weaker_proof: bool,
}

/// One id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename = "purge")]
pub struct PurgeReport {
    /// The id.
    pub id: String,
    /// All that belongs to it.
    pub targets: Vec<TargetReport>,
    /// Targets that are gone.
    pub removed: usize,
    /// Targets that were not there.
    pub absent: usize,
    /// Targets that were refused. Unless this is 0, none is removed.
    pub refused: usize,
    /// Targets whose removal failed.
    pub failed: usize,
    /// Nothing was changed.
    pub dry_run: bool,
    /// Reclaim was told to stop before it was through, so another try may end otherwise.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub stopped: bool,
}

impl PurgeReport {
    /// With its counts.
    #[must_use]
    pub fn of(id: &Id, targets: Vec<TargetReport>, dry_run: bool) -> Self {
        let count = |verdict| targets.iter().filter(|target| target.verdict == verdict).count();
        Self {
            id: id.to_string(),
            removed: count(TargetVerdict::Removed),
            absent: count(TargetVerdict::Absent),
            refused: count(TargetVerdict::Refused),
            failed: count(TargetVerdict::Failed),
            targets,
            dry_run,
            stopped: false,
        }
    }
}
