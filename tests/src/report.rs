//! What `reclaim --json` prints, typed. Keys that are added later are no error; keys that are missing are.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// Every reason that an entry can be kept for.
const REASONS: [&str; 15] = [
    "pinned",
    "young",
    "pid-alive",
    "owner",
    "kind",
    "mode",
    "name",
    "leased",
    "keep-until",
    "claimed",
    "pile",
    "not-empty",
    "no-evidence",
    "retained",
    "failed",
];

/// The summary of a pass over one root.
#[derive(Clone, Debug, Deserialize)]
#[expect(missing_docs, reason = "the fields are those of the contract")]
pub struct Pass {
    pub root: String,
    pub evidence: String,
    pub complete: bool,
    pub covered: bool,
    pub gaps: BTreeMap<String, u64>,
    pub listed: u64,
    pub candidates: u64,
    pub kept: BTreeMap<String, u64>,
    pub removed: u64,
    pub restored: u64,
    pub condemned: u64,
    pub truncated: bool,
    pub dry_run: bool,
    pub elapsed_ms: u64,
}

impl Pass {
    /// How many entries were kept for a reason.
    #[must_use]
    pub fn kept(&self, reason: &str) -> u64 {
        self.kept.get(reason).copied().unwrap_or(0)
    }

    /// Fails the test when the counts of a pass do not add up.
    #[track_caller]
    pub fn check(&self) {
        let kept: u64 = self.kept.values().sum();
        assert!(self.kept.values().all(|count| *count > 0), "a reason without entries: {self:?}");
        for reason in self.kept.keys() {
            assert!(REASONS.contains(&reason.as_str()), "a reason that nobody knows: {self:?}");
        }
        assert!(["live", "walk", "scan"].contains(&self.evidence.as_str()), "evidence that nobody knows: {self:?}");
        if self.dry_run {
            assert_eq!((self.removed, self.condemned, self.restored), (0, 0, 0), "a dry run acted: {self:?}");
            assert_eq!(self.listed, self.candidates + kept, "a dry run does not add up: {self:?}");
        } else {
            assert_eq!(self.listed, self.removed + self.condemned + kept, "the counts do not add up: {self:?}");
        }
        assert!(!self.complete || self.gaps.is_empty(), "complete, and yet there are gaps: {self:?}");
        // Where nothing came into question no evidence is taken, and none is claimed.
        let told = self.complete || !self.gaps.is_empty() || self.candidates == 0;
        assert!(told, "not complete, and no word why: {self:?}");
    }
}

/// One entry of `-v --json`.
#[derive(Clone, Debug, Deserialize)]
#[expect(missing_docs, reason = "the fields are those of the contract")]
pub struct EntryLine {
    pub root: String,
    pub name: String,
    pub name_hex: Option<String>,
    pub verdict: String,
    pub reason: Option<String>,
}

impl EntryLine {
    /// The exact name.
    #[track_caller]
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let Some(hex) = &self.name_hex else { return self.name.clone().into_bytes() };
        assert!(hex.len().is_multiple_of(2), "half a byte in {hex}");
        (0..hex.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap_or_else(|error| panic!("{hex}: {error}")))
            .collect()
    }
}

/// The answer of `reclaim query` for one path.
#[derive(Clone, Debug, Deserialize)]
#[expect(missing_docs, reason = "the fields are those of the contract")]
pub struct QueryLine {
    pub path: String,
    pub verdict: String,
    pub evidence: String,
    pub why: Option<String>,
}

/// The answer of `reclaim who` for one path.
#[derive(Clone, Debug, Deserialize)]
#[expect(missing_docs, reason = "the fields are those of the contract")]
pub struct WhoLine {
    pub path: String,
    pub pinned: bool,
    pub evidence: String,
    pub complete: bool,
    pub pins: Vec<PinLine>,
    #[serde(default)]
    pub references: Vec<ReferenceLine>,
}

/// What relies on a path without a mount.
#[derive(Clone, Debug, Deserialize)]
#[expect(missing_docs, reason = "the fields are those of the contract")]
pub struct ReferenceLine {
    pub kind: String,
    #[serde(rename = "where")]
    pub place: String,
    pub task: Option<TaskLine>,
}

