//! References by `/proc/*/task/*/{fd,cwd,root,exe}`, where the kernel's iterators are refused.
//!
//! What lies at or below the condemned entries is listed by identity first, and each link of each thread is then
//! compared with that.

use super::{Found, add};
use crate::evidence::procfs::Procfs;
use crate::evidence::source::CondemnedIn;
use crate::evidence::{scan, tasks};
use crate::model::coverage::{GapCause, Reach};
use crate::model::pin::Place;
use crate::model::reference::{Reference, ReferenceKind};
use crate::sys::directory::{Hint, Names, Reader, open_child};
use crate::sys::file_status::status_at;
use nix::errno::Errno;
use nix::sys::stat::fstat;
use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};

/// How deep an entry is looked into, which is also how many descriptors that takes.
const DEPTH: usize = 128;
/// How many things below entries are told apart in one look.
const MOST: usize = 1 << 20;
/// Listings of tasks in one look: each brings those that came to be while the one before was read.
const ROUNDS: usize = 4;
/// Names of a makeshift batch's entries, which lie in the root among others, begin so.
pub(super) const MAKESHIFT: &[u8] = b".reclaim-";

/// Device and inode, as stat(2) tells them.
type Identity = (u64, u64);

/// A directory that is looked into, and what of it was not looked at yet.
type Level = (OwnedFd, Vec<(CString, Hint)>);

/// What lies at or below condemned entries: the number of the directory, the entry's name, and where.
#[derive(Debug, Default)]
struct Wanted {
    places: HashMap<Identity, Vec<(usize, Box<CStr>, Place)>>,
    count: usize,
}

