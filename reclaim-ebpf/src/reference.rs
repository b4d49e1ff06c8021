//! References to entries that are no mounts: open files, working directories, roots and programs that are run.
//!
//! An entry is known by the address of the inode of the directory that it is in, so that equal inode numbers in other
//! file systems do not matter. The iterator holds each task while it looks at it, and nothing else: what a task refers
//! to is read under RCU without taking it, so that no mount of others is ever busy for it. What changes under the look
//! makes it void, and whoever asked looks again.

use core::ffi::c_void;

use aya_ebpf::{
    helpers::{bpf_get_current_pid_tgid, bpf_get_current_task, generated},
    macros::{map, raw_tracepoint},
    maps::{Array, HashMap},
    programs::RawTracePointContext,
};
use reclaim_ebpf::reference_abi::{
    REFERENCE_BASE_SLOTS, REFERENCE_EXECUTABLE, REFERENCE_FILE, REFERENCE_LAYOUT_WORDS, REFERENCE_RECORDS,
    REFERENCE_ROOT, REFERENCE_STEPS, REFERENCE_SUPER_BLOCK, REFERENCE_WORKING_DIRECTORY, ReferenceRecord,
    ReferenceState,
};
use reclaim_ebpf::walk_abi::{WALK_DEPTH, WALK_NAME};

use crate::kernel::{read, unknown_zero};

/// Filled in by the loader; the value here only keeps it in .rodata.
#[unsafe(no_mangle)]
pub(crate) static REFERENCE_LAYOUT: [u32; REFERENCE_LAYOUT_WORDS] = [0; REFERENCE_LAYOUT_WORDS];

#[map]
static REFERENCE_BASES: HashMap<u64, u32> = HashMap::with_max_entries(REFERENCE_BASE_SLOTS, 0);
#[map]
static REFERENCE_STATE: Array<ReferenceState> = Array::with_max_entries(1, 0);
/// What is found. A map, since the output of an iterator has no room for what one task can have open.
#[map]
static REFERENCE_OUTPUT: Array<ReferenceRecord> = Array::with_max_entries(REFERENCE_RECORDS, 0);

/// An offset of [`REFERENCE_LAYOUT`]. Volatile, since the loader changes what the compiler takes for a constant.
macro_rules! offset {
    ($member:ident) => {
        // SAFETY: a word of the static, which has as many words as the structure.
        unsafe {
            core::ptr::read_volatile(
                (&raw const $crate::reference::REFERENCE_LAYOUT)
                    .cast::<u32>()
                    .add(core::mem::offset_of!(reclaim_ebpf::reference_abi::ReferenceLayout, $member) / 4),
            )
        } as usize
    };
}
pub(crate) use offset;

/// Bits in a word of `fdtable.open_fds`.
const BITS: u32 = usize::BITS;

/// A table of open files, and how far the look at it has come.
struct Table {
    task: usize,
    /// 1 for the process whose descriptors do not count, else 0.
    own: u32,
    /// `fdtable.open_fds`: a bit for each descriptor, set before there is a file and cleared after it has gone.
    open: usize,
    /// `fdtable.fd`.
    files: usize,
    words: u32,
    /// The word that is next.
    word: u32,
    /// The descriptor that is next, and the bits of its word from there on.
    descriptor: u32,
    bits: u64,
    /// Flags: 0 or 1.
    ended: u32,
    broken: u32,
}

/// A way up from a place to the entry that it is in.
struct Climb {
    dentry: usize,
    levels: u32,
    /// Number of the directory that holds the entry; [`REFERENCE_SUPER_BLOCK`] as long as none was met.
    base: u32,
    /// Flags: 0 or 1.
    arrived: u32,
    broken: u32,
}

