//! The mount fence: refuses to bind what lies condemned in a store.
//!
//! Nothing relies on it: whatever it cannot tell it lets through, and the confirmation finds it. A store is known by the
//! address of its dentry, which stays the same as long as it is open.

use core::ffi::c_void;
use core::ptr;

use aya_ebpf::{
    helpers::{bpf_get_current_pid_tgid, bpf_get_current_task, generated},
    macros::{lsm, map, raw_tracepoint},
    maps::HashMap,
    programs::{LsmContext, RawTracePointContext},
};
use reclaim_ebpf::fence_abi::{FENCE_DEPTH, FENCE_LAYOUT_WORDS, FENCE_NAME, FENCE_STORE_SLOTS, FenceLayout};

use crate::kernel::{read, unknown_zero};

/// <include/uapi/linux/mount.h>
const MS_REMOUNT: u64 = 32;
const MS_BIND: u64 = 4096;
/// <include/uapi/asm-generic/errno-base.h>
const EPERM: i32 = 1;
/// Digits of a descriptor that are looked at.
const DIGITS: usize = 10;

/// Filled in by the loader; the value here only keeps it in .rodata.
#[unsafe(no_mangle)]
static FENCE_LAYOUT: [u32; FENCE_LAYOUT_WORDS] = [0; FENCE_LAYOUT_WORDS];

#[map]
static FENCE_STORES: HashMap<u64, u32> = HashMap::with_max_entries(FENCE_STORE_SLOTS, 0);

/// An offset of [`FENCE_LAYOUT`]. Volatile, since the loader changes what the compiler takes for a constant.
macro_rules! offset {
    ($member:ident) => {
        // SAFETY: a word of the static, which has as many words as the structure.
        unsafe {
            ptr::read_volatile(
                (&raw const FENCE_LAYOUT).cast::<u32>().add(core::mem::offset_of!(FenceLayout, $member) / 4),
            )
        } as usize
    };
}

/// A way up from a place.
struct Climb {
    dentry: usize,
    /// The process that keeps the store that was met; 0 as long as none was.
    keeper: u64,
}

/// Notes a store of the calling process.
#[raw_tracepoint]
fn fence_store(context: RawTracePointContext) -> i32 {
    if let Some(dentry) = behind(context.arg(0)) {
        // Full when there is no room; the caller counts what is in there.
        let _ = FENCE_STORES.insert(dentry as u64, process(), 0);
    }
    0
}

/// `move_mount(from_path, to_path)`.
#[lsm(hook = "move_mount")]
fn fence_move_mount(context: LsmContext) -> i32 {
    let from: usize = context.arg(0);
    let dentry: Option<usize> = read(from + offset!(path_dentry));
    refuse(dentry)
}

/// `sb_mount(dev_name, path, type, flags, data)`. The name is in the kernel's memory.
#[lsm(hook = "sb_mount")]
fn fence_sb_mount(context: LsmContext) -> i32 {
    let (name, flags): (usize, u64) = (context.arg(0), context.arg(3));
    // With both, the flags of a mount that is there are changed.
    if flags & (MS_BIND | MS_REMOUNT) != MS_BIND {
        return 0;
    }
    refuse(named(name))
}

#[inline(always)]
fn refuse(dentry: Option<usize>) -> i32 {
    match dentry {
        Some(dentry) if fence_is_kept(dentry as u64) != 0 => -EPERM,
        _ => 0,
    }
}

/// Whether a dentry lies in a store of another process: 1 or 0.
///
/// Visible outside the object, for then the kernel's verifier goes through it once, whatever calls it.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn fence_is_kept(dentry: u64) -> u64 {
    let Some(zero) = unknown_zero() else { return 0 };
    let mut climb = Climb { dentry: dentry as usize, keeper: zero };
    let context = (&raw mut climb).cast::<c_void>();
    // SAFETY: the callback takes the context that is handed in here, which outlives the call.
    unsafe { generated::bpf_loop(FENCE_DEPTH, up as *const () as *mut c_void, context, 0) };
    u64::from(climb.keeper != 0 && climb.keeper != u64::from(process()))
}

