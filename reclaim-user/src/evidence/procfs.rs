//! Reading procfs through one descriptor, so that a thread that moves between namespaces keeps reading the same one.

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, fstat, fstatat};
use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};
use nix::unistd::read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use thiserror::Error;

/// Inode number of the initial user namespace (`PROC_USER_INIT_INO`, include/linux/proc_ns.h).
const INITIAL_USER_NAMESPACE: u64 = 0xEFFF_FFFD;
/// Inode number of the initial pid namespace (`PROC_PID_INIT_INO`).
const INITIAL_PID_NAMESPACE: u64 = 0xEFFF_FFFC;
const CAP_SYS_ADMIN: u32 = 21;

/// procfs could not be used at all.
#[derive(Debug, Error)]
pub enum ProcfsError {
    /// It could not be opened.
    #[error("could not open /proc; mount procfs there")]
    Open(#[source] Errno),
    /// Something else is mounted there, or nothing.
    #[error("what lies at /proc is no procfs; mount procfs there")]
    NotProcfs,
}

/// An open procfs. It pins its own mount, so it is held for the length of one job only.
#[derive(Debug)]
pub struct Procfs {
    directory: OwnedFd,
}

impl Procfs {
    /// Opens `/proc` as the calling thread sees it.
    ///
    /// # Errors
    /// When there is no procfs.
    pub fn open() -> Result<Self, ProcfsError> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let directory = nix::fcntl::open("/proc", flags, Mode::empty()).map_err(ProcfsError::Open)?;
        let status = fstatfs(&directory).map_err(ProcfsError::Open)?;
        if status.filesystem_type() == PROC_SUPER_MAGIC { Ok(Self { directory }) } else { Err(ProcfsError::NotProcfs) }
    }

    /// Opens a file in it for reading.
    ///
    /// # Errors
    /// As openat(2).
    pub fn open_file(&self, path: &str) -> nix::Result<OwnedFd> {
        openat(&self.directory, path, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())
    }

