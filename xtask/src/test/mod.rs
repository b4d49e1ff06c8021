//! `cargo xtask test`: builds the release binary and every test, runs them as root, and looks for what they left behind.

mod leaks;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};

use crate::command::{self, cargo, shown};
use crate::{build, setup};

/// Package of the tests against the built binary. Its test files are the tiers.
const TESTS: &str = "reclaim-tests";
/// A test program that runs longer than this hangs.
const LONGEST_RUN: Duration = Duration::from_secs(20 * 60);

/// What to test.
#[derive(Args)]
pub(crate) struct Options {
    /// Only tests whose name contains this
    filter: Option<String>,
    /// Only one tier: unit (tests inside the packages), or the test files whose name begins with this (pure, host, race, crash)
    #[arg(long)]
    tier: Option<String>,
    /// Passed on to every test program, after --
    #[arg(last = true)]
    arguments: Vec<String>,
}

/// One test program to run.
#[derive(Serialize, Deserialize)]
struct Program {
    package: String,
    target: String,
    path: PathBuf,
    directory: PathBuf,
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
    let binary = build::run()?;
    let mut programs = programs()?;
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

/// Compiles all tests and asks cargo where it put them.
fn programs() -> Result<Vec<Program>> {
    setup::run(setup::Verbosity::Quiet)?;
    eprintln!("test: building the tests");
    let mut build = cargo();
    build.args(["test", "--no-run", "--message-format=json-render-diagnostics", "--workspace"]);
    build.stderr(std::process::Stdio::inherit());
    let output = build.output().with_context(|| format!("cannot start {}", shown(&build)))?;
    if !output.status.success() {
        bail!("the tests do not build");
    }
    let text = String::from_utf8(output.stdout).context("cargo's messages are not UTF-8")?;
    let mut programs = Vec::new();
    for line in text.lines() {
        let message: serde_json::Value = serde_json::from_str(line).context("cargo's message is not JSON")?;
        let (Some(path), Some(true)) = (message["executable"].as_str(), message["profile"]["test"].as_bool()) else {
            continue;
        };
        let manifest = Path::new(message["manifest_path"].as_str().context("cargo names no manifest")?);
        let directory = manifest.parent().context("a manifest has no directory")?;
        programs.push(Program {
            package: directory.file_name().context("a package has no directory")?.to_string_lossy().into_owned(),
            target: message["target"]["name"].as_str().context("cargo names no target")?.to_owned(),
            path: path.into(),
            directory: directory.to_owned(),
        });
    }
    // What is quick and small first: the packages' own tests, then the tiers.
    programs.sort_by_key(|program| (is_tier(program), program.package.clone(), program.target.clone()));
    Ok(programs)
}

/// Whether the program is a test file of the tests package.
fn is_tier(program: &Program) -> bool {
    program.package == "tests" && program.target != TESTS.replace('-', "_")
}

fn in_tier(program: &Program, tier: &str) -> bool {
    if tier == "unit" { !is_tier(program) } else { is_tier(program) && program.target.starts_with(tier) }
}

/// Runs every program, also after one has failed, and then compares the host with what it was before.
fn run_plan(plan: &Plan) -> Result<()> {
    let before = leaks::Snapshot::take()?;
    let mut failed = Vec::new();
    for program in &plan.programs {
        let name = format!("{}/{}", program.package, program.target);
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
