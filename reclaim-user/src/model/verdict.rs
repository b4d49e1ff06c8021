//! Whether an entry may go: the fences in their fixed order, facts in and verdict out.
//!
//! When several reasons hold, the first of this order is told:
//!
//! 1. `pinned`: a pin that anybody saw, whatever else is the case
//! 2. `name`
//! 3. `pinned`: something is mounted there in reclaim's own namespace
//! 4. `kind`, 5. `owner`, 6. `mode`, 7. `young`, 8. `keep-until`, 9. `claimed`, 10. `retained`, 11. `pid-alive`
//! 12. `leased`, 13. `not-empty`
//! 14. `pinned`: a layer of a union file system whose place is not known could be there
//! 15. `no-evidence`
//! 16. `pile`, which is judged over all candidates together ([`super::plan`])
//!
//! Facts are asked for in the same order, so an entry that an early fence keeps costs no later look at it. That is why
//! the verdict comes in stages; each stage takes what the stage before gave.

use super::fence::{self, Contents, Lease, NamedProcess, Process, Status, Timestamp};
use super::report::Reason;
use super::retention::{self, Record};
use super::windows::Windows;
use crate::config::RootConfig;
use std::time::Duration;

/// An entry that passed the fences that need its name alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Named {
    process: NamedProcess,
}

/// What others say of an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spoken {
    /// Its owner or root wants it kept until a time that lies ahead, or what is kept could not be read.
    pub kept: bool,
    /// It is claimed, or the claims could not be read.
    pub claimed: bool,
}

/// An entry that passed the fences that need its status too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Known {
    process: NamedProcess,
    born: Option<Timestamp>,
    age: Option<Duration>,
}

/// An entry that is past its retention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Over {
    ask: Option<u32>,
    born: Option<Timestamp>,
}

impl Over {
    /// The process that has to be asked about; none when it does not matter.
    #[must_use]
    pub fn process(&self) -> Option<u32> {
        self.ask
    }
}

/// Stages 1 and 2.
///
/// # Errors
/// The reason to keep the entry.
pub fn by_name(rules: &RootConfig, name: &[u8], pinned: bool) -> Result<Named, Reason> {
    if pinned {
        return Err(Reason::Pinned);
    }
    let process = fence::name(rules.pattern.as_ref(), name).ok_or(Reason::Name)?;
    Ok(Named { process })
}

/// Stages 3 to 9. `mounted`: something is mounted there in reclaim's own namespace.
///
/// # Errors
/// The reason to keep the entry.
pub fn by_status(
    rules: &RootConfig,
    named: Named,
    status: &Status,
    mounted: bool,
    spoken: Spoken,
    now: Timestamp,
) -> Result<Known, Reason> {
    let born = status.born();
    let age = born.and_then(|born| born.age(now));
    let passes = |passed: bool, reason: Reason| if passed { Ok(()) } else { Err(reason) };
    passes(!mounted, Reason::Pinned)?;
    passes(fence::kind(rules.kind, status.kind), Reason::Kind)?;
    passes(fence::owner(rules.owner, status.owner), Reason::Owner)?;
    passes(fence::mode(rules.mode, status.mode), Reason::Mode)?;
    passes(fence::old_enough(rules.min_age, age), Reason::Young)?;
    passes(!spoken.kept, Reason::KeepUntil)?;
    passes(!spoken.claimed, Reason::Claimed)?;
    Ok(Known { process: named.process, born, age })
}

/// Stage 10, and of stage 11 what the name alone tells. `record`: what the entry's manifest says, where the rules ask for one.
///
/// # Errors
/// The reason to keep the entry.
pub fn by_retention(
    rules: &RootConfig,
    known: Known,
    record: Record,
    windows: &Windows,
    now: Timestamp,
) -> Result<Over, Reason> {
    let Known { process, born, age } = known;
    if !retention::is_over(rules.retain, rules.retain_from.as_ref(), windows, born, record, now) {
        return Err(Reason::Retained);
    }
    let ask = match process {
        NamedProcess::Unasked => None,
        _ if fence::past_backstop(rules.backstop, age) => None,
        NamedProcess::Process(process) => Some(process),
        NamedProcess::Unusable => return Err(Reason::PidAlive),
    };
    Ok(Over { ask, born })
}

/// Stage 11: the process that [`Over::process`] names, where it names one.
///
/// # Errors
/// The reason to keep the entry.
pub fn by_process(over: Over, process: Process) -> Result<(), Reason> {
    match over.ask {
        Some(_) if !fence::process_gone(process, over.born) => Err(Reason::PidAlive),
        _ => Ok(()),
    }
}

/// Stages 12 and 13.
///
/// # Errors
/// The reason to keep the entry.
pub fn by_contents(rules: &RootConfig, lease: Lease, contents: Contents) -> Result<(), Reason> {
    by_lease(rules, lease)?;
    if !fence::may_hold(rules.remove, contents) {
        return Err(Reason::NotEmpty);
    }
    Ok(())
}

/// Stage 12 alone, for a directory whose emptiness the kernel judges as it removes it.
///
/// # Errors
/// The reason to keep the entry.
pub fn by_lease(rules: &RootConfig, lease: Lease) -> Result<(), Reason> {
    if fence::unleased(rules.leases, lease) { Ok(()) } else { Err(Reason::Leased) }
}

/// Stages 14 and 15. `doubt`: a layer that could not be resolved could be there.
///
/// # Errors
/// The reason to keep the entry.
pub fn by_evidence(doubt: bool, complete: bool, covered: bool) -> Result<(), Reason> {
    if doubt {
        return Err(Reason::Pinned);
    }
    if !fence::evidence(complete, covered) {
        return Err(Reason::NoEvidence);
    }
    Ok(())
}

/// All that is known of one entry.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Its name.
    pub name: Vec<u8>,
    /// Some pin is on it.
    pub pinned: bool,
    /// Something is mounted there in reclaim's own namespace.
    pub mounted: bool,
    /// Its status.
    pub status: Status,
    /// What others say of it.
    pub spoken: Spoken,
    /// What its manifest says.
    pub record: Record,
    /// The windows that were in force.
    pub windows: Windows,
    /// What the process of its name is like; of no matter when the name tells none.
    pub process: Process,
    /// Whether it is locked.
    pub lease: Lease,
    /// What it holds.
    pub contents: Contents,
    /// A layer that could not be resolved could be there.
    pub doubt: bool,
    /// Every task and namespace was accounted for.
    pub complete: bool,
    /// Every task that could hold an entry of its owner was read.
    pub covered: bool,
}

/// All stages at once, but for the pile.
///
/// # Errors
/// The reason to keep the entry.
pub fn judge(rules: &RootConfig, facts: &Facts, now: Timestamp) -> Result<(), Reason> {
    let named = by_name(rules, &facts.name, facts.pinned)?;
    let known = by_status(rules, named, &facts.status, facts.mounted, facts.spoken, now)?;
    by_process(by_retention(rules, known, facts.record, &facts.windows, now)?, facts.process)?;
    by_contents(rules, facts.lease, facts.contents)?;
    by_evidence(facts.doubt, facts.complete, facts.covered)
}

#[cfg(test)]
#[path = "verdict_tests.rs"]
mod tests;
