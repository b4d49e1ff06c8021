//! References to entries that are no mounts: open files, working directories, roots and programs that are run.
//!
//! An entry is known by the address of the inode of the directory that it is in, so that equal inode numbers in other
//! file systems do not matter. The iterators hold each file and each task while they look at it; what a task refers to
//! is read under RCU.

use core::ffi::c_void;
use core::ptr;

use aya_ebpf::{
    bindings::seq_file,
    helpers::{bpf_get_current_pid_tgid, bpf_get_current_task, generated},
    macros::{map, raw_tracepoint},
    maps::{Array, HashMap},
    programs::RawTracePointContext,
};
use reclaim_ebpf::reference_abi::{
    REFERENCE_BASE_SLOTS, REFERENCE_EXECUTABLE, REFERENCE_FILE, REFERENCE_LAYOUT_WORDS, REFERENCE_ROOT,
    REFERENCE_SUPER_BLOCK, REFERENCE_WORKING_DIRECTORY, ReferenceLayout, ReferenceRecord, ReferenceState,
};
use reclaim_ebpf::walk_abi::{WALK_DEPTH, WALK_NAME};

use crate::kernel::{read, unknown_zero};

/// Filled in by the loader; the value here only keeps it in .rodata.
#[unsafe(no_mangle)]
static REFERENCE_LAYOUT: [u32; REFERENCE_LAYOUT_WORDS] = [0; REFERENCE_LAYOUT_WORDS];

#[map]
static REFERENCE_BASES: HashMap<u64, u32> = HashMap::with_max_entries(REFERENCE_BASE_SLOTS, 0);
#[map]
static REFERENCE_STATE: Array<ReferenceState> = Array::with_max_entries(1, 0);
/// Room for the record in the making: one reader drives an iterator, so there is one at a time.
#[map]
static REFERENCE_SCRATCH: Array<ReferenceRecord> = Array::with_max_entries(1, 0);

