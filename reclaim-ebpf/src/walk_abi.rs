//! What the walk of a super block's mounts and userspace agree on.

/// The program: a raw tracepoint that is never attached, run on demand with one argument, the descriptor of any file of
/// the file system in the table of the calling task.
pub const WALK_PROGRAM: &str = "walk";
/// Read-only global of type [`WalkLayout`], set before load.
pub const WALK_LAYOUT_GLOBAL: &str = "WALK_LAYOUT";
/// Hash from inode number to a descriptor of the calling task: the directories whose children are entries.
pub const WALK_BASES_MAP: &str = "WALK_BASES";
/// Memory-mappable array of [`WalkRecord`].
pub const WALK_OUTPUT_MAP: &str = "WALK_OUTPUT";
/// Memory-mappable array with one [`WalkState`].
pub const WALK_STATE_MAP: &str = "WALK_STATE";

/// Room for directories whose children are entries.
pub const WALK_BASE_SLOTS: u32 = 1024;
/// Words of a value of that map: the descriptor of the directory, that of the one entry of it that is asked about, or
/// [`WALK_ALL`], and 0, where the program notes the address of the directory's inode.
pub const WALK_BASE_WORDS: usize = 3;
/// No descriptor: all entries of a directory are asked about.
pub const WALK_ALL: u64 = u64::MAX;
/// Records that the object has room for unless userspace makes more.
pub const WALK_RECORDS: u32 = 1024;
/// How many times as many records as there is room for are counted before a walk ends.
pub const WALK_COUNTED: u32 = 8;
/// Steps of one walk: mounts of the file system and mounts on them. More than any kernel allows a namespace by default,
/// and the most that `bpf_loop` takes.
pub const WALK_STEPS: u32 = 1 << 23;
/// How deep below the root of its file system a place may lie.
pub const WALK_DEPTH: u32 = 16_384;
/// Bytes of a structure that are read at once at most, so many but the last eight.
pub const WALK_BLOCK: usize = 1024;
/// Longest name of an entry with its end, NAME_MAX + 1.
pub const WALK_NAME: usize = 256;

/// The walk has not run.
pub const WALK_NOT_RUN: u32 = 0;
/// It came to the end of the list.
pub const WALK_DONE: u32 = 1;
/// The descriptor leads to no file.
pub const WALK_NO_FILE: u32 = 2;
/// The list changed under the walk: a link was poisoned, or led elsewhere.
pub const WALK_BROKEN: u32 = 3;
/// There are more records than there is room for: as many as are told, or [`WALK_COUNTED`] times the room and more.
pub const WALK_FULL: u32 = 4;
/// More steps, or deeper places, than the bounds allow.
pub const WALK_TOO_LONG: u32 = 5;

/// The mount's root is at or below the entry.
pub const WALK_SOURCE: u32 = 1;
/// The mount is mounted on the entry or on something below it.
pub const WALK_TARGET: u32 = 2;

/// It is in the tree of a mount namespace.
pub const WALK_ATTACHED: u32 = 1;
/// It is in a tree of its own that a descriptor holds.
pub const WALK_DETACHED: u32 = 2;
/// It was unmounted and is busy still.
pub const WALK_UNMOUNTED: u32 = 3;
/// The kernel holds it for itself, as overlay holds its layers.
pub const WALK_INTERNAL: u32 = 4;

/// How a walk went. Userspace fills in `capacity`, the program the rest.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WalkState {
    /// Mounts of the file system that were looked at.
    pub mounts: u64,
    /// Mounts on them that were looked at.
    pub children: u64,
    /// Room for records.
    pub capacity: u32,
    /// Records written; with [`WALK_FULL`], those that there would be with room for them, as far as they were counted.
    pub records: u32,
    /// One of the `WALK_*` outcomes.
    pub outcome: u32,
    /// Keeps the size a multiple of eight bytes.
    pub reserved: u32,
}

