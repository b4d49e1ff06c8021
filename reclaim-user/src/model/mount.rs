//! One mount of one namespace, as a mount table gives it, and the pins that follow from a table.

use super::id::{Device, Location, MountId, NamespaceId, join, rest};
use super::pin::{Pin, Role, State};
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
    /// Where each mount of the table is mounted, as a place in the file system of its parent. Mounts without a known
    /// place are left out: the top of the namespace, and mounts whose point or parent cannot be seen.
    #[must_use]
    pub fn targets(&self) -> Vec<(usize, Location)> {
        let by_id: HashMap<MountId, usize> = self.mounts.iter().enumerate().map(|(i, m)| (m.id, i)).collect();
        let mut targets = Vec::with_capacity(self.mounts.len());
        for (index, mount) in self.mounts.iter().enumerate() {
            if let Some(location) = self.target(mount, &by_id) {
                targets.push((index, location));
            }
        }
        targets
    }

    /// Number of mounts that are mounted on a mount of this table at a point that is not known: their target pins are
    /// missing, so the table cannot be called complete while it is above zero.
    #[must_use]
    pub fn blind_targets(&self) -> usize {
        let by_id: HashMap<MountId, usize> = self.mounts.iter().enumerate().map(|(i, m)| (m.id, i)).collect();
        self.mounts
            .iter()
            .filter(|m| m.parent != m.id && by_id.contains_key(&m.parent) && self.target(m, &by_id).is_none())
            .count()
    }

    /// Where one mount of the table is mounted, as a place in the file system of its parent.
    #[must_use]
    pub fn target_of(&self, mount: &Mount) -> Option<Location> {
        let parent = self.mounts.iter().find(|other| other.id == mount.parent)?;
        self.target(mount, &HashMap::from([(parent.id, self.mounts.iter().position(|other| other.id == parent.id)?)]))
    }

    fn target(&self, mount: &Mount, by_id: &HashMap<MountId, usize>) -> Option<Location> {
        if mount.parent == mount.id {
            return None;
        }
        let parent = &self.mounts[*by_id.get(&mount.parent)?];
        let below = rest(parent.point.as_deref()?, mount.point.as_deref()?)?;
        Some(Location { device: parent.device, path: join(&parent.root, below) })
    }

    /// Every pin that this table proves: sources, targets, and resolved layers.
    ///
    /// Unresolved layers are not pins of a place; see [`Layer::places`] and [`super::pin_set::PinSet::doubt`].
    #[must_use]
    pub fn pins(&self, namespace: NamespaceId) -> Vec<Pin> {
        let mut pins = Vec::with_capacity(self.mounts.len() * 2 + self.layers.len());
        let pin = |role, location, mount: MountId, mount_point: &Option<Box<[u8]>>| Pin {
            role,
            location,
            namespace: Some(namespace),
            mount,
            mount_point: mount_point.clone(),
            state: State::Attached,
            inside: false,
        };
        for mount in self.mounts.iter().filter(|mount| !mount.root_deleted) {
            let location = Location { device: mount.device, path: mount.root.clone() };
            pins.push(pin(Role::Source, location, mount.id, &mount.point));
        }
        for (index, location) in self.targets() {
            let mount = &self.mounts[index];
            pins.push(pin(Role::Target, location, mount.id, &mount.point));
        }
        for layer in &self.layers {
            for place in &layer.places {
                pins.push(pin(Role::Layer, place.clone(), layer.mount, &layer.mount_point));
            }
        }
        pins
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(id: u64, parent: u64, minor: u32, root: &[u8], point: Option<&[u8]>) -> Mount {
        Mount {
            id: MountId(id),
            parent: MountId(parent),
            device: Device { major: 0, minor },
            root: root.into(),
            root_deleted: false,
            point: point.map(Into::into),
            peer_group: 0,
            master: 0,
        }
    }

    #[test]
    fn a_target_is_a_place_in_the_file_system_of_its_parent() {
        let table = MountTable {
            mounts: vec![
                mount(1, 0, 1, b"/", Some(b"/")),
                mount(2, 1, 2, b"/inner", Some(b"/mnt")),
                mount(3, 2, 3, b"/", Some(b"/mnt/a/b")),
                mount(4, 2, 3, b"/", None),
            ],
            layers: vec![],
        };
        let device = Device { major: 0, minor: 2 };
        let targets = table.targets();
        assert_eq!(targets.len(), 2);
        assert_eq!(targets[1], (2, Location::of(device, *b"/inner/a/b")));
        assert_eq!(table.blind_targets(), 1);
    }

    #[test]
    fn a_deleted_root_pins_no_name() {
        let mut table = MountTable { mounts: vec![mount(1, 0, 1, b"/a", Some(b"/"))], layers: vec![] };
        assert_eq!(table.pins(NamespaceId(7)).len(), 1);
        table.mounts[0].root_deleted = true;
        assert!(table.pins(NamespaceId(7)).is_empty());
    }
}
