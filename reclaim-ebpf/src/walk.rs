//! The walk: every mount of one file system, from the super block's own list.
//!
//! It takes no lock. It runs in one go under RCU, so a mount that is freed meanwhile stays readable; a link that was
//! poisoned or leads elsewhere ends the walk as broken, and whoever asked walks again. For each mount of the list its
//! root is a source, and the points that other mounts are mounted at on it are targets; each is followed up to the
//! directory whose children are entries.
//!
//! What is needed of a structure is read at once: each reading costs a call of the kernel's, and most find its memory in no
//! cache.

use core::ffi::c_void;
use core::ptr;

use aya_ebpf::{
    helpers::{bpf_get_current_task, generated},
    macros::{map, raw_tracepoint},
    maps::{Array, HashMap},
    programs::RawTracePointContext,
};
use reclaim_ebpf::walk_abi::{
    WALK_ALL, WALK_ATTACHED, WALK_BASE_SLOTS, WALK_BASE_WORDS, WALK_BLOCK, WALK_BROKEN, WALK_COUNTED, WALK_DEPTH,
    WALK_DETACHED, WALK_DONE, WALK_FULL, WALK_INTERNAL, WALK_LAYOUT_WORDS, WALK_NAME, WALK_NO_FILE, WALK_RECORDS,
    WALK_SOURCE, WALK_STEPS, WALK_TARGET, WALK_TOO_LONG, WALK_UNMOUNTED, WalkLayout, WalkRecord, WalkState,
};

use crate::kernel::{read, unknown_zero};

/// `BPF_F_MMAPABLE`. Since Linux 5.5.
const MMAPABLE: u32 = 1 << 10;
/// Kernel pointers from here on are error values. <include/linux/err.h>
const ERROR_POINTERS: usize = usize::MAX - 4095;

/// Filled in by the loader; the value here only keeps it in .rodata.
#[unsafe(no_mangle)]
static WALK_LAYOUT: [u32; WALK_LAYOUT_WORDS] = [0; WALK_LAYOUT_WORDS];

#[map]
static WALK_BASES: HashMap<u64, [u64; WALK_BASE_WORDS]> = HashMap::with_max_entries(WALK_BASE_SLOTS, 0);
#[map]
static WALK_OUTPUT: Array<WalkRecord> = Array::with_max_entries(WALK_RECORDS, MMAPABLE);
#[map]
static WALK_MOUNT: Array<Block> = Array::with_max_entries(1, 0);
#[map]
static WALK_PART: Array<Block> = Array::with_max_entries(1, 0);
#[map]
static WALK: Array<Walk> = Array::with_max_entries(1, 0);
#[map]
static WALK_STATE: Array<WalkState> = Array::with_max_entries(1, MMAPABLE);

/// An offset of [`WALK_LAYOUT`]. Volatile, since the loader changes what the compiler takes for a constant.
macro_rules! offset {
    ($member:ident) => {
        // SAFETY: a word of the static, which has as many words as the structure.
        unsafe {
            ptr::read_volatile((&raw const WALK_LAYOUT).cast::<u32>().add(core::mem::offset_of!(WalkLayout, $member) / 4))
        } as usize
    };
}

/// The beginning of a kernel structure.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Block([u64; WALK_BLOCK / 8]);

impl Block {
    /// Reads so many bytes from an address, less than [`WALK_BLOCK`].
    #[inline(always)]
    fn fill(&mut self, address: usize, bytes: usize) -> Option<()> {
        let bytes = bytes as u32 & (WALK_BLOCK as u32 - 1);
        let to = self.0.as_mut_ptr().cast();
        // SAFETY: no more is asked for than there is room for; the helper checks the source.
        let result = unsafe { generated::bpf_probe_read_kernel(to, bytes, address as *const c_void) };
        (result == 0).then_some(())
    }

    /// A member of eight bytes.
    #[inline(always)]
    fn word(&self, offset: usize) -> usize {
        let place = self.0.as_ptr().wrapping_add((offset / 8) & (WALK_BLOCK / 8 - 1));
        // SAFETY: inside the block. Volatile, since a helper wrote it.
        unsafe { ptr::read_volatile(place) as usize }
    }

    /// A member of four bytes.
    #[inline(always)]
    fn half(&self, offset: usize) -> u32 {
        let place = self.0.as_ptr().cast::<u32>().wrapping_add((offset / 4) & (WALK_BLOCK / 4 - 1));
        // SAFETY: inside the block. Volatile, since a helper wrote it.
        unsafe { ptr::read_volatile(place) }
    }
}

/// The mount that is being reported, as it was when that began.
#[inline(always)]
fn mount_block() -> Option<&'static mut Block> {
    // SAFETY: the value of a map that lives as long as the program; one walk runs at a time, and nobody holds it over a call.
    WALK_MOUNT.get_ptr_mut(0).map(|block| unsafe { &mut *block })
}

