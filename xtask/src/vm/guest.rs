//! The first process of a virtual machine: runs the tests, says how they went and turns the machine off.

use std::ffi::CStr;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nix::kmod::init_module;
use nix::mount::{MsFlags, mount};
use nix::sys::reboot::{RebootMode, reboot};

use super::Verdict;
use super::programs::{MODULES, Needs, PROGRAMS, Program};

/// Where the machine has the programs and modules.
pub(super) const PROGRAMS_PLACE: &str = "programs";

/// Runs everything and never returns: the machine goes off.
///
/// # Errors
/// This is not the first process of a machine.
pub(crate) fn run() -> Result<()> {
    if std::process::id() != 1 {
        bail!("this is for the first process of a virtual machine only");
    }
    match prepare() {
        Ok(()) => println!("{}", run_all()),
        Err(error) => println!("the machine cannot be prepared: {error:#}"),
    }
    // What was printed has to get through the serial line.
    thread::sleep(Duration::from_millis(300));
    match reboot(RebootMode::RB_POWER_OFF) {
        Err(error) => bail!("the machine cannot be turned off: {error}"),
        Ok(never) => match never {},
    }
}

fn prepare() -> Result<()> {
    let places = [
        ("proc", "/proc"),
        ("sysfs", "/sys"),
        ("devtmpfs", "/dev"),
        ("tmpfs", "/tmp"),
        ("tracefs", "/sys/kernel/tracing"),
    ];
    for (kind, place) in places {
        mount(Some(kind), place, Some(kind), MsFlags::empty(), None::<&str>)
            .with_context(|| format!("cannot mount {kind} on {place}"))?;
    }
    for module in MODULES {
        let Ok(content) = fs::read(format!("/{PROGRAMS_PLACE}/{module}.ko")) else { continue };
        if let Err(error) = init_module(&content, CStr::from_bytes_with_nul(b"\0").context("no parameters")?) {
            println!("cannot load the module {module}: {error}");
        }
    }
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").context("the kernel does not say its release")?;
    println!("Linux {} is up after {} s", release.trim(), uptime());
    Ok(())
}

fn run_all() -> Verdict {
    let mut verdict = Verdict::default();
    for program in &PROGRAMS {
        match run_program(program, &mut verdict) {
            Ok(()) => {}
            Err(error) => println!("{}: {error:#}", program.name),
        }
        println!("{} is done after {} s", program.name, uptime());
    }
    let check = Command::new(format!("/{PROGRAMS_PLACE}/reclaim")).arg("check").stdin(Stdio::null()).status();
    match check {
        Ok(status) if status.success() => verdict.passed += 1,
        other => {
            println!("reclaim check: {other:?}");
            verdict.failed += 1;
        }
    }
    verdict
}

/// Runs the tests that this kernel has the means for. What does not say that it passed has failed.
fn run_program(program: &Program, verdict: &mut Verdict) -> Result<()> {
    let known = fs::read_to_string("/proc/filesystems").context("cannot list the types of file systems")?;
    let mut wanted = Vec::new();
    for (test, needs) in program.tests {
        match needs {
            Needs::FileSystem(kind) if !known.split_ascii_whitespace().any(|word| word == *kind) => {
                println!("test {test} ... skipped: this kernel has no {kind}");
                verdict.skipped += 1;
            }
            Needs::Nothing | Needs::FileSystem(_) => wanted.push(*test),
        }
    }
    let mut passed = 0;
    let result = passing(program, &wanted, &mut passed);
    verdict.passed += passed;
    verdict.failed += wanted.len() - passed;
    result
}

fn passing(program: &Program, wanted: &[&str], passed: &mut usize) -> Result<()> {
    let mut child = Command::new(format!("/{PROGRAMS_PLACE}/{}", program.name))
        .arg("--exact")
        .args(wanted)
        .arg("--test-threads=2")
        .current_dir("/")
        .env("PATH", "/bin")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start the tests")?;
    let output: File = std::os::fd::OwnedFd::from(child.stdout.take().context("no output")?).into();
    for line in BufReader::new(output).lines() {
        let line = line.context("cannot read what the tests say")?;
        println!("{line}");
        let test = line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... ok"));
        *passed += usize::from(test.is_some_and(|test| wanted.contains(&test)));
    }
    child.wait().context("cannot wait for the tests")?;
    Ok(())
}

/// Seconds since the kernel started.
fn uptime() -> String {
    let text = fs::read_to_string("/proc/uptime").unwrap_or_default();
    text.split_ascii_whitespace().next().unwrap_or("?").to_owned()
}
