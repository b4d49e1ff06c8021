//! What is told of a pass: reasons, verdicts and counts that always add up.

use serde::{Serialize, Serializer};
use std::collections::BTreeMap;

/// Why an entry is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// Some mount relies on it.
    Pinned,
    /// Younger than the minimum age, or its age could not be read.
    Young,
    /// The process that its name tells is alive, or could not be asked.
    PidAlive,
    /// Another owner.
    Owner,
    /// Another kind of file.
    Kind,
    /// Another mode.
    Mode,
    /// The name does not match.
    Name,
    /// Somebody holds a lock on it.
    Leased,
    /// A keep-until lies ahead.
    KeepUntil,
    /// It is claimed, or the claims could not be read.
    Claimed,
    /// Too few candidates to act on.
    Pile,
    /// It holds something, and only what is empty may go.
    NotEmpty,
    /// What was seen of the host is too little to say that nothing relies on it.
    NoEvidence,
    /// Its retention window is not over.
    Retained,
    /// A call on it failed.
    Failed,
}

/// What became of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It is gone.
    Removed,
    /// It was left where it is.
    Kept,
    /// It was condemned, found to be in use, and given its name back.
    Restored,
    /// It is condemned and stays so until a later pass.
    Condemned,
    /// A dry run found nothing that speaks for it.
    WouldRemove,
}

/// Who took the evidence that a pass went on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Producer {
    /// The live set that the probes feed.
    Live,
    /// The kernel's own list of mounts.
    Walk,
    /// Mount tables.
    Scan,
}

/// The summary of one pass over one root.
///
/// Invariant: `listed` = `removed` + `condemned` + the sum of `kept`. A restored entry is counted in `kept` under the
/// reason that it was restored for. In a dry run what would go is counted in `candidates` and in no other count but
/// `listed`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename = "pass")]
pub struct PassSummary {
    /// Name of the root.
    pub root: String,
    /// Evidence that the removals went on.
    pub evidence: Producer,
    /// Every task and namespace was accounted for.
    pub complete: bool,
    /// Every task that could hold an entry of the root's owner was read.
    pub covered: bool,
    /// Gaps by cause.
    pub gaps: BTreeMap<&'static str, u64>,
    /// Entries looked at, leftovers of earlier passes included.
    pub listed: u64,
    /// Entries that passed every fence when they were listed.
    pub candidates: u64,
    /// Kept entries by reason; no zeros.
    pub kept: BTreeMap<Reason, u64>,
    /// Entries that are gone.
    pub removed: u64,
    /// Entries that were condemned and given their name back; each is counted in `kept` too.
    pub restored: u64,
    /// Entries that stay condemned.
    pub condemned: u64,
    /// The budget ended the pass before the end of the root.
    pub truncated: bool,
    /// Nothing was changed.
    pub dry_run: bool,
    /// What is held back for something else than an entry's own sake.
    #[serde(flatten)]
    pub remarks: Remarks,
    /// How long the pass took.
    pub elapsed_ms: u64,
}

/// What a summary tells besides counts; nothing where all is well.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Remarks {
    /// Since when the claims cannot be read, RFC 3339. Everything in the root is kept as claimed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claims_unread_since: Option<String>,
    /// Why they cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claims_fault: Option<String>,
    /// Why the keeps cannot be read. Everything in the root is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keeps_fault: Option<String>,
    /// The root is retired, since then, and was not looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retired_since: Option<String>,
    /// The pass was cut short for a request that waited for it, whatever was left of its budget.
    #[serde(skip_serializing_if = "is_false")]
    pub cut: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_false(flag: &bool) -> bool {
    !flag
}

/// A name as bytes that is written as text, lossily, with the exact bytes beside it where that loses something.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(pub Vec<u8>);

impl Name {
    /// The bytes in hexadecimal where the name is not UTF-8.
    #[must_use]
    pub fn hex(&self) -> Option<String> {
        use std::fmt::Write as _;
        std::str::from_utf8(&self.0).is_err().then(|| {
            self.0.iter().fold(String::with_capacity(self.0.len() * 2), |mut hex, byte| {
                write!(hex, "{byte:02x}").expect("writing to a string cannot fail");
                hex
            })
        })
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        String::from_utf8_lossy(&self.0).fmt(out)
    }
}

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
