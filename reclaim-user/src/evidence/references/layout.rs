//! Where the structures that lead to references keep their members.

use super::ReferenceError;
use crate::evidence::btf::{self, LayoutError, Types};
use aya::Btf;
use reclaim_ebpf::reference_abi::ReferenceLayout;
use std::sync::{Arc, Mutex, PoisonError};

/// The type of the kernel that the iterator over threads belongs to.
pub(in crate::evidence) const ITERATOR: &str = "bpf_iter_task";

/// The type information that programs of the iterator are loaded with. It takes some megabytes and is the same for all of
/// them, so it is kept from one to the next.
static KEPT: Mutex<Option<Arc<Btf>>> = Mutex::new(None);

/// The type information that a program of the iterator over threads is loaded with, given the iterator's number.
pub(in crate::evidence) fn iterator_types(number: u32) -> Result<Arc<Btf>, ReferenceError> {
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(types) = &*kept {
        return Ok(Arc::clone(types));
    }
    let types = Btf::parse(&btf::only(ITERATOR, number)?, aya::Endianness::default())?;
    Ok(Arc::clone(kept.insert(Arc::new(types))))
}

/// Gives the memory of [`iterator_types`] back, until they are asked for again.
pub(in crate::evidence) fn forget_iterator_types() {
    *KEPT.lock().unwrap_or_else(PoisonError::into_inner) = None;
}

/// What the programs need to know of a kernel.
#[derive(Clone, Debug)]
pub(in crate::evidence) struct ReferenceTypes {
    /// Offsets.
    pub(super) layout: ReferenceLayout,
    /// The number of the type that the iterator over threads belongs to; none where there is no such iterator.
    pub(in crate::evidence) iterator: Option<u32>,
}

/// The structures that [`layout`] looks into.
pub(in crate::evidence) const WANTED: [&str; 10] =
    ["task_struct", "files_struct", "fdtable", "file", "path", "fs_struct", "mm_struct", "dentry", "qstr", "inode"];

/// What the kernel's types tell. Pure.
///
/// # Errors
/// The types are malformed or lack something that is needed.
pub(in crate::evidence) fn layout(types: &Types<'_>) -> Result<ReferenceTypes, LayoutError> {
    // A ring through the parent up to 6.7, a chain from then on. The member tells.
    let (dentry_children, dentry_sibling, siblings_are_ring) = match types.offset("dentry", &["d_children"]) {
        Ok(children) => (children, types.offset("dentry", &["d_sib"])?, 0),
        Err(LayoutError::MissingMember { .. }) => {
            (types.offset("dentry", &["d_subdirs"])?, types.offset("dentry", &["d_child"])?, 1)
        }
        Err(error) => return Err(error),
    };
    let layout = ReferenceLayout {
        task_tgid: types.offset("task_struct", &["tgid"])?,
        task_leader: types.offset("task_struct", &["group_leader"])?,
        task_files: types.offset("task_struct", &["files"])?,
        task_fs: types.offset("task_struct", &["fs"])?,
        task_mm: types.offset("task_struct", &["mm"])?,
        files_fdt: types.offset("files_struct", &["fdt"])?,
        fdt_max: types.offset("fdtable", &["max_fds"])?,
        fdt_fd: types.offset("fdtable", &["fd"])?,
        fdt_open: types.offset("fdtable", &["open_fds"])?,
        file_dentry: types.offset("file", &["f_path", "dentry"])?,
        fs_working: types.offset("fs_struct", &["pwd", "dentry"])?,
        fs_root: types.offset("fs_struct", &["root", "dentry"])?,
        mm_executable: types.offset("mm_struct", &["exe_file"])?,
        dentry_super: types.offset("dentry", &["d_sb"])?,
        dentry_parent: types.offset("dentry", &["d_parent"])?,
        dentry_inode: types.offset("dentry", &["d_inode"])?,
        dentry_name: types.offset("dentry", &["d_name", "name"])?,
        dentry_count: types.offset("dentry", &["d_lockref", "count"])?,
        dentry_children,
        dentry_sibling,
        siblings_are_ring,
        inode_number: types.offset("inode", &["i_ino"])?,
        inode_links: types.offset("inode", &["i_nlink"])?,
        inode_mode: types.offset("inode", &["i_mode"])?,
        inode_owner: types.offset("inode", &["i_uid"])?,
    };
    Ok(ReferenceTypes { layout, iterator: types.function(ITERATOR)? })
}

/// The bytes that the object's global has to hold, in the order of the structure.
pub(super) fn bytes(layout: &ReferenceLayout) -> Vec<u8> {
    let ReferenceLayout {
        task_tgid,
        task_leader,
        task_files,
        task_fs,
        task_mm,
        files_fdt,
        fdt_max,
        fdt_fd,
        fdt_open,
        file_dentry,
        fs_working,
        fs_root,
        mm_executable,
        dentry_super,
        dentry_parent,
        dentry_inode,
        dentry_name,
        dentry_count,
        dentry_children,
        dentry_sibling,
        siblings_are_ring,
        inode_number,
        inode_links,
        inode_mode,
        inode_owner,
    } = *layout;
    let words = [
        task_tgid,
        task_leader,
        task_files,
        task_fs,
        task_mm,
        files_fdt,
        fdt_max,
        fdt_fd,
        fdt_open,
        file_dentry,
        fs_working,
        fs_root,
        mm_executable,
        dentry_super,
        dentry_parent,
        dentry_inode,
        dentry_name,
        dentry_count,
        dentry_children,
        dentry_sibling,
        siblings_are_ring,
        inode_number,
        inode_links,
        inode_mode,
        inode_owner,
    ];
    words.map(u32::to_ne_bytes).concat()
}
