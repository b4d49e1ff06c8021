//! Where the structures that the mount fence reads keep their members.

use crate::evidence::btf::{LayoutError, Types};
use reclaim_ebpf::fence_abi::FenceLayout;

/// The kernel's functions that the hooks of a bind call, in the order of the fence's programs.
pub(super) const HOOKS: [&str; 2] = ["bpf_lsm_move_mount", "bpf_lsm_sb_mount"];

/// What the programs need to know of a kernel.
#[derive(Clone, Debug)]
pub(in crate::evidence) struct FenceTypes {
    /// Offsets.
    pub(super) layout: FenceLayout,
    /// The numbers of the types of [`HOOKS`]; none where there is no such hook.
    pub(super) hooks: [Option<u32>; 2],
}

/// The structures that [`layout`] looks into.
pub(in crate::evidence) const WANTED: [&str; 7] =
    ["task_struct", "files_struct", "fdtable", "file", "path", "fs_struct", "dentry"];

/// What the kernel's types tell. Pure.
///
/// # Errors
/// The types are malformed or lack something that is needed.
pub(in crate::evidence) fn layout(types: &Types<'_>) -> Result<FenceTypes, LayoutError> {
    let layout = FenceLayout {
        task_files: types.offset("task_struct", &["files"])?,
        task_fs: types.offset("task_struct", &["fs"])?,
        files_fdt: types.offset("files_struct", &["fdt"])?,
        fdt_max: types.offset("fdtable", &["max_fds"])?,
        fdt_fd: types.offset("fdtable", &["fd"])?,
        file_dentry: types.offset("file", &["f_path", "dentry"])?,
        fs_working: types.offset("fs_struct", &["pwd", "dentry"])?,
        path_dentry: types.offset("path", &["dentry"])?,
        dentry_parent: types.offset("dentry", &["d_parent"])?,
    };
    let [moving, binding] = HOOKS;
    Ok(FenceTypes { layout, hooks: [types.function(moving)?, types.function(binding)?] })
}

/// The bytes that the object's global has to hold, in the order of the structure.
pub(super) fn bytes(layout: &FenceLayout) -> Vec<u8> {
    let FenceLayout {
        task_files,
        task_fs,
        files_fdt,
        fdt_max,
        fdt_fd,
        file_dentry,
        fs_working,
        path_dentry,
        dentry_parent,
    } = *layout;
    let words = [task_files, task_fs, files_fdt, fdt_max, fdt_fd, file_dentry, fs_working, path_dentry, dentry_parent];
    words.map(u32::to_ne_bytes).concat()
}
