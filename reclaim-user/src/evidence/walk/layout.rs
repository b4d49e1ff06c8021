//! Where the structures that the walk reads keep their members.

use crate::evidence::btf::{LayoutError, Types};
use reclaim_ebpf::walk_abi::{WALK_BLOCK, WalkLayout};

/// `MNT_DOOMED` and `MNT_UMOUNT` of <include/linux/mount.h>, the same since 3.13. They decide only what state a pin is
/// shown in.
const FLAG_DOOMED: u32 = 0x0100_0000;
const FLAG_UNMOUNTED: u32 = 0x0800_0000;

/// The structures that [`layout`] looks into.
pub(in crate::evidence) const WANTED: [&str; 12] = [
    "task_struct",
    "files_struct",
    "fdtable",
    "file",
    "inode",
    "super_block",
    "mount",
    "vfsmount",
    "mnt_namespace",
    "ns_common",
    "dentry",
    "qstr",
];

/// The layout of the kernel that types describe. Pure.
///
/// # Errors
/// The types are malformed or lack something that the walk needs.
pub(in crate::evidence) fn layout(types: &Types<'_>) -> Result<WalkLayout, LayoutError> {
    // A list_head through `mnt_instance` up to about 6.16, a chain of pointers from then on. The member tells.
    let (mount_next, mounts_are_list) = match types.offset("mount", &["mnt_next_for_sb"]) {
        Ok(offset) => (offset, 0),
        Err(LayoutError::MissingMember { .. }) => (types.offset("mount", &["mnt_instance"])?, 1),
        Err(error) => return Err(error),
    };
    let namespace_sequence = match types.offset("mnt_namespace", &["seq"]) {
        Err(LayoutError::MissingMember { .. }) => types.offset("mnt_namespace", &["ns", "ns_id"])?,
        found => found?,
    };
    let mut layout = WalkLayout {
        task_files: types.offset("task_struct", &["files"])?,
        files_fdt: types.offset("files_struct", &["fdt"])?,
        fdt_max: types.offset("fdtable", &["max_fds"])?,
        fdt_fd: types.offset("fdtable", &["fd"])?,
        file_inode: types.offset("file", &["f_inode"])?,
        inode_super: types.offset("inode", &["i_sb"])?,
        inode_number: types.offset("inode", &["i_ino"])?,
        inode_links: types.offset("inode", &["i_nlink"])?,
        super_mounts: types.offset("super_block", &["s_mounts"])?,
        mount_next,
        mounts_are_list,
        mount_root: types.offset("mount", &["mnt", "mnt_root"])?,
        mount_flags: types.offset("mount", &["mnt", "mnt_flags"])?,
        mount_parent: types.offset("mount", &["mnt_parent"])?,
        mount_point: types.offset("mount", &["mnt_mountpoint"])?,
        mount_children: types.offset("mount", &["mnt_mounts"])?,
        mount_child: types.offset("mount", &["mnt_child"])?,
        mount_namespace: types.offset("mount", &["mnt_ns"])?,
        mount_id: types.offset("mount", &["mnt_id"])?,
        namespace_inum: types.offset("mnt_namespace", &["ns", "inum"])?,
        namespace_sequence,
        dentry_parent: types.offset("dentry", &["d_parent"])?,
        dentry_inode: types.offset("dentry", &["d_inode"])?,
        dentry_name: types.offset("dentry", &["d_name", "name"])?,
        flag_unmounted: FLAG_UNMOUNTED,
        flag_doomed: FLAG_DOOMED,
        ..WalkLayout::default()
    };
    let WalkLayout { mount_root, mount_flags, mount_parent, mount_point, mount_children, mount_child, .. } = layout;
    let of_mount = [mount_root, mount_flags, mount_parent, mount_point, mount_children, mount_child];
    let of_mount = of_mount.into_iter().chain([layout.mount_next, layout.mount_namespace, layout.mount_id]);
    layout.mount_bytes = bytes_to_last("mount", of_mount)?;
    let of_dentry = [layout.dentry_parent, layout.dentry_inode, layout.dentry_name];
    layout.dentry_bytes = bytes_to_last("dentry", of_dentry)?;
    layout.inode_bytes = bytes_to_last("inode", [layout.inode_number, layout.inode_links])?;
    layout.namespace_bytes = bytes_to_last("mnt_namespace", [layout.namespace_inum, layout.namespace_sequence])?;
    Ok(layout)
}

/// Bytes of a structure to the end of the last of these members, of which none has more than eight.
fn bytes_to_last(structure: &'static str, members: impl IntoIterator<Item = u32>) -> Result<u32, LayoutError> {
    let last = members.into_iter().max().unwrap_or_default();
    let bytes = last.checked_add(8).filter(|bytes| *bytes as usize <= WALK_BLOCK - 8);
    bytes.ok_or(LayoutError::TooLarge { structure })
}

/// The bytes that the object's global has to hold, in the order of the structure.
pub(super) fn bytes(layout: &WalkLayout) -> Vec<u8> {
    let WalkLayout {
        task_files,
        files_fdt,
        fdt_max,
        fdt_fd,
        file_inode,
        inode_super,
        inode_number,
        inode_links,
        super_mounts,
        mount_next,
        mounts_are_list,
        mount_root,
        mount_flags,
        mount_parent,
        mount_point,
        mount_children,
        mount_child,
        mount_namespace,
        mount_id,
        namespace_inum,
        namespace_sequence,
        dentry_parent,
        dentry_inode,
        dentry_name,
        mount_bytes,
        dentry_bytes,
        inode_bytes,
        namespace_bytes,
        flag_unmounted,
        flag_doomed,
    } = *layout;
    let words = [
        task_files,
        files_fdt,
        fdt_max,
        fdt_fd,
        file_inode,
        inode_super,
        inode_number,
        inode_links,
        super_mounts,
        mount_next,
        mounts_are_list,
        mount_root,
        mount_flags,
        mount_parent,
        mount_point,
        mount_children,
        mount_child,
        mount_namespace,
        mount_id,
        namespace_inum,
        namespace_sequence,
        dentry_parent,
        dentry_inode,
        dentry_name,
        mount_bytes,
        dentry_bytes,
        inode_bytes,
        namespace_bytes,
        flag_unmounted,
        flag_doomed,
    ];
    words.map(u32::to_ne_bytes).concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_of_a_structure_is_read_than_there_is_room_for() {
        assert_eq!(bytes_to_last("mount", [40, 1_008, 16]).unwrap(), 1_016);
        for too_far in [1_012, 1_016, 1_024, u32::MAX] {
            let refused = bytes_to_last("mount", [too_far, 16]);
            assert!(matches!(refused, Err(LayoutError::TooLarge { structure: "mount" })), "{too_far}: {refused:?}");
        }
    }
}
