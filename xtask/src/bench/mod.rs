//! `cargo xtask bench`: reclaim against the usual ways, in one run, as ratios. Never part of a test.

mod evidence;
mod library;
mod measure;
mod probes;
mod removal;
mod startup;

use std::path::Path;

use anyhow::{Context as _, Result};
use clap::Args;
use nix::unistd::geteuid;

use crate::{build, command};

/// What to measure, and how much of it.
#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    size: Size,
}

/// Sizes of the measured work.
#[derive(Args)]
pub(crate) struct Size {
    /// Stale directories to remove; 0 leaves the removal out
    #[arg(long, default_value_t = 300_000)]
    entries: u32,
    /// Mount namespaces to take evidence of; 0 leaves the evidence out
    #[arg(long, default_value_t = 1_000)]
    namespaces: u32,
    /// Binds in each of them
    #[arg(long, default_value_t = 30)]
    binds: u32,
    /// Processes in each of them
    #[arg(long, default_value_t = 4)]
    tasks: u32,
    /// Processes to start while each rung of the probes listens, with more of what takes less; 0 leaves the probes out
    #[arg(long, default_value_t = 200)]
    probes: u32,
    /// Times that each contender runs
    #[arg(long, default_value_t = 5)]
    rounds: u32,
}

/// Builds as the caller, measures as root, through sudo where needed.
///
/// # Errors
/// The build fails, a contender fails, or one does not do the work it is measured at.
pub(crate) fn run(options: &Options) -> Result<()> {
    let binary = build::run()?;
    let measure = build::measure()?;
    if geteuid().is_root() {
        return run_as_root(&binary, &measure, &options.size);
    }
    let size = &options.size;
    let mut arguments = vec!["bench-as-root".to_owned()];
    for path in [&binary, &measure] {
        arguments.push(path.to_str().context("a path is not UTF-8")?.to_owned());
    }
    for (name, value) in [
        ("--entries", size.entries),
        ("--namespaces", size.namespaces),
        ("--binds", size.binds),
        ("--tasks", size.tasks),
        ("--probes", size.probes),
        ("--rounds", size.rounds),
    ] {
        arguments.extend([name.to_owned(), value.to_string()]);
    }
    command::as_root("making mount namespaces for the measurements", &arguments)
}

/// The half that runs as root, started through sudo.
///
/// # Errors
/// As [`run`].
pub(crate) fn run_as_root(binary: &Path, measure: &Path, size: &Size) -> Result<()> {
    if size.entries > 0 {
        removal::run(binary, size)?;
    }
    if size.namespaces > 0 {
        evidence::run(binary, measure, size)?;
    }
    if size.probes > 0 {
        probes::run(binary, size)?;
    }
    Ok(())
}
