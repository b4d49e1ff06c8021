//! The helper process that does what an [`Actor`](crate::Actor) is told.

use crate::namespace::make_namespace;
use crate::protocol::{Answer, PathBytes, Request};
use nix::fcntl::{Flock, FlockArg};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::{Gid, Uid, chroot, getppid, gettid, setgroups, setresgid, setresuid};
use rustix::fs::CWD;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};
use std::collections::BTreeMap;
use std::env;
use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{self, Child, Command, Stdio};
use std::thread;
use std::time::Duration;

/// Serves requests until the pipe ends, then ends the process, with all its threads.
pub(crate) fn serve() -> ! {
    Server::default().run(&process::id().to_string())
}

#[derive(Default)]
struct Server {
    held: Vec<File>,
    trees: Vec<OwnedFd>,
    locks: Vec<Flock<File>>,
    zombies: Vec<Child>,
}

impl Server {
    fn run(mut self, greeting: &str) -> ! {
        say(&Answer::Done(greeting.to_owned()));
        let mut line = String::new();
        loop {
            line.clear();
            match io::stdin().read_line(&mut line) {
                Ok(0) => process::exit(0),
                Ok(_) => {}
                Err(error) => {
                    eprintln!("read a request: {error}");
                    process::exit(1);
                }
            }
            let answer = match serde_json::from_str(&line) {
                Ok(Request::LeaderDies(source, target)) => self.live_on_in_a_thread(source, target),
                Ok(request) => self.serve_one(request).map_or_else(Answer::Failed, Answer::Done),
                Err(error) => Answer::Failed(format!("read a request: {error}")),
            };
            say(&answer);
        }
    }

    fn serve_one(&mut self, request: Request) -> Result<String, String> {
        match request {
            Request::Unshare => enter_private_namespace()?,
            Request::UnshareSharing => make_namespace().or_say("unshare")?,
            Request::Join(pid) => join(Path::new(&format!("/proc/{pid}/ns/mnt")))?,
            Request::JoinFile(path) => join(path.as_path())?,
            Request::Bind(source, target) => bind(source.as_path(), target.as_path())?,
            Request::MakeShared(path) => propagate(&path, MsFlags::MS_SHARED)?,
            Request::MakeSlave(path) => propagate(&path, MsFlags::MS_SLAVE)?,
            Request::Tmpfs(path) => {
                mount(Some("reclaim-test"), path.as_path(), Some("tmpfs"), MsFlags::empty(), None::<&str>)
                    .or_say("mount a tmpfs")?;
            }
            Request::Overlay(path, options) => {
                mount(Some("overlay"), path.as_path(), Some("overlay"), MsFlags::empty(), Some(options.as_slice()))
                    .or_say("mount an overlay")?;
            }
            Request::Unmount(path) => umount2(path.as_path(), MntFlags::empty()).or_say("umount")?,
            Request::ChangeDir(path) => env::set_current_dir(path.as_path()).or_say("chdir")?,
            Request::ChangeRoot(path) => chroot(path.as_path()).or_say("chroot")?,
            Request::Touch(path) => drop(File::create_new(path.as_path()).or_say("create a file")?),
            Request::Unlink(path) => fs::remove_file(path.as_path()).or_say("unlink")?,
            Request::Read(path) => return fs::read_to_string(path.as_path()).or_say("read a file"),
            Request::AskSocket(path, line) => return ask_socket(path.as_path(), &line),
            Request::BindTree(source, target) => {
                let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
                let tree = open_tree(CWD, source.as_path(), flags).or_say("open_tree")?;
                let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
                move_mount(tree, "", CWD, target.as_path(), flags).or_say("move_mount")?;
            }
            Request::HoldTree(path) => {
                let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
                let tree = open_tree(CWD, path.as_path(), flags).or_say("open_tree")?;
                let number = tree.as_raw_fd().to_string();
                self.trees.push(tree);
                return Ok(number);
            }
            Request::UnmountLazily(path) => umount2(path.as_path(), MntFlags::MNT_DETACH).or_say("umount")?,
            Request::Hold(path) => {
                let file = File::open(path.as_path()).or_say("open")?;
                let number = file.as_raw_fd().to_string();
                self.held.push(file);
                return Ok(number);
            }
            Request::Lock(path) => {
                let file = File::open(path.as_path()).or_say("open")?;
                let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| error);
                self.locks.push(lock.or_say("flock")?);
            }
            Request::Release => {
                self.held.clear();
                self.trees.clear();
                self.locks.clear();
            }
            Request::BecomeUser(id) => become_user(id)?,
            Request::HandOver => {
                // The successor greets in this one's place, on the same pipes.
                Command::new(own_program()?).arg("serve").spawn().or_say("start a successor")?;
                process::exit(0);
            }
            Request::LeaderDies(..) => unreachable!("served by the caller"),
            Request::Zombies(count) => {
                for _ in 0..count {
                    let child = Command::new("/bin/true").stdin(Stdio::null()).stdout(Stdio::null()).spawn();
                    let child = child.or_say("start a child")?;
                    wait_for_zombie(&child.id().to_string())?;
                    self.zombies.push(child);
                }
            }
            Request::Reap => {
                for mut child in self.zombies.drain(..) {
                    child.wait().or_say("wait")?;
                }
            }
        }
        Ok(String::new())
    }

    fn live_on_in_a_thread(&mut self, source: PathBytes, target: PathBytes) -> Answer {
        let Self { held, trees, locks, zombies } = std::mem::take(self);
        let thread = thread::spawn(move || {
            let ready = unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS)
                .or_say("unshare")
                .and_then(|()| make_private())
                .and_then(|()| bind(source.as_path(), target.as_path()))
                .and_then(|()| wait_for_zombie(&format!("{0}/task/{0}", process::id())));
            if let Err(error) = ready {
                say(&Answer::Failed(error));
                process::exit(1);
            }
            Self { held, trees, locks, zombies }.run(&gettid().to_string())
        });
        let error = match die_alone() {
            Ok(never) => match never {},
            Err(error) => error,
        };
        drop(thread);
        Answer::Failed(error)
    }
}

