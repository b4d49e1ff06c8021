//! Leases on sources: locked first, and then looked at once more.

use super::error::HoldError;
use crate::model::fence::FileKind;
use crate::removal::crash;
use crate::sys::directory::lock_shared;
use crate::sys::file_status::{Identity, status_of};
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

/// Longest wait for somebody who has the lock alone: a pass, between condemning and removing.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(5);

/// Shares the lock on a source. It is held until the last descriptor of what is returned is closed, and whoever holds it
/// then finds the source under its path.
///
/// # Errors
/// When there is none, or it is removed while its lock is waited for.
pub fn lease(path: &Path) -> Result<OwnedFd, HoldError> {
    let fault = |call| move |source| HoldError::Source { path: path.into(), call, source };
    let begun = Instant::now();
    loop {
        let opened = open_source(path).map_err(fault("open"))?;
        let file = status_of(&opened).map_err(fault("statx"))?;
        if !matches!(file.status.kind, FileKind::Directory | FileKind::File) {
            let why = "it is neither a directory nor a regular file";
            return Err(HoldError::Lost { path: path.into(), why });
        }
        crash::step("lease-opened");
        match lock_shared(&opened) {
            Ok(()) => {
                let now = open_source(path).and_then(identity);
                match (file.identity, now) {
                    (locked, Ok(now)) if locked == now => return Ok(opened),
                    // Another one has its name by now: that is the one to lease.
                    (_, Ok(_)) => {}
                    (_, Err(error)) => return Err(fault("open")(error)),
                }
            }
            Err(Errno::EWOULDBLOCK) => std::thread::sleep(PAUSE),
            Err(error) => return Err(fault("flock")(error)),
        }
        if begun.elapsed() > PATIENCE {
            let why = "somebody has its lock alone and does not let go; see `reclaim who` and /proc/locks";
            return Err(HoldError::Lost { path: path.into(), why });
        }
    }
}

fn open_source(path: &Path) -> Result<OwnedFd, Errno> {
    open(path, OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC, Mode::empty())
}

fn identity(file: impl std::os::fd::AsFd) -> Result<Identity, Errno> {
    status_of(file).map(|file| file.identity)
}
