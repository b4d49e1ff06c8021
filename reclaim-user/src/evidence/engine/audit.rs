//! Comparing producers: each pin that one saw and another did not.

use super::walked::{self, Asked};
use super::{Engine, EngineError, error_chain};
use crate::evidence::walk::WalkError;
use crate::model::id::{MountId, NamespaceId};
use crate::model::live::LiveSet;
use crate::model::pin::{Pin, State};
use crate::model::pin_set::entry_key;
use crate::model::report::Producer;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Instant;

/// One entry that a producer shows as pinned and another does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Index of the root.
    pub root: usize,
    /// Key of the entry, see [`crate::model::pin_set::entry_key`].
    pub entry: Vec<u8>,
    /// Who saw a pin.
    pub seen_by: Vec<Producer>,
    /// Who did not.
    pub missed_by: Vec<Producer>,
    /// Why, where it is known.
    pub cause: Option<String>,
}

/// One producer, as the audit used it.
#[derive(Clone, Debug)]
pub struct ProducerReport {
    /// Which one.
    pub producer: Producer,
    /// Namespaces it read.
    pub namespaces: usize,
    /// Mounts it saw.
    pub mounts: usize,
    /// Entries of the roots that it shows as pinned.
    pub pinned_entries: usize,
    /// How long it took.
    pub elapsed_ms: u64,
    /// Whether it claims to have seen everything.
    pub complete: bool,
    /// Why it was not used; none when it was.
    pub unavailable: Option<String>,
}

/// The comparison.
#[derive(Clone, Debug)]
pub struct Audit {
    /// Where producers differ.
    pub differences: Vec<Difference>,
    /// The producers.
    pub producers: Vec<ProducerReport>,
}

impl Engine {
    /// Takes evidence from every producer that works here, and compares them. Changes nothing.
    ///
    /// `roots` are descriptors of the watched roots, in their order. Each set is taken twice, before and after the others
    /// were: what changed meanwhile is in one of the two, and is no difference.
    ///
    /// # Errors
    /// When mount tables cannot be read.
    pub fn audit(&mut self, roots: &[OwnedFd]) -> Result<Audit, EngineError> {
        let mut audited = Audited::default();
        let missing = |why: &Option<String>| why.clone().unwrap_or_else(|| "it is not in use".to_owned());
        let live = match self.probes.is_some() {
            true => Some(self.take_live(&mut audited)?),
            false => {
                audited.producers.push(ProducerReport::absent(Producer::Live, missing(&self.probes_missing)));
                None
            }
        };
        let walk = match self.take_walk(roots, &mut audited) {
            Ok(entries) => Some(entries),
            Err(why) => {
                audited.producers.push(ProducerReport::absent(Producer::Walk, why));
                None
            }
        };
        let started = Instant::now();
        let scanned = super::scanned(&mut self.scanner, &self.watch)?;
        audited.producers.push(ProducerReport::of(Producer::Scan, &scanned, started));
        audited.sets.push(Taken::of(Producer::Scan, entries_of(&scanned), &scanned));
        if let Some(before) = live {
            self.follow()?;
            audited.sets.push(Taken::of(Producer::Live, before, &self.live));
        }
        if let Some(before) = walk {
            let after = self.walk_roots(roots).unwrap_or_else(|_| before.clone());
            audited.sets.push(Taken {
                producer: Producer::Walk,
                entries: [before, after],
                namespaces: BTreeSet::new(),
            });
        }
        let Audited { producers, sets } = audited;
        Ok(Audit { differences: (0..self.watch.len()).flat_map(|root| compare(root, &sets)).collect(), producers })
    }

    fn take_live(&mut self, audited: &mut Audited) -> Result<Entries, EngineError> {
        let started = Instant::now();
        self.follow()?;
        audited.producers.push(ProducerReport::of(Producer::Live, &self.live, started));
        Ok(entries_of(&self.live))
    }

    /// Brings the live set up to what the kernel has sent. With a gap it frees nothing, and a decision would take a baseline.
    fn follow(&mut self) -> Result<(), EngineError> {
        self.take_events();
        if self.live.has_gap() { self.baseline() } else { self.refresh() }
    }

    fn take_walk(&mut self, roots: &[OwnedFd], audited: &mut Audited) -> Result<Entries, String> {
        let started = Instant::now();
        let entries = self.walk_roots(roots)?;
        let pinned = entries.iter().map(BTreeMap::len).sum();
        let mounts = entries.iter().flat_map(BTreeMap::values).flatten().count();
        let report = ProducerReport {
            namespaces: 0,
            mounts,
            pinned_entries: pinned,
            complete: true,
            ..ProducerReport::absent(Producer::Walk, String::new())
        };
        audited.producers.push(ProducerReport { elapsed_ms: since(started), unavailable: None, ..report });
        Ok(entries)
    }

    /// Entries of each root that the walk shows as pinned, or why it does not work.
    fn walk_roots(&mut self, roots: &[OwnedFd]) -> Result<Entries, String> {
        let Some(walker) = &mut self.walker else {
            return Err(self.walk_missing.clone().unwrap_or_else(|| "it is not in use".to_owned()));
        };
        let mut all = Entries::new();
        for (root, location) in roots.iter().zip(&self.watch) {
            let asked = Asked { directory: root.as_fd(), location: location.clone(), only: None };
            let pins = match walked::walk(walker, &[asked]) {
                Ok(pins) => pins,
                // A root without a directory has nothing that could be a source; files in it are seen by the others.
                Err(WalkError::NothingToFind) => Vec::new(),
                Err(error) => return Err(error_chain(&error)),
            };
            let mut entries = BTreeMap::<Vec<u8>, BTreeSet<Sight>>::new();
            for pin in pins {
                if let Some(key) = location.rest(&pin.location).and_then(entry_key) {
                    entries.entry(key.to_vec()).or_default().insert(Sight::of(&pin));
                }
            }
            all.push(entries);
        }
        Ok(all)
    }
}

