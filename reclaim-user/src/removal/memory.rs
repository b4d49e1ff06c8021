//! What is remembered of roots across runs, in the state directory: since when claims cannot be read, and what was told
//! of entries that cannot be removed, and which retention windows were in force.

use super::options::RootState;
use super::state_file;
use super::troubles::{Beyond, Trouble, Troubles};
use crate::model::fence::Timestamp;
use crate::model::windows::{Term, Windows};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Name of the file in the state directory.
const FILE: &str = "roots.json";

/// How long what nobody asks about any more is kept, in seconds: for more than a year. Its root may not be configured any more.
const KEPT_FOR: i64 = 400 * 86_400;

/// What is remembered, by the name of the root.
///
/// Losing it costs a line in the log that was there before, and a longer window then holds back what was taken in under a
/// shorter one: nothing goes for that, so a file that makes no sense is none.
#[derive(Debug, Default)]
pub struct Memory {
    file: PathBuf,
    known: BTreeMap<String, Remembered>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Remembered {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    claims_unread_since: Option<i64>,
    #[serde(default)]
    troubles: Vec<Line>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    windows: Option<History>,
    #[serde(default, skip_serializing_if = "is_zero")]
    beyond: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    beyond_condemned: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    beyond_told: Option<i64>,
}

impl Remembered {
    /// When something was written down of it last, in seconds; none when no time is in it.
    fn latest(&self) -> Option<i64> {
        let troubles = self.troubles.iter().flat_map(|line| [Some(line.first), line.told]).flatten();
        let windows = self.windows.iter().flat_map(|windows| &windows.terms).map(|(_, until)| until / 1_000_000_000);
        troubles.chain(windows).chain(self.claims_unread_since).chain(self.beyond_told).max()
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// The retention windows that passes over a directory went by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct History {
    path: String,
    /// Of each window its length, none where there was none, and until when, in nanoseconds.
    terms: Vec<(Option<u64>, i64)>,
}

/// One entry that cannot be removed; its name as bytes, for it need not be text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Line {
    name: Vec<u8>,
    first: i64,
    told: Option<i64>,
    why: String,
    #[serde(default)]
    condemned: bool,
}

impl Memory {
    /// What is kept in a state directory.
    #[must_use]
    pub fn read(directory: &Path) -> Self {
        let file = directory.join(FILE);
        Self { known: parse(state_file::read(&file).ok().flatten()), file }
    }

    /// Puts what is remembered of a root into its state.
    pub fn recall(&self, root: &str, state: &mut RootState) {
        let Some(remembered) = self.known.get(root) else { return };
        let Remembered { claims_unread_since, troubles, windows, beyond, beyond_condemned, beyond_told } = remembered;
        state.claims_unread_since = claims_unread_since.map(at);
        let trouble = |Line { name, first, told, why, condemned }: &Line| {
            let (first, told, why) = (at(*first), told.map(at), why.clone());
            (name.clone(), Trouble { first, told, why, condemned: *condemned, seen: false })
        };
        let beyond = Beyond { condemned: *beyond_condemned, listed: *beyond, told: beyond_told.map(at) };
        state.troubles = Troubles::recalled(troubles.iter().map(trouble), beyond);
        state.windows = windows.as_ref().map(History::recalled).unwrap_or_default();
    }

