//! Fences: each one condition that an entry must pass before it may go, as a function of facts alone.
//!
//! Every function errs toward keeping: a fact that is not known never lets an entry pass.

use crate::config::{KindRule, RemoveRule};
use regex::bytes::Regex;
use std::time::Duration;

/// A time on the wall clock, in nanoseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub i128);

impl Timestamp {
    /// From seconds and nanoseconds, as the kernel gives them.
    #[must_use]
    pub fn of(seconds: i64, nanoseconds: u32) -> Self {
        Self(i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds))
    }

    /// How long before `now` it was; none when it lies ahead.
    #[must_use]
    pub fn age(self, now: Self) -> Option<Duration> {
        let elapsed = u64::try_from(now.0 - self.0).ok()?;
        Some(Duration::from_nanos(elapsed))
    }
}

/// What kind of file an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A directory.
    Directory,
    /// A regular file.
    File,
    /// A symbolic link.
    Link,
    /// A socket, a pipe or a device.
    Other,
}

/// What is read of an entry with one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Kind of file.
    pub kind: FileKind,
    /// Permission bits with set-id and sticky bits.
    pub mode: u32,
    /// User id.
    pub owner: u32,
    /// Bytes of a regular file; of a directory this means nothing.
    pub size: u64,
    /// When it was made, where the file system keeps that.
    pub birth: Option<Timestamp>,
    /// When its inode was last changed.
    pub changed: Option<Timestamp>,
    /// When its contents were last changed. Its owner can set it at will.
    pub modified: Option<Timestamp>,
}

impl Status {
    /// When the entry was born. Without a birth time this is the latest that it can have been: the later one of the
    /// other two, for either alone moves back at its owner's will or stands still while the other moves.
    #[must_use]
    pub fn born(&self) -> Option<Timestamp> {
        self.birth.or_else(|| Some(self.changed?.max(self.modified?)))
    }
}

/// What a name that matches tells of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedProcess {
    /// The pattern asks for none.
    Unasked,
    /// This process.
    Process(u32),
    /// The pattern asks for one and the name tells none that could exist: 0, too large, or not a number.
    Unusable,
}

/// The largest process id of Linux (`PID_MAX_LIMIT` is 2^22 on 64-bit kernels, ids stay below it).
const PROCESS_ID_LIMIT: u32 = 1 << 22;

/// The name fence: none when the name does not match.
#[must_use]
pub fn name(pattern: Option<&Regex>, name: &[u8]) -> Option<NamedProcess> {
    let Some(pattern) = pattern else {
        return Some(NamedProcess::Unasked);
    };
    // Captures cost more than a match, and most patterns need none.
    if !pattern.capture_names().flatten().any(|group| group == "pid") {
        return pattern.is_match(name).then_some(NamedProcess::Unasked);
    }
    let told = pattern.captures(name)?.name("pid").map(|group| group.as_bytes());
    let process = told.and_then(|digits| std::str::from_utf8(digits).ok()?.parse::<u32>().ok());
    Some(match process {
        Some(process) if (1..PROCESS_ID_LIMIT).contains(&process) => NamedProcess::Process(process),
        _ => NamedProcess::Unusable,
    })
}

/// The kind fence.
#[must_use]
pub fn kind(rule: KindRule, kind: FileKind) -> bool {
    match rule {
        KindRule::Directory => kind == FileKind::Directory,
        KindRule::File => kind == FileKind::File,
        KindRule::Any => true,
    }
}

/// The owner fence.
#[must_use]
pub fn owner(rule: Option<u32>, owner: u32) -> bool {
    rule.is_none_or(|wanted| wanted == owner)
}

/// The mode fence: exactly these bits.
#[must_use]
pub fn mode(rule: Option<u32>, mode: u32) -> bool {
    rule.is_none_or(|wanted| wanted == mode)
}

/// The age fence. An age that is not known, or a birth that lies ahead, is too young.
#[must_use]
pub fn old_enough(min_age: Duration, age: Option<Duration>) -> bool {
    age.is_some_and(|age| age >= min_age)
}

