//! What a confirmation goes on: references to condemned entries, and the mounts that rely on them.

use super::walked::{self, Asked};
use super::{Engine, EngineError, error_chain};
use crate::evidence::clock::{Clock, Reading};
use crate::evidence::references::{Counted, Gap, ReferenceError};
use crate::evidence::source::CondemnedIn;
use crate::model::coverage::{GapCause, Reach};
use crate::model::pin::Place;
use crate::model::reference::{Reference, ReferenceKind, References};
use crate::model::report::Producer;
use std::time::Duration;
use tracing::warn;

/// Looks in one confirmation, and the pause between them.
const LOOKS: u32 = 8;
const PAUSE: Duration = Duration::from_millis(1);
/// Counts before a reference that nothing explains is believed. Whoever comes by a name on a path, or reads the links of
/// somebody's descriptors in /proc, has one for an instant.
const COUNTS: u32 = 4;
/// Mount calls that one look makes itself: the mount that the walk has to find.
const OWN_CALLS: u64 = 1;

/// Whether no mount call of others was inside the kernel from one reading to the other.
fn is_still(before: Reading, after: Reading) -> bool {
    before.left == before.entered
        && after.entered.wrapping_sub(before.entered) == OWN_CALLS
        && after.untracked == before.untracked
}

/// Counts until every reference is explained, or was there too often to be somebody who only comes by. The last count is
/// the one that holds: what it finds free is free, whatever those before it said.
fn count_again<E>(
    mut count: impl FnMut() -> Result<Counted, E>,
    is_explained: impl Fn(&[u8]) -> bool,
) -> Result<Counted, E> {
    for _ in 1..COUNTS {
        let counted = count()?;
        if counted.referred.iter().all(|entry| is_explained(entry)) {
            return Ok(counted);
        }
        std::thread::sleep(PAUSE);
    }
    count()
}

