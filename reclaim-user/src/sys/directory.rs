//! Directories by descriptor: one checked name at a time, no links followed, no mount crossed.
#![expect(
    unsafe_code,
    reason = "getdents64, which gives a place to go on from, and close_range have no wrapper; that of flock unlocks before it closes"
)]

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, Flock, FlockArg, OFlag, OpenHow, RenameFlags, ResolveFlag, openat2, renameat2};
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::{UnlinkatFlags, Whence, lseek64, unlinkat};
use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, FromRawFd as _, IntoRawFd as _, OwnedFd};
use std::path::Path;

/// Room for the records of one `getdents64`. A record holds at least 24 bytes, so this is at most 10,922 names.
const RECORDS: usize = 256 * 1024;

/// Opens a directory by path. A link anywhere in the path is refused with `ELOOP`.
///
/// # Errors
/// The error of `openat2` (Linux 5.6).
pub fn open_path(path: &Path) -> Result<OwnedFd, Errno> {
    // O_NOFOLLOW would turn the answer for a link in the last place into ENOTDIR.
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let resolve = ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    again(|| openat2(AT_FDCWD, path, OpenHow::new().flags(flags).resolve(resolve)))
}

/// Opens the directory `name` inside another one.
///
/// # Errors
/// `EXDEV` when something is mounted there, also when it is of the same device; `ELOOP` or `ENOTDIR` when it is a link.
pub fn open_child(directory: impl AsFd, name: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    again(|| openat2(&directory, name, OpenHow::new().flags(flags).resolve(below())))
}

/// Opens `..` of a directory. Whoever calls checks that it is the directory that was meant.
///
/// # Errors
/// `EXDEV` when that would leave the mount.
pub fn open_parent(directory: impl AsFd) -> Result<OwnedFd, Errno> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let resolve = ResolveFlag::RESOLVE_NO_XDEV | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    again(|| openat2(&directory, c"..", OpenHow::new().flags(flags).resolve(resolve)))
}

/// Opens the directory or regular file `name` for a look at its lock and contents; it never waits for anybody.
///
/// # Errors
/// As [`open_child`]; `EWOULDBLOCK` when somebody holds a file lease on it, `EINVAL` for what is not a single name.
pub fn open_entry(directory: impl AsFd, name: &CStr, is_directory: bool) -> Result<OwnedFd, Errno> {
    let mut flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    flags.set(OFlag::O_DIRECTORY, is_directory);
    if matches!(name.to_bytes(), b"." | b"..") || name.to_bytes().contains(&b'/') {
        return Err(Errno::EINVAL);
    }
    // A single name that is followed nowhere leads nowhere else. RESOLVE_BENEATH would make sure of that by a look under the
    // lock that every rename on the host takes (`path_is_under` in fs/namespace.c).
    let resolve = below() - ResolveFlag::RESOLVE_BENEATH;
    again(|| openat2(&directory, name, OpenHow::new().flags(flags).resolve(resolve)))
}

/// Opens `name` for telling what it is, whatever kind of file it is; nothing of it can be read that way.
///
/// # Errors
/// As [`open_child`]. A link is opened itself.
pub fn open_handle(directory: impl AsFd, name: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    // Without RESOLVE_NO_SYMLINKS, which would refuse a link in the last place even so.
    let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_XDEV | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    again(|| openat2(&directory, name, OpenHow::new().flags(flags).resolve(resolve)))
}

fn below() -> ResolveFlag {
    ResolveFlag::RESOLVE_BENEATH
        | ResolveFlag::RESOLVE_NO_XDEV
        | ResolveFlag::RESOLVE_NO_SYMLINKS
        | ResolveFlag::RESOLVE_NO_MAGICLINKS
}

/// Repeats a call that a signal or a concurrent rename made fail for the moment (openat2 answers `EAGAIN` when it could
/// not make sure that it stayed beneath). A few times only: `EAGAIN` also tells of a file lease that somebody holds.
fn again<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    let mut tries = 0;
    loop {
        match call() {
            Err(Errno::EINTR | Errno::EAGAIN) if tries < 8 => tries += 1,
            result => return result,
        }
    }
}

/// Takes the BSD lock on an open file, without waiting. The lock lives as long as the value.
///
/// # Errors
/// The file comes back with the error: `EWOULDBLOCK` when somebody holds it.
pub fn lock(file: OwnedFd) -> Result<Flock<OwnedFd>, (OwnedFd, Errno)> {
    Flock::lock(file, FlockArg::LockExclusiveNonblock)
}