/// Notes the directory behind a descriptor of the calling task, and whose descriptors do not count.
#[raw_tracepoint]
fn reference_base(context: RawTracePointContext) -> i32 {
    let Some(state) = state() else { return 0 };
    state.bases += 1;
    let number = context.arg::<u64>(1) as u32;
    let noted = dentry_of(context.arg(0)).is_some_and(|dentry| {
        let inode: Option<usize> = read(dentry + offset!(dentry_inode));
        let super_block: Option<usize> = read(dentry + offset!(dentry_super));
        let (Some(inode), Some(super_block)) = (inode, super_block) else { return false };
        inode != 0
            && REFERENCE_BASES.insert(inode as u64, number, 0).is_ok()
            && REFERENCE_BASES.insert(super_block as u64, REFERENCE_SUPER_BLOCK, 0).is_ok()
    });
    if !noted {
        state.unfound += 1;
    }
    if state.own != 0 {
        state.own = (bpf_get_current_pid_tgid() >> 32) as u32;
    }
    0
}

/// Looks at one thread. `struct bpf_iter__task { meta; task }`, and no task at the end.
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/task")]
extern "C" fn reference_task(context: *const c_void) -> i32 {
    let Some(state) = state() else { return 0 };
    // As a number: the structure behind it is read at offsets that the verifier cannot know.
    let task: usize = read(context as usize + size_of::<usize>()).unwrap_or(0);
    if task == 0 {
        state.ended += 1;
        return 0;
    }
    let leader = read(task + offset!(task_leader)).unwrap_or(0);
    let own = read::<u32>(task + offset!(task_tgid)) == Some(state.own);
    if own {
        state.own_tasks += 1;
    } else {
        directories(state, task, leader);
        program(state, task, leader);
    }
    files(state, task, leader);
    0
}

/// What a thread has that is not its leader's too; 0 for nothing.
#[inline(always)]
fn of_its_own(task: usize, leader: usize, member: usize) -> usize {
    let has: usize = read(task + member).unwrap_or(0);
    let shared = leader != task && read::<usize>(leader + member) == Some(has);
    if shared { 0 } else { has }
}

/// Whether a thread has still what it had when the look at it began. What it lets go of meanwhile may be in use for
/// something else by then, and what it has instead was not looked at; a thread that ends has nothing.
#[inline(always)]
fn has_still(task: usize, member: usize, had: usize) -> bool {
    matches!(read::<usize>(task + member), Some(now) if now == had || now == 0)
}

#[inline(always)]
fn directories(state: &mut ReferenceState, task: usize, leader: usize) {
    let fs = of_its_own(task, leader, offset!(task_fs));
    if fs == 0 {
        return;
    }
    let working = read(fs + offset!(fs_working)).unwrap_or(0);
    let is_read = look(task, working, REFERENCE_WORKING_DIRECTORY);
    let root = read(fs + offset!(fs_root)).unwrap_or(0);
    if !(look(task, root, REFERENCE_ROOT) && is_read && has_still(task, offset!(task_fs), fs)) {
        state.broken += 1;
    }
}

#[inline(always)]
fn program(state: &mut ReferenceState, task: usize, leader: usize) {
    let memory = of_its_own(task, leader, offset!(task_mm));
    if memory == 0 {
        return;
    }
    let file: usize = read(memory + offset!(mm_executable)).unwrap_or(0);
    if file == 0 {
        return;
    }
    let dentry = read(file + offset!(file_dentry)).unwrap_or(0);
    if !(look(task, dentry, REFERENCE_EXECUTABLE) && has_still(task, offset!(task_mm), memory)) {
        state.broken += 1;
    }
}

/// Looks at every open file of a thread. RCU keeps the table and what is in it readable, also when it grows meanwhile;
/// but then files are opened and closed in another one.
#[inline(always)]
fn files(state: &mut ReferenceState, task: usize, leader: usize) {
    let files = of_its_own(task, leader, offset!(task_files));
    if files == 0 {
        return;
    }
    let table: usize = read(files + offset!(files_fdt)).unwrap_or(0);
    let own = u32::from(read::<u32>(task + offset!(task_tgid)) == Some(state.own));
    let first = if own == 0 { 0 } else { state.lowest / BITS };
    let whole = look_through(task, own, table, first).is_some()
        && read::<usize>(files + offset!(files_fdt)) == Some(table)
        && has_still(task, offset!(task_files), files);
    // A thread that ended meanwhile has let go of what could not be read.
    if !whole && read::<usize>(task + offset!(task_files)) != Some(0) {
        state.broken += 1;
    }
}

