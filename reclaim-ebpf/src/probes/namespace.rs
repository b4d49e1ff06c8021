//! Calls that make a mount namespace or move the caller to another one.

use aya_ebpf::{
    helpers::{bpf_get_current_pid_tgid, bpf_probe_read_user},
    macros::{raw_tracepoint, tracepoint},
    programs::{RawTracePointContext, TracePointContext},
};
use reclaim_ebpf::abi::{HOOK_CLONE, HOOK_CLONE3, HOOK_SETNS, HOOK_UNSHARE};

use super::{CLONE_NEWNS, enter, enter_if_new_namespace, first_argument, leave_moved, leave_silently, result};
use crate::{emit::emit, kernel};

#[tracepoint]
fn enter_setns(_context: TracePointContext) -> u32 {
    // With a pid descriptor the flags name the namespaces, with a namespace descriptor they may be 0: count every call.
    enter(HOOK_SETNS);
    0
}

#[tracepoint]
fn leave_setns(context: TracePointContext) -> u32 {
    leave_moved(HOOK_SETNS, result(&context));
    0
}

#[tracepoint]
fn enter_unshare(context: TracePointContext) -> u32 {
    enter_if_new_namespace(HOOK_UNSHARE, first_argument(&context).unwrap_or(CLONE_NEWNS));
    0
}

#[tracepoint]
fn leave_unshare(context: TracePointContext) -> u32 {
    leave_moved(HOOK_UNSHARE, result(&context));
    0
}

#[tracepoint]
fn enter_clone(context: TracePointContext) -> u32 {
    // The flags come first on every architecture but s390 and microblaze.
    enter_if_new_namespace(HOOK_CLONE, first_argument(&context).unwrap_or(CLONE_NEWNS));
    0
}

#[tracepoint]
fn leave_clone(_context: TracePointContext) -> u32 {
    // In the maker; `made` has sent the record. The made task returns here too and was never counted in.
    leave_silently();
    0
}

#[tracepoint]
fn enter_clone3(context: TracePointContext) -> u32 {
    enter_if_new_namespace(HOOK_CLONE3, clone3_flags(first_argument(&context)));
    0
}

#[tracepoint]
fn leave_clone3(_context: TracePointContext) -> u32 {
    leave_silently();
    0
}

/// `struct clone_args` begins with the flags. A page that is not there cannot be fetched here: then the call counts.
#[inline(always)]
pub(super) fn clone3_flags(arguments: Option<u64>) -> u64 {
    let Some(arguments) = arguments else {
        return CLONE_NEWNS;
    };
    // SAFETY: the helper checks the address and reads a plain integer.
    unsafe { bpf_probe_read_user(arguments as *const u64) }.unwrap_or(CLONE_NEWNS)
}

/// A task was made: `sched_process_fork(struct task_struct *parent, struct task_struct *child)`.
///
/// Runs in the maker after the namespaces were copied and before the made task first runs, so the record is there
/// before anything can happen in the namespace. Comparing the two needs no flags, so it sees 32-bit callers too.
#[raw_tracepoint]
fn made(context: RawTracePointContext) -> i32 {
    let namespace = |address: usize| kernel::Task::at(address).and_then(|task| task.namespace());
    let maker = namespace(context.arg(0));
    let address: usize = context.arg(1);
    let own = namespace(address);
    if let (Some(maker), Some(own)) = (maker, own)
        && maker.address == own.address
    {
        return 0;
    }
    let ids = kernel::Task::at(address).and_then(|task| task.ids());
    let maker = bpf_get_current_pid_tgid();
    let (process, thread) = ids.unwrap_or(((maker >> 32) as u32, maker as u32));
    emit(HOOK_CLONE, i64::from(thread), own.map(|own| own.inode), process, thread);
    0
}
