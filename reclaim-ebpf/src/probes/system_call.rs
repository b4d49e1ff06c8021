//! The entry programs of single system calls, one set for each rung. All of them end in [`entered`] and [`returned`].
//!
//! The functions that fentry, fexit, kprobe and kretprobe are put on are the wrappers that the kernel makes for each
//! system call: `long __x64_sys_<name>(const struct pt_regs *regs)`, with the caller's registers. Userspace checks that
//! against the running kernel's type information before it attaches any of them.

use core::ffi::c_void;

use aya_ebpf::programs::{FEntryContext, FExitContext, ProbeContext, RetProbeContext, TracePointContext};
use reclaim_ebpf::abi::{
    HOOK_CLONE, HOOK_CLONE3, HOOK_FSCONFIG, HOOK_FSMOUNT, HOOK_MOUNT, HOOK_MOUNT_SETATTR, HOOK_MOVE_MOUNT,
    HOOK_OPEN_TREE, HOOK_PIVOT_ROOT, HOOK_SETNS, HOOK_UMOUNT, HOOK_UNSHARE,
};

use super::{entered, returned};
use crate::kernel::{regs_first, regs_first_32};

/// Offset of the first argument in the record of a `syscalls/sys_enter_*` tracepoint. Its arguments are longs.
const TRACEPOINT_FIRST: usize = 16;
/// Offset of the result in the record of a `syscalls/sys_exit_*` tracepoint.
const TRACEPOINT_RESULT: usize = 16;

/// One program: its name for userspace, its kind, and what it does with its context.
macro_rules! program {
    ($name:expr, $section:literal, |$context:ident: $kind:ty| $body:expr) => {
        const _: () = {
            #[unsafe(export_name = $name)]
            #[unsafe(link_section = $section)]
            extern "C" fn program(context: *mut c_void) -> i32 {
                let $context = <$kind>::new(context);
                $body;
                0
            }
        };
    };
}

/// The programs on the function that serves callers of 32 bits. Those of kprobes serve both.
macro_rules! for_32_bit {
    ($name:literal, $hook:expr) => {
        program!(concat!("fentry_32_", $name), "fentry", |context: FEntryContext| {
            entered($hook, || regs_first_32(context.arg(0)))
        });
        program!(concat!("fexit_32_", $name), "fexit", |context: FExitContext| returned($hook, context.arg(1)));
        program!(concat!("kprobe_32_", $name), "kprobe", |context: ProbeContext| {
            entered($hook, || regs_first_32(context.arg(0)?))
        });
    };
}

/// All programs of each system call.
macro_rules! programs {
    ($($name:literal => $hook:expr;)*) => {$(
        program!(concat!("enter_", $name), "tracepoint", |context: TracePointContext| {
            entered($hook, || tracepoint_field(&context, TRACEPOINT_FIRST).map(|first: i64| first as u64))
        });
        program!(concat!("leave_", $name), "tracepoint", |context: TracePointContext| {
            // A failure where it cannot be read, which it always can.
            returned($hook, tracepoint_field(&context, TRACEPOINT_RESULT).unwrap_or(-1))
        });
        program!(concat!("fentry_", $name), "fentry", |context: FEntryContext| {
            entered($hook, || regs_first(context.arg(0)))
        });
        // The result comes after the arguments of the function, of which there is one.
        program!(concat!("fexit_", $name), "fexit", |context: FExitContext| returned($hook, context.arg(1)));
        program!(concat!("kprobe_", $name), "kprobe", |context: ProbeContext| {
            entered($hook, || regs_first(context.arg(0)?))
        });
        program!(concat!("kretprobe_", $name), "kretprobe", |context: RetProbeContext| {
            returned($hook, context.ret())
        });
        for_32_bit!($name, $hook);
    )*};
}

programs! {
    "mount" => HOOK_MOUNT;
    "umount" => HOOK_UMOUNT;
    "move_mount" => HOOK_MOVE_MOUNT;
    "open_tree" => HOOK_OPEN_TREE;
    "open_tree_attr" => HOOK_OPEN_TREE;
    "fsmount" => HOOK_FSMOUNT;
    "fsconfig" => HOOK_FSCONFIG;
    "pivot_root" => HOOK_PIVOT_ROOT;
    "mount_setattr" => HOOK_MOUNT_SETATTR;
    "setns" => HOOK_SETNS;
    "unshare" => HOOK_UNSHARE;
    "clone" => HOOK_CLONE;
    "clone3" => HOOK_CLONE3;
}

// umount(2) without flags, which callers of 32 bits have besides umount2(2).
for_32_bit!("oldumount", HOOK_UMOUNT);

/// A long that a `syscalls` tracepoint recorded.
#[inline(always)]
fn tracepoint_field(context: &TracePointContext, offset: usize) -> Option<i64> {
    // SAFETY: within the record, which is at least this long for a call with an argument.
    unsafe { context.read_at(offset) }.ok()
}
