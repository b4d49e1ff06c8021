//! Returns that no program saw.
//!
//! A call is counted in by a program at its enter and counted out by another at its return, which also sends the call's
//! record. The second one can be left out: fexit for calls that were inside while somebody put another program on the
//! function or took one off (`bpf_tramp_image_put` in kernel/bpf/trampoline.c); kretprobe when more calls sleep in the
//! function than the kernel has room to note (`maxactive`); either one for a task that met the program where it was
//! running on the same processor already. Such a call stays in the map of calls in flight. The kernel side notices when its
//! thread makes another call or exits; until then /proc tells whether the thread is still inside. Every return that is
//! found missing counts as a record that was lost.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::{Duration, Instant};

use aya::programs::ProgramFd;

use super::procfs::Procfs;
use super::stragglers::{self, Seen};
use crate::model::event::InFlightCall;
use crate::sys::bpf;

/// How long a call may take before it is looked at.
const LOOKED_AT_AFTER: Duration = Duration::from_millis(100);
/// How often a call of which nothing can be told counts as one whose return may have been missed.
const UNKNOWN_COUNTS_EVERY: Duration = Duration::from_secs(1);
/// How often the kernel is asked for runs that it left out, where nobody waits for the answer.
const ASKED_EVERY: Duration = Duration::from_millis(250);

/// Calls that are counted in, judged by what their threads do.
#[derive(Debug, Default)]
pub(super) struct Returns {
    /// Numbers of calls that have returned unseen and are still in the map.
    returned: BTreeSet<u64>,
    suspects: BTreeMap<u64, Suspect>,
}

#[derive(Debug)]
struct Suspect {
    seen: Option<Seen>,
    counted: Option<Instant>,
}

impl Returns {
    /// Looks at the threads of the calls that have been in flight for a while, given the clock that their times are of.
    /// Returns how many returns it finds missing now, those included of which nothing can be told.
    pub(super) fn look(&mut self, calls: &[InFlightCall], now_ns: u64) -> u64 {
        let numbers: BTreeSet<u64> = calls.iter().map(|call| call.number).collect();
        self.returned.retain(|number| numbers.contains(number));
        self.suspects.retain(|number, _| numbers.contains(number));
        let old = |call: &&InFlightCall| u128::from(now_ns.saturating_sub(call.since_ns)) > LOOKED_AT_AFTER.as_nanos();
        let due: Vec<_> = calls.iter().filter(old).filter(|call| !self.returned.contains(&call.number)).collect();
        if due.is_empty() || !Procfs::open().is_ok_and(|procfs| procfs.shows_initial_pid_namespace()) {
            // The numbers in the map are of the first pid namespace: elsewhere they may be other threads'.
            return 0;
        }
        let mut missed = 0;
        for call in due {
            let suspect = self.suspects.entry(call.number).or_insert(Suspect { seen: None, counted: None });
            match suspect.judge(stragglers::observe(call.process, call.thread)) {
                Judgement::Inside => {}
                Judgement::Unknown => {
                    if suspect.counted.is_none_or(|at| at.elapsed() > UNKNOWN_COUNTS_EVERY) {
                        suspect.counted = Some(Instant::now());
                        missed += 1;
                    }
                }
                Judgement::Outside => {
                    tracing::debug!(%call, "its return was not seen");
                    self.returned.insert(call.number);
                    self.suspects.remove(&call.number);
                    missed += 1;
                }
            }
        }
        missed
    }

    /// Whether a call is known to have returned.
    pub(super) fn has_returned(&self, number: u64) -> bool {
        self.returned.contains(&number)
    }

    /// Whether any is.
    pub(super) fn is_empty(&self) -> bool {
        self.returned.is_empty()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Judgement {
    Inside,
    Outside,
    Unknown,
}

impl Suspect {
    /// A thread is in one call at a time, so one that is elsewhere has left it. Whoever is in a call of the same kind may
    /// be in the one after: then the kernel side replaces the call in the map.
    fn judge(&mut self, now: std::io::Result<Option<Seen>>) -> Judgement {
        match now {
            Ok(None) => Judgement::Outside,
            Err(error) if stragglers::is_gone(&error) => Judgement::Outside,
            Err(_) => Judgement::Unknown,
            Ok(Some(now)) => match self.seen {
                Some(first) if !stragglers::may_be_the_same(first, now) => Judgement::Outside,
                _ => {
                    self.seen.get_or_insert(now);
                    if now.is_inside() { Judgement::Inside } else { Judgement::Unknown }
                }
            },
        }
    }
}

/// Runs of programs that the kernel left out.
pub(super) struct Misses {
    programs: Vec<ProgramFd>,
    known: u64,
    asked: Instant,
}

impl fmt::Debug for Misses {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Misses").field("known", &self.known).finish_non_exhaustive()
    }
}

impl Misses {
    pub(super) fn new(programs: Vec<ProgramFd>) -> Self {
        Self { programs, known: 0, asked: Instant::now() }
    }