/// Another structure, for as long as nothing else is read into it.
#[inline(always)]
fn part_block() -> Option<&'static mut Block> {
    // SAFETY: as above.
    WALK_PART.get_ptr_mut(0).map(|block| unsafe { &mut *block })
}

/// Where the walk is. In a map and not on the stack, since the functions below are verified each by itself.
#[repr(C)]
#[derive(Clone, Copy)]
struct Walk {
    /// Where the list ends: its head, or a null pointer.
    end: usize,
    mount: usize,
    /// The child that is next, as the address of its link; 0 when the mount itself is.
    child: usize,
    mounts: u64,
    children: u64,
    capacity: u32,
    records: u32,
    outcome: u32,
    reserved: u32,
    seen: Seen,
}

/// What was found out last about directories. A dentry is not freed while the walk goes on.
#[repr(C)]
#[derive(Clone, Copy)]
struct Seen {
    /// Dentry of a base, which whoever asked keeps open; 0 before there was one.
    base_dentry: usize,
    /// Its number, and the one entry of it that is asked about.
    base: u64,
    only: u64,
    /// Dentry of a directory that is no base and below none; 0 before there was one.
    elsewhere: usize,
}

/// A way up from a place to the entry that it is in.
struct Climb {
    dentry: usize,
    levels: u32,
    /// Inode number of the directory that holds the entry; 0 as long as none was met.
    base: u64,
    /// The descriptor of the one entry of it that is asked about, or [`WALK_ALL`].
    only: u64,
    /// Dentry of that directory.
    base_dentry: usize,
    /// Flags: 0 or 1.
    arrived: u32,
    broken: u32,
}

/// Walks the file system of the file whose descriptor is the first argument.
#[raw_tracepoint]
fn walk(context: RawTracePointContext) -> i32 {
    let (Some(state), Some(walk)) = (WALK_STATE.get_ptr_mut(0), WALK.get_ptr_mut(0)) else { return 0 };
    // SAFETY: the value of a map that lives as long as the program; one walk runs at a time.
    let state = unsafe { &mut *state };
    // SAFETY: as above.
    let walk = unsafe { &mut *walk };
    let capacity = state.capacity;
    *walk = Walk {
        end: 0,
        mount: 0,
        child: 0,
        mounts: 0,
        children: 0,
        capacity,
        records: 0,
        outcome: WALK_TOO_LONG,
        reserved: 0,
        seen: Seen { base_dentry: 0, base: 0, only: WALK_ALL, elsewhere: 0 },
    };
    match super_block(context.arg(0)) {
        Some(super_block) if walk.begin(super_block) => {
            if walk.mount == 0 {
                walk.outcome = WALK_DONE;
            } else {
                // SAFETY: the callback takes no context.
                unsafe { generated::bpf_loop(WALK_STEPS, step as *const () as *mut c_void, ptr::null_mut(), 0) };
            }
        }
        Some(_) => walk.outcome = WALK_BROKEN,
        None => walk.outcome = WALK_NO_FILE,
    }
    let Walk { mounts, children, records, outcome, .. } = *walk;
    *state = WalkState { mounts, children, capacity, records, outcome, reserved: 0 };
    0
}

/// One step: the mount itself when it is new, else one mount on it.
#[inline(never)]
extern "C" fn step(_index: u32, _context: *mut c_void) -> i64 {
    let Some(walk) = WALK.get_ptr_mut(0) else { return 1 };
    // SAFETY: the value of a map that lives as long as the program; one walk runs at a time.
    let walk = unsafe { &mut *walk };
    match walk.advance() {
        Ok(true) => 0,
        Ok(false) => {
            walk.outcome = if walk.records > walk.capacity { WALK_FULL } else { WALK_DONE };
            1
        }
        Err(outcome) => {
            walk.outcome = outcome;
            1
        }
    }
}

impl Walk {
    /// Sets the walk on the first mount of the file system; 0 if it has none. False when that cannot be read.
    #[inline(always)]
    fn begin(&mut self, super_block: usize) -> bool {
        let head = super_block + offset!(super_mounts);
        let Some(first) = read::<usize>(head) else { return false };
        if offset!(mounts_are_list) != 0 {
            self.end = head;
            self.mount = if first == head { 0 } else { first.wrapping_sub(offset!(mount_next)) };
        } else {
            self.mount = first;
        }
        true
    }

