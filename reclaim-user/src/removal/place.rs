//! The root: opened once by path, and where it lies in its file system.

use super::error::RemovalError;
use crate::evidence::ground::ground_of;
use crate::model::id::Location;
use crate::sys::directory;
use crate::sys::file_status::{FileStatus, status_of};
use nix::errno::Errno;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// A root that is open.
#[derive(Debug)]
pub(super) struct Root {
    pub(super) path: PathBuf,
    pub(super) directory: OwnedFd,
    pub(super) status: FileStatus,
}

impl Root {
    /// Opens a root. None when there is nothing at its path.
    pub(super) fn open(path: &Path) -> Result<Option<Self>, RemovalError> {
        let configuration = |fault, remedy| RemovalError::Configuration { path: path.into(), fault, remedy };
        if !path.is_absolute() || path.components().count() == 1 {
            return Err(configuration("is `/` or is not absolute", "name one directory by its whole path"));
        }
        let directory = match directory::open_path(path) {
            Ok(directory) => directory,
            Err(Errno::ENOENT) => return Ok(None),
            Err(Errno::ELOOP) => {
                return Err(configuration("is a link or lies behind one", "name the directory that it leads to"));
            }
            Err(Errno::ENOTDIR) => return Err(configuration("is not a directory", "name a directory")),
            Err(source) => return Err(RemovalError::Call { call: "openat2", path: path.into(), source }),
        };
        let call = |source| RemovalError::Call { call: "statx", path: path.into(), source };
        let status = status_of(&directory).map_err(call)?;
        let top = directory::open_path(Path::new("/")).and_then(status_of).map_err(call)?;
        // By identity, so that `/` bound somewhere else is refused too.
        if top.identity == status.identity {
            return Err(configuration("is `/`", "name one directory by its whole path"));
        }
        Ok(Some(Self { path: path.into(), directory, status }))
    }

    /// Makes sure that the root lies where evidence looks for pins: elsewhere every pin would be missed.
    pub(super) fn verify(&self, watched: Option<&Location>, expected: &Location) -> Result<(), RemovalError> {
        let found = ground_of(&self.directory).ok().map(|ground| ground.location);
        if found.as_ref() == Some(expected) && watched == Some(expected) {
            return Ok(());
        }
        let watched = watched.map_or_else(|| "nothing".into(), ToString::to_string);
        Err(RemovalError::Moved { path: self.path.clone(), found, watched })
    }
}

/// Where the directory at a path lies in its file system, as mount tables write it.
///
/// # Errors
/// [`RemovalError::Configuration`] for a link and the like; `Call` when there is nothing there, or when its mount cannot
/// be seen.
pub fn locate(path: &Path) -> Result<Location, RemovalError> {
    let call = |call, source| RemovalError::Call { call, path: path.into(), source };
    let root = Root::open(path)?.ok_or_else(|| call("openat2", Errno::ENOENT))?;
    match ground_of(&root.directory) {
        Ok(ground) => Ok(ground.location),
        Err(source) => Err(RemovalError::Ground { path: path.into(), source }),
    }
}

/// Opens a root for looking at what it holds.
///
/// # Errors
/// As [`locate`].
pub fn open_root(path: &Path) -> Result<OwnedFd, RemovalError> {
    let absent = || RemovalError::Call { call: "openat2", path: path.into(), source: Errno::ENOENT };
    Root::open(path)?.map(|root| root.directory).ok_or_else(absent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_that_is_none_is_a_fault_of_the_configuration() {
        for path in ["/", "relative", "relative/below", "/proc/self/.."] {
            let error = Root::open(Path::new(path)).unwrap_err();
            assert!(matches!(error, RemovalError::Configuration { .. }), "{path}: {error}");
        }
        assert!(Root::open(Path::new("/proc/absent/x")).unwrap().is_none());
    }
}
