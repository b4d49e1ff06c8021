//! Mount-class system calls with arguments that the kernel has to refuse: they enter it and leave it, and change nothing.
#![expect(unsafe_code, reason = "system calls with arguments that no wrapper lets through")]

use nix::errno::Errno;

/// Two namespaces that cannot be asked for together: `EINVAL` for clone and clone3. <include/uapi/linux/sched.h>
const CONTRADICTION: u64 = (libc::CLONE_NEWNS | libc::CLONE_FS) as u64;
/// A mount namespace and a flag that unshare does not know: `EINVAL`.
const UNKNOWN: u64 = (libc::CLONE_NEWNS | libc::CLONE_VFORK) as u64;
/// No descriptor, no address, and every flag.
const NOTHING: u64 = u64::MAX;

/// Makes a mount-class call, by its number on this architecture, that fails in the kernel. None for any other number,
/// and where the call did not come as far as the kernel's function for it: refused before by a filter, or not there.
#[must_use]
pub fn make(number: i64) -> Option<Errno> {
    let arguments = [CONTRADICTION, 0, 0, 0, 0, 0, 0, 0];
    let (first, others) = match number {
        libc::SYS_clone => (CONTRADICTION, 0),
        libc::SYS_clone3 => (arguments.as_ptr() as u64, size_of_val(&arguments) as u64),
        libc::SYS_unshare => (UNKNOWN, 0),
        _ if is_mount_class(number) => (NOTHING, NOTHING),
        _ => return None,
    };
    // SAFETY: no argument is the address of memory, but for clone3's, which the kernel only reads. The kernel refuses
    // each of these calls before it does anything: it makes no task and touches no descriptor.
    let result = unsafe { libc::syscall(number, first, others, others, others, others, others) };
    debug_assert!(result < 0, "the kernel refuses call {number}");
    let refusal = Errno::last();
    matches!(refusal, Errno::EINVAL | Errno::EFAULT | Errno::EBADF).then_some(refusal)
}

/// mount_setattr(2) and open_tree_attr(2) have one number on every architecture; the latter is not in libc.
fn is_mount_class(number: i64) -> bool {
    const OPEN_TREE_ATTR: i64 = 467;
    [
        libc::SYS_mount,
        libc::SYS_umount2,
        libc::SYS_move_mount,
        libc::SYS_open_tree,
        libc::SYS_fsmount,
        libc::SYS_fsconfig,
        libc::SYS_pivot_root,
        libc::SYS_mount_setattr,
        libc::SYS_setns,
        OPEN_TREE_ATTR,
    ]
    .contains(&number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_refused_and_no_other_call_is_made() {
        for number in [libc::SYS_clone, libc::SYS_clone3, libc::SYS_unshare, libc::SYS_setns, libc::SYS_mount] {
            // Without privileges the kernel says so before it looks at the arguments; then there is no answer.
            assert!(make(number).is_none_or(|errno| errno != Errno::ENOSYS), "{number}");
        }
        assert_eq!(make(libc::SYS_getppid), None);
    }
}