    /// How many there were since the last time, where some time has passed since.
    pub(super) fn ask_now_and_then(&mut self) -> u64 {
        if self.asked.elapsed() < ASKED_EVERY { 0 } else { self.ask() }
    }

    /// How many there were since the last time. Each one is told once.
    pub(super) fn ask(&mut self) -> u64 {
        self.asked = Instant::now();
        // A kernel that cannot say has no count: it never fails for one program alone.
        let total = self.programs.iter().map(|program| bpf::program_misses(program).unwrap_or(0)).sum();
        let new = u64::saturating_sub(total, self.known);
        self.known = total;
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::event::Hook;
    use std::io;

    fn suspect() -> Suspect {
        Suspect { seen: None, counted: None }
    }

    #[test]
    fn a_thread_that_is_elsewhere_has_left_its_call() {
        let inside = |stack| Ok(Some(Seen::sleeping_in(Hook::Mount, stack)));
        assert_eq!(suspect().judge(Ok(None)), Judgement::Outside);
        assert_eq!(suspect().judge(Err(io::Error::from_raw_os_error(libc::ESRCH))), Judgement::Outside);
        assert_eq!(suspect().judge(Err(io::Error::from_raw_os_error(libc::EACCES))), Judgement::Unknown);
        let mut hangs = suspect();
        assert_eq!(hangs.judge(inside(1)), Judgement::Inside);
        assert_eq!(hangs.judge(inside(1)), Judgement::Inside);
        assert_eq!(hangs.judge(inside(2)), Judgement::Outside);
        let mut runs = suspect();
        assert_eq!(runs.judge(Ok(Some(Seen::running(5)))), Judgement::Unknown);
        assert_eq!(runs.judge(Ok(Some(Seen::running(5)))), Judgement::Unknown);
        assert_eq!(runs.judge(Ok(Some(Seen::running(50)))), Judgement::Outside);
    }

    #[test]
    fn a_missing_return_counts_once_and_an_unknown_one_now_and_then() {
        let (say, hear) = std::sync::mpsc::channel();
        let number = || nix::unistd::gettid().as_raw().unsigned_abs();
        let end = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let (spin, spins) = (std::sync::Arc::clone(&end), say.clone());
        let spinning = std::thread::spawn(move || {
            spins.send(number()).expect("the test listens");
            while !spin.load(std::sync::atomic::Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        // It runs, so nothing can be told of it.
        let own = InFlightCall {
            thread: hear.recv().expect("it starts"),
            process: std::process::id(),
            number: 7,
            since_ns: 0,
            hook: Hook::Mount,
            generation: 0,
        };
        let (stop, wait) = std::sync::mpsc::channel::<()>();
        let sleeping = std::thread::spawn(move || {
            say.send(number()).expect("the test listens");
            wait.recv().expect_err("nothing is sent");
        });
        let other = InFlightCall { thread: hear.recv().expect("it starts"), number: 8, ..own };
        while stragglers::observe(other.process, other.thread).expect("it lives").is_some() {
            std::thread::yield_now();
        }
        let mut returns = Returns::default();
        let calls = [own, other];
        assert_eq!(returns.look(&calls, 1), 0, "too young to be looked at");
        assert_eq!(returns.look(&calls, 1 << 40), 2);
        assert!(returns.has_returned(8) && !returns.has_returned(7));
        assert_eq!(returns.look(&calls, 1 << 40), 0);
        assert_eq!(returns.look(&[], 1 << 40), 0);
        assert!(returns.is_empty());
        drop(stop);
        end.store(true, std::sync::atomic::Ordering::Relaxed);
        sleeping.join().expect("it ends");
        spinning.join().expect("it ends");
    }
}
