//! A mount table as the pin set keeps it: some numbers for each mount, and all paths in one piece.
//!
//! A host may have a million mounts, and each in pieces of its own would take several times its paths.

use super::id::{Device, Location, MountId, NamespaceId, rest};
use super::mount::{Layer, Mount, MountTable};
use super::pin::{Pin, Role, State};
use std::collections::HashMap;

/// What of a table a pin follows from, by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// The root of a mount.
    Source(u32),
    /// Where a mount is mounted.
    Target(u32),
    /// A layer of a union file system.
    Layer(u32),
}

/// A [`MountTable`] that takes little memory. It gives back exactly what it was made of.
#[derive(Clone, Debug, Default)]
pub(super) struct PackedTable {
    mounts: Box<[PackedMount]>,
    /// Root and point of each mount, one behind the other.
    paths: Box<[u8]>,
    layers: Box<[Layer]>,
}

#[derive(Clone, Copy, Debug)]
struct PackedMount {
    id: MountId,
    parent: MountId,
    peer_group: u64,
    master: u64,
    device: Device,
    /// Index of the parent in the table; [`NOWHERE`] when it is not there.
    parent_at: u32,
    /// Where the root begins among the paths. It ends where the point begins.
    root: u32,
    /// Where the point begins. It ends where the root of the next mount begins.
    point: u32,
    root_deleted: bool,
    has_point: bool,
}

/// No index.
const NOWHERE: u32 = u32::MAX;

fn index(at: usize) -> u32 {
    u32::try_from(at)
        .ok()
        .filter(|at| *at != NOWHERE)
        .expect("a namespace holds fewer than 2^32 mounts and bytes of paths")
}

impl PackedTable {
    /// Packs a table.
    pub(super) fn of(table: &MountTable) -> Self {
        let MountTable { mounts, layers } = table;
        let by_id: HashMap<MountId, usize> = mounts.iter().enumerate().map(|(at, mount)| (mount.id, at)).collect();
        let mut paths = Vec::with_capacity(
            mounts.iter().map(|mount| mount.root.len() + mount.point.as_ref().map_or(0, |point| point.len())).sum(),
        );
        let packed = mounts.iter().map(|mount| {
            let Mount { id, parent, device, root, root_deleted, point, peer_group, master } = mount;
            let begin = index(paths.len());
            paths.extend_from_slice(root);
            let middle = index(paths.len());
            paths.extend_from_slice(point.as_deref().unwrap_or_default());
            PackedMount {
                id: *id,
                parent: *parent,
                peer_group: *peer_group,
                master: *master,
                device: *device,
                parent_at: by_id.get(parent).map_or(NOWHERE, |at| index(*at)),
                root: begin,
                point: middle,
                root_deleted: *root_deleted,
                has_point: point.is_some(),
            }
        });
        Self { mounts: packed.collect(), paths: paths.into_boxed_slice(), layers: layers.as_slice().into() }
    }

    /// The table that this was made of.
    pub(super) fn unpack(&self) -> MountTable {
        let mounts = (0..self.mounts.len()).map(|at| {
            let PackedMount { id, parent, peer_group, master, device, root_deleted, .. } = self.mounts[at];
            let (root, point) = (self.root(at).into(), self.point(at).map(Into::into));
            Mount { id, parent, device, root, root_deleted, point, peer_group, master }
        });
        MountTable { mounts: mounts.collect(), layers: self.layers.to_vec() }
    }

    /// Number of mounts.
    pub(super) fn len(&self) -> usize {
        self.mounts.len()
    }

    /// Layers of union file systems, resolved and not.
    pub(super) fn layers(&self) -> &[Layer] {
        &self.layers
    }

    fn root(&self, at: usize) -> &[u8] {
        let mount = &self.mounts[at];
        &self.paths[mount.root as usize..mount.point as usize]
    }

    fn point(&self, at: usize) -> Option<&[u8]> {
        let mount = &self.mounts[at];
        let end = self.mounts.get(at + 1).map_or(self.paths.len(), |next| next.root as usize);
        mount.has_point.then(|| &self.paths[mount.point as usize..end])
    }

    /// Every place that the table shows to be relied on: roots of mounts, the places that they are mounted on, and those
    /// of resolved layers. A root that was deleted has no place any more, a mount whose point or parent is not seen none
    /// that is known; see [`MountTable::blind_targets`].
    pub(super) fn places(&self, mut visit: impl FnMut(Part, Device, &[u8])) {
        let mut place = Vec::new();
        for at in 0..self.mounts.len() {
            let mount = &self.mounts[at];
            if !mount.root_deleted {
                visit(Part::Source(index(at)), mount.device, self.root(at));
            }
            if let Some(device) = self.target(at, &mut place) {
                visit(Part::Target(index(at)), device, &place);
            }
        }
        for (at, layer) in self.layers.iter().enumerate() {
            for place in &layer.places {
                visit(Part::Layer(index(at)), place.device, &place.path);
            }
        }
    }

