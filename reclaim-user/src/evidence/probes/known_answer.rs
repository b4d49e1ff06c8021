//! Trying the probes on calls whose outcome is known, before anything is believed of them.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::thread;
use std::time::{Duration, Instant};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use super::ProbeError;
use super::hooks::SYSCALLS;
use crate::evidence::clock::Clock;
use crate::evidence::ring::{Drained, Ring};
use crate::model::event::{Event, Hook};
use crate::sys::refused;

/// How long the last thing that happens, the exit of the thread, may take to be reported after the thread was joined:
/// joining returns a little before the kernel is done with the thread.
const EXIT_WITHIN: Duration = Duration::from_secs(2);

/// What has to be reported, in the namespace that was made for it.
const EXPECTED: [Hook; 3] = [Hook::Unshare, Hook::Mount, Hook::Exit];

/// How often it is tried again when records were lost meanwhile, those looked for perhaps among them.
const TRIES: u32 = 5;

/// Lets a thread make a mount namespace, change a mount in it and exit, and requires the events to show it. Then makes
/// each of the calls listened to in a way that the kernel refuses, and requires the clock to count it in and out. Returns
/// the calls that were not reported, with what was amiss. What came meanwhile from others is kept for the first drain.
///
/// A call whose return was not seen is tried once more before it counts as not reported: the kernel can leave one out while
/// somebody else puts a program on the same function or takes one off, and at boot others do. That is found out later, too
/// ([`crate::evidence::returns`]); a call that was not seen to enter is not, so there is no second try for it.
///
/// # Errors
/// The calls cannot be made, or an exit is not reported.
pub(super) fn check(ring: &mut Ring, clock: &Clock, calls: &[usize]) -> Result<BTreeMap<usize, String>, ProbeError> {
    let mut heard = Heard::default();
    let first = try_all(ring, clock, calls, &mut heard);
    let outcome = match first {
        Ok(untrue) if untrue.is_empty() => Ok(untrue),
        first => try_all(ring, clock, calls, &mut heard).map(|again| both(first.ok(), again)),
    };
    heard.counts.events = heard.events.len();
    ring.put_back(heard.events, heard.counts);
    Ok(outcome?.into_iter().map(|(call, Untrue { why, .. })| (call, why)).collect())
}

/// What two tries come to: what was amiss in both, and what no second try makes good.
fn both(first: Option<BTreeMap<usize, Untrue>>, mut again: BTreeMap<usize, Untrue>) -> BTreeMap<usize, Untrue> {
    if let Some(first) = first {
        again.retain(|call, untrue| !untrue.may_pass || first.contains_key(call));
        again.extend(first.into_iter().filter(|(_, untrue)| !untrue.may_pass));
    }
    again
}

/// What was amiss with a call.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Untrue {
    why: String,
    /// It may have been a return that went missing alone.
    may_pass: bool,
}

/// What came while calls were tried.
#[derive(Default)]
struct Heard {
    events: Vec<Event>,
    counts: Drained,
}

fn try_all(
    ring: &mut Ring,
    clock: &Clock,
    calls: &[usize],
    heard: &mut Heard,
) -> Result<BTreeMap<usize, Untrue>, ProbeError> {
    let mut outcome = Ok(BTreeMap::new());
    for _ in 0..TRIES {
        let lost = heard.counts.lost;
        outcome = try_events(ring, heard);
        if matches!(&outcome, Ok(untrue) if untrue.is_empty()) || heard.counts.lost == lost {
            break;
        }
    }
    let mut untrue = outcome?;
    for &call in calls {
        if let Some(miss) = try_counting(clock, call) {
            let known = untrue.entry(call).or_insert_with(|| miss.clone());
            known.may_pass &= miss.may_pass;
        }
    }
    untrue.retain(|call, _| calls.contains(call));
    Ok(untrue)
}

/// Whether a call that is refused is counted in and out. Others may make the same call meanwhile, and then the programs
/// are seen to work as well.
fn try_counting(clock: &Clock, call: usize) -> Option<Untrue> {
    let call = SYSCALLS[call];
    let before = clock.seen(call.hook);
    if refused::make(call.number).is_none() {
        tracing::debug!(call = call.name, "cannot be tried: something refuses it before the kernel gets to it");
        return None;
    }
    let after = clock.seen(call.hook);
    let (why, may_pass) = match (after.0 > before.0, after.1 > before.1) {
        (true, true) => return None,
        (false, _) => ("a call made to try it was not counted in", false),
        (true, false) => ("a call made to try it was not counted out", true),
    };
    Some(Untrue { why: why.to_owned(), may_pass })
}

fn try_events(ring: &mut Ring, heard: &mut Heard) -> Result<BTreeMap<usize, Untrue>, ProbeError> {
    let Heard { events, counts } = heard;
    let first = events.len();
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
        let missing: Vec<_> = EXPECTED.into_iter().filter(is_missing).collect();
        if missing.is_empty() || lost > 0 || started.elapsed() > EXIT_WITHIN {
            break missing;
        }
        thread::sleep(Duration::from_millis(1));
    };
    let why =
        |hook: Hook| format!("no event of {} in namespace {namespace}, where one was made to try it", hook.name());
    if missing.contains(&Hook::Exit) {
        return Err(ProbeError::KnownAnswer { why: why(Hook::Exit) });
    }
    let call_of = |hook: Hook| SYSCALLS.iter().position(|call| call.hook == hook);
    // A record is sent when the call returns.
    let untrue = |hook| Some((call_of(hook)?, Untrue { why: why(hook), may_pass: true }));
    Ok(missing.into_iter().filter_map(untrue).collect())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_return_that_is_seen_the_second_time_is_forgiven_and_an_enter_is_not() {
        let of = |may_pass| Untrue { why: String::new(), may_pass };
        let tries = |first: &[(usize, bool)], again: &[(usize, bool)]| {
            let map = |all: &[(usize, bool)]| all.iter().map(|(call, may_pass)| (*call, of(*may_pass))).collect();
            both(Some(map(first)), map(again)).into_keys().collect::<Vec<_>>()
        };
        assert_eq!(tries(&[(1, true)], &[]), [0_usize; 0]);
        assert_eq!(tries(&[], &[(1, true)]), [0_usize; 0]);
        assert_eq!(tries(&[(1, true), (2, true)], &[(2, true)]), [2]);
        assert_eq!(tries(&[(1, false)], &[]), [1]);
        assert_eq!(tries(&[], &[(1, false)]), [1]);
        assert_eq!(both(None, BTreeMap::from([(3, of(true))])).len(), 1, "nothing is known of the first");
    }
}
