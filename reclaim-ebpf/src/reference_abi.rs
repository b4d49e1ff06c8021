//! What the iterator that looks for references to entries and userspace agree on.

use crate::walk_abi::WALK_NAME;

/// A raw tracepoint that is never attached, run on demand with two arguments: the descriptor of a directory in the table
/// of the calling task, and the number that records call the directory by.
pub const REFERENCE_BASE_PROGRAM: &str = "reference_base";
/// A raw tracepoint that is never attached, run on demand with four arguments: as [`REFERENCE_BASE_PROGRAM`], the
/// references that a dentry has which nobody uses, and the key of a seal, or 0 for none. Reads how many each child of the
/// directory has, and adds up what [`sealed`] makes of each.
pub const REFERENCE_COUNT_PROGRAM: &str = "reference_count";
/// Iterator over every thread, which writes nothing itself: what it finds is in [`REFERENCE_OUTPUT_MAP`].
pub const REFERENCE_TASK_PROGRAM: &str = "reference_task";
/// Read-only global of type [`ReferenceLayout`], set before load.
pub const REFERENCE_LAYOUT_GLOBAL: &str = "REFERENCE_LAYOUT";
/// Hash from the address of a directory's inode to the directory's number, and from the address of a super block that
/// such directories lie in to [`REFERENCE_SUPER_BLOCK`].
pub const REFERENCE_BASES_MAP: &str = "REFERENCE_BASES";
/// Array with one [`ReferenceState`].
pub const REFERENCE_STATE_MAP: &str = "REFERENCE_STATE";
/// Array of [`ReferenceRecord`], of which the state tells how many were written.
pub const REFERENCE_OUTPUT_MAP: &str = "REFERENCE_OUTPUT";

/// Records that there is room for where userspace asks for no more.
pub const REFERENCE_RECORDS: u32 = 1024;
/// Steps through one table of open files: one for each descriptor and for each word of them. `BPF_MAX_LOOPS` of the kernel.
pub const REFERENCE_STEPS: u32 = 1 << 23;

/// Room for directories whose children are entries, and for their super blocks.
pub const REFERENCE_BASE_SLOTS: u32 = 2048;
/// What the address of a super block leads to.
pub const REFERENCE_SUPER_BLOCK: u32 = u32::MAX;

/// An open file, `O_PATH` or not.
pub const REFERENCE_FILE: u32 = 1;
/// A working directory.
pub const REFERENCE_WORKING_DIRECTORY: u32 = 2;
/// A root directory.
pub const REFERENCE_ROOT: u32 = 3;
/// The program that a task runs.
pub const REFERENCE_EXECUTABLE: u32 = 4;
/// There are other references to it than were expected. Their number is in the place of the process.
pub const REFERENCE_COUNTED: u32 = 5;
/// So are there, but something in it is known to the kernel, which counts as such. Likewise.
pub const REFERENCE_FILLED: u32 = 6;

/// How a look goes. Userspace sets `own` and `lowest`, and all else to zero; the programs count.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReferenceState {
    /// The process whose references are not written, by its number in the first pid namespace; 0 for none.
    pub own: u32,
    /// Directories that were given.
    pub bases: u32,
    /// Directories that could not be found by their descriptor.
    pub unfound: u32,
    /// Tasks of the own process that were met.
    pub own_tasks: u32,
    /// Open files of the own process that are one of the directories.
    pub own_files: u32,
    /// What could not be followed up, or changed meanwhile: the look is void.
    pub broken: u32,
    /// The iterator came to its end.
    pub ended: u32,
    /// Records written. One that is equal to the one before it, but for its place in the table of files, is not.
    pub records: u32,
    /// References that there was no room for: the look is void.
    pub unwritten: u32,
    /// Children that the directories have, by [`REFERENCE_COUNT_PROGRAM`].
    pub met: u32,
    /// The lowest descriptor of a directory that was given: what the own process has below it need not be looked at.
    pub lowest: u32,
    /// Address of the entry that the last record is about, its lower and its upper half. File systems give one inode
    /// number to several entries: to hard links, and to subvolumes.
    pub last: [u32; 2],
    /// The seal of the children, its lower and its upper half, by [`REFERENCE_COUNT_PROGRAM`].
    pub seal: [u32; 2],
}