/// From a word of the open ones on. None when something cannot be read, or there is more than is looked through.
#[inline(always)]
fn look_through(task: usize, own: u32, table: usize, first: u32) -> Option<()> {
    let zero = unknown_zero()?;
    let most: u32 = read(table + offset!(fdt_max))?;
    let mut table = Table {
        task,
        own,
        open: read(table + offset!(fdt_open))?,
        files: read(table + offset!(fdt_fd))?,
        words: most.div_ceil(BITS),
        word: first | zero as u32,
        descriptor: zero as u32,
        bits: zero,
        ended: zero as u32,
        broken: zero as u32,
    };
    let context = (&raw mut table).cast::<c_void>();
    // SAFETY: the callback takes the context that is handed in here, which outlives the call.
    unsafe { generated::bpf_loop(REFERENCE_STEPS, next_file as *const () as *mut c_void, context, 0) };
    (table.ended != 0 && table.broken == 0).then_some(())
}

/// One descriptor, or the next word of those that are open.
#[inline(never)]
extern "C" fn next_file(_index: u32, context: *mut c_void) -> i64 {
    // SAFETY: `look_through` hands in its own, and nobody else holds it while the loop runs.
    let table = unsafe { &mut *context.cast::<Table>() };
    if table.bits == 0 {
        if table.word >= table.words {
            table.ended = 1;
            return 1;
        }
        let Some(bits) = read(table.open + table.word as usize * size_of::<u64>()) else {
            table.broken = 1;
            return 1;
        };
        table.bits = bits;
        table.descriptor = table.word * BITS;
        table.word += 1;
        return 0;
    }
    let is_open = table.bits & 1 != 0;
    let slot = table.files + table.descriptor as usize * size_of::<usize>();
    table.bits >>= 1;
    table.descriptor += 1;
    if !is_open {
        return 0;
    }
    let Some(file) = read::<usize>(slot) else {
        table.broken = 1;
        return 1;
    };
    if file == 0 {
        return 0;
    }
    let dentry = read(file + offset!(file_dentry)).unwrap_or(0);
    let is_read = if table.own != 0 { meet_own(dentry) } else { look(table.task, dentry, REFERENCE_FILE) };
    // What was closed meanwhile may be in use for something else by then.
    if !is_read && read::<usize>(slot) == Some(file) {
        table.broken = 1;
        return 1;
    }
    if table.own != 0 && state().is_some_and(|state| state.own_files >= state.bases) {
        table.ended = 1;
        return 1;
    }
    0
}

/// Counts a descriptor of one of the directories among those that do not count: that they are met is what proves the
/// look, and once all are, the rest, which may be a lock on each condemned entry, tells nothing. False when it cannot be
/// read.
#[inline(always)]
fn meet_own(dentry: usize) -> bool {
    let Some(inode) = read::<usize>(dentry + offset!(dentry_inode)) else { return false };
    if base(inode).is_some()
        && let Some(state) = state()
    {
        state.own_files += 1;
    }
    true
}

/// Writes a record if the place lies in an entry. False when something cannot be read.
#[inline(always)]
fn look(task: usize, dentry: usize, kind: u32) -> bool {
    reference_report(task as u64, dentry as u64, kind.into()) != 0
}

/// Visible outside the object, for then the kernel's verifier goes through it once, whatever calls it.
/// <Documentation/bpf/verifier.rst>
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn reference_report(task: u64, dentry: u64, kind: u64) -> u64 {
    report(task as usize, dentry as usize, kind as u32).is_some().into()
}

