//! Which retention windows were in force, so that a longer one gives nothing back that was taken in under a shorter one.

use super::fence::Timestamp;
use std::time::Duration;

/// Windows that are remembered of one root at most.
const MOST: usize = 64;

/// One window, and until when passes went by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// The window; none where the root had none.
    pub window: Option<Duration>,
    /// When the last pass that went by it began.
    pub until: Timestamp,
}

/// The windows of one root, the earliest first. An entry is taken in by the first pass that begins after its birth. Until the
/// clock comes by the last of them again, one that was set back is not believed, and no window is known of.
///
/// Invariant: no term ends before the one ahead of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Windows {
    path: String,
    terms: Vec<Term>,
}

impl Windows {
    /// Those of the directory at a path, as they were remembered. Terms in another order than that of time are none: not
    /// knowing is no ground to let anything go earlier.
    #[must_use]
    pub fn recalled(path: String, terms: Vec<Term>) -> Self {
        let terms = if terms.is_sorted_by_key(|term| term.until) { terms } else { Vec::new() };
        Self { path, terms }
    }

    /// Forgets all where they are of another directory than this one.
    pub fn be_of(&mut self, path: &str) {
        if self.path != path {
            *self = Self { path: path.to_owned(), terms: Vec::new() };
        }
    }

    /// A pass that begins now goes by this window.
    pub fn note(&mut self, window: Option<Duration>, now: Timestamp) {
        match self.terms.iter().position(|term| term.until > now).zip(self.terms.last().copied()) {
            // The clock was set back, and nobody knows any more what was born when from now until then.
            Some((at, latest)) => {
                if latest.window.is_some() || at + 1 < self.terms.len() {
                    self.terms.truncate(at + 1);
                    self.terms[at].until = now;
                    self.terms.push(Term { window: None, until: latest.until });
                }
            }
            None => match self.terms.last_mut() {
                Some(last) if last.window == window => last.until = now,
                _ => self.terms.push(Term { window, until: now }),
            },
        }
        if self.terms.len() > MOST {
            let first = self.terms.remove(0);
            if let Some(next) = self.terms.first_mut() {
                // What was taken in under either stays for as long as the longer one says.
                next.window = first.window.zip(next.window).map(|(first, next)| first.max(next));
            }
        }
    }

    /// The window that was in force when something was taken in; none when that is not known, or there was none.
    #[must_use]
    pub fn at(&self, birth: Timestamp) -> Option<Duration> {
        self.terms.iter().find(|term| term.until >= birth)?.window
    }

    /// The path of the directory.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The earliest first.
    #[must_use]
    pub fn terms(&self) -> &[Term] {
        &self.terms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Option<Duration> = Some(Duration::from_secs(24));
    const LONG: Option<Duration> = Some(Duration::from_secs(72));

    fn at(seconds: i64) -> Timestamp {
        Timestamp::of(seconds, 0)
    }

    #[test]
    fn what_was_born_before_a_pass_was_taken_in_under_its_window() {
        let mut windows = Windows::default();
        assert_eq!(windows.at(at(5)), None);
        windows.note(SHORT, at(10));
        windows.note(SHORT, at(20));
        assert_eq!(windows.terms().len(), 1);
        windows.note(LONG, at(30));
        for (birth, window) in [(5, SHORT), (20, SHORT), (21, LONG), (30, LONG), (31, None)] {
            assert_eq!(windows.at(at(birth)), window, "born at {birth}");
        }
        windows.note(None, at(40));
        windows.note(SHORT, at(50));
        assert_eq!((windows.at(at(35)), windows.at(at(45))), (None, SHORT), "there was none for a while");
    }

    #[test]
    fn a_clock_that_was_set_back_lets_nothing_go_earlier() {
        let mut windows = Windows::default();
        windows.note(SHORT, at(10));
        windows.note(LONG, at(9_999));
        windows.note(LONG, at(20));
        assert_eq!((windows.at(at(10)), windows.at(at(15)), windows.at(at(25))), (SHORT, LONG, None));
        windows.note(LONG, at(5));
        assert_eq!((windows.at(at(5)), windows.at(at(6))), (SHORT, None));
    }

    #[test]
    fn another_directory_has_other_windows() {
        let mut windows = Windows::default();
        windows.be_of("/a");
        windows.note(SHORT, at(10));
        windows.be_of("/a");
        assert_eq!(windows.at(at(5)), SHORT);
        windows.be_of("/b");
        assert_eq!(windows.at(at(5)), None);
        let terms = [9, 3].map(|until| Term { window: SHORT, until: at(until) }).to_vec();
        assert_eq!(Windows::recalled("/a".into(), terms).at(at(1)), None, "no order of time");
    }

    #[test]
    fn of_many_the_longer_ones_stay() {
        let mut windows = Windows::default();
        windows.note(LONG, at(0));
        for second in 1..200 {
            windows.note(Some(Duration::from_secs(second)), at(second.cast_signed()));
        }
        assert_eq!(windows.terms().len(), MOST);
        assert!(windows.at(at(0)) >= LONG);
        assert_eq!(windows.at(at(199)), Some(Duration::from_secs(199)));
        windows.note(None, at(500));
        for second in 501..700 {
            windows.note(Some(Duration::from_secs(second)), at(second.cast_signed()));
        }
        assert_eq!(windows.at(at(0)), None, "where there was none once, no shorter one is made up");
    }

    #[test]
    fn a_clock_that_was_set_back_does_not_lend_a_later_window_to_what_was_taken_in_before() {
        let mut windows = Windows::default();
        windows.note(LONG, at(100));
        windows.note(LONG, at(20));
        windows.note(SHORT, at(150));
        assert_eq!(windows.at(at(90)), None, "it was taken in under the long one, which nobody knows any more");
        assert_eq!((windows.at(at(15)), windows.at(at(120))), (LONG, SHORT));
    }
}
