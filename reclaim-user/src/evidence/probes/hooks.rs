//! The hooks: what each listens to, and by which programs.

use std::fmt;

use super::rung::{Passed, Rung};
use reclaim_ebpf::abi::{SYSCALL_OPEN_TREE_ATTR, SYSCALL_SLOTS, SYSCALL_WORDS};

use crate::model::event::Hook;

/// `CLONE_NEWNS`: the call makes a mount namespace. <include/uapi/linux/sched.h>
pub(in crate::evidence) const CLONE_NEWNS: u64 = libc::CLONE_NEWNS as u64;

/// `open_tree_attr(2)`, since Linux 6.15, has the same number on every architecture. <include/uapi/asm-generic/unistd.h>
const SYS_OPEN_TREE_ATTR: i64 = 467;

/// Whether a hook listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HookState {
    /// It does.
    Attached,
    /// There is nothing to listen to: this kernel has no such call.
    Absent {
        /// What says so.
        why: String,
    },
    /// It could not be attached.
    Refused {
        /// What the kernel said.
        why: String,
    },
}

impl fmt::Display for HookState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Attached => formatter.pad("attached"),
            Self::Absent { why } => write!(formatter, "absent: {why}"),
            Self::Refused { why } => write!(formatter, "refused: {why}"),
        }
    }
}

/// One hook, as `reclaim check` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookStatus {
    /// The system call, or what happens.
    pub hook: &'static str,
    /// How it listens.
    pub rung: Rung,
    /// Whether it does.
    pub state: HookState,
    /// What that costs.
    pub cost: &'static str,
    /// What it does not see.
    pub blind_to: &'static str,
    /// The rungs that were to be tried before this one, and why each is not used.
    pub passed: Vec<Passed>,
}

impl HookStatus {
    pub(super) fn new(hook: &'static str, rung: Rung, state: HookState, passed: Vec<Passed>) -> Self {
        Self { hook, rung, state, cost: rung.cost(), blind_to: rung.blind_to(), passed }
    }

    /// The rungs in the order of trying: why each is not used, and the one that is in use.
    #[must_use]
    pub fn ladder(&self) -> String {
        let passed = self.passed.iter().map(ToString::to_string);
        let last = match &self.state {
            HookState::Attached => Some(format!("in use: {}", self.rung)),
            HookState::Absent { why } => Some(why.clone()),
            HookState::Refused { .. } => None,
        };
        passed.chain(last).collect::<Vec<_>>().join("; ")
    }
}

/// One system call that the probes listen to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Syscall {
    pub(super) hook: Hook,
    /// Its name in the names of tracepoints and programs.
    pub(super) name: &'static str,
    /// Its number here.
    pub(super) number: i64,
    /// Its number for callers of 32 bits, on x86-64. <arch/x86/entry/syscalls/syscall_32.tbl>
    number_32: i64,
    /// Whether kernels that are new enough for the rest may lack it.
    pub(super) may_be_absent: bool,
}

const fn syscall(hook: Hook, name: &'static str, number: i64, number_32: i64) -> Syscall {
    Syscall { hook, name, number, number_32, may_be_absent: false }
}

const fn late(hook: Hook, name: &'static str, number: i64, number_32: i64) -> Syscall {
    Syscall { hook, name, number, number_32, may_be_absent: true }
}

/// How many system calls there are.
pub(super) const CALLS: usize = 13;

/// The system calls, in the order of `reclaim check`. `umount2(2)` is named after the kernel's function, `umount`.
pub(super) const SYSCALLS: [Syscall; CALLS] = [
    syscall(Hook::Mount, "mount", libc::SYS_mount, 21),
    syscall(Hook::Umount, "umount", libc::SYS_umount2, 52),
    syscall(Hook::MoveMount, "move_mount", libc::SYS_move_mount, 429),
    syscall(Hook::OpenTree, "open_tree", libc::SYS_open_tree, 428),
    late(Hook::OpenTree, "open_tree_attr", SYS_OPEN_TREE_ATTR, SYS_OPEN_TREE_ATTR),
    syscall(Hook::Fsmount, "fsmount", libc::SYS_fsmount, 432),
    syscall(Hook::Fsconfig, "fsconfig", libc::SYS_fsconfig, 431),
    syscall(Hook::PivotRoot, "pivot_root", libc::SYS_pivot_root, 217),
    late(Hook::MountSetattr, "mount_setattr", libc::SYS_mount_setattr, 442),
    syscall(Hook::Setns, "setns", libc::SYS_setns, 346),
    syscall(Hook::Unshare, "unshare", libc::SYS_unshare, 310),
    syscall(Hook::Clone, "clone", libc::SYS_clone, 120),
    syscall(Hook::Clone3, "clone3", libc::SYS_clone3, 435),
];

