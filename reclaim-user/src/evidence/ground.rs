//! Where a path lies: its file system as mount tables show it, and the path from that file system's own root.
//!
//! Found by mount id and never by `st_dev`, which on btrfs and overlay is not the device that mount tables show.

use super::procfs::{Procfs, ProcfsError};
use crate::model::id::{Location, MountId, join, rest};
use crate::model::mount::Mount;
use crate::model::mountinfo::{MountinfoError, rows};
use crate::sys::mount_id::mount_of;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::{Mode, fstat};
use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Where something lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ground {
    /// The place in its file system.
    pub location: Location,
    /// The mount that it was reached through, as mountinfo numbers it.
    pub mount: MountId,
}

/// Why it is not known where something lies.
#[derive(Debug, Error)]
pub enum GroundError {
    /// There is nothing at that path.
    #[error("nothing lies at {}", .path.display())]
    Missing {
        /// The path asked for.
        path: PathBuf,
    },
    /// It could not be opened.
    #[error("could not open {} to see where it lies; check the permissions on the way to it", .path.display())]
    Open {
        /// The path asked for.
        path: PathBuf,
        /// The answer of open(2).
        #[source]
        source: Errno,
    },
    /// The kernel did not tell the mount or the path of a descriptor.
    #[error("{call} did not tell where an open file lies; reclaim needs Linux 5.8 or later")]
    Identity {
        /// The call that failed.
        call: &'static str,
        /// Its answer.
        #[source]
        source: Errno,
    },
    /// No path leads to it any more.
    #[error("{} was deleted", .path.display())]
    Deleted {
        /// What the kernel calls it.
        path: PathBuf,
    },
    /// It lies on a mount that the table does not show.
    #[error("{} lies on mount {mount}, which no path from this root leads to; ask by a path inside the root", .path.display())]
    OutsideRoot {
        /// What the kernel calls it.
        path: PathBuf,
        /// The mount.
        mount: MountId,
    },
    /// There is no usable procfs.
    #[error(transparent)]
    Procfs(#[from] ProcfsError),
    /// The own mount table could not be read.
    #[error("could not read /proc/thread-self/mountinfo")]
    ReadTable(#[source] Errno),
    /// The own mount table makes no sense.
    #[error("could not understand /proc/thread-self/mountinfo")]
    Table(#[from] MountinfoError),
}

/// Where a path lies, links followed. To treat links otherwise, open the path and ask [`ground_of`].
///
/// # Errors
/// [`GroundError::Missing`] when the path or the end of it does not exist.
pub fn ground(path: &Path) -> Result<Ground, GroundError> {
    let file = open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty()).map_err(|errno| match errno {
        Errno::ENOENT | Errno::ENOTDIR => GroundError::Missing { path: path.into() },
        source => GroundError::Open { path: path.into(), source },
    })?;
    ground_of(&file)
}

/// Where an open file lies; an O_PATH descriptor is enough.
///
/// # Errors
/// When it was deleted, lies outside the caller's root, or the kernel does not tell.
pub fn ground_of(file: impl AsFd) -> Result<Ground, GroundError> {
    let procfs = Procfs::open()?;
    let mut text = Vec::new();
    procfs.read("thread-self/mountinfo", &mut text).map_err(GroundError::ReadTable)?;
    let mounts = rows(&text).map(|row| row.map(|row| row.mount())).collect::<Result<Vec<_>, _>>()?;
    locate(file, &procfs, &mounts)
}

/// Where an open file lies, by the mount table of the namespace and root that the calling thread is in.
pub(crate) fn locate(file: impl AsFd, procfs: &Procfs, mounts: &[Mount]) -> Result<Ground, GroundError> {
    let identity = |call| move |source| GroundError::Identity { call, source };
    let id = mount_of(&file).map_err(identity("statx"))?;
    let link = format!("thread-self/fd/{}", file.as_fd().as_raw_fd());
    let name = procfs.link(&link).map_err(identity("readlink of /proc/thread-self/fd"))?;
    let path = || PathBuf::from(OsString::from_vec(name.clone()));
    // A name may well end in " (deleted)" by itself, so the mark counts only when the name leads elsewhere.
    if name.ends_with(b" (deleted)") && !leads_to(&name, &file) {
        return Err(GroundError::Deleted { path: path() });
    }
    let mount = mounts.iter().find(|mount| mount.id == id);
    let below = mount.and_then(|mount| rest(mount.point.as_deref()?, &name));
    match mount.zip(below) {
        Some((mount, _)) if mount.root_deleted => Err(GroundError::Deleted { path: path() }),
        Some((mount, below)) => {
            Ok(Ground { location: Location { device: mount.device, path: join(&mount.root, below) }, mount: id })
        }
        None => Err(GroundError::OutsideRoot { path: path(), mount: id }),
    }
}

fn leads_to(name: &[u8], file: impl AsFd) -> bool {
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let identity = |file: &dyn AsFd| fstat(file.as_fd()).ok().map(|status| (status.st_dev, status.st_ino));
    let there = open(name, flags, Mode::empty()).ok();
    there.is_some_and(|there| identity(&there).is_some() && identity(&there) == identity(&file.as_fd()))
}
