//! The maps, and the counters in one of them.

use core::sync::atomic::{AtomicU64, Ordering};

use aya_ebpf::{
    macros::map,
    maps::{Array, HashMap, RingBuf},
};
use reclaim_ebpf::abi::{COUNTER_SLOTS, EVENTS_BYTES, IN_FLIGHT_SLOTS, InFlight};

/// `BPF_F_MMAPABLE`: userspace reads the counters without a system call. Since Linux 5.5.
const MMAPABLE: u32 = 1 << 10;

#[map]
pub(crate) static EVENTS: RingBuf = RingBuf::with_byte_size(EVENTS_BYTES, 0);

#[map]
static COUNTERS: Array<u64> = Array::with_max_entries(COUNTER_SLOTS, MMAPABLE);

#[map]
pub(crate) static IN_FLIGHT: HashMap<u32, InFlight> = HashMap::with_max_entries(IN_FLIGHT_SLOTS, 0);

/// Adds one to a counter and returns what it was before. A full memory barrier.
#[inline(always)]
pub(crate) fn advance(counter: u32) -> u64 {
    match COUNTERS.get_ptr_mut(counter) {
        // SAFETY: the map is never freed while a program runs, its values are eight bytes on an eight byte boundary,
        // and everyone changes them atomically.
        Some(value) => unsafe { AtomicU64::from_ptr(value) }.fetch_add(1, Ordering::SeqCst),
        // Only for an index outside the map, which no caller passes; the verifier wants the branch.
        None => 0,
    }
}

/// The value of a counter.
#[inline(always)]
pub(crate) fn read(counter: u32) -> u64 {
    match COUNTERS.get_ptr_mut(counter) {
        // SAFETY: as in `advance`.
        Some(value) => unsafe { AtomicU64::from_ptr(value) }.load(Ordering::Relaxed),
        None => 0,
    }
}
