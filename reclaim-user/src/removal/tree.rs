//! Removing a directory with all that it holds: by descriptor, without recursion, however deep it is.
//!
//! No link is followed and no mount is entered: each step down is one `openat2` of one name, which the kernel refuses
//! otherwise. Each step up through `..` is checked to lead to the directory that it came from.

use super::crash;
use super::error::failed;
use crate::sys::directory::{self, Hint, Names, Reader};
use crate::sys::file_status::{Identity, status_of};
use nix::errno::Errno;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};

/// Levels whose descriptors stay open. Those further up are opened again through `..`.
const OPEN_LEVELS: usize = 32;

/// How often a directory that is not empty at its end is read again: something was put in, or passed over.
const READINGS: u32 = 8;

/// How a removal ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Nothing is left.
    Gone,
    /// It was told to stop.
    Interrupted,
    /// Something is left; what failed first, and how much more did.
    Failed(String),
}

/// Removes the directory `name` and all that it holds. What fails does not stop what lies beside it. `go_on` is asked
/// between any two steps.
pub(super) fn remove(directory: impl AsFd, name: &CStr, go_on: &mut dyn FnMut() -> bool) -> Outcome {
    let mut walk = Walk { levels: Vec::new(), faults: Faults::default(), reader: Reader::with_room(32 * 1024) };
    match directory::open_child(&directory, name).and_then(|opened| walk.enter(opened, name)) {
        Ok(()) => {}
        Err(Errno::ENOENT) => return Outcome::Gone,
        Err(error) => return Outcome::Failed(failed("openat2", error)),
    }
    while !walk.levels.is_empty() {
        if !go_on() {
            return Outcome::Interrupted;
        }
        if let Err(moved) = walk.step(&directory) {
            return Outcome::Failed(moved);
        }
    }
    walk.faults.outcome()
}

#[derive(Debug, Default)]
struct Faults {
    first: Option<String>,
    more: u64,
}

impl Faults {
    fn add(&mut self, call: &str, name: &CStr, error: Errno) {
        match self.first {
            None => self.first = Some(format!("{} on `{}`", failed(call, error), name.to_string_lossy())),
            Some(_) => self.more += 1,
        }
    }

    fn outcome(self) -> Outcome {
        match (self.first, self.more) {
            (None, _) => Outcome::Gone,
            (Some(first), 0) => Outcome::Failed(first),
            (Some(first), more) => Outcome::Failed(format!("{first}, and {more} more")),
        }
    }
}

struct Walk {
    levels: Vec<Level>,
    faults: Faults,
    reader: Reader,
}

struct Level {
    /// None while too many levels below it are open. The last level always has it.
    directory: Option<OwnedFd>,
    identity: Identity,
    name: CString,
    names: Names,
    next: usize,
    readings: u32,
    /// Something in it could not be removed.
    faulty: bool,
}

impl Walk {
    fn enter(&mut self, opened: OwnedFd, name: &CStr) -> Result<(), Errno> {
        let identity = status_of(&opened)?.identity;
        if let Some(far) = self.levels.len().checked_sub(OPEN_LEVELS) {
            self.levels[far].directory = None;
        }
        self.levels.push(Level {
            directory: Some(opened),
            identity,
            name: name.into(),
            names: Names::default(),
            next: 0,
            readings: 1,
            faulty: false,
        });
        Ok(())
    }

    /// Removes one name, goes down into one, or goes up. `top` holds the directory that all this is about.
    fn step(&mut self, top: impl AsFd) -> Result<(), String> {
        let Self { levels, faults, reader } = self;
        let level = levels.last_mut().expect("steps are made while there is a level");
        let opened = level.directory.as_ref().expect("the last level is open");
        if level.next == level.names.len() {
            level.names.clear();
            level.next = 0;
            match reader.read(opened, &mut level.names) {
                // Removed by somebody else while it is read: that is its end.
                Ok(false) | Err(Errno::ENOENT) => return self.leave(top),
                Ok(true) => return Ok(()),
                Err(error) => {
                    faults.add("getdents64", &level.name, error);
                    level.faulty = true;
                    return self.leave(top);
                }
            }
        }
        let (name, hint, _) = level.names.get(level.next).expect("the place is within the names");
        level.next += 1;
        match remove_name(opened, name, hint) {
            Ok(None) => crash::step("mid-tree"),
            Ok(Some(below)) => {
                let name = name.to_owned();
                if let Err(error) = self.enter(below, &name) {
                    self.fault("statx", &name, error);
                }
            }
            Err((call, error)) => {
                faults.add(call, name, error);
                level.faulty = true;
            }
        }
        Ok(())
    }