    /// Reports the mount when it is new, else one mount on it, and goes on. Returns whether there is more.
    #[inline(always)]
    fn advance(&mut self) -> Result<bool, u32> {
        let mount = self.mount;
        let children = mount + offset!(mount_children);
        let link = self.child;
        let block = mount_block().ok_or(WALK_BROKEN)?;
        let (place, role, next);
        if link == 0 {
            block.fill(mount, offset!(mount_bytes)).ok_or(WALK_BROKEN)?;
            (place, role) = (block.word(offset!(mount_root)), WALK_SOURCE);
            next = block.word(offset!(mount_children));
            self.mounts += 1;
        } else {
            block.fill(link.wrapping_sub(offset!(mount_child)), offset!(mount_bytes)).ok_or(WALK_BROKEN)?;
            // A child that was unmounted or moved meanwhile leads out of this mount's list.
            if block.word(offset!(mount_parent)) != mount {
                return Err(WALK_BROKEN);
            }
            (place, role) = (block.word(offset!(mount_point)), WALK_TARGET);
            next = block.word(offset!(mount_child));
            self.children += 1;
        }
        let own_next = block.word(offset!(mount_next));
        let outcome = walk_report(place as u64, role.into());
        if outcome != u64::from(WALK_DONE) {
            return Err(outcome as u32);
        }
        if next == 0 || next == link {
            return Err(WALK_BROKEN);
        }
        if next != children {
            self.child = next;
            return Ok(true);
        }
        let next = if link == 0 { own_next } else { read(mount + offset!(mount_next)).ok_or(WALK_BROKEN)? };
        if next == self.end {
            return Ok(false);
        }
        let next = if offset!(mounts_are_list) != 0 { next.wrapping_sub(offset!(mount_next)) } else { next };
        if next == mount {
            return Err(WALK_BROKEN);
        }
        self.mount = next;
        self.child = 0;
        Ok(true)
    }
}

/// Writes a record of the mount in hand if the place lies in an entry. Returns [`WALK_DONE`], or with what the walk ends.
///
/// Visible outside the object, for then the kernel's verifier goes through it once, whatever calls it.
/// <Documentation/bpf/verifier.rst>
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn walk_report(place: u64, role: u64) -> u64 {
    let outcome = match report(place as usize, role as u32) {
        Ok(()) => WALK_DONE,
        Err(outcome) => outcome,
    };
    outcome.into()
}

#[inline(always)]
fn report(place: usize, role: u32) -> Result<(), u32> {
    let walk = WALK.get_ptr_mut(0).ok_or(WALK_BROKEN)?;
    // SAFETY: the value of a map that lives as long as the program; one walk runs at a time.
    let walk = unsafe { &mut *walk };
    let part = part_block().ok_or(WALK_BROKEN)?;
    part.fill(place, offset!(dentry_bytes)).ok_or(WALK_BROKEN)?;
    let parent = part.word(offset!(dentry_parent));
    // Nobody asks about the root of a file system, and what lies beside it is not said by that.
    let has_parent = parent != place;
    if has_parent && parent == walk.seen.elsewhere {
        return Ok(());
    }
    let is_exact = has_parent && parent == walk.seen.base_dentry;
    let mut exact = is_exact;
    if !is_exact {
        let climb = climb(place)?;
        if climb.base == 0 {
            if has_parent {
                walk.seen.elsewhere = parent;
            }
            return Ok(());
        }
        let Climb { base_dentry, base, only, .. } = climb;
        (walk.seen.base_dentry, walk.seen.base, walk.seen.only) = (base_dentry, base, only);
        exact = climb.levels == 0;
        part.fill(climb.dentry, offset!(dentry_bytes)).ok_or(WALK_BROKEN)?;
    }
    let (own, name) = (part.word(offset!(dentry_inode)), part.word(offset!(dentry_name)));
    part.fill(own, offset!(inode_bytes)).ok_or(WALK_BROKEN)?;
    let (entry, links) = (part.word(offset!(inode_number)) as u64, part.half(offset!(inode_links)));
    // By the inode itself, for what stat tells of it is another number on some stacked file systems.
    if walk.seen.only != WALK_ALL && inode_behind(walk.seen.only).ok_or(WALK_BROKEN)? != own {
        return Ok(());
    }
    // Its last name was removed: then nothing that has a name now is meant.
    if links == 0 {
        return Ok(());
    }
    if walk.records >= walk.capacity {
        // Counted, so that room for all can be made at once; not to the end where there are many times as many.
        walk.records += 1;
        return if walk.records / WALK_COUNTED >= walk.capacity { Err(WALK_FULL) } else { Ok(()) };
    }
    let record = WALK_OUTPUT.get_ptr_mut(walk.records).ok_or(WALK_FULL)?;
    let mount = mount_block().ok_or(WALK_BROKEN)?;
    let (namespace, state) = holder(mount).ok_or(WALK_BROKEN)?;
    // SAFETY: the value of a map that lives as long as the program, and that nobody else writes.
    let record = unsafe { &mut *record };
    record.base = walk.seen.base;
    record.entry = entry;
    record.mount = mount.half(offset!(mount_id)).into();
    record.namespace = namespace;
    record.role = role;
    record.state = state;
    record.exact = exact.into();
    // SAFETY: the destination has as many bytes as are asked for at most; the helper checks the source.
    let length = unsafe {
        generated::bpf_probe_read_kernel_str(record.name.as_mut_ptr().cast(), WALK_NAME as u32, name as *const c_void)
    };
    if length <= 0 {
        return Err(WALK_BROKEN);
    }
    walk.records += 1;
    Ok(())
}

