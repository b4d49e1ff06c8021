//! Draining the ring of events, and noticing every record that did not come.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use aya::maps::{MapData, RingBuf};
use reclaim_ebpf::abi::{COUNTER_LOST, COUNTER_MISSED, COUNTER_SEQUENCE};

use crate::model::event::Event;
use crate::sys::memory_map::CounterMemory;

/// How long a record that was numbered may take to appear. Between the two lie a few instructions of one processor,
/// which only a hypervisor can stretch; what takes longer is taken for lost.
const APPEARS_WITHIN: Duration = Duration::from_millis(50);
/// Pause between looks for such a record.
const LOOK_AGAIN: Duration = Duration::from_micros(20);

/// What one drain brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Events handed out.
    pub events: usize,
    /// Records that the kernel numbered and that never came, or that were never sent because a return was not seen,
    /// noticed since the drain before.
    pub lost: u64,
    /// Records that could not be decoded. What they told is lost too.
    pub malformed: u64,
}

/// The reading end of the ring.
#[derive(Debug)]
pub struct Ring {
    ring: Reader,
    counters: Arc<CounterMemory>,
    ledger: Ledger,
    /// Returns not seen that have been told of.
    missed: u64,
    /// Handed out by the next drain: events that came while the probes were being tried.
    early: Vec<Event>,
    early_counts: Drained,
}

/// The ring itself, which has no debug form of its own.
struct Reader(RingBuf<MapData>);

impl std::fmt::Debug for Reader {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("RingBuf").field(&self.0.as_raw_fd()).finish()
    }
}

impl Ring {
    pub(super) fn new(ring: RingBuf<MapData>, counters: Arc<CounterMemory>) -> Self {
        Self {
            ring: Reader(ring),
            counters,
            ledger: Ledger::default(),
            missed: 0,
            early: Vec::new(),
            early_counts: Drained::default(),
        }
    }

    /// Hands out every event that the kernel had numbered when this was called, and possibly later ones.
    ///
    /// Events of different processors may come in another order than their sequence numbers.
    pub fn drain(&mut self, out: &mut Vec<Event>) -> Drained {
        let mut drained = std::mem::take(&mut self.early_counts);
        out.append(&mut self.early);
        let before = out.len();
        let missed = self.counters.load(COUNTER_MISSED);
        drained.lost += missed - std::mem::replace(&mut self.missed, missed);
        let target = self.counters.load(COUNTER_SEQUENCE);
        self.ledger.aim(target);
        let started = Instant::now();
        loop {
            while self.ledger.missing(target) > 0
                && let Some(record) = self.ring.0.next()
            {
                match Event::decode(&record) {
                    Ok(event) => {
                        self.ledger.received(event.sequence, target);
                        out.push(event);
                    }
                    Err(error) => {
                        tracing::warn!("{error}");
                        self.ledger.malformed();
                        drained.malformed += 1;
                    }
                }
            }
            drained.lost += self.ledger.counted_lost(self.counters.load(COUNTER_LOST));
            if self.ledger.missing(target) == 0 {
                break;
            }
            if started.elapsed() > APPEARS_WITHIN {
                drained.lost += self.ledger.write_off(target);
                break;
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        self.ledger.settle(target);
        drained.events += out.len() - before;
        drained
    }

    /// Gives back what [`Ring::drain`] handed out, for the next call to hand out again.
    pub(super) fn put_back(&mut self, events: Vec<Event>, counts: Drained) {
        debug_assert!(self.early.is_empty(), "put back once, before anybody else drains");
        self.early = events;
        self.early_counts = counts;
    }

    /// Becomes readable when there is something to drain.
    #[must_use]
    pub fn poll_fd(&self) -> BorrowedFd<'_> {
        self.ring.0.as_fd()
    }
}

impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poll_fd()
    }
}

impl AsRawFd for Ring {
    fn as_raw_fd(&self) -> RawFd {
        self.ring.0.as_raw_fd()
    }
}

