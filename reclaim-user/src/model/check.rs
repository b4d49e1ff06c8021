//! What this kernel and this configuration give, as `reclaim check` tells it.

use super::report::{Name, Producer};
use super::status::Probe;
use serde::Serialize;

/// Three answers, so that a refusal is never taken for an absence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Three {
    /// It is there.
    Yes,
    /// It is not.
    No,
    /// It could not be told.
    CouldNotTell,
}

impl Three {
    /// As people say it.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::No => "no",
            Self::CouldNotTell => "could not tell",
        }
    }
}

/// Something that the kernel has or has not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename = "feature")]
pub struct FeatureReport {
    /// What it is.
    pub name: String,
    /// What it is for.
    pub used_for: String,
    /// Whether it is there.
    pub answer: Three,
    /// What says so, or what stood in the way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// A capability of this process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename = "capability")]
pub struct CapabilityReport {
    /// Its name.
    pub name: &'static str,
    /// Whether the process has it.
    pub answer: Three,
    /// What does not work without it.
    pub without: &'static str,
    /// What still works without it.
    pub still: &'static str,
}

/// One root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename = "root")]
pub struct RootReport {
    /// Its name.
    pub name: String,
    /// Its path.
    pub path: String,
    /// It is there.
    pub exists: bool,
    /// Batches of condemned entries that lie in it: a pass is under way, or an earlier one could not finish.
    pub batches: u64,
    /// Entries in them.
    pub condemned: u64,
    /// The walk has proved itself in it; none where it is not there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub walk: Option<Three>,
    /// Why it has not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub walk_why: Option<String>,
    /// Why the batches could not be counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unread: Option<String>,
    /// It is retired, since then: passes skip it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retired_since: Option<String>,
    /// Since when its claims cannot be read, as far as passes have told: everything in it is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claims_unread_since: Option<String>,
}

/// An entry that passes could not remove.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename = "stuck")]
pub struct StuckReport {
    /// Name of its root.
    pub root: String,
    /// Its name.
    pub name: Name,
    /// Its exact bytes where it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name_hex: Option<String>,
    /// Since when, RFC 3339.
    pub since: String,
    /// Why.
    pub why: String,
}

/// One hold by placeholders, or what is left of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename = "hold")]
pub struct HoldReport {
    /// Whose it is.
    pub user: u32,
    /// The process that took it, in its own pid namespace.
    pub pid: u32,
    /// The inode number of that namespace.
    pub pid_namespace: u64,
    /// The command that it runs.
    pub command: Name,
    /// Somebody holds by it still; otherwise the next pass removes what nothing relies on.
    pub alive: bool,
    /// Its placeholders.
    pub placeholders: Vec<Name>,
}

/// One probe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename = "probe")]
pub struct ProbeReport {
    /// The probe.
    #[serde(flatten)]
    pub probe: Probe,
}

/// How a command listens that takes evidence by itself, for as long as it runs. The probes that are told of one by one are
/// those of a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename = "commands")]
pub struct CommandsReport {
    /// The rung that is tried first.
    pub rung: String,
    /// What that costs others.
    pub cost: &'static str,
    /// What it does not see.
    pub blind_to: &'static str,
}

/// Something that is wrong, or looks so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename = "fault")]
pub struct FaultReport {
    /// What it is about.
    pub about: String,
    /// It keeps something from working.
    pub serious: bool,
    /// What is wrong, and what to do.
    pub message: String,
}

/// The end of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename = "check")]
pub struct CheckReport {
    /// The configuration that was read.
    pub config: Option<String>,
    /// The evidence in use; none when none can be taken.
    pub evidence: Option<Producer>,
    /// There is a mount clock, so that removal need not guess how long calls take.
    pub clock: bool,
    /// Every task and namespace is accounted for.
    pub complete: bool,
    /// Serious faults.
    pub faults: usize,
}