/// An open file with the BSD lock on it, for as long as this lives: closing it lets go of the lock, in one call.
///
/// Invariant: the descriptor is closed on exec and never duplicated, so nobody else keeps the lock.
#[derive(Debug)]
pub struct Leased(OwnedFd);

/// Lets go of many locks: in one call for those whose descriptors have numbers side by side, which is what closing costs.
pub fn let_go(leases: impl IntoIterator<Item = Leased>) {
    let mut numbers: Vec<i32> = leases.into_iter().map(|Leased(file)| file.into_raw_fd()).collect();
    numbers.sort_unstable();
    for run in numbers.chunk_by(|number, next| *next == number + 1) {
        let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
        // SAFETY: takes no pointer, and nobody else owns a descriptor from the first to the last: all were given away here.
        let closed = unsafe { libc::syscall(libc::SYS_close_range, *first, *last, 0) };
        if closed != 0 {
            // Before Linux 5.9.
            // SAFETY: these were given away here, and nothing has closed them.
            run.iter().for_each(|number| drop(unsafe { OwnedFd::from_raw_fd(*number) }));
        }
    }
}

/// Takes the BSD lock on an open file alone, without waiting.
///
/// # Errors
/// `EWOULDBLOCK` when somebody holds it.
pub fn lease(file: OwnedFd) -> Result<Leased, Errno> {
    // SAFETY: takes no pointer, and the descriptor is open.
    let result = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) };
    Errno::result(result).map(|_| Leased(file))
}

/// Shares the BSD lock on an open file, without waiting. It belongs to the open file: it is held until the last
/// descriptor of it is closed, in whichever process.
///
/// # Errors
/// `EWOULDBLOCK` when somebody holds it alone.
pub fn lock_shared(file: impl AsFd) -> Result<(), Errno> {
    // SAFETY: takes no pointer, and the descriptor is open.
    let result = unsafe { libc::flock(file.as_fd().as_raw_fd(), libc::LOCK_SH | libc::LOCK_NB) };
    Errno::result(result).map(drop)
}

/// Takes a file lease on an open file, so that whoever opens it without waiting is told to try again. The signal that asks
/// for it back is one that nobody heeds.
///
/// # Errors
/// The error of `fcntl`.
#[cfg(test)]
pub fn lease_against_opening(file: impl AsFd) -> Result<(), Errno> {
    // From <fcntl.h>: which signal asks, instead of SIGIO, which ends a process.
    const F_SETSIG: libc::c_int = 10;
    let file = file.as_fd().as_raw_fd();
    // SAFETY: takes no pointer, and the descriptor is open.
    let result = unsafe { libc::fcntl(file, F_SETSIG, libc::SIGCHLD) };
    Errno::result(result)?;
    // SAFETY: takes no pointer, and the descriptor is open.
    let result = unsafe { libc::fcntl(file, libc::F_SETLEASE, libc::F_WRLCK) };
    Errno::result(result).map(drop)
}

/// Makes the directory `name` for its owner alone.
///
/// # Errors
/// The error of `mkdirat`.
pub fn make(directory: impl AsFd, name: &CStr) -> Result<(), Errno> {
    mkdirat(directory, name, Mode::S_IRWXU)
}

/// Moves a name from one directory to another one, or to another name. What has that name there is never replaced.
///
/// # Errors
/// `EEXIST` when the name is taken.
pub fn move_entry(from: impl AsFd, name: &CStr, to: impl AsFd, to_name: &CStr) -> Result<(), Errno> {
    renameat2(from, name, to, to_name, RenameFlags::RENAME_NOREPLACE)
}

/// Removes the empty directory `name`.
///
/// # Errors
/// The error of `unlinkat`.
pub fn remove_directory(directory: impl AsFd, name: &CStr) -> Result<(), Errno> {
    unlinkat(directory, name, UnlinkatFlags::RemoveDir)
}

/// Removes the name of anything but a directory. A link is removed itself.
///
/// # Errors
/// The error of `unlinkat`.
pub fn remove_file(directory: impl AsFd, name: &CStr) -> Result<(), Errno> {
    unlinkat(directory, name, UnlinkatFlags::NoRemoveDir)
}

/// How many names a directory on a tmpfs holds, by its size: 20 bytes for each name, `.` and `..` among them
/// (`BOGO_DIRENT_SIZE` in the kernel's mm/shmem.c). None for a size that no directory there has.
#[must_use]
pub fn names_on_tmpfs(size: u64) -> Option<usize> {
    const NAME: u64 = 20;
    let names = usize::try_from(size / NAME).ok()?.checked_sub(2)?;
    size.is_multiple_of(NAME).then_some(names)
}

