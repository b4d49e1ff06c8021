//! A host of the test's own: a private mount namespace with a tmpfs in it.

use crate::OrFail as _;
use crate::actor::Actor;
use crate::namespace::make_namespace;
use crate::process::run_to_end;
use nix::fcntl::{OFlag, open, openat};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::Uid;
use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

/// Runs a test body on a thread in a mount namespace of its own, in which nothing that is mounted reaches the machine.
///
/// The thread is a fresh one because the test runner may reuse its own for the next test.
///
/// # Panics
/// When not run as root, and when the body panics.
#[track_caller]
pub fn private_host(body: impl FnOnce(&Host) + Send + 'static) {
    assert!(
        Uid::effective().is_root(),
        "this test makes mount namespaces and needs root: run `cargo xtask test`, which asks for it"
    );
    let name = thread::current().name().unwrap_or("test").to_owned();
    let thread = thread::Builder::new().name(name).spawn(move || {
        let host = Host::make();
        body(&host);
    });
    if let Err(panic) = thread.or_fail("start a thread").join() {
        resume_unwind(panic);
    }
}

/// The private host of one test. Its directory is a tmpfs that goes with it.
#[derive(Debug)]
pub struct Host {
    directory: PathBuf,
    extra: AtomicU32,
    _mount_point: tempfile::TempDir,
}

impl Host {
    fn make() -> Self {
        // CLONE_NEWNS gives the thread its own root and working directory too, so other tests see nothing of this.
        make_namespace().or_fail("unshare the mount namespace");
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SLAVE, None::<&str>)
            .or_fail("make / a slave");
        let mount_point = tempfile::Builder::new().prefix("reclaim-test-").tempdir().or_fail("make a directory");
        let directory = mount_point.path().to_owned();
        mount_tmpfs(&directory);
        let host = Self { directory, extra: AtomicU32::new(0), _mount_point: mount_point };
        host.make_dir("root");
        host
    }

    /// The directory of this host.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// A path in the directory of this host.
    #[must_use]
    pub fn path(&self, relative: impl AsRef<Path>) -> PathBuf {
        self.directory.join(relative)
    }

    /// The root that most tests reclaim.
    #[must_use]
    pub fn root(&self) -> PathBuf {
        self.path("root")
    }

    /// Makes a directory with all that lead to it.
    #[track_caller]
    pub fn make_dir(&self, relative: impl AsRef<Path>) -> PathBuf {
        let path = self.path(relative);
        fs::create_dir_all(&path).or_fail(format_args!("make {}", path.display()));
        path
    }

    /// Makes a file with all that lead to it.
    #[track_caller]
    pub fn make_file(&self, relative: impl AsRef<Path>, text: &str) -> PathBuf {
        let path = self.path(relative);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).or_fail(format_args!("make {}", parent.display()));
        }
        fs::write(&path, text).or_fail(format_args!("write {}", path.display()));
        path
    }

    /// Writes a program, with the directories above it, and returns its path. A process of its own writes it: what this
    /// one has open to write, a child of another thread has open too until it runs its program, and the kernel starts
    /// nothing that somebody writes (execve(2), ETXTBSY).
    #[track_caller]
    pub fn make_program(&self, relative: impl AsRef<Path>, text: &str) -> PathBuf {
        let source = self.make_file(Path::new("programs").join(relative.as_ref()), text);
        let path = self.path(relative);
        let parent = path.parent().or_fail("a directory above the program");
        fs::create_dir_all(parent).or_fail(format_args!("make {}", parent.display()));
        let mut copy = Command::new("cp");
        let copied = run_to_end(copy.arg(source).arg(&path), Duration::from_secs(40));
        assert_eq!(copied.code(), 0, "write {}: {copied:?}", path.display());
        set_mode(&path, 0o755);
        path
    }

    /// Makes an empty directory of the root and returns its path.
    #[track_caller]
    pub fn entry(&self, name: impl AsRef<[u8]>) -> PathBuf {
        self.make_dir(Path::new("root").join(OsStr::from_bytes(name.as_ref())))
    }

    /// Makes `count` empty directories of the root with a common prefix.
    #[track_caller]
    pub fn entries(&self, prefix: &str, count: usize) -> Vec<PathBuf> {
        (0..count).map(|index| self.entry(format!("{prefix}{index}"))).collect()
    }

    /// Makes an empty directory outside the root, for a sandbox to mount on.
    #[track_caller]
    pub fn mount_point(&self) -> PathBuf {
        let index = self.extra.fetch_add(1, Ordering::Relaxed);
        self.make_dir(format!("mount-points/{index}"))
    }

    /// Makes a directory of this host and mounts another tmpfs on it.
    #[track_caller]
    pub fn make_tmpfs(&self, relative: &str) -> PathBuf {
        let path = self.make_dir(relative);
        mount_tmpfs(&path);
        path
    }

    /// Mounts a tmpfs with little room and few inodes on a directory that is there.
    #[track_caller]
    pub fn mount_small(&self, path: &Path) {
        mount(Some("reclaim-test"), path, Some("tmpfs"), MsFlags::empty(), Some("mode=755,size=64k,nr_inodes=64"))
            .or_fail(format_args!("mount a small tmpfs on {}", path.display()));
    }

    /// Binds one path on another in this host's own namespace, the one that reclaim runs in.
    #[track_caller]
    pub fn bind(&self, source: &Path, target: &Path) {
        mount(Some(source), target, None::<&str>, MsFlags::MS_BIND, None::<&str>).or_fail(format_args!(
            "bind {} on {}",
            source.display(),
            target.display()
        ));
    }

    /// Unmounts a path in this host's own namespace.
    #[track_caller]
    pub fn unmount(&self, target: &Path) {
        umount2(target, MntFlags::empty()).or_fail(format_args!("unmount {}", target.display()));
    }

    /// A sandbox with a mount namespace of its own and nothing mounted yet.
    #[track_caller]
    #[must_use]
    pub fn sandbox(&self) -> Actor {
        let mut actor = Actor::start();
        actor.unshare();
        actor
    }

    /// A sandbox that has one entry bound on a mount point of its own, which is returned too.
    #[track_caller]
    #[must_use]
    pub fn sandbox_with(&self, entry: &Path) -> (Actor, PathBuf) {
        let point = self.mount_point();
        let mut actor = self.sandbox();
        actor.bind(entry, &point);
        (actor, point)
    }

    /// Names of the root's children, without reclaim's own directory, sorted.
    #[track_caller]
    #[must_use]
    pub fn names(&self) -> Vec<Vec<u8>> {
        names_in(&self.root()).into_iter().filter(|name| name != b".reclaim").collect()
    }

    /// Names of what lies condemned in the root, sorted.
    #[track_caller]
    #[must_use]
    pub fn condemned(&self) -> Vec<Vec<u8>> {
        let own = self.root().join(".reclaim");
        if !own.is_dir() {
            return Vec::new();
        }
        let mut names: Vec<_> = names_in(&own)
            .iter()
            .map(|batch| own.join(OsStr::from_bytes(batch)))
            .filter(|batch| batch.is_dir())
            .flat_map(|batch| names_in(&batch))
            .collect();
        names.sort();
        names
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Detached and with all below it, so that the mount point can be removed; sandboxes hold copies of their own.
        if let Err(error) = umount2(&self.directory, MntFlags::MNT_DETACH) {
            eprintln!("unmount {}: {error}", self.directory.display());
        }
    }
}

