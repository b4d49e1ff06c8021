//! The one type that every producer feeds and every decision asks.

use super::id::{Location, MountId, NamespaceId};
use super::mount::{Layer, MountTable, Trace};
use super::pin::{Pin, Place, Role, State};
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PinRef {
    Source(NamespaceId, u32),
    Target(NamespaceId, u32),
    Layer(NamespaceId, u32),
    Loose(u32),
}

impl PinRef {
    fn namespace(self) -> Option<NamespaceId> {
        match self {
            Self::Source(namespace, _) | Self::Target(namespace, _) | Self::Layer(namespace, _) => Some(namespace),
            Self::Loose(_) => None,
        }
    }
}

/// Pins by namespace, and an index from the entries of the watched roots to the pins on them.
///
/// Invariant: the index holds exactly the pins of the tables and the loose pins that lie inside a watched root.
#[derive(Clone, Debug, Default)]
pub struct PinSet {
    namespaces: BTreeMap<NamespaceId, NamespacePins>,
    /// Those of them with a layer whose place is not known: few, and asked about for every entry.
    doubtful: BTreeSet<NamespaceId>,
    loose: Vec<Pin>,
    watched: Vec<Watched>,
}

#[derive(Clone, Debug)]
struct Watched {
    root: Location,
    entries: HashMap<Box<[u8]>, Vec<PinRef>>,
    /// Which entries a namespace contributed to, so that it can be taken out without a look at all of them.
    by_namespace: HashMap<NamespaceId, Vec<Box<[u8]>>>,
}

impl PinSet {
    /// An empty set with an index for each root, in the order given.
    #[must_use]
    pub fn watching(roots: impl IntoIterator<Item = Location>) -> Self {
        let watched = roots
            .into_iter()
            .map(|root| Watched { root, entries: HashMap::new(), by_namespace: HashMap::new() })
            .collect();
        Self { namespaces: BTreeMap::new(), doubtful: BTreeSet::new(), loose: Vec::new(), watched }
    }

    /// Indexes other roots from here on; the pins stay.
    pub fn watch(&mut self, roots: impl IntoIterator<Item = Location>) {
        let known = std::mem::replace(self, Self::watching(roots));
        for (namespace, pins) in known.namespaces {
            self.replace(namespace, pins);
        }
        for pin in known.loose {
            self.add_loose(pin);
        }
    }

    /// Puts a namespace in the place of what was known of it. Returns what was known.
    pub fn replace(&mut self, namespace: NamespaceId, pins: NamespacePins) -> Option<NamespacePins> {
        let known = self.remove(namespace);
        let table = &pins.table;
        for watched in &mut self.watched {
            for (index, mount) in (0_u32..).zip(&table.mounts) {
                if !mount.root_deleted
                    && mount.device == watched.root.device
                    && let Some(rest) = super::id::rest(&watched.root.path, &mount.root)
                {
                    watched.add(rest, PinRef::Source(namespace, index));
                }
            }
            for (index, layer) in (0_u32..).zip(&table.layers) {
                for place in &layer.places {
                    if place.device == watched.root.device
                        && let Some(rest) = super::id::rest(&watched.root.path, &place.path)
                    {
                        watched.add(rest, PinRef::Layer(namespace, index));
                    }
                }
            }
        }
        if !self.watched.is_empty() {
            for (index, location) in table.targets() {
                let index = u32::try_from(index).expect("a namespace holds fewer than 2^32 mounts");
                for watched in &mut self.watched {
                    if location.device == watched.root.device
                        && let Some(rest) = super::id::rest(&watched.root.path, &location.path)
                    {
                        watched.add(rest, PinRef::Target(namespace, index));
                    }
                }
            }
        }
        if table.layers.iter().any(|layer| layer.places.is_empty()) {
            self.doubtful.insert(namespace);
        }
        self.namespaces.insert(namespace, pins);
        known
    }

    /// Takes a namespace out, for it is gone. Returns what was known of it.
    pub fn remove(&mut self, namespace: NamespaceId) -> Option<NamespacePins> {
        for watched in &mut self.watched {
            watched.forget(namespace);
        }
        self.doubtful.remove(&namespace);
        self.namespaces.remove(&namespace)
    }

    /// Adds a pin that belongs to no mount table.
    pub fn add_loose(&mut self, pin: Pin) {
        let index = u32::try_from(self.loose.len()).expect("fewer than 2^32 mounts exist");
        for watched in &mut self.watched {
            if pin.location.device == watched.root.device
                && let Some(rest) = super::id::rest(&watched.root.path, &pin.location.path)
            {
                watched.add(rest, PinRef::Loose(index));
            }
        }
        self.loose.push(pin);
    }

    /// Whether anything relies on the entry with this key (see [`entry_key`]) of the watched root.
    ///
    /// One hash look-up: this is the decision that is made for every single entry.
    #[must_use]
    pub fn is_pinned(&self, root: usize, key: &[u8]) -> bool {
        self.watched[root].entries.contains_key(key)
    }

