//! The one type that every producer feeds and every decision asks.

use super::entry_index::{EntryIndex, PinRef};
use super::id::{Device, Location, NamespaceId, rest};
use super::mount::{Layer, MountTable, Trace};
use super::packed::PackedTable;
use super::pin::{Pin, Place};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// Directory inside a root that condemned entries are moved to.
pub const CONDEMNED_DIRECTORY: &[u8] = b".reclaim";

/// What an entry is called in the index: its name, or `.reclaim/BATCH/NAME` once it is condemned.
///
/// `rest` is a path below a root as [`Location::rest`] gives it; none for the root itself and for `.reclaim` and its
/// batches, which are not entries.
#[must_use]
pub fn entry_key(rest: &[u8]) -> Option<&[u8]> {
    let component = |from: usize| {
        let end = rest[from..].iter().position(|byte| *byte == b'/').map_or(rest.len(), |at| from + at);
        (end > from).then_some(end)
    };
    let first = component(0)?;
    if &rest[..first] != CONDEMNED_DIRECTORY {
        return Some(&rest[..first]);
    }
    let batch = component((first + 1).min(rest.len()))?;
    let name = component((batch + 1).min(rest.len()))?;
    Some(&rest[..name])
}

/// The mounts of one namespace, and the tasks that were seen in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespacePins {
    /// Its mount table.
    pub table: MountTable,
    /// Threads in it, thread group leaders first; not complete, for reports only.
    pub tasks: Vec<u32>,
}

/// What is kept of a namespace.
#[derive(Clone, Debug)]
struct Known {
    table: PackedTable,
    tasks: Box<[u32]>,
}

impl Known {
    fn of(pins: &NamespacePins) -> Self {
        let NamespacePins { table, tasks } = pins;
        Self { table: PackedTable::of(table), tasks: tasks.as_slice().into() }
    }
}

/// Pins by namespace, and an index from the entries of the watched roots to the pins on them.
///
/// Invariant: the index holds exactly the pins of the tables and the loose pins that lie inside a watched root.
#[derive(Clone, Debug, Default)]
pub struct PinSet {
    namespaces: BTreeMap<NamespaceId, Known>,
    /// Those of them with a layer whose place is not known: few, and asked about for every entry.
    doubtful: BTreeSet<NamespaceId>,
    loose: Vec<Pin>,
    watched: Vec<Watched>,
}

#[derive(Clone, Debug)]
struct Watched {
    root: Location,
    index: EntryIndex,
}

impl PinSet {
    /// An empty set with an index for each root, in the order given.
    #[must_use]
    pub fn watching(roots: impl IntoIterator<Item = Location>) -> Self {
        let mut set = Self::default();
        set.watch(roots);
        set
    }

    /// What is known of all namespaces, each given once, without an index.
    #[must_use]
    pub fn of(namespaces: Vec<(NamespaceId, NamespacePins)>) -> Self {
        let mut set = Self::default();
        // All are packed before any is let go: else what stays lies between pieces of what goes, and keeps their pages.
        for (namespace, pins) in &namespaces {
            set.know(*namespace, Known::of(pins));
        }
        set
    }

    /// Indexes other roots from here on; the pins stay.
    pub fn watch(&mut self, roots: impl IntoIterator<Item = Location>) {
        self.watched = roots.into_iter().map(|root| Watched { root, index: EntryIndex::default() }).collect();
        for (namespace, known) in &self.namespaces {
            index(&mut self.watched, *namespace, &known.table);
        }
        for (at, pin) in (0..).zip(&self.loose) {
            index_loose(&mut self.watched, at, pin);
        }
    }

    /// Puts a namespace in the place of what was known of it. Returns whether anything was.
    pub fn replace(&mut self, namespace: NamespaceId, pins: NamespacePins) -> bool {
        let was_known = self.remove(namespace);
        self.know(namespace, Known::of(&pins));
        was_known
    }

    fn know(&mut self, namespace: NamespaceId, known: Known) {
        index(&mut self.watched, namespace, &known.table);
        if known.table.layers().iter().any(|layer| layer.places.is_empty()) {
            self.doubtful.insert(namespace);
        }
        self.namespaces.insert(namespace, known);
    }

    /// Takes a namespace out, for it is gone. Returns whether it was known.
    pub fn remove(&mut self, namespace: NamespaceId) -> bool {
        let Some(known) = self.namespaces.remove(&namespace) else { return false };
        for watched in &mut self.watched {
            let Watched { root, index } = watched;
            known.table.places(|_, device, path| {
                if let Some(key) = key_in(root, device, path) {
                    index.remove(key, |pin| matches!(pin, PinRef::Table(of, _) if of == namespace));
                }
            });
        }
        self.doubtful.remove(&namespace);
        true
    }

    /// Adds a pin that belongs to no mount table.
    pub fn add_loose(&mut self, pin: Pin) {
        let at = u32::try_from(self.loose.len()).expect("fewer than 2^32 mounts exist");
        index_loose(&mut self.watched, at, &pin);
        self.loose.push(pin);
    }

