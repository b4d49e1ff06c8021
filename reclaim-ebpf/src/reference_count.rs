//! How many references the kernel has counted to each child of a directory.
//!
//! Whatever makes a mount of a file or directory possible, or keeps one, counts as a reference to its dentry: mounts,
//! open files wherever they are, working directories, layers of overlays, a call that has looked its path up. So one
//! number, read at one moment, tells whether anybody relies on an entry. What has no reference and no path can get none, but
//! by a file handle (open_by_handle_at(2), with CAP_DAC_READ_SEARCH).
//!
//! The same look seals the children: one sum over what each of them is, which tells whoever knows that of all of them
//! whether they are so still.

use core::ffi::c_void;

use aya_ebpf::{helpers::generated, macros::raw_tracepoint, programs::RawTracePointContext};
use reclaim_ebpf::reference_abi::{
    REFERENCE_COUNTED, REFERENCE_FILLED, REFERENCE_STEPS, SEAL_NAME, SEAL_WORDS, sealed,
};

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
    /// The key of the seal; 0 for none.
    key: u64,
    seal: u64,
    /// 0, which neither the compiler nor the verifier knows.
    zero: usize,
    /// Flags: 0 or 1.
    ended: u32,
    broken: u32,
}

/// Looks at the children of the directory behind a descriptor of the calling task.
#[raw_tracepoint]
fn reference_count(context: RawTracePointContext) -> i32 {
    let Some(state) = state() else { return 0 };
    match count(context.arg(0), context.arg::<u64>(1) as u32, context.arg::<u64>(2) as u32, context.arg(3)) {
        Some((met, seal)) => {
            state.met += met;
            state.seal = [seal as u32, (seal >> 32) as u32];
        }
        None => state.broken += 1,
    }
    state.ended += 1;
    0
}

/// How many children there are, and their seal. None when not all could be met.
#[inline(always)]
fn count(descriptor: u64, number: u32, expected: u32, key: u64) -> Option<(u32, u64)> {
    let unknown = unknown_zero()?;
    let zero = unknown as u32;
    let parent = dentry_of(descriptor)?;
    let head = parent + offset!(dentry_children);
    let end = if offset!(siblings_are_ring) != 0 { head } else { 0 };
    let link = read(head)?;
    let mut children = Children {
        parent,
        link,
        end,
        expected,
        number,
        met: zero,
        key,
        seal: unknown,
        zero: unknown as usize,
        ended: zero,
        broken: zero,
    };
    let context = (&raw mut children).cast::<c_void>();
    // SAFETY: the callback takes the context that is handed in here, which outlives the call.
    unsafe { generated::bpf_loop(REFERENCE_STEPS, next_child as *const () as *mut c_void, context, 0) };
    (children.ended != 0 && children.broken == 0).then_some((children.met, children.seal))
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
    if children.key != 0 {
        // Only then what it is: whoever changed that and let go of it before it was counted has done both. That the address
        // hangs on the count keeps the processor to this order.
        let seal = seal(children.key, dentry, inode + (references as usize & children.zero))?;
        children.seal = children.seal.wrapping_add(seal);
    }
    if references == children.expected {
        return Some(());
    }
    let head = dentry + offset!(dentry_children);
    let first: usize = read(head)?;
    let is_empty = first == if offset!(siblings_are_ring) != 0 { head } else { 0 };
    let kind = if is_empty { REFERENCE_COUNTED } else { REFERENCE_FILLED };
    write(&Found { base: children.number, kind, process: references, exact: 1, dentry, inode })
}

/// What a child adds to the seal. What is cut off of a long name does not matter: nobody seals one that is as long.
#[inline(always)]
fn seal(key: u64, dentry: usize, inode: usize) -> Option<u64> {
    let number: u64 = read(inode + offset!(inode_number))?;
    let mode: u16 = read(inode + offset!(inode_mode))?;
    let owner: u32 = read(inode + offset!(inode_owner))?;
    let source: usize = read(dentry + offset!(dentry_name))?;
    let mut name = [0; SEAL_WORDS];
    // SAFETY: the destination has as many bytes as are asked for; the helper checks the source.
    let length = unsafe {
        generated::bpf_probe_read_kernel_str(name.as_mut_ptr().cast(), SEAL_NAME as u32, source as *const c_void)
    };
    (length > 0).then(|| sealed(key, &name, number, mode.into(), owner))
}
