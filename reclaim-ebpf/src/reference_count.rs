//! How many references the kernel has counted to each child of a directory.
//!
//! Whatever makes a mount of a file or directory possible, or keeps one, counts as a reference to its dentry: mounts,
//! open files wherever they are, working directories, layers of overlays, a call that has looked its path up. So one
//! number, read at one moment, tells whether anybody relies on an entry. What has no reference and no path can get none, but
//! by a file handle (open_by_handle_at(2), with CAP_DAC_READ_SEARCH).

use core::ffi::c_void;

use aya_ebpf::{helpers::generated, macros::raw_tracepoint, programs::RawTracePointContext};
use reclaim_ebpf::reference_abi::{REFERENCE_COUNTED, REFERENCE_FILLED, REFERENCE_STEPS};

use crate::kernel::{read, unknown_zero};
use crate::reference::{Found, dentry_of, offset, state, write};

/// A directory's children that the kernel knows, and how far the look at them has come.
struct Children {
    parent: usize,
    /// Link of the child that is next.
    link: usize,
    /// Where the links end.
    end: usize,
    /// What a dentry has that nobody else uses.
    expected: u32,
    number: u32,
    met: u32,
    /// Flags: 0 or 1.
    ended: u32,
    broken: u32,
}

/// Looks at the children of the directory behind a descriptor of the calling task.
#[raw_tracepoint]
fn reference_count(context: RawTracePointContext) -> i32 {
    let Some(state) = state() else { return 0 };
    let met = count(context.arg(0), context.arg::<u64>(1) as u32, context.arg::<u64>(2) as u32);
    match met {
        Some(met) => state.met += met,
        None => state.broken += 1,
    }
    state.ended += 1;
    0
}

/// None when not all children could be met.
#[inline(always)]
fn count(descriptor: u64, number: u32, expected: u32) -> Option<u32> {
    let zero = unknown_zero()? as u32;
    let parent = dentry_of(descriptor)?;
    let head = parent + offset!(dentry_children);
    let end = if offset!(siblings_are_ring) != 0 { head } else { 0 };
    let link = read(head)?;
    let mut children = Children { parent, link, end, expected, number, met: zero, ended: zero, broken: zero };
    let context = (&raw mut children).cast::<c_void>();
    // SAFETY: the callback takes the context that is handed in here, which outlives the call.
    unsafe { generated::bpf_loop(REFERENCE_STEPS, next_child as *const () as *mut c_void, context, 0) };
    (children.ended != 0 && children.broken == 0).then_some(children.met)
}

/// One child.
#[inline(never)]
extern "C" fn next_child(_index: u32, context: *mut c_void) -> i64 {
    // SAFETY: `count` hands in its own, and nobody else holds it while the loop runs.
    let children = unsafe { &mut *context.cast::<Children>() };
    if children.link == children.end {
        children.ended = 1;
        return 1;
    }
    if look(children).is_none() {
        children.broken = 1;
        return 1;
    }
    0
}

#[inline(always)]
fn look(children: &mut Children) -> Option<()> {
    let dentry = children.link.wrapping_sub(offset!(dentry_sibling));
    // One that was moved meanwhile leads to the children of another directory.
    if read::<usize>(dentry + offset!(dentry_parent))? != children.parent {
        return None;
    }
    children.link = read(children.link)?;
    let inode: usize = read(dentry + offset!(dentry_inode))?;
    if inode == 0 {
        // A name that was looked for in vain.
        return Some(());
    }
    children.met += 1;
    let references: u32 = read(dentry + offset!(dentry_count))?;
    if references == children.expected {
        return Some(());
    }
    let head = dentry + offset!(dentry_children);
    let first: usize = read(head)?;
    let is_empty = first == if offset!(siblings_are_ring) != 0 { head } else { 0 };
    let kind = if is_empty { REFERENCE_COUNTED } else { REFERENCE_FILLED };
    write(&Found { base: children.number, kind, process: references, exact: 1, dentry, inode })
}