    /// Whether anything relies on the entry with this key (see [`entry_key`]) of the watched root.
    ///
    /// One hash look-up: this is the decision that is made for every single entry. It errs toward yes, and once in 2^64.
    #[must_use]
    pub fn is_pinned(&self, root: usize, key: &[u8]) -> bool {
        self.watched[root].index.contains(key)
    }

    /// The pins of one entry of a watched root.
    #[must_use]
    pub fn pins_of(&self, root: usize, key: &[u8]) -> Vec<Pin> {
        once(self.watched[root].index.of(key).filter_map(|pin| self.resolve(pin)).collect(), |pin| pin)
    }

    /// Keys of all entries of a watched root that are pinned, sorted. Looks at every mount known.
    #[must_use]
    pub fn entries(&self, root: usize) -> Vec<Box<[u8]>> {
        let root = &self.watched[root].root;
        let mut keys = BTreeSet::new();
        let mut add = |device, path: &[u8]| {
            if let Some(key) = key_in(root, device, path)
                && !keys.contains(key)
            {
                keys.insert(key.into());
            }
        };
        for known in self.namespaces.values() {
            known.table.places(|_, device, path| add(device, path));
        }
        for pin in &self.loose {
            add(pin.location.device, &pin.location.path);
        }
        keys.into_iter().collect()
    }

    /// Takes out every pin that belongs to no mount table.
    pub fn clear_loose(&mut self) {
        for pin in self.loose.drain(..) {
            for Watched { root, index } in &mut self.watched {
                if let Some(key) = key_in(root, pin.location.device, &pin.location.path) {
                    index.remove(key, |pin| matches!(pin, PinRef::Loose(_)));
                }
            }
        }
    }

    /// Everything that relies on any place or on something below it. Looks at every mount known.
    #[must_use]
    pub fn at_or_below(&self, place: &Location) -> Vec<(Place, Pin)> {
        let mut found = Vec::new();
        let lies = |device, path: &[u8], inside: bool| {
            let rest = if device == place.device { rest(&place.path, path) } else { None }?;
            Some(if rest.is_empty() && !inside { Place::Exact } else { Place::Below })
        };
        for (namespace, known) in &self.namespaces {
            known.table.places(|part, device, path| {
                if let Some(place) = lies(device, path, false) {
                    let pin = known.table.pin_at(*namespace, part, Location::of(device, path));
                    found.extend(pin.map(|pin| (place, pin)));
                }
            });
        }
        for pin in &self.loose {
            let place = lies(pin.location.device, &pin.location.path, pin.inside);
            found.extend(place.map(|place| (place, pin.clone())));
        }
        once(found, |(_, pin)| pin)
    }

