//! listmount(2) and statmount(2), 6.8; for another namespace than the caller's, 6.11.
#![expect(unsafe_code, reason = "system calls that no library wraps")]

use crate::model::id::{Device, MountId};
use nix::Result;
use nix::errno::Errno;

// The same on every architecture that Rust's std supports.
const SYS_STATMOUNT: libc::c_long = 457;
const SYS_LISTMOUNT: libc::c_long = 458;

/// `LSMT_ROOT`: list from the root that the caller, or the namespace asked for, has.
const FROM_ROOT: u64 = u64::MAX;

/// More than 512 ids at once make the kernel allocate what was asked for, needed or not.
const BATCH: usize = 512;

/// `struct mnt_id_req` with the namespace id (size version 1).
#[repr(C)]
struct Request {
    size: u32,
    spare: u32,
    mount: u64,
    param: u64,
    namespace: u64,
}

impl Request {
    fn of(mount: u64, param: u64, namespace: u64) -> Self {
        Self { size: u32::try_from(size_of::<Self>()).expect("32 fits"), spare: 0, mount, param, namespace }
    }
}

/// Where to begin a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// Below the root that the kernel takes the namespace to have; what lies outside it is left out.
    Root,
    /// Below one mount, by unique id.
    Mount(u64),
}

/// Unique ids of the mounts below `from` in the namespace with this kernel id, in the order in which they were made.
/// The mount itself is left out of its own list.
///
/// # Errors
/// `ENOSYS` where the kernel lacks it, `EINVAL` where it cannot ask for another namespace, `ENOENT` when the namespace
/// or the mount has gone, `EPERM` when the caller is not privileged over the namespace.
pub fn list(namespace: u64, from: From) -> Result<Vec<u64>> {
    let from = match from {
        From::Root => FROM_ROOT,
        From::Mount(id) => id,
    };
    let mut ids = Vec::new();
    let mut batch = [0_u64; BATCH];
    let mut last = 0;
    loop {
        let request = Request::of(from, last, namespace);
        // SAFETY: the request lives through the call and tells its own size; the kernel writes at most BATCH ids.
        let count =
            Errno::result(unsafe { libc::syscall(SYS_LISTMOUNT, &raw const request, batch.as_mut_ptr(), BATCH, 0) })?;
        let count = usize::try_from(count).expect("a call that did not fail counts upwards");
        ids.extend_from_slice(&batch[..count]);
        match batch[..count].last() {
            Some(id) if count == BATCH => last = *id,
            _ => return Ok(ids),
        }
    }
}

/// Up to here `struct statmount` has fixed fields; its strings follow.
const STRINGS: usize = 512;
const SB_BASIC: u64 = 0x1;
const MNT_BASIC: u64 = 0x2;
const MNT_ROOT: u64 = 0x8;
const MNT_POINT: u64 = 0x10;
const FS_TYPE: u64 = 0x20;
const MNT_OPTS: u64 = 0x80;
const SB_SOURCE: u64 = 0x200;

/// Room for answers, to be used again and again.
#[derive(Debug)]
pub struct Answer {
    // Numbers of 64 bits, so that the record is aligned.
    buffer: Vec<u64>,
}

impl Default for Answer {
    fn default() -> Self {
        Self { buffer: vec![0; 1024] }
    }
}

/// Which strings to ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Identity, root, point and type.
    Mount,
    /// The options of the super block and the source.
    Options,
}

/// What statmount told of one mount. Strings are borrowed from the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MountStatus<'a> {
    /// The id that never comes again.
    pub unique: u64,
    /// The unique id of the mount that it is mounted on; its own for the top of a namespace.
    pub unique_parent: u64,
    /// The id of mountinfo.
    pub id: MountId,
    /// The parent's id of mountinfo.
    pub parent: MountId,
    /// The super block.
    pub device: Device,
    /// Peer group; 0 for none.
    pub peer_group: u64,
    /// Peer group that it receives from; 0 for none.
    pub master: u64,
    /// Root in its file system, not escaped, with `//deleted` behind it where that is so.
    pub root: Option<&'a [u8]>,
    /// Mount point, not escaped; none where it cannot be reached from the namespace's root.
    pub point: Option<&'a [u8]>,
    /// Type of the file system.
    pub fs_type: Option<&'a [u8]>,
    /// Options of the super block, escaped as in mountinfo; none where there are none or the kernel cannot tell.
    pub options: Option<&'a [u8]>,
    /// The source; none where the kernel cannot tell.
    pub source: Option<&'a [u8]>,
}

