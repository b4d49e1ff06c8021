//! A private mount namespace with a root in it, and the built program.

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How long anything may take.
const LIMIT: Duration = Duration::from_secs(120);

/// A directory on a tmpfs of its own, in a mount namespace that nothing leaves. Everything goes with it.
pub(crate) struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    /// Takes the calling thread into a namespace of its own.
    pub(crate) fn new() -> Self {
        assert!(nix::unistd::geteuid().is_root(), "these tests need root: run `cargo xtask test`");
        unshare(CloneFlags::CLONE_NEWNS).expect("a mount namespace");
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SLAVE, None::<&str>)
            .expect("a slave of /");
        let directory = tempfile::tempdir().expect("a directory");
        mount(Some("tmpfs"), directory.path(), Some("tmpfs"), MsFlags::empty(), None::<&str>).expect("a tmpfs");
        let place = Self { directory };
        fs::create_dir(place.root()).expect("a root");
        place.configure("");
        place
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.path("root")
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.path("control.sock")
    }

    /// Writes the configuration with one root and these further keys of it.
    pub(crate) fn configure(&self, keys: &str) {
        self.write_config(&format!(
            "[service]\nevery = \"1h\"\nsocket = \"{}\"\nstate_dir = \"{}\"\n[[root]]\nname = \"r\"\npath = \"{}\"\n{keys}\n",
            self.socket().display(),
            self.path("state").display(),
            self.root().display()
        ));
    }

    pub(crate) fn write_config(&self, text: &str) {
        fs::write(self.path("reclaim.toml"), text).expect("a configuration");
    }

    /// Makes an entry.
    pub(crate) fn entry(&self, name: &str) -> PathBuf {
        let path = self.root().join(name);
        fs::create_dir(&path).expect("an entry");
        path
    }

    /// Binds a directory in a namespace of its own, for as long as the result lives.
    pub(crate) fn pin(&self, source: &Path) -> Pinned {
        let point = self.path("point");
        fs::create_dir_all(&point).expect("a mount point");
        let mut command = Command::new("unshare");
        let script = "mount --bind \"$1\" \"$2\" && echo ready && exec sleep 1000";
        command.args(["-m", "sh", "-c", script, "sh"]).args([source, &point]).stdout(Stdio::piped());
        let mut child = die_with_us(&mut command).spawn().expect("a sandbox");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("its output")).read_line(&mut line).expect("a line");
        assert_eq!(line, "ready\n");
        Pinned { child, point }
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_reclaim"));
        command.arg("--config").arg(self.path("reclaim.toml")).args(arguments).env_remove("RECLAIM_LOG");
        command.current_dir(self.directory.path());
        command
    }

    /// Runs to the end: exit code, standard output, standard error.
    pub(crate) fn run(&self, arguments: &[&str]) -> (i32, String, String) {
        finish(&mut self.command(arguments))
    }

    /// Runs with `--json`: exit code and objects.
    pub(crate) fn objects(&self, arguments: &[&str]) -> (i32, Vec<Value>) {
        let mut all = vec!["--json"];
        all.extend(arguments);
        let (code, out, err) = self.run(&all);
        let objects =
            out.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}\n{err}")));
        (code, objects.collect())
    }

    pub(crate) fn start(&self) -> Service {
        let log = fs::File::create(self.path("log")).expect("a log");
        let out = fs::File::create(self.path("out")).expect("an output");
        let mut command = self.command(&["--json", "-v", "run"]);
        let child = die_with_us(command.stdout(out).stderr(log)).spawn().expect("a service");
        let service = Service { child, socket: self.socket() };
        let begun = Instant::now();
        while UnixStream::connect(&service.socket).is_err() {
            assert!(begun.elapsed() < LIMIT, "no service: {}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        service
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }
}

/// Runs to the end.
pub(crate) fn finish(command: &mut Command) -> (i32, String, String) {
    let output = command.stdin(Stdio::null()).output().expect("the program runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    let code = output.status.code().unwrap_or_else(|| panic!("{:?}", output.status));
    (code, text(output.stdout), text(output.stderr))
}

fn die_with_us(command: &mut Command) -> &mut Command {
    // A group of its own, so that what it starts is ended with it.
    command.process_group(0)
}

fn end_group(child: &mut Child) {
    let group = Pid::from_raw(-i32::try_from(child.id()).expect("a pid"));
    let _gone = kill(group, Signal::SIGKILL);
    child.wait().expect("it ends");
}

/// A directory that a sandbox relies on.
pub(crate) struct Pinned {
    child: Child,
    pub(crate) point: PathBuf,
}

impl Drop for Pinned {
    fn drop(&mut self) {
        end_group(&mut self.child);
    }
}

/// A running service.
pub(crate) struct Service {
    child: Child,
    socket: PathBuf,
}

impl Service {
    pub(crate) fn connect(&self) -> Connection {
        Connection::open(&self.socket)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).expect("a pid")), signal).expect("a signal");
    }

    pub(crate) fn is_up(&mut self) -> bool {
        self.child.try_wait().expect("a look").is_none()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it by SIGTERM.
    pub(crate) fn end(mut self) -> ExitStatus {
        self.signal(Signal::SIGTERM);
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("a look") {
                return status;
            }
            assert!(begun.elapsed() < LIMIT, "SIGTERM is not heeded");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        end_group(&mut self.child);
    }
}

/// A connection to the control socket.
pub(crate) struct Connection(BufReader<UnixStream>);

impl Connection {
    pub(crate) fn open(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).expect("somebody listens");
        stream.set_read_timeout(Some(LIMIT)).expect("a timeout");
        Self(BufReader::new(stream))
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.0.get_mut().write_all(bytes)
    }

    pub(crate) fn receive(&mut self) -> Option<Value> {
        let mut line = String::new();
        match self.0.read_line(&mut line) {
            Ok(0) => None,
            Ok(_) => Some(serde_json::from_str(&line).expect("an answer in JSON")),
            Err(error) => panic!("no answer: {error}"),
        }
    }

    pub(crate) fn ask(&mut self, request: &Value) -> Value {
        self.send(format!("{request}\n").as_bytes()).expect("sent");
        self.receive().expect("an answer")
    }
}
