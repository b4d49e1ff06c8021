//! What tests may leave behind: processes, mounts in the host's namespace, the service's own directories.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};

/// Environment variable that every process of a run inherits, however it is reparented.
pub(super) const MARK: &str = "RECLAIM_TEST_RUN";
/// Places that a service started without a configuration of its own would use.
const PLACES: [&str; 3] = ["/etc/reclaim", "/run/reclaim", "/var/lib/reclaim"];
/// How long a killed sandbox may take to be gone.
const PATIENCE: Duration = Duration::from_secs(3);

/// The host before a run.
pub(super) struct Snapshot {
    mark: String,
    mounts: BTreeSet<Vec<u8>>,
    places: Vec<&'static str>,
}

impl Snapshot {
    /// Looks at the host.
    pub(super) fn take() -> Result<Self> {
        // A process of an earlier run must not count, should its pid have been ours.
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).context("the clock is before 1970")?;
        Ok(Self { mark: format!("{}-{}", std::process::id(), now.as_nanos()), mounts: mounts()?, places: places() })
    }

    /// Value of [`MARK`] for this run.
    pub(super) fn mark(&self) -> &str {
        &self.mark
    }

    /// What is there and was not before, in words.
    pub(super) fn left_behind(&self) -> Result<Vec<String>> {
        let mut processes = self.processes()?;
        let mut waited = Duration::ZERO;
        while !processes.is_empty() && waited < PATIENCE {
            thread::sleep(Duration::from_millis(100));
            waited += Duration::from_millis(100);
            processes = self.processes()?;
        }
        let mut left = processes;
        left.extend(mounts()?.difference(&self.mounts).map(|line| format!("mount {}", String::from_utf8_lossy(line))));
        left.extend(places().into_iter().filter(|place| !self.places.contains(place)).map(str::to_owned));
        Ok(left)
    }

    /// Processes that carry the mark. One that is gone before it is read, or is a zombie, is no leftover.
    fn processes(&self) -> Result<Vec<String>> {
        let wanted = format!("{MARK}={}", self.mark);
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").context("cannot list /proc")? {
            let name = entry.context("cannot list /proc")?.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else {
                continue;
            };
            let Ok(environment) = fs::read(format!("/proc/{pid}/environ")) else {
                continue;
            };
            if environment.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes()) {
                let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                found.push(format!("process {pid}: {}", String::from_utf8_lossy(&command).replace('\0', " ")));
            }
        }
        Ok(found)
    }
}

/// Lines of this namespace's mount table without the optional fields, which change when peers come and go.
fn mounts() -> Result<BTreeSet<Vec<u8>>> {
    let table = fs::read("/proc/self/mountinfo").context("cannot read /proc/self/mountinfo")?;
    let lines = table.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    Ok(lines.map(|line| line.splitn(7, |byte| *byte == b' ').take(6).collect::<Vec<_>>().join(&b' ')).collect())
}

fn places() -> Vec<&'static str> {
    PLACES.into_iter().filter(|place| Path::new(place).exists()).collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_marked_process_is_seen_until_it_is_gone() -> Result<()> {
        let snapshot = Snapshot::take()?;
        let mut child = Command::new("sleep").arg("60").env(MARK, snapshot.mark()).spawn()?;
        // The environment is the old program's until exec is through.
        let seen = (0..100).any(|_| {
            thread::sleep(Duration::from_millis(10));
            snapshot.processes().is_ok_and(|found| found.len() == 1)
        });
        child.kill()?;
        child.wait()?;
        assert!(seen);
        assert_eq!(snapshot.processes()?, Vec::<String>::new());
        Ok(())
    }

    #[test]
    fn a_mount_that_was_not_there_is_named() -> Result<()> {
        let mut snapshot = Snapshot::take()?;
        let gone = snapshot.mounts.pop_first().context("there is at least one mount")?;
        let left = snapshot.left_behind()?;
        assert!(left.iter().any(|thing| thing.contains(&*String::from_utf8_lossy(&gone))), "{left:?}");
        Ok(())
    }
}
