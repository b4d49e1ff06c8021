//! Asking the kernel about the process that a name tells.

use crate::model::fence::{Process, Timestamp};
use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{Pid, SysconfVar, sysconf};
use std::collections::HashMap;

/// Asks about processes, and remembers the answers for a moment.
#[derive(Debug, Default)]
pub(super) struct Processes {
    answers: HashMap<u32, Process>,
}

impl Processes {
    /// Forgets all answers.
    pub(super) fn forget(&mut self) {
        self.answers.clear();
    }

    /// What the kernel says of a process. Whatever cannot be asked is alive.
    pub(super) fn ask(&mut self, process: u32) -> Process {
        *self.answers.entry(process).or_insert_with(|| ask(process))
    }
}

fn ask(process: u32) -> Process {
    let Ok(number) = i32::try_from(process) else {
        return Process::Alive { started: None };
    };
    // 0 and below would mean process groups. A filtered procfs hides tasks, so its word alone never makes one dead.
    match kill(Pid::from_raw(number), None) {
        Err(Errno::ESRCH) if number > 0 => Process::Dead,
        _ => Process::Alive { started: started(process) },
    }
}

/// When a process started, on the wall clock as it stands now.
fn started(process: u32) -> Option<Timestamp> {
    let ticks = start_ticks(&std::fs::read(format!("/proc/{process}/stat")).ok()?)?;
    let per_second = i128::from(sysconf(SysconfVar::CLK_TCK).ok()??);
    let now = |clock| clock_gettime(clock).ok().map(|time| Timestamp::of(time.tv_sec(), time.tv_nsec() as u32).0);
    let booted = now(ClockId::CLOCK_REALTIME)? - now(ClockId::CLOCK_BOOTTIME)?;
    Some(Timestamp(booted + i128::from(ticks) * 1_000_000_000 / per_second))
}

/// Field 22 of `/proc/PID/stat`. The command in field 2 may hold anything, spaces and parentheses too.
pub(super) fn start_ticks(stat: &[u8]) -> Option<u64> {
    let close = stat.iter().rposition(|byte| *byte == b')')?;
    let field = stat[close + 1..].split(|byte| byte.is_ascii_whitespace()).filter(|field| !field.is_empty()).nth(19)?;
    std::str::from_utf8(field).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    #[test]
    fn the_start_time_survives_any_command() {
        let mut stat = b"17 (a) b ) S".to_vec();
        for field in 4..=22 {
            stat.extend_from_slice(format!(" {field}").as_bytes());
        }
        assert_eq!(start_ticks(&stat), Some(22));
        assert_eq!(start_ticks(b"17 (a) S 1"), None);
        assert_eq!(start_ticks(b""), None);
    }

    #[test]
    fn a_child_is_alive_since_now_and_dead_once_reaped() {
        let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let Process::Alive { started: Some(started) } = ask(child.id()) else { panic!("not alive") };
        let before = Timestamp::of(before.as_secs() as i64, before.subsec_nanos());
        let margin = Duration::from_secs(2);
        assert!((started.0 - before.0).unsigned_abs() < margin.as_nanos(), "{started:?} {before:?}");
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(ask(child.id()), Process::Dead);
        assert_eq!(ask(0), Process::Alive { started: None });
    }
}
