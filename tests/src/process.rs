//! Child processes that end in time, and waiting with a deadline.

use crate::OrFail as _;
use nix::unistd::Pid;
use std::env;
use std::fs;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// What a process left when it ended.
#[derive(Clone, Debug)]
pub struct Finished {
    /// How it ended.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Finished {
    /// The exit code; a death by signal fails the test.
    #[track_caller]
    #[must_use]
    pub fn code(&self) -> i32 {
        let Self { status, stdout, stderr } = self;
        status.code().or_fail(format_args!("exit code of {status}\nstdout: {stdout}\nstderr: {stderr}"))
    }
}

/// A time limit as this machine needs it: `RECLAIM_TEST_PATIENCE` times as long, which is for machines that are emulated.
/// It is for waiting only; no test passes or fails by how long something takes within it.
///
/// # Panics
/// When the variable is no number from 1 to 100.
#[track_caller]
pub(crate) fn patience(limit: Duration) -> Duration {
    let Some(factor) = env::var_os("RECLAIM_TEST_PATIENCE") else { return limit };
    let factor: u32 = factor.to_str().and_then(|text| text.parse().ok()).or_fail("RECLAIM_TEST_PATIENCE as a number");
    assert!((1..=100).contains(&factor), "RECLAIM_TEST_PATIENCE is from 1 to 100, not {factor}");
    limit * factor
}

/// How many processes are alive with a mark in their arguments.
///
/// # Panics
/// When processes cannot be listed.
#[track_caller]
#[must_use]
pub fn alive(mark: &str) -> usize {
    let processes = fs::read_dir("/proc").or_fail("list processes").flatten();
    let lines = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    lines.filter(|line| line.windows(mark.len()).any(|part| part == mark.as_bytes())).count()
}

/// Runs a process to its end and collects its output.
///
/// # Panics
/// When it cannot be started or does not end within `limit`; it is killed first.
#[track_caller]
#[must_use]
pub fn run_to_end(command: &mut Command, limit: Duration) -> Finished {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().or_fail(format_args!("start {command:?}"));
    finish(child, limit).unwrap_or_else(|| panic!("{command:?} did not end within {limit:?}"))
}

/// Collects the output of a child that has piped output; `None` when it did not end in time and was killed.
#[track_caller]
pub(crate) fn finish(mut child: Child, limit: Duration) -> Option<Finished> {
    let stdout = read_in_thread(child.stdout.take());
    let stderr = read_in_thread(child.stderr.take());
    let ended = wait_within(&mut child, limit);
    if ended.is_none() {
        kill_and_reap(&mut child);
    }
    let stdout = stdout.join().or_fail_thread("read standard output");
    let stderr = stderr.join().or_fail_thread("read standard error");
    match ended {
        Some(status) => Some(Finished { status, stdout, stderr }),
        None => {
            eprintln!("killed after {limit:?}; stdout: {stdout}\nstderr: {stderr}");
            None
        }
    }
}

/// Waits for a child to end; `None` when the limit passed first.
#[track_caller]
pub(crate) fn wait_within(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let deadline = Instant::now() + patience(limit);
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = child.try_wait().or_fail("wait for a child") {
            return Some(status);
        }
        if Instant::now() >= deadline {
            return None;
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// Ends a child and takes it off the process table.
pub(crate) fn kill_and_reap(child: &mut Child) {
    // Both fail only for a child that has been reaped before, which is what is wanted.
    let _already_dead = child.kill();
    let _already_reaped = child.wait();
}

fn read_in_thread(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            pipe.read_to_end(&mut bytes).or_fail("read a pipe");
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

trait OrFailThread<T> {
    fn or_fail_thread(self, attempted: &str) -> T;
}

impl<T> OrFailThread<T> for thread::Result<T> {
    #[track_caller]
    fn or_fail_thread(self, attempted: &str) -> T {
        self.map_err(|_panic| "the thread panicked").or_fail(attempted)
    }
}

/// Whether a process stands still, by SIGSTOP.
#[must_use]
pub fn is_stopped(process: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
}

/// Asks again and again until there is an answer.
///
/// # Panics
/// When there is none within `limit`.
#[track_caller]
pub fn wait_until<T>(what: &str, limit: Duration, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + patience(limit);
    let mut pause = Duration::from_millis(2);
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < deadline, "{what}: not within {limit:?}");
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}

/// The helper program of this package: `RECLAIM_TEST_HELPER`, else the one that cargo built beside the tests.
///
/// # Panics
/// When there is none.
#[track_caller]
#[must_use]
pub fn helper_program() -> PathBuf {
    if let Some(given) = env::var_os("RECLAIM_TEST_HELPER") {
        return given.into();
    }
    let test = env::current_exe().or_fail("find the running program");
    test.ancestors()
        .skip(1)
        .take(2)
        .map(|directory| directory.join("reclaim-test-helper"))
        .find(|candidate| candidate.is_file())
        .or_fail("reclaim-test-helper beside the tests; set RECLAIM_TEST_HELPER")
}
