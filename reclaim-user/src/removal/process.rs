//! Asking the kernel about the process that a name tells.

use crate::model::fence::{Process, Timestamp};
use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{Pid, SysconfVar, sysconf};
use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};

/// By how much the wall clock was ahead of the clock since boot, in nanoseconds, when that was least in the life of this
/// process.
///
/// A wall clock that is set forward makes each living process seem to have started later by as much than what it made
/// before, as one that took over a number would. By the least lead it seems older, and so keeps its entries.
static LEAST_LEAD: AtomicI64 = AtomicI64::new(i64::MAX);

/// Asks about processes, and remembers the answers for a moment.
#[derive(Debug, Default)]
pub(super) struct Processes {
    answers: HashMap<u32, Process>,
}

impl Processes {
    /// Forgets all answers, and notes how the clocks stand.
    pub(super) fn forget(&mut self) {
        self.answers.clear();
        // None where there is no telling, and then nothing is told of when a process started.
        let _noted = least_lead(&LEAST_LEAD);
    }

    /// What the kernel says of a process. Whatever cannot be asked is alive.
    pub(super) fn ask(&mut self, process: u32) -> Process {
        *self.answers.entry(process).or_insert_with(|| ask(process, &LEAST_LEAD))
    }
}

fn ask(process: u32, known: &AtomicI64) -> Process {
    let Ok(number) = i32::try_from(process) else {
        return Process::Alive { started: None };
    };
    // 0 and below would mean process groups. A filtered procfs hides tasks, so its word alone never makes one dead.
    match kill(Pid::from_raw(number), None) {
        Err(Errno::ESRCH) if number > 0 => Process::Dead,
        _ => Process::Alive { started: started(process, known) },
    }
}

/// When a process started, on the wall clock as it stood when it was least ahead.
fn started(process: u32, known: &AtomicI64) -> Option<Timestamp> {
    let ticks = start_ticks(&std::fs::read(format!("/proc/{process}/stat")).ok()?)?;
    let per_second = i128::from(sysconf(SysconfVar::CLK_TCK).ok()??);
    Some(Timestamp(i128::from(least_lead(known)?) + i128::from(ticks) * 1_000_000_000 / per_second))
}

fn least_lead(known: &AtomicI64) -> Option<i64> {
    let now = |clock| clock_gettime(clock).ok().map(|time| Timestamp::of(time.tv_sec(), time.tv_nsec() as u32).0);
    let lead = now(ClockId::CLOCK_REALTIME)? - now(ClockId::CLOCK_BOOTTIME)?;
    let lead = i64::try_from(lead).ok()?;
    Some(known.fetch_min(lead, Ordering::Relaxed).min(lead))
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
    fn a_wall_clock_that_is_set_forward_makes_no_process_younger() {
        const HOUR: i64 = 3_600_000_000_000;
        let known = AtomicI64::new(i64::MAX);
        let started = || match ask(std::process::id(), &known) {
            Process::Alive { started: Some(started) } => started.0,
            other => panic!("{other:?}"),
        };
        let now = started();
        // As if it had been set forward by an hour since it was looked at.
        known.fetch_sub(HOUR, Ordering::Relaxed);
        let then = started();
        assert!((now - then - i128::from(HOUR)).abs() < i128::from(HOUR) / 100, "{then} {now}");
    }

    #[test]
    fn a_child_is_alive_since_now_and_dead_once_reaped() {
        let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let Process::Alive { started: Some(started) } = ask(child.id(), &AtomicI64::new(i64::MAX)) else {
            panic!("not alive")
        };
        let before = Timestamp::of(before.as_secs() as i64, before.subsec_nanos());
        let margin = Duration::from_secs(2);
        assert!((started.0 - before.0).unsigned_abs() < margin.as_nanos(), "{started:?} {before:?}");
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(ask(child.id(), &LEAST_LEAD), Process::Dead);
        assert_eq!(ask(0, &LEAST_LEAD), Process::Alive { started: None });
    }
}
