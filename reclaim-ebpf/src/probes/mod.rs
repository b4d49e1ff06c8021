//! What is done at each hook, whichever way it was attached.

mod every_syscall;
mod exit;
mod mount;
mod namespace;

use aya_ebpf::{helpers::bpf_get_current_pid_tgid, programs::TracePointContext};
use reclaim_ebpf::abi::HOOK_DEPART;

use crate::{clock, emit::emit, kernel};

/// `CLONE_NEWNS`: the call makes a mount namespace. <include/uapi/linux/sched.h>
const CLONE_NEWNS: u64 = 0x0002_0000;

/// Offset of the first argument in the record of a `syscalls/sys_enter_*` tracepoint. Its arguments are longs.
const TRACEPOINT_FIRST: usize = 16;
/// Offset of the result in the record of a `syscalls/sys_exit_*` tracepoint.
const TRACEPOINT_RESULT: usize = 16;

/// A call enters that may change what is mounted, or who sees it.
#[inline(always)]
fn enter(hook: u32) {
    clock::enter(hook);
}

/// A call enters that counts only if its flags ask for a mount namespace.
#[inline(always)]
fn enter_if_new_namespace(hook: u32, flags: u64) {
    if flags & CLONE_NEWNS != 0 {
        clock::enter(hook);
    }
}

/// A call returns that moves mounts within the caller's namespace. Sent for calls that the clock does not know too:
/// they entered before the programs were attached.
#[inline(always)]
fn leave(hook: u32, result: i64) {
    let ids = bpf_get_current_pid_tgid();
    if result >= 0 {
        let namespace = kernel::current().and_then(|task| task.namespace());
        emit(hook, result, namespace.map(|namespace| namespace.inode), (ids >> 32) as u32, ids as u32);
    }
    clock::leave(ids as u32);
}

/// A call returns that may have moved the caller to another namespace.
#[inline(always)]
fn leave_moved(hook: u32, result: i64) {
    let ids = bpf_get_current_pid_tgid();
    let (process, thread) = ((ids >> 32) as u32, ids as u32);
    // Not in flight: the flags did not ask for a mount namespace.
    let Some(call) = clock::call_of(thread) else {
        return;
    };
    if result >= 0 {
        let namespace = kernel::current().and_then(|task| task.namespace()).map(|namespace| namespace.inode);
        if call.namespace != 0 && namespace != Some(call.namespace) {
            emit(HOOK_DEPART, result, Some(call.namespace), process, thread);
        }
        emit(hook, result, namespace, process, thread);
    }
    clock::leave(thread);
}

/// A call returns that only the clock is interested in.
#[inline(always)]
fn leave_silently() {
    clock::leave(bpf_get_current_pid_tgid() as u32);
}

/// The first argument that a `sys_enter` tracepoint recorded.
#[inline(always)]
fn first_argument(context: &TracePointContext) -> Option<u64> {
    // SAFETY: within the record, which is at least this long for a call with an argument.
    unsafe { context.read_at(TRACEPOINT_FIRST) }.ok()
}

/// The result that a `sys_exit` tracepoint recorded; a failure where it cannot be read, which it always can.
#[inline(always)]
fn result(context: &TracePointContext) -> i64 {
    // SAFETY: within the record.
    unsafe { context.read_at(TRACEPOINT_RESULT) }.unwrap_or(-1)
}
