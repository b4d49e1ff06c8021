//! Where the structures that lead to the registers of a system call keep their members.

use crate::evidence::btf::{LayoutError, Types};
use reclaim_ebpf::inside_abi::{INSIDE_ARGUMENTS, InsideLayout};

/// `TS_COMPAT`. <arch/x86/include/asm/thread_info.h>
#[cfg(target_arch = "x86_64")]
const STATUS_32: u32 = 2;
#[cfg(not(target_arch = "x86_64"))]
const STATUS_32: u32 = 0;
/// Where that is, and the first argument of such a caller.
#[cfg(target_arch = "x86_64")]
const CALLERS_32: (&str, &str) = ("status", "bx");
/// What is there on any kernel and not looked at.
#[cfg(target_arch = "aarch64")]
const CALLERS_32: (&str, &str) = ("flags", "orig_x0");
#[cfg(target_arch = "riscv64")]
const CALLERS_32: (&str, &str) = ("flags", "orig_a0");

/// The number of the call, the stack pointer, and the arguments: the first member of each, and the bytes behind it.
#[cfg(target_arch = "x86_64")]
const REGISTERS: (&str, &str, [(&str, u32); INSIDE_ARGUMENTS]) =
    ("orig_ax", "sp", [("di", 0), ("si", 0), ("dx", 0), ("r10", 0), ("r8", 0), ("r9", 0)]);
#[cfg(target_arch = "aarch64")]
const REGISTERS: (&str, &str, [(&str, u32); INSIDE_ARGUMENTS]) =
    ("syscallno", "sp", [("orig_x0", 0), ("regs", 8), ("regs", 16), ("regs", 24), ("regs", 32), ("regs", 40)]);
#[cfg(target_arch = "riscv64")]
const REGISTERS: (&str, &str, [(&str, u32); INSIDE_ARGUMENTS]) =
    ("a7", "sp", [("orig_a0", 0), ("a1", 0), ("a2", 0), ("a3", 0), ("a4", 0), ("a5", 0)]);

/// The structures that [`layout`] looks into.
pub(in crate::evidence) const WANTED: [&str; 3] = ["task_struct", "thread_info", "pt_regs"];

/// What the kernel's types tell. Pure.
///
/// # Errors
/// The types are malformed or lack something that is needed.
pub(in crate::evidence) fn layout(types: &Types<'_>) -> Result<InsideLayout, LayoutError> {
    let (number, stack, arguments) = REGISTERS;
    let mut regs_arguments = [0; INSIDE_ARGUMENTS];
    for (place, (member, behind)) in regs_arguments.iter_mut().zip(arguments) {
        *place = types.offset("pt_regs", &[member])? + behind;
    }
    Ok(InsideLayout {
        task_pid: types.offset("task_struct", &["pid"])?,
        task_tgid: types.offset("task_struct", &["tgid"])?,
        task_flags: types.offset("task_struct", &["flags"])?,
        task_exit: types.offset("task_struct", &["exit_state"])?,
        task_status: types.offset("task_struct", &["thread_info", CALLERS_32.0])?,
        status_32: STATUS_32,
        regs_first_32: types.offset("pt_regs", &[CALLERS_32.1])?,
        regs_number: types.offset("pt_regs", &[number])?,
        regs_stack: types.offset("pt_regs", &[stack])?,
        regs_arguments,
    })
}

/// The bytes that the object's global has to hold, in the order of the structure.
pub(super) fn bytes(layout: &InsideLayout) -> Vec<u8> {
    let InsideLayout {
        task_pid,
        task_tgid,
        task_flags,
        task_exit,
        task_status,
        status_32,
        regs_number,
        regs_stack,
        regs_first_32,
        regs_arguments,
    } = *layout;
    let words =
        [task_pid, task_tgid, task_flags, task_exit, task_status, status_32, regs_number, regs_stack, regs_first_32];
    words.iter().chain(&regs_arguments).copied().flat_map(u32::to_ne_bytes).collect()
}
