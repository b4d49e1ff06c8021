//! Looking at one entry by descriptor, no further than the fences need.

use super::condemn::{Batch, Condemned};
use super::error::failed;
use super::manifest::{self, Witness};
use super::place::Root;
use super::process::Processes;
use super::words::Words;
use crate::config::{RemoveRule, RootConfig};
use crate::model::fence::{Contents, FileKind, Lease, Timestamp};
use crate::model::report::Reason;
use crate::model::retention::Record;
use crate::model::verdict::{self, Named};
use crate::sys::directory::{self, Leased, Names, Reader, names_on_tmpfs};
use crate::sys::file_status::{FileStatus, Identity, status_at, status_of};
use nix::errno::Errno;
use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};
use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// An entry that passed every fence but those of evidence, as it was when it was looked at.
#[derive(Debug)]
pub(super) struct Examined {
    pub(super) identity: Identity,
    pub(super) kind: FileKind,
    pub(super) owner: u32,
    /// Its mode with the bits of its kind, where evidence may compare it instead of another look at it.
    pub(super) mode: Option<u32>,
    /// It is known to hold nothing.
    pub(super) empty: bool,
    /// What its name told.
    pub(super) named: Named,
    /// The process of its name was asked about and is gone.
    pub(super) process_gone: bool,
    /// The manifest that it was judged by, where the rules ask for one.
    pub(super) witness: Option<Witness>,
    /// What time it was, as its age was judged.
    pub(super) at: Timestamp,
    /// The lock on it, held as long as this lives: nobody else gets a lease meanwhile.
    pub(super) lease: Option<Leased>,
}

impl Examined {
    /// The same without the lock on it, which stays with this one.
    pub(super) fn without_lease(&self) -> Self {
        let Self { identity, kind, owner, mode, empty, named, process_gone, witness, at, lease: _ } = *self;
        Self { identity, kind, owner, mode, empty, named, process_gone, witness, at, lease: None }
    }
}

/// What was found in this pass about an entry under this name, and cannot be otherwise since.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Settled<'n> {
    /// The name that it had in the root, where that is another one.
    pub(super) own_name: Option<&'n CStr>,
    /// The manifest that it was judged by.
    pub(super) witness: Option<Witness>,
    /// The process of its name is gone: whatever has that number later is another one.
    pub(super) process_gone: bool,
    /// Reclaim still holds the lock on it.
    pub(super) leased: bool,
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
    words: Arc<Words>,
    /// The size of a directory tells whether it is empty, and no inode number is given twice.
    on_tmpfs: bool,
    /// The last entry passed the fences of status, so the next one is opened at once: one look-up of its name less.
    open_first: bool,
}

/// Which look at an entry it is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Look<'n> {
    /// Before it is condemned.
    First,
    /// Before it is removed. What is settled is not asked again, provided that the entry is still the same, and a
    /// directory that only goes while it is empty is not looked into: `rmdir` is the judge of that, and a moment later.
    Again(Settled<'n>),
}

impl<'n> Look<'n> {
    fn settled(self) -> Settled<'n> {
        match self {
            Self::First => Settled::default(),
            Self::Again(settled) => settled,
        }
    }
}

impl Examiner {
    /// For entries of this root, of which others say this.
    pub(super) fn new(root: &Root, words: Arc<Words>) -> Self {
        Self {
            reader: Reader::with_room(1024),
            names: Names::default(),
            processes: Processes::default(),
            now: now(),
            mount: root.status.mount,
            words,
            on_tmpfs: fstatfs(&root.directory).is_ok_and(|status| status.filesystem_type() == TMPFS_MAGIC),
            open_first: false,
        }
    }

    /// Reads the clock again and asks about processes again.
    pub(super) fn refresh(&mut self) {
        self.now = now();
        self.processes.forget();
    }

    /// Goes by what others say now.
    pub(super) fn listen(&mut self, words: Arc<Words>) {
        self.words = words;
    }

    /// Why it is not known what others say of entries, where they are kept for this reason.
    pub(super) fn unheard(&self, reason: Reason) -> Option<String> {
        let (claims, keeps) = self.words.faults();
        let why = match reason {
            Reason::Claimed => claims,
            Reason::KeepUntil => keeps,
            _ => None,
        };
        why.map(str::to_owned)
    }