/// Whether an entry is so old that the process of its name need not be dead.
#[must_use]
pub fn past_backstop(backstop: Option<Duration>, age: Option<Duration>) -> bool {
    backstop.is_some_and(|backstop| age.is_some_and(|age| age > backstop))
}

/// What the kernel says of a process id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Process {
    /// No task has it.
    Dead,
    /// A task has it, or that could not be asked.
    Alive {
        /// When that task started; none when that could not be read.
        started: Option<Timestamp>,
    },
}

/// How much later than an entry's birth a task must have started to be another one than the entry was named after.
///
/// A start time is told in ticks of 10 ms, rounded down; a birth is that of the last timer tick, at most 10 ms before;
/// and what relates the two clocks was read at another time. Whatever lies within counts as the same task.
const START_MARGIN: Duration = Duration::from_millis(50);

/// The process fence: it is dead, or started after the entry was born and so took over a number that was free.
#[must_use]
pub fn process_gone(process: Process, born: Option<Timestamp>) -> bool {
    match process {
        Process::Dead => true,
        Process::Alive { started } => {
            started.zip(born).is_some_and(|(started, born)| born.age(started).is_some_and(|later| later > START_MARGIN))
        }
    }
}

/// Whether somebody holds a lock on an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lease {
    /// Nobody did; reclaim holds it now where it was asked for.
    Free,
    /// Somebody does.
    Held,
}

/// The lease fence.
#[must_use]
pub fn unleased(honoured: bool, lease: Lease) -> bool {
    !honoured || lease == Lease::Free
}

/// What is known of an entry's contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// A directory without names, a regular file of no bytes.
    Empty,
    /// It holds something, or is nothing that could be called empty: a link, a socket, a pipe, a device.
    Something,
    /// Nobody looked.
    Unknown,
}

/// The emptiness fence.
#[must_use]
pub fn may_hold(rule: RemoveRule, contents: Contents) -> bool {
    match rule {
        RemoveRule::Empty => contents == Contents::Empty,
        RemoveRule::Tree | RemoveRule::Command => true,
    }
}

/// The evidence fence: everything was seen, or everything that could hold an entry of this owner.
#[must_use]
pub fn evidence(complete: bool, covered: bool) -> bool {
    complete || covered
}