/// Asks for one mount by its unique id, in the namespace with this kernel id.
///
/// # Errors
/// As [`list`]; `ENOENT` when the mount has gone meanwhile, which is normal.
pub fn status(namespace: u64, mount: u64, ask: Ask, answer: &mut Answer) -> Result<MountStatus<'_>> {
    let mask = match ask {
        Ask::Mount => SB_BASIC | MNT_BASIC | MNT_ROOT | MNT_POINT | FS_TYPE,
        Ask::Options => SB_BASIC | MNT_BASIC | MNT_OPTS | SB_SOURCE,
    };
    let request = Request::of(mount, mask, namespace);
    loop {
        // SAFETY: the request tells its own size; the kernel writes no more than the length of the buffer, which is
        // aligned for the record.
        let called = Errno::result(unsafe {
            let buffer = answer.buffer.as_mut_ptr();
            libc::syscall(SYS_STATMOUNT, &raw const request, buffer, size_of_val(&*answer.buffer), 0)
        });
        match called {
            Ok(_) => break,
            // The strings did not fit. Options of an overlay can take a page and more for each of many layers.
            Err(Errno::EOVERFLOW) if answer.buffer.len() < 1 << 20 => answer.buffer.resize(answer.buffer.len() * 4, 0),
            Err(errno) => return Err(errno),
        }
    }
    decode(&answer.buffer).ok_or(Errno::EBADMSG)
}

/// Reads `struct statmount` field by field at the offsets of linux/mount.h.
fn decode(buffer: &[u64]) -> Option<MountStatus<'_>> {
    let bytes = as_bytes(buffer);
    let short = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let long = |at: usize| Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let mask = long(8)?;
    if mask & (SB_BASIC | MNT_BASIC) != SB_BASIC | MNT_BASIC {
        return None;
    }
    let strings = bytes.get(STRINGS..)?;
    let string = |bit: u64, at: usize| -> Option<Option<&[u8]>> {
        if mask & bit == 0 {
            return Some(None);
        }
        let text = strings.get(usize::try_from(short(at)?).ok()?..)?;
        Some(Some(&text[..text.iter().position(|byte| *byte == 0)?]))
    };
    Some(MountStatus {
        unique: long(40)?,
        unique_parent: long(48)?,
        id: MountId(short(56)?.into()),
        parent: MountId(short(60)?.into()),
        device: Device { major: short(16)?, minor: short(20)? },
        peer_group: long(80)?,
        master: long(88)?,
        root: string(MNT_ROOT, 104)?,
        // Linux 6.12 gives an empty one for what cannot be reached, later ones give none.
        point: string(MNT_POINT, 108)?.filter(|point| !point.is_empty()),
        fs_type: string(FS_TYPE, 36)?,
        options: string(MNT_OPTS, 4)?,
        source: string(SB_SOURCE, 124)?,
    })
}

fn as_bytes(numbers: &[u64]) -> &[u8] {
    // SAFETY: any byte of a number is a byte, and the length is that of the same memory.
    unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), size_of_val(numbers)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_at_its_offsets_and_a_broken_one_not_at_all() {
        let mut buffer = vec![0_u64; 80];
        buffer[1] = SB_BASIC | MNT_BASIC | MNT_ROOT;
        buffer[2] = 8 | 1 << 32;
        buffer[5] = 1 << 31 | 7;
        buffer[13] = 3;
        buffer[64] = u64::from_ne_bytes(*b"xyz/dir\0");
        let status = decode(&buffer).expect("the record is whole");
        assert_eq!(status.root, Some(&b"/dir"[..]));
        assert_eq!((status.point, status.unique), (None, 1 << 31 | 7));
        assert_eq!(status.device, Device { major: 8, minor: 1 });
        // A mount point of no bytes, as Linux 6.12 tells it: the string is the end of the other one.
        buffer[1] |= MNT_POINT;
        buffer[13] = 3 | 7 << 32;
        assert_eq!(decode(&buffer).map(|status| status.point), Some(None));
        buffer[13] = 3 << 32 | 3;
        assert_eq!(decode(&buffer).map(|status| status.point), Some(Some(&b"/dir"[..])));
        buffer[13] = 4096;
        assert_eq!(decode(&buffer), None);
        buffer[1] = 0;
        assert_eq!(decode(&buffer), None);
    }
}
