//! The tests in virtual machines, beside those on this host.

use std::fs::{self, File};
use std::path::PathBuf;
use std::thread::{self, JoinHandle};

use anyhow::{Context as _, Result, anyhow};

use crate::command::target_directory;
use crate::programs::Program;
use crate::vm;

/// Machines at work. What they say goes to a file, since the tests of this host speak at the same time.
pub(super) struct Machines {
    log: PathBuf,
    at_work: JoinHandle<Result<()>>,
}

impl Machines {
    /// Starts the machines; None, and a line that says so, where none can be had.
    ///
    /// # Errors
    /// The file for what they say cannot be made.
    pub(super) fn start(built: &[Program]) -> Result<Option<Self>> {
        if let Some(why) = vm::out_of_reach() {
            eprintln!("test: no virtual machines: {why}");
            return Ok(None);
        }
        let log = target_directory()?.join("vm.log");
        eprintln!("test: other kernels in virtual machines, at the same time; what they say is in {}", log.display());
        let mut file = File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
        let built = built.to_vec();
        Ok(Some(Self { log, at_work: thread::spawn(move || vm::run_all(&built, &mut file)) }))
    }

    /// Waits until all have gone off, and shows how they went: all that they said where something failed.
    ///
    /// # Errors
    /// A test failed in one of them, or gave no verdict.
    pub(super) fn finish(self) -> Result<()> {
        if !self.at_work.is_finished() {
            eprintln!("test: waiting for the virtual machines");
        }
        let outcome = self.at_work.join().map_err(|_| anyhow!("the thread of the virtual machines broke"))?;
        let said = fs::read_to_string(&self.log).with_context(|| format!("cannot read {}", self.log.display()))?;
        for line in said.lines().filter(|line| outcome.is_err() || line.contains("SKIP ") || line.contains("verdict:"))
        {
            eprintln!("{line}");
        }
        outcome
    }
}
