//! Reading claims: the output of a program, or a file. No shell has a part in it.

use crate::config::{ClaimsConfig, ClaimsSource};
use crate::model::claims::{Claims, LONGEST};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Longest time between two calls of `go_on`.
const TURN: Duration = Duration::from_millis(20);

/// How long a program that was killed is waited for. One that hangs in the kernel is left to itself.
const REAPED_WITHIN: Duration = Duration::from_secs(1);

/// How much of what a program complains of is told.
const COMPLAINT: usize = 300;

/// Reads the claims of a root. Whatever goes wrong is in the answer: then everything is claimed. `go_on` is called all the
/// time while a program runs; once it says no, the program is killed.
pub(super) fn read(config: &ClaimsConfig, go_on: &mut dyn FnMut() -> bool) -> Claims {
    match &config.source {
        ClaimsSource::File(path) => match read_file(path) {
            Ok(text) => of_source(Claims::of_file(&text), path.display()),
            Err(error) => Claims::Unknown(format!("cannot read {}: {error}", path.display())),
        },
        ClaimsSource::Command(words) => {
            let shown = format!("`{}`", words.join(" ").escape_debug());
            match run(words, config.timeout, go_on) {
                Ok(answer) => of_source(Claims::of(&answer), shown),
                Err(why) => Claims::Unknown(format!("{shown} {why}")),
            }
        }
    }
}

/// The same; what is wrong is told with where it came from.
fn of_source(claims: Claims, source: impl Display) -> Claims {
    match claims {
        Claims::Unknown(why) => Claims::Unknown(format!("{source}: {why}")),
        claims => claims,
    }
}

fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut answer = Vec::new();
    // One byte more than allowed tells that it is too long.
    file.take(LONGEST as u64 + 1).read_to_end(&mut answer)?;
    Ok(answer)
}

/// Runs a program in a process group of its own and gives what it wrote.
fn run(words: &[String], timeout: Duration, go_on: &mut dyn FnMut() -> bool) -> Result<Vec<u8>, String> {
    let (program, arguments) = words.split_first().ok_or("is no command")?;
    let mut command = Command::new(program);
    command.args(arguments).current_dir("/").process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let deadline = Instant::now() + timeout;
    let mut child = command.spawn().map_err(|error| format!("cannot be run: {error}"))?;
    let heard = hear(&mut child, deadline, timeout, go_on);
    let status = match &heard {
        Ok(_) => wait(&mut child, deadline, go_on),
        Err(_) => None,
    };
    let Some(status) = status else {
        kill(&mut child);
        return Err(heard.err().unwrap_or_else(|| overdue(timeout)));
    };
    let (answer, complaint) = heard?;
    if !status.success() {
        let complaint = String::from_utf8_lossy(&complaint);
        let complaint = complaint.trim().escape_debug().to_string();
        return Err(format!("failed ({status}){}{complaint}", if complaint.is_empty() { "" } else { ": " }));
    }
    Ok(answer)
}

fn overdue(timeout: Duration) -> String {
    format!("did not end within {timeout:?} and was killed")
}

