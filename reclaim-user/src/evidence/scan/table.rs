//! One mount table, from the text of mountinfo or from listmount and statmount.

use crate::evidence::layers::{Union, UnionKey, may_stall};
use crate::model::id::MountId;
use crate::model::mount::Mount;
use crate::model::mountinfo::{MountinfoError, rows, split_deleted};
use crate::model::overlay::{self, WrittenLayer};
use crate::sys::mount_list::{self, Answer, Ask, From, MountStatus};
use nix::errno::Errno;
use std::collections::{HashMap, HashSet};

/// A mount table with what its own text says beyond mounts. Mounts carry the ids of mountinfo, however it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Table {
    pub(super) mounts: Vec<Mount>,
    pub(super) unions: Vec<Union>,
    /// Indices of mounts on which a look-up may wait for somebody.
    pub(super) stalling: Vec<usize>,
    /// Indices and inode numbers of mounted mount namespaces.
    pub(super) namespaces: Vec<(usize, u64)>,
}

impl Table {
    /// Reads the text of a mountinfo file.
    pub(super) fn parse(text: &[u8]) -> Result<Self, MountinfoError> {
        let mut table = Self::default();
        for row in rows(text) {
            let row = row?;
            let layers = || overlay::layers(row.fs_type, Some(row.source), Some(row.options));
            table.push(row.mount(), row.fs_type, layers);
        }
        Ok(table)
    }

    /// Reads a namespace by its kernel id through listmount and statmount, from its absolute top.
    ///
    /// Mount points are those that can be seen from the root that the kernel takes the namespace to have: the caller's
    /// root when it is the caller's namespace, which `entered` says to be the namespace's own root; else the first
    /// mount on the top, which is the root unless the top itself serves as one (a host that runs from its initramfs).
    pub(super) fn list(namespace: u64, entered: bool, answer: &mut Answer) -> nix::Result<Self> {
        let top = top(namespace, answer)?;
        let mut table = Self::default();
        // Seen from inside it is clear what the top is: something lies on its root. So its other children can be judged.
        let top_too = entered.then_some(top);
        for unique in top_too.into_iter().chain(mount_list::list(namespace, From::Mount(top))?) {
            let (mount, fs_type) = match mount_list::status(namespace, unique, Ask::Mount, answer) {
                Ok(status) => (mount(&status).ok_or(Errno::EBADMSG)?, status.fs_type.ok_or(Errno::EBADMSG)?.to_vec()),
                // It was unmounted meanwhile. If the whole namespace has gone, the next list would say so.
                Err(Errno::ENOENT) => continue,
                Err(errno) => return Err(errno),
            };
            table.push(mount, &fs_type, || {
                let status = mount_list::status(namespace, unique, Ask::Options, answer);
                let (source, options) = status.map_or((None, None), |status| (status.source, status.options));
                overlay::layers(&fs_type, source, options)
            });
        }
        // A namespace that went halfway leaves a table of nothing, or of less than there was.
        mount_list::list(namespace, From::Mount(top))?;
        if entered {
            table.raise_covered_roots();
        }
        Ok(table)
    }

    /// Number of mounts of the table that listmount would give: all but the top of the namespace.
    pub(super) fn below_top(&self) -> usize {
        self.mounts.iter().filter(|mount| mount.id != mount.parent).count()
    }

    /// Whether the mount point of every mount is known.
    pub(super) fn sees_all_points(&self) -> bool {
        self.mounts.iter().all(|mount| mount.point.is_some())
    }

    /// Adds the mounts of another table that this one does not have.
    pub(super) fn merge(&mut self, other: Self) {
        let Self { mounts, unions, stalling, namespaces } = other;
        let known: HashSet<MountId> = self.mounts.iter().map(|mount| mount.id).collect();
        let mut at = HashMap::new();
        for (index, mount) in mounts.into_iter().enumerate().filter(|(_, mount)| !known.contains(&mount.id)) {
            at.insert(index, self.mounts.len());
            self.mounts.push(mount);
        }
        let place = |index: usize| at.get(&index).copied();
        let unions = unions.into_iter().filter_map(|union| Some(Union { index: place(union.index)?, ..union }));
        self.unions.extend(unions);
        self.stalling.extend(stalling.into_iter().filter_map(place));
        self.namespaces.extend(namespaces.into_iter().filter_map(|(index, id)| Some((place(index)?, id))));
    }

