//! Mount namespaces through their nsfs descriptors: ioctl_ns(2) and the `NS_MNT_*` requests of linux/nsfs.h (6.12).
#![expect(unsafe_code, reason = "ioctl requests that no library wraps")]

use nix::Result;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// `struct mnt_ns_info`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RawInfo {
    size: u32,
    mounts: u32,
    id: u64,
}

impl RawInfo {
    fn sized() -> Self {
        Self { size: u32::try_from(size_of::<Self>()).expect("16 fits"), ..Self::default() }
    }
}

mod raw {
    use super::RawInfo;
    const NSIO: u8 = 0xb7;
    nix::ioctl_none!(ns_get_userns, NSIO, 1);
    // The number says that it carries nothing, and yet it writes a user id to where its argument points.
    nix::ioctl_read_bad!(ns_get_owner_uid, nix::request_code_none!(NSIO, 4), u32);
    nix::ioctl_read!(ns_mnt_get_info, NSIO, 10, RawInfo);
    nix::ioctl_read!(ns_mnt_get_next, NSIO, 11, RawInfo);
    nix::ioctl_read!(ns_mnt_get_prev, NSIO, 12, RawInfo);
}

/// What the kernel tells of a mount namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespaceInfo {
    /// The kernel's own id, never reused. Not the inode number.
    pub id: u64,
    /// Number of mounts. Kernels differ in whether the top of the namespace, which nobody sees, is counted.
    pub mounts: u32,
}

impl From<RawInfo> for NamespaceInfo {
    fn from(raw: RawInfo) -> Self {
        Self { id: raw.id, mounts: raw.mounts }
    }
}

/// Which way to go in the kernel's list of mount namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To the one with the next higher id.
    Next,
    /// To the one with the next lower id.
    Previous,
}

/// `NS_MNT_GET_INFO`.
///
/// # Errors
/// `ENOTTY` where the kernel lacks it, `EINVAL` when this is no mount namespace.
pub fn info(namespace: impl AsFd) -> Result<NamespaceInfo> {
    let mut info = RawInfo::sized();
    // SAFETY: the descriptor is open, and the kernel writes no more than the size that the record tells.
    unsafe { raw::ns_mnt_get_info(namespace.as_fd().as_raw_fd(), &raw mut info) }?;
    Ok(info.into())
}

/// `NS_MNT_GET_NEXT` and `NS_MNT_GET_PREV`: the neighbour in the kernel's list, which is in the order of ids.
/// That is not the order of creation: ids come from a stock of each processor (6.18). Namespaces that the caller is not
/// privileged over are left out; anonymous ones are not in the list.
///
/// # Errors
/// `ENOENT` at the end of the list, `ENOTTY` where the kernel lacks it.
pub fn neighbour(namespace: impl AsFd, direction: Direction) -> Result<(OwnedFd, NamespaceInfo)> {
    let mut info = RawInfo::sized();
    let descriptor = namespace.as_fd().as_raw_fd();
    let neighbour = match direction {
        // SAFETY: as in `info`.
        Direction::Next => unsafe { raw::ns_mnt_get_next(descriptor, &raw mut info) },
        // SAFETY: as in `info`.
        Direction::Previous => unsafe { raw::ns_mnt_get_prev(descriptor, &raw mut info) },
    }?;
    // SAFETY: the kernel made this descriptor for the caller, and nobody else knows of it.
    let neighbour = unsafe { OwnedFd::from_raw_fd(neighbour) };
    Ok((neighbour, info.into()))
}

/// `NS_GET_USERNS`: the user namespace that owns this namespace.
///
/// # Errors
/// `EPERM` when that lies outside the caller's own user namespace.
pub fn owning_user_namespace(namespace: impl AsFd) -> Result<OwnedFd> {
    // SAFETY: the descriptor is open; the request takes no argument.
    let descriptor = unsafe { raw::ns_get_userns(namespace.as_fd().as_raw_fd()) }?;
    // SAFETY: the kernel made this descriptor for the caller, and nobody else knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// `NS_GET_OWNER_UID`: the user id of whoever made a user namespace, as the caller's user namespace maps it.
///
/// # Errors
/// `EINVAL` when this is no user namespace.
pub fn owner(user_namespace: impl AsFd) -> Result<u32> {
    let mut uid = 0_u32;
    // SAFETY: the descriptor is open, and the kernel writes one user id of 32 bits.
    unsafe { raw::ns_get_owner_uid(user_namespace.as_fd().as_raw_fd(), &raw mut uid) }?;
    Ok(uid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn the_list_goes_there_and_back_or_is_not_known_at_all() {
        let own = File::open("/proc/thread-self/ns/mnt").expect("own namespace");
        let Ok(told) = info(&own) else { return assert_eq!(info(&own), Err(nix::Error::ENOTTY)) };
        assert!(told.mounts > 0);
        if let Ok((next, there)) = neighbour(&own, Direction::Next) {
            assert!(there.id > told.id && info(&next) == Ok(there));
            // Another test may make or leave a namespace in between, so only the order is sure.
            let (back, before) = neighbour(&next, Direction::Previous).expect("something comes before");
            assert!(before.id >= told.id && before.id < there.id && info(&back) == Ok(before));
        }
    }

    #[test]
    fn the_owner_of_the_initial_user_namespace_is_root() {
        let own = File::open("/proc/thread-self/ns/mnt").expect("own namespace");
        let user = owning_user_namespace(&own).expect("root may ask");
        assert_eq!(owner(&user), Ok(0));
        assert!(owner(&own).is_err());
    }
}
