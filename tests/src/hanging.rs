//! Mount calls that hang inside the kernel until the test lets them go: in a FUSE file system whose server is this program.

use crate::{Actor, Host, OrFail as _, Request, wait_until};
use nix::mount::{MsFlags, mount};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// How long anything takes that is not made to hang.
const SOON: Duration = Duration::from_secs(20);
/// Between two looks of the server at whether it is over, in milliseconds.
const TURN: u16 = 10;

/// A name that is looked up and that nothing has.
const NOWHERE: &str = "nowhere";

/// Requests of the kernel. <include/uapi/linux/fuse.h>
const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const INIT: u32 = 26;
const INTERRUPT: u32 = 36;
const BATCH_FORGET: u32 = 42;

/// A sandbox inside a mount call that hangs.
#[derive(Debug)]
pub struct Hanging {
    call: JoinHandle<(Actor, Result<String, String>)>,
    pid: i32,
    number: i64,
    point: PathBuf,
    server: Server,
}

impl Hanging {
    /// Binds a path that the kernel has looked up already when this returns, on a directory in which somebody looks for
    /// something: the kernel lets nobody mount there meanwhile.
    #[track_caller]
    #[must_use]
    pub fn bind(host: &Host, source: &Path) -> Self {
        let (server, point) = Server::start(host);
        let (mut other, nowhere) = (Actor::start(), point.join(NOWHERE));
        // It ends with the server. A process of its own: one of this program's threads that cannot be killed would keep the
        // server's descriptor open after this program has ended.
        thread::spawn(move || other.attempt(&Request::Read(nowhere.into())));
        wait_until("somebody to look into a directory", SOON, || (server.held() > 0).then_some(()));
        let request = Request::Bind(source.into(), point.clone().into());
        Self::call(host, &request, libc::SYS_mount, point, server)
    }

    /// Unmounts what the kernel does not come to look up.
    #[track_caller]
    #[must_use]
    pub fn unmount(host: &Host) -> Self {
        let (server, point) = Server::start(host);
        let request = Request::Unmount(point.join(NOWHERE).into());
        Self::call(host, &request, libc::SYS_umount2, point, server)
    }

    #[track_caller]
    fn call(host: &Host, request: &Request, number: i64, point: PathBuf, server: Server) -> Self {
        let mut sandbox = host.sandbox();
        let (pid, request) = (sandbox.pid(), request.clone());
        let call = thread::spawn(move || {
            let answer = sandbox.attempt(&request);
            (sandbox, answer)
        });
        let hanging = Self { call, pid, number, point, server };
        wait_until("a mount call to hang", SOON, || hanging.is_inside().then_some(()));
        // It sleeps for a moment on its way as well.
        thread::sleep(Duration::from_millis(50));
        assert!(hanging.is_inside(), "the call hangs");
        hanging
    }

    /// The process that makes the call.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Whether it is inside the call.
    #[track_caller]
    #[must_use]
    pub fn is_inside(&self) -> bool {
        let call = fs::read_to_string(format!("/proc/{}/syscall", self.pid)).or_fail("look at a sandbox");
        call.starts_with(&format!("{} ", self.number))
    }

    /// Lets the call go on: the sandbox, what came of the call, and where a bind is mounted.
    #[track_caller]
    pub fn let_go(self) -> (Actor, Result<String, String>, PathBuf) {
        let Self { call, point, server, .. } = self;
        drop(server);
        let Ok((sandbox, answer)) = call.join() else { panic!("a sandbox is gone") };
        (sandbox, answer, point)
    }

    /// Lets a bind go on, and fails the test unless the sandbox works with it.
    #[track_caller]
    pub fn works_in_the_end(self, source: &Path) {
        let (mut sandbox, answer, point) = self.let_go();
        answer.or_fail("bind");
        sandbox.still_works(point, source);
    }
}

/// A file system that leaves some questions open until this goes.
#[derive(Debug)]
struct Server {
    over: Arc<AtomicBool>,
    held: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    #[track_caller]
    fn start(host: &Host) -> (Self, PathBuf) {
        let point = host.mount_point();
        let mut device = OpenOptions::new();
        let device = device.read(true).write(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open("/dev/fuse");
        let device = device.or_fail("open /dev/fuse: the kernel needs CONFIG_FUSE_FS");
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        mount(Some("hangs"), &point, Some("fuse"), MsFlags::empty(), Some(&*options)).or_fail("mount FUSE");
        let (over, held) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (is_over, count) = (Arc::clone(&over), Arc::clone(&held));
        let thread = Some(thread::spawn(move || serve(device, &is_over, &count)));
        (Self { over, held, thread }, point)
    }

    fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        // So that nothing hangs any more when a test has ended, however it ended.
        let _ended = self.thread.take().map(JoinHandle::join);
    }
}

/// Answers until it is over, and then what was left open as well. Whoever asks later finds the file system gone.
fn serve(mut device: File, over: &AtomicBool, held_count: &AtomicUsize) {
    let mut held = Vec::new();
    let mut request = vec![0; 1 << 17];
    while !over.load(Ordering::Relaxed) {
        let mut waits = [PollFd::new(device.as_fd(), PollFlags::POLLIN)];
        let _timed_out = poll(&mut waits, PollTimeout::from(TURN));
        // Nothing to read yet, or it was taken back.
        let Ok(length) = device.read(&mut request) else { continue };
        // struct fuse_in_header: length, opcode, number.
        let Some((head, _)) = request.get(..length).and_then(|read| read.split_at_checked(16)) else { continue };
        let opcode = u32::from_ne_bytes([head[4], head[5], head[6], head[7]]);
        let mut unique = [0; 8];
        unique.copy_from_slice(&head[8..16]);
        match opcode {
            FORGET | INTERRUPT | BATCH_FORGET => {}
            LOOKUP => {
                held.push(unique);
                held_count.store(held.len(), Ordering::Relaxed);
            }
            _ => reply(&mut device, unique, answer(opcode)),
        }
    }
    held.into_iter().for_each(|unique| reply(&mut device, unique, answer(LOOKUP)));
}

/// What a request is answered with: bytes, or the number of an error.
fn answer(opcode: u32) -> Result<Vec<u8>, i32> {
    let mut bytes = Vec::new();
    let mut words = |words: &[u32]| words.iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
    match opcode {
        // struct fuse_init_out: version 7.31, read-ahead, flags, limits of what goes on behind, longest write, granularity.
        INIT => words(&[7, 31, 65_536, 0, (9 << 16) | 12, 65_536, 1, 16, 0, 0, 0, 0, 0, 0, 0, 0]),
        // struct fuse_attr_out: good for an hour; then number, sizes and times; an empty directory of root's; the size of a block.
        GETATTR => {
            words(&[3600, 0, 0, 0, 1, 0]);
            words(&[0; 13]);
            words(&[0o40755, 2, 0, 0, 0, 4096, 0]);
        }
        LOOKUP => return Err(libc::ENOENT),
        _ => return Err(libc::ENOSYS),
    }
    Ok(bytes)
}

fn reply(device: &mut File, unique: [u8; 8], answer: Result<Vec<u8>, i32>) {
    let (error, bytes) = answer.map_or_else(|error| (-error, Vec::new()), |bytes| (0, bytes));
    let mut message = Vec::with_capacity(16 + bytes.len());
    message.extend((16 + bytes.len() as u32).to_ne_bytes());
    message.extend(error.to_ne_bytes());
    message.extend(unique);
    message.extend(bytes);
    // Whoever asked may be gone.
    let _gone = device.write(&message);
}
