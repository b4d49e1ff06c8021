//! What a pass does next: how candidates are dealt into batches, when a group of batches is confirmed, and whether
//! there are enough candidates to act on.

use super::fence;
use super::report::{PassSummary, Reason};
use std::time::Duration;

/// Entries in one batch directory. Removing from one directory does not get faster with a second thread, and a huge
/// directory is slow on some file systems, so batches are parents of their own.
pub const BATCH_ENTRIES: usize = 4096;

/// Most entries that share one wait and one confirmation. They are in memory, about 150 bytes each; one
/// group is removed while the next one is listed, so a pass has two of them.
pub const GROUP_ENTRIES: usize = 32_768;

/// End of a batch's name until it is decided that all that was condemned with it goes: what is found so is given back, and
/// the directory goes once it is empty.
pub const UNDECIDED: &[u8] = b"-undecided";

/// Most batches that share one wait and one confirmation: half of what the kernel's own list of mounts and the look at
/// references can be asked about at once. Earlier passes may have left many with a few entries each.
pub const GROUP_BATCHES: usize = 512;

/// Entries of a first group: one batch. What the kernel keeps of a group this small is still in the processor's caches
/// when it comes to be removed.
pub const GROUP_FIRST: usize = BATCH_ENTRIES;

/// What part of the time for filling a group its confirmation may take before groups become larger.
const CONFIRMING_PART: u32 = 8;

/// Shortest time that a group is filled for, so that confirmations do not become most of the work.
const GROUP_LEAST: Duration = Duration::from_millis(50);

/// Longest time that a group is filled for: no path leads to its entries meanwhile, and one of them may prove live.
const GROUP_MOST: Duration = Duration::from_secs(1);

/// Whether a group is to be confirmed and removed before more is condemned.
///
/// `most` is the number of entries that it is full with, `filled_for` the time since it was begun, `left` what is left of
/// the budget. Confirming and removing take about as long as condemning did, so half of the budget that was there is kept
/// for them.
#[must_use]
pub fn group_is_due(entries: usize, most: usize, filled_for: Duration, left: Duration) -> bool {
    entries >= most || (entries > 0 && filled_for >= left.clamp(GROUP_LEAST, GROUP_MOST))
}

/// Entries that the next group is full with, after one that was full with `most`: as few as keep confirmations a small part
/// of the work, `largest` at most. What a confirmation takes depends on the host: its mounts, its tasks, its open files.
#[must_use]
pub fn next_group(most: usize, largest: usize, filled_for: Duration, confirmed_for: Duration) -> usize {
    let is_dear = confirmed_for.saturating_mul(CONFIRMING_PART) > filled_for;
    if is_dear { most.saturating_mul(2).min(largest).max(most) } else { most }
}

/// The pile: holds candidates back until there are enough of them.
#[derive(Clone, Debug)]
pub struct Pile<T> {
    threshold: Option<u64>,
    seen: u64,
    held: Vec<T>,
}

impl<T> Pile<T> {
    /// A pile that opens at `threshold` candidates. `met`: it was open already when the pass before was cut short.
    #[must_use]
    pub fn new(threshold: Option<u64>, met: bool) -> Self {
        Self { threshold: threshold.filter(|_| !met), seen: 0, held: Vec::new() }
    }

    /// Takes one more candidate. Returns those that may go on now.
    pub fn add(&mut self, candidate: T) -> Vec<T> {
        self.seen += 1;
        self.held.push(candidate);
        if self.is_open() { std::mem::take(&mut self.held) } else { Vec::new() }
    }

    /// Whether there were enough candidates.
    #[must_use]
    pub fn is_open(&self) -> bool {
        fence::piled(self.threshold, self.seen)
    }

    /// Those that were held back to the end, and so are kept.
    #[must_use]
    pub fn into_held(self) -> Vec<T> {
        self.held
    }
}

/// How long to leave something alone that could not be removed, after so many tries: from one minute, twice as long each
/// time, to a day.
#[must_use]
pub fn retry_after(tries: u32) -> Duration {
    const DAY: Duration = Duration::from_secs(86_400);
    let minutes = 1_u64.checked_shl(tries.saturating_sub(1)).unwrap_or(u64::MAX);
    Duration::from_secs(minutes.saturating_mul(60)).min(DAY)
}

/// Whether a root that is looked at once is done with: the pass came to its end, and nothing was left that goes by waiting
/// or once a fault is mended, and nothing condemned. `backstop`: the root has one.
#[must_use]
pub fn retires(pass: &PassSummary, backstop: bool) -> bool {
    let unknown = pass.remarks.claims_fault.is_some() || pass.remarks.keeps_fault.is_some();
    let waits = pass.kept.keys().any(|reason| passes_by(*reason, backstop));
    !pass.dry_run && !pass.truncated && !unknown && !waits && pass.condemned == 0
}

