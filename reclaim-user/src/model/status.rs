//! What a running service says of itself, and what it has done so far.

use super::report::{PassSummary, Producer, Reason};
use serde::Serialize;
use std::collections::BTreeMap;

/// Totals since the service started. Only ever added to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Passes that ended, one for each root.
    pub passes: u64,
    /// Passes that failed or found another reclaimer at work.
    pub passes_failed: u64,
    /// Entries that are gone.
    pub removed: u64,
    /// Entries that were condemned and given their name back.
    pub restored: u64,
    /// Entries kept, by reason, each time they were.
    pub kept: BTreeMap<Reason, u64>,
}

impl Totals {
    /// Adds one pass. A dry run changes nothing and is not counted.
    pub fn add(&mut self, pass: &PassSummary) {
        if pass.dry_run {
            return;
        }
        self.passes += 1;
        self.removed += pass.removed;
        self.restored += pass.restored;
        for (reason, count) in &pass.kept {
            *self.kept.entry(*reason).or_default() += count;
        }
    }
}

/// One probe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Probe {
    /// What it watches.
    pub hook: String,
    /// How it is attached.
    pub rung: String,
    /// Whether it is.
    pub state: String,
    /// What that costs the host.
    pub cost: String,
    /// What it does not see.
    pub blind_to: String,
    /// The ways that were to be tried before, and why each is not used.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub passed: Vec<PassedRung>,
}

impl Probe {
    /// The ways in the order of trying: why each is not used, and the one in use.
    #[must_use]
    pub fn ladder(&self) -> String {
        let passed = self.passed.iter().map(|passed| format!("{}: {}", passed.rung, passed.why));
        let last = if self.state == "attached" { format!("in use: {}", self.rung) } else { self.state.clone() };
        passed.chain([last]).collect::<Vec<_>>().join("; ")
    }
}

/// A way to attach a probe that is not used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PassedRung {
    /// The way.
    pub rung: String,
    /// Why not: absent, refused, or attached and found not to report.
    pub why: String,
}

/// The evidence of a running service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EvidenceStatus {
    /// Who takes it.
    pub evidence: Producer,
    /// Every task and namespace is accounted for.
    pub complete: bool,
    /// Gaps by cause.
    pub gaps: BTreeMap<&'static str, u64>,
    /// Milliseconds since it was last brought up to date.
    pub age_ms: u64,
    /// There is a mount clock.
    pub clock: bool,
    /// Why there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_missing: Option<String>,
    /// What the mount clock cannot know of the time before the probes were attached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_weakness: Option<String>,
    /// Records of events that arrived.
    pub events: u64,
    /// Records that were lost.
    pub lost: u64,
    /// Namespaces that were read again because something happened in them.
    pub rereads: u64,
    /// Full baselines taken.
    pub baselines: u64,
    /// Namespaces known.
    pub namespaces: usize,
    /// Mounts known.
    pub mounts: usize,
    /// The probes.
    pub probes: Vec<Probe>,
    /// Why there are no probes, or fewer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probes_missing: Option<String>,
    /// Why the kernel's own list of mounts is not walked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub walk_missing: Option<String>,
}

/// A running service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename = "status")]
pub struct StatusReport {
    /// Its process.
    pub pid: u32,
    /// How long it has been up.
    pub uptime_ms: u64,
    /// A pass is under way, over this root.
    pub sweeping: Option<String>,
    /// Until the next scheduled pass; none while the first one is awaited.
    pub next_pass_ms: Option<u64>,
    /// Its evidence.
    #[serde(flatten)]
    pub evidence: EvidenceStatus,
    /// Totals since it started.
    pub totals: Totals,
    /// The last pass over each root.
    pub passes: Vec<PassSummary>,
    /// Roots of which the last pass failed, with why.
    pub faults: BTreeMap<String, String>,
}
