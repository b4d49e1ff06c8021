//! Whether anybody at all refers to a condemned entry, by the number of references that the kernel counts to it.
//!
//! Every look at tasks or mounts takes a while, and a reference that becomes a mount and a mount that becomes a reference
//! can slip through between any two of them. The count is one number, and everything raises it: a mount, a descriptor
//! wherever it is, a call that has looked a path up. An entry that no path leads to and that nobody refers to stays so.

use super::iterators::{Iterators, Met, Record, ReferenceError};
use super::procfs::MAKESHIFT;
use crate::evidence::lacking::lacks;
use crate::evidence::source::{CondemnedIn, Own};
use crate::model::plan::UNDECIDED;
use crate::model::reference::ReferenceKind;
use crate::sys::directory::{Names, Reader, make, names_on_tmpfs, open_child, open_parent, remove_directory};
use crate::sys::file_status::status_at;
use nix::errno::Errno;
use nix::sys::stat::fstat;
use nix::sys::statfs::{
    BTRFS_SUPER_MAGIC, EXT4_SUPER_MAGIC, F2FS_SUPER_MAGIC, FsType, OVERLAYFS_SUPER_MAGIC, TMPFS_MAGIC, XFS_SUPER_MAGIC,
    fstatfs,
};
use std::collections::BTreeSet;
use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd};
use tracing::{debug, warn};

/// How often a directory is opened to see what that adds to its references.
const OPENINGS: u32 = 4;

/// Entries that the count does not prove free: by their names in a directory, or by what the pin set calls them.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Somebody refers to them.
    pub referred: Vec<Vec<u8>>,
    /// It cannot be told from the number.
    pub unsettled: Vec<Vec<u8>>,
    /// Directories, by what leads to them, whose entries are what the caller knows of them, and of which none is unsettled.
    pub unchanged: BTreeSet<Vec<u8>>,
}

/// A file system, by device and kind.
type Key = (u64, i128);

/// What was found out about file systems.
#[derive(Debug, Default)]
pub(super) struct Tried {
    /// The number for an entry that nobody uses is what is known.
    idle: BTreeSet<Key>,
    /// Opening a directory adds one reference, and none could add less.
    opened_once: BTreeSet<Key>,
}

/// Counts references to the entries of one directory.
pub(super) fn count(
    iterators: &mut Iterators,
    condemned: &CondemnedIn<'_>,
    tried: &mut Tried,
) -> Result<Counted, ReferenceError> {
    let directory = condemned.directory;
    let file_system = fstatfs(directory).map_err(failed("fstatfs"))?.filesystem_type();
    let device = fstat(directory).map_err(failed("fstat"))?.st_dev;
    let on = (device, file_system.0.into());
    if let (Some(idle), false) = (idle_references(file_system), condemned.path.is_empty())
        && is_idle_so(iterators, condemned, tried, on, idle)?
        && let Some(opened) = opened_references(iterators, condemned, tried, on)?
    {
        let usual = |held: Own| match held {
            Own::Nothing => idle,
            Own::File => idle + 1,
            Own::Directory => idle + opened,
        };
        // Where the caller has not the same of each, no number is usual for all of them: each child is told.
        let expected = if condemned.unlike.is_empty() { usual(condemned.held) } else { u32::MAX };
        let key = condemned.seal.map_or(0, |seal| seal.key);
        let Met { children, records, seal } = iterators.count(directory, expected, key)?;
        // One that the kernel has no dentry of has no reference either; but whether it was missed cannot be told.
        if Some(children) == names_in(directory, file_system)? {
            let mut counted = judged(records, usual, condemned);
            // Of what is unsettled it is not known that nobody can change it from here on.
            if condemned.seal.is_some_and(|known| known.sum == seal) && counted.unsettled.is_empty() {
                counted.unchanged.insert(condemned.path.clone());
            }
            return Ok(counted);
        }
    }
    none(condemned)
}

/// Whether a directory that nobody uses has the references that are known of its file system: one is made beside the
/// directory of the entries, looked at and removed, once for each file system. Where it cannot be made nothing is known, and
/// is tried again. A crash leaves it as a batch that holds nothing.
fn is_idle_so(
    iterators: &mut Iterators,
    condemned: &CondemnedIn<'_>,
    tried: &mut Tried,
    on: Key,
    idle: u32,
) -> Result<bool, ReferenceError> {
    if tried.idle.contains(&on) {
        return Ok(true);
    }
    let batch = condemned.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let name = batch.strip_suffix(UNDECIDED).map_or_else(|| [batch, UNDECIDED].concat(), <[u8]>::to_vec);
    let Ok(name) = CString::new(name) else { return Ok(false) };
    let parent = open_parent(condemned.directory).map_err(failed("openat2"))?;
    if let Err(error) = make(&parent, &name) {
        debug!("no directory to count the references of can be made: {error}");
        return Ok(false);
    }
    let counted = status_at(&parent, &name).map_err(failed("statx")).and_then(|made| {
        // No directory that is open has that many, so each child is told.
        let records = iterators.count(parent.as_fd(), u32::MAX, 0)?.records;
        let made = records.iter().find(|record| record.entry == made.identity.inode);
        Ok(made.map(|record| record.process))
    });
    // Only what is empty goes, and nobody else is let in there.
    let _ = remove_directory(&parent, &name);
    let is_so = counted? == Some(idle);
    if is_so {
        tried.idle.insert(on);
    } else {
        warn!("the references of entries are not counted: one that nobody uses has not {idle} of them on this kernel");
    }
    Ok(is_so)
}

