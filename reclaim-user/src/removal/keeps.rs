//! The file of keeps in the state directory, and the entry that a keep is about.

use super::state_file;
use crate::model::fence::Timestamp;
use crate::model::keep::{Full, Keep, Keeps, Kept, KeptIn, MOST_OF_ONE};
use crate::sys::directory;
use crate::sys::file_status::{FileStatus, status_at, status_of};
use nix::errno::Errno;
use std::collections::BTreeSet;
use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use thiserror::Error;

/// Name of the file.
const FILE: &str = "keeps.json";

/// Why a keep could not be made, ended or listed.
#[derive(Debug, Error)]
pub enum KeepError {
    /// The path is no entry of a root.
    #[error("{} is not a direct child of a configured root; keeps are for entries", path.display())]
    NoEntry {
        /// The path.
        path: PathBuf,
    },
    /// The entry cannot be looked at.
    #[error("cannot look at {}: {source}", path.display())]
    Look {
        /// The path.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: Errno,
    },
    /// The entry belongs to somebody else.
    #[error("{} is not yours; only its owner and root decide what is kept", path.display())]
    Stranger {
        /// The path.
        path: PathBuf,
    },
    /// It went while it was being kept.
    #[error("{} was taken away meanwhile; look whether it is back, and keep it again", path.display())]
    Gone {
        /// The path.
        path: PathBuf,
    },
    /// The file of keeps cannot be read, so nothing is added to it.
    #[error("the keeps in {} cannot be used: {why}; mend the file, or move it away to start without any", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// Why.
        why: String,
    },
    /// The file of keeps cannot be written.
    #[error("cannot write {}: {source}; check service.state_dir", file.display())]
    Unwritable {
        /// The file.
        file: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// There are too many.
    #[error("{0}; end some with `reclaim unkeep`")]
    Full(String),
}

/// Stores that this process has seen to hold keeps.
static FULL: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// The keeps of a state directory.
#[derive(Clone, Debug, Default)]
pub struct KeepStore {
    file: PathBuf,
}

impl KeepStore {
    /// That of a state directory. Nothing is made or read yet.
    #[must_use]
    pub fn of(state_dir: &Path) -> Self {
        Self { file: state_dir.join(FILE) }
    }

    /// All keeps that are not over.
    ///
    /// # Errors
    /// [`KeepError::Unreadable`].
    pub fn read(&self, now: Timestamp) -> Result<Keeps, KeepError> {
        let mut keeps = self.read_all()?;
        keeps.prune(now);
        Ok(keeps)
    }

    fn read_all(&self) -> Result<Keeps, KeepError> {
        let unreadable = |why: String| KeepError::Unreadable { file: self.file.clone(), why };
        match state_file::read(&self.file) {
            Ok(None) if self.is_lost() => Err(unreadable("it was there and is not any more".to_owned())),
            Ok(None) => Ok(Keeps::default()),
            Ok(Some(text)) => {
                let keeps = Keeps::read(&text).map_err(unreadable)?;
                self.note(keeps.iter().next().is_some());
                Ok(keeps)
            }
            Err(error) => Err(unreadable(error.to_string())),
        }
    }

    /// Notes whether something is kept here.
    fn note(&self, keeps: bool) {
        let mut known = FULL.lock().unwrap_or_else(PoisonError::into_inner);
        if keeps {
            known.insert(self.file.clone());
        } else {
            known.remove(&self.file);
        }
    }

    /// Whether a store that is not there is one that was lost: this process has seen it, or its directory is a link to
    /// nowhere, as where a file system is not mounted.
    fn is_lost(&self) -> bool {
        let directory = self.file.parent().unwrap_or(&self.file);
        let leads_nowhere = || directory.is_symlink() && !directory.exists();
        FULL.lock().unwrap_or_else(PoisonError::into_inner).contains(&self.file) || leads_nowhere()
    }

    /// What is kept in one root, for a pass. Where that cannot be read, everything is.
    #[must_use]
    pub fn of_root(&self, root: &Path) -> KeptIn {
        self.read_all().map_or_else(|error| KeptIn::Unknown(error.to_string()), |keeps| keeps.of_root(root))
    }

    /// Takes off what is over, where there is something.
    ///
    /// # Errors
    /// As [`KeepStore::read`], and when the file cannot be written.
    pub fn prune(&self, now: Timestamp) -> Result<(), KeepError> {
        if !self.read_all()?.prune(now) {
            return Ok(());
        }
        self.change(now, |_| Ok(()))
    }