/// Accounts for sequence numbers: each one up to a target was received, counted as lost in the kernel, or written off.
///
/// The kernel does not say *which* numbers it lost. A loss beyond the target can therefore stand in for a record on its
/// way; that record is handed out by a later drain, and the drain in between has told of a loss.
#[derive(Debug, Default)]
struct Ledger {
    received: u64,
    /// Numbers received that lay beyond the target at the time.
    ahead: BTreeSet<u64>,
    /// Target of the drain before.
    settled: u64,
    counted_lost: u64,
    written_off: u64,
    malformed: u64,
}

impl Ledger {
    fn received(&mut self, sequence: u64, target: u64) {
        if sequence <= self.settled && self.written_off > 0 {
            // It comes after all.
            self.written_off -= 1;
        }
        self.received += 1;
        if sequence > target {
            self.ahead.insert(sequence);
        }
    }

    fn malformed(&mut self) {
        self.malformed += 1;
    }

    /// Takes in the kernel's count of lost records, and returns how many are new.
    fn counted_lost(&mut self, count: u64) -> u64 {
        let fresh = count.saturating_sub(self.counted_lost);
        self.counted_lost = count;
        fresh
    }

    /// How many numbers up to the target are not accounted for.
    fn missing(&self, target: u64) -> u64 {
        let received = self.received - self.ahead.len() as u64;
        target.saturating_sub(received + self.counted_lost + self.written_off + self.malformed)
    }

    /// Gives up on what is missing, and returns how many that are.
    fn write_off(&mut self, target: u64) -> u64 {
        let missing = self.missing(target);
        self.written_off += missing;
        missing
    }

    /// Ends a drain; the next one's target lies at or beyond this one's.
    fn settle(&mut self, target: u64) {
        self.settled = target;
    }

    /// Begins a drain: what lay ahead of the target before may lie below the one that is now.
    fn aim(&mut self, target: u64) {
        self.ahead = self.ahead.split_off(&target.saturating_add(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A drain of the given sequence numbers, with the kernel's count of losses. Returns what is missing.
    fn drain(ledger: &mut Ledger, target: u64, sequences: &[u64], lost: u64) -> u64 {
        ledger.aim(target);
        for &sequence in sequences {
            ledger.received(sequence, target);
        }
        ledger.counted_lost(lost);
        let missing = ledger.missing(target);
        ledger.settle(target);
        missing
    }

    #[test]
    fn order_does_not_matter() {
        let mut ledger = Ledger::default();
        assert_eq!(drain(&mut ledger, 4, &[2, 1, 4, 3], 0), 0);
        assert_eq!(drain(&mut ledger, 6, &[6, 5], 0), 0);
    }

    #[test]
    fn later_numbers_do_not_stand_in_for_earlier_ones() {
        let mut ledger = Ledger::default();
        assert_eq!(drain(&mut ledger, 3, &[1, 2, 4, 5], 0), 1);
        assert_eq!(drain(&mut ledger, 5, &[3], 0), 0);
    }

    #[test]
    fn a_counted_loss_explains_a_hole() {
        let mut ledger = Ledger::default();
        assert_eq!(drain(&mut ledger, 4, &[1, 2, 4], 0), 1);
        assert_eq!(drain(&mut ledger, 4, &[], 1), 0);
        assert_eq!(drain(&mut ledger, 5, &[5], 1), 0);
    }

    #[test]
    fn losses_are_told_once() {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.counted_lost(3), 3);
        assert_eq!(ledger.counted_lost(3), 0);
        assert_eq!(ledger.counted_lost(5), 2);
    }

    #[test]
    fn a_hole_without_a_count_is_written_off_once_and_may_still_come() {
        let mut ledger = Ledger::default();
        assert_eq!(drain(&mut ledger, 3, &[1, 3], 0), 1);
        assert_eq!(ledger.write_off(3), 1);
        assert_eq!(drain(&mut ledger, 4, &[4], 0), 0);
        // The late record takes its write-off back, so that it does not stand in for another.
        assert_eq!(drain(&mut ledger, 6, &[2, 6], 0), 1);
    }

    #[test]
    fn a_malformed_record_leaves_no_hole_behind() {
        let mut ledger = Ledger::default();
        ledger.malformed();
        assert_eq!(drain(&mut ledger, 2, &[2], 0), 0);
    }
}
