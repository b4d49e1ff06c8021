//! Threads that may be inside a mount-class call which the mount clock did not count in: those that entered before the
//! probes were attached, or while its map was full. /proc/<process>/task/<thread>/syscall tells of each thread that sleeps; a thread that runs is
//! looked at again until it sleeps elsewhere, or has spent time outside the kernel. Of threads that it may not tell of, and of
//! those that go on running, the kernel is asked itself ([`super::inside`]), where it answers.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use reclaim_ebpf::abi::EVERYBODY;

use super::inside::{Calls, Kernel};
use super::probes::hooks::{self, CLONE_NEWNS};
use super::procfs::Procfs;
use crate::model::event::{Hook, UncountedCall};

/// How long a thread that may not be looked at is given to leave a call, from the moment of attaching.
const SETTLING: Duration = Duration::from_millis(250);

/// Looks by /proc alone at threads that run: most of them sleep before long, and loading what asks the kernel takes longer.
const LOOKS_BEFORE_ASKING: u32 = 8;

/// Whether the threads have left.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Left {
    All,
    Some(String),
}

/// Threads that have not been seen outside of a mount-class call yet.
#[derive(Debug)]
pub(super) struct Stragglers {
    threads: BTreeMap<(u32, u32), Seen>,
    /// Threads that nothing has told of: each by itself, or all of a process whose threads cannot be listed.
    unreadable: Vec<(u32, Option<u32>)>,
    /// What tells of threads that /proc does not tell of, as long as there are any to ask about.
    kernel: Kernel,
    /// How often they were looked at again.
    looks: u32,
    /// Threads that have been seen outside since that was last asked.
    left: u64,
    /// Why /proc could not be listed at all.
    blind: Option<String>,
    since: Instant,
}

/// What a thread is doing that keeps it from being known to be outside of a mount-class call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    /// The call that it sleeps in, and its stack pointer there; none while it runs.
    inside: Option<(Hook, u64)>,
    /// Clock ticks that it has spent outside the kernel.
    user_ticks: u64,
}

impl Seen {
    /// Inside a call; none for one that is not of the mount class.
    fn inside(call: Call, process: u32, user_ticks: u64) -> Option<Self> {
        let counts = |hook: &Hook| makes_namespace(*hook, call.arguments[0], process);
        let by_64 = || hooks::hook_of(call.number).filter(counts);
        let by_32 = || hooks::hook_of_32(call.number).filter(counts);
        // A caller of 32 bits has arguments of 32 bits, which few others have.
        let is_narrow = || call.arguments.iter().all(|&argument| argument <= u64::from(u32::MAX));
        let hook = match call.is_32 {
            Some(true) => by_32(),
            Some(false) => by_64(),
            None => by_64().or_else(|| is_narrow().then(by_32).flatten()),
        };
        hook.map(|hook| Self { inside: Some((hook, call.stack)), user_ticks })
    }

    /// Whether it sleeps in a mount-class call.
    pub(super) fn is_inside(self) -> bool {
        self.inside.is_some()
    }

    /// Whether it may be in a call that pins something.
    fn may_pin(self) -> bool {
        self.inside.is_none_or(|(hook, _)| hook.may_pin())
    }

    /// Whether the thread may still be in the call that it was in at first sight. Where it was running then and sleeps in a
    /// call now, that is the call that it has to leave: either it was in it then, or it has left the one that it was in.
    fn is_still(&mut self, now: Self) -> bool {
        let may_be = may_be_the_same(*self, now);
        self.inside = self.inside.or(now.inside);
        may_be
    }
}

#[cfg(test)]
impl Seen {
    pub(super) fn sleeping_in(hook: Hook, stack: u64) -> Self {
        Self { inside: Some((hook, stack)), user_ticks: 0 }
    }

    pub(super) fn running(user_ticks: u64) -> Self {
        Self { inside: None, user_ticks }
    }
}

