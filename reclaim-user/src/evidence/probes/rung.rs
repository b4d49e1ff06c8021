//! The ladder: ways to listen to a system call, tried one after the other for each call by itself.

use std::fmt;

use super::hooks::{CALLS, SYSCALLS};
use crate::evidence::lacking;

/// Ways to listen, each one dearer or blinder than the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rung {
    /// A raw tracepoint of the scheduler: an event in itself, not a system call.
    SchedulerTracepoint,
    /// fentry and fexit on the kernel's function for the call. A return is not seen when somebody puts another program
    /// on the function, or takes one off, while the call is inside; the clock notices.
    Fentry,
    /// kprobe and kretprobe on the same function. A return is not seen when more calls sleep in the function than the
    /// kernel has room to note (10, or two for each processor); the clock notices.
    Kprobe,
    /// The tracepoints of one system call, at enter and exit. Needs tracefs.
    SyscallTracepoint,
    /// The raw tracepoints that every system call passes, which pick out theirs by number.
    EverySyscall,
}

impl Rung {
    /// The order in which the rungs are tried.
    pub const LADDER: [Self; 4] = [Self::Fentry, Self::Kprobe, Self::SyscallTracepoint, Self::EverySyscall];

    /// What listening this way costs.
    #[must_use]
    pub const fn cost(self) -> &'static str {
        match self {
            Self::SchedulerTracepoint => "well under a microsecond for each fork or exit",
            Self::Fentry => "well under a microsecond on this call, nothing on any other",
            Self::Kprobe => "a microsecond or so on this call, nothing on any other",
            Self::SyscallTracepoint => {
                "a third of a getppid (30 to 80 ns) on every system call of the host, however many such hooks"
            }
            Self::EverySyscall => "more than a getppid (some 240 ns) on every system call of the host",
        }
    }

    /// What listening this way does not see. Programs of kprobes and of single tracepoints are run by one function of the
    /// kernel (`trace_call_bpf`), which leaves them out where bpf(2) was interrupted, and counts that since Linux 6.7.
    #[must_use]
    pub const fn blind_to(self) -> &'static str {
        match self {
            Self::SchedulerTracepoint | Self::Fentry => "nothing",
            Self::Kprobe => "nothing, but for a preemptible kernel before 6.7: calls made while bpf(2) is interrupted",
            Self::SyscallTracepoint => {
                "32-bit callers; on a preemptible kernel before 6.7 also calls made while bpf(2) is interrupted"
            }
            Self::EverySyscall => "32-bit callers, which may also be taken for others",
        }
    }

    /// Its name in `RECLAIM_TEST_DISABLE`; none for what is no rung of the ladder.
    const fn test_name(self) -> Option<&'static str> {
        match self {
            Self::SchedulerTracepoint => None,
            Self::Fentry => Some("fentry"),
            Self::Kprobe => Some("kprobe"),
            Self::SyscallTracepoint => Some("tracepoint"),
            Self::EverySyscall => Some("every-syscall"),
        }
    }
}

impl fmt::Display for Rung {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::SchedulerTracepoint => "scheduler tracepoint",
            Self::Fentry => "fentry",
            Self::Kprobe => "kprobe",
            Self::SyscallTracepoint => "syscall tracepoint",
            Self::EverySyscall => "every-syscall tracepoint",
        })
    }
}

/// A rung that is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passed {
    /// The rung.
    pub rung: Rung,
    /// Why, with whether the kernel refused it or lacks it.
    pub why: Why,
}

/// Why a rung is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// The kernel does not have what it takes.
    Absent(String),
    /// It could not be attached.
    Refused(String),
    /// It was attached and did not report a call made to try it.
    Untrue(String),
}

impl fmt::Display for Why {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent(why) => write!(formatter, "absent: {why}"),
            Self::Refused(why) => write!(formatter, "refused: {why}"),
            Self::Untrue(why) => write!(formatter, "not to be relied on: {why}"),
        }
    }
}

impl fmt::Display for Passed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.rung, self.why)
    }
}

/// Which rungs may be used, in which order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rungs {
    order: Vec<Rung>,
    /// For every call, or for one by its index.
    disabled: Vec<(Rung, Option<usize>)>,
    distrusted: Vec<Rung>,
}

impl Default for Rungs {
    fn default() -> Self {
        Self { order: Rung::LADDER.to_vec(), disabled: Vec::new(), distrusted: Vec::new() }
    }
}

impl Rungs {
    /// One rung and no other.
    #[must_use]
    pub fn only(rung: Rung) -> Self {
        Self { order: vec![rung], ..Self::default() }
    }

    /// The same rungs, one of them before all others.
    #[must_use]
    pub fn first(mut self, rung: Rung) -> Self {
        self.order.retain(|&other| other != rung);
        self.order.insert(0, rung);
        self
    }

