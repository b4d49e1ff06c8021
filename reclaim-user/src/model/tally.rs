//! Counts of a pass that always add up, because one call puts an entry into exactly one of them.

use super::report::Reason;
use std::collections::BTreeMap;

/// What became of one entry. There is no other way into the counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Left where it is.
    Kept(Reason),
    /// Condemned and given its name back.
    Restored(Reason),
    /// Gone.
    Removed,
    /// Stays condemned.
    Condemned,
    /// A dry run would remove it.
    WouldRemove,
}

/// The counts of a pass.
///
/// Invariant: [`Tally::listed`] = removed + condemned + would remove + the sum of kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    listed: u64,
    kept: BTreeMap<Reason, u64>,
    removed: u64,
    restored: u64,
    condemned: u64,
    would_remove: u64,
}

impl Tally {
    /// Counts one entry.
    pub fn record(&mut self, outcome: Outcome) {
        self.listed += 1;
        match outcome {
            Outcome::Kept(reason) => *self.kept.entry(reason).or_default() += 1,
            Outcome::Restored(reason) => {
                *self.kept.entry(reason).or_default() += 1;
                self.restored += 1;
            }
            Outcome::Removed => self.removed += 1,
            Outcome::Condemned => self.condemned += 1,
            Outcome::WouldRemove => self.would_remove += 1,
        }
    }

    /// Entries counted.
    #[must_use]
    pub fn listed(&self) -> u64 {
        self.listed
    }

    /// Kept entries by reason; no zeros.
    #[must_use]
    pub fn kept(&self) -> &BTreeMap<Reason, u64> {
        &self.kept
    }

    /// Entries that are gone.
    #[must_use]
    pub fn removed(&self) -> u64 {
        self.removed
    }

    /// Entries that got their name back; each is counted in kept too.
    #[must_use]
    pub fn restored(&self) -> u64 {
        self.restored
    }

    /// Entries that stay condemned.
    #[must_use]
    pub fn condemned(&self) -> u64 {
        self.condemned
    }

    /// Entries that a dry run would remove.
    #[must_use]
    pub fn would_remove(&self) -> u64 {
        self.would_remove
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn outcome() -> impl Strategy<Value = Outcome> {
        let reason = prop_oneof![Just(Reason::Pinned), Just(Reason::Young), Just(Reason::Failed)];
        prop_oneof![
            reason.clone().prop_map(Outcome::Kept),
            reason.prop_map(Outcome::Restored),
            Just(Outcome::Removed),
            Just(Outcome::Condemned),
            Just(Outcome::WouldRemove),
        ]
    }

    proptest! {
        #[test]
        fn every_entry_is_in_exactly_one_count(outcomes in proptest::collection::vec(outcome(), 0..200)) {
            let mut tally = Tally::default();
            for outcome in &outcomes {
                tally.record(*outcome);
            }
            let kept: u64 = tally.kept().values().sum();
            prop_assert_eq!(tally.listed(), outcomes.len() as u64);
            prop_assert_eq!(tally.listed(), tally.removed() + tally.condemned() + tally.would_remove() + kept);
            prop_assert!(tally.kept().values().all(|count| *count > 0));
            prop_assert!(tally.restored() <= kept);
        }
    }
}
