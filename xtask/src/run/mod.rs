//! `cargo xtask run`: the main job, on a root made for it or on the user's own configuration.

mod check;
mod demo;
mod entries;
mod service;
mod tell;

pub(crate) use tell::grouped;

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};
use clap::Args;
use nix::unistd::geteuid;

use crate::command::{as_root, find, shown};
use crate::{build, sandbox};

/// What to run.
#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    size: Size,
    /// After --: run the service in the foreground with these arguments, such as --config FILE, and no demonstration
    #[arg(last = true)]
    service: Vec<OsString>,
}

/// How large the demonstration is.
#[derive(Args)]
pub(crate) struct Size {
    /// Stale entries in the demonstration's root
    #[arg(long, default_value_t = 2_000)]
    stale: u32,
    /// Sandboxes of each kind that live to the end; as many die while the service runs
    #[arg(long, default_value_t = 2)]
    sandboxes: u32,
}

/// Builds as the caller; the rest is done as root, through sudo where needed.
///
/// # Errors
/// The build fails, the service does, or the demonstration does not end as it should.
pub(crate) fn run(options: &Options) -> Result<()> {
    let binary = build::run()?;
    let root = geteuid().is_root();
    if !options.service.is_empty() {
        return serve(&binary, &options.service, root);
    }
    if root {
        return demo::run(&binary, &options.size);
    }
    let binary = binary.to_str().context("the binary's path is not UTF-8")?;
    let size = [options.size.stale.to_string(), options.size.sandboxes.to_string()];
    let arguments = ["demo-as-root", binary, "--stale", &size[0], "--sandboxes", &size[1]];
    as_root("making mount namespaces for the demonstration", &arguments)
}

/// Becomes the service, so that signals reach it and its exit status is ours.
fn serve(binary: &Path, arguments: &[OsString], root: bool) -> Result<()> {
    let mut command = if root {
        Command::new(binary)
    } else {
        eprintln!("reading every mount namespace needs root: asking through sudo");
        find("sudo").context("there is no sudo here: run the same command as root")?;
        let mut sudo = Command::new("sudo");
        sudo.arg("--").arg(binary);
        sudo
    };
    Err(command.arg("run").args(arguments).exec()).with_context(|| format!("cannot start {}", shown(&command)))
}

/// The half of the demonstration that runs as root, started through sudo.
///
/// # Errors
/// As [`run`].
pub(crate) fn run_as_root(binary: &Path, size: &Size) -> Result<()> {
    demo::run(binary, size)
}

/// Kinds of sandbox that can be made here.
fn kinds() -> Vec<sandbox::Kind> {
    let mut kinds = vec![sandbox::Kind::Source, sandbox::Kind::Target];
    if find("bwrap").is_some() {
        kinds.push(sandbox::Kind::Bubblewrap);
    }
    kinds
}
