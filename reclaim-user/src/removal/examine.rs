//! Looking at one entry by descriptor, no further than the fences need.

use super::error::failed;
use super::place::Root;
use super::process::Processes;
use crate::config::{RemoveRule, RootConfig};
use crate::model::fence::{Contents, FileKind, Lease, Timestamp};
use crate::model::report::Reason;
use crate::model::verdict::{self, Named};
use crate::sys::directory::{self, Names, Reader};
use crate::sys::file_status::{FileStatus, Identity, status_at, status_of};
use nix::errno::Errno;
use nix::fcntl::Flock;
use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};
use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{SystemTime, UNIX_EPOCH};

/// An entry that passed every fence but those of evidence, as it was when it was looked at.
#[derive(Debug)]
pub(super) struct Examined {
    pub(super) identity: Identity,
    pub(super) kind: FileKind,
    pub(super) owner: u32,
    /// It is known to hold nothing.
    pub(super) empty: bool,
    /// The lock on it, held as long as this lives: nobody else gets a lease meanwhile.
    pub(super) lock: Option<Flock<OwnedFd>>,
}

/// Why an entry does not go.
#[derive(Debug)]
pub(super) enum Stop {
    /// It is not there any more.
    Vanished,
    /// A fence keeps it.
    Keep(Reason, Option<String>),
}

impl From<Reason> for Stop {
    fn from(reason: Reason) -> Self {
        Self::Keep(reason, None)
    }
}

/// Looks at entries; holds the memory and the answers that looks share.
#[derive(Debug)]
pub(super) struct Examiner {
    reader: Reader,
    names: Names,
    processes: Processes,
    now: Timestamp,
    mount: Option<u64>,
    /// The size of a directory tells whether it is empty.
    sizes_tell: bool,
    /// The last entry passed the fences of status, so the next one is opened at once: one look-up of its name less.
    open_first: bool,
}

/// Size of an empty directory on a tmpfs: 20 bytes for each name, `.` and `..` among them (`BOGO_DIRENT_SIZE` in the
/// kernel's mm/shmem.c).
const EMPTY_ON_TMPFS: u64 = 40;

/// Whether an entry's contents are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Inside {
    /// Where the rules ask for it.
    Look,
    /// Not in a directory that only goes while it is empty: `rmdir` is the judge of that, and a moment later.
    LeaveToRmdir,
}

impl Examiner {
    /// For entries of this root.
    pub(super) fn new(root: &Root) -> Self {
        Self {
            reader: Reader::with_room(1024),
            names: Names::default(),
            processes: Processes::default(),
            now: now(),
            mount: root.status.mount,
            sizes_tell: fstatfs(&root.directory).is_ok_and(|status| status.filesystem_type() == TMPFS_MAGIC),
            open_first: false,
        }
    }

    /// Reads the clock again and asks about processes again.
    pub(super) fn refresh(&mut self) {
        self.now = now();
        self.processes.forget();
    }

    /// Looks at `name` in a directory.
    pub(super) fn examine(
        &mut self,
        rules: &RootConfig,
        named: Named,
        directory: impl AsFd,
        name: &CStr,
        inside: Inside,
    ) -> Result<Examined, Stop> {
        let (file, opened) = self.status(&directory, name)?;
        let known = verdict::by_status(rules, named, &file.status, self.is_mounted(&file), self.now);
        let is_directory = file.status.kind == FileKind::Directory;
        self.open_first = known.is_ok() && is_directory && (rules.leases || looks_inside(rules, inside));
        let known = known?;
        if let Some(process) = known.process() {
            verdict::by_process(known, self.processes.ask(process))?;
        }
        let (lease, contents, lock) = self.open(rules, &directory, name, &file, opened, inside)?;
        match inside {
            Inside::LeaveToRmdir if is_directory => verdict::by_lease(rules, lease)?,
            Inside::Look | Inside::LeaveToRmdir => verdict::by_contents(rules, lease, contents)?,
        }
        Ok(Examined {
            identity: file.identity,
            kind: file.status.kind,
            owner: file.status.owner,
            empty: contents == Contents::Empty,
            lock,
        })
    }

