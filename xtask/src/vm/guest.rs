//! The first process of a virtual machine: runs the tests, says how they went and turns the machine off.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nix::kmod::init_module;
use nix::mount::{MsFlags, mount};
use nix::sys::reboot::{RebootMode, reboot};
use nix::unistd::chroot;

use super::Verdict;
use super::programs::{MODULES, Needs, PROGRAMS, Program};

/// Where the machine has the programs and modules.
pub(super) const PROGRAMS_PLACE: &str = "programs";
/// The directories of the first file system.
pub(super) const PLACES: [&str; 8] = ["bin", "dev", "etc", "mnt", "proc", PROGRAMS_PLACE, "sys", "tmp"];
/// Where the next root is made.
const NEXT_ROOT: &str = "/mnt";

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

/// Moves to a root of its own, as a host does at its start: what runs from the first file system has a mount namespace
/// unlike any other.
fn leave_first_root() -> Result<()> {
    let none = None::<&str>;
    mount(Some("root"), NEXT_ROOT, Some("tmpfs"), MsFlags::empty(), none).context("cannot mount the next root")?;
    for place in PLACES {
        let to = Path::new(NEXT_ROOT).join(place);
        fs::create_dir(&to).with_context(|| format!("cannot create {}", to.display()))?;
        for entry in fs::read_dir(Path::new("/").join(place)).with_context(|| format!("cannot list /{place}"))? {
            let from = entry.with_context(|| format!("cannot list /{place}"))?.path();
            let to = to.join(from.file_name().context("an entry has no name")?);
            if from.is_symlink() {
                let target = fs::read_link(&from).with_context(|| format!("cannot read {}", from.display()))?;
                std::os::unix::fs::symlink(target, &to).with_context(|| format!("cannot make {}", to.display()))?;
            } else if from.is_file() {
                fs::copy(&from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
                fs::remove_file(&from).with_context(|| format!("cannot remove {}", from.display()))?;
            }
        }
    }
    std::env::set_current_dir(NEXT_ROOT).context("cannot enter the next root")?;
    mount(Some("."), "/", none, MsFlags::MS_MOVE, none).context("cannot move the next root to its place")?;
    chroot(".").context("cannot make the next root the root")?;
    std::env::set_current_dir("/").context("cannot enter the next root")
}

fn prepare() -> Result<()> {
    leave_first_root()?;
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
        if let Err(error) = init_module(&content, c"") {
            println!("cannot load the module {module}: {error}");
        }
    }
    println!("Linux {} is up after {} s", release()?, uptime());
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
    let check = Command::new(format!("/{PROGRAMS_PLACE}/reclaim"))
        .arg("check")
        .env("NO_COLOR", "1")
        .stdin(Stdio::null())
        .status();
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
    let mut wanted = Vec::new();
    for (test, needs) in program.tests {
        match missing(*needs)? {
            Some(why) => {
                println!("test {test} ... skipped: {why}");
                verdict.skipped += 1;
            }
            None => wanted.push(*test),
        }
    }
    let mut passed = 0;
    let result = passing(program, &wanted, &mut passed);
    verdict.passed += passed;
    verdict.failed += wanted.len() - passed;
    result
}

/// What this kernel lacks; None where it has what a test needs.
fn missing(needs: Needs) -> Result<Option<String>> {
    match needs {
        Needs::Nothing => Ok(None),
        Needs::FileSystem(kind) => {
            let known = fs::read_to_string("/proc/filesystems").context("cannot list the types of file systems")?;
            let has = known.split_ascii_whitespace().any(|word| word == kind);
            Ok((!has).then(|| format!("this kernel has no {kind}")))
        }
        Needs::Release(major, minor) => {
            let release = release()?;
            let mut numbers =
                release.split(|letter: char| !letter.is_ascii_digit()).map_while(|part| part.parse().ok());
            let (Some(first), Some(second)) = (numbers.next(), numbers.next()) else {
                bail!("the release {release} has no numbers");
            };
            let old: bool = (first, second) < (major, minor);
            Ok(old.then(|| format!("this takes Linux {major}.{minor}")))
        }
    }
}

fn release() -> Result<String> {
    let text = fs::read_to_string("/proc/sys/kernel/osrelease").context("the kernel does not say its release")?;
    Ok(text.trim().to_owned())
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