/// One pinned entry, and the mount that pins it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalkRecord {
    /// Inode number of the directory that the entry is in: one of the bases.
    pub base: u64,
    /// Inode number of the entry.
    pub entry: u64,
    /// The mount, by the id of mountinfo.
    pub mount: u64,
    /// Inode number of the mount namespace; 0 for none.
    pub namespace: u32,
    /// [`WALK_SOURCE`] or [`WALK_TARGET`].
    pub role: u32,
    /// One of the states from [`WALK_ATTACHED`] on.
    pub state: u32,
    /// 1 when the place is the entry itself, 0 when it lies below.
    pub exact: u32,
    /// Name of the entry, ended by a zero byte.
    pub name: [u8; WALK_NAME],
}

/// Byte offsets of kernel structure members, looked up in the running kernel's BTF by userspace.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WalkLayout {
    /// `task_struct.files`.
    pub task_files: u32,
    /// `files_struct.fdt`.
    pub files_fdt: u32,
    /// `fdtable.max_fds`.
    pub fdt_max: u32,
    /// `fdtable.fd`.
    pub fdt_fd: u32,
    /// `file.f_inode`.
    pub file_inode: u32,
    /// `inode.i_sb`.
    pub inode_super: u32,
    /// `inode.i_ino`.
    pub inode_number: u32,
    /// `inode.i_nlink`.
    pub inode_links: u32,
    /// `super_block.s_mounts`.
    pub super_mounts: u32,
    /// `mount.mnt_instance`, a list, or `mount.mnt_next_for_sb`, a pointer: see `mounts_are_list`.
    pub mount_next: u32,
    /// 1 where the mounts of a super block are a `list_head`, 0 where they are a chain of pointers.
    pub mounts_are_list: u32,
    /// `mount.mnt` plus `vfsmount.mnt_root`.
    pub mount_root: u32,
    /// `mount.mnt` plus `vfsmount.mnt_flags`.
    pub mount_flags: u32,
    /// `mount.mnt_parent`.
    pub mount_parent: u32,
    /// `mount.mnt_mountpoint`.
    pub mount_point: u32,
    /// `mount.mnt_mounts`.
    pub mount_children: u32,
    /// `mount.mnt_child`.
    pub mount_child: u32,
    /// `mount.mnt_ns`.
    pub mount_namespace: u32,
    /// `mount.mnt_id`, the id that mount tables show.
    pub mount_id: u32,
    /// `mnt_namespace.ns` plus `ns_common.inum`.
    pub namespace_inum: u32,
    /// The number that is 0 for a namespace that is only a detached tree: `mnt_namespace.seq`, or
    /// `mnt_namespace.ns` plus `ns_common.ns_id`.
    pub namespace_sequence: u32,
    /// `dentry.d_parent`.
    pub dentry_parent: u32,
    /// `dentry.d_inode`.
    pub dentry_inode: u32,
    /// `dentry.d_name` plus `qstr.name`.
    pub dentry_name: u32,
    /// Bytes of a `mount` up to the end of the last of these members.
    pub mount_bytes: u32,
    /// The same of a `dentry`.
    pub dentry_bytes: u32,
    /// Of an `inode`, up to the end of `i_ino` and `i_nlink`.
    pub inode_bytes: u32,
    /// Of a `mnt_namespace`.
    pub namespace_bytes: u32,
    /// Bit of `mnt_flags` for a mount that was unmounted: `MNT_UMOUNT`.
    pub flag_unmounted: u32,
    /// Bit of `mnt_flags` for a mount that is going: `MNT_DOOMED`.
    pub flag_doomed: u32,
}

/// Words in a [`WalkLayout`].
pub const WALK_LAYOUT_WORDS: usize = core::mem::size_of::<WalkLayout>() / 4;

const _: () = assert!(core::mem::size_of::<WalkState>() == 32);
const _: () = assert!(core::mem::size_of::<WalkRecord>() == 40 + WALK_NAME);
const _: () = assert!(core::mem::size_of::<WalkLayout>() == WALK_LAYOUT_WORDS * 4);