/// References that opening a directory adds to it, where the caller has any open. The kernel is asked with the directory of
/// the entries itself: one, and before Linux 6.6 one more on file systems in memory, for the place that a reader of the
/// directory is at (`dcache_dir_open` in fs/libfs.c). None where it cannot be told.
///
/// Whoever else opens that directory between two readings makes the number too large, and then a reference of others could
/// pass for one of our own. So it is the least of several: one that is too small keeps entries. Once all of them were one,
/// which is the least that there can be, the kernel is not asked again.
fn opened_references(
    iterators: &mut Iterators,
    condemned: &CondemnedIn<'_>,
    tried: &mut Tried,
    on: Key,
) -> Result<Option<u32>, ReferenceError> {
    let asked = condemned.held == Own::Directory || condemned.unlike.values().any(|held| *held == Own::Directory);
    if !asked {
        return Ok(Some(0));
    }
    if tried.opened_once.contains(&on) {
        return Ok(Some(1));
    }
    let own = fstat(condemned.directory).map_err(failed("fstat"))?.st_ino;
    let parent = open_parent(condemned.directory).map_err(failed("openat2"))?;
    let mut references = || -> Result<Option<u32>, ReferenceError> {
        // No directory that is open has that many, so each child is told.
        let records = iterators.count(parent.as_fd(), u32::MAX, 0)?.records;
        Ok(records.iter().find(|record| record.entry == own).map(|record| record.process))
    };
    let (mut least, mut most) = (None, 0);
    for _ in 0..OPENINGS {
        let before = references()?;
        let again = open_child(condemned.directory, c".").map_err(failed("openat2"))?;
        let after = references()?;
        drop(again);
        let Some(added) = before.zip(after).and_then(|(before, after)| after.checked_sub(before)) else {
            return Ok(None);
        };
        least = Some(least.map_or(added, |least: u32| least.min(added)));
        most = most.max(added);
    }
    if (least, most) == (Some(1), 1) {
        tried.opened_once.insert(on);
    }
    Ok(least.filter(|added| (1..=2).contains(added)))
}

/// What the numbers of references tell. Where the caller has the same of each, those that this explains are not written.
fn judged(records: Vec<Record>, usual: impl Fn(Own) -> u32, condemned: &CondemnedIn<'_>) -> Counted {
    let mut counted = Counted::default();
    let mut silent = condemned.unlike.clone();
    for Record { name, kind, process: references, .. } in records {
        let held = silent.remove(&name).unwrap_or(condemned.held);
        match kind {
            _ if references == usual(held) => {}
            ReferenceKind::Counted => counted.referred.push(name),
            _ => counted.unsettled.push(name),
        }
    }
    // Each of these was to be told.
    counted.unsettled.extend(silent.into_keys());
    counted
}

/// How many names there are in a directory; None where its size makes no sense.
fn names_in(directory: BorrowedFd<'_>, file_system: FsType) -> Result<Option<usize>, ReferenceError> {
    if file_system != TMPFS_MAGIC {
        return listed(directory, |_| ()).map(|names| Some(names.len()));
    }
    let size = fstat(directory).map_err(failed("fstat"))?.st_size;
    Ok(u64::try_from(size).ok().and_then(names_on_tmpfs))
}

/// What is known of the entries of one directory where nothing is counted.
pub(super) fn none(condemned: &CondemnedIn<'_>) -> Result<Counted, ReferenceError> {
    let mut unsettled = listed(condemned.directory, <[u8]>::to_vec)?;
    unsettled.retain(|name| !condemned.path.is_empty() || name.starts_with(MAKESHIFT));
    Ok(Counted { unsettled, ..Counted::default() })
}

/// References that a dentry has which nobody uses; None for a file system that is not known to be one or the other. What
/// lives in memory alone keeps each name by a reference.
fn idle_references(file_system: FsType) -> Option<u32> {
    let known = match file_system {
        TMPFS_MAGIC => Some(1),
        EXT4_SUPER_MAGIC | XFS_SUPER_MAGIC | BTRFS_SUPER_MAGIC | F2FS_SUPER_MAGIC | OVERLAYFS_SUPER_MAGIC => Some(0),
        _ => None,
    };
    known.map(|idle| idle + u32::from(lacks("references-idle")))
}

fn listed<T>(directory: BorrowedFd<'_>, take: impl Fn(&[u8]) -> T) -> Result<Vec<T>, ReferenceError> {
    let own = open_child(directory.as_fd(), c".").map_err(failed("openat2"))?;
    let (mut reader, mut names) = (Reader::default(), Names::default());
    while reader.read(&own, &mut names).map_err(failed("getdents64"))? {}
    Ok((0..names.len()).filter_map(|index| names.get(index)).map(|(name, _, _)| take(name.to_bytes())).collect())
}

fn failed(call: &'static str) -> impl FnOnce(Errno) -> ReferenceError {
    move |errno| ReferenceError::Probe { call, source: errno.into() }
}
