//! The only door for set-up, building, running, testing and benchmarks.

mod bench;
mod build;
mod command;
mod launcher;
mod lint;
mod programs;
mod run;
mod sandbox;
mod setup;
mod stage;
mod test;
mod toolchain;
mod vm;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Set-up, build, run, test, lint and benchmarks of reclaim.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", disable_help_subcommand = true)]
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
    /// The main job: a demonstration on a root made for it, or the service on a configuration of yours
    Run(run::Options),
    /// Build and run the tests, as root
    Test(test::Options),
    /// Measure against the usual ways, as ratios
    Bench(bench::Options),
    /// Run tests of the evidence on other kernels, in virtual machines
    Vm(vm::Options),
    /// Check formatting, clippy, the house rules and licences
    Lint,
    /// The half of `test` that runs as root
    #[command(hide = true)]
    TestAsRoot {
        /// The plan, as JSON
        plan: String,
    },
    /// The half of `run` that runs as root
    #[command(hide = true)]
    DemoAsRoot {
        /// The built binary
        binary: PathBuf,
        #[command(flatten)]
        size: run::Size,
    },
    /// The half of `bench` that runs as root
    #[command(hide = true)]
    BenchAsRoot {
        /// The built binary
        binary: PathBuf,
        /// The built program that measures through the library
        measure: PathBuf,
        #[command(flatten)]
        size: bench::Size,
    },
    /// A process that holds mounts, for demonstrations and benchmarks
    #[command(hide = true)]
    Sandbox(sandbox::Options),
    /// The first process of a virtual machine
    #[command(hide = true)]
    VmGuest,
    /// Become a command that ends with the process that started it
    #[command(hide = true)]
    Tethered {
        /// The command
        #[arg(last = true)]
        words: Vec<OsString>,
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
        Task::Run(options) => run::run(&options),
        Task::DemoAsRoot { binary, size } => run::run_as_root(&binary, &size),
        Task::Bench(options) => bench::run(&options),
        Task::BenchAsRoot { binary, measure, size } => bench::run_as_root(&binary, &measure, &size),
        Task::Sandbox(options) => sandbox::serve(&options),
        Task::Tethered { words } => sandbox::become_tethered(&words),
        Task::Vm(options) => vm::run(&options),
        Task::VmGuest => vm::run_guest(),
        Task::Lint => lint::run(),
        Task::TestAsRoot { plan } => test::run_as_root(&plan),
    }
}
