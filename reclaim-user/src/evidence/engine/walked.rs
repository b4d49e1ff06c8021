//! Asking the walk about the entries of directories, and believing it only after it has proved itself.

use crate::evidence::ground::ground_of;
use crate::evidence::lacking::lacks;
use crate::evidence::walk::{Base, WalkError, WalkPin, Walker};
use crate::model::id::{Location, MountId};
use crate::model::pin::{Pin, Place, Role, State};
use crate::sys::directory::{Names, Reader, open_child, open_parent};
use crate::sys::mount_id::mount_of;
use crate::sys::mount_tree::clone_tree;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::{Mode, fstat};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// A directory whose children are asked about.
#[derive(Clone, Debug)]
pub struct Asked<'a> {
    /// The directory.
    pub directory: BorrowedFd<'a>,
    /// Where it lies.
    pub location: Location,
    /// The one child that is asked about; none for all of them.
    pub only: Option<BorrowedFd<'a>>,
}

/// A detached mount that the walk has to find, by its id, in the directory with one inode number on the entry with the
/// other.
struct Mark {
    mount: OwnedFd,
    id: MountId,
    base: u64,
    /// The directory with the number of the base.
    directory: OwnedFd,
    /// The entry, and its number.
    child: OwnedFd,
    entry: u64,
}

/// Every mount that relies on an entry in one of the directories, which lie in one file system.
///
/// Each walk proves itself on that very file system: a detached mount is made there, and has to be found. Where inode
/// numbers are not those that stat(2) tells, as on some stacked file systems, that fails.
pub(super) fn walk(walker: &mut Walker, directories: &[Asked<'_>]) -> Result<Vec<Pin>, WalkError> {
    let Some(first) = directories.first() else { return Ok(Vec::new()) };
    let mut bases = Vec::with_capacity(directories.len() + 1);
    for Asked { directory, only, .. } in directories {
        bases.push(Base { number: inode(directory)?, directory: *directory, only: *only });
    }
    let Mark { mount, id, base, directory, child, entry } = mark(first.directory)?;
    match bases.iter_mut().find(|asked| asked.number == base) {
        Some(asked) => asked.only = None,
        // Whatever else relies on its neighbours is not asked about.
        None => bases.push(Base { number: base, directory: directory.as_fd(), only: Some(child.as_fd()) }),
    }
    let mut walked = walker.walk(first.directory, &bases)?;
    if lacks("walk-answer") {
        walked.pins.retain(|pin| pin.mount != id);
    }
    let is_mark = |pin: &&WalkPin| {
        (pin.mount, pin.base, pin.entry) == (id, base, entry)
            && (pin.role, pin.state, pin.place) == (Role::Source, State::Detached, Place::Exact)
    };
    if walked.pins.iter().filter(is_mark).count() != 1 {
        return Err(WalkError::KnownAnswer { why: format!("mount {id} of inode {entry} in inode {base}") });
    }
    drop(mount);
    let pins = walked.pins.into_iter().filter(|pin| pin.mount != id).filter_map(|pin| {
        let (asked, _) = directories.iter().zip(&bases).find(|(_, base)| base.number == pin.base)?;
        Some(Pin {
            role: pin.role,
            location: asked.location.join(&pin.name),
            namespace: pin.namespace,
            mount: pin.mount,
            mount_point: None,
            state: pin.state,
            inside: pin.place == Place::Below,
        })
    });
    Ok(pins.collect())
}

/// A walk that is loaded to prove itself, and for nothing else.
#[derive(Debug)]
pub struct Proof {
    walker: Walker,
}

impl Proof {
    /// Loads it.
    ///
    /// # Errors
    /// It cannot be loaded.
    pub fn load() -> Result<Self, WalkError> {
        Walker::load().map(|walker| Self { walker })
    }

    /// Lets it prove itself in a directory.
    ///
    /// # Errors
    /// It does not run, does not find the mount that was made for it, or none can be made.
    pub fn of(&mut self, path: &Path) -> Result<(), WalkError> {
        let opened = open_directory(path)?;
        let location = ground_of(&opened).map_err(|_| WalkError::NothingToFind)?.location;
        walk(&mut self.walker, &[Asked { directory: opened.as_fd(), location, only: None }]).map(drop)
    }
}

fn open_directory(path: &Path) -> Result<OwnedFd, WalkError> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    open(path, flags, Mode::empty()).map_err(|source| WalkError::Probe { call: "open", source })
}

/// Makes a mount of the directory itself, to be found in its parent, or, at the top of a mount, of a directory in it.
fn mark(directory: BorrowedFd<'_>) -> Result<Mark, WalkError> {
    let own = inode(directory)?;
    let again = || open_child(directory, c".").map_err(|source| WalkError::Probe { call: "openat2", source });
    let (mount, directory, child) = match open_parent(directory) {
        Ok(parent) if inode(&parent)? != own => (clone(directory)?, parent, again()?),
        Ok(_) | Err(Errno::EXDEV) => {
            let child = child_of(directory)?.ok_or(WalkError::NothingToFind)?;
            (clone(&child)?, again()?, child)
        }
        Err(source) => return Err(WalkError::Probe { call: "openat2", source }),
    };
    let id = mount_of(&mount).map_err(|source| WalkError::Probe { call: "statx", source })?;
    Ok(Mark { mount, id, base: inode(&directory)?, directory, entry: inode(&child)?, child })
}

/// Some directory in a directory, on which nothing is mounted.
fn child_of(directory: BorrowedFd<'_>) -> Result<Option<OwnedFd>, WalkError> {
    let fault = |call| move |source| WalkError::Probe { call, source };
    let listed = open_child(directory, c".").map_err(fault("openat2"))?;
    let (mut reader, mut names) = (Reader::default(), Names::default());
    while reader.read(&listed, &mut names).map_err(fault("getdents64"))? {
        let found = (0..names.len())
            .filter_map(|index| names.get(index))
            .find_map(|(name, _, _)| open_child(&listed, name).ok());
        if found.is_some() {
            return Ok(found);
        }
        names.clear();
    }
    Ok(None)
}

fn clone(directory: impl AsFd) -> Result<OwnedFd, WalkError> {
    clone_tree(directory).map_err(|source| WalkError::Probe { call: "open_tree", source })
}

fn inode(file: impl AsFd) -> Result<u64, WalkError> {
    fstat(file).map(|status| status.st_ino).map_err(|source| WalkError::Probe { call: "fstat", source })
}
