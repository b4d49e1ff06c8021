//! Process ids of launchers that have died, for the names of stale entries.

use std::fs;

use anyhow::{Context as _, Result, bail};
use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;

/// Ids below this belong to what the system starts first, and are left alone.
const FIRST: i32 = 300;

/// Gives out ids that no process has. They lie behind the one that the kernel gave out last: it counts upwards and starts
/// again at the bottom, so it comes to them last of all.
pub(crate) struct DeadLaunchers {
    /// Ids in use start again below this.
    largest: i32,
    /// Where giving out starts, and starts again after half of all ids.
    start: i32,
    given: i32,
}

impl DeadLaunchers {
    /// Asks the kernel how large an id can be and which it gave out last.
    ///
    /// # Errors
    /// It does not say.
    pub(crate) fn new() -> Result<Self> {
        let text = fs::read_to_string("/proc/sys/kernel/pid_max").context("cannot read the largest process id")?;
        let limit: i32 = text.trim().parse().context("the largest process id is no number")?;
        let text = fs::read_to_string("/proc/loadavg").context("cannot read the last process id")?;
        let last: i32 = text.split_whitespace().last().unwrap_or_default().parse().context("no last process id")?;
        Ok(Self { largest: limit - 1, start: last - 1, given: 0 })
    }

    /// The next id; the same ones again once half of all have been given out.
    ///
    /// # Errors
    /// Every id belongs to a process.
    pub(crate) fn next(&mut self) -> Result<i32> {
        let span = self.largest - FIRST + 1;
        for _ in 0..=span / 2 {
            let id = FIRST + (self.start - self.given - FIRST).rem_euclid(span);
            self.given = (self.given + 1) % (span / 2).max(1);
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
    fn ids_go_down_from_the_last_one_past_what_lives() -> Result<()> {
        let own = i32::try_from(std::process::id())?;
        let mut launchers = DeadLaunchers { largest: own + 1_000, start: own, given: 0 };
        let first = launchers.next()?;
        assert!(first != own && (first < own || own - FIRST < 500), "{first} {own}");
        let mut low = DeadLaunchers { largest: 4_000_000, start: FIRST - 1, given: 0 };
        assert_eq!(low.next()?, 4_000_000);
        Ok(())
    }
}