    /// Reads a file whole into `text`, which is emptied first.
    ///
    /// # Errors
    /// As openat(2) and read(2).
    pub fn read(&self, path: &str, text: &mut Vec<u8>) -> nix::Result<()> {
        let file = self.open_file(path)?;
        let mut length = 0;
        loop {
            if text.len() < length + 32_768 {
                text.resize(length + 65_536, 0);
            }
            match read(&file, &mut text[length..]) {
                Ok(0) => break,
                Ok(count) => length += count,
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        text.truncate(length);
        Ok(())
    }

    /// Where a link points.
    ///
    /// # Errors
    /// As readlinkat(2).
    pub fn link(&self, path: &str) -> nix::Result<Vec<u8>> {
        readlinkat(&self.directory, path).map(OsStringExt::into_vec)
    }

    /// The number in a namespace link such as `mnt:[4026531832]`, given its kind.
    ///
    /// # Errors
    /// As readlinkat(2), and `EBADMSG` when it is no such link.
    pub fn namespace_link(&self, path: &str, kind: &str) -> nix::Result<u64> {
        namespace_number(&self.link(path)?, kind).ok_or(Errno::EBADMSG)
    }

    /// Status of a file in it; links are followed.
    ///
    /// # Errors
    /// As fstatat(2).
    pub fn status(&self, path: &str) -> nix::Result<FileStat> {
        fstatat(&self.directory, path, nix::fcntl::AtFlags::empty())
    }

    /// The names in a directory that are decimal numbers.
    ///
    /// # Errors
    /// As openat(2) and getdents64(2).
    pub fn numbers(&self, path: &str) -> nix::Result<Vec<u32>> {
        let mut directory =
            Dir::openat(&self.directory, path, OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
        let mut numbers = Vec::new();
        for entry in directory.iter() {
            if let Ok(Ok(number)) = entry?.file_name().to_str().map(str::parse) {
                numbers.push(number);
            }
        }
        Ok(numbers)
    }

    /// One field of a task's `status`, without its name: `status_field("thread-self", "CapEff")`.
    ///
    /// # Errors
    /// As [`Procfs::read`], and `EBADMSG` when there is no such field.
    pub fn status_field(&self, task: &str, field: &str) -> nix::Result<String> {
        let mut text = Vec::new();
        self.read(&format!("{task}/status"), &mut text)?;
        let text = String::from_utf8_lossy(&text);
        let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        value.map(|value| value.trim().to_owned()).ok_or(Errno::EBADMSG)
    }

    /// Whether the calling thread is in the initial user namespace.
    #[must_use]
    pub fn in_initial_user_namespace(&self) -> bool {
        self.namespace_link("thread-self/ns/user", "user") == Ok(INITIAL_USER_NAMESPACE)
    }

    /// Whether this procfs shows the initial pid namespace, and the caller is in it.
    #[must_use]
    pub fn shows_initial_pid_namespace(&self) -> bool {
        self.namespace_link("thread-self/ns/pid", "pid") == Ok(INITIAL_PID_NAMESPACE)
            && self.link("self").is_ok_and(|own| own == std::process::id().to_string().as_bytes())
    }

    /// Whether the calling thread may do anything to every namespace of the host: CAP_SYS_ADMIN in the initial user
    /// namespace.
    #[must_use]
    pub fn privileged_over_host(&self) -> bool {
        let effective = self.status_field("thread-self", "CapEff").ok();
        let effective = effective.and_then(|digits| u64::from_str_radix(&digits, 16).ok()).unwrap_or(0);
        effective & 1 << CAP_SYS_ADMIN != 0 && self.in_initial_user_namespace()
    }
}

impl AsFd for Procfs {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

/// Inode number of an open namespace.
///
/// # Errors
/// As fstat(2).
pub fn inode(namespace: impl AsFd) -> nix::Result<u64> {
    Ok(fstat(namespace)?.st_ino)
}

/// The number in `kind:[number]`.
#[must_use]
pub fn namespace_number(link: &[u8], kind: &str) -> Option<u64> {
    let number = link.strip_prefix(kind.as_bytes())?.strip_prefix(b":[")?.strip_suffix(b"]")?;
    std::str::from_utf8(number).ok()?.parse().ok()
}

/// Whether a procfs with these super-block options keeps tasks from a caller who is in the groups given.
///
/// `hidepid=2` (invisible) spares members of the group that `gid` names, root's by default; whoever is not in it sees
/// what it may ptrace, and a security module may refuse that to the most privileged. `hidepid=4` (ptraceable) spares
/// nobody. `hidepid=1` (noaccess) shows every task, so each that cannot be read is seen as such.
/// (`has_pid_permissions`, fs/proc/base.c)
#[must_use]
pub fn hides_tasks(options: &[u8], in_group: impl Fn(u32) -> bool) -> bool {
    let value = |name: &[u8]| {
        options.split(|byte| *byte == b',').find_map(|option| option.strip_prefix(name)?.strip_prefix(b"="))
    };
    match value(b"hidepid") {
        None | Some(b"0" | b"off" | b"1" | b"noaccess") => false,
        Some(b"2" | b"invisible") => {
            let group = match value(b"gid") {
                None => Some(0),
                Some(digits) => std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()),
            };
            !group.is_some_and(in_group)
        }
        Some(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidepid_hides_unless_the_group_is_spared() {
        let root = |group| group == 0;
        assert!(!hides_tasks(b"rw", root));
        assert!(!hides_tasks(b"rw,hidepid=noaccess", root));
        assert!(!hides_tasks(b"rw,hidepid=invisible", root));
        assert!(hides_tasks(b"rw,hidepid=2", |_| false));
        assert!(hides_tasks(b"rw,gid=27,hidepid=invisible", root));
        assert!(!hides_tasks(b"rw,gid=27,hidepid=invisible", |group| group == 27));
        assert!(hides_tasks(b"rw,hidepid=ptraceable", root));
        assert!(hides_tasks(b"rw,hidepid=something", root));
    }

    #[test]
    fn a_file_longer_than_the_buffer_is_read_whole() {
        let procfs = Procfs::open().expect("procfs is mounted");
        let mut text = vec![7; 10];
        procfs.read("self/smaps", &mut text).expect("readable");
        assert!(text.len() > 4096 && text.ends_with(b"\n"));
        assert!(!procfs.numbers("self/task").expect("listable").is_empty());
    }

    #[test]
    fn namespace_links_are_taken_apart() {
        assert_eq!(namespace_number(b"mnt:[4026531832]", "mnt"), Some(4_026_531_832));
        assert_eq!(namespace_number(b"mnt:[4026531832]", "net"), None);
        assert_eq!(namespace_number(b"mnt:[x]", "mnt"), None);
    }
}
