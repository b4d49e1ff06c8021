//! Reaching tracefs, which numbers the tracepoints, where the host has not mounted it.

use std::io;
use std::path::Path;
use std::thread;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

/// Where tracefs belongs, and where it was of old. The loader looks at these two.
const PLACES: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// Where tracefs is mounted; none where it is not.
pub(in crate::evidence) fn mounted() -> Option<&'static Path> {
    PLACES.into_iter().map(Path::new).find(|place| place.join("events").is_dir())
}

/// Runs some work where tracefs is mounted: in this thread, or else in a thread with a mount namespace of its own that
/// mounts it there. Nothing of that outlives the call, and nobody else sees it.
///
/// # Errors
/// tracefs cannot be mounted.
pub(in crate::evidence) fn with_tracefs<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    if mounted().is_some() {
        return Ok(work());
    }
    let private = || {
        // CLONE_FS is implied; without it the kernel refuses a thread that shares its root with others.
        unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS)?;
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SLAVE, None::<&str>)?;
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        mount(Some("tracefs"), PLACES[0], Some("tracefs"), flags, None::<&str>)?;
        Ok(work())
    };
    thread::scope(|scope| match scope.spawn(private).join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}
