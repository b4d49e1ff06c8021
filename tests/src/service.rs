//! The service, and a connection to its socket.

use crate::process::{finish, kill_and_reap, wait_until};
use crate::reclaim::typed;
use crate::report::Pass;
use crate::{ConfigFile, Finished, Host, OrFail as _, Reclaim};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

/// How long anything may take that is not a pass of many entries.
const LIMIT: Duration = Duration::from_secs(40);

/// A running `reclaim run`, killed when this is dropped.
#[derive(Debug)]
pub struct Service {
    child: Option<Child>,
    pid: Pid,
    socket: PathBuf,
    output: PathBuf,
    log: PathBuf,
}

impl Service {
    /// Starts the service and waits until its socket answers.
    ///
    /// # Panics
    /// When it ends or does not answer in time.
    #[track_caller]
    #[must_use]
    pub fn start(host: &Host, config: &ConfigFile, reclaim: &Reclaim) -> Self {
        let service = Self::start_without_waiting(host, config, reclaim);
        let mut service = service;
        wait_until("the socket of the service", LIMIT, || {
            service.assert_running();
            UnixStream::connect(&service.socket).ok()
        });
        service
    }

    /// Starts the service.
    ///
    /// # Panics
    /// When it cannot be started.
    #[track_caller]
    #[must_use]
    pub fn start_without_waiting(host: &Host, config: &ConfigFile, reclaim: &Reclaim) -> Self {
        let name = config.socket().file_name().or_fail("the name of the socket").to_string_lossy().into_owned();
        let (output, log) = (host.path(format!("{name}.out")), host.path(format!("{name}.log")));
        let create =
            |path: &Path| File::options().create(true).append(true).open(path).or_fail("make a file for output");
        let child = reclaim
            .command(&["--json", "run"])
            .stdin(Stdio::null())
            .stdout(create(&output))
            .stderr(create(&log))
            .spawn()
            .or_fail("start the service");
        let pid = Pid::from_raw(i32::try_from(child.id()).or_fail("a pid"));
        Self { child: Some(child), pid, socket: config.socket().into(), output, log }
    }

    /// Fails the test, with the log, when the service has ended.
    #[track_caller]
    pub fn assert_running(&mut self) {
        let child = self.child.as_mut().or_fail("the service");
        if let Some(status) = child.try_wait().or_fail("look at the service") {
            panic!("the service ended with {status}; its log:\n{}", self.log());
        }
    }

    /// The pid of the service.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid.as_raw()
    }

    /// What the service has logged.
    #[track_caller]
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).or_fail("read the log of the service")
    }

    /// Whether the service has printed an object of this type.
    #[track_caller]
    #[must_use]
    pub fn has_told(&self, kind: &str) -> bool {
        let text = fs::read_to_string(&self.output).or_fail("read the output of the service");
        text.lines().any(|line| line.contains(&format!("\"type\":\"{kind}\"")))
    }

    /// The summaries that the service has printed, each checked.
    #[track_caller]
    #[must_use]
    pub fn passes(&self) -> Vec<Pass> {
        let text = fs::read_to_string(&self.output).or_fail("read the output of the service");
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let objects: Vec<Value> = whole
            .lines()
            .map(|line| serde_json::from_str(line).or_fail(format_args!("a line of JSON: {line:?}")))
            .collect();
        let passes: Vec<Pass> = typed(&objects, "pass");
        for pass in &passes {
            pass.check();
        }
        passes
    }

    /// Waits until the service has printed `count` summaries.
    #[track_caller]
    pub fn wait_for_passes(&mut self, count: usize) -> Vec<Pass> {
        wait_until(&format!("{count} passes of the service"), LIMIT, || {
            self.assert_running();
            let passes = self.passes();
            (passes.len() >= count).then_some(passes)
        })
    }

    /// Connects to the socket.
    #[track_caller]
    #[must_use]
    pub fn connect(&self) -> Connection {
        Connection::open(&self.socket)
    }

    /// Sends a signal.
    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        kill(self.pid, signal).or_fail(format_args!("send {signal} to the service"));
    }

    /// Ends the service with SIGTERM, which it must heed in time.
    #[track_caller]
    pub fn terminate(mut self) -> Finished {
        self.signal(Signal::SIGTERM);
        let child = self.child.take().or_fail("the service");
        let ended = finish(child, LIMIT);
        ended.or_fail(format_args!("the service does not heed SIGTERM; its log:\n{}", self.log()))
    }

    /// Kills the service with SIGKILL.
    #[track_caller]
    pub fn kill(mut self) {
        let mut child = self.child.take().or_fail("the service");
        kill_and_reap(&mut child);
    }

    /// One number of `/proc/PID/status`, such as `VmHWM` in KiB.
    #[track_caller]
    #[must_use]
    pub fn status_number(&self, key: &str) -> u64 {
        let path = format!("/proc/{}/status", self.pid);
        let text = fs::read_to_string(&path).or_fail(format_args!("read {path}"));
        text.lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(':')?.split_whitespace().next())
            .or_fail(format_args!("{key} in {path}"))
            .parse()
            .or_fail("read a number")
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // A stopped process does not die of a kill that it cannot take, but SIGKILL it always takes.
            kill_and_reap(child);
            if std::thread::panicking() {
                eprintln!("the log of the service:\n{}", fs::read_to_string(&self.log).unwrap_or_default());
            }
        }
    }
}

/// A connection to the control socket.
#[derive(Debug)]
pub struct Connection {
    stream: BufReader<UnixStream>,
}

impl Connection {
    /// Connects.
    ///
    /// # Panics
    /// When nobody listens.
    #[track_caller]
    #[must_use]
    pub fn open(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).or_fail(format_args!("connect to {}", socket.display()));
        stream.set_read_timeout(Some(LIMIT)).or_fail("set a timeout");
        stream.set_write_timeout(Some(LIMIT)).or_fail("set a timeout");
        Self { stream: BufReader::new(stream) }
    }

    /// Sends bytes as they are.
    ///
    /// # Errors
    /// When the other side has closed the connection.
    pub fn send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    /// The next answer; none when the other side closed the connection.
    #[track_caller]
    pub fn receive(&mut self) -> Option<Value> {
        let mut line = String::new();
        match self.stream.read_line(&mut line) {
            Ok(0) => None,
            Ok(_) => Some(serde_json::from_str(&line).or_fail(format_args!("an answer: {line:?}"))),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => None,
            Err(error) => panic!("read an answer: {error}"),
        }
    }

    /// Asks one thing.
    #[track_caller]
    pub fn ask(&mut self, request: &Value) -> Value {
        self.send(format!("{request}\n").as_bytes()).or_fail(format_args!("send {request}"));
        self.receive().or_fail(format_args!("an answer to {request}"))
    }
}
