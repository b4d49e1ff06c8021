//! Trying the probes on calls whose outcome is known, before anything is believed of them.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::thread;
use std::time::{Duration, Instant};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use super::ProbeError;
use crate::evidence::clock::Clock;
use crate::evidence::ring::{Drained, Ring};
use crate::model::event::{Event, Hook};

/// How long the last thing that happens, the exit of the thread, may take to be reported after the thread was joined:
/// joining returns a little before the kernel is done with the thread.
const EXIT_WITHIN: Duration = Duration::from_secs(2);

/// What has to be reported, in the namespace that was made for it.
const EXPECTED: [Hook; 3] = [Hook::Unshare, Hook::Mount, Hook::Exit];

/// How often it is tried again when records were lost meanwhile, those looked for perhaps among them.
const TRIES: u32 = 5;

/// Lets a thread make a mount namespace, change a mount in it and exit, and requires the events and the clock to show
/// it. What came meanwhile from others is kept for the first drain.
///
/// # Errors
/// The calls cannot be made, or the probes do not report them.
pub(super) fn check(ring: &mut Ring, clock: &Clock) -> Result<(), ProbeError> {
    let mut events = Vec::new();
    let mut counts = Drained::default();
    let mut outcome = Ok(());
    for _ in 0..TRIES {
        let lost = counts.lost;
        outcome = try_once(ring, clock, &mut events, &mut counts);
        if outcome.is_ok() || counts.lost == lost {
            break;
        }
    }
    counts.events = events.len();
    ring.put_back(events, counts);
    outcome
}

fn try_once(ring: &mut Ring, clock: &Clock, events: &mut Vec<Event>, counts: &mut Drained) -> Result<(), ProbeError> {
    let (before, first) = (clock.now(), events.len());
    let namespace = thread::scope(|scope| match scope.spawn(make_namespace).join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    })?;
    let started = Instant::now();
    let missing = loop {
        let Drained { events: _, lost, malformed } = ring.drain(events);
        counts.lost += lost;
        counts.malformed += malformed;
        let is_missing = |hook: &Hook| !is_reported(&events[first..], *hook, namespace);
        let missing: Vec<_> = EXPECTED.into_iter().filter(is_missing).map(Hook::name).collect();
        if missing.is_empty() || lost > 0 || started.elapsed() > EXIT_WITHIN {
            break missing;
        }
        thread::sleep(Duration::from_millis(1));
    };
    if !missing.is_empty() {
        return Err(ProbeError::KnownAnswer {
            why: format!("no event of {} in namespace {namespace}", missing.join(", ")),
        });
    }
    let after = clock.now();
    if after.entered < before.entered + 2 || after.left < before.left + 2 {
        return Err(ProbeError::KnownAnswer { why: format!("the mount clock went from {before:?} to {after:?}") });
    }
    Ok(())
}

fn is_reported(events: &[Event], hook: Hook, namespace: u32) -> bool {
    events.iter().any(|event| event.hook == hook && event.namespace == Some(namespace))
}

/// Returns the inode number of the namespace made.
fn make_namespace() -> Result<u32, ProbeError> {
    let failed = |call| move |source: io::Error| ProbeError::Try { call, source };
    unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS)
        .map_err(|errno| failed("unshare(CLONE_NEWNS)")(errno.into()))?;
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SLAVE, None::<&str>)
        .map_err(|errno| failed("mount(MS_SLAVE)")(errno.into()))?;
    let namespace = fs::metadata("/proc/thread-self/ns/mnt").map_err(failed("stat(/proc/thread-self/ns/mnt)"))?;
    u32::try_from(namespace.ino()).map_err(|_| ProbeError::KnownAnswer {
        why: format!("a mount namespace has the inode number {}, which is not 32 bits wide", namespace.ino()),
    })
}