    fn fault(&mut self, call: &str, name: &CStr, error: Errno) {
        self.faults.add(call, name, error);
        if let Some(level) = self.levels.last_mut() {
            level.faulty = true;
        }
    }

    /// Goes up from a level that was read to its end, and removes it.
    fn leave(&mut self, top: impl AsFd) -> Result<(), String> {
        let mut level = self.levels.pop().expect("a level was read to its end");
        let faulty = level.faulty;
        let removed = match self.levels.last_mut() {
            None if faulty => return Ok(()),
            None => directory::remove_directory(top, &level.name),
            Some(above) => {
                let below = level.directory.as_ref().expect("the last level is open");
                above.faulty |= faulty;
                let opened = above.open_again(below)?;
                if faulty {
                    return Ok(());
                }
                directory::remove_directory(opened, &level.name)
            }
        };
        match removed {
            Ok(()) => crash::step("mid-tree"),
            Err(Errno::ENOENT) => {}
            Err(Errno::ENOTEMPTY | Errno::EEXIST) if level.readings < READINGS && level.rewind() => {
                level.readings += 1;
                self.levels.push(level);
            }
            Err(error) => self.fault("rmdir", &level.name, error),
        }
        Ok(())
    }
}

impl Level {
    /// The directory of this level, opened through `..` of the one below when it was closed meanwhile.
    fn open_again(&mut self, below: &OwnedFd) -> Result<&OwnedFd, String> {
        if self.directory.is_none() {
            let opened = directory::open_parent(below).map_err(|error| failed("openat2 of `..`", error))?;
            let identity = status_of(&opened).map_err(|error| failed("statx", error))?.identity;
            if identity != self.identity {
                return Err("somebody moved a directory out of the tree while it was removed".into());
            }
            // Names that were read are still in memory; reading goes on behind the last of them.
            let place = self.names.len().checked_sub(1).and_then(|last| self.names.get(last)).map_or(0, |last| last.2);
            directory::seek(&opened, place).map_err(|error| failed("lseek", error))?;
            self.directory = Some(opened);
        }
        Ok(self.directory.as_ref().expect("it is open"))
    }

    fn rewind(&mut self) -> bool {
        self.names.clear();
        self.next = 0;
        self.directory.as_ref().is_some_and(|opened| directory::seek(opened, 0).is_ok())
    }
}

/// Removes a name that is no directory, or opens the one that is.
fn remove_name(directory: &OwnedFd, name: &CStr, hint: Hint) -> Result<Option<OwnedFd>, (&'static str, Errno)> {
    if hint == Hint::Other {
        match directory::remove_file(directory, name) {
            Ok(()) | Err(Errno::ENOENT) => return Ok(None),
            // A directory took its place.
            Err(Errno::EISDIR) => {}
            Err(error) => return Err(("unlinkat", error)),
        }
    }
    match directory::open_child(directory, name) {
        Ok(opened) => Ok(Some(opened)),
        Err(Errno::ENOENT) => Ok(None),
        // Not a directory (any more): its name is removed, and where a link leads to is left alone.
        Err(Errno::ENOTDIR | Errno::ELOOP) => match directory::remove_file(directory, name) {
            Ok(()) | Err(Errno::ENOENT) => Ok(None),
            Err(error) => Err(("unlinkat", error)),
        },
        Err(error) => Err(("openat2", error)),
    }
}

#[cfg(test)]
#[path = "tree_tests.rs"]
mod tests;