/// For the children of each directory that are named; where there are no names for it, for all.
pub(super) fn look_for(condemned: &[CondemnedIn<'_>], names: &[&[CString]]) -> Found {
    let mut found = Found::default();
    let procfs = match Procfs::open() {
        Ok(procfs) => procfs,
        Err(_) => {
            found.gaps.push((GapCause::ProcfsUnreadable, 1, Reach::Everybody));
            return found;
        }
    };
    let mut wanted = Wanted::default();
    for (number, directory) in condemned.iter().enumerate() {
        let named = names.get(number).copied();
        if list(number, directory, named, &mut wanted, &mut found).is_err() {
            // Entries that cannot even be listed could be referred to by anybody.
            found.gaps.push((GapCause::ProcfsUnreadable, 1, Reach::Everybody));
        }
    }
    if scan::filtered(&procfs) {
        found.gaps.push((GapCause::ProcfsFiltered, 1, Reach::Everybody));
    }
    let mut read = HashSet::from([std::process::id()]);
    for round in 0..=ROUNDS {
        let Ok(listed) = procfs.numbers(".") else {
            found.gaps.push((GapCause::ProcfsUnreadable, 1, Reach::Everybody));
            return found;
        };
        let fresh: Vec<u32> = listed.into_iter().filter(|process| !read.contains(process)).collect();
        for process in &fresh {
            read.insert(*process);
            // Processes that come to be faster than they can be read are told, not chased.
            let is_read = round < ROUNDS && look_at(&procfs, *process, condemned, &wanted, &mut found);
            if !is_read {
                let holder = tasks::holder(&procfs, *process);
                found.gaps.push((GapCause::TaskUnreadable, 1, Reach::Holder(holder)));
            }
        }
        if fresh.is_empty() {
            break;
        }
    }
    found
}

/// Looks at every thread of a process. False when some of it may not be read.
fn look_at(procfs: &Procfs, process: u32, condemned: &[CondemnedIn<'_>], wanted: &Wanted, found: &mut Found) -> bool {
    let mut is_read = true;
    let mut look = |path: &str, kind| match procfs.status(path) {
        Ok(status) => {
            for (number, name, place) in wanted.places.get(&(status.st_dev, status.st_ino)).into_iter().flatten() {
                let reference = Reference { kind, process: Some(process), place: *place };
                add(&mut found.references, &condemned[*number], name.to_bytes(), reference);
            }
        }
        Err(error) => is_read &= is_gone(error),
    };
    let mut all_listed = true;
    match procfs.numbers(&format!("{process}/task")) {
        Ok(threads) => {
            for thread in threads {
                let of = format!("{process}/task/{thread}");
                look(&format!("{of}/cwd"), ReferenceKind::WorkingDirectory);
                look(&format!("{of}/root"), ReferenceKind::Root);
                look(&format!("{of}/exe"), ReferenceKind::Executable);
                match procfs.numbers(&format!("{of}/fd")) {
                    Ok(descriptors) => {
                        for descriptor in descriptors {
                            look(&format!("{of}/fd/{descriptor}"), ReferenceKind::Descriptor);
                        }
                    }
                    Err(error) => all_listed &= is_gone(error),
                }
            }
        }
        Err(error) => all_listed &= is_gone(error),
    }
    is_read && all_listed
}

/// What a thread that has ended, a kernel thread, and a descriptor that was closed answer.
fn is_gone(error: Errno) -> bool {
    matches!(error, Errno::ENOENT | Errno::ESRCH)
}

/// Lists what lies at or below the entries of a directory, or those of them that are named. What cannot be listed whole
/// is noted as unknown.
fn list(
    number: usize,
    directory: &CondemnedIn<'_>,
    named: Option<&[CString]>,
    wanted: &mut Wanted,
    found: &mut Found,
) -> Result<(), Errno> {
    let device = fstat(directory.directory)?.st_dev;
    let makeshift = directory.path.is_empty();
    let names = match named {
        Some(names) => names.to_vec(),
        // A descriptor of its own, since the place in a listing belongs to the open file.
        None => children(open_child(directory.directory, c".")?)?.into_iter().map(|(name, _)| name).collect(),
    };
    for name in names {
        if makeshift && !name.to_bytes().starts_with(MAKESHIFT) {
            continue;
        }
        let whole = list_entry(number, directory.directory, device, &name, wanted);
        if !whole.unwrap_or(false) {
            let reference = Reference { kind: ReferenceKind::Unknown, process: None, place: Place::Below };
            add(&mut found.references, directory, name.to_bytes(), reference);
        }
    }
    Ok(())
}

/// Returns whether it was listed whole.
fn list_entry(
    number: usize,
    directory: impl AsFd,
    device: u64,
    name: &CString,
    wanted: &mut Wanted,
) -> Result<bool, Errno> {
    let mut note = |inode: u64, place| {
        wanted.count += 1;
        let places = wanted.places.entry((device, inode)).or_default();
        places.push((number, name.clone().into_boxed_c_str(), place));
        wanted.count <= MOST
    };
    let status = match status_at(&directory, name) {
        Ok(status) => status,
        Err(Errno::ENOENT) => return Ok(true),
        Err(error) => return Err(error),
    };
    if !note(status.identity.inode, Place::Exact) {
        return Ok(false);
    }
    let mut stack: Vec<Level> = Vec::new();
    let open = |parent: &dyn AsFd, name: &CStr| -> Result<Option<Level>, Errno> {
        match open_child(parent.as_fd(), name) {
            Ok(opened) => {
                let listed = children(open_child(&opened, c".")?)?;
                Ok(Some((opened, listed)))
            }
            // Not a directory, or gone.
            Err(Errno::ENOTDIR | Errno::ELOOP | Errno::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    };
    stack.extend(open(&directory, name)?);
    while let Some((opened, rest)) = stack.last_mut() {
        let Some((child, hint)) = rest.pop() else {
            stack.pop();
            continue;
        };
        let status = match status_at(&*opened, &child) {
            Ok(status) => status,
            Err(Errno::ENOENT) => continue,
            Err(error) => return Err(error),
        };
        // Another file system below, such as a subvolume, has a device of its own: it is not compared with anything.
        let own = nix_device(&status) == device;
        if !own || !note(status.identity.inode, Place::Below) {
            return Ok(false);
        }
        if matches!(hint, Hint::Directory | Hint::Unknown) {
            let next = open(opened, &child)?;
            stack.extend(next);
            if stack.len() > DEPTH {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

fn children(directory: OwnedFd) -> Result<Vec<(CString, Hint)>, Errno> {
    let (mut reader, mut names) = (Reader::default(), Names::default());
    while reader.read(&directory, &mut names)? {}
    Ok((0..names.len()).filter_map(|index| names.get(index)).map(|(name, hint, _)| (name.to_owned(), hint)).collect())
}

/// The device as stat(2) puts it in one number.
fn nix_device(status: &crate::sys::file_status::FileStatus) -> u64 {
    let device = status.identity.device;
    nix::sys::stat::makedev(device.major.into(), device.minor.into())
}
