//! The root: opened once by path, and where it lies in its file system.

use super::error::RemovalError;
use crate::model::id::{Device, Location, join, rest};
use crate::sys::directory;
use crate::sys::file_status::{FileStatus, status_of};
use nix::errno::Errno;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A root that is open.
#[derive(Debug)]
pub(super) struct Root {
    pub(super) path: PathBuf,
    pub(super) directory: OwnedFd,
    pub(super) status: FileStatus,
}

impl Root {
    /// Opens a root. None when there is nothing at its path.
    pub(super) fn open(path: &Path) -> Result<Option<Self>, RemovalError> {
        let configuration = |fault, remedy| RemovalError::Configuration { path: path.into(), fault, remedy };
        if !path.is_absolute() || path.components().count() == 1 {
            return Err(configuration("is `/` or is not absolute", "name one directory by its whole path"));
        }
        let directory = match directory::open_path(path) {
            Ok(directory) => directory,
            Err(Errno::ENOENT) => return Ok(None),
            Err(Errno::ELOOP) => {
                return Err(configuration("is a link or lies behind one", "name the directory that it leads to"));
            }
            Err(Errno::ENOTDIR) => return Err(configuration("is not a directory", "name a directory")),
            Err(source) => return Err(RemovalError::Call { call: "openat2", path: path.into(), source }),
        };
        let call = |source| RemovalError::Call { call: "statx", path: path.into(), source };
        let status = status_of(&directory).map_err(call)?;
        let top = directory::open_path(Path::new("/")).and_then(status_of).map_err(call)?;
        // By identity, so that `/` bound somewhere else is refused too.
        if top.identity == status.identity {
            return Err(configuration("is `/`", "name one directory by its whole path"));
        }
        Ok(Some(Self { path: path.into(), directory, status }))
    }

    /// Makes sure that the root lies where evidence looks for pins: elsewhere every pin would be missed.
    pub(super) fn verify(&self, watched: Option<&Location>, expected: &Location) -> Result<(), RemovalError> {
        let found = locate_open(&self.directory).ok();
        if found.as_ref() == Some(expected) && watched == Some(expected) {
            return Ok(());
        }
        let watched = watched.map_or_else(|| "nothing".into(), ToString::to_string);
        Err(RemovalError::Moved { path: self.path.clone(), found, watched })
    }
}

/// Where the directory at a path lies in its file system, as mount tables write it.
///
/// # Errors
/// [`RemovalError::Configuration`] for a link and the like; `Call` when there is nothing there, or when its mount cannot
/// be seen.
pub fn locate(path: &Path) -> Result<Location, RemovalError> {
    let call = |call, source| RemovalError::Call { call, path: path.into(), source };
    let root = Root::open(path)?.ok_or_else(|| call("openat2", Errno::ENOENT))?;
    locate_open(&root.directory).map_err(|source| call("looking for its mount", source))
}

/// Device and path come from the mount's own line, found by mount id: the device of stat is another one on some file
/// systems (subvolumes).
fn locate_open(directory: &OwnedFd) -> Result<Location, Errno> {
    let io = |error: std::io::Error| Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO));
    let status = status_of(directory)?;
    if status.links == 0 {
        return Err(Errno::ENOENT);
    }
    let mount = status.mount.ok_or(Errno::ENODATA)?;
    let path = std::fs::read_link(format!("/proc/thread-self/fd/{}", directory.as_raw_fd())).map_err(io)?;
    let table = std::fs::read("/proc/thread-self/mountinfo").map_err(io)?;
    let line = table.split(|byte| *byte == b'\n').find_map(|line| mount_line(line).filter(|line| line.id == mount));
    let line = line.ok_or(Errno::ENOENT)?;
    let below = rest(&line.point, path.as_os_str().as_bytes()).ok_or(Errno::EXDEV)?;
    Ok(Location { device: line.device, path: join(&line.root, below) })
}

struct MountLine {
    id: u64,
    device: Device,
    root: Vec<u8>,
    point: Vec<u8>,
}

/// The first five fields of a line of mountinfo: id, parent, device, root, mount point.
fn mount_line(line: &[u8]) -> Option<MountLine> {
    let mut fields = line.split(|byte| *byte == b' ');
    let mut text = || std::str::from_utf8(fields.next()?).ok();
    let id = text()?.parse().ok()?;
    text()?;
    let (major, minor) = text()?.split_once(':')?;
    let device = Device { major: major.parse().ok()?, minor: minor.parse().ok()? };
    Some(MountLine { id, device, root: unescape(fields.next()?), point: unescape(fields.next()?) })
}

/// The kernel writes space, tab, newline and backslash as a backslash and three octal digits.
pub(super) fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut left = field;
    while let [first, after @ ..] = left {
        left = after;
        match (first, after) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..]) => {
                bytes.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                left = after;
            }
            _ => bytes.push(*first),
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test that cannot set up its scene has failed")]

    use super::*;

    #[test]
    fn a_line_is_read_by_its_bytes() {
        let line = mount_line(b"36 35 98:0 /mnt\\0401 /mnt\\134\\011\xff rw,noatime - ext3 /dev/root rw").unwrap();
        assert_eq!((line.id, line.device), (36, Device { major: 98, minor: 0 }));
        assert_eq!((line.root.as_slice(), line.point.as_slice()), (&b"/mnt 1"[..], &b"/mnt\\\t\xff"[..]));
        assert!(mount_line(b"36 35 98:0 /mnt").is_none());
        assert!(mount_line(b"").is_none());
    }

    #[test]
    fn a_root_that_is_none_is_a_fault_of_the_configuration() {
        for path in ["/", "relative", "/proc/self/.."] {
            let error = Root::open(Path::new(path)).unwrap_err();
            assert!(matches!(error, RemovalError::Configuration { .. }), "{path}: {error}");
        }
        assert!(Root::open(Path::new("/proc/absent/x")).unwrap().is_none());
    }
}
