//! A process that stays behind when this one becomes another program.
#![expect(unsafe_code, reason = "fork, and closing descriptors by number, have no safe wrapper")]

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, dup2_stderr, dup2_stdin, dup2_stdout, fork, pipe2, setsid, write};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};

/// What the process that stays behind says once it has all that it needs.
const READY: &[u8] = b"r";

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
/// room for another process, or that one cannot stay. There is none then.
pub fn detach(keep: &[BorrowedFd<'_>]) -> io::Result<Side> {
    if fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("the process has more than one thread"));
    }
    let (read, written) = pipe2(OFlag::O_CLOEXEC)?;
    // SAFETY: there is one thread, so no lock is held by one that will be missing.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => {
            drop(written);
            let (ended, mut ready) = (waitpid(child, None)?, Vec::new());
            File::from(read).read_to_end(&mut ready)?;
            match (ended, &*ready) {
                (WaitStatus::Exited(_, 0), READY) => Ok(Side::Origin),
                (WaitStatus::Exited(_, 0), _) => Err(io::Error::other(
                    "the process that was to stay behind could not: it needs /dev/null and a free descriptor",
                )),
                _ => Err(io::Error::other("no second process could be started")),
            }
        }
        ForkResult::Child => {
            let _own_session = setsid();
            // A second time, so that it is no child of the program that this process becomes.
            // SAFETY: as above.
            let code = match unsafe { fork() } {
                Ok(ForkResult::Child) => {
                    outlive();
                    let keep = keep.iter().copied().chain([written.as_fd()]);
                    // It is closed by then.
                    std::mem::forget(read);
                    let is_ready = close_all_but(keep).is_ok() && write(&written, READY) == Ok(READY.len());
                    if is_ready {
                        return Ok(Side::Left);
                    }
                    // The other one tells of it: there is one caller, and this is not the process that it started.
                    1
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
    // Up to _NSIG; what cannot be ignored is refused. Children are still waited for, and a fault of its own ends it.
    for number in (1..=64).filter(|number| *number != libc::SIGCHLD) {
        // SAFETY: no handler runs.
        let _before = unsafe { libc::signal(number, libc::SIG_IGN) };
    }
}

/// Closes every descriptor but these, and leads the standard streams nowhere.
fn close_all_but<'f>(keep: impl Iterator<Item = BorrowedFd<'f>>) -> io::Result<()> {
    let keep: BTreeSet<RawFd> = keep.map(|descriptor| descriptor.as_raw_fd()).collect();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_several_threads_is_not_split() {
        let split = std::thread::spawn(|| match detach(&[]) {
            Ok(Side::Left) => {
                // SAFETY: it ends this process at once, which runs no test.
                unsafe { libc::_exit(0) }
            }
            result => result.is_ok(),
        });
        assert!(!split.join().unwrap(), "what other threads hold would be held for ever");
    }
}