#[track_caller]
fn mount_tmpfs(path: &Path) {
    mount(Some("reclaim-test"), path, Some("tmpfs"), MsFlags::empty(), Some("mode=755"))
        .or_fail(format_args!("mount a tmpfs on {}", path.display()));
}

#[track_caller]
fn names_in(directory: &Path) -> Vec<Vec<u8>> {
    let mut names: Vec<_> = fs::read_dir(directory)
        .or_fail(format_args!("list {}", directory.display()))
        .map(|entry| entry.or_fail("list").file_name().as_bytes().to_vec())
        .collect();
    names.sort();
    names
}

/// Sets the permission bits of a path.
#[track_caller]
pub fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).or_fail(format_args!("chmod {}", path.display()));
}

/// Makes a file immutable, or lets it change again. Every file system that tests use can do that: tmpfs since 6.0.
#[track_caller]
pub fn set_immutable(path: &Path, immutable: bool) {
    let file = fs::File::open(path).or_fail(format_args!("open {}", path.display()));
    let mut flags = ioctl_getflags(&file).or_fail(format_args!("FS_IOC_GETFLAGS on {}", path.display()));
    flags.set(IFlags::IMMUTABLE, immutable);
    ioctl_setflags(&file, flags).or_fail(format_args!("FS_IOC_SETFLAGS on {}", path.display()));
}

/// Makes directories inside each other, further down than any path reaches.
#[track_caller]
pub fn make_deep_tree(top: &Path, levels: usize) {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let mut above = open(top, flags, Mode::empty()).or_fail(format_args!("open {}", top.display()));
    for level in 0..levels {
        mkdirat(&above, "d", Mode::S_IRWXU).or_fail(format_args!("make level {level}"));
        above = openat(&above, "d", flags, Mode::empty()).or_fail(format_args!("open level {level}"));
    }
}

/// The number that names a mount namespace, of the process `pid` or of one thread (`PID/task/TID`).
#[track_caller]
pub(crate) fn namespace_number(task: &str) -> u64 {
    let path = format!("/proc/{task}/ns/mnt");
    fs::metadata(&path).or_fail(format_args!("look at {path}")).ino()
}