/// Reads both outputs of a program to their ends.
fn hear(
    child: &mut Child,
    deadline: Instant,
    timeout: Duration,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<(Vec<u8>, Vec<u8>), String> {
    let (Some(mut output), Some(mut complaints)) = (child.stdout.take(), child.stderr.take()) else {
        return Err("has no output".to_owned());
    };
    let (mut answer, mut complaint) = (Vec::new(), Vec::new());
    let (mut output_open, mut complaints_open) = (true, true);
    let mut buffer = vec![0; 64 << 10];
    while output_open || complaints_open {
        if Instant::now() >= deadline {
            return Err(overdue(timeout));
        }
        if !go_on() {
            return Err("was killed, since the pass ends".to_owned());
        }
        let wait = PollTimeout::try_from(TURN).unwrap_or(PollTimeout::ZERO);
        let mut ready = [(output_open, output.as_fd()), (complaints_open, complaints.as_fd())]
            .map(|(open, file)| PollFd::new(file, if open { PollFlags::POLLIN } else { PollFlags::empty() }));
        match poll(&mut ready, wait) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(format!("cannot be heard: poll: {error}")),
        }
        let [speaks, complains] = ready.map(|ready| ready.any().unwrap_or(false));
        let failed = |error: io::Error| format!("cannot be heard: read: {error}");
        if output_open && speaks {
            let count = output.read(&mut buffer).map_err(failed)?;
            output_open = count > 0;
            answer.extend_from_slice(&buffer[..count]);
            if answer.len() > LONGEST {
                return Err(format!("wrote more than {LONGEST} bytes and was killed"));
            }
        }
        if complaints_open && complains {
            let count = complaints.read(&mut buffer).map_err(failed)?;
            complaints_open = count > 0;
            let room = COMPLAINT.saturating_sub(complaint.len()).min(count);
            complaint.extend_from_slice(&buffer[..room]);
        }
        if !output_open && !complaints_open {
            break;
        }
        if (!output_open && speaks) || (!complaints_open && complains) {
            // An end that hung up is ready for ever.
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    Ok((answer, complaint))
}

fn wait(child: &mut Child, deadline: Instant, go_on: &mut dyn FnMut() -> bool) -> Option<ExitStatus> {
    let mut pause = Duration::from_micros(200);
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < deadline && go_on() => {}
            _ => return None,
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(TURN);
    }
}

/// Kills a program and all that is in its process group, and takes it off.
fn kill(child: &mut Child) {
    if let Ok(group) = i32::try_from(child.id()) {
        // Before the program is taken off: its number is its group's, and nobody else gets it until then.
        let _gone = killpg(Pid::from_raw(group), Signal::SIGKILL);
    }
    let _gone = child.kill();
    let until = Instant::now() + REAPED_WITHIN;
    while matches!(child.try_wait(), Ok(None)) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims(words: &[&str], timeout: Duration) -> Claims {
        let source = ClaimsSource::Command(words.iter().map(|word| (*word).to_owned()).collect());
        read(&ClaimsConfig { source, timeout }, &mut || true)
    }

    const LONG: Duration = Duration::from_secs(120);

    #[test]
    fn the_output_of_a_program_is_read_without_a_shell() {
        assert_eq!(claims(&["printf", "a\\n$HOME\\n"], LONG), Claims::of(b"a\n$HOME\n"));
        assert_eq!(claims(&["true"], LONG), Claims::of(b""));
    }

    #[test]
    fn whatever_goes_wrong_claims_everything() {
        for (words, told) in [
            (&["/no/such/program"][..], "cannot be run"),
            (&["sh", "-c", "echo a; echo no list >&2; exit 3"], "no list"),
            (&["printf", "a\\nb"], "cut short"),
            (&["sh", "-c", "echo a; kill -9 $$"], "signal"),
            (&["head", "-c", "17000000", "/dev/zero"], "more than"),
        ] {
            let claims = claims(words, LONG);
            assert!(claims.fault().is_some_and(|why| why.contains(told)), "{words:?}: {:?}", claims.fault());
        }
    }

    #[test]
    fn a_program_that_hangs_is_killed_with_its_group() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("pid");
        // What it leaves behind keeps the pipe open, and goes with the group.
        let script = format!("sleep 600 & echo $! > {}; echo a; exit 0", file.display());
        let begun = Instant::now();
        let claims = claims(&["sh", "-c", &script], Duration::from_secs(3));
        assert!(claims.fault().is_some_and(|why| why.contains("did not end")), "{claims:?}");
        assert!(begun.elapsed() < LONG);
        let pid: i32 = std::fs::read_to_string(file).unwrap().trim().parse().unwrap();
        let is_gone = || {
            let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            state.is_empty() || state.contains(") Z ")
        };
        while !is_gone() {
            assert!(begun.elapsed() < LONG, "it lives on");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn neither_a_missing_file_nor_a_pipe_is_an_answer() {
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        for path in [pipe, directory.path().join("absent"), directory.path().to_owned()] {
            let config = ClaimsConfig { source: ClaimsSource::File(path.clone()), timeout: LONG };
            assert!(read(&config, &mut || true).fault().is_some(), "{}", path.display());
        }
    }
}
