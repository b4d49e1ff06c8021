//! The only door for set-up, building, running, testing and benchmarks.

mod build;
mod command;
mod lint;
mod setup;
mod test;
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
    /// Find or make the toolchain that builds the BPF programs
    Setup,
    /// Build the release binary, target/release/reclaim
    Build,
    /// Build and run the tests, as root
    Test(test::Options),
    /// Check formatting, clippy, the house rules and licences
    Lint,
    /// The half of `test` that runs as root
    #[command(hide = true)]
    TestAsRoot {
        /// The plan, as JSON
        plan: String,
    },
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
        Task::Build => {
            let binary = build::run()?;
            eprintln!("built {}", binary.display());
            Ok(())
        }
        Task::Test(options) => test::run(options),
        Task::Lint => lint::run(),
        Task::TestAsRoot { plan } => test::run_as_root(&plan),
    }
}
