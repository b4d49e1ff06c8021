//! What tests may leave behind: processes, programs in the kernel, mounts in the host's namespace, the service's own
//! directories.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::thread;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
use aya::programs::{ProgramError, loaded_programs};

/// Environment variable that every process of a run inherits, however it is reparented.
pub(super) const MARK: &str = "RECLAIM_TEST_RUN";
/// Places that a service started without a configuration of its own would use.
const PLACES: [&str; 3] = ["/etc/reclaim", "/run/reclaim", "/var/lib/reclaim"];
/// How long a killed sandbox may take to be gone.
const PATIENCE: Duration = Duration::from_secs(3);

/// What the names of reclaim's programs in the kernel begin with, but for those that are whole names.
const PROGRAMS: [&str; 8] = ["enter_", "leave_", "fentry_", "fexit_", "kprobe_", "kretprobe_", "reference_", "fence_"];
const WHOLE_NAMES: [&str; 1] = ["walk"];

/// The host before a run.
pub(super) struct Snapshot {
    mark: String,
    /// Programs in the kernel, by number; None where they cannot be listed.
    programs: Option<BTreeSet<u32>>,
    mounts: BTreeSet<Vec<u8>>,
    places: Vec<&'static str>,
}

impl Snapshot {
    /// Looks at the host.
    pub(super) fn take() -> Result<Self> {
        // A process of an earlier run must not count, should its pid have been ours.
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).context("the clock is before 1970")?;
        let programs = programs();
        if programs.is_none() {
            eprintln!("test: what is left in the kernel is not looked for: its programs cannot be listed");
        }
        let programs = programs.map(|programs| programs.into_keys().collect());
        let mark = format!("{}-{}", std::process::id(), now.as_nanos());
        Ok(Self { mark, programs, mounts: mounts()?, places: places() })
    }

    /// Value of [`MARK`] for this run.
    pub(super) fn mark(&self) -> &str {
        &self.mark
    }

    /// What is there and was not before, in words.
    pub(super) fn left_behind(&self) -> Result<Vec<String>> {
        let at_work = || Ok::<_, anyhow::Error>([self.processes()?, self.orphans()?].concat());
        let mut left = at_work()?;
        let mut waited = Duration::ZERO;
        while !left.is_empty() && waited < PATIENCE {
            thread::sleep(Duration::from_millis(100));
            waited += Duration::from_millis(100);
            left = at_work()?;
        }
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

    /// Programs named as reclaim's that were not there before and that no process has any more: something else keeps them,
    /// a pin or a link. Those of a process that is left are told by it, and those of others are their own business.
    fn orphans(&self) -> Result<Vec<String>> {
        let (Some(before), Some(programs)) = (&self.programs, programs()) else { return Ok(Vec::new()) };
        let come = come_since(before, programs);
        if come.is_empty() { Ok(Vec::new()) } else { Ok(told(come, &held()?)) }
    }
}

fn come_since(before: &BTreeSet<u32>, mut programs: BTreeMap<u32, String>) -> BTreeMap<u32, String> {
    programs.retain(|id, name| !before.contains(id) && is_own(name));
    programs
}

/// Those that no process has, in words.
fn told(programs: BTreeMap<u32, String>, held: &BTreeSet<u32>) -> Vec<String> {
    let orphans = programs.into_iter().filter(|(id, _)| !held.contains(id));
    orphans.map(|(id, name)| format!("program {id} in the kernel: {name}")).collect()
}

fn is_own(name: &str) -> bool {
    WHOLE_NAMES.contains(&name) || PROGRAMS.iter().any(|start| name.starts_with(start))
}

/// The programs in the kernel, by number, with their names. One that goes while they are listed is none.
fn programs() -> Option<BTreeMap<u32, String>> {
    let mut programs = BTreeMap::new();
    for program in loaded_programs() {
        match program {
            Ok(program) => {
                programs.insert(program.id(), program.name_as_str().unwrap_or("?").to_owned());
            }
            Err(ProgramError::SyscallError(error)) if error.io_error.kind() == ErrorKind::NotFound => {}
            Err(_) => return None,
        }
    }
    Some(programs)
}

/// The programs that processes have descriptors of, themselves or by their links.
fn held() -> Result<BTreeSet<u32>> {
    let mut held = BTreeSet::new();
    for entry in fs::read_dir("/proc").context("cannot list /proc")? {
        let process = entry.context("cannot list /proc")?.path();
        let Ok(descriptors) = fs::read_dir(process.join("fdinfo")) else { continue };
        for descriptor in descriptors.flatten() {
            let text = fs::read_to_string(descriptor.path()).unwrap_or_default();
            held.extend(text.lines().find_map(|line| line.strip_prefix("prog_id:")?.trim().parse::<u32>().ok()));
        }
    }
    Ok(held)
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
    fn a_program_that_no_process_has_is_named_and_others_are_not() {
        let names =
            [(1, "walk"), (2, "walk"), (3, "kretprobe_setns"), (4, "fence_store"), (5, "sd_devices"), (6, "walker")];
        let programs = names.map(|(id, name)| (id, name.to_owned())).into();
        let come = come_since(&[1].into(), programs);
        let told = told(come, &[4].into());
        assert_eq!(told, ["program 2 in the kernel: walk", "program 3 in the kernel: kretprobe_setns"]);
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