/// A mount that pins an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Sight {
    mount: MountId,
    namespace: Option<NamespaceId>,
    state: State,
}

impl Sight {
    fn of(pin: &Pin) -> Self {
        Self { mount: pin.mount, namespace: pin.namespace, state: pin.state }
    }
}

/// For each root, its pinned entries with the mounts that pin them.
type Entries = Vec<BTreeMap<Vec<u8>, BTreeSet<Sight>>>;

/// What a producer saw.
struct Taken {
    producer: Producer,
    /// First and last.
    entries: [Entries; 2],
    /// The namespaces that it read, where it reads any.
    namespaces: BTreeSet<NamespaceId>,
}

impl Taken {
    fn of(producer: Producer, before: Entries, set: &LiveSet) -> Self {
        let namespaces = set.pins().namespaces().map(|(namespace, _)| namespace).collect();
        Self { producer, entries: [before, entries_of(set)], namespaces }
    }
}

#[derive(Default)]
struct Audited {
    producers: Vec<ProducerReport>,
    sets: Vec<Taken>,
}

impl ProducerReport {
    fn of(producer: Producer, set: &LiveSet, started: Instant) -> Self {
        let pins = set.pins();
        Self {
            producer,
            namespaces: pins.namespaces().count(),
            mounts: pins.mounts(),
            pinned_entries: (0..pins.roots().count()).map(|root| pins.entries(root).len()).sum(),
            elapsed_ms: since(started),
            complete: set.coverage().complete(),
            unavailable: None,
        }
    }

    fn absent(producer: Producer, why: String) -> Self {
        Self {
            producer,
            namespaces: 0,
            mounts: 0,
            pinned_entries: 0,
            elapsed_ms: 0,
            complete: false,
            unavailable: Some(why),
        }
    }
}

fn entries_of(set: &LiveSet) -> Entries {
    let pins = set.pins();
    let of = |root| {
        let keys = pins.entries(root).into_iter();
        keys.map(|key| (key.to_vec(), pins.pins_of(root, &key).iter().map(Sight::of).collect())).collect()
    };
    (0..pins.roots().count()).map(of).collect()
}

fn since(started: Instant) -> u64 {
    u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// Entries that some producer showed both times and another neither time.
fn compare(root: usize, sets: &[Taken]) -> Vec<Difference> {
    let all: BTreeSet<&Vec<u8>> =
        sets.iter().flat_map(|Taken { entries: [first, _], .. }| first[root].keys()).collect();
    let mut differences = Vec::new();
    for entry in all {
        let by = |wanted: bool| -> Vec<&Taken> {
            sets.iter()
                .filter(|taken| taken.entries.iter().all(|set| set[root].contains_key(entry) == wanted))
                .collect()
        };
        let (seen_by, missed_by) = (by(true), by(false));
        if seen_by.is_empty() || missed_by.is_empty() {
            continue;
        }
        let cause = cause(root, entry, &seen_by, &missed_by);
        let named = |sets: Vec<&Taken>| -> Vec<Producer> {
            sets.iter().map(|taken| taken.producer).collect::<BTreeSet<_>>().into_iter().collect()
        };
        let (seen_by, missed_by) = (named(seen_by), named(missed_by));
        differences.push(Difference { root, entry: entry.clone(), seen_by, missed_by, cause });
    }
    differences
}

fn cause(root: usize, entry: &Vec<u8>, seen_by: &[&Taken], missed_by: &[&Taken]) -> Option<String> {
    let last = |taken: &&Taken| -> BTreeMap<Vec<u8>, BTreeSet<Sight>> { taken.entries[1][root].clone() };
    let seen: BTreeSet<Sight> = seen_by.iter().filter_map(|taken| last(taken).remove(entry)).flatten().collect();
    let mounts: BTreeSet<MountId> = seen.iter().map(|sight| sight.mount).collect();
    // The same mount on another entry: the entry was renamed, for which the kernel sends nothing.
    let renamed =
        missed_by.iter().flat_map(last).find(|(_, other)| other.iter().any(|sight| mounts.contains(&sight.mount)));
    if let Some((name, _)) = renamed {
        return Some(format!("renamed while in use: the same mount shows on {}", String::from_utf8_lossy(&name)));
    }
    let is_walk = |taken: &&Taken| taken.producer == Producer::Walk;
    if missed_by.iter().any(is_walk) {
        return Some(
            "no mount of this file system: a layer that only the options of an overlay name, such as its work directory"
                .to_owned(),
        );
    }
    if !seen_by.iter().all(is_walk) {
        return None;
    }
    match seen.iter().find_map(|sight| sight.namespace) {
        // No table misses what a namespace has unless it was not read, or not from its own root.
        Some(namespace) if missed_by.iter().any(|taken| taken.namespaces.contains(&namespace)) => Some(format!(
            "namespace {namespace} was read through a task whose root directory hides a part of it, or before the mount \
             was made"
        )),
        Some(namespace) => Some(format!(
            "namespace {namespace} was not read: no task is in it, and a file or a descriptor keeps it, or none of its \
             tasks sees all of it"
        )),
        None => Some(
            match seen.iter().any(|sight| sight.state == State::Unmounted) {
                true => "no mount table shows it: it was unmounted while busy, and a descriptor or a directory keeps it",
                false => "no mount table shows it: a detached tree that a descriptor keeps, or a mount that the kernel made for itself",
            }
            .to_owned(),
        ),
    }
}

#[cfg(test)]
#[path = "audit_tests.rs"]
mod tests;