/// Words of the name of a child that is sealed.
pub const SEAL_WORDS: usize = 9;
/// Bytes of them. A name that is sealed leaves two at least: with one it could be the beginning of a longer one.
pub const SEAL_NAME: usize = SEAL_WORDS * 8;

/// What one child of a directory adds to its seal, by its name, its inode number, its mode with the bits of its kind, and
/// its owner.
///
/// Whoever takes the sum of the same children comes to the same seal, in whatever order. Nobody who does not know the key
/// can choose children that make up for each other.
#[inline(always)]
#[must_use]
pub const fn sealed(key: u64, name: &[u64; SEAL_WORDS], inode: u64, mode: u32, owner: u32) -> u64 {
    let mut word = mixed(inode ^ key) ^ (((mode as u64) << 32) | owner as u64);
    let mut at = 0;
    // Only the end of a name has a word that is zero.
    while at < SEAL_WORDS && name[at] != 0 {
        word = mixed(word) ^ name[at];
        at += 1;
    }
    mixed(word)
}

/// Makes every bit depend on all of them: the finalizer of SplitMix64.
#[inline(always)]
const fn mixed(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// One reference to an entry, as the iterator writes it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReferenceRecord {
    /// Number of the directory that the entry is in.
    pub base: u32,
    /// [`REFERENCE_FILE`] and so on.
    pub kind: u32,
    /// The process, by its number in the first pid namespace.
    pub process: u32,
    /// 1 when the place is the entry itself, 0 when it lies below.
    pub exact: u32,
    /// Inode number of the entry.
    pub entry: u64,
    /// Name of the entry, ended by a zero byte.
    pub name: [u8; WALK_NAME],
}

/// Byte offsets of kernel structure members, looked up in the running kernel's BTF by userspace.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReferenceLayout {
    /// `task_struct.tgid`.
    pub task_tgid: u32,
    /// `task_struct.group_leader`.
    pub task_leader: u32,
    /// `task_struct.files`.
    pub task_files: u32,
    /// `task_struct.fs`.
    pub task_fs: u32,
    /// `task_struct.mm`.
    pub task_mm: u32,
    /// `files_struct.fdt`.
    pub files_fdt: u32,
    /// `fdtable.max_fds`.
    pub fdt_max: u32,
    /// `fdtable.fd`.
    pub fdt_fd: u32,
    /// `fdtable.open_fds`.
    pub fdt_open: u32,
    /// `file.f_path` plus `path.dentry`.
    pub file_dentry: u32,
    /// `fs_struct.pwd` plus `path.dentry`.
    pub fs_working: u32,
    /// `fs_struct.root` plus `path.dentry`.
    pub fs_root: u32,
    /// `mm_struct.exe_file`.
    pub mm_executable: u32,
    /// `dentry.d_sb`.
    pub dentry_super: u32,
    /// `dentry.d_parent`.
    pub dentry_parent: u32,
    /// `dentry.d_inode`.
    pub dentry_inode: u32,
    /// `dentry.d_name` plus `qstr.name`.
    pub dentry_name: u32,
    /// `dentry.d_lockref.count`.
    pub dentry_count: u32,
    /// `dentry.d_subdirs`, or `dentry.d_children` where the siblings are a chain.
    pub dentry_children: u32,
    /// `dentry.d_child`, or `dentry.d_sib` where the siblings are a chain.
    pub dentry_sibling: u32,
    /// 1 where the siblings are a ring through the parent, 0 where they are a chain that ends.
    pub siblings_are_ring: u32,
    /// `inode.i_ino`.
    pub inode_number: u32,
    /// `inode.i_nlink`.
    pub inode_links: u32,
    /// `inode.i_mode`.
    pub inode_mode: u32,
    /// `inode.i_uid`.
    pub inode_owner: u32,
}

/// Words in a [`ReferenceLayout`].
pub const REFERENCE_LAYOUT_WORDS: usize = core::mem::size_of::<ReferenceLayout>() / 4;

const _: () = assert!(core::mem::size_of::<ReferenceState>() == 60);
const _: () = assert!(core::mem::size_of::<ReferenceRecord>() == 24 + WALK_NAME);
