//! `.reclaim`: where condemned entries are, and the lock that makes one reclaimer at a time work on a root.

use super::crash;
use super::error::RemovalError;
use super::place::Root;
use crate::model::fence::FileKind;
use crate::sys::directory;
use crate::sys::file_status::{FileStatus, Identity, status_at, status_of};
use nix::errno::Errno;
use nix::fcntl::Flock;
use nix::unistd::geteuid;
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Name of the directory, the one of [`crate::model::pin_set::CONDEMNED_DIRECTORY`].
pub(super) const STORE: &CStr = c".reclaim";

/// `.reclaim`, ours and locked.
#[derive(Debug)]
pub(super) struct Store {
    lock: Flock<OwnedFd>,
    pub(super) identity: Identity,
}

/// Why there is no place to condemn to.
#[derive(Debug)]
pub(super) enum NoStore {
    /// It cannot be made, so nothing can be condemned: read-only, no permission, no room.
    Cannot(Errno),
    /// The pass has to end.
    Error(RemovalError),
}

impl Store {
    /// Opens and locks `.reclaim` where it exists. Whoever has locked the root for want of a store is heeded, unless that is
    /// the caller.
    pub(super) fn open_existing(root: &Root, root_is_ours: bool) -> Result<Option<Self>, RemovalError> {
        // Whoever held the lock before may have removed the directory as its last act, so one more look can be needed.
        for _ in 0..16 {
            let directory = match directory::open_child(&root.directory, STORE) {
                Ok(directory) => directory,
                Err(Errno::ENOENT) => return Ok(None),
                Err(Errno::ELOOP | Errno::ENOTDIR) => return Err(refused(root, "is not a directory")),
                Err(Errno::EXDEV) => return Err(refused(root, "is a mount point")),
                Err(source) => return Err(call(root, "openat2", source)),
            };
            let status = status_of(&directory).map_err(|source| call(root, "statx", source))?;
            trust(root, &status)?;
            crash::step("store-opened");
            let lock = match directory::lock(directory) {
                Ok(lock) => lock,
                Err((_, Errno::EWOULDBLOCK)) => {
                    return Err(RemovalError::Busy { path: root.path.clone(), process: holder(&status) });
                }
                Err((_, source)) => return Err(call(root, "flock", source)),
            };
            if leads_to(root, status.identity) {
                if !root_is_ours {
                    drop(Self::lock_root(root)?);
                }
                return Ok(Some(Self { lock, identity: status.identity }));
            }
        }
        Err(RemovalError::Busy { path: root.path.clone(), process: None })
    }

    /// Opens and locks `.reclaim`, and makes it where it does not exist.
    pub(super) fn open(root: &Root, root_is_ours: bool) -> Result<Self, NoStore> {
        for _ in 0..16 {
            match directory::make(&root.directory, STORE) {
                Ok(()) | Err(Errno::EEXIST) => {}
                Err(error) => return Err(NoStore::Cannot(error)),
            }
            if let Some(store) = Self::open_existing(root, root_is_ours).map_err(NoStore::Error)? {
                return Ok(store);
            }
        }
        Err(NoStore::Error(RemovalError::Busy { path: root.path.clone(), process: None }))
    }

    /// Locks the root itself, for want of a store.
    pub(super) fn lock_root(root: &Root) -> Result<Flock<OwnedFd>, RemovalError> {
        let fault = |call, source| RemovalError::Call { call, path: root.path.clone(), source };
        let directory = directory::open_child(&root.directory, c".").map_err(|source| fault("openat2", source))?;
        directory::lock(directory).map_err(|(_, error)| match error {
            Errno::EWOULDBLOCK => RemovalError::Busy { path: root.path.clone(), process: holder(&root.status) },
            source => fault("flock", source),
        })
    }

    /// The directory.
    pub(super) fn directory(&self) -> BorrowedFd<'_> {
        self.lock.as_fd()
    }

    /// Removes `.reclaim` when it is empty, while the lock is still held.
    pub(super) fn close(self, root: &Root) {
        crash::step("before-close");
        if leads_to(root, self.identity) {
            // Not empty, or a file system that went read-only: it stays, and the next pass finds it.
            let _ = directory::remove_directory(&root.directory, STORE);
        }
    }
}

/// Somebody else's directory under our name could be changed while we work in it, so it is not used.
fn trust(root: &Root, status: &FileStatus) -> Result<(), RemovalError> {
    if status.status.kind != FileKind::Directory {
        return Err(refused(root, "is not a directory"));
    }
    if status.status.owner != geteuid().as_raw() {
        return Err(refused(root, &format!("belongs to user {}", status.status.owner)));
    }
    if status.status.mode & 0o077 != 0 {
        return Err(refused(root, &format!("has mode {:04o}, so others can reach into it", status.status.mode)));
    }
    Ok(())
}

fn leads_to(root: &Root, identity: Identity) -> bool {
    status_at(&root.directory, STORE).is_ok_and(|status| status.identity == identity)
}

fn refused(root: &Root, fault: &str) -> RemovalError {
    RemovalError::Refused {
        path: root.path.join(".reclaim"),
        fault: fault.into(),
        remedy: "reclaim did not make it: look at what is inside, then move it away",
    }
}

fn call(root: &Root, call: &'static str, source: Errno) -> RemovalError {
    RemovalError::Call { call, path: root.path.join(".reclaim"), source }
}

/// Who holds the lock, from `/proc/locks`: `1: FLOCK  ADVISORY  WRITE 1234 00:2a:17 0 EOF`, device in hexadecimal.
fn holder(status: &FileStatus) -> Option<u32> {
    let device = status.identity.device;
    let file = format!("{:02x}:{:02x}:{}", device.major, device.minor, status.identity.inode);
    let table = std::fs::read_to_string("/proc/locks").ok()?;
    table.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let [_, "FLOCK", _, "WRITE", process, at, ..] = *fields.as_slice() else { return None };
        if at == file { process.parse().ok() } else { None }
    })
}
