//! Removal by a command: what another manager owns is removed by that manager.
//!
//! The entry keeps its name, for its manager has to find it. So a path leads to it until the command is through, and what
//! was proved may be a moment old by then: weaker than what is condemned first.

use super::condemn::Batch;
use super::confirm::Confirmed;
use super::remove::Removal;
use crate::config::{RemoveCommand, RootConfig};
use crate::sys::file_status::status_at;
use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, sleep};
use std::time::{Duration, Instant};

/// Bytes of standard error that are kept, and lines of them that are told.
const KEPT: usize = 4096;
const LINES: usize = 3;

/// Between two looks at whether the command has ended.
const PAUSE: Duration = Duration::from_millis(10);

/// How long standard error is read after the command has ended: something that it left behind may hold the pipe.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// Has an entry removed by the command of its root, and looks whether it is gone.
pub(super) fn remove(
    mut confirmed: Confirmed,
    batch: &Batch,
    rules: &RootConfig,
    go_on: &mut dyn FnMut() -> bool,
) -> Removal {
    if !batch.in_place {
        let why = "it was condemned before its root had a command, which has to find it under its own name";
        return Removal::Unsuited(confirmed.into_condemned(), why);
    }
    let Some(command) = &rules.command else {
        return Removal::Unsuited(confirmed.into_condemned(), "its root has no command");
    };
    // The manager may take the lock itself.
    confirmed.release();
    let name = confirmed.condemned().name.clone();
    let path = rules.path.join(OsStr::from_bytes(name.to_bytes()));
    let id = command.id.as_deref().map(str::as_bytes).or_else(|| rules.id_of(name.to_bytes()));
    let ended = match command.words.fill(id, name.to_bytes(), path.as_os_str().as_bytes()) {
        Ok(words) => run(command, words, go_on),
        Err(fault) => Err(fault.to_string()),
    };
    let identity = confirmed.condemned().identity;
    let condemned = confirmed.into_condemned();
    let is_gone = match status_at(&batch.directory, &name) {
        Ok(found) => found.identity != identity,
        Err(error) => error == Errno::ENOENT,
    };
    match (is_gone, ended) {
        (true, Ok(())) => Removal::Gone(condemned),
        (true, Err(fault)) => {
            tracing::warn!("{} is gone, and yet {fault}", path.display());
            Removal::Gone(condemned)
        }
        (false, Err(fault)) => Removal::Stuck(condemned, fault),
        (false, Ok(())) => {
            let program = command.words.program();
            Removal::Stuck(condemned, format!("`{program}` ended well, and the entry is still there"))
        }
    }
}

/// Runs a program to its end, in a process group of its own.
fn run(command: &RemoveCommand, words: Vec<Vec<u8>>, go_on: &mut dyn FnMut() -> bool) -> Result<(), String> {
    let program = command.words.program();
    let mut words = words.into_iter().map(OsString::from_vec);
    let mut process = Command::new(words.next().unwrap_or_default());
    process.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
    let mut child = process.spawn().map_err(|error| format!("`{program}` cannot be started: {error}"))?;
    let words = child.stderr.take().map(listen);
    let status = match wait(&mut child, command.limit, go_on) {
        Ok(status) => status,
        Err(why) => {
            end(&mut child);
            return Err(format!("`{program}` was killed with all it started: {why}{}", told(words)));
        }
    };
    match (status.success(), status.code()) {
        (true, _) => Ok(()),
        (false, Some(code)) => Err(format!("`{program}` ended with exit code {code}{}", told(words))),
        (false, None) => Err(format!("`{program}` ended by {status}{}", told(words))),
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

/// Kills the whole group. The leader is not reaped before, so the number is still that of the group.
fn end(child: &mut Child) {
    if let Ok(group) = i32::try_from(child.id()) {
        // It fails only when nobody is left.
        let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
    }
    // A child of ours that was killed is there to be reaped.
    let _ = child.wait();
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
    let lines: Vec<&str> = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).take(LINES).collect();
    if lines.is_empty() { String::new() } else { format!(", and said: {}", lines.join(" / ")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::purge::CommandTemplate;

    fn shell(script: &str, limit: Duration) -> (Result<(), String>, Duration) {
        let words = ["sh", "-c", script, "{path}"].map(str::to_owned).to_vec();
        let command = RemoveCommand { words: CommandTemplate::parse(words, false).unwrap(), limit, id: None };
        let words = command.words.fill(None, b"n", b"/p").unwrap();
        let begun = Instant::now();
        (run(&command, words, &mut || true), begun.elapsed())
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
}