enum Never {}

/// Ends the calling thread alone, without a word to the others: a filter that kills the thread that asks for its
/// parent. There is no safe call that ends a leader and leaves its threads.
fn die_alone() -> Result<Never, String> {
    let architecture = env::consts::ARCH.try_into().or_say("name the architecture")?;
    let filter = SeccompFilter::new(
        BTreeMap::from([(libc::SYS_getppid, Vec::new())]),
        SeccompAction::Allow,
        SeccompAction::KillThread,
        architecture,
    )
    .or_say("make a filter")?;
    let program: BpfProgram = filter.try_into().or_say("compile a filter")?;
    apply_filter(&program).or_say("apply a filter")?;
    Err(format!("the filter let the leader live; its parent is {}", getppid()))
}

fn wait_for_zombie(task: &str) -> Result<(), String> {
    let path = format!("/proc/{task}/stat");
    for _ in 0..2_000 {
        let text = fs::read_to_string(&path).or_say("read the state of a task")?;
        if text.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z')) {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(1));
    }
    Err(format!("{task} did not become a zombie"))
}

fn say(answer: &Answer) {
    let mut line = serde_json::to_string(answer).unwrap_or_else(|error| format!("cannot write an answer: {error}"));
    line.push('\n');
    let mut out = io::stdout().lock();
    if out.write_all(line.as_bytes()).and_then(|()| out.flush()).is_err() {
        // Nobody listens any more.
        process::exit(0);
    }
}

pub(crate) fn own_program() -> Result<std::path::PathBuf, String> {
    // The link rather than its text: the text leads nowhere after a chroot.
    env::current_exe().or_say("find the running program")
}

pub(crate) fn become_user(id: u32) -> Result<(), String> {
    let (user, group) = (Uid::from_raw(id), Gid::from_raw(id));
    setgroups(&[]).or_say("setgroups")?;
    setresgid(group, group, group).or_say("setresgid")?;
    setresuid(user, user, user).or_say("setresuid")
}

pub(crate) fn enter_private_namespace() -> Result<(), String> {
    make_namespace().or_say("unshare")?;
    make_private()
}

fn make_private() -> Result<(), String> {
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).or_say("make / private")
}

pub(crate) fn bind(source: &Path, target: &Path) -> Result<(), String> {
    mount(Some(source), target, None::<&str>, MsFlags::MS_BIND, None::<&str>).or_say("bind")
}

fn ask_socket(path: &Path, line: &str) -> Result<String, String> {
    let mut stream = UnixStream::connect(path).or_say("connect")?;
    stream.set_read_timeout(Some(Duration::from_secs(30))).or_say("set a timeout")?;
    stream.write_all(format!("{line}\n").as_bytes()).or_say("send")?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).or_say("receive")?;
    Ok(answer)
}

fn join(namespace: &Path) -> Result<(), String> {
    let namespace = File::open(namespace).or_say("open a namespace")?;
    setns(namespace, CloneFlags::CLONE_NEWNS).or_say("setns")
}

fn propagate(path: &PathBytes, how: MsFlags) -> Result<(), String> {
    mount(None::<&str>, path.as_path(), None::<&str>, how, None::<&str>).or_say("change propagation")
}

/// An error as text behind the call that gave it.
pub(crate) trait OrSay<T> {
    /// The value, or the call and the error as text.
    fn or_say(self, call: &str) -> Result<T, String>;
}

impl<T, E: Display> OrSay<T> for Result<T, E> {
    fn or_say(self, call: &str) -> Result<T, String> {
        self.map_err(|error| format!("{call}: {error}"))
    }
}
