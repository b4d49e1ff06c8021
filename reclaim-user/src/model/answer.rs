//! Answers to questions about single paths and about the pin set: who, query, pins.

use super::coverage::Coverage;
use super::id::{Location, NamespaceId};
use super::pin::{Pin, Place, Role, State};
use super::pin_set::{PinSet, entry_key};
use super::reference::{Reference, ReferenceKind, References, place_key};
use super::report::{Name, Producer};
use super::task::Task;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// A path that somebody asks about, as the file system has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// The path, for reports.
    pub path: Name,
    /// Its last component.
    pub name: Name,
    /// Where it is. More than one place when something is mounted on it: the place below, and the place on top.
    pub places: Vec<Location>,
    /// Its owner.
    pub owner: u32,
    /// It is known to hold nothing.
    pub known_empty: bool,
}

/// What evidence says about a place: the pins, the claim, and who saw it.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// The pins.
    pub pins: &'a PinSet,
    /// The claim of mounts.
    pub coverage: &'a Coverage,
    /// The claim of mount tables, which alone tell of the work directory of an overlay. That is never empty.
    pub tables: &'a Coverage,
    /// What relies on places besides mounts, by [`place_key`]. Looked for where the kernel cannot be walked, which alone
    /// shows the mounts that such a reference keeps.
    pub references: &'a References,
    /// Who took it.
    pub producer: Producer,
    /// What relies on places outside of the watched roots, where many were asked about at once.
    pub elsewhere: Option<&'a Elsewhere>,
}

/// What relies on places that lie in no watched root, found in one look at every mount.
#[derive(Clone, Debug, Default)]
pub struct Elsewhere(HashMap<Location, Vec<(Place, Pin)>>);

impl Elsewhere {
    /// Of all that is asked about.
    pub fn of<'s>(pins: &PinSet, subjects: impl IntoIterator<Item = &'s Subject>) -> Self {
        let places = subjects.into_iter().flat_map(|subject| &subject.places);
        let places: BTreeSet<&Location> = places.filter(|place| entry_of(pins, place).is_none()).collect();
        let found = pins.at_or_below_each(places.iter().copied());
        Self(places.into_iter().cloned().zip(found).collect())
    }
}

/// One pin as reports show it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PinReport {
    /// How the mount relies on the place.
    pub role: Role,
    /// At the path or below it.
    #[serde(rename = "where")]
    pub place: Place,
    /// The mount namespace; none for a mount that is in none, or where it could not be told.
    pub namespace: Option<u64>,
    /// The mount.
    pub mount_id: u64,
    /// Where the mount is mounted in its namespace; none where that cannot be seen.
    pub mount_point: Option<Name>,
    /// The exact bytes of the mount point where it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mount_point_hex: Option<String>,
    /// What holds the mount.
    pub state: State,
    /// Tasks that live in the namespace; not complete. For a layer that the kernel mounts for itself, those of the only
    /// namespace with an overlay that may have it.
    pub tasks: Vec<Task>,
}

/// A reference that is no mount, as reports show it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReferenceReport {
    /// How the task has the place.
    pub kind: ReferenceKind,
    /// At the path or below it.
    #[serde(rename = "where")]
    pub place: Place,
    /// The process; none where it is not known, or is gone by now.
    pub task: Option<Task>,
}

/// Who pins a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename = "who")]
pub struct WhoReport {
    /// The path.
    pub path: Name,
    /// Its exact bytes where it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_hex: Option<String>,
    /// Something relies on it.
    pub pinned: bool,
    /// Who took the evidence.
    pub evidence: Producer,
    /// Every task and namespace was accounted for.
    pub complete: bool,
    /// Everything that could hold an entry of the path's owner was read.
    pub covered: bool,
    /// The pins.
    pub pins: Vec<PinReport>,
    /// What relies on it besides mounts, where the kernel cannot be walked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub references: Vec<ReferenceReport>,
    /// Why more may rely on it than `pins` shows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub doubt: Option<String>,
}