    /// What the entry is, and its descriptor where it was opened for that. A directory is opened first when it will
    /// have to be opened anyway; whatever keeps it from being opened is for [`Examiner::open`] to tell.
    fn status(&self, directory: impl AsFd, name: &CStr) -> Result<(FileStatus, Option<OwnedFd>), Stop> {
        let fault = |error| Stop::Keep(Reason::Failed, Some(failed("statx", error)));
        if self.open_first
            && let Ok(opened) = directory::open_entry(&directory, name, true)
        {
            return Ok((status_of(&opened).map_err(fault)?, Some(opened)));
        }
        match status_at(&directory, name) {
            Ok(file) => Ok((file, None)),
            Err(Errno::ENOENT) => Err(Stop::Vanished),
            Err(error) => Err(fault(error)),
        }
    }

    /// Something is mounted on the entry in our own namespace. Not knowing counts as mounted.
    fn is_mounted(&self, file: &FileStatus) -> bool {
        file.mount_root != Some(false) || file.mount != self.mount
    }

    fn open(
        &mut self,
        rules: &RootConfig,
        directory: impl AsFd,
        name: &CStr,
        file: &FileStatus,
        opened: Option<OwnedFd>,
        inside: Inside,
    ) -> Result<(Lease, Contents, Option<Flock<OwnedFd>>), Stop> {
        let kind = file.status.kind;
        // A pipe or a device may do anything when it is opened, and a link has nothing to lock.
        if !matches!(kind, FileKind::Directory | FileKind::File) {
            return Ok((Lease::Free, Contents::Something, None));
        }
        let mut contents = match kind {
            FileKind::File if file.status.size == 0 => Contents::Empty,
            FileKind::File => Contents::Something,
            _ => Contents::Unknown,
        };
        let look_inside = kind == FileKind::Directory && looks_inside(rules, inside);
        if !rules.leases && !look_inside {
            return Ok((Lease::Free, contents, None));
        }
        let fault = |call: &str, error| Stop::Keep(Reason::Failed, Some(failed(call, error)));
        let opened = match opened {
            Some(opened) => opened,
            None => {
                let opened = match directory::open_entry(directory, name, kind == FileKind::Directory) {
                    Ok(opened) => opened,
                    Err(Errno::ENOENT) => return Err(Stop::Vanished),
                    Err(Errno::EWOULDBLOCK) => return Ok((Lease::Held, contents, None)),
                    Err(Errno::EXDEV) => return Err(Reason::Pinned.into()),
                    Err(error) => return Err(fault("openat2", error)),
                };
                let same = status_of(&opened).map_err(|error| fault("statx", error))?.identity == file.identity;
                if !same {
                    return Err(Stop::Keep(Reason::Failed, Some("it was replaced while it was looked at".into())));
                }
                opened
            }
        };
        if look_inside {
            let empty = match self.sizes_tell {
                true => file.status.size == EMPTY_ON_TMPFS,
                false => self.reader.is_empty(&opened, &mut self.names).map_err(|error| fault("getdents64", error))?,
            };
            contents = if empty { Contents::Empty } else { Contents::Something };
        }
        if !rules.leases {
            return Ok((Lease::Free, contents, None));
        }
        match directory::lock(opened) {
            Ok(lock) => Ok((Lease::Free, contents, Some(lock))),
            Err((_, Errno::EWOULDBLOCK)) => Ok((Lease::Held, contents, None)),
            Err((_, error)) => Err(fault("flock", error)),
        }
    }
}

fn looks_inside(rules: &RootConfig, inside: Inside) -> bool {
    rules.remove == RemoveRule::Empty && inside == Inside::Look
}

fn now() -> Timestamp {
    // A clock before 1970 makes every birth lie ahead, and so keeps everything.
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(i128::try_from(elapsed.as_nanos()).unwrap_or_default())
}

#[cfg(test)]
#[path = "examine_tests.rs"]
mod tests;
