//! Entries that cannot be removed: told when they are first seen, and then once a day, across passes and restarts.

use crate::model::fence::Timestamp;
use std::collections::BTreeMap;
use std::time::Duration;

/// How long an entry is not told of again.
const TOLD_FOR: Duration = Duration::from_secs(86_400);

/// Entries that are remembered of one root at most. Of more than that, those that are not remembered are told each time.
const MOST: usize = 1_000;

/// One entry that cannot be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// When it was first seen so.
    pub first: Timestamp,
    /// When it was told last; none when it has not been told.
    pub told: Option<Timestamp>,
    /// Why, for people.
    pub why: String,
    /// It was seen in the pass under way.
    seen: bool,
}

/// All such entries of one root, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Troubles(BTreeMap<Vec<u8>, Trouble>);

impl Troubles {
    /// Takes note of one. Whether it is time to tell of it.
    pub(super) fn see(&mut self, name: &[u8], why: Option<&str>, now: Timestamp) -> bool {
        if self.0.len() >= MOST && !self.0.contains_key(name) {
            return true;
        }
        let fresh = || Trouble { first: now, told: None, why: String::new(), seen: false };
        let trouble = self.0.entry(name.to_vec()).or_insert_with(fresh);
        trouble.seen = true;
        if let Some(why) = why {
            why.clone_into(&mut trouble.why);
        }
        // A clock that was set back must not silence it for long.
        trouble.told.is_none_or(|told| told.age(now).is_none_or(|age| age >= TOLD_FOR))
    }

    /// Takes note that one was told.
    pub(super) fn told(&mut self, name: &[u8], now: Timestamp) {
        if let Some(trouble) = self.0.get_mut(name) {
            trouble.told = Some(now);
        }
    }

    /// Forgets what a pass over the whole root has not seen any more.
    pub(super) fn end(&mut self, whole: bool) {
        self.0.retain(|_, trouble| std::mem::take(&mut trouble.seen) || !whole);
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &Trouble)> {
        self.0.iter().map(|(name, trouble)| (name.as_slice(), trouble))
    }

    /// One from an earlier run.
    pub(super) fn recall(&mut self, name: Vec<u8>, first: Timestamp, told: Option<Timestamp>, why: String) {
        self.0.insert(name, Trouble { first, told, why, seen: false });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_told_at_first_and_then_once_a_day() {
        let at = |seconds| Timestamp::of(seconds, 0);
        let mut troubles = Troubles::default();
        assert!(troubles.see(b"a", Some("immutable"), at(0)));
        troubles.told(b"a", at(0));
        troubles.end(true);
        assert!(!troubles.see(b"a", None, at(86_399)), "the same day");
        assert!(troubles.see(b"a", None, at(86_400)), "the next day");
        troubles.told(b"a", at(86_400));
        assert!(troubles.see(b"a", None, at(5)), "a clock set back");
        assert_eq!(troubles.iter().map(|(_, trouble)| trouble.why.as_str()).collect::<Vec<_>>(), ["immutable"]);
        troubles.end(false);
        troubles.end(false);
        assert_eq!(troubles.iter().count(), 1, "a pass that was cut short forgets nothing");
        troubles.end(true);
        assert_eq!(troubles.iter().count(), 0);
        assert!(troubles.see(b"a", None, at(86_401)), "it came back");
    }
}
