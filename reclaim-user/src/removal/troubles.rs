//! Entries that cannot be removed, or judged, or condemned without being given back: told when they are first seen, and then
//! once a day, across passes and restarts.

use crate::model::fence::Timestamp;
use std::collections::BTreeMap;
use std::time::Duration;

/// How long an entry is not told of again.
const TOLD_FOR: Duration = Duration::from_secs(86_400);

/// Entries that are remembered one by one of one root at most. Those beyond are told, and counted, together.
const MOST: usize = 1_000;

/// Characters of why that are kept, so that what is remembered of many roots can be read again.
const LONGEST_WHY: usize = 500;

/// One entry that cannot be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// When it was first seen so.
    pub first: Timestamp,
    /// When it was told last; none when it has not been told.
    pub told: Option<Timestamp>,
    /// Why, for people.
    pub why: String,
    /// It lies in `.reclaim`, where every pass looks at all; else under its own name.
    pub condemned: bool,
    /// It was seen in the pass under way.
    pub(super) seen: bool,
}

/// Entries beyond those that are remembered one by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Beyond {
    /// How many lay condemned when all of that was looked at last.
    pub condemned: u64,
    /// How many the last pass over the whole root came by under their own names.
    pub listed: u64,
    /// When some of them were told last.
    pub told: Option<Timestamp>,
}

impl Beyond {
    /// All of them.
    #[must_use]
    pub fn count(self) -> u64 {
        self.condemned.saturating_add(self.listed)
    }
}

/// What a pass has looked at all of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Looked {
    /// All that lies condemned.
    pub(super) condemned: bool,
    /// All that is listed.
    pub(super) listed: bool,
}

/// All such entries of one root, by name and by whether they lie condemned: one of each can have the same name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Troubles {
    known: BTreeMap<(Vec<u8>, bool), Trouble>,
    beyond: Beyond,
    /// Beyond those, as the pass under way comes by them.
    counting: Beyond,
    telling: Option<Timestamp>,
}

impl Troubles {
    /// Takes note of one. Whether it is time to tell of it.
    pub(super) fn see(&mut self, name: &[u8], why: Option<&str>, condemned: bool, now: Timestamp) -> bool {
        let key = (name.to_vec(), condemned);
        if self.known.len() >= MOST && !self.known.contains_key(&key) {
            *(if condemned { &mut self.counting.condemned } else { &mut self.counting.listed }) += 1;
            return is_due(self.beyond.told, now);
        }
        let fresh = || Trouble { first: now, told: None, why: String::new(), condemned, seen: false };
        let trouble = self.known.entry(key).or_insert_with(fresh);
        trouble.seen = true;
        if let Some(why) = why {
            trouble.why = why.chars().take(LONGEST_WHY).collect();
        }
        is_due(trouble.told, now)
    }

    /// Takes note that one still lies condemned, and that it was not tried to remove it.
    pub(super) fn look_past(&mut self, name: &[u8]) {
        if let Some(trouble) = self.known.get_mut(&(name.to_vec(), true)) {
            trouble.seen = true;
        }
    }

    /// Takes note that one was told.
    pub(super) fn told(&mut self, name: &[u8], condemned: bool, now: Timestamp) {
        match self.known.get_mut(&(name.to_vec(), condemned)) {
            Some(trouble) => trouble.told = Some(now),
            // Not before the end of the pass: the others beyond are to be told, too.
            None => self.telling = Some(now),
        }
    }

    /// Forgets what a pass has not seen any more, of what it has looked at all of.
    pub(super) fn end(&mut self, looked: Looked) {
        self.known.retain(|_, trouble| {
            let is_looked_for = if trouble.condemned { looked.condemned } else { looked.listed };
            std::mem::take(&mut trouble.seen) || !is_looked_for
        });
        let (counted, told) = (std::mem::take(&mut self.counting), self.telling.take());
        if looked.listed {
            self.beyond.listed = counted.listed;
        }
        if looked.condemned {
            self.beyond.condemned = counted.condemned;
        }
        self.beyond.told = told.or(self.beyond.told).filter(|_| self.beyond.count() > 0);
    }

    /// Forgets what has its own name and was seen in the pass under way, which looks for nothing else that has: it was given its
    /// name back, and whether it cannot be removed is not known.
    pub(super) fn forget_given_back(&mut self) {
        self.known.retain(|_, trouble| trouble.condemned || !trouble.seen);
        self.counting.listed = 0;
    }

