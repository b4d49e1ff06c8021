//! The live set: pins per namespace, kept by events between baselines.
//!
//! An event only marks the namespace that it happened in; whoever owns the set reads marked namespaces again and hands
//! the tables in, and what changed in them marks the namespaces that receive from their peer groups. A namespace whose
//! last task exits is suspected, and leaves with its pins once a reading finds it gone.
//!
//! Invariant: from the first sign of a gap until the next baseline the set may add pins and frees none.

use super::coverage::{Coverage, GapCause, Reach};
use super::event::{Event, Hook};
use super::id::{Location, NamespaceId};
use super::mount::{Mount, MountTable};
use super::pin::Pin;
use super::pin_set::{NamespacePins, PinSet};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// How often a suspected namespace is looked at before it is believed to live on without tasks.
const LOOKS: u32 = 64;

/// What reading one namespace again has shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reading {
    /// Its mounts.
    Table(NamespacePins),
    /// It does not exist any more.
    Gone,
    /// It could not be read, or not wholly.
    Unknown,
}

/// The set, its claim, and what is due to be read again.
#[derive(Clone, Debug)]
pub struct LiveSet {
    pins: PinSet,
    coverage: Coverage,
    due: BTreeSet<NamespaceId>,
    /// Namespaces in which mounts were changed by a call, as far as they are due for that reason.
    changed: BTreeSet<NamespaceId>,
    /// Namespaces that were made, as far as they are due for that reason.
    made: BTreeSet<NamespaceId>,
    suspected: BTreeMap<NamespaceId, u32>,
    gap: bool,
    receivers: Receivers,
}

impl LiveSet {
    /// The set right after a baseline: pins of every namespace, and the claim that goes with them.
    #[must_use]
    pub fn baseline(
        roots: impl IntoIterator<Item = Location>,
        namespaces: Vec<(NamespaceId, NamespacePins)>,
        coverage: Coverage,
    ) -> Self {
        let mut receivers = Receivers::default();
        for (namespace, table) in &namespaces {
            receivers.add(*namespace, &table.table.mounts);
        }
        let mut pins = PinSet::of(namespaces);
        pins.watch(roots);
        Self {
            pins,
            coverage,
            due: BTreeSet::new(),
            changed: BTreeSet::new(),
            made: BTreeSet::new(),
            suspected: BTreeMap::new(),
            gap: false,
            receivers,
        }
    }

    /// Indexes other roots from here on; what is known of namespaces stays.
    pub fn watch(&mut self, roots: impl IntoIterator<Item = Location>) {
        self.pins.watch(roots);
    }

    /// Takes in one event.
    pub fn note(&mut self, event: &Event) {
        let Some(namespace) = event.namespace.map(|inode| NamespaceId(inode.into())) else {
            // Something happened, and nobody knows where.
            self.lost(1);
            return;
        };
        match event.hook {
            Hook::Mount | Hook::Umount | Hook::MoveMount | Hook::PivotRoot | Hook::MountSetattr => {
                self.changed.insert(namespace);
                self.due.insert(namespace);
            }
            Hook::Unshare | Hook::Clone | Hook::Clone3 => {
                self.made.insert(namespace);
                self.due.insert(namespace);
            }
            Hook::Setns => {
                if !self.pins.knows(namespace) {
                    self.due.insert(namespace);
                }
            }
            // These make or configure trees that are in no namespace yet; attaching one is a move_mount.
            Hook::OpenTree | Hook::Fsmount | Hook::Fsconfig => {}
            Hook::Exit | Hook::Depart => {
                self.suspected.insert(namespace, LOOKS);
            }
        }
    }

    /// Takes in that events were lost: nothing is freed until the next baseline.
    pub fn lost(&mut self, count: u64) {
        self.gap |= count > 0;
        self.coverage.lower(GapCause::EventsLost, count, Reach::Everybody);
    }

    /// Takes in which namespaces exist. `whole` tells that the list leaves none out.
    pub fn exist(&mut self, alive: &BTreeSet<NamespaceId>, whole: bool) {
        if whole {
            // Number 0 stands for tables whose namespace is not known; no listing speaks of them.
            let known = self.pins.namespaces().map(|(namespace, _)| namespace).filter(|namespace| namespace.0 != 0);
            let known: Vec<NamespaceId> = known.collect();
            for namespace in known.into_iter().filter(|namespace| !alive.contains(namespace)) {
                self.read(namespace, Reading::Gone);
            }
        }
        self.due.extend(alive.iter().filter(|namespace| !self.pins.knows(**namespace)));
    }

