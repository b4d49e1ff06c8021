//! What a pass is given, what it keeps for the next one, and what it tells as it goes.

use super::troubles::Troubles;
use crate::model::fence::Timestamp;
use crate::model::pin::Pin;
use crate::model::plan::retry_after;
use crate::model::report::{Reason, Verdict};
use crate::model::windows::Windows;
use std::collections::{HashMap, HashSet};
use std::num::NonZero;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

/// How a pass is made.
#[derive(Clone, Debug)]
pub struct PassOptions {
    /// Wall clock for the pass. Once it is over nothing more is condemned; what is in hand is still finished, trees only
    /// until as much again is over.
    pub budget: Duration,
    /// Change nothing, take no lock.
    pub dry_run: bool,
    /// Bring what lies condemned to its end, and look at no entry.
    pub leftovers_only: bool,
    /// Tell of every entry. Otherwise only faults are told, and not all of them when there are many.
    pub per_entry: bool,
    /// Most locks on entries that are held from condemning to removing; fewer where the process may not have as many
    /// descriptors. Other entries are locked for condemning, and once more for removing.
    pub held_leases: usize,
    /// Processors that there are for the threads of a pass.
    pub processors: usize,
    /// Longest wait for mount calls in flight.
    pub settle_limit: Duration,
    /// Once true, the step in hand is finished and the pass ends.
    pub stop: Option<Arc<AtomicBool>>,
    /// Once true, somebody waits for this pass: it ends as at the end of its budget, and is to be made again soon.
    pub cut: Option<Arc<AtomicBool>>,
    /// Where it is written which entries are kept and which roots are retired; none: nothing is.
    pub state_dir: Option<PathBuf>,
}

impl Default for PassOptions {
    fn default() -> Self {
        Self {
            budget: Duration::from_secs(10),
            dry_run: false,
            leftovers_only: false,
            per_entry: false,
            held_leases: usize::MAX,
            processors: available_parallelism().map_or(1, NonZero::get),
            settle_limit: Duration::from_secs(5),
            stop: None,
            cut: None,
            state_dir: None,
        }
    }
}

impl PassOptions {
    /// Whether the pass was told to stop.
    pub(super) fn is_stopped(&self) -> bool {
        is_set(self.stop.as_ref())
    }

    /// Whether somebody waits for the pass.
    pub(super) fn is_cut(&self) -> bool {
        is_set(self.cut.as_ref())
    }
}

fn is_set(flag: Option<&Arc<AtomicBool>>) -> bool {
    flag.is_some_and(|flag| flag.load(Ordering::Relaxed))
}

/// What is remembered of a root between passes. Start with the default, or where an earlier run was cut short.
#[derive(Debug, Default)]
pub struct RootState {
    /// Where the next listing begins.
    pub cursor: Cursor,
    /// Since when the claims could not be read.
    pub claims_unread_since: Option<Timestamp>,
    /// What cannot be removed, and when that was told.
    pub troubles: Troubles,
    /// The retention windows that passes went by.
    pub(super) windows: Windows,
    /// What could not be removed, by batch and name.
    pub(super) stuck: HashMap<(Vec<u8>, Vec<u8>), Stuck>,
    /// What passes did not come to the end of in their time, by batch and name.
    pub(super) unfinished: HashSet<(Vec<u8>, Vec<u8>)>,
}

impl RootState {
    /// Nothing but where to begin.
    #[must_use]
    pub fn at(cursor: Cursor) -> Self {
        Self { cursor, ..Self::default() }
    }

    /// Takes note of what lies condemned and could not be removed, and that somebody was told so.
    pub fn was_told(&mut self, name: &[u8], why: Option<&str>) {
        let now = super::examine::now();
        self.troubles.see(name, why, true, now);
        self.troubles.told(name, true, now);
    }
}

/// Where a listing was cut short.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// Place in the directory to go on from; 0 is its start.
    pub place: i64,
    /// Places grow smaller as the listing goes on, as on some kernels' tmpfs.
    pub descending: bool,
    /// There were enough candidates for the pile already.
    pub pile_met: bool,
}

/// Something that could not be removed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stuck {
    tries: u32,
    last: Instant,
}

impl Stuck {
    /// One more try that failed.
    pub(super) fn again(before: Option<Self>, now: Instant) -> Self {
        Self { tries: before.map_or(1, |stuck| stuck.tries.saturating_add(1)), last: now }
    }

    /// Whether it is time for another try.
    pub(super) fn is_due(self, now: Instant) -> bool {
        now.duration_since(self.last) >= retry_after(self.tries)
    }
}

/// What happens during a pass.
#[derive(Clone, Debug, PartialEq)]
pub enum PassEvent {
    /// What became of an entry.
    Entry(EntryEvent),
    /// Something about the pass as a whole, one sentence for people.
    Note(String),
    /// How far the pass is; after each piece of work.
    Progress {
        /// Entries that have been decided on.
        listed: u64,
        /// Entries that are gone.
        removed: u64,
    },
}

/// What became of an entry.
#[derive(Clone, Debug, PartialEq)]
pub struct EntryEvent {
    /// Its name, as bytes.
    pub name: Vec<u8>,
    /// What became of it.
    pub verdict: Verdict,
    /// Why it was kept or restored, or why it stays condemned.
    pub reason: Option<Reason>,
    /// The pins that keep it, where it is kept for pins.
    pub pins: Vec<Pin>,
    /// More about the reason, for people.
    pub detail: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stuck_entry_waits_longer_each_time() {
        let now = Instant::now();
        let once = Stuck::again(None, now);
        assert!(!once.is_due(now + Duration::from_secs(59)) && once.is_due(now + Duration::from_secs(60)));
        let twice = Stuck::again(Some(once), now);
        assert!(!twice.is_due(now + Duration::from_secs(119)) && twice.is_due(now + Duration::from_secs(120)));
    }
}
