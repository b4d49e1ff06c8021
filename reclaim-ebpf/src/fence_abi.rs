//! What the mount fence and userspace agree on.

/// Refuses `move_mount` of what lies in a store; for the hook of that name.
pub const FENCE_MOVE_PROGRAM: &str = "fence_move_mount";
/// Refuses a bind by `mount` of what lies in a store; for the hook `sb_mount`.
pub const FENCE_BIND_PROGRAM: &str = "fence_sb_mount";
/// A raw tracepoint that is never attached, run on demand: notes the directory behind the descriptor that is its first
/// argument, in the table of the calling task, as a store of the calling process.
pub const FENCE_STORE_PROGRAM: &str = "fence_store";
/// Read-only global of type [`FenceLayout`], set before load.
pub const FENCE_LAYOUT_GLOBAL: &str = "FENCE_LAYOUT";
/// Hash from the kernel's address of a store to the process that keeps it. Its user keeps each store open as long as it
/// is in there, for the kernel gives the address to another directory afterwards.
pub const FENCE_STORES_MAP: &str = "FENCE_STORES";

/// Room for stores.
pub const FENCE_STORE_SLOTS: u32 = 16;
/// How deep below a store, or else below the root of its file system, a place may lie. What lies deeper is let through.
pub const FENCE_DEPTH: u32 = 4096;
/// Bytes of a name that are looked at. Enough for every name that leads through a descriptor.
pub const FENCE_NAME: usize = 40;

/// Byte offsets of kernel structure members, looked up in the running kernel's BTF by userspace.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FenceLayout {
    /// `task_struct.files`.
    pub task_files: u32,
    /// `task_struct.fs`.
    pub task_fs: u32,
    /// `files_struct.fdt`.
    pub files_fdt: u32,
    /// `fdtable.max_fds`.
    pub fdt_max: u32,
    /// `fdtable.fd`.
    pub fdt_fd: u32,
    /// `file.f_path` plus `path.dentry`.
    pub file_dentry: u32,
    /// `fs_struct.pwd` plus `path.dentry`.
    pub fs_working: u32,
    /// `path.dentry`.
    pub path_dentry: u32,
    /// `dentry.d_parent`.
    pub dentry_parent: u32,
}

/// Words in a [`FenceLayout`].
pub const FENCE_LAYOUT_WORDS: usize = core::mem::size_of::<FenceLayout>() / 4;

const _: () = assert!(core::mem::size_of::<FenceLayout>() == FENCE_LAYOUT_WORDS * 4);