    fn push(&mut self, mount: Mount, fs_type: &[u8], layers: impl FnOnce() -> Vec<WrittenLayer>) {
        let index = self.mounts.len();
        if overlay::is_union(fs_type) {
            self.unions.push(Union { index, key: UnionKey { device: mount.device, layers: layers() } });
        } else if fs_type == b"nsfs" {
            self.namespaces.extend(crate::evidence::procfs::namespace_number(&mount.root, "mnt").map(|id| (index, id)));
        } else if may_stall(fs_type) {
            self.stalling.push(index);
        }
        self.mounts.push(mount);
    }

    /// Gives mounts under the root of the namespace the point `/`. The kernel shows none for them, and yet it is known:
    /// the root of a namespace is found by going up from its top over all that is mounted on `/`.
    fn raise_covered_roots(&mut self) {
        let by_id: HashMap<MountId, usize> = self.mounts.iter().enumerate().map(|(index, m)| (m.id, index)).collect();
        let is_root = |mount: &Mount| mount.point.as_deref() == Some(b"/");
        let mut roots: Vec<usize> = (0..self.mounts.len()).filter(|index| is_root(&self.mounts[*index])).collect();
        while let Some(root) = roots.pop() {
            if let Some(below) = by_id.get(&self.mounts[root].parent)
                && self.mounts[*below].point.is_none()
            {
                self.mounts[*below].point = Some(b"/"[..].into());
                roots.push(*below);
            }
        }
    }
}

/// Number of mounts that a namespace has below its top.
pub(super) fn count(namespace: u64, answer: &mut Answer) -> nix::Result<usize> {
    let top = top(namespace, answer)?;
    Ok(mount_list::list(namespace, From::Mount(top))?.len())
}

/// The mount that everything else in a namespace is mounted on, which no list names.
fn top(namespace: u64, answer: &mut Answer) -> nix::Result<u64> {
    let mut mount = *mount_list::list(namespace, From::Root)?.first().ok_or(Errno::ENOENT)?;
    loop {
        let parent = mount_list::status(namespace, mount, Ask::Mount, answer)?.unique_parent;
        if parent == mount {
            return Ok(mount);
        }
        mount = parent;
    }
}

fn mount(status: &MountStatus<'_>) -> Option<Mount> {
    let (root, root_deleted) = split_deleted(status.root?.into());
    Some(Mount {
        id: status.id,
        parent: status.parent,
        device: status.device,
        root,
        root_deleted,
        point: status.point.map(Into::into),
        peer_group: status.peer_group,
        master: status.master,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Table {
        Table::parse(text.as_bytes()).expect("the text is valid")
    }

    #[test]
    fn what_a_root_lies_on_is_at_the_root_too() {
        let mut table = parsed(
            "1 1 0:2 / /x rw - rootfs r rw\n2 1 0:3 / /x rw - ext4 r rw\n3 2 0:4 / / rw - tmpfs r rw\n4 1 0:5 / /x rw - proc p rw",
        );
        // Only the mount on top can be reached.
        for hidden in [0, 1, 3] {
            table.mounts[hidden].point = None;
        }
        table.raise_covered_roots();
        let points: Vec<_> = table.mounts.iter().map(|mount| mount.point.as_deref()).collect();
        assert_eq!(points, [Some(&b"/"[..]), Some(b"/"), Some(b"/"), None]);
        assert!(!table.sees_all_points());
        assert_eq!(table.below_top(), 3);
    }

    #[test]
    fn merging_keeps_indices_with_their_mounts() {
        let mut table = parsed("1 1 0:2 / / rw - ext4 r rw\n");
        let other = "1 1 0:2 / / rw - ext4 r rw\n5 1 0:5 / /o rw - overlay o rw,lowerdir=/l\n6 1 0:6 / /f rw - fuse.x f rw\n\
                     7 1 0:7 mnt:[4026532000] /n rw - nsfs n rw\n";
        table.merge(parsed(other));
        assert_eq!(table.mounts.len(), 4);
        assert_eq!((table.unions[0].index, table.stalling[0], table.namespaces[0]), (1, 2, (3, 4_026_532_000)));
        table.merge(parsed(other));
        assert_eq!((table.mounts.len(), table.unions.len()), (4, 1));
    }
}
