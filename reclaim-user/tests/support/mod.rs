//! Namespaces and calls that hang, for the tests of the probes.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::gettid;

/// Inode number of the calling thread's mount namespace.
pub(crate) fn namespace_here() -> u32 {
    let namespace = fs::metadata("/proc/thread-self/ns/mnt").expect("the thread has a namespace");
    namespace.ino().try_into().expect("32 bits")
}

/// Inode number of a process's mount namespace.
#[track_caller]
pub(crate) fn namespace_of(process: u32) -> u32 {
    let namespace = fs::metadata(format!("/proc/{process}/ns/mnt")).expect("the process lives");
    namespace.ino().try_into().expect("32 bits")
}

/// Changes the propagation of every mount of the calling thread's namespace; harmless to repeat.
pub(crate) fn make_slave() {
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SLAVE, None::<&str>).expect("make / a slave");
}

/// Runs something on a thread in a mount namespace of its own.
pub(crate) fn in_private_namespace<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let work = || {
        unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS).expect("unshare; this test needs root");
        make_slave();
        work()
    };
    thread::scope(|scope| scope.spawn(work).join()).expect("the thread does not panic")
}

/// Whether the other end of a channel is gone.
pub(crate) fn has_ended<T>(channel: &Receiver<T>) -> bool {
    matches!(channel.try_recv(), Err(mpsc::TryRecvError::Disconnected))
}

/// A thread inside mount(2), which looks up a path in a FUSE file system that nobody answers for.
pub(crate) struct HangingMount {
    thread: u32,
    /// Each message is answered: the first one once the call has failed. The threads end when this goes.
    let_go: Sender<Sender<()>>,
    ask: Sender<Sender<Child>>,
    threads: Vec<JoinHandle<()>>,
}

impl HangingMount {
    /// Returns once the thread is inside.
    pub(crate) fn start() -> Self {
        let (say, hear) = mpsc::channel();
        let (let_go, let_go_asked) = mpsc::channel::<Sender<()>>();
        let (ask, asked) = mpsc::channel::<Sender<Child>>();
        let (failed, has_failed) = mpsc::channel::<()>();
        let (stay, leave) = mpsc::channel::<()>();
        // This thread owns the namespace; the one that hangs and child processes inherit it.
        let owner = thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNS).expect("unshare; this test needs root");
            make_slave();
            mount(Some("tmpfs"), "/mnt", Some("tmpfs"), MsFlags::empty(), None::<&str>).expect("mount a tmpfs");
            fs::create_dir("/mnt/target").expect("mkdir");
            let device = mount_fuse("/mnt/fuse");
            // Of its own, since the kernel lets one look-up after the other into a directory.
            let other = mount_fuse("/mnt/other");
            let hanging = thread::spawn(move || {
                say.send(gettid().as_raw()).expect("the test listens");
                mount(Some("/mnt/fuse/x"), "/mnt/target", None::<&str>, MsFlags::MS_BIND, None::<&str>)
                    .expect_err("nobody answers");
                failed.send(()).expect("the owner listens");
                leave.recv().expect_err("nothing is sent");
            });
            if let Ok(answer) = asked.recv() {
                let child = Command::new("mount")
                    .args(["--no-canonicalize", "--bind", "/mnt/other/x", "/mnt/target"])
                    .stderr(Stdio::null())
                    .spawn()
                    .expect("mount(8) starts");
                answer.send(child).expect("the test listens");
            }
            let answer = let_go_asked.recv();
            // The last descriptor of the connection: every call that waits for it fails.
            drop((device, other));
            has_failed.recv().expect("the call fails as it should");
            if let Ok(answer) = answer {
                answer.send(()).expect("the test listens");
            }
            let_go_asked.recv().expect_err("it is asked once");
            drop(stay);
            hanging.join().expect("the thread ends well");
        });
        let thread = hear.recv().expect("the thread starts").unsigned_abs();
        let started = Instant::now();
        let number = format!("{} ", libc::SYS_mount);
        loop {
            let call = fs::read_to_string(format!("/proc/self/task/{thread}/syscall")).expect("the thread lives");
            if call.starts_with(&number) {
                break;
            }
            assert!(started.elapsed() < Duration::from_secs(10), "the thread does not hang: {call}");
            thread::sleep(Duration::from_millis(1));
        }
        Self { thread, let_go, ask, threads: vec![owner] }
    }

    /// Its thread id.
    pub(crate) fn thread(&self) -> u32 {
        self.thread
    }

    /// Starts a process that hangs in the same way.
    pub(crate) fn child(&self) -> Child {
        let (answer, answered) = mpsc::channel();
        self.ask.send(answer).expect("the owner listens");
        answered.recv().expect("the owner answers")
    }

    /// Lets the call fail, and returns once it has.
    pub(crate) fn release(self) {
        self.let_fail().end();
    }

    /// Lets the call fail, and returns once it has. The thread stays, asleep outside of any mount call.
    pub(crate) fn let_fail(self) -> FailedMount {
        let Self { thread, let_go, ask, threads } = self;
        drop(ask);
        let (answer, answered) = mpsc::channel();
        let_go.send(answer).expect("the owner listens");
        answered.recv().expect("the owner answers");
        FailedMount { thread, let_go, threads }
    }
}

/// A thread that has been inside mount(2), and sleeps.
pub(crate) struct FailedMount {
    thread: u32,
    let_go: Sender<Sender<()>>,
    threads: Vec<JoinHandle<()>>,
}

impl FailedMount {
    /// Its thread id.
    pub(crate) fn thread(&self) -> u32 {
        self.thread
    }

    /// Ends the thread.
    pub(crate) fn end(self) {
        let Self { thread: _, let_go, threads } = self;
        drop(let_go);
        for thread in threads {
            thread.join().expect("the owner ends well");
        }
    }
}

/// Mounts a FUSE file system in the calling thread's namespace. Look-ups hang until the device is closed.
fn mount_fuse(place: &str) -> File {
    fs::create_dir(place).expect("mkdir");
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse");
    let device = device.expect("/dev/fuse opens: the kernel needs CONFIG_FUSE_FS");
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
    mount(Some("hangs"), place, Some("fuse"), MsFlags::empty(), Some(&*options)).expect("mount FUSE");
    device
}
