//! A process that stays behind when this one becomes another program.
#![expect(unsafe_code, reason = "fork, and closing descriptors by number, have no safe wrapper")]

use nix::errno::Errno;
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, dup2_stderr, dup2_stdin, dup2_stdout, fork, setsid};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};

/// Which of the two processes this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The one that was there.
    Origin,
    /// The one that stays behind: in a session of its own, and nobody's child that its parent could wait for.
    Left,
}

/// Splits this process in two. The one that stays behind keeps these descriptors and no others: none of its caller's
/// pipes stays open for it, its standard streams lead nowhere, and only SIGKILL ends it.
///
/// Invariant for callers: in [`Side::Left`], no value that owns another descriptor is left.
///
/// # Errors
/// When this process has more than one thread, for the others would be missing in the one that stays; when the system has no
/// room for another process.
pub fn detach(keep: &[BorrowedFd<'_>]) -> io::Result<Side> {
    if fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("the process has more than one thread"));
    }
    // SAFETY: there is one thread, so no lock is held by one that will be missing.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => match waitpid(child, None)? {
            WaitStatus::Exited(_, 0) => Ok(Side::Origin),
            _ => Err(io::Error::other("no second process could be started")),
        },
        ForkResult::Child => {
            let _own_session = setsid();
            // A second time, so that it is no child of the program that this process becomes.
            // SAFETY: as above.
            let code = match unsafe { fork() } {
                Ok(ForkResult::Child) => {
                    outlive();
                    close_all_but(keep)?;
                    return Ok(Side::Left);
                }
                Ok(ForkResult::Parent { .. }) => 0,
                Err(_) => 1,
            };
            // SAFETY: it ends this process at once, and runs nothing of the other one's.
            unsafe { libc::_exit(code) }
        }
    }
}

/// Whoever ends what it was started with does not mean this process, which has to outlive that.
fn outlive() {
    for heeded in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGHUP] {
        // SAFETY: no handler runs.
        let _kept = unsafe { signal(heeded, SigHandler::SigIgn) };
    }
}

/// Closes every descriptor but these, and leads the standard streams nowhere.
fn close_all_but(keep: &[BorrowedFd<'_>]) -> io::Result<()> {
    let keep: BTreeSet<RawFd> = keep.iter().map(|descriptor| descriptor.as_raw_fd()).collect();
    let listed: Vec<RawFd> =
        fs::read_dir("/proc/self/fd")?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    for descriptor in listed.into_iter().filter(|descriptor| *descriptor > 2 && !keep.contains(descriptor)) {
        // The one that listed them is closed already.
        // SAFETY: takes no pointer; that nobody owns the descriptor any more is the invariant of `detach`.
        unsafe { libc::close(descriptor) };
    }
    let nowhere = File::options().read(true).write(true).open("/dev/null")?;
    dup2_stdin(&nowhere)?;
    dup2_stdout(&nowhere)?;
    dup2_stderr(&nowhere)?;
    Ok(())
}

/// A descriptor that can be waited on for the end of a process (Linux 5.3).
///
/// # Errors
/// The error of `pidfd_open`.
pub fn watch_process(process: Pid) -> Result<OwnedFd, Errno> {
    // SAFETY: takes no pointer.
    let result = unsafe { libc::syscall(libc::SYS_pidfd_open, process.as_raw(), 0) };
    let descriptor = RawFd::try_from(Errno::result(result)?).map_err(|_| Errno::EBADF)?;
    // SAFETY: the kernel has just made it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}