impl Engine {
    /// Looks for references to condemned entries and adds them to those that are known already.
    pub(super) fn refer(&mut self, condemned: &[CondemnedIn<'_>], known: References) -> Vec<Gap> {
        let found = self.finder.find(condemned);
        self.references = known;
        self.references.extend(found.references);
        found.gaps
    }

    /// Brings what mount tables show up to the moment. A pin that anyone sees wins, and the work directory of an overlay
    /// is a layer that no mount shows.
    pub(super) fn confirm_tables(&mut self) -> Result<(), EngineError> {
        if self.walker.is_none() || self.probes.is_none() || self.live.has_gap() {
            return self.baseline();
        }
        self.take_events();
        self.refresh()
    }

    /// Looks at mounts and references until what was seen leaves no doubt. Returns who speaks for the mounts, and what
    /// lowers the claim.
    ///
    /// A descriptor that becomes a mount between a look at mounts and the next one at references is seen by neither. It
    /// raises the kernel's count of references all the same, and it takes a mount call; so what the count cannot tell of
    /// is looked at again until no such call was made meanwhile. Without a clock there is no telling, and the pass says so.
    /// Where there is one and the wait ended in doubt, a call from before may be inside that it never counted in, so that
    /// nothing that the clock says now settles anything: what the count cannot tell of stays for this pass.
    pub(super) fn confirm_by_looks(
        &mut self,
        root: usize,
        condemned: &[CondemnedIn<'_>],
        mut gaps: Vec<Gap>,
    ) -> Result<(Producer, Vec<Gap>), EngineError> {
        for attempt in 1.. {
            self.unchanged.clear();
            let before = self.reading();
            let producer = self.confirm_mounts(root, condemned)?;
            if !self.finder.is_quick() {
                return Ok((producer, gaps));
            }
            let references = std::mem::take(&mut self.references);
            gaps = self.refer(condemned, references);
            let unsettled = match self.count(root, condemned) {
                Ok(unsettled) => unsettled,
                Err(error) => {
                    warn!("condemned entries cannot be listed: {}", error_chain(&error));
                    gaps.push((GapCause::ProcfsUnreadable, 1, Reach::Everybody));
                    return Ok((producer, gaps));
                }
            };
            let is_still = match (before, self.reading(), producer) {
                (Some(before), Some(after), Producer::Walk) => is_still(before, after),
                // Nothing tells.
                _ => true,
            };
            if unsettled.is_empty() || (is_still && !self.in_doubt) {
                return Ok((producer, gaps));
            }
            if attempt == LOOKS || self.in_doubt {
                let reference = Reference { kind: ReferenceKind::Unsettled, process: None, place: Place::Below };
                unsettled.into_iter().for_each(|entry| self.references.add(entry, reference));
                return Ok((producer, gaps));
            }
            std::thread::sleep(PAUSE);
        }
        unreachable!("the last look returns")
    }

    fn reading(&self) -> Option<Reading> {
        self.clock().map(Clock::now)
    }

    /// Adds references that the kernel counts and nothing explains. Returns the entries that the count does not tell of.
    fn count(&mut self, root: usize, condemned: &[CondemnedIn<'_>]) -> Result<Vec<Vec<u8>>, ReferenceError> {
        let Self { finder, references, live, unchanged, .. } = self;
        let is_explained = |entry: &[u8]| !references.of(entry).is_empty() || live.pins().is_pinned(root, entry);
        let counted = count_again(|| finder.count(condemned), is_explained)?;
        let Counted { mut referred, unsettled, .. } = counted;
        *unchanged = counted.unchanged;
        referred.retain(|entry| !is_explained(entry));
        for entry in referred {
            let reference = Reference { kind: ReferenceKind::Counted, process: None, place: Place::Exact };
            self.references.add(entry, reference);
        }
        Ok(unsettled)
    }

    /// Looks at the mounts that rely on condemned entries. Returns who speaks for them.
    fn confirm_mounts(&mut self, root: usize, condemned: &[CondemnedIn<'_>]) -> Result<Producer, EngineError> {
        let place = |condemned: &CondemnedIn<'_>| match &*condemned.path {
            [] => self.watch[root].clone(),
            path => self.watch[root].join(path),
        };
        let asked: Vec<Asked<'_>> = condemned
            .iter()
            .map(|condemned| Asked { directory: condemned.directory, location: place(condemned), only: None })
            .collect();
        match self.walker.as_mut().map(|walker| walked::walk(walker, &asked)) {
            None => Ok(self.producer()),
            Some(Ok(pins)) => {
                self.live.see(pins);
                Ok(Producer::Walk)
            }
            Some(Err(error)) => {
                warn!("the kernel's own list of mounts cannot be relied on: {}", error_chain(&error));
                self.baseline()?;
                Ok(self.producer())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn counts(referred: &[&[&str]]) -> (Vec<Vec<u8>>, usize) {
        let taken = Cell::new(0);
        let count = || {
            let names = referred[taken.get().min(referred.len() - 1)];
            taken.set(taken.get() + 1);
            let referred = names.iter().map(|name| name.as_bytes().to_vec()).collect();
            Ok::<_, ReferenceError>(Counted { referred, ..Counted::default() })
        };
        let counted = count_again(count, |entry| entry == b"explained").expect("it is counted");
        (counted.referred, taken.get())
    }

    #[test]
    fn a_reference_is_believed_when_it_stays() {
        assert_eq!(counts(&[&[]]), (vec![], 1));
        assert_eq!(counts(&[&["explained"]]), (vec![b"explained".to_vec()], 1));
        assert_eq!(counts(&[&["passing"], &["explained"]]), (vec![b"explained".to_vec()], 2));
        assert_eq!(counts(&[&["stays"]]), (vec![b"stays".to_vec()], 4));
        assert_eq!(counts(&[&["one"], &["other"], &["one"], &["last"]]), (vec![b"last".to_vec()], 4));
    }
}
