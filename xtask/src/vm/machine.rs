//! One virtual machine: started, listened to, and ended when it takes too long.

use std::io::{BufRead as _, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::GUEST;
use super::guest::CHECK;
use super::verdict::Verdict;
use crate::sandbox::tethered;

/// A machine that runs longer than this hangs. Emulated, on busy processors, all tests take some minutes.
const LONGEST_RUN: Duration = Duration::from_secs(90 * 60);

/// The security modules: those that Debian's kernels have by themselves and need no set-up, and BPF.
const MODULES: &str = "lsm=landlock,lockdown,yama,bpf";

/// How a machine went.
pub(super) struct Machine {
    /// The name of its kernel.
    pub(super) name: String,
    /// How the tests went.
    pub(super) verdict: Verdict,
    /// How long it ran.
    pub(super) took: Duration,
    /// What `reclaim check` found there: one object a line.
    pub(super) check: Vec<String>,
}

/// A running machine. Dropping it ends it.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Boots the kernel, passes on what the machine says, and returns how it went.
///
/// # Errors
/// The machine does not start, runs too long, or goes off without a verdict.
pub(super) fn boot(
    (qemu, environment): &(PathBuf, Vec<(&'static str, String)>),
    kernel: &Path,
    initial: &Path,
    name: &str,
    out: &mut dyn Write,
) -> Result<Machine> {
    let started = Instant::now();
    let mut command = tethered(qemu)?;
    command
        .envs(environment.iter().map(|(key, value)| (key, value)))
        // Emulated on purpose: the tests are to run where no hardware virtualisation is to be had.
        .args(["-accel", "tcg,thread=single", "-cpu", "max", "-smp", "2", "-m", "2048"])
        .args(["-nodefaults", "-display", "none", "-no-reboot", "-serial", "stdio"])
        .arg("-kernel")
        .arg(kernel)
        .arg("-initrd")
        .arg(initial)
        // Guarding one program from another costs most of an emulated processor's time, and nobody else is in there.
        .args(["-append", &format!("console=ttyS0 quiet panic=-1 mitigations=off {MODULES} rdinit=/init -- {GUEST}")])
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut machine = Running(command.spawn().with_context(|| format!("cannot start {}", qemu.display()))?);
    let lines = lines_of(machine.0.stdout.take().context("the machine has no output")?);
    let mut verdict = None;
    let mut check = Vec::new();
    loop {
        let left = LONGEST_RUN.saturating_sub(started.elapsed());
        match lines.recv_timeout(left) {
            Ok(line) => {
                let shown: String = line.chars().filter(|letter| !letter.is_control() || *letter == '\t').collect();
                if let Some(found) = shown.strip_prefix(CHECK) {
                    check.push(found.to_owned());
                    continue;
                }
                writeln!(out, "vm: {name}: {shown}").context("cannot pass on what a machine says")?;
                verdict = Verdict::read(&shown).or(verdict);
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                bail!("the machine still runs after {} minutes: ended", LONGEST_RUN.as_secs() / 60)
            }
        }
    }
    let verdict = verdict.context("the machine went off without a verdict")?;
    Ok(Machine { name: name.to_owned(), verdict, took: started.elapsed(), check })
}

/// The lines that the machine writes, until it goes off.
fn lines_of(output: ChildStdout) -> mpsc::Receiver<String> {
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        let mut output = BufReader::new(output);
        let mut line = Vec::new();
        while matches!(output.read_until(b'\n', &mut line), Ok(1..)) {
            if send.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                break;
            }
            line.clear();
        }
    });
    receive
}