    /// Namespaces to be read again before the set is true to every event noted, suspected ones included.
    #[must_use]
    pub fn take_due(&mut self) -> Vec<NamespaceId> {
        let mut due = std::mem::take(&mut self.due);
        due.extend(self.suspected.keys());
        due.into_iter().collect()
    }

    /// Whether something besides suspected namespaces is due.
    #[must_use]
    pub fn is_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// Takes in what a namespace holds now, and marks those that receive what changed in it.
    pub fn read(&mut self, namespace: NamespaceId, reading: Reading) {
        let called = self.changed.remove(&namespace);
        // Its number may have been another one's.
        let is_fresh = self.made.remove(&namespace) || !self.pins.knows(namespace);
        match reading {
            Reading::Table(mut pins) => {
                if let Some(looks) = self.suspected.get_mut(&namespace) {
                    *looks -= 1;
                    if *looks == 0 {
                        self.suspected.remove(&namespace);
                    }
                }
                let known = self.pins.namespace(namespace).map(|known| known.table).unwrap_or_default();
                if self.gap {
                    keep_all(&mut pins.table, &known);
                }
                let known = &known.mounts[..];
                let groups = match changed_groups(known, &pins.table.mounts) {
                    // Calls were made and nothing differs: what they did to receivers need not have been undone there.
                    None if called => known.iter().map(|mount| mount.peer_group).collect(),
                    groups => groups.unwrap_or_default(),
                };
                self.due.extend(self.receivers.of(groups));
                if called && is_fresh {
                    // It may have been a peer of any when the calls were made, and have left since.
                    self.due.extend(self.receivers.witnesses(namespace));
                }
                self.due.remove(&namespace);
                self.receivers.remove(namespace);
                self.receivers.add(namespace, &pins.table.mounts);
                self.pins.replace(namespace, pins);
            }
            Reading::Gone => {
                self.suspected.remove(&namespace);
                let known = self.receivers.by_namespace.get(&namespace).cloned().unwrap_or_default();
                // What was mounted in it, or came by it, may live on in whoever received it.
                let groups = match called {
                    true => known.peers,
                    false => known.onward().map(|(_, onward)| onward).collect(),
                };
                self.due.extend(self.receivers.of(groups));
                if called && is_fresh {
                    // Of a namespace that came and went between two readings nothing is known: a peer of any, it may be.
                    self.due.extend(self.receivers.witnesses(namespace));
                }
                self.due.remove(&namespace);
                // Once: two that are gone and kept for a gap would have each other read for ever.
                self.receivers.remove(namespace);
                if !self.gap {
                    self.pins.remove(namespace);
                }
            }
            Reading::Unknown => {
                self.suspected.remove(&namespace);
                self.gap = true;
                self.coverage.lower(GapCause::NamespaceUnread, 1, Reach::Everybody);
            }
        }
    }

    /// Puts pins that belong to no mount table in the place of those that were known.
    pub fn see(&mut self, loose: Vec<Pin>) {
        self.pins.clear_loose();
        for pin in loose {
            self.pins.add_loose(pin);
        }
    }

    /// The pins as they are known.
    #[must_use]
    pub fn pins(&self) -> &PinSet {
        &self.pins
    }

    /// The claim: that of the baseline, lowered by what was missed since.
    #[must_use]
    pub fn coverage(&self) -> &Coverage {
        &self.coverage
    }

    /// Whether a baseline is needed before the set can free anything.
    #[must_use]
    pub fn has_gap(&self) -> bool {
        self.gap
    }
}

/// Peer groups through which what differs between two tables could have reached other namespaces: those of the mounts
/// that differ, and those of the mounts they are mounted on. None when nothing differs.
fn changed_groups(old: &[Mount], new: &[Mount]) -> Option<BTreeSet<u64>> {
    let (in_old, in_new): (HashSet<&Mount>, HashSet<&Mount>) = (old.iter().collect(), new.iter().collect());
    let mut groups: Option<BTreeSet<u64>> = None;
    let mut involve = |mount: &Mount, table: &[Mount]| {
        let groups = groups.get_or_insert_default();
        groups.insert(mount.peer_group);
        groups.extend(table.iter().filter(|other| other.id == mount.parent).map(|parent| parent.peer_group));
    };
    for mount in in_old.difference(&in_new) {
        involve(mount, old);
    }
    for mount in in_new.difference(&in_old) {
        involve(mount, new);
    }
    groups
}