impl Stragglers {
    /// Looks at every thread of the host.
    pub(super) fn look() -> Self {
        let (threads, since) = (BTreeMap::new(), Instant::now());
        let mut found =
            Self { threads, unreadable: Vec::new(), kernel: Kernel::Unasked, looks: 0, left: 0, blind: None, since };
        let processes = match numbers_in("/proc".into()) {
            Ok(processes) => processes,
            Err(error) => {
                found.blind = Some(format!("cannot list /proc: {error}"));
                return found;
            }
        };
        for process in processes {
            match numbers_in(format!("/proc/{process}/task").into()) {
                Ok(threads) => {
                    threads.into_iter().for_each(|thread| found.look_at(process, thread));
                }
                Err(error) if is_gone(&error) => {}
                Err(_) => found.unreadable.push((process, None)),
            }
        }
        if !found.unreadable.is_empty() {
            found.kernel = Kernel::load();
        }
        found
    }

    /// Looks for the first time at threads that /proc does not tell of, once the kernel answers.
    fn ask_about_unreadable(&mut self) {
        if self.unreadable.is_empty() {
            return;
        }
        let Some(calls) = self.kernel.look() else { return };
        for (whose, call) in calls {
            let (process, thread) = whose;
            let is_asked_about =
                |asked: &(u32, Option<u32>)| *asked == (process, Some(thread)) || *asked == (process, None);
            if self.unreadable.iter().any(is_asked_about) {
                // Ticks that are not known never show that it was outside.
                let seen = Seen::inside(call, process, user_ticks(whose).unwrap_or(u64::MAX));
                self.threads.extend(seen.map(|seen| (whose, seen)));
            }
        }
        // Each may have been in a call, or not; and who has left by now, nobody saw return.
        self.left += self.unreadable.len() as u64;
        self.unreadable.clear();
    }

    /// Whether every thread that may be looked at was seen outside, after looking again.
    pub(super) fn are_seen_outside(&mut self) -> bool {
        self.look_again();
        self.are_all_outside()
    }

    /// How many threads were found to have left, since the last time. Each may have been in a call, or not.
    pub(super) fn take_left(&mut self) -> u64 {
        std::mem::take(&mut self.left)
    }

    /// Looks again at those not seen outside yet.
    pub(super) fn look_again(&mut self) -> Left {
        self.ask_about_unreadable();
        self.looks = self.looks.saturating_add(1);
        let before = self.threads.len();
        let Self { threads, kernel, .. } = self;
        // Asked once at most: the whole host is looked at.
        let (mut calls, mut is_untold): (Option<Option<Calls>>, bool) = (None, false);
        let mut call_of = |whose| {
            let calls = calls.get_or_insert_with(|| kernel.look());
            calls.as_ref().map(|calls| calls.get(&whose).copied())
        };
        threads.retain(|&(process, thread), seen| match observe(process, thread) {
            Ok(None) => false,
            Ok(Some(now)) if now.is_inside() => seen.is_still(now),
            Err(error) if is_gone(&error) => false,
            runs_or_unreadable => match (call_of((process, thread)), runs_or_unreadable) {
                (Some(call), _) => {
                    let ticks = || user_ticks((process, thread)).unwrap_or(0);
                    call.and_then(|call| Seen::inside(call, process, ticks())).is_some_and(|now| seen.is_still(now))
                }
                (None, told) => {
                    is_untold = true;
                    told.ok().flatten().is_none_or(|now| seen.is_still(now))
                }
            },
        });
        if is_untold && self.looks >= LOOKS_BEFORE_ASKING && matches!(kernel, Kernel::Unasked) {
            *kernel = Kernel::load();
        }
        if threads.is_empty() && self.unreadable.is_empty() && matches!(kernel, Kernel::Loaded(..)) {
            *kernel = Kernel::Unasked;
        }
        self.left += (before - self.threads.len()) as u64;
        // Those that can pin nothing are not waited for. That they have left is still of interest: nobody else may see it.
        let mut waited_for = self.threads.iter().filter(|(_, seen)| seen.may_pin());
        if let Some((&(process, thread), seen)) = waited_for.next() {
            let doing = match seen.inside {
                Some((hook, _)) => format!("was inside {hook}"),
                None => "was running".to_owned(),
            };
            return Left::Some(format!(
                "thread {thread} of process {process} {doing} when the mount clock could not count it in, and has not been \
                 seen outside the kernel since"
            ));
        }
        if self.is_settling() {
            return Left::Some(format!(
                "{} threads may not be looked at and are given {} ms to leave a call",
                self.unreadable.len(),
                SETTLING.as_millis()
            ));
        }
        Left::All
    }