    /// Every rung, but for tests of the built program: with `RECLAIM_TEST=1` in the environment, those that
    /// `RECLAIM_TEST_DISABLE` lists (`fentry`, `kprobe`, `tracepoint`, `every-syscall`; separated by commas) are left
    /// out. With the name of a call behind it (`fentry/mount`) one is left out for that call only, and with `-answer` it
    /// is taken not to report the calls made to try it.
    #[must_use]
    pub fn from_environment() -> Self {
        Self::without(lacking::list())
    }

    /// Every rung but those that a list names, as in `RECLAIM_TEST_DISABLE`.
    #[must_use]
    pub fn without(list: &str) -> Self {
        let mut rungs = Self::default();
        for word in list.split(',').map(str::trim) {
            let (word, call) = word.split_once('/').map_or((word, None), |(word, call)| (word, Some(call)));
            let (word, answer) = word.strip_suffix("-answer").map_or((word, false), |word| (word, true));
            let Some(rung) = Rung::LADDER.into_iter().find(|rung| rung.test_name() == Some(word)) else { continue };
            match call.map(|name| SYSCALLS.iter().position(|call| call.name == name)) {
                // No such call.
                Some(None) => {}
                _ if answer => rungs.distrusted.push(rung),
                Some(Some(call)) => rungs.disabled.push((rung, Some(call))),
                None => rungs.disabled.push((rung, None)),
            }
        }
        rungs
    }

    /// Whether it is to be taken not to report anything.
    pub(super) fn distrusts(&self, rung: Rung) -> bool {
        self.distrusted.contains(&rung)
    }
}

/// How far down each call has come.
#[derive(Clone, Debug)]
pub(super) struct Ladder {
    order: Vec<Rung>,
    passed: [Vec<Passed>; CALLS],
}

impl Ladder {
    pub(super) fn new(rungs: &Rungs) -> Self {
        let mut ladder = Self { order: rungs.order.clone(), passed: Default::default() };
        for &(rung, only) in &rungs.disabled {
            for (call, passed) in ladder.passed.iter_mut().enumerate() {
                if only.is_none_or(|only| only == call) {
                    passed.push(Passed { rung, why: Why::Refused(lacking::WHY.to_owned()) });
                }
            }
        }
        ladder
    }

    /// The rungs, in the order of trying.
    pub(super) fn order(&self) -> Vec<Rung> {
        self.order.clone()
    }

    /// The rung that a call is to be listened to by; none when all have been passed.
    pub(super) fn rung(&self, call: usize) -> Option<Rung> {
        self.order.iter().copied().find(|&rung| self.passed[call].iter().all(|passed| passed.rung != rung))
    }

    /// The calls that are to be listened to by a rung.
    pub(super) fn calls_on(&self, rung: Rung) -> Vec<usize> {
        (0..CALLS).filter(|&call| self.rung(call) == Some(rung)).collect()
    }

    /// Leaves a rung for good.
    pub(super) fn pass(&mut self, call: usize, rung: Rung, why: Why) {
        tracing::debug!(call = SYSCALLS[call].name, %rung, %why, "trying the next rung");
        self.passed[call].push(Passed { rung, why });
    }

    /// The rungs that a call has left, in the order of trying.
    pub(super) fn passed(&self, call: usize) -> Vec<Passed> {
        let mut passed = self.passed[call].clone();
        passed.sort_by_key(|passed| self.order.iter().position(|&rung| rung == passed.rung));
        passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_call_goes_down_by_itself_and_says_why() {
        let mut ladder = Ladder::new(&Rungs::without("kprobe"));
        assert_eq!(ladder.calls_on(Rung::Fentry).len(), CALLS);
        ladder.pass(3, Rung::Fentry, Why::Absent("no such function".to_owned()));
        assert_eq!(ladder.rung(3), Some(Rung::SyscallTracepoint));
        assert_eq!(ladder.rung(2), Some(Rung::Fentry));
        let passed: Vec<_> = ladder.passed(3).iter().map(ToString::to_string).collect();
        assert_eq!(passed, ["fentry: absent: no such function", "kprobe: refused: RECLAIM_TEST_DISABLE names it"]);
        ladder.pass(3, Rung::SyscallTracepoint, Why::Untrue("no event".to_owned()));
        ladder.pass(3, Rung::EverySyscall, Why::Refused("no".to_owned()));
        assert_eq!(ladder.rung(3), None);
    }

    #[test]
    fn a_rung_is_disabled_or_distrusted_by_its_name_alone() {
        let rungs = Rungs::without("listmount, fentry,kprobe-answer, tracepoint/umount,tracepoint/none");
        assert_eq!(rungs.disabled, [(Rung::Fentry, None), (Rung::SyscallTracepoint, Some(1))]);
        assert_eq!(rungs.distrusted, [Rung::Kprobe]);
        assert_eq!(Rungs::without(""), Rungs::default());
        let first = Rungs::default().first(Rung::EverySyscall);
        assert_eq!(Ladder::new(&first).rung(0), Some(Rung::EverySyscall));
    }
}