/// What a directory says of one of its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// A directory.
    Directory,
    /// Anything else.
    Other,
    /// The file system does not say.
    Unknown,
}

/// Names of a directory, each a single component that is neither `.` nor `..`, in one allocation.
#[derive(Debug, Default)]
pub struct Names {
    bytes: Vec<u8>,
    names: Vec<Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    start: usize,
    end: usize,
    next: i64,
    hint: Hint,
}

impl Names {
    /// Number of names.
    #[must_use]
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The name at `index`, what the directory says of it, and the place to go on from behind it.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<(&CStr, Hint, i64)> {
        let Entry { start, end, next, hint } = *self.names.get(index)?;
        Some((CStr::from_bytes_with_nul(&self.bytes[start..end]).ok()?, hint, next))
    }

    /// Forgets all names and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.names.clear();
    }

    fn push(&mut self, name: &[u8], next: i64, hint: Hint) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(name);
        self.bytes.push(0);
        self.names.push(Entry { start, end: self.bytes.len(), next, hint });
    }
}

/// Reads the names of a directory, from where its descriptor stands.
#[derive(Debug)]
pub struct Reader {
    buffer: Vec<u8>,
}

impl Default for Reader {
    fn default() -> Self {
        Self::with_room(RECORDS)
    }
}

impl Reader {
    /// A reader for that many bytes of records at a time. A record takes up to 280 bytes.
    #[must_use]
    pub fn with_room(bytes: usize) -> Self {
        Self { buffer: vec![0; bytes.max(512)] }
    }

    /// Adds the names of one `getdents64` to `names`. Returns false at the end of the directory.
    ///
    /// # Errors
    /// The error of `getdents64`; `EBADMSG` when the kernel's records cannot be understood.
    pub fn read(&mut self, directory: impl AsFd, names: &mut Names) -> Result<bool, Errno> {
        let (descriptor, room) = (directory.as_fd().as_raw_fd(), self.buffer.len());
        // SAFETY: the kernel writes at most `room` bytes to a buffer of that size, which lives through the call.
        let count = unsafe { libc::syscall(libc::SYS_getdents64, descriptor, self.buffer.as_mut_ptr(), room) };
        let count = usize::try_from(Errno::result(count)?).map_err(|_| Errno::EBADMSG)?;
        decode(self.buffer.get(..count).ok_or(Errno::EBADMSG)?, names).ok_or(Errno::EBADMSG)?;
        Ok(count > 0)
    }

    /// Whether a directory holds nothing. Reads from where its descriptor stands, which is its start when it is fresh.
    ///
    /// # Errors
    /// As [`Reader::read`].
    pub fn is_empty(&mut self, directory: impl AsFd, names: &mut Names) -> Result<bool, Errno> {
        names.clear();
        // A buffer full of `.` and `..` alone does not occur, but an empty answer may follow them.
        while names.is_empty() && self.read(&directory, names)? {}
        Ok(names.is_empty())
    }
}

/// Layout of `struct linux_dirent64`: inode (8), offset (8), record length (2), type (1), name, zero byte, padding.
fn decode(mut records: &[u8], names: &mut Names) -> Option<()> {
    const HEADER: usize = 19;
    while !records.is_empty() {
        let next = i64::from_ne_bytes(records.get(8..16)?.try_into().ok()?);
        let length = usize::from(u16::from_ne_bytes(records.get(16..18)?.try_into().ok()?));
        let hint = match *records.get(18)? {
            libc::DT_DIR => Hint::Directory,
            libc::DT_UNKNOWN => Hint::Unknown,
            _ => Hint::Other,
        };
        let name = CStr::from_bytes_until_nul(records.get(HEADER..length)?).ok()?.to_bytes();
        match name {
            b"." | b".." => {}
            // A name that is no single component cannot come from a sound file system; nothing is done by such a name.
            b"" => return None,
            _ if name.contains(&b'/') => return None,
            _ => names.push(name, next, hint),
        }
        records = records.get(length..)?;
    }
    Some(())
}