/// An offset of [`REFERENCE_LAYOUT`]. Volatile, since the loader changes what the compiler takes for a constant.
macro_rules! offset {
    ($member:ident) => {
        // SAFETY: a word of the static, which has as many words as the structure.
        unsafe {
            ptr::read_volatile(
                (&raw const REFERENCE_LAYOUT).cast::<u32>().add(core::mem::offset_of!(ReferenceLayout, $member) / 4),
            )
        } as usize
    };
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

/// Looks at one open file. `struct bpf_iter__task_file { meta; task; u32 fd; file }`, and no file at the end.
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/task_file")]
extern "C" fn reference_file(context: *const c_void) -> i32 {
    let (Some(sequence), Some(state)) = (sequence(context), state()) else { return 0 };
    let task = argument(context, 1);
    let file = argument(context, 3);
    if file == 0 {
        state.files_ended += 1;
        return 0;
    }
    let dentry = read(file + offset!(file_dentry)).unwrap_or(0);
    look(sequence, state, task, dentry, REFERENCE_FILE);
    0
}

/// Looks at one thread. `struct bpf_iter__task { meta; task }`, and no task at the end.
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/task")]
extern "C" fn reference_task(context: *const c_void) -> i32 {
    let (Some(sequence), Some(state)) = (sequence(context), state()) else { return 0 };
    let task = argument(context, 1);
    if task == 0 {
        state.tasks_ended += 1;
        return 0;
    }
    if read::<u32>(task + offset!(task_tgid)) == Some(state.own) {
        state.own_tasks += 1;
        return 0;
    }
    let leader = read(task + offset!(task_leader)).unwrap_or(0);
    let fs: usize = read(task + offset!(task_fs)).unwrap_or(0);
    let shared = leader != task && read::<usize>(leader + offset!(task_fs)) == Some(fs);
    if fs != 0 && !shared {
        let working = read(fs + offset!(fs_working)).unwrap_or(0);
        look(sequence, state, task, working, REFERENCE_WORKING_DIRECTORY);
        let root = read(fs + offset!(fs_root)).unwrap_or(0);
        look(sequence, state, task, root, REFERENCE_ROOT);
        // What a task lets go of while it is looked at may be in use for something else by then.
        if !matches!(read::<usize>(task + offset!(task_fs)), Some(now) if now == fs || now == 0) {
            state.broken += 1;
        }
    }
    let memory: usize = read(task + offset!(task_mm)).unwrap_or(0);
    if memory != 0 && leader == task {
        let file: usize = read(memory + offset!(mm_executable)).unwrap_or(0);
        if file != 0 {
            let dentry = read(file + offset!(file_dentry)).unwrap_or(0);
            look(sequence, state, task, dentry, REFERENCE_EXECUTABLE);
        }
    }
    0
}

/// Writes a record if the place lies in an entry.
#[inline(never)]
fn look(sequence: *mut seq_file, state: &mut ReferenceState, task: usize, dentry: usize, kind: u32) {
    if report(sequence, state, task, dentry, kind).is_none() {
        state.broken += 1;
    }
}

/// None when something cannot be read.
#[inline(always)]
fn report(sequence: *mut seq_file, state: &mut ReferenceState, task: usize, dentry: usize, kind: u32) -> Option<()> {
    let super_block: usize = read(dentry + offset!(dentry_super))?;
    if base(super_block).is_none() {
        return Some(());
    }
    let process: u32 = read(task + offset!(task_tgid))?;
    if process == state.own {
        // That the own descriptors of the directories are met is what proves the iterator.
        if base(read(dentry + offset!(dentry_inode))?).is_some() {
            state.own_files += 1;
        }
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
    let name: usize = read(climb.dentry + offset!(dentry_name))?;
    let record = REFERENCE_SCRATCH.get_ptr_mut(0)?;
    // SAFETY: the value of a map that lives as long as the program, and that nobody else writes.
    let record = unsafe { &mut *record };
    record.base = climb.base;
    record.kind = kind;
    record.process = process;
    record.exact = u32::from(climb.levels == 0);
    record.entry = read(inode + offset!(inode_number))?;
    // SAFETY: the destination has as many bytes as are asked for at most; the helper checks the source.
    let length = unsafe {
        generated::bpf_probe_read_kernel_str(record.name.as_mut_ptr().cast(), WALK_NAME as u32, name as *const c_void)
    };
    if length <= 0 {
        return None;
    }
    // A full buffer is emptied by the reader, and the kernel then comes to the same place again.
    // SAFETY: the sequence is the iterator's own, and the record has the size that is told.
    unsafe {
        generated::bpf_seq_write(sequence, (&raw const *record).cast(), size_of::<ReferenceRecord>() as u32);
    }
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
fn state() -> Option<&'static mut ReferenceState> {
    // SAFETY: the value of a map that lives as long as the program; one reader drives an iterator.
    REFERENCE_STATE.get_ptr_mut(0).map(|state| unsafe { &mut *state })
}

/// Where the iterator's output goes: `struct bpf_iter_meta` begins with it. Loaded directly, so that the kernel knows
/// what it is.
#[inline(always)]
fn sequence(context: *const c_void) -> Option<*mut seq_file> {
    // SAFETY: every iterator's context begins with a pointer to its meta data.
    let meta = unsafe { *context.cast::<*const *mut seq_file>() };
    // SAFETY: which in turn begin with a pointer to the output.
    Some(unsafe { *meta })
}

/// A word of the iterator's context as a number: the structure behind it is read at offsets the verifier cannot know.
#[inline(always)]
fn argument(context: *const c_void, index: usize) -> usize {
    read(context as usize + index * size_of::<usize>()).unwrap_or(0)
}

/// The dentry of the file behind a descriptor of the calling task.
#[inline(always)]
fn dentry_of(descriptor: u64) -> Option<usize> {
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
