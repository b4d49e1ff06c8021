//! What is done at each hook, whichever way it was attached.

mod every_syscall;
mod exit;
mod made;
mod system_call;

use aya_ebpf::helpers::{bpf_get_current_pid_tgid, bpf_probe_read_user};
use reclaim_ebpf::abi::{HOOK_CLONE, HOOK_CLONE3, HOOK_DEPART, HOOK_SETNS, HOOK_UNSHARE};

use crate::{clock, emit::emit, kernel};

/// `CLONE_NEWNS`: the call makes a mount namespace. <include/uapi/linux/sched.h>
const CLONE_NEWNS: u64 = 0x0002_0000;

/// A system call enters, with a way to get at its first argument.
#[inline(always)]
fn entered(hook: u32, first: impl FnOnce() -> Option<u64>) {
    match hook {
        // The flags come first on every architecture but s390 and microblaze.
        HOOK_UNSHARE | HOOK_CLONE => enter_if_new_namespace(hook, first().unwrap_or(CLONE_NEWNS)),
        HOOK_CLONE3 => enter_if_new_namespace(hook, clone3_flags(first())),
        // Of setns too: with a pid descriptor the flags name the namespaces, with a namespace descriptor they may be 0.
        _ => enter(hook),
    }
}

/// A system call returns.
#[inline(always)]
fn returned(hook: u32, result: i64) {
    match hook {
        HOOK_SETNS | HOOK_UNSHARE => leave_moved(hook, result),
        // In the maker; `made` has sent the record. Where the made task returns here too, it was never counted in.
        HOOK_CLONE | HOOK_CLONE3 => leave_silently(),
        _ => leave(hook, result),
    }
}

/// A call enters that may change what is mounted, or who sees it.
#[inline(always)]
fn enter(hook: u32) {
    clock::enter(hook);
}

/// A call enters that counts only if its flags ask for a mount namespace.
#[inline(always)]
fn enter_if_new_namespace(hook: u32, flags: u64) {
    if flags & CLONE_NEWNS != 0 {
        clock::enter(hook);
    }
}

/// A call returns that moves mounts within the caller's namespace. Sent for calls that the clock does not know too:
/// they entered before the programs were attached.
#[inline(always)]
fn leave(hook: u32, result: i64) {
    let ids = bpf_get_current_pid_tgid();
    if result >= 0 {
        let namespace = kernel::current().and_then(|task| task.namespace());
        emit(hook, result, namespace.map(|namespace| namespace.inode), (ids >> 32) as u32, ids as u32);
    }
    clock::leave(ids as u32);
}

/// A call returns that may have moved the caller to another namespace.
#[inline(always)]
fn leave_moved(hook: u32, result: i64) {
    let ids = bpf_get_current_pid_tgid();
    let (process, thread) = ((ids >> 32) as u32, ids as u32);
    // Not in flight: the flags did not ask for a mount namespace.
    let Some(call) = clock::call_of(thread) else {
        return;
    };
    if result >= 0 {
        let namespace = kernel::current().and_then(|task| task.namespace()).map(|namespace| namespace.inode);
        if call.namespace != 0 && namespace != Some(call.namespace) {
            emit(HOOK_DEPART, result, Some(call.namespace), process, thread);
        }
        emit(hook, result, namespace, process, thread);
    }
    clock::leave(thread);
}

/// A call returns that only the clock is interested in.
#[inline(always)]
fn leave_silently() {
    clock::leave(bpf_get_current_pid_tgid() as u32);
}

/// `struct clone_args` begins with the flags. A page that is not there cannot be fetched here: then the call counts.
#[inline(always)]
fn clone3_flags(arguments: Option<u64>) -> u64 {
    let Some(arguments) = arguments else {
        return CLONE_NEWNS;
    };
    // SAFETY: the helper checks the address and reads a plain integer.
    unsafe { bpf_probe_read_user(arguments as *const u64) }.unwrap_or(CLONE_NEWNS)
}
