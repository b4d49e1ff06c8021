//! Running the program of another manager, without a shell, in a process group of its own, and for no longer than it may take.

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, sleep};
use std::time::{Duration, Instant};

/// Bytes of standard error that are kept, and lines of them that are told.
const KEPT: usize = 4096;
const LINES: usize = 3;

/// Between two looks at whether the program has ended.
const PAUSE: Duration = Duration::from_millis(10);

/// How long a program that was killed is waited for.
const REAPED_WITHIN: Duration = Duration::from_secs(1);

/// How long standard error is read after the program has ended: something that it left behind may hold the pipe.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// A program that has ended by itself.
pub(super) struct Ended {
    program: String,
    status: ExitStatus,
    words: Option<Heard>,
}

impl Ended {
    /// Its exit code; none where a signal ended it.
    pub(super) fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// Whether it ended well; else how it ended and what it said, for people.
    pub(super) fn well(self) -> Result<(), String> {
        let Self { program, status, words } = self;
        match (status.success(), status.code()) {
            (true, _) => Ok(()),
            (false, Some(code)) => Err(format!("`{program}` ended with exit code {code}{}", told(words))),
            (false, None) => Err(format!("`{program}` ended by {status}{}", told(words))),
        }
    }
}

/// Runs a program, the first of the words, to its end. `go_on` is called all the time; once it says no, the program is
/// killed, or not started at all.
///
/// # Errors
/// When it did not end by itself. A sentence for people.
pub(super) fn run(
    words: &[impl AsRef<OsStr>],
    limit: Duration,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<Ended, String> {
    let (program, arguments) = words.split_first().ok_or("there is no program")?;
    let called = program.as_ref().display().to_string();
    if !go_on() {
        return Err(format!("`{called}` was not started: reclaim was told to stop"));
    }
    let mut process = Command::new(program);
    // In `/`: the same wherever the caller stands, and no file system is kept busy by it.
    process.args(arguments).current_dir("/").process_group(0);
    process.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = process.spawn().map_err(|error| format!("`{called}` cannot be started: {error}"))?;
    let words = child.stderr.take().map(listen);
    match wait(&mut child, limit, go_on) {
        Ok(status) => Ok(Ended { program: called, status, words }),
        Err(why) => {
            let what = match end(&mut child) {
                true => "was killed with its process group",
                // It has more rights than its caller, or hangs in the kernel.
                false => "could not be killed and is left to itself",
            };
            Err(format!("`{called}` {what}: {why}{}", told(words)))
        }
    }
}

fn wait(child: &mut Child, limit: Duration, go_on: &mut dyn FnMut() -> bool) -> Result<ExitStatus, String> {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait().map_err(|error| format!("wait: {error}"))? {
            return Ok(status);
        }
        if begun.elapsed() >= limit {
            return Err(format!("it took longer than {limit:?}"));
        }
        if !go_on() {
            return Err("reclaim was told to stop".to_owned());
        }
        sleep(PAUSE);
    }
}

/// Kills the whole group. The leader is not reaped before, so the number is still that of the group. Whether it has ended.
fn end(child: &mut Child) -> bool {
    if let Ok(group) = i32::try_from(child.id()) {
        // What it fails for shows below.
        let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
    }
    let begun = Instant::now();
    loop {
        match child.try_wait() {
            Ok(None) if begun.elapsed() < REAPED_WITHIN => sleep(PAUSE),
            ended => return matches!(ended, Ok(Some(_))),
        }
    }
}

/// What was said so far, and who ends when all was.
struct Heard {
    text: Arc<Mutex<Vec<u8>>>,
    end: Receiver<()>,
}

/// Reads standard error to its end on a thread, so that the command never waits for a reader, and keeps the start of it.
fn listen(mut pipe: impl Read + Send + 'static) -> Heard {
    let (tell, end) = channel::<()>();
    let text = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&text);
    let read = move || {
        let mut bytes = [0; KEPT];
        // What cannot be read is not told.
        while let Ok(count @ 1..) = pipe.read(&mut bytes) {
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            let room = KEPT - kept.len();
            kept.extend_from_slice(&bytes[..count.min(room)]);
        }
        drop(tell);
    };
    // Without a thread nothing is told, and the pipe closes.
    let _ = Builder::new().name("listener".into()).spawn(read);
    Heard { text, end }
}

/// The first lines of standard error, to go behind a sentence.
fn told(words: Option<Heard>) -> String {
    let Some(Heard { text, end }) = words else { return String::new() };
    // Nothing is ever sent: it ends when the thread does.
    let _ = end.recv_timeout(LAST_WORDS);
    let text = text.lock().unwrap_or_else(PoisonError::into_inner);
    let text = String::from_utf8_lossy(&text);
    let lines = text.split(['\n', '\r']).map(str::trim_end).filter(|line| !line.is_empty());
    let lines: Vec<&str> = lines.take(LINES).collect();
    if lines.is_empty() { String::new() } else { format!(", and said: {}", lines.join(" / ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> (Result<(), String>, Duration) {
        let begun = Instant::now();
        (run(&["sh", "-c", script], limit, &mut || true).and_then(Ended::well), begun.elapsed())
    }

    #[test]
    fn a_failure_is_told_with_its_code_and_first_words() {
        let long = Duration::from_secs(60);
        assert_eq!(shell("echo out; exit 0", long).0, Ok(()));
        let fault = shell("for n in 1 2 3 4; do echo line $n >&2; done; exit 7", long).0.unwrap_err();
        assert_eq!(fault, "`sh` ended with exit code 7, and said: line 1 / line 2 / line 3");
        assert!(shell("kill -9 $$", long).0.unwrap_err().contains("signal: 9"));
        let fault = shell("head -c 3000000 /dev/zero >&2; exit 3", long).0.unwrap_err();
        assert!(fault.starts_with("`sh` ended with exit code 3"), "{}", fault.len());
    }

    #[test]
    fn what_takes_too_long_is_killed_with_all_it_started() {
        let mark = format!("299.{}", std::process::id());
        let (result, took) = shell(&format!("sleep {mark} & sleep {mark}"), Duration::from_millis(300));
        assert!(result.unwrap_err().contains("longer than 300ms"));
        assert!(took < Duration::from_secs(30), "{took:?}");
        let is_there = || {
            std::fs::read_dir("/proc").unwrap().flatten().any(|process| {
                let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
                line.starts_with(b"sleep\0") && line.windows(mark.len()).any(|part| part == mark.as_bytes())
            })
        };
        let until = Instant::now() + Duration::from_secs(10);
        while is_there() {
            assert!(Instant::now() < until, "a process of the group lives on");
            sleep(PAUSE);
        }
    }

    #[test]
    fn what_holds_the_pipe_afterwards_holds_nothing_up() {
        let (result, took) = shell("setsid sleep 3 & echo words >&2; exit 5", Duration::from_secs(60));
        assert_eq!(result.unwrap_err(), "`sh` ended with exit code 5, and said: words");
        assert!(took < Duration::from_millis(2_500), "{took:?}");
    }

    #[test]
    fn nothing_is_started_once_reclaim_was_told_to_stop() {
        let directory = tempfile::tempdir().unwrap();
        let mark = directory.path().join("mark");
        let ended = run(&["touch".as_ref(), mark.as_os_str()], Duration::from_secs(60), &mut || false);
        assert_eq!(ended.err().unwrap(), "`touch` was not started: reclaim was told to stop");
        assert!(!mark.exists());
    }
}