/// Puts what `known` holds and `table` does not into `table`.
fn keep_all(table: &mut MountTable, known: &MountTable) {
    let found: HashSet<Mount> = table.mounts.iter().cloned().collect();
    table.mounts.extend(known.mounts.iter().filter(|mount| !found.contains(*mount)).cloned());
    for layer in &known.layers {
        if !table.layers.contains(layer) {
            table.layers.push(layer.clone());
        }
    }
}

/// Which namespaces receive from a peer group: those with a peer in it or a slave of it, and what such a slave passes on.
#[derive(Clone, Debug, Default)]
struct Receivers {
    by_group: HashMap<u64, BTreeSet<NamespaceId>>,
    by_namespace: HashMap<NamespaceId, Groups>,
}

/// The groups that the mounts of a namespace are in.
#[derive(Clone, Debug, Default)]
struct Groups {
    /// Those that it has a peer in.
    peers: BTreeSet<u64>,
    /// Those that it has a slave of, each with the group that the slave passes on to; 0 for none.
    masters: BTreeSet<(u64, u64)>,
}

impl Groups {
    fn all(&self) -> BTreeSet<u64> {
        self.peers.iter().copied().chain(self.masters.iter().map(|(master, _)| *master)).collect()
    }

    fn onward(&self) -> impl Iterator<Item = (u64, u64)> {
        self.masters.iter().copied().filter(|(_, onward)| *onward != 0)
    }
}

impl Receivers {
    fn add(&mut self, namespace: NamespaceId, mounts: &[Mount]) {
        let peers = mounts.iter().map(|mount| mount.peer_group).filter(|group| *group != 0).collect();
        let masters = mounts.iter().map(|mount| (mount.master, mount.peer_group)).filter(|(master, _)| *master != 0);
        let groups = Groups { peers, masters: masters.collect() };
        for group in groups.all() {
            self.by_group.entry(group).or_default().insert(namespace);
        }
        self.by_namespace.insert(namespace, groups);
    }

    fn remove(&mut self, namespace: NamespaceId) {
        for group in self.by_namespace.remove(&namespace).unwrap_or_default().all() {
            if let Some(namespaces) = self.by_group.get_mut(&group) {
                namespaces.remove(&namespace);
                if namespaces.is_empty() {
                    self.by_group.remove(&group);
                }
            }
        }
    }

    /// Those that receive from some groups, also by way of others, where nothing may show it.
    fn of(&self, groups: BTreeSet<u64>) -> BTreeSet<NamespaceId> {
        let mut found = BTreeSet::new();
        let mut open: Vec<u64> = groups.iter().copied().collect();
        let mut seen = groups;
        while let Some(group) = open.pop() {
            for namespace in self.by_group.get(&group).into_iter().flatten() {
                found.insert(*namespace);
                let known = self.by_namespace.get(namespace);
                let onward = known.into_iter().flat_map(Groups::onward).filter(|(master, _)| *master == group);
                open.extend(onward.map(|(_, onward)| onward).filter(|onward| seen.insert(*onward)));
            }
        }
        found
    }

    /// Those that show whether anything came through any group from outside of all that is known: one peer of each, for what
    /// reaches one reaches all. Where no peer is known, all that receive. (What is taken away may stay on one peer, for
    /// something is mounted on it there, and go elsewhere; it is believed in there until that is read, which only keeps.)
    fn witnesses(&self, stranger: NamespaceId) -> BTreeSet<NamespaceId> {
        let mut found = BTreeSet::new();
        for (group, receivers) in &self.by_group {
            let is_peer = |namespace: &&NamespaceId| {
                let known = self.by_namespace.get(namespace);
                **namespace != stranger && known.is_some_and(|known| known.peers.contains(group))
            };
            match receivers.iter().find(is_peer) {
                Some(peer) => drop(found.insert(*peer)),
                None => found.extend(receivers),
            }
        }
        found
    }
}

#[cfg(test)]
#[path = "live_tests.rs"]
mod tests;