/// One level up: ends in a store, or at the root of the file system. The store itself lies in none.
#[inline(never)]
extern "C" fn up(_index: u32, context: *mut c_void) -> i64 {
    // SAFETY: `fence_is_kept` hands in its own, and nobody else holds it while the loop runs.
    let climb = unsafe { &mut *context.cast::<Climb>() };
    let Some(parent) = read::<usize>(climb.dentry + offset!(dentry_parent)) else { return 1 };
    if parent == climb.dentry {
        return 1;
    }
    // SAFETY: the value is copied at once.
    if let Some(keeper) = unsafe { FENCE_STORES.get(parent as u64) }.copied() {
        climb.keeper = keeper.into();
        return 1;
    }
    climb.dentry = parent;
    0
}

/// The process that calls, by its number in the first pid namespace.
#[inline(always)]
fn process() -> u32 {
    (bpf_get_current_pid_tgid() >> 32) as u32
}

/// Where a name leads that tells so without being looked up: by a descriptor of the calling task, or by its working
/// directory.
#[inline(always)]
fn named(name: usize) -> Option<usize> {
    let mut text = [0u8; FENCE_NAME];
    // SAFETY: the destination has as many bytes as are asked for at most; the helper checks the source.
    let length = unsafe {
        generated::bpf_probe_read_kernel_str(text.as_mut_ptr().cast(), FENCE_NAME as u32, name as *const c_void)
    };
    if length <= 1 {
        return None;
    }
    if text[0] != b'/' || starts(&text, b"/proc/self/cwd") || starts(&text, b"/proc/thread-self/cwd") {
        return working_directory();
    }
    if starts(&text, b"/proc/self/fd/") {
        return behind(number::<14>(&text)?);
    }
    if starts(&text, b"/proc/thread-self/fd/") {
        return behind(number::<21>(&text)?);
    }
    if starts(&text, b"/dev/fd/") {
        return behind(number::<8>(&text)?);
    }
    None
}

/// Whether a text starts so.
#[inline(always)]
fn starts<const LENGTH: usize>(text: &[u8; FENCE_NAME], start: &[u8; LENGTH]) -> bool {
    let mut index = 0;
    while index < LENGTH {
        if text[index] != start[index] {
            return false;
        }
        index += 1;
    }
    true
}

/// The number that begins at a place of a text, up to its end or a slash.
#[inline(always)]
fn number<const BEGIN: usize>(text: &[u8; FENCE_NAME]) -> Option<u64> {
    let mut number = 0u64;
    let mut index = 0;
    while index < DIGITS {
        match text[BEGIN + index] {
            digit @ b'0'..=b'9' => number = number * 10 + u64::from(digit - b'0'),
            0 | b'/' if index > 0 => return Some(number),
            _ => return None,
        }
        index += 1;
    }
    Some(number)
}

/// The dentry of the calling task's working directory.
#[inline(always)]
fn working_directory() -> Option<usize> {
    let fs: usize = read(task() + offset!(task_fs))?;
    read(fs + offset!(fs_working))
}

/// The dentry of the file behind a descriptor of the calling task.
#[inline(always)]
fn behind(descriptor: u64) -> Option<usize> {
    let files: usize = read(task() + offset!(task_files))?;
    let table: usize = read(files + offset!(files_fdt))?;
    let most: u32 = read(table + offset!(fdt_max))?;
    if descriptor >= u64::from(most) {
        return None;
    }
    let descriptors: usize = read(table + offset!(fdt_fd))?;
    let file: usize = read(descriptors + descriptor as usize * size_of::<usize>())?;
    read(file + offset!(file_dentry))
}

#[inline(always)]
fn task() -> usize {
    // SAFETY: takes no pointer; the call cannot fail.
    unsafe { bpf_get_current_task() as usize }
}