    /// The same for many places, in one look at every mount.
    #[must_use]
    pub fn at_or_below_each<'p>(&self, places: impl IntoIterator<Item = &'p Location>) -> Vec<Vec<(Place, Pin)>> {
        let mut asked: HashMap<Device, HashMap<&[u8], Vec<usize>>> = HashMap::new();
        let mut found = Vec::new();
        for place in places {
            asked.entry(place.device).or_default().entry(&place.path).or_default().push(found.len());
            found.push(Vec::new());
        }
        let mut visit = |device: Device, path: &[u8], inside: bool, pin: &dyn Fn() -> Option<Pin>| {
            let Some(asked) = asked.get(&device) else { return };
            for above in at_and_above(path) {
                let place = if above.len() == path.len() && !inside { Place::Exact } else { Place::Below };
                for at in asked.get(above).into_iter().flatten() {
                    found[*at].extend(pin().map(|pin| (place, pin)));
                }
            }
        };
        for (namespace, known) in &self.namespaces {
            known.table.places(|part, device, path| {
                let pin = || known.table.pin_at(*namespace, part, Location::of(device, path));
                visit(device, path, false, &pin);
            });
        }
        for pin in &self.loose {
            visit(pin.location.device, &pin.location.path, pin.inside, &|| Some(pin.clone()));
        }
        found.into_iter().map(|found| once(found, |(_, pin)| pin)).collect()
    }

    /// A layer of a union file system whose place is not known and that could mean the entry called `name`.
    ///
    /// What the option said may be relative to a directory that nobody remembers, or lead through a link that is gone.
    /// So it can mean a place inside any entry that holds something, and an empty entry when it may end there.
    ///
    /// `walked`: the pins are, or will be before anything is removed, those of a walk too, which sees the layers that the
    /// kernel mounts for itself.
    #[must_use]
    pub fn doubt(&self, name: &[u8], known_empty: bool, walked: bool) -> Option<(NamespaceId, &Layer)> {
        self.layers_in_doubt()
            .filter(|(_, layer)| match layer.trace {
                Trace::Mounted => !walked,
                Trace::Filled => !known_empty,
                Trace::Nothing => true,
            })
            .find(|(_, layer)| could_mean(&layer.written, name, known_empty))
    }

    /// Namespaces with an overlay that may have an entry of this name as a layer of which the kernel has a mount of its own, by
    /// the name that is written of it.
    #[must_use]
    pub fn overlays_on(&self, name: &[u8]) -> BTreeSet<NamespaceId> {
        self.layers_in_doubt()
            .filter(|(_, layer)| {
                layer.trace == Trace::Mounted && layer.written.rsplit(|byte| *byte == b'/').next() == Some(name)
            })
            .map(|(namespace, _)| namespace)
            .collect()
    }

    /// Number of layers whose place is not known.
    #[must_use]
    pub fn doubts(&self) -> usize {
        self.layers_in_doubt().count()
    }

    fn layers_in_doubt(&self) -> impl Iterator<Item = (NamespaceId, &Layer)> {
        let layers = |namespace: &NamespaceId| self.namespaces.get(namespace).map(|known| known.table.layers());
        let doubtful = self.doubtful.iter().filter_map(move |namespace| Some((*namespace, layers(namespace)?)));
        doubtful
            .flat_map(|(namespace, layers)| layers.iter().map(move |layer| (namespace, layer)))
            .filter(|(_, layer)| layer.places.is_empty())
    }

    /// What is known of one namespace: a copy, for it is not kept in this form.
    #[must_use]
    pub fn namespace(&self, namespace: NamespaceId) -> Option<NamespacePins> {
        let Known { table, tasks } = self.namespaces.get(&namespace)?;
        Some(NamespacePins { table: table.unpack(), tasks: tasks.to_vec() })
    }

    /// Whether anything is known of a namespace.
    #[must_use]
    pub fn knows(&self, namespace: NamespaceId) -> bool {
        self.namespaces.contains_key(&namespace)
    }

    /// Tasks that were seen in a namespace; none where it is not known.
    #[must_use]
    pub fn tasks(&self, namespace: NamespaceId) -> &[u32] {
        self.namespaces.get(&namespace).map_or(&[], |known| &known.tasks)
    }

    /// All namespaces known, with the number of their mounts.
    pub fn namespaces(&self) -> impl Iterator<Item = (NamespaceId, usize)> {
        self.namespaces.iter().map(|(namespace, known)| (*namespace, known.table.len()))
    }

    /// The watched roots, in index order.
    pub fn roots(&self) -> impl Iterator<Item = &Location> {
        self.watched.iter().map(|watched| &watched.root)
    }

    /// Number of mounts known, loose ones included.
    #[must_use]
    pub fn mounts(&self) -> usize {
        self.namespaces.values().map(|known| known.table.len()).sum::<usize>() + self.loose.len()
    }

    fn resolve(&self, reference: PinRef) -> Option<Pin> {
        match reference {
            PinRef::Table(namespace, part) => self.namespaces.get(&namespace)?.table.pin(namespace, part),
            PinRef::Loose(at) => self.loose.get(at as usize).cloned(),
        }
    }
}

/// Puts what a table shows into the index of each root.
fn index(watched: &mut [Watched], namespace: NamespaceId, table: &PackedTable) {
    for Watched { root, index } in watched {
        table.places(|part, device, path| {
            if let Some(key) = key_in(root, device, path) {
                index.add(key, PinRef::Table(namespace, part));
            }
        });
    }
}

fn index_loose(watched: &mut [Watched], at: u32, pin: &Pin) {
    for Watched { root, index } in watched {
        if let Some(key) = key_in(root, pin.location.device, &pin.location.path) {
            index.add(key, PinRef::Loose(at));
        }
    }
}

/// The key of the entry of a root that a place lies in.
fn key_in<'p>(root: &Location, device: Device, path: &'p [u8]) -> Option<&'p [u8]> {
    if device == root.device { rest(&root.path, path).and_then(entry_key) } else { None }
}

/// A path, and each that leads to it.
fn at_and_above(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let ends = (1..path.len()).rev().filter(move |end| path[*end] == b'/');
    let root = (path.len() > 1).then_some(&path[..1]);
    std::iter::once(path).chain(ends.map(move |end| &path[..end])).chain(root)
}

/// A mount that a table shows and that was seen without one too is told once, by the table, which knows more of it.
fn once<T>(mut found: Vec<T>, pin: impl Fn(&T) -> &Pin) -> Vec<T> {
    let id = |pin: &Pin| (pin.mount, pin.role);
    let by_table: HashSet<_> = found.iter().map(&pin).filter(|pin| pin.mount_point.is_some()).map(id).collect();
    found.retain(|item| {
        let pin = pin(item);
        pin.mount_point.is_some() || !by_table.contains(&id(pin))
    });
    found
}

fn could_mean(written: &[u8], name: &[u8], known_empty: bool) -> bool {
    if !known_empty || written.first() == Some(&b'/') {
        return true;
    }
    written.split(|byte| *byte == b'/').any(|part| part == name || part == b".." || part == b"." || part.is_empty())
}

#[cfg(test)]
#[path = "pin_set_tests.rs"]
mod tests;
