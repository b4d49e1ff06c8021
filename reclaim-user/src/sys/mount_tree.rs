//! open_tree(2): a mount of one's own that is in no namespace.
#![expect(unsafe_code, reason = "a system call that no library here wraps")]

use nix::Result;
use nix::errno::Errno;
use std::os::fd::{AsFd, AsRawFd, FromRawFd as _, OwnedFd};

/// A detached mount of the directory or file behind a descriptor. It goes when the descriptor is closed. (5.2)
///
/// # Errors
/// As open_tree(2): `EPERM` without CAP_SYS_ADMIN, `EINVAL` where the place cannot be bound.
pub fn clone_tree(place: impl AsFd) -> Result<OwnedFd> {
    let flags = libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC | libc::AT_EMPTY_PATH as libc::c_uint;
    // SAFETY: the path is an empty string that ends in NUL, and the descriptor is open.
    let tree =
        Errno::result(unsafe { libc::syscall(libc::SYS_open_tree, place.as_fd().as_raw_fd(), c"".as_ptr(), flags) })?;
    let tree = i32::try_from(tree).map_err(|_| Errno::EBADF)?;
    // SAFETY: the kernel has just given this descriptor to us, and to nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(tree) })
}
