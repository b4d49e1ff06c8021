//! Layers of union file systems: from what a mounter wrote to the places that it names.
//!
//! A path is looked up in the namespace that shows the mount and in reclaim's own, and every place found counts: which
//! one the mounter meant is not known any more. Where no look-up leads anywhere, the layer may be anywhere.

use super::ground::locate;
use super::procfs::Procfs;
use crate::model::id::{Device, Location, join, rest};
use crate::model::mount::{Layer, Mount};
use crate::model::overlay::WrittenLayer;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2};
use std::collections::HashMap;

/// Unresolved layers are looked up in this many namespaces that show them, and no more.
const NAMESPACES_TRIED: u32 = 4;

/// A mount of a union file system, as a table shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Union {
    /// Index of the mount in its table.
    pub(crate) index: usize,
    pub(crate) key: UnionKey,
}

/// The super block and what its options say: one super block has one set of layers in every namespace, but device
/// numbers are used again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct UnionKey {
    pub(crate) device: Device,
    pub(crate) layers: Vec<WrittenLayer>,
}

/// The view that paths are looked up in: that of the calling thread.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) procfs: &'a Procfs,
    /// The table of the calling thread's namespace, seen from its root.
    pub(crate) mounts: &'a [Mount],
    /// Indices of mounts on which a look-up may wait for somebody: see [`may_stall`].
    pub(crate) stalling: &'a [usize],
}

#[derive(Clone, Debug)]
struct Resolved {
    layer: WrittenLayer,
    places: Vec<Location>,
    /// Some look-up led to an existing place.
    found: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    layers: Vec<Resolved>,
    tried: u32,
}

/// Layers by super block, so that each is looked up once however many namespaces show it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layers {
    known: HashMap<UnionKey, Entry>,
}

impl Layers {
    /// Whether a super block was looked up before, in any view.
    pub(crate) fn knows(&self, key: &UnionKey) -> bool {
        self.known.contains_key(key)
    }

    /// Takes a super block in without a look-up: nobody is in a namespace that shows it.
    pub(crate) fn note(&mut self, key: &UnionKey) -> &mut Entry {
        self.known.entry(key.clone()).or_insert_with(|| Entry { layers: unresolved(key), tried: 0 })
    }

    /// Looks up the layers of a super block in the view of a namespace that shows it.
    pub(crate) fn look_up(&mut self, key: &UnionKey, view: View<'_>) {
        let entry = self.note(key);
        if entry.tried < NAMESPACES_TRIED && entry.layers.iter().any(|layer| !layer.found) {
            entry.tried += 1;
            entry.layers.iter_mut().for_each(|layer| layer.look_up(view));
        }
    }

    /// Takes in what somebody else looked up, in other views.
    pub(crate) fn merge(&mut self, other: Self) {
        for (key, Entry { layers, tried }) in other.known {
            let entry = self.note(&key);
            entry.tried += tried;
            // The key says which layers there are, and in which order.
            for (layer, Resolved { places, found, .. }) in entry.layers.iter_mut().zip(layers) {
                layer.found |= found;
                for place in places {
                    if !layer.places.contains(&place) {
                        layer.places.push(place);
                    }
                }
            }
        }
    }

    /// Looks up everything once more in one view, found or not: reclaim's own.
    pub(crate) fn look_up_all(&mut self, view: View<'_>) {
        self.known.values_mut().flat_map(|entry| &mut entry.layers).for_each(|layer| layer.look_up(view));
    }

    /// What is known, as layers of one table.
    pub(crate) fn of(&self, unions: &[Union], mounts: &[Mount]) -> Vec<Layer> {
        let mut layers = Vec::new();
        for Union { index, key } in unions {
            let mount = &mounts[*index];
            let layer = |written: &[u8], trace, places| Layer {
                mount: mount.id,
                mount_point: mount.point.clone(),
                written: written.into(),
                trace,
                places,
            };
            let resolved = self.known.get(key).map_or_else(|| unresolved(key), |entry| entry.layers.clone());
            for resolved in resolved {
                let written = &resolved.layer.written;
                if !resolved.places.is_empty() {
                    layers.push(layer(written, resolved.layer.trace, resolved.places.clone()));
                }
                // A name that nothing answers to any more says where the layer was, not where it is.
                if !resolved.found && !resolved.layer.doubtful {
                    layers.push(layer(written, resolved.layer.trace, vec![]));
                }
            }
        }
        layers
    }
}

fn unresolved(key: &UnionKey) -> Vec<Resolved> {
    key.layers.iter().map(|layer| Resolved { layer: layer.clone(), places: vec![], found: false }).collect()
}

