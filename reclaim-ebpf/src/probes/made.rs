//! The making of a task.

use aya_ebpf::{helpers::bpf_get_current_pid_tgid, macros::raw_tracepoint, programs::RawTracePointContext};
use reclaim_ebpf::abi::HOOK_CLONE;

use crate::{emit::emit, kernel};

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
