//! What a test says to a helper process, one JSON object a line each way. Paths are bytes.

use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// A path on the wire.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PathBytes(Vec<u8>);

impl PathBytes {
    /// The path.
    #[must_use]
    pub fn as_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.0))
    }
}

impl<P: AsRef<Path>> From<P> for PathBytes {
    fn from(path: P) -> Self {
        Self(path.as_ref().as_os_str().as_bytes().to_vec())
    }
}

/// Something that a helper process does on request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Request {
    /// Enter a mount namespace of its own that is private (`MS_PRIVATE`) throughout.
    Unshare,
    /// Enter a mount namespace of its own and leave propagation as it is.
    UnshareSharing,
    /// Enter the mount namespace of another process.
    Join(i32),
    /// Enter the mount namespace that a file stands for.
    JoinFile(PathBytes),
    /// Bind one path on another.
    Bind(PathBytes, PathBytes),
    /// Make the mount at a path shared.
    MakeShared(PathBytes),
    /// Make the mount at a path a slave of its peers.
    MakeSlave(PathBytes),
    /// Mount a tmpfs.
    Tmpfs(PathBytes),
    /// Mount an overlay with these options.
    Overlay(PathBytes, Vec<u8>),
    /// Unmount a path.
    Unmount(PathBytes),
    /// Change the working directory.
    ChangeDir(PathBytes),
    /// Change the root directory and leave the working directory where it is.
    ChangeRoot(PathBytes),
    /// Make an empty file; fails where the directory has been deleted.
    Touch(PathBytes),
    /// Remove a file.
    Unlink(PathBytes),
    /// Read a file: answers its text.
    Read(PathBytes),
    /// Send one line to a socket: answers the line that comes back.
    AskSocket(PathBytes, String),
    /// Take a copy of the mounts at the first path (`open_tree`) and put it on the second (`move_mount`).
    BindTree(PathBytes, PathBytes),
    /// Keep a copy of the mount at a path (`open_tree`) that is mounted nowhere: answers its descriptor's number.
    HoldTree(PathBytes),
    /// Unmount a path at once, whoever is in it still (`MNT_DETACH`).
    UnmountLazily(PathBytes),
    /// Keep an open descriptor of a path: answers its number.
    Hold(PathBytes),
    /// Take an exclusive lock on a path and keep it.
    Lock(PathBytes),
    /// Close every descriptor and every lock that is kept.
    Release,
    /// Become the user and group with this number, without further groups.
    BecomeUser(u32),
    /// Start a process that goes on serving in this one's place and namespace, and exit: answers its pid.
    HandOver,
    /// A thread enters a namespace of its own, binds the first path on the second and goes on serving; the leader exits
    /// alone and stays as a zombie. Answers the thread's id.
    LeaderDies(PathBytes, PathBytes),
    /// Start so many children that exit at once and are never waited for.
    Zombies(usize),
    /// End every zombie.
    Reap,
}

/// The answer to a request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// It was done; the text depends on the request.
    Done(String),
    /// It failed: the call and the error.
    Failed(String),
}