/// The pile fence: there are at least as many candidates as asked for.
#[must_use]
pub fn piled(threshold: Option<u64>, candidates: u64) -> bool {
    threshold.is_none_or(|threshold| candidates >= threshold)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    fn status() -> Status {
        let at = Some(Timestamp::of(100, 0));
        Status { kind: FileKind::File, mode: 0o600, owner: 1, size: 0, birth: at, changed: at, modified: at }
    }

    #[test]
    fn a_name_passes_by_its_bytes() {
        let pattern = Regex::new(r"^sb_(?<pid>\d+)_[0-9a-f]{4}$").unwrap();
        for (text, expected) in [
            (&b"sb_17_00ff"[..], Some(NamedProcess::Process(17))),
            (b"sb_0_00ff", Some(NamedProcess::Unusable)),
            (b"sb_4194303_00ff", Some(NamedProcess::Process(4_194_303))),
            (b"sb_4194304_00ff", Some(NamedProcess::Unusable)),
            (b"sb_99999999999999999999_00ff", Some(NamedProcess::Unusable)),
            (b"sb_17_00ff\n", None),
            (b"xsb_17_00ff", None),
            (b"sb_17_00f\xff", None),
        ] {
            assert_eq!(name(Some(&pattern), text), expected, "{}", String::from_utf8_lossy(text));
        }
        assert_eq!(name(None, b"\xff"), Some(NamedProcess::Unasked));
        assert_eq!(name(Some(&Regex::new("^a").unwrap()), b"ab"), Some(NamedProcess::Unasked));
        let optional = Regex::new(r"^a(?<pid>\d+)?$").unwrap();
        assert_eq!(name(Some(&optional), b"a"), Some(NamedProcess::Unusable));
        let any_digit = Regex::new(r"^(?<pid>.+)$").unwrap();
        assert_eq!(name(Some(&any_digit), "١٢".as_bytes()), Some(NamedProcess::Unusable));
    }

    #[test]
    fn kind_owner_and_mode_are_exact() {
        assert!(kind(KindRule::Directory, FileKind::Directory) && !kind(KindRule::Directory, FileKind::Link));
        assert!(kind(KindRule::File, FileKind::File) && !kind(KindRule::File, FileKind::Other));
        assert!(kind(KindRule::Any, FileKind::Link));
        assert!(owner(Some(0), 0) && !owner(Some(0), 1) && owner(None, 7));
        assert!(mode(Some(0o700), 0o700) && !mode(Some(0o700), 0o1700) && !mode(Some(0o700), 0o600) && mode(None, 0));
    }

    #[test]
    fn an_age_that_is_not_known_is_young() {
        for (age, young) in [(None, true), (Some(DAY / 2), true), (Some(DAY), false), (Some(DAY * 2), false)] {
            assert_eq!(!old_enough(DAY, age), young, "{age:?}");
        }
        assert!(!old_enough(Duration::ZERO, None));
        assert_eq!(Timestamp::of(2, 0).age(Timestamp::of(1, 0)), None);
        assert_eq!(Timestamp::of(1, 5).age(Timestamp::of(2, 5)), Some(Duration::from_secs(1)));
    }

    #[test]
    fn without_a_birth_time_the_later_of_the_others_counts() {
        let (early, late) = (Some(Timestamp::of(1, 0)), Some(Timestamp::of(2, 0)));
        assert_eq!(Status { birth: early, changed: late, ..status() }.born(), early);
        assert_eq!(Status { birth: None, changed: early, modified: late, ..status() }.born(), late);
        assert_eq!(Status { birth: None, changed: late, modified: early, ..status() }.born(), late);
        assert_eq!(Status { birth: None, changed: None, ..status() }.born(), None);
        assert_eq!(Status { birth: None, modified: None, ..status() }.born(), None);
    }

    #[test]
    fn a_backstop_needs_a_known_age_beyond_it() {
        assert!(past_backstop(Some(DAY), Some(DAY * 2)));
        assert!(!past_backstop(Some(DAY), Some(DAY)));
        assert!(!past_backstop(Some(DAY), None));
        assert!(!past_backstop(None, Some(DAY * 999)));
    }

    #[test]
    fn a_process_is_gone_when_dead_or_clearly_younger_than_the_entry() {
        let born = Some(Timestamp::of(100, 0));
        let started = |seconds, nanoseconds| Process::Alive { started: Some(Timestamp::of(seconds, nanoseconds)) };
        assert!(process_gone(Process::Dead, born));
        assert!(!process_gone(Process::Alive { started: None }, born));
        assert!(!process_gone(started(99, 0), born));
        assert!(!process_gone(started(100, 20_000_000), born));
        assert!(process_gone(started(100, 60_000_000), born));
        assert!(!process_gone(started(101, 0), None));
    }

    #[test]
    fn leases_contents_evidence_and_piles() {
        assert!(unleased(true, Lease::Free) && unleased(false, Lease::Held) && !unleased(true, Lease::Held));
        assert!(may_hold(RemoveRule::Empty, Contents::Empty));
        assert!(!may_hold(RemoveRule::Empty, Contents::Something) && !may_hold(RemoveRule::Empty, Contents::Unknown));
        assert!(may_hold(RemoveRule::Tree, Contents::Something) && may_hold(RemoveRule::Tree, Contents::Unknown));
        assert!(evidence(true, false) && evidence(false, true) && !evidence(false, false));
        assert!(piled(None, 0) && piled(Some(2), 2) && !piled(Some(2), 1));
    }
}