    /// Writes where a mount is mounted, as a path in the file system of its parent, which is returned.
    fn target(&self, at: usize, path: &mut Vec<u8>) -> Option<Device> {
        let mount = &self.mounts[at];
        if mount.parent == mount.id || mount.parent_at == NOWHERE {
            return None;
        }
        let parent = mount.parent_at as usize;
        let below = rest(self.point(parent)?, self.point(at)?)?;
        path.clear();
        path.extend_from_slice(self.root(parent));
        if !below.is_empty() {
            if path.last() != Some(&b'/') {
                path.push(b'/');
            }
            path.extend_from_slice(below);
        }
        Some(self.mounts[parent].device)
    }

    /// A pin that follows from the table. A layer that means several places is given at the first of them.
    pub(super) fn pin(&self, namespace: NamespaceId, part: Part) -> Option<Pin> {
        let location = match part {
            Part::Source(at) => Location::of(self.mounts.get(at as usize)?.device, self.root(at as usize)),
            Part::Target(at) => {
                let mut path = Vec::new();
                let device = self.target(at as usize, &mut path)?;
                Location::of(device, path)
            }
            Part::Layer(at) => self.layers.get(at as usize)?.places.first()?.clone(),
        };
        self.pin_at(namespace, part, location)
    }

    /// A pin that follows from the table, at the place that it was found at.
    pub(super) fn pin_at(&self, namespace: NamespaceId, part: Part, location: Location) -> Option<Pin> {
        let (role, mount, mount_point) = match part {
            Part::Layer(at) => {
                let layer = self.layers.get(at as usize)?;
                (Role::Layer, layer.mount, layer.mount_point.clone())
            }
            Part::Source(at) | Part::Target(at) => {
                let role = if matches!(part, Part::Source(_)) { Role::Source } else { Role::Target };
                (role, self.mounts.get(at as usize)?.id, self.point(at as usize).map(Into::into))
            }
        };
        let namespace = Some(namespace);
        Some(Pin { role, location, namespace, mount, mount_point, state: State::Attached, inside: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::mount::Trace;
    use proptest::prelude::*;

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

    fn places(table: MountTable) -> Vec<(Part, Location)> {
        let mut places = Vec::new();
        PackedTable::of(&table).places(|part, device, path| places.push((part, Location::of(device, path))));
        places
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
        assert_eq!(table.blind_targets(), 1);
        let mut targets = places(table);
        targets.retain(|(part, _)| matches!(part, Part::Target(_)));
        let at = |minor, path: &[u8]| Location::of(Device { major: 0, minor }, path);
        assert_eq!(targets, [(Part::Target(1), at(1, b"/mnt")), (Part::Target(2), at(2, b"/inner/a/b"))]);
    }

    #[test]
    fn a_deleted_root_pins_no_name() {
        let mut table = MountTable { mounts: vec![mount(1, 0, 1, b"/a", Some(b"/"))], layers: vec![] };
        assert_eq!(places(table.clone()).len(), 1);
        table.mounts[0].root_deleted = true;
        assert!(places(table).is_empty());
    }

    fn any_mount() -> impl Strategy<Value = Mount> {
        let path = || prop::collection::vec(any::<u8>(), 0..12).prop_map(Vec::into_boxed_slice);
        let numbers = (0..6_u64, 0..6_u64, 0..3_u32, 0..3_u64, 0..3_u64);
        (numbers, path(), prop::option::of(path()), any::<bool>()).prop_map(|(numbers, root, point, root_deleted)| {
            let (id, parent, minor, peer_group, master) = numbers;
            let device = Device { major: 0, minor };
            Mount { id: MountId(id), parent: MountId(parent), device, root, root_deleted, point, peer_group, master }
        })
    }

    proptest! {
        #[test]
        fn a_table_comes_out_as_it_went_in(mounts in prop::collection::vec(any_mount(), 0..8)) {
            let place = Location::of(Device { major: 0, minor: 1 }, *b"/l");
            let layer = Layer {
                mount: MountId(1),
                mount_point: None,
                written: b"l"[..].into(),
                trace: Trace::Nothing,
                places: vec![place],
            };
            let table = MountTable { mounts, layers: vec![layer] };
            prop_assert_eq!(PackedTable::of(&table).unpack(), table);
        }
    }
}
