//! Making mount namespaces in an order that the kernel can tell.

use nix::sched::{CloneFlags, CpuSet, sched_getaffinity, sched_setaffinity, unshare};
use nix::unistd::Pid;

/// Moves the calling thread to a mount namespace of its own.
///
/// Namespaces are numbered from stocks that each processor has by itself (seen on 6.18), and the file of one can be bound
/// only in a namespace with a lower number. So all of them are made on one processor.
pub(crate) fn make_namespace() -> nix::Result<()> {
    let this = Pid::from_raw(0);
    let allowed = sched_getaffinity(this)?;
    let first = (0..CpuSet::count()).find(|cpu| allowed.is_set(*cpu).unwrap_or(false)).unwrap_or(0);
    let mut one = CpuSet::new();
    one.set(first)?;
    sched_setaffinity(this, &one)?;
    let made = unshare(CloneFlags::CLONE_NEWNS);
    sched_setaffinity(this, &allowed)?;
    made
}
