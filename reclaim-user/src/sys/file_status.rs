//! `statx`: what a file is, without following a link.
#![expect(unsafe_code, reason = "no wrapper of statx gives the mount id and the mount root attribute")]

use crate::model::fence::{FileKind, Status, Timestamp};
use crate::model::id::Device;
use nix::errno::Errno;
use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd};

/// Identity of a file for as long as somebody holds it: device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Device as stat reports it, which mountinfo may call otherwise.
    pub device: Device,
    /// Inode number.
    pub inode: u64,
}

/// What `statx` tells of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStatus {
    /// Which file it is.
    pub identity: Identity,
    /// What the fences look at.
    pub status: Status,
    /// Group id.
    pub group: u32,
    /// Number of links; 0 once it has no name any more.
    pub links: u32,
    /// The mount it was reached through; none before Linux 5.8.
    pub mount: Option<u64>,
    /// It is the root of a mount; none where the kernel does not say (before Linux 5.8).
    pub mount_root: Option<bool>,
}

impl FileStatus {
    /// The mode with the bits of its kind, as the kernel has it; none for kinds that are not told apart here.
    #[must_use]
    pub fn whole_mode(&self) -> Option<u32> {
        let kind = match self.status.kind {
            FileKind::Directory => libc::S_IFDIR,
            FileKind::File => libc::S_IFREG,
            FileKind::Link => libc::S_IFLNK,
            FileKind::Other => return None,
        };
        Some(kind | self.status.mode)
    }
}

/// Status of `name` in a directory. A link is not followed and an automount is not triggered.
///
/// # Errors
/// The error of `statx`.
pub fn status_at(directory: impl AsFd, name: &CStr) -> Result<FileStatus, Errno> {
    statx(directory.as_fd().as_raw_fd(), name, libc::AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT)
}

/// Status of an open file.
///
/// # Errors
/// The error of `statx`.
pub fn status_of(file: impl AsFd) -> Result<FileStatus, Errno> {
    statx(file.as_fd().as_raw_fd(), c"", libc::AT_EMPTY_PATH)
}

fn statx(directory: i32, name: &CStr, flags: i32) -> Result<FileStatus, Errno> {
    let mut raw = std::mem::MaybeUninit::<libc::statx>::zeroed();
    let mask = libc::STATX_BASIC_STATS | libc::STATX_BTIME | libc::STATX_MNT_ID;
    // SAFETY: the name ends in a zero byte, and the kernel writes one whole statx structure to a place of that size.
    let result = unsafe { libc::statx(directory, name.as_ptr(), flags, mask, raw.as_mut_ptr()) };
    Errno::result(result)?;
    // SAFETY: all bytes were zeroed before the call, and a statx structure holds integers only.
    let raw = unsafe { raw.assume_init() };
    let needed =
        libc::STATX_TYPE | libc::STATX_MODE | libc::STATX_UID | libc::STATX_GID | libc::STATX_INO | libc::STATX_SIZE;
    if raw.stx_mask & needed != needed {
        return Err(Errno::ENODATA);
    }
    let has = |bit: u32| raw.stx_mask & bit == bit;
    let told = |bit: i32| {
        let bit = u64::from(bit.unsigned_abs());
        (raw.stx_attributes_mask & bit != 0).then_some(raw.stx_attributes & bit != 0)
    };
    let mode = u32::from(raw.stx_mode);
    Ok(FileStatus {
        identity: Identity {
            device: Device { major: raw.stx_dev_major, minor: raw.stx_dev_minor },
            inode: raw.stx_ino,
        },
        status: Status {
            kind: match mode & libc::S_IFMT {
                libc::S_IFDIR => FileKind::Directory,
                libc::S_IFREG => FileKind::File,
                libc::S_IFLNK => FileKind::Link,
                _ => FileKind::Other,
            },
            mode: mode & 0o7777,
            owner: raw.stx_uid,
            size: raw.stx_size,
            birth: has(libc::STATX_BTIME).then(|| timestamp(raw.stx_btime)),
            changed: has(libc::STATX_CTIME).then(|| timestamp(raw.stx_ctime)),
            modified: has(libc::STATX_MTIME).then(|| timestamp(raw.stx_mtime)),
        },
        group: raw.stx_gid,
        links: raw.stx_nlink,
        mount: has(libc::STATX_MNT_ID).then_some(raw.stx_mnt_id),
        mount_root: told(libc::STATX_ATTR_MOUNT_ROOT),
    })
}

fn timestamp(raw: libc::statx_timestamp) -> Timestamp {
    Timestamp::of(raw.tv_sec, raw.tv_nsec)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn a_link_is_told_as_a_link_and_a_mount_root_as_one() {
        let directory = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/proc", directory.path().join("link")).unwrap();
        let opened = File::open(directory.path()).unwrap();
        let link = status_at(&opened, c"link").unwrap();
        assert_eq!(link.status.kind, FileKind::Link);
        assert_eq!(link.mount_root, Some(false));
        let root = status_at(File::open("/").unwrap(), c"proc").unwrap();
        assert_eq!((root.status.kind, root.mount_root), (FileKind::Directory, Some(true)));
        assert_eq!(status_of(&opened).unwrap().identity, status_at(&opened, c".").unwrap().identity);
        assert_eq!(status_at(&opened, c"absent"), Err(Errno::ENOENT));
    }
}