    /// Looks at `name` in a directory.
    pub(super) fn examine(
        &mut self,
        rules: &RootConfig,
        named: Named,
        directory: impl AsFd,
        name: &CStr,
        look: Look<'_>,
    ) -> Result<Examined, Stop> {
        let settled = look.settled();
        let (file, opened) = self.status(&directory, name)?;
        let own_name = settled.own_name.unwrap_or(name).to_bytes();
        let spoken = self.words.of(rules, own_name, &file, self.now);
        let known = verdict::by_status(rules, named, &file.status, self.is_mounted(&file), spoken, self.now);
        let is_directory = file.status.kind == FileKind::Directory;
        self.open_first = known.is_ok() && is_directory && self.has_to_open(rules, look);
        let known = known?;
        let (record, witness, opened) = self.record(rules, &directory, name, &file, opened)?;
        let over =
            verdict::by_retention(rules, known, record, &self.words.windows, self.now).map_err(
                |reason| match record {
                    Record::Unread => Stop::Keep(reason, Some("its manifest cannot be read at the moment".into())),
                    _ => reason.into(),
                },
            )?;
        if settled.witness.is_some() && settled.witness != witness {
            let detail = "its manifest is another one than when it was condemned";
            return Err(Stop::Keep(Reason::Retained, Some(detail.into())));
        }
        let process = over.process().filter(|_| !settled.process_gone);
        if let Some(process) = process {
            verdict::by_process(over, self.processes.ask(process))?;
        }
        let (lease, contents, leased) = self.open(rules, &directory, name, &file, opened, look)?;
        match look {
            Look::Again(_) if is_directory => verdict::by_lease(rules, lease)?,
            Look::First | Look::Again(_) => verdict::by_contents(rules, lease, contents)?,
        }
        Ok(Examined {
            identity: file.identity,
            kind: file.status.kind,
            owner: file.status.owner,
            mode: file.whole_mode().filter(|_| self.can_be_compared(rules, &file)),
            empty: contents == Contents::Empty,
            named,
            process_gone: settled.process_gone || process.is_some(),
            witness,
            at: self.now,
            lease: leased,
        })
    }

    /// Whether no look could tell anything else of a condemned entry than the first one did, once it is known to be the same
    /// with the same mode and owner. What only the kernel judges as it removes a directory is left to it; ages only grow, but
    /// where the clock was set back.
    pub(super) fn would_find_the_same(&self, rules: &RootConfig, batch: &Batch, condemned: &Condemned) -> bool {
        let is_unlocked = condemned.lease.is_some() || !rules.leases;
        condemned.is_compared() && is_unlocked && self.words.are_none() && self.now >= batch.looked
    }

    /// Whether an entry that still has its name, its inode number, its mode and its owner passes every fence that it passed
    /// at the first look, but for locks and what others say. Without a birth its age goes by times that change; and where
    /// the number of what was removed is given to what is made next, it tells nothing of the birth. On tmpfs it is not.
    fn can_be_compared(&self, rules: &RootConfig, file: &FileStatus) -> bool {
        let judges_by_status = rules.remove == RemoveRule::Empty && rules.retain_from.is_none();
        judges_by_status && self.on_tmpfs && file.status.birth.is_some()
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

    /// What its manifest says, where the rules ask for one, and its descriptor where it was opened.
    fn record(
        &self,
        rules: &RootConfig,
        directory: impl AsFd,
        name: &CStr,
        file: &FileStatus,
        opened: Option<OwnedFd>,
    ) -> Result<(Record, Option<Witness>, Option<OwnedFd>), Stop> {
        let Some(from) = &rules.retain_from else { return Ok((Record::Unasked, None, opened)) };
        if file.status.kind != FileKind::Directory {
            return Ok((Record::Absent, Some(Witness::None), opened));
        }
        let opened = match opened {
            Some(opened) => opened,
            None => match directory::open_entry(directory, name, true) {
                Ok(opened) if status_of(&opened).is_ok_and(|now| now.identity == file.identity) => opened,
                Err(Errno::ENOENT) => return Err(Stop::Vanished),
                Err(Errno::EXDEV) => return Err(Reason::Pinned.into()),
                Ok(_) | Err(_) => return Ok((Record::Unread, Some(Witness::None), None)),
            },
        };
        let (record, witness) = manifest::read(&opened, from);
        Ok((record, Some(witness), Some(opened)))
    }

    /// Whether a directory has to be opened for this look. A file is, where the lock on it has to be tried.
    fn has_to_open(&self, rules: &RootConfig, look: Look<'_>) -> bool {
        asks_for_lease(rules, look) || (looks_inside(rules, look) && !self.on_tmpfs)
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
        look: Look<'_>,
    ) -> Result<(Lease, Contents, Option<Leased>), Stop> {
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
        let look_inside = kind == FileKind::Directory && looks_inside(rules, look);
        if look_inside && self.on_tmpfs {
            let empty = names_on_tmpfs(file.status.size) == Some(0);
            contents = if empty { Contents::Empty } else { Contents::Something };
        }
        if !self.has_to_open(rules, look) {
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
        if look_inside && !self.on_tmpfs {
            let empty = self.reader.is_empty(&opened, &mut self.names).map_err(|error| fault("getdents64", error))?;
            contents = if empty { Contents::Empty } else { Contents::Something };
        }
        if !asks_for_lease(rules, look) {
            return Ok((Lease::Free, contents, None));
        }
        match directory::lease(opened) {
            Ok(leased) => Ok((Lease::Free, contents, Some(leased))),
            Err(Errno::EWOULDBLOCK) => Ok((Lease::Held, contents, None)),
            Err(error) => Err(fault("flock", error)),
        }
    }
}

fn looks_inside(rules: &RootConfig, look: Look<'_>) -> bool {
    rules.remove == RemoveRule::Empty && matches!(look, Look::First)
}

/// Whether the lock on an entry has to be tried.
fn asks_for_lease(rules: &RootConfig, look: Look<'_>) -> bool {
    rules.leases && !look.settled().leased
}

/// What time it is.
#[must_use]
pub fn now() -> Timestamp {
    // A clock before 1970 makes every birth lie ahead, and so keeps everything.
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(i128::try_from(elapsed.as_nanos()).unwrap_or_default())
}

#[cfg(test)]
#[path = "examine_tests.rs"]
mod tests;
