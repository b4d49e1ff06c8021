//! The death of a task.

use aya_ebpf::{helpers::bpf_get_current_pid_tgid, macros::raw_tracepoint, programs::RawTracePointContext};
use reclaim_ebpf::abi::HOOK_EXIT;

use crate::{clock, emit::emit, kernel};

/// A task dies: `sched_process_exit(struct task_struct *task, ...)`. Runs in the task, before it lets go of its
/// namespaces.
#[raw_tracepoint]
fn exit(_context: RawTracePointContext) -> i32 {
    let ids = bpf_get_current_pid_tgid();
    if let Some(task) = kernel::current()
        && is_last_user(task)
    {
        let namespace = task.namespace().map(|namespace| namespace.inode);
        emit(HOOK_EXIT, 0, namespace, (ids >> 32) as u32, ids as u32);
    }
    // A task that is killed returns from its call first, so what is still counted in has returned unseen.
    clock::leave_unseen(ids as u32);
    0
}

/// Whether nobody is left to use the task's namespace proxy. The threads of a process that dies as a whole all pass
/// here before the first of them lets go, so they count as one.
#[inline(always)]
fn is_last_user(task: kernel::Task) -> bool {
    // A task that was never given a proxy, or whose memory cannot be read, has nothing to report.
    let Some(users) = task.proxy_users() else {
        return false;
    };
    users == 1 || task.threads_of_dead_process().is_some_and(|threads| users <= threads)
}