impl Resolved {
    fn look_up(&mut self, view: View<'_>) {
        for path in std::iter::once(&self.layer.written).chain(&self.layer.otherwise) {
            let opened = open(path, view).and_then(|file| locate(&file, view.procfs, view.mounts).ok());
            self.found |= opened.is_some();
            let by_name = textual(path, view.mounts);
            for place in opened.map(|ground| ground.location).into_iter().chain(by_name) {
                if !self.places.contains(&place) {
                    self.places.push(place);
                }
            }
        }
    }
}

/// Whether a look-up on a file system of this type may wait for a server or for another process. Whoever runs that
/// process must not be able to hold reclaim up.
pub(crate) fn may_stall(fs_type: &[u8]) -> bool {
    const TYPES: [&[u8]; 12] =
        [b"fuse", b"fuseblk", b"nfs", b"nfs4", b"cifs", b"smb3", b"9p", b"ceph", b"afs", b"autofs", b"coda", b"lustre"];
    TYPES.contains(&fs_type) || fs_type.starts_with(b"fuse.")
}

/// Opens an absolute path in the view, following links, unless the way may lead through something that stalls.
fn open(path: &[u8], view: View<'_>) -> Option<std::os::fd::OwnedFd> {
    if path.first() != Some(&b'/') || stalls_at(path, view.mounts, view.stalling) {
        return None;
    }
    let how = OpenHow::new().flags(OFlag::O_PATH | OFlag::O_CLOEXEC);
    match openat2(AT_FDCWD, path, how.resolve(ResolveFlag::RESOLVE_NO_SYMLINKS)) {
        // Where a link leads is only known by going there.
        Err(Errno::ELOOP) if view.stalling.is_empty() => {
            openat2(AT_FDCWD, path, how.resolve(ResolveFlag::RESOLVE_NO_MAGICLINKS)).ok()
        }
        opened => opened.ok(),
    }
}

/// Whether the way to an absolute path leads over the mount point of something that may stall.
pub(crate) fn stalls_at(path: &[u8], mounts: &[Mount], stalling: &[usize]) -> bool {
    let has_parent_steps = path.split(|byte| *byte == b'/').any(|part| part == b"..");
    stalling.iter().any(|index| {
        has_parent_steps || mounts[*index].point.as_deref().is_some_and(|point| rest(point, path).is_some())
    })
}

/// The place that an absolute path names by the mount table alone: it stays right for a layer that was renamed since.
fn textual(path: &[u8], mounts: &[Mount]) -> Option<Location> {
    let steps = path.strip_prefix(b"/")?.split(|byte| *byte == b'/');
    let mut plain = b"/".to_vec();
    for step in steps.filter(|step| !step.is_empty() && *step != b".") {
        if step == b".." {
            return None;
        }
        plain = join(&plain, step).into_vec();
    }
    // Of several mounts on the same point the last one covers the others.
    let point = |mount: &&Mount| mount.point.as_deref().filter(|point| rest(point, &plain).is_some()).map(<[u8]>::len);
    let mount = mounts.iter().filter(|mount| point(mount).is_some()).max_by_key(point)?;
    let below = rest(mount.point.as_deref()?, &plain)?;
    (!mount.root_deleted).then(|| Location { device: mount.device, path: join(&mount.root, below) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::id::MountId;

    fn mount(id: u64, root: &[u8], point: &[u8]) -> Mount {
        Mount {
            id: MountId(id),
            parent: MountId(1),
            device: Device { major: 0, minor: 40 + u32::try_from(id).expect("small") },
            root: root.into(),
            root_deleted: false,
            point: Some(point.into()),
            peer_group: 0,
            master: 0,
        }
    }

    #[test]
    fn a_path_lies_on_the_last_of_the_deepest_mounts_over_it() {
        let mounts = [mount(1, b"/", b"/"), mount(2, b"/in", b"/a"), mount(3, b"/", b"/a"), mount(4, b"/", b"/ab")];
        let place = textual(b"//a/./b//c/", &mounts).expect("it is absolute");
        assert_eq!(place, Location::of(mounts[2].device, *b"/b/c"));
        assert_eq!(textual(b"/x", &mounts), Some(Location::of(mounts[0].device, *b"/x")));
        assert_eq!(textual(b"a/b", &mounts), None);
        assert_eq!(textual(b"/a/../b", &mounts), None);
    }

    #[test]
    fn nothing_is_opened_across_what_may_stall() {
        let mounts = [mount(1, b"/", b"/"), mount(2, b"/", b"/remote")];
        assert!(stalls_at(b"/remote/x", &mounts, &[1]));
        assert!(!stalls_at(b"/remotely", &mounts, &[1]));
        assert!(stalls_at(b"/a/../remote", &mounts, &[1]));
        assert!(!stalls_at(b"/remote/x", &mounts, &[]));
        assert!(may_stall(b"fuse.sshfs") && may_stall(b"nfs4") && !may_stall(b"ext4") && !may_stall(b"fusectl"));
    }
}
