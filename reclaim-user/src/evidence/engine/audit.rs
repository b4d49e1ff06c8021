//! Comparing producers: each pin that one saw and another did not.

use super::walked::{self, Asked};
use super::{Engine, EngineError, error_chain};
use crate::evidence::walk::WalkError;
use crate::model::id::MountId;
use crate::model::live::LiveSet;
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
        audited.sets.push((Producer::Scan, [entries_of(&scanned), entries_of(&scanned)]));
        if let Some(before) = live {
            self.take_events();
            self.refresh()?;
            audited.sets.push((Producer::Live, [before, entries_of(&self.live)]));
        }
        if let Some(before) = walk {
            let after = self.walk_roots(roots).unwrap_or_else(|_| before.clone());
            audited.sets.push((Producer::Walk, [before, after]));
        }
        let Audited { producers, sets } = audited;
        Ok(Audit { differences: (0..self.watch.len()).flat_map(|root| compare(root, &sets)).collect(), producers })
    }

    fn take_live(&mut self, audited: &mut Audited) -> Result<Entries, EngineError> {
        let started = Instant::now();
        self.take_events();
        self.refresh()?;
        audited.producers.push(ProducerReport::of(Producer::Live, &self.live, started));
        Ok(entries_of(&self.live))
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
            let mut entries = BTreeMap::<Vec<u8>, BTreeSet<MountId>>::new();
            for pin in pins {
                if let Some(key) = location.rest(&pin.location).and_then(entry_key) {
                    entries.entry(key.to_vec()).or_default().insert(pin.mount);
                }
            }
            all.push(entries);
        }
        Ok(all)
    }
}

/// For each root, its pinned entries with the mounts that pin them.
type Entries = Vec<BTreeMap<Vec<u8>, BTreeSet<MountId>>>;

#[derive(Default)]
struct Audited {
    producers: Vec<ProducerReport>,
    /// What each producer saw, first and last.
    sets: Vec<(Producer, [Entries; 2])>,
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
        keys.map(|key| (key.to_vec(), pins.pins_of(root, &key).iter().map(|pin| pin.mount).collect())).collect()
    };
    (0..pins.roots().count()).map(of).collect()
}

fn since(started: Instant) -> u64 {
    u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// Entries that some producer showed both times and another neither time.
fn compare(root: usize, sets: &[(Producer, [Entries; 2])]) -> Vec<Difference> {
    let shows = |[first, last]: &[Entries; 2], entry: &Vec<u8>| {
        (first[root].contains_key(entry), last[root].contains_key(entry))
    };
    let all: BTreeSet<&Vec<u8>> = sets.iter().flat_map(|(_, [first, _])| first[root].keys()).collect();
    let mut differences = Vec::new();
    for entry in all {
        let by = |wanted: (bool, bool)| -> Vec<Producer> {
            sets.iter().filter(|(_, set)| shows(set, entry) == wanted).map(|(producer, _)| *producer).collect()
        };
        let (mut seen_by, mut missed_by) = (by((true, true)), by((false, false)));
        if seen_by.is_empty() || missed_by.is_empty() {
            continue;
        }
        seen_by.sort_unstable();
        missed_by.sort_unstable();
        let cause = cause(root, entry, sets, &seen_by, &missed_by);
        differences.push(Difference { root, entry: entry.clone(), seen_by, missed_by, cause });
    }
    differences
}

fn cause(
    root: usize,
    entry: &Vec<u8>,
    sets: &[(Producer, [Entries; 2])],
    seen_by: &[Producer],
    missed_by: &[Producer],
) -> Option<String> {
    let of = |producers: &[Producer]| -> Vec<&BTreeMap<Vec<u8>, BTreeSet<MountId>>> {
        let sets = sets.iter().filter(|(producer, _)| producers.contains(producer));
        sets.map(|(_, [_, last])| &last[root]).collect()
    };
    let mounts: BTreeSet<MountId> = of(seen_by).iter().filter_map(|set| set.get(entry)).flatten().copied().collect();
    // The same mount on another entry: the entry was renamed, for which the kernel sends nothing.
    let renamed = of(missed_by).into_iter().flatten().find(|(_, other)| !other.is_disjoint(&mounts));
    if let Some((name, _)) = renamed {
        return Some(format!("renamed while in use: the same mount shows on {}", String::from_utf8_lossy(name)));
    }
    match (seen_by, missed_by.contains(&Producer::Walk)) {
        ([Producer::Walk], _) => Some(
            "no mount table shows it: a detached tree, one that was unmounted while busy, or one that the kernel made for \
             itself"
                .to_owned(),
        ),
        (_, true) => Some(
            "no mount of this file system: a layer that only the options of an overlay name, such as its work directory"
                .to_owned(),
        ),
        _ => None,
    }
}