#[inline(always)]
fn report(task: usize, dentry: usize, kind: u32) -> Option<()> {
    let super_block: usize = read(dentry + offset!(dentry_super))?;
    if base(super_block).is_none() {
        return Some(());
    }
    let state = state()?;
    let process: u32 = read(task + offset!(task_tgid))?;
    if process == state.own {
        return Some(());
    }
    let flag = unknown_zero()? as u32;
    let mut climb =
        Climb { dentry, levels: flag, base: REFERENCE_SUPER_BLOCK.wrapping_sub(flag), arrived: flag, broken: flag };
    let context = (&raw mut climb).cast::<c_void>();
    // SAFETY: the callback takes the context that is handed in here, which outlives the call.
    unsafe { generated::bpf_loop(WALK_DEPTH, up as *const () as *mut c_void, context, 0) };
    if climb.broken != 0 || climb.arrived == 0 {
        return None;
    }
    if climb.base == REFERENCE_SUPER_BLOCK {
        return Some(());
    }
    let inode: usize = read(climb.dentry + offset!(dentry_inode))?;
    // An entry whose last name was removed is none that has a name now.
    if inode == 0 || read::<u32>(inode + offset!(inode_links))? == 0 {
        return Some(());
    }
    write(&Found { base: climb.base, kind, process, exact: u32::from(climb.levels == 0), dentry: climb.dentry, inode })
}

/// What a record is about.
pub(crate) struct Found {
    pub(crate) base: u32,
    pub(crate) kind: u32,
    pub(crate) process: u32,
    pub(crate) exact: u32,
    pub(crate) dentry: usize,
    pub(crate) inode: usize,
}

/// Writes a record. None when something cannot be read.
#[inline(always)]
pub(crate) fn write(found: &Found) -> Option<()> {
    let Found { base, kind, process, exact, dentry, inode } = *found;
    let state = state()?;
    let name: usize = read(dentry + offset!(dentry_name))?;
    let entry = read(inode + offset!(inode_number))?;
    let address = [dentry as u32, (dentry >> 32) as u32];
    if let Some(last) = REFERENCE_OUTPUT.get(state.records.wrapping_sub(1))
        && (last.base, last.kind, last.process, last.exact) == (base, kind, process, exact)
        && state.last == address
    {
        return Some(());
    }
    let Some(record) = REFERENCE_OUTPUT.get_ptr_mut(state.records) else {
        state.unwritten += 1;
        return Some(());
    };
    // SAFETY: the value of a map that lives as long as the program, and that nobody else writes.
    let record = unsafe { &mut *record };
    record.base = base;
    record.kind = kind;
    record.process = process;
    record.exact = exact;
    record.entry = entry;
    // SAFETY: the destination has as many bytes as are asked for at most; the helper checks the source.
    let length = unsafe {
        generated::bpf_probe_read_kernel_str(record.name.as_mut_ptr().cast(), WALK_NAME as u32, name as *const c_void)
    };
    if length <= 0 {
        return None;
    }
    state.records += 1;
    state.last = address;
    Some(())
}

/// One level up: ends at a child of a base, or at the root of the file system.
#[inline(never)]
extern "C" fn up(_index: u32, context: *mut c_void) -> i64 {
    // SAFETY: `report` hands in its own, and nobody else holds it while the loop runs.
    let climb = unsafe { &mut *context.cast::<Climb>() };
    let parent: usize = read(climb.dentry + offset!(dentry_parent)).unwrap_or(0);
    let inode: usize = read(parent + offset!(dentry_inode)).unwrap_or(0);
    if parent == 0 || inode == 0 {
        climb.broken = 1;
        return 1;
    }
    if parent == climb.dentry {
        climb.arrived = 1;
        return 1;
    }
    if let Some(number) = base(inode) {
        climb.base = number;
        climb.arrived = 1;
        return 1;
    }
    climb.dentry = parent;
    climb.levels += 1;
    0
}

/// What an address leads to among the bases.
#[inline(always)]
fn base(address: usize) -> Option<u32> {
    // SAFETY: the value is copied at once; no base is taken out while a look goes on.
    unsafe { REFERENCE_BASES.get(address as u64) }.copied()
}

#[inline(always)]
pub(crate) fn state() -> Option<&'static mut ReferenceState> {
    // SAFETY: the value of a map that lives as long as the program; one reader drives an iterator.
    REFERENCE_STATE.get_ptr_mut(0).map(|state| unsafe { &mut *state })
}

/// The dentry of the file behind a descriptor of the calling task.
#[inline(always)]
pub(crate) fn dentry_of(descriptor: u64) -> Option<usize> {
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
    read(file + offset!(file_dentry))
}