/// Whether a path may go, as far as mounts are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Decision {
    /// Nothing relies on it.
    Free,
    /// Something does.
    Pinned,
    /// What was seen does not tell.
    Unknown,
}

/// The decision on one path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename = "query")]
pub struct QueryReport {
    /// The path.
    pub path: Name,
    /// Its exact bytes where it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_hex: Option<String>,
    /// The decision.
    pub verdict: Decision,
    /// Who took the evidence.
    pub evidence: Producer,
    /// What the decision rests on, unless it is `free`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// One pinned entry of a root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename = "pin")]
pub struct EntryPin {
    /// Name of the root.
    pub root: String,
    /// The entry, as the index calls it (see [`entry_key`]).
    pub entry: Name,
    /// Its exact bytes where it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entry_hex: Option<String>,
    /// The pin.
    #[serde(flatten)]
    pub pin: PinReport,
}

/// What one namespace pins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename = "namespace")]
pub struct NamespaceReport {
    /// The namespace; none for mounts that are in none, and for those of which it could not be told.
    pub namespace: Option<u64>,
    /// Its mounts.
    pub mounts: usize,
    /// Its pins on entries, by root.
    pub pins: BTreeMap<String, u64>,
    /// Tasks in it; not complete.
    pub tasks: Vec<Task>,
}

/// Everything that relies on a place or on something below it. A look-up where the place lies inside an entry of a
/// watched root, else a look at every mount.
#[must_use]
pub fn pins_at(pins: &PinSet, elsewhere: Option<&Elsewhere>, place: &Location) -> Vec<(Place, Pin)> {
    let Some((index, key)) = entry_of(pins, place) else {
        let found = elsewhere.and_then(|Elsewhere(found)| found.get(place));
        return found.cloned().unwrap_or_else(|| pins.at_or_below(place));
    };
    let of_entry = pins.pins_of(index, key).into_iter();
    of_entry
        .filter_map(|pin| {
            // A layer that means several places is indexed under each and resolved to the first of them.
            let exact = match place.rest(&pin.location) {
                Some(rest) => rest.is_empty(),
                None if pin.role == Role::Layer => false,
                None => return None,
            };
            Some((if exact { Place::Exact } else { Place::Below }, pin))
        })
        .collect()
}

/// The entry of a watched root that a place lies in: the root, and what the index calls the entry.
fn entry_of<'p>(pins: &PinSet, place: &'p Location) -> Option<(usize, &'p [u8])> {
    pins.roots().enumerate().find_map(|(index, root)| Some((index, root.rest(place).and_then(entry_key)?)))
}

impl Subject {
    fn pins(&self, Seen { pins, elsewhere, .. }: Seen<'_>) -> Vec<(Place, Pin)> {
        let mut told = HashSet::new();
        let mut found: Vec<_> = self.places.iter().flat_map(|place| pins_at(pins, elsewhere, place)).collect();
        // A mount on the path is at both of its places.
        found.retain(|(_, pin)| told.insert((pin.role, pin.mount, pin.namespace)));
        found
    }

    /// The namespace of the overlay that a layer is of which the kernel has mounted for itself, in no namespace: what the
    /// overlay's options say of it may be relative. None where more than one may be meant, or another pin tells.
    fn namespace_of_layer(&self, pins: &[(Place, Pin)], seen: Seen<'_>) -> Option<NamespaceId> {
        let mut layers = pins.iter().filter(|(_, pin)| pin.role == Role::Layer).peekable();
        layers.peek()?;
        if !layers.all(|(place, pin)| pin.namespace.is_none() && *place == Place::Exact) {
            return None;
        }
        let mut overlays = seen.pins.overlays_on(&self.name.0).into_iter();
        overlays.next().filter(|_| overlays.next().is_none())
    }

    fn references(&self, seen: Seen<'_>) -> BTreeSet<Reference> {
        self.places.iter().flat_map(|place| seen.references.of(&place_key(place))).copied().collect()
    }

