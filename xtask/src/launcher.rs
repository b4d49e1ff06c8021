//! Process ids of launchers that have died, for the names of stale entries.

use std::fs;

use anyhow::{Context as _, Result, bail};
use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;

/// Ids below this belong to what the system starts first, and are left alone.
const FIRST: i32 = 300;

/// Gives out ids that no process has, from the largest down: the kernel counts upwards, so it comes to them last.
pub(crate) struct DeadLaunchers {
    largest: i32,
    next: i32,
}

impl DeadLaunchers {
    /// Asks the kernel how large an id can be.
    ///
    /// # Errors
    /// It does not say.
    pub(crate) fn new() -> Result<Self> {
        let text = fs::read_to_string("/proc/sys/kernel/pid_max").context("cannot read the largest process id")?;
        let limit: i32 = text.trim().parse().context("the largest process id is no number")?;
        Ok(Self { largest: limit - 1, next: limit - 1 })
    }

    /// The next id; the same ones again once all have been given out.
    ///
    /// # Errors
    /// Every id belongs to a process.
    pub(crate) fn next(&mut self) -> Result<i32> {
        for _ in FIRST..=self.largest {
            let id = self.next;
            self.next = if id > FIRST { id - 1 } else { self.largest };
            if kill(Pid::from_raw(id), None) == Err(Errno::ESRCH) {
                return Ok(id);
            }
        }
        bail!("every process id is in use")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_living_process_is_passed_over() -> Result<()> {
        let own = i32::try_from(std::process::id())?;
        let mut launchers = DeadLaunchers { largest: own, next: own };
        assert_ne!(launchers.next()?, own);
        let mut only = DeadLaunchers { largest: FIRST, next: FIRST };
        assert_eq!(only.next().ok(), only.next().ok());
        Ok(())
    }
}