/// `umount(2)` without flags, which callers of 32 bits have besides.
const OLD_UMOUNT_32: i64 = 22;

/// Scheduler tracepoints and the programs on them.
pub(super) const SCHEDULER: [(&str, &str, &str); 2] =
    [("fork", "made", "sched_process_fork"), ("exit", "exit", "sched_process_exit")];

/// The hook of a system call.
pub(in crate::evidence) fn hook_of(number: i64) -> Option<Hook> {
    SYSCALLS.iter().find(|syscall| syscall.number == number).map(|syscall| syscall.hook)
}

/// The hook of a system call of a caller of 32 bits, on x86-64; none elsewhere.
pub(in crate::evidence) fn hook_of_32(number: i64) -> Option<Hook> {
    if cfg!(not(target_arch = "x86_64")) {
        return None;
    }
    let found = SYSCALLS.iter().find(|syscall| syscall.number_32 == number).map(|syscall| syscall.hook);
    found.or((number == OLD_UMOUNT_32).then_some(Hook::Umount))
}

/// The numbers that the programs for every system call look for, as the object's global holds them: of those calls
/// only that have no other program, so that none is counted twice.
pub(super) fn numbers(listens: impl Fn(usize) -> bool) -> [i32; SYSCALL_SLOTS] {
    let mut numbers = [-1; SYSCALL_SLOTS];
    for (index, syscall) in SYSCALLS.iter().enumerate().filter(|&(index, _)| listens(index)) {
        let slot = match syscall.number {
            SYS_OPEN_TREE_ATTR => SYSCALL_OPEN_TREE_ATTR,
            _ => syscall.hook.tag() as usize,
        };
        debug_assert!(index < CALLS && numbers[slot] == -1, "a slot for each call");
        numbers[slot] = i32::try_from(syscall.number).unwrap_or(-1);
    }
    numbers
}

/// A bit for each of the numbers, as the object's global holds them.
pub(super) fn bits(numbers: &[i32; SYSCALL_SLOTS]) -> [u64; SYSCALL_WORDS] {
    let mut bits = [0; SYSCALL_WORDS];
    for number in numbers.iter().filter_map(|&number| usize::try_from(number).ok()) {
        bits[number / 64] |= 1 << (number % 64);
    }
    bits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_has_a_slot_of_its_own() {
        let numbers = numbers(|_| true);
        assert_eq!(numbers.iter().filter(|&&number| number >= 0).count(), SYSCALLS.len());
        for syscall in SYSCALLS {
            assert_eq!(hook_of(syscall.number), Some(syscall.hook));
        }
        assert_eq!((hook_of(-1), hook_of_32(-1)), (None, None));
    }

    #[test]
    fn every_number_has_its_bit_and_no_other_has_one() {
        let numbers = numbers(|_| true);
        let bits = bits(&numbers);
        for number in 0..64 * SYSCALL_WORDS {
            let is_ours = SYSCALLS.iter().any(|syscall| usize::try_from(syscall.number).is_ok_and(|own| own == number));
            assert_eq!(bits[number / 64] >> (number % 64) & 1 != 0, is_ours, "{number}");
        }
        assert_eq!(bits.iter().map(|word| word.count_ones() as usize).sum::<usize>(), SYSCALLS.len());
    }

    #[test]
    fn a_call_with_programs_of_its_own_is_not_looked_for_by_number() {
        let some = numbers(|index| SYSCALLS[index].name == "setns");
        assert_eq!(some.iter().filter(|&&number| number >= 0).count(), 1);
        assert_eq!(some[Hook::Setns.tag() as usize], i32::try_from(libc::SYS_setns).expect("small"));
    }
}