/// The way up from a place to the entry that it is in, or to the root of the file system.
#[inline(always)]
fn climb(place: usize) -> Result<Climb, u32> {
    let zero = unknown_zero().ok_or(WALK_BROKEN)?;
    let (base_dentry, flag) = (zero as usize, zero as u32);
    let mut climb =
        Climb { dentry: place, levels: flag, base: zero, only: zero, base_dentry, arrived: flag, broken: flag };
    let context = (&raw mut climb).cast::<c_void>();
    // SAFETY: the callback takes the context that is handed in here, which outlives the call.
    unsafe { generated::bpf_loop(WALK_DEPTH, up as *const () as *mut c_void, context, 0) };
    match (climb.broken, climb.arrived) {
        (0, 0) => Err(WALK_TOO_LONG),
        (0, _) => Ok(climb),
        _ => Err(WALK_BROKEN),
    }
}

/// One level up: ends at a child of a base, or at the root of the file system.
#[inline(never)]
extern "C" fn up(_index: u32, context: *mut c_void) -> i64 {
    // SAFETY: `report` hands in its own, and nobody else holds it while the loop runs.
    let climb = unsafe { &mut *context.cast::<Climb>() };
    let Some(parent) = read::<usize>(climb.dentry + offset!(dentry_parent)) else {
        climb.broken = 1;
        return 1;
    };
    if parent == climb.dentry {
        climb.arrived = 1;
        return 1;
    }
    let Some((inode, number)) = inode(parent) else {
        climb.broken = 1;
        return 1;
    };
    if let Some(base) = WALK_BASES.get_ptr_mut(number) {
        // SAFETY: the value of a map that lives as long as the program; no base is taken out while a walk goes on.
        let [descriptor, only, known] = unsafe { &mut *base };
        // Looked up once: whoever asks keeps the descriptor open.
        if *known == 0 {
            *known = inode_behind(*descriptor).unwrap_or(0) as u64;
        }
        if *known == 0 {
            climb.broken = 1;
            return 1;
        }
        // Subvolumes of one file system have the same numbers, so the inode itself has to be the one.
        if *known == inode as u64 {
            climb.base = number;
            climb.only = *only;
            climb.base_dentry = parent;
            climb.arrived = 1;
            return 1;
        }
    }
    climb.dentry = parent;
    climb.levels += 1;
    0
}

/// The super block of the file behind a descriptor of the calling task.
#[inline(always)]
fn super_block(descriptor: u64) -> Option<usize> {
    read(inode_behind(descriptor)? + offset!(inode_super))
}

/// The inode of the file behind a descriptor of the calling task.
#[inline(always)]
fn inode_behind(descriptor: u64) -> Option<usize> {
    // SAFETY: takes no pointer; the call cannot fail.
    let task = unsafe { bpf_get_current_task() } as usize;
    let files: usize = read(task + offset!(task_files))?;
    let table: usize = read(files + offset!(files_fdt))?;
    let most: u32 = read(table + offset!(fdt_max))?;
    if descriptor >= u64::from(most) {
        return None;
    }
    let descriptors: usize = read(table + offset!(fdt_fd))?;
    let file: usize = read(descriptors + descriptor as usize * size_of::<usize>())?;
    read(file + offset!(file_inode))
}

/// The inode of a dentry, and its number.
#[inline(always)]
fn inode(dentry: usize) -> Option<(usize, u64)> {
    let inode: usize = read(dentry + offset!(dentry_inode))?;
    Some((inode, read(inode + offset!(inode_number))?))
}

/// Who holds a mount: the namespace that its tree is in, and the state that follows.
#[inline(always)]
fn holder(mount: &Block) -> Option<(u32, u32)> {
    let namespace = mount.word(offset!(mount_namespace));
    if namespace >= ERROR_POINTERS {
        return Some((0, WALK_INTERNAL));
    }
    let going = offset!(flag_unmounted) | offset!(flag_doomed);
    if namespace == 0 || mount.half(offset!(mount_flags)) as usize & going != 0 {
        return Some((0, WALK_UNMOUNTED));
    }
    let part = part_block()?;
    part.fill(namespace, offset!(namespace_bytes))?;
    if part.word(offset!(namespace_sequence)) == 0 {
        return Some((0, WALK_DETACHED));
    }
    Some((part.half(offset!(namespace_inum)), WALK_ATTACHED))
}
