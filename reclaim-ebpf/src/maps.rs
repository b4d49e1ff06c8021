//! The maps, and the counters in one of them.

use core::{arch::asm, ptr};

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
        Some(value) => unsafe { fetch_add_one(value) },
        // Only for an index outside the map, which no caller passes; the verifier wants the branch.
        None => 0,
    }
}

/// The value of a counter.
#[inline(always)]
pub(crate) fn read(counter: u32) -> u64 {
    match COUNTERS.get_ptr_mut(counter) {
        // SAFETY: as in `advance`; an aligned load of eight bytes is one instruction.
        Some(value) => unsafe { ptr::read_volatile(value) },
        None => 0,
    }
}

/// `BPF_ATOMIC | BPF_ADD | BPF_FETCH`, since Linux 5.12. The form that returns the old value is fully ordered on every
/// architecture, the one that does not is relaxed on some. Rust has no `fetch_add` for this target, which it takes to
/// be without compare-and-swap.
///
/// # Safety
/// `value` points to eight bytes on an eight byte boundary that are only changed atomically.
#[inline(always)]
unsafe fn fetch_add_one(value: *mut u64) -> u64 {
    let mut old = 1u64;
    // SAFETY: one instruction on memory that the caller vouches for.
    unsafe {
        asm!("{old} = atomic_fetch_add((u64 *)({value} + 0), {old})", old = inout(reg) old, value = in(reg) value)
    };
    old
}
