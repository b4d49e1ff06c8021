//! The mount clock: which mount-class calls are inside the kernel.

use aya_ebpf::helpers::{bpf_get_current_pid_tgid, bpf_ktime_get_ns};
use reclaim_ebpf::abi::{
    COUNTER_ENTERED, COUNTER_GENERATION, COUNTER_GENERATION_ENTERED, COUNTER_GENERATION_LEFT, COUNTER_HOOK_ENTERED,
    COUNTER_HOOK_LEFT, COUNTER_LEFT, COUNTER_MISSED, COUNTER_OUTSIDE, COUNTER_UNTRACKED, EVERYBODY, GENERATIONS,
    HOOK_SLOTS, InFlight,
};

use crate::{
    kernel,
    maps::{IN_FLIGHT, advance, read},
};

/// Counts a call in. Both counters are raised before the kernel looks up any path for the call: whoever renames a
/// directory and then reads them either sees the call, or knows that it will find the directory renamed.
#[inline(always)]
pub(crate) fn enter(hook: u32) {
    let ids = bpf_get_current_pid_tgid();
    let thread = ids as u32;
    // A call whose return was never seen. A thread is in one call at a time.
    leave_unseen(thread);
    advance(COUNTER_HOOK_ENTERED + (hook & (HOOK_SLOTS - 1)));

    let generation = (read(COUNTER_GENERATION) as u32) & (GENERATIONS - 1);
    advance(COUNTER_GENERATION_ENTERED + generation);
    let call = InFlight {
        number: advance(COUNTER_ENTERED) + 1,
        // SAFETY: takes no pointer; the call cannot fail.
        time_ns: unsafe { bpf_ktime_get_ns() },
        process: (ids >> 32) as u32,
        hook,
        generation,
        namespace: kernel::current().and_then(|task| task.namespace()).map_or(0, |namespace| namespace.inode),
    };
    if IN_FLIGHT.insert(thread, call, 0).is_err() {
        advance(COUNTER_UNTRACKED);
        count_left(generation);
    }
}

/// Whether it is certain, at little cost, that the calling thread returns from no call that was counted in or that somebody
/// has to hear of. When it is not, nothing is known.
///
/// A call of this thread's that counts has raised the number of those that entered, and raises that of those that left
/// later than this. So if the latter, read first, is as large as the former, there is none: whatever others do meanwhile
/// raises the former first. That holds for threads which have entered since the programs see calls enter, and as long as
/// each was tracked.
#[inline(always)]
pub(crate) fn is_certainly_outside() -> bool {
    let outside = read(COUNTER_OUTSIDE);
    if outside == 0 || (outside != EVERYBODY && outside != bpf_get_current_pid_tgid() >> 32) {
        return false;
    }
    let left = read(COUNTER_LEFT);
    // Through the address, so that every processor reads it second.
    let Some(zero) = kernel::unknown_zero() else { return false };
    let entered = read(COUNTER_ENTERED + (left & zero) as u32);
    left == entered && read(COUNTER_UNTRACKED) == 0
}

/// The call that this thread is in, if the clock counted it in.
#[inline(always)]
pub(crate) fn call_of(thread: u32) -> Option<InFlight> {
    // SAFETY: only the thread itself adds or removes its own entry, so the element stays its own while it is copied.
    unsafe { IN_FLIGHT.get(thread) }.copied()
}

/// Counts the thread's call out, if it was counted in. Comes after the call's record was sent, so that whoever sees
/// the call gone finds the record numbered.
#[inline(always)]
pub(crate) fn leave(thread: u32) {
    if let Some(call) = call_of(thread) {
        advance(COUNTER_HOOK_LEFT + (call.hook & (HOOK_SLOTS - 1)));
        forget(thread, &call);
    }
}

/// Counts out a call of the thread's that has returned without a program seeing it. Its record was never sent.
#[inline(always)]
pub(crate) fn leave_unseen(thread: u32) {
    if let Some(call) = call_of(thread) {
        advance(COUNTER_MISSED);
        forget(thread, &call);
    }
}

#[inline(always)]
fn forget(thread: u32, call: &InFlight) {
    // Cannot fail: the entry is there, and only this thread removes it.
    let _ = IN_FLIGHT.remove(thread);
    count_left(call.generation);
}

#[inline(always)]
fn count_left(generation: u32) {
    advance(COUNTER_GENERATION_LEFT + (generation & (GENERATIONS - 1)));
    advance(COUNTER_LEFT);
}