    fn doubt(&self, seen: Seen<'_>) -> Option<String> {
        if let Some(reference) = self.references(seen).iter().find(|reference| !reference.is_certain()) {
            return Some(reference.to_string());
        }
        let found = seen.pins.doubt(&self.name.0, self.known_empty, seen.producer == Producer::Walk);
        let (namespace, layer) = found?;
        Some(format!(
            "an overlay in namespace {namespace} has the layer `{}`, which could not be resolved and may mean this path",
            String::from_utf8_lossy(&layer.written).escape_debug()
        ))
    }

    /// The decision on this path.
    #[must_use]
    pub fn query(&self, seen: Seen<'_>) -> QueryReport {
        let Seen { coverage, tables, producer, .. } = seen;
        let coverage = if self.known_empty { coverage } else { tables };
        let (verdict, why) = if let Some((place, pin)) = self.pins(seen).first() {
            (Decision::Pinned, Some(sentence(*place, pin)))
        } else if let Some(reference) = self.references(seen).iter().find(|reference| reference.is_certain()) {
            (Decision::Pinned, Some(reference.to_string()))
        } else if let Some(doubt) = self.doubt(seen) {
            (Decision::Unknown, Some(doubt))
        } else if coverage.complete() || coverage.covered(self.owner) {
            (Decision::Free, None)
        } else {
            (Decision::Unknown, Some(format!("the evidence is not complete: {}", gaps(coverage))))
        };
        QueryReport { path_hex: self.path.hex(), path: self.path.clone(), verdict, evidence: producer, why }
    }

    /// Who pins this path, with the tasks of each namespace and the processes as they were looked up.
    #[must_use]
    pub fn who(
        &self,
        seen: Seen<'_>,
        tasks: &BTreeMap<NamespaceId, Vec<Task>>,
        processes: &BTreeMap<u32, Task>,
    ) -> WhoReport {
        let Seen { coverage, tables, producer, .. } = seen;
        let coverage = if self.known_empty { coverage } else { tables };
        let pins = self.pins(seen);
        let of_layer = self.namespace_of_layer(&pins, seen);
        let told = |(place, pin): (Place, Pin)| {
            let mut report = PinReport::of(place, &pin, tasks);
            if let Some(namespace) = of_layer.filter(|_| pin.role == Role::Layer) {
                report.tasks = tasks.get(&namespace).cloned().unwrap_or_default();
            }
            report
        };
        let mut found: Vec<PinReport> = pins.into_iter().map(told).collect();
        found.sort_by(|a, b| {
            (a.namespace, a.role, a.place, a.mount_id).cmp(&(b.namespace, b.role, b.place, b.mount_id))
        });
        let references: Vec<ReferenceReport> = self
            .references(seen)
            .into_iter()
            .filter(Reference::is_certain)
            .map(|Reference { kind, process, place }| {
                let task = process.and_then(|process| processes.get(&process)).cloned();
                ReferenceReport { kind, place, task }
            })
            .collect();
        WhoReport {
            path_hex: self.path.hex(),
            path: self.path.clone(),
            pinned: !found.is_empty() || !references.is_empty(),
            evidence: producer,
            complete: coverage.complete(),
            covered: coverage.complete() || coverage.covered(self.owner),
            pins: found,
            references,
            doubt: self.doubt(seen),
        }
    }

    /// The processes that refer to this path.
    #[must_use]
    pub fn processes(&self, seen: Seen<'_>) -> BTreeSet<u32> {
        self.references(seen).into_iter().filter_map(|reference| reference.process).collect()
    }

    /// The namespaces that pin this path, or may.
    #[must_use]
    pub fn namespaces(&self, seen: Seen<'_>) -> BTreeSet<NamespaceId> {
        let pins = self.pins(seen);
        pins.iter().filter_map(|(_, pin)| pin.namespace).chain(self.namespace_of_layer(&pins, seen)).collect()
    }
}