    /// Whether none is left.
    pub(super) fn are_all_outside(&self) -> bool {
        self.threads.is_empty()
    }

    /// The calls that threads are known to be inside.
    pub(super) fn inside(&self) -> Vec<UncountedCall> {
        let inside = self.threads.iter().filter(|(_, seen)| seen.is_inside() && seen.may_pin());
        let call = |(&(process, thread), seen): (_, &Seen)| {
            seen.inside.map(|(hook, _)| UncountedCall { thread, process, hook })
        };
        inside.filter_map(call).collect()
    }

    /// Whether there are threads that may not be looked at and that still have time to leave a call.
    pub(super) fn is_settling(&mut self) -> bool {
        self.ask_about_unreadable();
        let is_early = self.since.elapsed() < SETTLING;
        (!self.unreadable.is_empty() && (is_early || self.kernel.may_tell())) || (self.blind.is_some() && is_early)
    }

    /// Whose threads have all been seen outside: everybody's, the number of this process for its own, or none when that is
    /// not known. Where the numbers in /proc are not those of the kernel's first pid namespace, it is not.
    pub(super) fn outside(&self) -> Option<u64> {
        let own = std::process::id();
        if self.blind.is_some() || self.threads.keys().any(|&(process, _)| process == own) {
            return None;
        }
        if !Procfs::open().is_ok_and(|procfs| procfs.shows_initial_pid_namespace()) {
            return None;
        }
        let everybody = self.unreadable.is_empty() && self.threads.is_empty();
        // Whoever may look at some threads only may look at those of its own process.
        Some(if everybody { EVERYBODY } else { own.into() })
    }

    /// What could not be looked at.
    pub(super) fn weakness(&mut self) -> Option<String> {
        self.kernel.wait();
        self.ask_about_unreadable();
        match &self.blind {
            Some(why) => Some(why.clone()),
            None => (!self.unreadable.is_empty()).then(|| {
                format!(
                    "{} threads may not be looked at (/proc/<pid>/syscall needs the rights of ptrace); a call that they were in \
                     before the mount clock counted was given {} ms",
                    self.unreadable.len(),
                    SETTLING.as_millis()
                )
            }),
        }
    }

    fn look_at(&mut self, process: u32, thread: u32) {
        match observe(process, thread) {
            Ok(None) => {}
            Ok(Some(seen)) => {
                self.threads.insert((process, thread), seen);
            }
            Err(error) if is_gone(&error) => {}
            Err(_) => self.unreadable.push((process, Some(thread))),
        }
    }
}

/// Growth of [`Seen::user_ticks`] that shows a thread outside the kernel. The kernel shares run time out by samples, so that
/// a tick or two may be booked to the wrong side.
const TICKS_OUTSIDE: u64 = 3;

/// Whether the thread may still be in the call that it was in, or may have been in, at first sight.
pub(super) fn may_be_the_same(first: Seen, now: Seen) -> bool {
    let other_call = first.inside.is_some() && now.inside.is_some() && first.inside != now.inside;
    !other_call && now.user_ticks < first.user_ticks.saturating_add(TICKS_OUTSIDE)
}

