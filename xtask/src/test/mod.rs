//! `cargo xtask test`: builds the release binary and every test, runs them as root, and looks for what they left behind.

mod leaks;
mod machines;

use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};

use crate::build;
use crate::command::{self, cargo, shown};
use crate::programs::{self, Program};
use machines::Machines;

/// A test program that runs longer than this hangs.
const LONGEST_RUN: Duration = Duration::from_secs(20 * 60);
/// The tier that runs in virtual machines.
const MACHINES: &str = "vm";

/// What to test.
#[derive(Args)]
pub(crate) struct Options {
    /// Only tests whose name contains this
    filter: Option<String>,
    /// Only one tier: unit (tests inside the packages), the test files whose name begins with this (pure, host, race,
    /// crash), or vm (Debian's kernels in virtual machines)
    #[arg(long)]
    tier: Option<String>,
    /// Passed on to every test program, after --
    #[arg(last = true)]
    arguments: Vec<String>,
}

/// What the privileged half is to do; handed over as JSON in an argument.
#[derive(Serialize, Deserialize)]
struct Plan {
    binary: PathBuf,
    programs: Vec<Program>,
    arguments: Vec<String>,
}

/// Builds as the caller, runs as root.
///
/// # Errors
/// A build or a test fails, or a test left something behind.
pub(crate) fn run(options: Options) -> Result<()> {
    if options.tier.as_deref() == Some(MACHINES) {
        eprintln!("test: building the tests");
        let machines = Machines::start(&programs::build()?)?;
        return machines.context("nothing was tested")?.finish();
    }
    let binary = build::run()?;
    eprintln!("test: building the tests");
    let built = programs::build()?;
    let everything = options.tier.is_none() && options.filter.is_none();
    let machines = if everything { Machines::start(&built)? } else { None };
    // Both are told about, also where both fail.
    let here = run_here(options, binary, built);
    if let Err(error) = &here {
        eprintln!("test: {error:#}");
    }
    machines.map_or(Ok(()), Machines::finish)?;
    here
}

/// Runs the tests on this host.
fn run_here(options: Options, binary: PathBuf, mut programs: Vec<Program>) -> Result<()> {
    programs.retain(|program| program.test);
    if let Some(tier) = &options.tier {
        programs.retain(|program| in_tier(program, tier));
    }
    if programs.is_empty() {
        bail!("no test file belongs to tier {}", options.tier.as_deref().unwrap_or("(any)"));
    }
    if options.tier.is_none() && options.filter.is_none() {
        eprintln!("test: examples in the documentation");
        command::run(cargo().args(["test", "--quiet", "--doc", "--package", "reclaim-user"]))?;
    }
    let arguments = options.filter.into_iter().chain(options.arguments).collect();
    let plan = Plan { binary, programs, arguments };
    if geteuid().is_root() {
        return run_plan(&plan);
    }
    let plan = serde_json::to_string(&plan).context("cannot write the plan for the run as root")?;
    command::as_root("making mounts for the tests", &["test-as-root", &plan])
}

/// The half that runs as root, started through sudo.
///
/// # Errors
/// As [`run`].
pub(crate) fn run_as_root(plan: &str) -> Result<()> {
    run_plan(&serde_json::from_str(plan).context("cannot read the plan of the tests")?)
}

fn in_tier(program: &Program, tier: &str) -> bool {
    if tier == "unit" { !program.is_tier() } else { program.is_tier() && program.target.starts_with(tier) }
}

/// Runs every program, also after one has failed, and then compares the host with what it was before.
fn run_plan(plan: &Plan) -> Result<()> {
    let before = leaks::Snapshot::take()?;
    let mut failed = Vec::new();
    for program in &plan.programs {
        let name = program.name();
        eprintln!("test: {name}");
        let mut run = Command::new(&program.path);
        run.args(&plan.arguments)
            .current_dir(&program.directory)
            .env("CARGO_MANIFEST_DIR", &program.directory)
            .env("RECLAIM_BIN", &plan.binary)
            .env(leaks::MARK, before.mark());
        if let Err(error) = wait(&mut run) {
            eprintln!("test: {name}: {error:#}");
            failed.push(name);
        }
    }
    let left = before.left_behind()?;
    for thing in &left {
        eprintln!("test: left behind: {thing}");
    }
    match (failed.is_empty(), left.is_empty()) {
        (true, true) => Ok(()),
        (false, _) => bail!("tests failed in {}", failed.join(", ")),
        (true, false) => bail!("all tests passed, but {} things were left behind", left.len()),
    }
}

/// Waits for the program, and ends it where it hangs.
fn wait(command: &mut Command) -> Result<()> {
    let mut child = command.spawn().with_context(|| format!("cannot start {}", shown(command)))?;
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().context("cannot wait for the tests")? {
            return if status.success() { Ok(()) } else { bail!("{status}") };
        }
        if start.elapsed() > LONGEST_RUN {
            child.kill().context("cannot end the tests that hang")?;
            child.wait().context("cannot wait for the tests")?;
            bail!("still running after {} minutes: ended", LONGEST_RUN.as_secs() / 60);
        }
        thread::sleep(Duration::from_millis(20));
    }
}