    /// All that are remembered one by one.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &Trouble)> {
        self.known.iter().map(|((name, _), trouble)| (name.as_slice(), trouble))
    }

    /// What there is beyond them.
    #[must_use]
    pub fn beyond(&self) -> Beyond {
        self.beyond
    }

    /// Whether an entry is remembered under its own name, or may be one of those beyond.
    pub(super) fn may_have(&self, name: &[u8]) -> bool {
        self.known.len() >= MOST || self.known.contains_key(&(name.to_vec(), false))
    }

    /// What an earlier run remembered.
    pub(super) fn recalled(known: impl IntoIterator<Item = (Vec<u8>, Trouble)>, beyond: Beyond) -> Self {
        let known = known.into_iter().map(|(name, trouble)| ((name, trouble.condemned), trouble)).collect();
        Self { known, beyond, counting: Beyond::default(), telling: None }
    }
}

/// A clock that was set back must not silence anything for long.
fn is_due(told: Option<Timestamp>, now: Timestamp) -> bool {
    told.is_none_or(|told| told.age(now).is_none_or(|age| age >= TOLD_FOR))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Looked = Looked { condemned: true, listed: true };

    fn at(seconds: i64) -> Timestamp {
        Timestamp::of(seconds, 0)
    }

    #[test]
    fn an_entry_is_told_at_first_and_then_once_a_day() {
        let mut troubles = Troubles::default();
        assert!(troubles.see(b"a", Some("immutable"), false, at(0)));
        troubles.told(b"a", false, at(0));
        troubles.end(ALL);
        assert!(!troubles.see(b"a", None, false, at(86_399)), "the same day");
        assert!(troubles.see(b"a", None, false, at(86_400)), "the next day");
        troubles.told(b"a", false, at(86_400));
        assert!(troubles.see(b"a", None, false, at(5)), "a clock set back");
        assert_eq!(troubles.iter().map(|(_, trouble)| trouble.why.as_str()).collect::<Vec<_>>(), ["immutable"]);
        let cut_short = Looked { listed: false, ..ALL };
        troubles.end(cut_short);
        troubles.end(cut_short);
        assert_eq!(troubles.iter().count(), 1, "a pass that was cut short forgets nothing");
        troubles.end(ALL);
        assert_eq!(troubles.iter().count(), 0);
        assert!(troubles.see(b"a", None, false, at(86_401)), "it came back");
    }

    #[test]
    fn a_look_at_what_lies_condemned_forgets_nothing_that_is_listed() {
        let mut troubles = Troubles::default();
        troubles.see(b"condemned", None, true, at(0));
        troubles.see(b"listed", None, false, at(0));
        for _ in 0..2 {
            troubles.end(Looked { listed: false, condemned: true });
        }
        assert_eq!(troubles.iter().map(|(name, _)| name).collect::<Vec<_>>(), [b"listed"]);
    }

    #[test]
    fn what_there_is_beyond_is_told_and_counted_together() {
        let mut troubles = Troubles::default();
        let names: Vec<_> = (0..MOST + 3).map(|number| format!("{number:04}").into_bytes()).collect();
        for pass in 0..3 {
            let mut due = 0;
            for name in &names {
                if troubles.see(name, None, false, at(pass)) {
                    due += 1;
                    troubles.told(name, false, at(pass));
                }
            }
            assert_eq!(due, if pass == 0 { names.len() } else { 0 }, "in pass {pass}");
            troubles.end(ALL);
            assert_eq!((troubles.iter().count(), troubles.beyond().count()), (MOST, 3));
        }
        assert!(names.iter().all(|name| troubles.see(name, None, false, at(86_400))), "the next day");
        troubles.end(ALL);
        for name in &names[..MOST] {
            troubles.see(name, None, false, at(86_401));
        }
        troubles.end(ALL);
        assert_eq!(troubles.beyond(), Beyond::default());
    }

    #[test]
    fn what_lies_condemned_beyond_is_counted_where_nothing_is_listed() {
        let mut troubles = Troubles::default();
        for pass in 0..2 {
            let mut due = 0;
            for number in 0..MOST + 3 {
                let name = format!("{number:04}").into_bytes();
                if troubles.see(&name, None, true, at(pass)) {
                    due += 1;
                    troubles.told(&name, true, at(pass));
                }
            }
            assert_eq!(due, if pass == 0 { MOST + 3 } else { 0 }, "in pass {pass}");
            troubles.end(Looked { listed: false, condemned: true });
            assert_eq!(troubles.beyond().count(), 3);
        }
    }

    #[test]
    fn one_that_lies_condemned_and_one_of_the_same_name_are_two() {
        let mut troubles = Troubles::default();
        assert!(troubles.see(b"a", None, true, at(0)));
        troubles.told(b"a", true, at(0));
        assert!(troubles.see(b"a", None, false, at(0)), "another file, of which nobody was told");
        assert_eq!(troubles.iter().count(), 2);
        troubles.forget_given_back();
        assert_eq!(troubles.iter().map(|(_, trouble)| trouble.condemned).collect::<Vec<_>>(), [true]);
    }
}
