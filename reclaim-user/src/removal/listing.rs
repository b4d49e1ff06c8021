//! The names of a root in the order that its file system gives them, from where the pass before ended.

use super::options::Cursor;
use crate::sys::directory::{self, Names, Reader};
use nix::errno::Errno;
use std::ffi::CStr;
use std::os::fd::AsFd;

/// Names of a directory from some place to its end, and from its start to that place.
pub(super) struct Listing {
    reader: Reader,
    names: Names,
    next: usize,
    pub(super) begin: i64,
    wrapped: bool,
    ended: bool,
    /// It went back to the start, and no name was given since.
    pub(super) turned: bool,
    /// A name was given.
    given: bool,
    pub(super) descending: bool,
}

impl Listing {
    /// From the cursor on.
    pub(super) fn begin(directory: impl AsFd, cursor: Cursor) -> Result<Self, Errno> {
        // A place that the file system does not know any more: begin at the start.
        let begin = if directory::seek(&directory, cursor.place).is_ok() { cursor.place } else { 0 };
        let listing = Self {
            reader: Reader::default(),
            names: Names::default(),
            next: 0,
            begin,
            wrapped: begin == 0,
            ended: false,
            turned: false,
            given: false,
            descending: cursor.descending,
        };
        if begin == 0 { directory::seek(&directory, 0).map(|()| listing) } else { Ok(listing) }
    }

    /// Makes sure that there is a next name. False at the end.
    pub(super) fn fill(&mut self, directory: impl AsFd) -> Result<bool, Errno> {
        while self.next == self.names.len() && !self.ended {
            self.names.clear();
            self.next = 0;
            if self.reader.read(&directory, &mut self.names)? {
                // The place behind the last name of a directory can be a mark of its end, so the first two tell.
                if let (3.., Some(first), Some(second)) = (self.names.len(), self.names.get(0), self.names.get(1)) {
                    self.descending = second.2 < first.2;
                }
                continue;
            }
            self.ended = self.wrapped;
            (self.wrapped, self.turned) = (true, true);
            if !self.given {
                // Nothing lay behind the cursor, so it tells nothing of where to end.
                self.begin = 0;
            }
            directory::seek(&directory, 0)?;
        }
        Ok(self.next < self.names.len())
    }

    /// Names that were read and not given yet.
    pub(super) fn left(&self) -> usize {
        self.names.len() - self.next
    }

    /// The next name, and the place behind it.
    pub(super) fn next(&mut self) -> Option<(&CStr, i64)> {
        let (_, _, place) = self.names.get(self.next)?;
        // Places run one way on every file system that has them; where they do not, the rest waits for the next pass.
        let beyond = if self.descending { place < self.begin } else { place > self.begin };
        if self.wrapped && self.begin != 0 && beyond {
            self.ended = true;
            self.next = self.names.len();
            return None;
        }
        self.next += 1;
        (self.turned, self.given) = (false, true);
        self.names.get(self.next - 1).map(|(name, _, place)| (name, place))
    }
}