/// None for a thread that is not in a mount-class call.
pub(super) fn observe(process: u32, thread: u32) -> io::Result<Option<Seen>> {
    let folder = format!("/proc/{process}/task/{thread}");
    let stat = parse_stat(&fs::read(format!("{folder}/stat"))?)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "stat without its fields"))?;
    let Stat { makes_calls, user_ticks } = stat;
    if !makes_calls {
        return Ok(None);
    }
    let text = fs::read_to_string(format!("{folder}/syscall"))?;
    let Some(call) = parse(&text) else {
        return Ok(Some(Seen { inside: None, user_ticks }));
    };
    Ok(Seen::inside(call, process, user_ticks))
}

/// Clock ticks that a thread has spent outside the kernel; none where that is not told.
fn user_ticks((process, thread): (u32, u32)) -> Option<u64> {
    let stat = fs::read(format!("/proc/{process}/task/{thread}/stat")).ok();
    stat.and_then(|stat| parse_stat(&stat)).map(|stat| stat.user_ticks)
}

/// Whether a call counts: some do only if their flags ask for a mount namespace. Unreadable flags count.
fn makes_namespace(hook: Hook, first: u64, process: u32) -> bool {
    let flags = match hook {
        Hook::Unshare | Hook::Clone => first,
        Hook::Clone3 => {
            let mut flags = [0; 8];
            let memory = File::open(format!("/proc/{process}/mem"));
            match memory.and_then(|memory| memory.read_exact_at(&mut flags, first)) {
                Ok(()) => u64::from_ne_bytes(flags),
                Err(_) => return true,
            }
        }
        _ => return true,
    };
    flags & CLONE_NEWNS != 0
}

/// A system call that a thread is inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Call {
    /// -1 for a thread that sleeps outside a system call.
    pub(super) number: i64,
    pub(super) arguments: [u64; 6],
    /// The stack pointer outside the kernel.
    pub(super) stack: u64,
    /// Whether the number is one of callers of 32 bits; none where that is not told.
    pub(super) is_32: Option<bool>,
}

/// Reads a `syscall` file: number, six arguments, stack pointer and instruction pointer. None for a thread that runs.
/// proc_pid_syscall(5).
fn parse(text: &str) -> Option<Call> {
    let mut words = text.split_ascii_whitespace();
    let number = words.next()?.parse().ok()?;
    let hexadecimal = |word: Option<&str>| u64::from_str_radix(word?.strip_prefix("0x")?, 16).ok();
    let mut arguments = [0; 6];
    if number == -1 {
        return Some(Call { number, arguments, stack: 0, is_32: None });
    }
    for argument in &mut arguments {
        *argument = hexadecimal(words.next())?;
    }
    let stack = hexadecimal(words.next())?;
    Some(Call { number, arguments, stack, is_32: None })
}

/// What a `stat` file says of a thread.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    /// Not dead, and not a thread of the kernel.
    makes_calls: bool,
    user_ticks: u64,
}

/// `PF_KTHREAD` and `PF_IO_WORKER`, threads that never leave the kernel and make no system call. (The latter was `PF_VCPU`
/// before 5.12, on threads that run a guest at that moment.) <include/linux/sched.h>
const KERNEL_THREAD: u64 = 0x0020_0000 | 0x10;

/// Fields 3, 9 and 14 of a `stat` file, after a name that may hold anything. proc_pid_stat(5).
fn parse_stat(stat: &[u8]) -> Option<Stat> {
    let name_ends = stat.iter().rposition(|&byte| byte == b')')?;
    let mut fields = std::str::from_utf8(stat.get(name_ends + 1..)?).ok()?.split_ascii_whitespace();
    let state = fields.next()?;
    let flags: u64 = fields.nth(5)?.parse().ok()?;
    let user_ticks = fields.nth(4)?.parse().ok()?;
    let dead = matches!(state, "Z" | "X" | "x");
    Some(Stat { makes_calls: !dead && flags & KERNEL_THREAD == 0, user_ticks })
}

fn numbers_in(folder: PathBuf) -> io::Result<Vec<u32>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        numbers.extend(name.to_str().and_then(|name| name.parse::<u32>().ok()));
    }
    Ok(numbers)
}

