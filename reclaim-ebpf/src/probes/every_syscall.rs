//! The rung for hosts where the tracepoint of a single system call cannot be had (no tracefs): programs that see every
//! system call and pick out theirs by number. Dearer for unrelated calls; a 32-bit caller's numbers mean other calls,
//! so such a caller may be taken for another and is not seen itself.

use aya_ebpf::{macros::raw_tracepoint, programs::RawTracePointContext};
use reclaim_ebpf::abi::{
    HOOK_CLONE3, HOOK_MOUNT_SETATTR, HOOK_OPEN_TREE, HOOK_PIVOT_ROOT, HOOK_SETNS, SYSCALL_OPEN_TREE_ATTR,
};

use super::{entered, returned};
use crate::clock;
use crate::kernel::{is_listened_to, regs_first, regs_number, syscall_number};

/// The hook of a system call, by its number.
#[inline(always)]
fn hook_of(number: i64) -> Option<u32> {
    if !is_listened_to(number) {
        return None;
    }
    for hook in 1..=HOOK_CLONE3 {
        if number == syscall_number(hook as usize) {
            return Some(hook);
        }
    }
    if number == syscall_number(HOOK_MOUNT_SETATTR as usize) {
        return Some(HOOK_MOUNT_SETATTR);
    }
    (number == syscall_number(SYSCALL_OPEN_TREE_ATTR)).then_some(HOOK_OPEN_TREE)
}

/// `sys_enter(struct pt_regs *regs, long id)`.
#[raw_tracepoint]
fn enter_any(context: RawTracePointContext) -> i32 {
    let Some(hook) = hook_of(context.arg(1)) else {
        return 0;
    };
    entered(hook, || regs_first(context.arg(0)));
    0
}

/// `sys_exit(struct pt_regs *regs, long ret)`.
#[raw_tracepoint]
fn leave_any(context: RawTracePointContext) -> i32 {
    // Reading the number takes longer than all the rest for the calls that are nothing to anybody.
    if clock::is_certainly_outside() {
        return 0;
    }
    let Some(hook) = regs_number(context.arg(0)).and_then(hook_of) else {
        return 0;
    };
    returned(hook, context.arg(1));
    0
}

const _: () = assert!(HOOK_PIVOT_ROOT < HOOK_SETNS && HOOK_CLONE3 == 11, "the loop above runs over the calls' tags");