    /// The pins of one entry of a watched root.
    #[must_use]
    pub fn pins_of(&self, root: usize, key: &[u8]) -> Vec<Pin> {
        let refs = self.watched[root].entries.get(key).map_or(&[][..], Vec::as_slice);
        once(refs.iter().filter_map(|pin| self.resolve(*pin)).collect(), |pin| pin)
    }

    /// Keys of all entries of a watched root that are pinned, sorted.
    #[must_use]
    pub fn entries(&self, root: usize) -> Vec<&[u8]> {
        let mut keys: Vec<&[u8]> = self.watched[root].entries.keys().map(|key| &**key).collect();
        keys.sort_unstable();
        keys
    }

    /// Takes out every pin that belongs to no mount table.
    pub fn clear_loose(&mut self) {
        if self.loose.is_empty() {
            return;
        }
        self.loose.clear();
        for watched in &mut self.watched {
            watched.entries.retain(|_, pins| {
                pins.retain(|pin| !matches!(pin, PinRef::Loose(_)));
                !pins.is_empty()
            });
        }
    }

    /// Everything that relies on any place or on something below it. Looks at every mount known.
    #[must_use]
    pub fn at_or_below(&self, place: &Location) -> Vec<(Place, Pin)> {
        let of_tables = self.namespaces.iter().flat_map(|(namespace, pins)| pins.table.pins(*namespace));
        let found = of_tables
            .chain(self.loose.iter().cloned())
            .filter_map(|pin| {
                let rest = place.rest(&pin.location)?;
                Some((if rest.is_empty() && !pin.inside { Place::Exact } else { Place::Below }, pin))
            })
            .collect();
        once(found, |(_, pin)| pin)
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

    /// Number of layers whose place is not known.
    #[must_use]
    pub fn doubts(&self) -> usize {
        self.layers_in_doubt().count()
    }

    fn layers_in_doubt(&self) -> impl Iterator<Item = (NamespaceId, &Layer)> {
        let layers = |namespace: &NamespaceId| self.namespaces.get(namespace).map(|pins| &pins.table.layers);
        let doubtful = self.doubtful.iter().filter_map(move |namespace| Some((*namespace, layers(namespace)?)));
        doubtful
            .flat_map(|(namespace, layers)| layers.iter().map(move |layer| (namespace, layer)))
            .filter(|(_, layer)| layer.places.is_empty())
    }

    /// What is known of one namespace.
    #[must_use]
    pub fn namespace(&self, namespace: NamespaceId) -> Option<&NamespacePins> {
        self.namespaces.get(&namespace)
    }

    /// All namespaces known.
    pub fn namespaces(&self) -> impl Iterator<Item = (NamespaceId, &NamespacePins)> {
        self.namespaces.iter().map(|(namespace, pins)| (*namespace, pins))
    }

    /// The watched roots, in index order.
    pub fn roots(&self) -> impl Iterator<Item = &Location> {
        self.watched.iter().map(|watched| &watched.root)
    }

    /// Number of mounts known, loose ones included.
    #[must_use]
    pub fn mounts(&self) -> usize {
        self.namespaces.values().map(|pins| pins.table.mounts.len()).sum::<usize>() + self.loose.len()
    }

    fn resolve(&self, reference: PinRef) -> Option<Pin> {
        let attached = |role, namespace, location, mount: MountId, mount_point: &Option<Box<[u8]>>| Pin {
            role,
            location,
            namespace: Some(namespace),
            mount,
            mount_point: mount_point.clone(),
            state: State::Attached,
            inside: false,
        };
        match reference {
            PinRef::Source(namespace, index) => {
                let mount = self.namespaces.get(&namespace)?.table.mounts.get(index as usize)?;
                let location = Location { device: mount.device, path: mount.root.clone() };
                Some(attached(Role::Source, namespace, location, mount.id, &mount.point))
            }
            PinRef::Target(namespace, index) => {
                let table = &self.namespaces.get(&namespace)?.table;
                let mount = table.mounts.get(index as usize)?;
                let location = table.target_of(mount)?;
                Some(attached(Role::Target, namespace, location, mount.id, &mount.point))
            }
            PinRef::Layer(namespace, index) => {
                let layer = self.namespaces.get(&namespace)?.table.layers.get(index as usize)?;
                let location = layer.places.first()?.clone();
                Some(attached(Role::Layer, namespace, location, layer.mount, &layer.mount_point))
            }
            PinRef::Loose(index) => self.loose.get(index as usize).cloned(),
        }
    }
}

impl Watched {
    fn add(&mut self, rest: &[u8], pin: PinRef) {
        let Some(key) = entry_key(rest) else { return };
        match self.entries.get_mut(key) {
            Some(pins) => pins.push(pin),
            None => {
                self.entries.insert(key.into(), vec![pin]);
            }
        }
        if let Some(namespace) = pin.namespace() {
            self.by_namespace.entry(namespace).or_default().push(key.into());
        }
    }

    fn forget(&mut self, namespace: NamespaceId) {
        for key in self.by_namespace.remove(&namespace).unwrap_or_default() {
            if let Some(pins) = self.entries.get_mut(&key) {
                pins.retain(|pin| pin.namespace() != Some(namespace));
                if pins.is_empty() {
                    self.entries.remove(&key);
                }
            }
        }
    }
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
