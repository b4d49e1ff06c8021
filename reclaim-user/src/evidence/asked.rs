//! A path that somebody asks about: looked at without following a link at its end, and placed in its file system.

use super::ground::{self, GroundError};
use crate::model::answer::Subject;
use crate::model::report::Name;
use crate::sys::mount_id::mount_of;
use nix::fcntl::{AT_FDCWD, OFlag, openat};
use nix::sys::stat::{Mode, SFlag, fstat};
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};
use thiserror::Error;

/// Why nothing can be said about a path.
#[derive(Debug, Error)]
pub enum AskedError {
    /// It is not there, or cannot be reached.
    #[error("{}: cannot open: {source}; check the path, or ask as a user who may reach it", path.display())]
    Open {
        /// The path.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// It ends in `..`, which names no entry.
    #[error("{}: ends in `..`; name the directory itself", path.display())]
    Parent {
        /// The path.
        path: PathBuf,
    },
    /// Its place in the file system cannot be learnt.
    #[error("{}: cannot tell where in its file system it is", path.display())]
    Ground {
        /// The path.
        path: PathBuf,
        /// Why.
        #[source]
        source: GroundError,
    },
}

/// Looks at a path. The owner and the place belong to the file that was opened, whatever the path leads to later.
///
/// # Errors
/// When the path does not exist, cannot be reached or cannot be placed.
pub fn look(path: &Path) -> Result<Subject, AskedError> {
    let open = |error: nix::Error| AskedError::Open { path: path.to_path_buf(), source: error.into() };
    let placed = |source| AskedError::Ground { path: path.to_path_buf(), source };
    let flags = OFlag::O_PATH | OFlag::O_CLOEXEC;
    let (directory, name) = split(path)?;
    let parent = openat(AT_FDCWD, &directory, flags | OFlag::O_DIRECTORY, Mode::empty()).map_err(open)?;
    let Some(name) = name else {
        let stat = fstat(&parent).map_err(open)?;
        let place = ground::ground_of(&parent).map_err(placed)?.location;
        return Ok(Subject {
            path: Name(path.as_os_str().as_bytes().to_vec()),
            name: Name(Vec::new()),
            places: vec![place],
            owner: stat.st_uid,
            known_empty: false,
        });
    };
    let file = openat(&parent, name.as_os_str(), flags | OFlag::O_NOFOLLOW, Mode::empty()).map_err(open)?;
    let stat = fstat(&file).map_err(open)?;
    let kind = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT;
    let above = ground::ground_of(&parent).map_err(placed)?;
    let mut places = vec![above.location.join(name.as_bytes())];
    // Where something is mounted on the path, the file that was opened is on top of the place that its parent gives.
    if mount_of(&file).map_err(open)? != above.mount {
        places.push(ground::ground_of(&file).map_err(placed)?.location);
    }
    let known_empty = kind != SFlag::S_IFDIR || is_empty(&file);
    Ok(Subject {
        path: Name(path.as_os_str().as_bytes().to_vec()),
        name: Name(name.as_bytes().to_vec()),
        places,
        owner: stat.st_uid,
        known_empty,
    })
}

/// The directory to open, and the name to look for in it. No name where the path is a root directory, or the working
/// directory of the caller asked about by `.`.
fn split(path: &Path) -> Result<(PathBuf, Option<OsString>), AskedError> {
    match path.components().next_back() {
        Some(Component::Normal(name)) => {
            let above = path.parent().unwrap_or(Path::new(""));
            let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
            Ok((above.to_path_buf(), Some(name.to_os_string())))
        }
        Some(Component::CurDir) => {
            let open = |source| AskedError::Open { path: path.to_path_buf(), source };
            split(&std::env::current_dir().map_err(open)?)
        }
        Some(Component::ParentDir) => Err(AskedError::Parent { path: path.to_path_buf() }),
        Some(Component::RootDir | Component::Prefix(_)) => Ok((PathBuf::from("/"), None)),
        None => {
            let source = std::io::Error::from_raw_os_error(nix::libc::ENOENT);
            Err(AskedError::Open { path: path.to_path_buf(), source })
        }
    }
}

/// Whether a directory holds nothing. What cannot be read may hold something.
fn is_empty(directory: &OwnedFd) -> bool {
    let Ok(mut listing) =
        nix::dir::Dir::openat(directory, ".", OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())
    else {
        return false;
    };
    listing.iter().all(|entry| entry.is_ok_and(|entry| matches!(entry.file_name().to_bytes(), b"." | b"..")))
}

/// Absolute form of a path as the caller means it, without resolving links.
///
/// # Errors
/// When the working directory cannot be told.
pub fn absolute(path: &Path) -> std::io::Result<PathBuf> {
    if path.is_absolute() { Ok(path.to_path_buf()) } else { Ok(std::env::current_dir()?.join(path)) }
}

/// A path from bytes.
#[must_use]
pub fn path_of(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(bytes))
}