impl PinReport {
    /// A pin with the tasks of its namespace.
    #[must_use]
    pub fn of(place: Place, pin: &Pin, tasks: &BTreeMap<NamespaceId, Vec<Task>>) -> Self {
        let Pin { role, location: _, namespace, mount, mount_point, state, inside: _ } = pin;
        let point = mount_point.as_ref().map(|point| Name(point.to_vec()));
        Self {
            role: *role,
            place,
            namespace: namespace.and_then(NamespaceId::number),
            mount_id: mount.0,
            mount_point_hex: point.as_ref().and_then(Name::hex),
            mount_point: point,
            state: *state,
            tasks: namespace.and_then(|namespace| tasks.get(&namespace)).cloned().unwrap_or_default(),
        }
    }
}

/// The pins on the entries of one watched root, by entry.
#[must_use]
pub fn entry_pins(pins: &PinSet, index: usize, root: &str, tasks: &BTreeMap<NamespaceId, Vec<Task>>) -> Vec<EntryPin> {
    let Some(location) = pins.roots().nth(index) else { return Vec::new() };
    let keys = pins.entries(index).into_iter();
    keys.flat_map(|key| {
        let entry = Name(key.to_vec());
        let place = location.join(&key);
        pins.pins_of(index, &key).into_iter().map(move |pin| {
            let exact = if place == pin.location { Place::Exact } else { Place::Below };
            EntryPin {
                root: root.to_owned(),
                entry_hex: entry.hex(),
                entry: entry.clone(),
                pin: PinReport::of(exact, &pin, tasks),
            }
        })
    })
    .collect()
}

/// The same pins, counted by namespace. With `all`, namespaces that pin nothing are told, too.
#[must_use]
pub fn by_namespace(
    set: &PinSet,
    pins: &[EntryPin],
    tasks: &BTreeMap<NamespaceId, Vec<Task>>,
    all: bool,
) -> Vec<NamespaceReport> {
    let mut found: BTreeMap<Option<u64>, NamespaceReport> = BTreeMap::new();
    for (namespace, mounts) in set.namespaces() {
        let tasks = tasks.get(&namespace).cloned().unwrap_or_default();
        let namespace = namespace.number();
        found.insert(namespace, NamespaceReport { namespace, mounts, pins: BTreeMap::new(), tasks });
    }
    for EntryPin { root, pin, .. } in pins {
        let report = found.entry(pin.namespace).or_insert_with(|| NamespaceReport {
            namespace: pin.namespace,
            mounts: 0,
            pins: BTreeMap::new(),
            tasks: Vec::new(),
        });
        *report.pins.entry(root.clone()).or_default() += 1;
    }
    found.into_values().filter(|report| all || !report.pins.is_empty()).collect()
}

/// The gaps of a claim in words.
#[must_use]
pub fn gaps(coverage: &Coverage) -> String {
    let parts: Vec<String> = coverage.gaps().iter().map(|(cause, count)| format!("{} {count}", cause.name())).collect();
    if parts.is_empty() { "none".to_owned() } else { parts.join(", ") }
}

fn sentence(place: Place, pin: &Pin) -> String {
    let role = match pin.role {
        Role::Source => "is the source of",
        Role::Layer => "is an overlay layer of",
        Role::Target => "is the mount point of",
    };
    let subject = match place {
        Place::Exact => "it",
        Place::Below => "something below it",
    };
    match (pin.namespace, pin.state) {
        (Some(NamespaceId::UNKNOWN), _) => {
            format!("{subject} {role} mount {} in a namespace that could not be told", pin.mount)
        }
        (Some(namespace), _) => format!("{subject} {role} mount {} in namespace {namespace}", pin.mount),
        (None, State::Unmounted) => format!("{subject} {role} mount {}, which was unmounted while busy", pin.mount),
        (None, _) => format!("{subject} {role} mount {}, which is in no namespace", pin.mount),
    }
}

#[cfg(test)]
#[path = "answer_tests.rs"]
mod tests;
