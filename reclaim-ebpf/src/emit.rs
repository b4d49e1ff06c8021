//! Sending one record, or counting that it was lost.

use aya_ebpf::helpers::bpf_ktime_get_ns;
use reclaim_ebpf::abi::{COUNTER_LOST, COUNTER_SEQUENCE, COUNTER_UNREADABLE, Event};

use crate::maps::{EVENTS, advance};

/// Sends a record. It is numbered before room is asked for, so that a record without room leaves a hole.
#[inline(always)]
pub(crate) fn emit(hook: u32, result: i64, namespace: Option<u32>, process: u32, thread: u32) {
    if namespace.is_none() {
        advance(COUNTER_UNREADABLE);
    }
    let event = Event {
        sequence: advance(COUNTER_SEQUENCE) + 1,
        // SAFETY: takes no pointer; the call cannot fail.
        time_ns: unsafe { bpf_ktime_get_ns() },
        result,
        namespace: namespace.unwrap_or(0),
        hook,
        process,
        thread,
    };
    if EVENTS.output::<Event>(&event, 0).is_err() {
        advance(COUNTER_LOST);
    }
}
