//! The hooks: what each listens to, and by which programs.

use std::fmt;

use reclaim_ebpf::abi::{SYSCALL_OPEN_TREE_ATTR, SYSCALL_SLOTS};

use crate::model::event::Hook;

/// `CLONE_NEWNS`: the call makes a mount namespace. <include/uapi/linux/sched.h>
pub(in crate::evidence) const CLONE_NEWNS: u64 = libc::CLONE_NEWNS as u64;

/// `open_tree_attr(2)`, since Linux 6.15, has the same number on every architecture. <include/uapi/asm-generic/unistd.h>
const SYS_OPEN_TREE_ATTR: i64 = 467;

/// Ways to listen, each one dearer or blinder than the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rung {
    /// A raw tracepoint of the scheduler: an event in itself, not a system call.
    SchedulerTracepoint,
    /// The tracepoints of one system call, at enter and exit. Needs tracefs.
    SyscallTracepoint,
    /// The raw tracepoints that every system call passes, which pick out theirs by number.
    EverySyscall,
}

impl Rung {
    /// What listening this way costs.
    #[must_use]
    pub const fn cost(self) -> &'static str {
        match self {
            Self::SchedulerTracepoint => "well under a microsecond for each fork or exit",
            Self::SyscallTracepoint => {
                "a third of a getppid (30 to 80 ns) on every system call of the host, however many such hooks"
            }
            Self::EverySyscall => "more than a getppid (some 240 ns) on every system call of the host",
        }
    }

    /// What listening this way does not see.
    #[must_use]
    pub const fn blind_to(self) -> &'static str {
        match self {
            Self::SchedulerTracepoint => "nothing",
            Self::SyscallTracepoint => "32-bit callers",
            Self::EverySyscall => "32-bit callers, which may also be taken for others",
        }
    }
}

impl fmt::Display for Rung {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::SchedulerTracepoint => "scheduler tracepoint",
            Self::SyscallTracepoint => "syscall tracepoint",
            Self::EverySyscall => "every-syscall tracepoint",
        })
    }
}

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
}

impl HookStatus {
    pub(super) fn new(hook: &'static str, rung: Rung, state: HookState) -> Self {
        Self { hook, rung, state, cost: rung.cost(), blind_to: rung.blind_to() }
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
    /// Whether kernels that are new enough for the rest may lack it.
    pub(super) may_be_absent: bool,
}

const fn syscall(hook: Hook, name: &'static str, number: i64) -> Syscall {
    Syscall { hook, name, number, may_be_absent: false }
}

/// The system calls, in the order of `reclaim check`. The tracepoints of `umount2(2)` are named after the kernel's
/// function, `umount`.
pub(super) const SYSCALLS: [Syscall; 13] = [
    syscall(Hook::Mount, "mount", libc::SYS_mount),
    syscall(Hook::Umount, "umount", libc::SYS_umount2),
    syscall(Hook::MoveMount, "move_mount", libc::SYS_move_mount),
    syscall(Hook::OpenTree, "open_tree", libc::SYS_open_tree),
    Syscall { hook: Hook::OpenTree, name: "open_tree_attr", number: SYS_OPEN_TREE_ATTR, may_be_absent: true },
    syscall(Hook::Fsmount, "fsmount", libc::SYS_fsmount),
    syscall(Hook::Fsconfig, "fsconfig", libc::SYS_fsconfig),
    syscall(Hook::PivotRoot, "pivot_root", libc::SYS_pivot_root),
    Syscall { hook: Hook::MountSetattr, name: "mount_setattr", number: libc::SYS_mount_setattr, may_be_absent: true },
    syscall(Hook::Setns, "setns", libc::SYS_setns),
    syscall(Hook::Unshare, "unshare", libc::SYS_unshare),
    syscall(Hook::Clone, "clone", libc::SYS_clone),
    syscall(Hook::Clone3, "clone3", libc::SYS_clone3),
];

/// Scheduler tracepoints and the programs on them.
pub(super) const SCHEDULER: [(&str, &str, &str); 2] =
    [("fork", "made", "sched_process_fork"), ("exit", "exit", "sched_process_exit")];

/// The hook of a system call.
pub(in crate::evidence) fn hook_of(number: i64) -> Option<Hook> {
    SYSCALLS.iter().find(|syscall| syscall.number == number).map(|syscall| syscall.hook)
}

/// The numbers that the programs for every system call look for, as the object's global holds them.
pub(super) fn numbers() -> [i32; SYSCALL_SLOTS] {
    let mut numbers = [-1; SYSCALL_SLOTS];
    for syscall in SYSCALLS {
        let slot = match syscall.number {
            SYS_OPEN_TREE_ATTR => SYSCALL_OPEN_TREE_ATTR,
            _ => syscall.hook.tag() as usize,
        };
        numbers[slot] = i32::try_from(syscall.number).unwrap_or(-1);
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_has_a_slot_of_its_own() {
        let numbers = numbers();
        assert_eq!(numbers.iter().filter(|&&number| number >= 0).count(), SYSCALLS.len());
        for syscall in SYSCALLS {
            assert_eq!(hook_of(syscall.number), Some(syscall.hook));
        }
        assert_eq!(hook_of(-1), None);
    }
}