    /// Keeps an entry until a time, in the place of what was said of it before. `by_root`: it is root who asks.
    ///
    /// # Errors
    /// When the caller may not, or it cannot be written. [`KeepError::Gone`] when a pass has just condemned the entry, or
    /// somebody moved it: then it is not said that it will be there.
    pub fn keep(&self, entry: &Entry, until: i64, by_root: bool, now: Timestamp) -> Result<Keep, KeepError> {
        let keep = Keep { root: entry.root.clone(), entry: entry.kept.clone(), owner: entry.owner, until };
        self.change(now, |keeps| {
            keeps.add(keep.clone(), by_root).map_err(|full| {
                KeepError::Full(match full {
                    Full::Owner => format!("user {} has {MOST_OF_ONE} keeps already", keep.owner),
                    Full::All => "there are too many keeps already".to_owned(),
                })
            })
        })?;
        // A pass that reads the keeps before it removes anything sees this one if it condemned the entry before this look.
        match entry.is_there() {
            true => Ok(keep),
            false => Err(KeepError::Gone { path: entry.path.clone() }),
        }
    }

    /// Ends the keep of an entry. Whether there was one.
    ///
    /// # Errors
    /// When the file cannot be read or written.
    pub fn unkeep(&self, entry: &Entry, now: Timestamp) -> Result<bool, KeepError> {
        self.change(now, |keeps| Ok(keeps.remove(&entry.root, &entry.kept)))
    }

    /// Ends every keep of a name whose entry is not there any more. Whether there was one.
    ///
    /// # Errors
    /// As [`KeepStore::unkeep`].
    pub fn unkeep_name(&self, root: &Path, name: &[u8], now: Timestamp) -> Result<bool, KeepError> {
        self.change(now, |keeps| Ok(keeps.remove_name(root.as_os_str().as_bytes(), name)))
    }

    fn change<T>(
        &self,
        now: Timestamp,
        change: impl FnOnce(&mut Keeps) -> Result<T, KeepError>,
    ) -> Result<T, KeepError> {
        let unwritable = |source| KeepError::Unwritable { file: self.file.clone(), source };
        let _lock = state_file::lock(&self.file).map_err(unwritable)?;
        let before = self.read_all()?;
        let mut keeps = before.clone();
        keeps.prune(now);
        let result = change(&mut keeps)?;
        if keeps != before {
            state_file::replace(&self.file, &keeps.write()).map_err(unwritable)?;
            self.note(keeps.iter().next().is_some());
        }
        Ok(result)
    }
}

/// An entry of a root that somebody wants to keep.
#[derive(Debug)]
pub struct Entry {
    path: PathBuf,
    root: Vec<u8>,
    kept: Kept,
    owner: u32,
    place: std::os::fd::OwnedFd,
}

impl Entry {
    /// Opens the entry at a path and looks at what was opened, so that nobody can put another one in its place. `uid`: who
    /// asks.
    ///
    /// # Errors
    /// When the path is no entry of a root, or is not theirs.
    pub fn open<'r>(path: &Path, roots: impl Iterator<Item = &'r Path>, uid: u32) -> Result<Self, KeepError> {
        let look = |source| KeepError::Look { path: path.into(), source };
        let (root, name) = place(path, roots)?;
        let directory = directory::open_path(root).map_err(look)?;
        let opened = directory::open_handle(&directory, &name).map_err(look)?;
        let FileStatus { identity, status, .. } = status_of(&opened).map_err(look)?;
        if uid != 0 && uid != status.owner {
            return Err(KeepError::Stranger { path: path.into() });
        }
        Ok(Self {
            path: path.into(),
            root: root.as_os_str().as_bytes().to_vec(),
            kept: Kept { name: name.into_bytes(), inode: identity.inode, birth: status.birth },
            owner: status.owner,
            place: directory,
        })
    }

    fn is_there(&self) -> bool {
        let Ok(name) = CString::new(self.kept.name.clone()) else { return false };
        status_at(&self.place, &name)
            .is_ok_and(|file| (file.identity.inode, file.status.birth) == (self.kept.inode, self.kept.birth))
    }
}

/// The root and the name that a path tells.
///
/// # Errors
/// [`KeepError::NoEntry`].
pub fn place<'r>(path: &Path, mut roots: impl Iterator<Item = &'r Path>) -> Result<(&'r Path, CString), KeepError> {
    let none = || KeepError::NoEntry { path: path.into() };
    let name = path.file_name().map(|name| CString::new(name.as_bytes()));
    let above = path.parent().and_then(|above| roots.find(|root| *root == above));
    match (above, name) {
        (Some(root), Some(Ok(name))) if name.as_c_str() != super::lock::STORE => Ok((root, name)),
        _ => Err(none()),
    }
}
