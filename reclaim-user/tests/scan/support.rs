//! A private mount namespace with a tmpfs as the root directory, and sandboxes that hold entries of it.

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use reclaim_user::evidence::ground::ground;
use reclaim_user::evidence::scan::{Scan, ScanOptions, Scanner};
use reclaim_user::model::id::NamespaceId;
use reclaim_user::model::pin::{Pin, Role};
use reclaim_user::model::pin_set::PinSet;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Every combination of the kernel's means that finds namespaces which tasks are in.
pub(crate) const WAYS: [ScanOptions; 4] = [
    ScanOptions { use_namespace_list: true, use_mount_list: true, use_entering: true },
    ScanOptions { use_namespace_list: true, use_mount_list: true, use_entering: false },
    ScanOptions { use_namespace_list: false, use_mount_list: true, use_entering: true },
    ScanOptions { use_namespace_list: false, use_mount_list: false, use_entering: true },
];

/// Held by tests that lower the claim of every scan of the host, and by those that look at claims.
pub(crate) fn claims() -> MutexGuard<'static, ()> {
    static CLAIMS: Mutex<()> = Mutex::new(());
    CLAIMS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The root directory of a test, in a mount namespace of the test's own thread.
pub(crate) struct Scene {
    directory: tempfile::TempDir,
}

impl Scene {
    pub(crate) fn new() -> Self {
        unshare(CloneFlags::CLONE_NEWNS).expect("tests of namespaces need root");
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SLAVE, None::<&str>).unwrap();
        let directory = tempfile::tempdir().unwrap();
        mount(Some("scene"), directory.path(), Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
        std::fs::create_dir(directory.path().join("root")).unwrap();
        std::fs::create_dir(directory.path().join("mnt")).unwrap();
        Self { directory }
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.directory.path().join("root")
    }

    /// A directory beside the root, to mount things on.
    pub(crate) fn mnt(&self) -> PathBuf {
        self.directory.path().join("mnt")
    }

    pub(crate) fn entry(&self, name: impl AsRef<OsStr>) -> PathBuf {
        let path = self.root().join(name.as_ref());
        std::fs::create_dir(&path).unwrap();
        path
    }

    /// A process in a mount namespace of its own, private, that has run a script: `$1` is the root, `$2` the directory
    /// to mount things on, further arguments follow. It stays until it is dropped.
    pub(crate) fn sandbox(&self, script: &str, arguments: &[&OsStr]) -> Sandbox {
        self.sandbox_with("private", script, arguments)
    }

    pub(crate) fn sandbox_with(&self, propagation: &str, script: &str, arguments: &[&OsStr]) -> Sandbox {
        let script = format!("set -e\n{script}\necho ready\nexec sleep 1000");
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", propagation, "sh", "-c", &script, "sh"]);
        Sandbox::start(command.arg(self.root()).arg(self.mnt()).args(arguments))
    }

    /// A Python program that prints `ready`, given the root and the directory to mount things on.
    pub(crate) fn python(&self, program: &str) -> Sandbox {
        let prelude = "import ctypes, os, platform, sys, threading, time\n\
             libc = ctypes.CDLL(None, use_errno=True)\n\
             def must(value):\n    assert value == 0, os.strerror(ctypes.get_errno())\n\
             def isolate():\n    must(libc.unshare(0x20000 | 0x200))\n    must(libc.mount(b'none', b'/', None, 0x44000, None))\n\
             def bind(a, b):\n    must(libc.mount(os.fsencode(a), os.fsencode(b), None, 4096, None))\n\
             root, mnt = sys.argv[1:3]\n";
        let mut command = Command::new("python3");
        Sandbox::start(command.args(["-c", &format!("{prelude}{program}")]).arg(self.root()).arg(self.mnt()))
    }

    /// The pins of a scan on the entries of the root.
    pub(crate) fn pins(&self, scan: &Scan) -> PinSet {
        let mut pins = PinSet::watching([ground(&self.root()).unwrap().location]);
        for (namespace, found) in &scan.namespaces {
            assert!(!pins.replace(*namespace, found.clone()), "each namespace comes once");
        }
        pins
    }
}

/// A process and all that it started; killed on drop.
pub(crate) struct Sandbox {
    child: Child,
}

impl Sandbox {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n", "the sandbox failed");
        Self { child }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn namespace(&self) -> NamespaceId {
        NamespaceId(std::fs::metadata(format!("/proc/{}/ns/mnt", self.pid())).unwrap().ino())
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

pub(crate) fn scan(options: ScanOptions) -> Scan {
    Scanner::new(options).scan().unwrap()
}

/// Waits for something that other scans of the host may put off for a moment: a namespace lives as long as it is read.
pub(crate) fn eventually(mut holds: impl FnMut() -> bool) -> bool {
    let started = Instant::now();
    std::iter::repeat_with(&mut holds).find(|holds| *holds || started.elapsed() > Duration::from_secs(10)).unwrap()
}

/// The pins on one entry of the root that the first index watches.
pub(crate) fn pins_on(pins: &PinSet, name: impl AsRef<OsStr>) -> Vec<Pin> {
    pins.pins_of(0, name.as_ref().as_bytes())
}

pub(crate) fn has(pins: &[Pin], role: Role, namespace: NamespaceId) -> bool {
    pins.iter().any(|pin| pin.role == role && pin.namespace == Some(namespace))
}

pub(crate) fn os(path: &Path) -> &OsStr {
    path.as_os_str()
}

/// Whether the kernel can list mount namespaces (`NS_MNT_GET_NEXT`, 6.12), as its type information tells. Where it cannot,
/// says that the test is skipped.
pub(crate) fn kernel_lists_namespaces() -> bool {
    let types = std::fs::read("/sys/kernel/btf/vmlinux").expect("type information, to see what the kernel has");
    let name = b"\0mnt_ns_info\0";
    let lists = types.windows(name.len()).any(|part| part == name);
    if !lists {
        let test = std::thread::current().name().unwrap_or("test").to_owned();
        eprintln!("SKIP {test}: the kernel has no NS_MNT_GET_NEXT (before 6.12)");
    }
    lists
}
