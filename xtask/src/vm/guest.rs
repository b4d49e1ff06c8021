//! The first process of a virtual machine: runs the tests, says how they went and turns the machine off.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::kmod::init_module;
use nix::mount::{MsFlags, mount};
use nix::sys::reboot::{RebootMode, reboot};
use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::chroot;
use serde::{Deserialize, Serialize};

use super::programs::{MODULES, Need, Run};
use super::verdict::{Verdict, skips};

/// Where the machine has the programs and modules.
pub(super) const PROGRAMS_PLACE: &str = "programs";
/// The file in that place that says what to run.
pub(super) const PLAN: &str = "plan.json";
/// The directories of the first file system.
pub(super) const PLACES: [&str; 12] =
    ["bin", "dev", "etc", "lib", "lib64", "mnt", "proc", PROGRAMS_PLACE, "run", "sys", "tmp", "var"];
/// Begins each line of `reclaim check` in what the machine says.
pub(super) const CHECK: &str = "check: ";
/// A test program that runs longer than this hangs.
const LONGEST_RUN: Duration = Duration::from_secs(15 * 60);
/// How many times as long tests wait for what comes at last: an emulated processor is so much slower, and shared.
const PATIENCE: &str = "6";
/// What the first process is to do.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Plan {
    /// Where the tests were built to look for the binary.
    pub(super) binary: PathBuf,
    /// The share of their full size, in percent, that tests of endurance have here.
    pub(super) share: u32,
    /// The test programs.
    pub(super) runs: Vec<Run>,
    /// What the probes cost is to be measured.
    pub(super) probes: bool,
}

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
        Ok(plan) => println!("{}", run_all(&plan)),
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
                symlink(target, &to).with_context(|| format!("cannot make {}", to.display()))?;
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

fn prepare() -> Result<Plan> {
    leave_first_root()?;
    // As systemd has it; the kernel by itself lets nobody have more than 4,096.
    setrlimit(Resource::RLIMIT_NOFILE, 1_024, 524_288).context("cannot set the limit of open files")?;
    let places = [
        ("proc", "/proc"),
        ("sysfs", "/sys"),
        ("devtmpfs", "/dev"),
        ("tmpfs", "/tmp"),
        ("tracefs", "/sys/kernel/tracing"),
        ("securityfs", "/sys/kernel/security"),
    ];
    for (kind, place) in places {
        mount(Some(kind), place, Some(kind), MsFlags::empty(), None::<&str>)
            .with_context(|| format!("cannot mount {kind} on {place}"))?;
    }
    // Services listen there.
    let up = Command::new("/bin/busybox").args(["ifconfig", "lo", "up"]).status().context("cannot start busybox")?;
    if !up.success() {
        bail!("the loopback interface does not go up ({up})");
    }
    for module in MODULES {
        let Ok(content) = fs::read(inside(&format!("{module}.ko"))) else { continue };
        if let Err(error) = init_module(&content, c"") {
            println!("cannot load the module {module}: {error}");
        }
    }
    fs::write("/etc/passwd", "root:x:0:0::/:/bin/sh\n").context("cannot name the users")?;
    let plan = fs::read(inside(PLAN)).context("cannot read what to run")?;
    let plan: Plan = serde_json::from_slice(&plan).context("cannot read what to run")?;
    let place = plan.binary.parent().context("the binary has no directory")?;
    fs::create_dir_all(place).with_context(|| format!("cannot create {}", place.display()))?;
    symlink(inside("reclaim"), &plan.binary).with_context(|| format!("cannot make {}", plan.binary.display()))?;
    println!("Linux {} is up after {} s", release()?, uptime());
    Ok(plan)
}

/// A path in the place of the programs.
fn inside(name: &str) -> PathBuf {
    Path::new("/").join(PROGRAMS_PLACE).join(name)
}

fn run_all(plan: &Plan) -> Verdict {
    let mut verdict = check();
    if plan.probes {
        verdict.add(measure_probes());
    }
    for run in &plan.runs {
        let lacks: Vec<Need> = Need::ALL.into_iter().filter(|need| !has(*need)).collect();
        let (run, lines) = run.without(&lacks);
        for line in &lines {
            println!("{line}");
            verdict.skipped += 1;
        }
        let Some(run) = &run else { continue };
        let began = Instant::now();
        let output = match output_of(run, plan) {
            Ok(output) => output,
            Err(error) => format!("{}: {error:#}", run.name),
        };
        let of_run = Verdict::of_program(&output);
        let Verdict { passed, failed, skipped } = of_run;
        let took = began.elapsed().as_secs();
        println!("{}: {passed} passed, {failed} failed, {skipped} skipped, in {took} s", run.name);
        for skip in skips(&output) {
            println!("{skip}");
        }
        if failed > 0 {
            // What the ones that passed wrote comes before.
            println!("{}", output.split_once("\nfailures:\n").map_or(&*output, |(_, failures)| failures));
        }
        verdict.add(of_run);
    }
    verdict
}