    /// Keeps what the state of a root says. Writes nothing when that is what is kept already. What others have written of
    /// other roots since it was read stays.
    ///
    /// # Errors
    /// When it cannot be written, or somebody else writes for long.
    pub fn keep(&mut self, root: &str, state: &RootState) -> io::Result<()> {
        let line = |(name, trouble): (&[u8], &Trouble)| Line {
            name: name.to_vec(),
            first: seconds(trouble.first),
            told: trouble.told.map(seconds),
            why: trouble.why.clone(),
            condemned: trouble.condemned,
        };
        let beyond = state.troubles.beyond();
        let now = Remembered {
            claims_unread_since: state.claims_unread_since.map(seconds),
            troubles: state.troubles.iter().map(line).collect(),
            windows: History::of(&state.windows),
            beyond: beyond.listed,
            beyond_condemned: beyond.condemned,
            beyond_told: beyond.told.map(seconds),
        };
        if self.known.get(root).unwrap_or(&Remembered::default()) == &now {
            return Ok(());
        }
        let _lock = state_file::lock(&self.file)?;
        // Only what cannot be read at the moment is an error: to write then would lose what is there.
        self.known = parse(state_file::read(&self.file)?);
        self.known.insert(root.to_owned(), now);
        let past = seconds(super::examine::now()).saturating_sub(KEPT_FOR);
        self.known.retain(|name, remembered| {
            *remembered != Remembered::default() && (name == root || remembered.latest().is_none_or(|at| at >= past))
        });
        state_file::replace(&self.file, &serde_json::to_vec(&self.known)?)
    }
}

impl History {
    /// None where no window was ever in force.
    fn of(windows: &Windows) -> Option<Self> {
        let nanoseconds = |window: Duration| u64::try_from(window.as_nanos()).unwrap_or(u64::MAX);
        let term = |Term { window, until }: &Term| {
            (window.map(nanoseconds), i64::try_from(until.0).unwrap_or(if until.0 < 0 { i64::MIN } else { i64::MAX }))
        };
        let is_any = windows.terms().iter().any(|term| term.window.is_some());
        is_any.then(|| Self { path: windows.path().to_owned(), terms: windows.terms().iter().map(term).collect() })
    }

    fn recalled(&self) -> Windows {
        let term = |(window, until): &(Option<u64>, i64)| Term {
            window: window.map(Duration::from_nanos),
            until: Timestamp(i128::from(*until)),
        };
        Windows::recalled(self.path.clone(), self.terms.iter().map(term).collect())
    }
}

fn parse(text: Option<Vec<u8>>) -> BTreeMap<String, Remembered> {
    serde_json::from_slice(&text.unwrap_or_default()).unwrap_or_default()
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::of(seconds, 0)
}

fn seconds(time: Timestamp) -> i64 {
    i64::try_from(time.0.div_euclid(1_000_000_000)).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_wrote_meanwhile_stays() {
        let directory = tempfile::tempdir().unwrap();
        let now = seconds(super::super::examine::now());
        let since = |later: i64| RootState { claims_unread_since: Some(at(now + later)), ..RootState::default() };
        let [mut one, mut two] = [0, 1].map(|_| Memory::read(directory.path()));
        one.keep("one", &since(1)).unwrap();
        two.keep("two", &since(2)).unwrap();
        one.keep("one", &since(3)).unwrap();
        let memory = Memory::read(directory.path());
        for (root, later) in [("one", 3), ("two", 2)] {
            let mut state = RootState::default();
            memory.recall(root, &mut state);
            assert_eq!(state.claims_unread_since, Some(at(now + later)), "{root}");
        }
    }

    #[test]
    fn what_nobody_asked_about_for_more_than_a_year_goes() {
        let directory = tempfile::tempdir().unwrap();
        let now = super::super::examine::now();
        let since = |ago: i64| RootState { claims_unread_since: Some(at(seconds(now) - ago)), ..RootState::default() };
        let mut memory = Memory::read(directory.path());
        for (root, ago) in [("recent", KEPT_FOR - 100), ("old", KEPT_FOR + 100), ("last", KEPT_FOR + 100)] {
            memory.keep(root, &since(ago)).unwrap();
        }
        let memory = Memory::read(directory.path());
        assert_eq!(memory.known.keys().collect::<Vec<_>>(), ["last", "recent"], "the one that is written stays itself");
    }

    #[test]
    fn what_was_told_is_remembered_until_it_is_over() {
        let directory = tempfile::tempdir().unwrap();
        let mut state = RootState { claims_unread_since: Some(at(7)), ..RootState::default() };
        assert!(state.troubles.see(b"a\xff", Some("why"), false, at(8)));
        state.troubles.told(b"a\xff", false, at(8));
        Memory::read(directory.path()).keep("root", &state).unwrap();
        let mut later = RootState::default();
        Memory::read(directory.path()).recall("root", &mut later);
        assert_eq!(later.claims_unread_since, Some(at(7)));
        assert!(!later.troubles.see(b"a\xff", None, false, at(9)), "it was told");
        let mut memory = Memory::read(directory.path());
        memory.keep("root", &RootState::default()).unwrap();
        let mut last = RootState::default();
        Memory::read(directory.path()).recall("root", &mut last);
        assert_eq!((last.claims_unread_since, last.troubles.iter().count()), (None, 0));
    }
}