/// Puts a directory's descriptor at a place that [`Names::get`] gave, or at its start with 0.
///
/// # Errors
/// The error of `lseek`.
pub fn seek(directory: impl AsFd, place: i64) -> Result<(), Errno> {
    lseek64(directory, place, Whence::SeekSet).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};

    fn record(name: &[u8], next: i64, kind: u8) -> Vec<u8> {
        let length = (19 + name.len() + 1).next_multiple_of(8);
        let mut record = Vec::new();
        record.extend_from_slice(&7_u64.to_ne_bytes());
        record.extend_from_slice(&next.to_ne_bytes());
        record.extend_from_slice(&u16::try_from(length).unwrap().to_ne_bytes());
        record.push(kind);
        record.extend_from_slice(name);
        record.resize(length, 0);
        record
    }

    #[test]
    fn records_that_could_lead_elsewhere_are_refused() {
        for bad in [&b""[..], b"a/b", b"/", b"../x"] {
            assert_eq!(decode(&record(bad, 1, libc::DT_DIR), &mut Names::default()), None, "{bad:?}");
        }
        let mut cut = record(b"name", 1, libc::DT_DIR);
        cut.truncate(20);
        assert_eq!(decode(&cut, &mut Names::default()), None);
        let mut names = Names::default();
        let good = [record(b".", 1, 4), record(b"..", 2, 4), record(b"a\xff\n", 3, 4), record(b"b", 4, 0)].concat();
        decode(&good, &mut names).unwrap();
        assert_eq!(names.len(), 2);
        assert_eq!(names.get(0), Some((c"a\xff\n", Hint::Directory, 3)));
        assert_eq!(names.get(1), Some((c"b", Hint::Unknown, 4)));
    }

    #[test]
    fn a_directory_is_read_to_its_end_and_again_from_a_place() {
        let directory = tempfile::tempdir().unwrap();
        for index in 0..1000 {
            fs::create_dir(directory.path().join(format!("entry-{index}"))).unwrap();
        }
        let opened = File::open(directory.path()).unwrap();
        let (mut reader, mut names) = (Reader::with_room(4096), Names::default());
        while reader.read(&opened, &mut names).unwrap() {}
        assert_eq!(names.len(), 1000);
        let (_, _, place) = names.get(499).unwrap();
        seek(&opened, place).unwrap();
        let mut rest = Names::default();
        while reader.read(&opened, &mut rest).unwrap() {}
        assert_eq!(rest.len(), 500);
        assert_eq!(rest.get(0).unwrap().0, names.get(500).unwrap().0);
    }

    #[test]
    fn a_directory_in_memory_tells_its_names_by_its_size() {
        for (size, names) in [(40, Some(0)), (60, Some(1)), (0, None), (20, None), (41, None), (4096, None)] {
            assert_eq!(names_on_tmpfs(size), names, "{size}");
        }
    }

    #[test]
    fn a_move_replaces_nothing() {
        let directory = tempfile::tempdir().unwrap();
        for path in ["from/x", "to/x"] {
            fs::create_dir_all(directory.path().join(path)).unwrap();
        }
        let from = File::open(directory.path().join("from")).unwrap();
        let to = File::open(directory.path().join("to")).unwrap();
        assert_eq!(move_entry(&from, c"x", &to, c"x"), Err(Errno::EEXIST));
        remove_directory(&to, c"x").unwrap();
        move_entry(&from, c"x", &to, c"x").unwrap();
    }

    #[test]
    fn many_locks_are_let_go_of_and_no_other() {
        let place = tempfile::tempdir().unwrap();
        let files: Vec<_> = (0..60).map(|number| place.path().join(number.to_string())).collect();
        files.iter().for_each(|file| drop(File::create(file).unwrap()));
        let locked = |file: &std::path::PathBuf| lease(File::open(file).unwrap().into());
        let mut kept = Vec::new();
        let mut ended = Vec::new();
        // Runs of one to five, and now and then one between them that stays.
        for (number, file) in files.iter().enumerate() {
            let leases = if [1, 3, 6, 10, 15, 20].contains(&(number % 21)) { &mut kept } else { &mut ended };
            leases.push((number, locked(file).unwrap()));
        }
        ended.reverse();
        let is_kept = |number: usize| kept.iter().any(|(of, _)| *of == number);
        let_go(ended.into_iter().map(|(_, lease)| lease));
        for (number, file) in files.iter().enumerate() {
            assert_eq!(locked(file).is_err(), is_kept(number), "{number}");
        }
        let_go([]);
    }

    #[test]
    fn no_link_is_followed() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("real")).unwrap();
        std::os::unix::fs::symlink("real", directory.path().join("link")).unwrap();
        let opened = File::open(directory.path()).unwrap();
        assert!(open_child(&opened, c"real").is_ok());
        assert!(matches!(open_child(&opened, c"link"), Err(Errno::ELOOP | Errno::ENOTDIR)));
        for link in ["link/.", "link", "link/"] {
            assert_eq!(open_path(&directory.path().join(link)).err(), Some(Errno::ELOOP), "{link}");
        }
    }
}