/// Whether the kernel has what some tests need. False only where that is certain.
fn has(need: Need) -> bool {
    match need {
        Need::Types => fs::exists("/sys/kernel/btf/vmlinux").unwrap_or(true),
        Need::Overlay | Need::Fuse => {
            let known = fs::read_to_string("/proc/filesystems").unwrap_or_else(|_| need.word().to_owned());
            known.split_ascii_whitespace().any(|name| name == need.word())
        }
    }
}

/// What the kernel gives, for the matrix; counts as one test.
fn check() -> Verdict {
    let said = Command::new(inside("reclaim")).args(["check", "--json"]).stdin(Stdio::null()).output();
    match said {
        Ok(output) if output.status.success() => {
            for line in String::from_utf8_lossy(&output.stdout).lines() {
                println!("{CHECK}{line}");
            }
            Verdict { passed: 1, ..Verdict::default() }
        }
        other => {
            println!("reclaim check: {other:?}");
            Verdict { failed: 1, ..Verdict::default() }
        }
    }
}

/// Measures what the probes cost, with as many processes as an emulated machine starts in some minutes; counts as one test.
fn measure_probes() -> Verdict {
    let sizes = [("--entries", "0"), ("--namespaces", "0"), ("--probes", "100"), ("--rounds", "3")];
    // The file of the first process lies in the first file system, to which no path leads any more.
    let own = inside("xtask");
    if let Err(error) = fs::copy("/proc/self/exe", &own) {
        println!("the measurement: cannot copy this program: {error}");
        return Verdict { failed: 1, ..Verdict::default() };
    }
    let mut bench = Command::new(own);
    // The second program is for what is left out.
    bench.arg("bench-as-root").args([inside("reclaim"), inside("reclaim")]).env("PATH", "/bin");
    match bench.args(sizes.iter().flat_map(|(name, value)| [name, value])).stdin(Stdio::null()).status() {
        Ok(status) if status.success() => Verdict { passed: 1, ..Verdict::default() },
        other => {
            println!("the measurement: {other:?}");
            Verdict { failed: 1, ..Verdict::default() }
        }
    }
}

/// Runs a test program, and ends it where it hangs. All that it said.
fn output_of(run: &Run, plan: &Plan) -> Result<String> {
    let mut child = Command::new("/bin/sh")
        .args(["-c", "exec \"$0\" \"$@\" 2>&1"])
        .arg(inside(&run.name))
        .args(["--show-output", "--test-threads=2"])
        .args(&run.arguments)
        .current_dir("/tmp")
        .env_clear()
        .env("PATH", "/bin")
        .env("RECLAIM_BIN", inside("reclaim"))
        .env("RECLAIM_TEST_HELPER", inside("reclaim-test-helper"))
        .env("RECLAIM_TEST_SHARE", plan.share.to_string())
        .env("RECLAIM_TEST_PATIENCE", PATIENCE)
        .envs(run.environment.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start the tests")?;
    let mut output = child.stdout.take().context("no output")?;
    let reader = thread::spawn(move || {
        let mut bytes = Vec::new();
        output.read_to_end(&mut bytes).map(|_| String::from_utf8_lossy(&bytes).into_owned())
    });
    let began = Instant::now();
    let mut ended = false;
    while !ended && child.try_wait().context("cannot wait for the tests")?.is_none() {
        ended = began.elapsed() > LONGEST_RUN;
        thread::sleep(Duration::from_millis(50));
    }
    if ended {
        child.kill().context("cannot end the tests that hang")?;
        child.wait().context("cannot wait for the tests")?;
    }
    // What they left behind may hold the other end of the pipe.
    let left = Instant::now();
    while !reader.is_finished() && left.elapsed() < Duration::from_secs(10) {
        thread::sleep(Duration::from_millis(50));
    }
    if !reader.is_finished() {
        bail!("something that the tests left behind still runs");
    }
    let said = reader.join().map_err(|_| anyhow::anyhow!("the reader of the tests' output broke"))?;
    let said = said.context("cannot read what the tests say")?;
    Ok(if ended {
        format!("{said}\nstill running after {} minutes: ended\n", LONGEST_RUN.as_secs() / 60)
    } else {
        said
    })
}

fn release() -> Result<String> {
    let text = fs::read_to_string("/proc/sys/kernel/osrelease").context("the kernel does not say its release")?;
    Ok(text.trim().to_owned())
}

/// Seconds since the kernel started.
fn uptime() -> String {
    let text = fs::read_to_string("/proc/uptime").unwrap_or_default();
    text.split_ascii_whitespace().next().unwrap_or("?").to_owned()
}