pub(super) fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syscall_lines_are_understood() {
        let line = "165 0x7f10 0x7f20 0x0 0x1000 0x0 0x0 0x7ffc12345678 0x7f00deadbeef\n";
        let arguments = [0x7f10, 0x7f20, 0, 0x1000, 0, 0];
        assert_eq!(parse(line), Some(Call { number: 165, arguments, stack: 0x7ffc_1234_5678, is_32: None }));
        assert_eq!(
            parse("-1 0x7ffc0000 0x7f000000\n"),
            Some(Call { number: -1, arguments: [0; 6], stack: 0, is_32: None })
        );
        assert_eq!(parse("running\n"), None);
        assert_eq!(parse(""), None);
        assert_eq!(parse("165 0x7f10"), None);
    }

    #[test]
    fn stat_lines_are_understood_after_any_name() {
        let stat =
            |state, flags| format!("12 (a) b 1 (c) {state} 1 12 12 0 -1 {flags} 1 0 0 0 77 5 0 0 20 0 1 0 99 1 1");
        let parsed = |state, flags| parse_stat(stat(state, flags).as_bytes());
        assert_eq!(parsed("S", 0x40_0100), Some(Stat { makes_calls: true, user_ticks: 77 }));
        assert_eq!(parsed("Z", 0x40_0100), Some(Stat { makes_calls: false, user_ticks: 77 }));
        assert_eq!(parsed("R", 0x40_0150), Some(Stat { makes_calls: false, user_ticks: 77 }), "of an io_uring");
        assert_eq!(parsed("I", 0x60_8040), Some(Stat { makes_calls: false, user_ticks: 77 }));
        assert_eq!(parse_stat(b"12 (name) S 1"), None);
        assert_eq!(parse_stat(b""), None);
    }

    #[test]
    fn a_thread_is_a_straggler_until_it_is_seen_elsewhere() {
        let inside = |hook, stack| Seen { inside: Some((hook, stack)), user_ticks: 9 };
        let running = |user_ticks| Seen { inside: None, user_ticks };
        assert!(may_be_the_same(inside(Hook::Mount, 1), inside(Hook::Mount, 1)));
        assert!(!may_be_the_same(inside(Hook::Mount, 1), inside(Hook::Mount, 2)));
        assert!(!may_be_the_same(inside(Hook::Mount, 1), inside(Hook::Setns, 1)));
        assert!(may_be_the_same(inside(Hook::Mount, 1), running(9)));
        assert!(may_be_the_same(running(9), inside(Hook::Mount, 1)));
        assert!(may_be_the_same(running(9), running(9 + TICKS_OUTSIDE - 1)));
        assert!(!may_be_the_same(running(9), running(9 + TICKS_OUTSIDE)));
        // What it was running in shows once it sleeps, and then it is known where it is.
        let mut ran = running(9);
        assert!(ran.is_still(running(9)) && !ran.is_inside());
        assert!(ran.is_still(inside(Hook::Mount, 1)) && ran.is_inside());
        assert!(ran.is_still(running(9)) && ran.is_inside());
        assert!(!ran.is_still(inside(Hook::Umount, 1)));
    }

    #[test]
    fn a_thread_that_spins_is_seen_to_be_outside() {
        let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let seen = std::sync::Arc::clone(&stop);
        let spinning = std::thread::spawn(move || {
            while !seen.load(std::sync::atomic::Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let mut stragglers = Stragglers::look();
        let deadline = Instant::now() + Duration::from_secs(20);
        let own = std::process::id();
        while stragglers.threads.keys().any(|&(process, _)| process == own) && Instant::now() < deadline {
            stragglers.look_again();
            std::thread::sleep(Duration::from_millis(5));
        }
        // The thread that looks is running whenever it is looked at, and has to leave the list as well.
        let left: Vec<_> = stragglers.threads.keys().filter(|&&(process, _)| process == own).collect();
        assert!(left.is_empty(), "{left:?}");
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        spinning.join().expect("spins quietly");
    }
}
