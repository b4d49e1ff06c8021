//! A path that somebody asks about: looked at without following a link at its end, and placed in its file system.

use super::engine::Asked;
use super::ground::{self, Ground, GroundError};
use crate::model::answer::Subject;
use crate::model::report::Name;
use crate::sys::mount_id::mount_of;
use nix::fcntl::{AT_FDCWD, OFlag, openat};
use nix::sys::stat::{Mode, SFlag, fstat};
use std::ffi::{CString, OsStr, OsString};
use std::os::fd::{AsFd as _, OwnedFd};
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

/// Directories that stay open at most while paths in them are asked about.
const DIRECTORIES: usize = 64;

/// Looks at paths. Remembers the directories that they were in, so that many entries of one directory cost little.
#[derive(Debug, Default)]
pub struct Looker {
    known: Vec<Directory>,
    /// Some path does not lie in one of the known directories, or something is mounted on it.
    apart: bool,
    /// Directories that were closed again.
    closed: u64,
}

/// A directory that is open, and where it is.
#[derive(Debug)]
struct Directory {
    path: PathBuf,
    file: OwnedFd,
    ground: Ground,
    children: Children,
    /// The names of those children.
    names: Vec<CString>,
}

/// What evidence is asked about.
#[derive(Debug)]
pub struct Question<'a> {
    /// The directories, and the names of the children in them that are meant.
    pub directories: Vec<(Asked<'a>, &'a [CString])>,
    /// Whether all that is asked about are children of these directories, on which nothing is mounted.
    pub is_whole: bool,
    /// Directories that were asked about and are not open any more.
    pub closed: u64,
}

/// Which children of a directory are asked about.
#[derive(Debug)]
enum Children {
    None,
    One(OwnedFd),
    Many,
}

impl Directory {
    fn open(path: PathBuf, asked: &Path) -> Result<Self, AskedError> {
        let flags = OFlag::O_PATH | OFlag::O_CLOEXEC | OFlag::O_DIRECTORY;
        let file = openat(AT_FDCWD, &path, flags, Mode::empty()).map_err(failed(asked))?;
        let ground = ground::ground_of(&file).map_err(unplaced(asked))?;
        Ok(Self { path, file, ground, children: Children::None, names: Vec::new() })
    }

    fn asked(&self) -> Asked<'_> {
        let only = match &self.children {
            Children::One(child) => Some(child.as_fd()),
            Children::None | Children::Many => None,
        };
        Asked { directory: self.file.as_fd(), location: self.ground.location.clone(), only }
    }
}

fn failed(path: &Path) -> impl Fn(nix::Error) -> AskedError + Copy {
    move |error| AskedError::Open { path: path.to_path_buf(), source: error.into() }
}

fn unplaced(path: &Path) -> impl Fn(GroundError) -> AskedError + Copy {
    move |source| AskedError::Ground { path: path.to_path_buf(), source }
}

impl Looker {
    /// Looks at a path. The owner and the place belong to the file that was opened, whatever the path leads to later.
    ///
    /// # Errors
    /// When the path does not exist, cannot be reached or cannot be placed.
    pub fn look(&mut self, path: &Path) -> Result<Subject, AskedError> {
        let (above, name) = split(path)?;
        let at = match self.known.iter().position(|known| known.path == above) {
            Some(at) => at,
            None => {
                if self.known.len() == DIRECTORIES {
                    self.known.remove(0);
                    self.apart = true;
                    self.closed += 1;
                }
                self.known.push(Directory::open(above, path)?);
                self.known.len() - 1
            }
        };
        let directory = &mut self.known[at];
        let name = name.as_deref().map(OsStr::as_bytes).unwrap_or_default();
        let subject = |places, owner, known_empty| Subject {
            path: Name(path.as_os_str().as_bytes().to_vec()),
            name: Name(name.to_vec()),
            places,
            owner,
            known_empty,
        };
        if name.is_empty() {
            self.apart = true;
            let stat = fstat(&directory.file).map_err(failed(path))?;
            return Ok(subject(vec![directory.ground.location.clone()], stat.st_uid, false));
        }
        let flags = OFlag::O_PATH | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
        let file = openat(&directory.file, name, flags, Mode::empty()).map_err(failed(path))?;
        let stat = fstat(&file).map_err(failed(path))?;
        let kind = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT;
        let mut places = vec![directory.ground.location.join(name)];
        // Where something is mounted on the path, the file that was opened is on top of the place that its parent gives.
        if mount_of(&file).map_err(failed(path))? != directory.ground.mount {
            self.apart = true;
            places.push(ground::ground_of(&file).map_err(unplaced(path))?.location);
        }
        let known_empty = kind != SFlag::S_IFDIR || is_empty(&file);
        // A name from a path holds no zero byte.
        directory.names.extend(CString::new(name));
        directory.children = match directory.children {
            Children::None => Children::One(file),
            Children::One(_) | Children::Many => Children::Many,
        };
        Ok(subject(places, stat.st_uid, known_empty))
    }

    /// The paths so far, to ask evidence about.
    #[must_use]
    pub fn question(&self) -> Question<'_> {
        let directories = self.known.iter().map(|directory| (directory.asked(), &*directory.names)).collect();
        Question { directories, is_whole: !self.apart, closed: self.closed }
    }
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

/// A path from bytes.
#[must_use]
pub fn path_of(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(bytes))
}
