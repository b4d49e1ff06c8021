//! One mount of one namespace, as a mount table gives it, and the table of all of them.

use super::id::{Device, Location, MountId, rest};
use std::collections::HashMap;

/// One mount as mountinfo or statmount gives it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Mount {
    /// Identity of the mount, see [`MountId`] for the two kinds. One table holds one kind only.
    pub id: MountId,
    /// The mount it is mounted on, of the same kind of identity. May be absent from the table (the top of a namespace).
    pub parent: MountId,
    /// The super block.
    pub device: Device,
    /// The mount's root inside the file system, without the `//deleted` mark.
    pub root: Box<[u8]>,
    /// The kernel marked the root as deleted: no path leads to it any more, and an entry of the same name is another one.
    pub root_deleted: bool,
    /// Where it is mounted, from the root of the namespace. None where that cannot be reached.
    pub point: Option<Box<[u8]>>,
    /// Peer group that it shares events with; 0 for none.
    pub peer_group: u64,
    /// Peer group that it receives events from; 0 for none.
    pub master: u64,
}

/// The mounts of one namespace at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountTable {
    /// In the order of the kernel.
    pub mounts: Vec<Mount>,
    /// Layers of union file systems that are mounted in this namespace, resolved by whoever read the table.
    pub layers: Vec<Layer>,
}

/// What else than its options tells of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Trace {
    /// The kernel holds a mount of its own on it, which a walk of the super block's mounts sees: lower and upper layers of
    /// overlay, since it clones each privately.
    Mounted,
    /// It holds something as long as the union is mounted: the work directory of overlay.
    Filled,
    /// Nothing.
    Nothing,
}

/// One directory that a union file system (overlay) is made of. Its mount shows only the file system's own root, so the
/// layers come from the options of the super block, as the mounter wrote them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Layer {
    /// A mount of the union file system.
    pub mount: MountId,
    /// Where that mount is mounted.
    pub mount_point: Option<Box<[u8]>>,
    /// What the option said.
    pub written: Box<[u8]>,
    /// What else tells of it.
    pub trace: Trace,
    /// Every place that the option was found to mean. Empty: it could not be resolved, and the layer may be anywhere.
    pub places: Vec<Location>,
}

impl MountTable {
    /// Number of mounts that are mounted on a mount of this table at a point that is not known: their target pins are
    /// missing, so the table cannot be called complete while it is above zero.
    #[must_use]
    pub fn blind_targets(&self) -> usize {
        let by_id: HashMap<MountId, usize> = self.mounts.iter().enumerate().map(|(i, m)| (m.id, i)).collect();
        self.mounts
            .iter()
            .filter(|mount| {
                let parent = by_id.get(&mount.parent).map(|at| &self.mounts[*at]).filter(|_| mount.parent != mount.id);
                let is_seen = |parent: &Mount| {
                    parent.point.as_deref().zip(mount.point.as_deref()).and_then(|(above, point)| rest(above, point))
                };
                parent.is_some_and(|parent| is_seen(parent).is_none())
            })
            .count()
    }
}