/// Whether an entry that is kept for this reason may go in a later pass although nobody does anything about it but wait,
/// or mend what hindered the pass.
fn passes_by(reason: Reason, backstop: bool) -> bool {
    match reason {
        // Times run out.
        Reason::Young | Reason::Retained | Reason::KeepUntil => true,
        // Words and locks are for as long as somebody works with the entry, and are taken back.
        Reason::Claimed | Reason::Leased => true,
        // Faults of the moment: a file system that is read-only, tasks that could not be read.
        Reason::Failed | Reason::NoEvidence => true,
        // With a backstop its age alone decides in the end. Without one it waits for a process that is in use itself.
        Reason::PidAlive => backstop,
        // Something relies on it, as far as is seen for as long as the host runs.
        Reason::Pinned => false,
        // Not ours, and nothing about that changes by itself.
        Reason::Owner | Reason::Kind | Reason::Mode | Reason::Name | Reason::NotEmpty => false,
        // So few prove nothing, and residue does not become more.
        Reason::Pile => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::report::{Producer, Remarks};
    use std::collections::BTreeMap;

    fn ended(kept: &[Reason]) -> PassSummary {
        PassSummary {
            root: "root".into(),
            evidence: Producer::Scan,
            complete: true,
            covered: true,
            gaps: BTreeMap::new(),
            listed: kept.len() as u64,
            candidates: 0,
            kept: kept.iter().map(|reason| (*reason, 1)).collect(),
            removed: 0,
            restored: 0,
            condemned: 0,
            truncated: false,
            dry_run: false,
            remarks: Remarks::default(),
            elapsed_ms: 0,
        }
    }

    #[test]
    fn a_root_retires_once_nothing_in_it_goes_by_waiting() {
        use Reason::{
            Claimed, Failed, KeepUntil, Kind, Leased, Mode, Name, NoEvidence, NotEmpty, Owner, PidAlive, Pile, Pinned,
            Retained, Young,
        };
        let never = [Pinned, Owner, Kind, Mode, Name, NotEmpty, Pile];
        assert!(retires(&ended(&[]), true) && retires(&ended(&never), true));
        for reason in [Young, Retained, KeepUntil, Claimed, Leased, Failed, NoEvidence] {
            for backstop in [false, true] {
                assert!(!retires(&ended(&[Pinned, reason]), backstop), "{reason:?}");
            }
        }
        assert!(retires(&ended(&[PidAlive]), false) && !retires(&ended(&[PidAlive]), true));
    }

    #[test]
    fn a_root_retires_after_a_pass_that_saw_all_of_it() {
        let fault = || Some("why".to_owned());
        let whole = ended(&[]);
        for part in [
            PassSummary { dry_run: true, ..whole.clone() },
            PassSummary { truncated: true, ..whole.clone() },
            PassSummary { condemned: 1, ..whole.clone() },
            PassSummary { remarks: Remarks { claims_fault: fault(), ..Remarks::default() }, ..whole.clone() },
            PassSummary { remarks: Remarks { keeps_fault: fault(), ..Remarks::default() }, ..whole.clone() },
        ] {
            assert!(!retires(&part, false), "{part:?}");
        }
    }

    #[test]
    fn a_pile_opens_at_its_threshold_and_lets_all_through_from_then_on() {
        let mut pile = Pile::new(Some(3), false);
        assert!(pile.add(1).is_empty() && pile.add(2).is_empty());
        assert_eq!(pile.add(3), [1, 2, 3]);
        assert_eq!(pile.add(4), [4]);
        assert!(pile.into_held().is_empty());
        let mut small = Pile::new(Some(3), false);
        assert!(small.add(1).is_empty());
        assert_eq!(small.into_held(), [1]);
        assert_eq!(Pile::new(None, false).add(1), [1]);
        assert_eq!(Pile::new(Some(3), true).add(1), [1]);
    }

    #[test]
    fn a_group_is_due_when_full_or_when_half_of_the_budget_is_gone() {
        let second = Duration::from_secs(1);
        assert!(!group_is_due(0, 9, second * 9, Duration::ZERO));
        assert!(!group_is_due(1, 9, second / 2, second * 9));
        assert!(group_is_due(1, 9, second, second * 9));
        assert!(group_is_due(1, 9, second / 4, second / 4));
        assert!(group_is_due(1, 9, second, Duration::ZERO));
        assert!(!group_is_due(1, 9, Duration::ZERO, Duration::ZERO));
        assert!(group_is_due(9, 9, Duration::ZERO, second));
    }

    #[test]
    fn groups_grow_as_long_as_confirming_them_is_dear() {
        let millis = Duration::from_millis;
        assert_eq!(next_group(4_096, 32_768, millis(80), millis(10)), 4_096);
        assert_eq!(next_group(4_096, 32_768, millis(80), millis(11)), 8_192);
        assert_eq!(next_group(4_096, 6_000, millis(80), Duration::MAX), 6_000);
        assert_eq!(next_group(4_096, 1_000, millis(80), millis(99)), 4_096, "never fewer than before");
        assert_eq!(next_group(4_096, 32_768, Duration::ZERO, Duration::ZERO), 4_096);
    }

    #[test]
    fn retries_become_rare_and_never_stop() {
        assert_eq!(retry_after(1), Duration::from_secs(60));
        assert_eq!(retry_after(2), Duration::from_secs(120));
        assert_eq!(retry_after(11), Duration::from_secs(61_440));
        for tries in [12, 63, 64, 65, u32::MAX] {
            assert_eq!(retry_after(tries), Duration::from_secs(86_400), "{tries}");
        }
    }
}
