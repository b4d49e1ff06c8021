//! Where passes of one-shot runs were cut short, kept in the state directory: without it every run would look at the
//! same first entries, and those behind them would never have their turn.

use super::options::Cursor;
use super::state_file;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// Name of the file in the state directory.
const FILE: &str = "cursors.json";

/// Cursors by the name of the root.
///
/// A place that is out of date costs nothing: a listing goes on from there and wraps around. That there were enough
/// candidates for the pile is not kept, since it would let entries of another day go.
#[derive(Debug, Default)]
pub struct Cursors {
    file: PathBuf,
    known: BTreeMap<String, Place>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Place {
    place: i64,
    descending: bool,
}

impl Cursors {
    /// What is kept in a state directory. Nothing, when there is no file or it makes no sense.
    #[must_use]
    pub fn read(directory: &Path) -> Self {
        let file = directory.join(FILE);
        Self { known: parse(state_file::read(&file).ok().flatten()), file }
    }

    /// Where to begin in a root.
    #[must_use]
    pub fn of(&self, root: &str) -> Cursor {
        let kept = self.known.get(root);
        kept.map_or_else(Cursor::default, |Place { place, descending }| Cursor {
            place: *place,
            descending: *descending,
            pile_met: false,
        })
    }

    /// Keeps where a pass ended. Writes nothing when that is what is kept already. What others have written of other roots
    /// since it was read stays.
    ///
    /// # Errors
    /// When it cannot be written, or somebody else writes for long; the next run begins where this one did.
    pub fn keep(&mut self, root: &str, cursor: Cursor) -> io::Result<()> {
        let Cursor { place, descending, pile_met: _ } = cursor;
        let now = Some(Place { place, descending }).filter(|_| place != 0);
        if self.known.get(root).copied() == now {
            return Ok(());
        }
        let _lock = state_file::lock(&self.file)?;
        self.known = parse(state_file::read(&self.file)?);
        match now {
            Some(now) => self.known.insert(root.to_owned(), now),
            None => self.known.remove(root),
        };
        state_file::replace(&self.file, &serde_json::to_vec(&self.known)?)
    }
}

fn parse(text: Option<Vec<u8>>) -> BTreeMap<String, Place> {
    serde_json::from_slice(&text.unwrap_or_default()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_cursor_is_kept_by_root_until_a_pass_comes_to_its_end() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("below/state");
        let cut = Cursor { place: -7, descending: true, pile_met: true };
        Cursors::read(&state).keep("a", Cursor::default()).unwrap();
        assert!(!state.exists(), "nothing was to be kept");
        Cursors::read(&state).keep("a", cut).unwrap();
        let mut read = Cursors::read(&state);
        assert_eq!(read.of("a"), Cursor { pile_met: false, ..cut });
        assert_eq!(read.of("b"), Cursor::default());
        read.keep("a", Cursor::default()).unwrap();
        assert_eq!(Cursors::read(&state).of("a"), Cursor::default());
        let left = fs::read_dir(&state).unwrap().flatten().filter(|file| !file.path().ends_with("cursors.json.lock"));
        assert_eq!(left.count(), 1, "nothing is left beside it");
    }

    #[test]
    fn what_others_wrote_meanwhile_stays() {
        let directory = tempfile::tempdir().unwrap();
        let cut = |place| Cursor { place, ..Cursor::default() };
        let [mut one, mut two] = [0, 1].map(|_| Cursors::read(directory.path()));
        one.keep("one", cut(1)).unwrap();
        two.keep("two", cut(2)).unwrap();
        one.keep("one", cut(3)).unwrap();
        let read = Cursors::read(directory.path());
        assert_eq!((read.of("one"), read.of("two")), (cut(3), cut(2)));
    }

    #[test]
    fn a_file_that_makes_no_sense_is_none() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(FILE), "{\"a\": 5").unwrap();
        assert_eq!(Cursors::read(directory.path()).of("a"), Cursor::default());
    }
}
