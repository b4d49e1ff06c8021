//! Where passes of one-shot runs were cut short, kept in the state directory: without it every run would look at the
//! same first entries, and those behind them would never have their turn.

use super::options::Cursor;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Name of the file in the state directory.
const FILE: &str = "cursors.json";

/// Cursors by the name of the root.
///
/// A place that is out of date costs nothing: a listing goes on from there and wraps around. That there were enough
/// candidates for the pile is not kept, since it would let entries of another day go.
#[derive(Debug, Default)]
pub struct Cursors {
    directory: PathBuf,
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
        let text = fs::read(directory.join(FILE)).unwrap_or_default();
        Self { directory: directory.into(), known: serde_json::from_slice(&text).unwrap_or_default() }
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

    /// Keeps where a pass ended. Writes nothing when that is what is kept already.
    ///
    /// # Errors
    /// When it cannot be written; the next run begins where this one did.
    pub fn keep(&mut self, root: &str, cursor: Cursor) -> io::Result<()> {
        let Cursor { place, descending, pile_met: _ } = cursor;
        let before = match place {
            0 => self.known.remove(root),
            _ => self.known.insert(root.to_owned(), Place { place, descending }),
        };
        if before == self.known.get(root).copied() {
            return Ok(());
        }
        self.write()
    }

    /// Replaces the file as a whole, so that it is never half a file.
    fn write(&self) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)?;
        let beside = self.directory.join(format!(".{FILE}.{}", std::process::id()));
        match fs::remove_file(&beside) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // Made anew, so that no link is followed.
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
        file.write_all(&serde_json::to_vec(&self.known)?)?;
        fs::rename(&beside, self.directory.join(FILE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(fs::read_dir(&state).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn a_file_that_makes_no_sense_is_none() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(FILE), "{\"a\": 5").unwrap();
        assert_eq!(Cursors::read(directory.path()).of("a"), Cursor::default());
    }
}
