//! The only door for set-up, building, running, testing and benchmarks.

mod command;
mod setup;
mod toolchain;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Set-up, build, run, test, lint and benchmarks of reclaim.
#[derive(Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    disable_help_subcommand = true
)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Find or make the toolchain that builds the BPF programs.
    Setup,
}

fn main() -> ExitCode {
    match start(Arguments::parse().task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start(task: Task) -> Result<()> {
    match task {
        Task::Setup => setup::run(setup::Verbosity::Full).map(drop),
    }
}
