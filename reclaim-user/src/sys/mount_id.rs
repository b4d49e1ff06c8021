//! statx(2) for the mount that a descriptor lies on.
#![expect(unsafe_code, reason = "a system call that no library wraps with the mount id")]

use crate::model::id::MountId;
use nix::Result;
use nix::errno::Errno;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};

/// The id, as mountinfo has it, of the mount that an open file lies on. Works on O_PATH descriptors. (5.8)
///
/// # Errors
/// `ENOSYS` where the kernel cannot tell it; else as statx(2).
pub fn mount_of(file: impl AsFd) -> Result<MountId> {
    let mut status = MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: the path is an empty string that ends in NUL, the descriptor is open, and the record has the right size.
    Errno::result(unsafe {
        let descriptor = file.as_fd().as_raw_fd();
        libc::statx(descriptor, c"".as_ptr(), libc::AT_EMPTY_PATH, libc::STATX_MNT_ID, status.as_mut_ptr())
    })?;
    // SAFETY: it was zeroed, and a record of numbers is valid with zeros even where the kernel wrote nothing.
    let status = unsafe { status.assume_init() };
    if status.stx_mask & libc::STATX_MNT_ID == 0 { Err(Errno::ENOSYS) } else { Ok(MountId(status.stx_mnt_id)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_is_the_one_that_the_kernel_tells_elsewhere() {
        let file = std::fs::File::open("/proc/self/fdinfo").expect("procfs is mounted");
        let told = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd())).expect("it is open");
        let line = told.lines().find_map(|line| line.strip_prefix("mnt_id:")).expect("the kernel tells it");
        assert_eq!(mount_of(&file).expect("the kernel knows").0.to_string(), line.trim());
    }
}
