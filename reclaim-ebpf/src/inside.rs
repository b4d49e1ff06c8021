//! Which threads are inside mount-class calls.
//!
//! A thread that enters a system call leaves the call's number and arguments at the foot of its kernel stack, and they stay
//! there as long as it is inside. So whoever is seen with another number, or with none, has left every call from before,
//! whether it runs or sleeps; and a look from the kernel's side takes no rights over the thread.
//! <arch/x86/entry/entry_64.S>

use core::ffi::c_void;

use aya_ebpf::{
    bindings::task_struct,
    helpers::{bpf_get_current_task, generated},
    macros::map,
    maps::Array,
};
use reclaim_ebpf::inside_abi::{
    INSIDE_ARGUMENTS, INSIDE_LAYOUT_WORDS, INSIDE_RECORDS, INSIDE_WORDS, InsideLayout, InsideRecord, InsideState,
};

use crate::kernel::read;

// Both are filled in by the loader; the values here only keep them in .rodata.
#[unsafe(no_mangle)]
static INSIDE_LAYOUT: [u32; INSIDE_LAYOUT_WORDS] = [0; INSIDE_LAYOUT_WORDS];
#[unsafe(no_mangle)]
static INSIDE_BITS: [u64; INSIDE_WORDS] = [0; INSIDE_WORDS];

#[map]
static INSIDE_STATE: Array<InsideState> = Array::with_max_entries(1, 0);
#[map]
static INSIDE_OUTPUT: Array<InsideRecord> = Array::with_max_entries(INSIDE_RECORDS, 0);

/// `PF_KTHREAD` and `PF_IO_WORKER`, threads that make no system call. <include/linux/sched.h>
const MAKES_NO_CALLS: u32 = 0x0020_0000 | 0x10;

/// An offset of [`INSIDE_LAYOUT`], in words from its start. Volatile, since the loader changes what the compiler takes for a
/// constant.
#[inline(always)]
fn word(index: usize) -> usize {
    let place = (&raw const INSIDE_LAYOUT).cast::<u32>().wrapping_add(index);
    // SAFETY: inside the static, since callers pass the places of members of the structure that it has the words of.
    unsafe { core::ptr::read_volatile(place) as usize }
}

macro_rules! offset {
    ($member:ident) => {
        word(core::mem::offset_of!(InsideLayout, $member) / 4)
    };
}

/// Looks at one thread. `struct bpf_iter__task { meta; task }`, and no task at the end.
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/task")]
extern "C" fn inside_task(context: *const c_void) -> i32 {
    // SAFETY: the value of a map that lives as long as the program; one reader drives an iterator.
    let Some(state) = INSIDE_STATE.get_ptr_mut(0).map(|state| unsafe { &mut *state }) else { return 0 };
    // SAFETY: the second word of the context, which the verifier knows as a task or null.
    let task = unsafe { *context.cast::<*mut task_struct>().wrapping_add(1) };
    if task.is_null() {
        state.ended += 1;
        return 0;
    }
    // SAFETY: a task that the iterator holds.
    let registers = unsafe { generated::bpf_task_pt_regs(task) } as usize;
    // The same as a number: what is behind it is read at offsets that the verifier cannot know.
    let task: usize = read(context as usize + size_of::<usize>()).unwrap_or(0);
    if look(state, task, registers).is_none() {
        state.broken += 1;
    }
    0
}

/// None when something cannot be read.
#[inline(always)]
fn look(state: &mut InsideState, task: usize, registers: usize) -> Option<()> {
    let flags: u32 = read(task + offset!(task_flags))?;
    let exit: u32 = read(task + offset!(task_exit))?;
    if flags & MAKES_NO_CALLS != 0 || exit != 0 {
        return Some(());
    }
    // 32 bits on every architecture: x86-64 keeps a long, aarch64 an int, both little-endian.
    let number: u32 = read(registers + offset!(regs_number))?;
    // SAFETY: takes no pointer; the call cannot fail.
    if task == unsafe { bpf_get_current_task() } as usize {
        let first: u64 = read(registers + offset!(regs_arguments))?;
        (state.own_number, state.own_first) = (number, first as u32);
    }
    if !is_looked_for(number) {
        return Some(());
    }
    let Some(record) = INSIDE_OUTPUT.get_ptr_mut(state.records) else {
        state.unwritten += 1;
        return Some(());
    };
    // SAFETY: the value of a map that lives as long as the program, and that nobody else writes.
    let record = unsafe { &mut *record };
    record.process = read(task + offset!(task_tgid))?;
    record.thread = read(task + offset!(task_pid))?;
    record.number = number.into();
    record.stack = read(registers + offset!(regs_stack))?;
    let mut index = 0;
    while index < INSIDE_ARGUMENTS {
        let at = word(core::mem::offset_of!(InsideLayout, regs_arguments) / 4 + index);
        record.arguments[index] = read(registers + at)?;
        index += 1;
    }
    let status: u32 = read(task + offset!(task_status))?;
    record.is_32 = u64::from(status & offset!(status_32) as u32);
    if record.is_32 != 0 {
        let first: u64 = read(registers + offset!(regs_first_32))?;
        record.arguments[0] = first & u64::from(u32::MAX);
    }
    state.records += 1;
    Some(())
}

#[inline(always)]
fn is_looked_for(number: u32) -> bool {
    if number >= INSIDE_WORDS as u32 * 64 {
        return false;
    }
    let place = (&raw const INSIDE_BITS).cast::<u64>().wrapping_add((number / 64) as usize & (INSIDE_WORDS - 1));
    // SAFETY: inside the static, by the check above.
    let bits = unsafe { core::ptr::read_volatile(place) };
    bits >> (number & 63) & 1 != 0
}