/// One pin of a path.
#[derive(Clone, Debug, Deserialize)]
#[expect(missing_docs, reason = "the fields are those of the contract")]
pub struct PinLine {
    pub role: String,
    #[serde(rename = "where")]
    pub place: String,
    pub namespace: Option<u64>,
    pub mount_id: u64,
    pub mount_point: Option<String>,
    pub state: String,
    pub tasks: Vec<TaskLine>,
}

/// What became of all that belongs to an id.
#[derive(Clone, Debug, Deserialize)]
#[expect(missing_docs, reason = "the fields are those of the contract")]
pub struct PurgeLine {
    pub id: String,
    pub targets: Vec<TargetLine>,
    pub removed: usize,
    pub refused: usize,
}

/// One target of a purge.
#[derive(Clone, Debug, Deserialize)]
#[expect(missing_docs, reason = "the fields are those of the contract")]
pub struct TargetLine {
    pub path: Option<String>,
    pub command: Option<Vec<String>>,
    pub verdict: String,
    pub reason: Option<String>,
    pub detail: Option<String>,
    #[serde(default)]
    pub pins: Vec<PinLine>,
    #[serde(default)]
    pub weaker_proof: bool,
}

impl PurgeLine {
    /// What became of the target at a path.
    #[track_caller]
    #[must_use]
    pub fn target(&self, path: &Path) -> &TargetLine {
        let is_it = |target: &&TargetLine| target.path.as_deref().is_some_and(|of| Path::new(of) == path);
        let found: Vec<_> = self.targets.iter().filter(is_it).collect();
        assert_eq!(found.len(), 1, "{} once in {self:?}", path.display());
        found[0]
    }

    /// What became of the target without a path whose command ends with a word.
    #[track_caller]
    #[must_use]
    pub fn managed(&self, last: &str) -> &TargetLine {
        let ends = |words: &Vec<String>| words.last().is_some_and(|word| word == last);
        let found: Vec<_> = self.targets.iter().filter(|target| target.command.as_ref().is_some_and(ends)).collect();
        assert_eq!(found.len(), 1, "{last} once in {self:?}");
        assert!(found[0].path.is_none(), "it has no path: {self:?}");
        found[0]
    }

    /// Whether nothing was refused for a doubt alone, such as mounts of others on a busy host raise.
    #[must_use]
    pub fn is_certain(&self) -> bool {
        let raises = |target: &TargetLine| {
            let detail = target.detail.as_deref().unwrap_or_default();
            let doubts = detail.contains("mounts were made") || detail.contains("cannot be resolved");
            target.reason.as_deref() == Some("no-evidence") || (target.pins.is_empty() && doubts)
        };
        !self.targets.iter().any(raises)
    }

    /// Fails the test when the counts do not add up, or something was removed in spite of a refusal.
    #[track_caller]
    pub fn check(&self) {
        let count = |verdict: &str| self.targets.iter().filter(|target| target.verdict == verdict).count();
        assert_eq!((count("removed"), count("refused")), (self.removed, self.refused), "{self:?}");
        assert!(self.refused == 0 || self.removed == 0, "a refusal, and yet something was removed: {self:?}");
    }
}

/// A task that lives in the namespace of a pin.
#[derive(Clone, Debug, Deserialize)]
#[expect(missing_docs, reason = "the fields are those of the contract")]
pub struct TaskLine {
    pub pid: i32,
    pub comm: String,
    pub cgroup: String,
}

/// `covered` of a scan: by user id.
pub type Covered = BTreeMap<u32, bool>;

/// The answer of `reclaim scan`.
#[derive(Clone, Debug, Deserialize)]
#[expect(missing_docs, reason = "the fields are those of the contract")]
pub struct ScanLine {
    pub tasks: u64,
    pub threads: u64,
    pub namespaces: u64,
    pub namespaces_read: u64,
    pub mounts: u64,
    pub complete: bool,
    pub covered: Covered,
    pub gaps: BTreeMap<String, u64>,
    pub elapsed_ms: u64,
}

impl ScanLine {
    /// How often a cause lowered the claim.
    #[must_use]
    pub fn gap(&self, cause: &str) -> u64 {
        self.gaps.get(cause).copied().unwrap_or(0)
    }
}
