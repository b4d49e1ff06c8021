//! Where the structures that the mount fence reads keep their members.

use crate::evidence::btf::{LayoutError, Types};
use reclaim_ebpf::fence_abi::FenceLayout;

/// The layout of the kernel that BTF bytes describe, and for each hook BTF that tells the number of its function, or None
/// where it has none. Pure.
///
/// # Errors
/// The bytes are malformed or lack something that is needed.
pub(super) fn layout<const HOOKS: usize>(
    bytes: &[u8],
    hooks: [&str; HOOKS],
) -> Result<(FenceLayout, [Option<Vec<u8>>; HOOKS]), LayoutError> {
    const WANTED: [&str; 7] = ["task_struct", "files_struct", "fdtable", "file", "path", "fs_struct", "dentry"];
    let types = Types::index(bytes, &WANTED)?;
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
    let mut numbers = [const { None }; HOOKS];
    for (number, hook) in numbers.iter_mut().zip(hooks) {
        *number = types.with_only(&format!("bpf_lsm_{hook}"))?;
    }
    Ok((layout, numbers))
}

/// The words that the object's global has to hold, in the order of the structure.
pub(super) fn words(layout: &FenceLayout) -> Vec<u32> {
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
    vec![task_files, task_fs, files_fdt, fdt_max, fdt_fd, file_dentry, fs_working, path_dentry, dentry_parent]
}
