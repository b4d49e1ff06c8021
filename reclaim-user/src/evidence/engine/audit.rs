//! Comparing producers: each pin that one saw and another did not.

use super::{Engine, EngineError};
use crate::model::id::MountId;
use crate::model::live::LiveSet;
use crate::model::pin_set::PinSet;
use crate::model::report::Producer;
use std::collections::{BTreeMap, BTreeSet};
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
    /// The live set is taken as the probes left it, and is taken again after the scan: what changed while the scan ran
    /// is in one of the two and is no difference.
    ///
    /// # Errors
    /// When mount tables cannot be read.
    pub fn audit(&mut self) -> Result<Audit, EngineError> {
        let mut producers = Vec::new();
        if self.probes.is_none() {
            let why = self.probes_missing.clone();
            producers.push(ProducerReport::absent(Producer::Live, why.unwrap_or_else(|| "no probes".to_owned())));
            let started = Instant::now();
            self.baseline()?;
            producers.push(ProducerReport::of(Producer::Scan, &self.live, started));
            return Ok(Audit { differences: Vec::new(), producers });
        }
        let started = Instant::now();
        self.take_events();
        self.refresh()?;
        producers.push(ProducerReport::of(Producer::Live, &self.live, started));
        let before = self.live.clone();
        let started = Instant::now();
        let scanned = super::scanned(&mut self.scanner, &self.watch)?;
        producers.push(ProducerReport::of(Producer::Scan, &scanned, started));
        self.take_events();
        self.refresh()?;
        let differences =
            (0..self.watch.len()).flat_map(|root| compare(root, [&before, &self.live], &scanned)).collect();
        Ok(Audit { differences, producers })
    }
}

impl ProducerReport {
    fn of(producer: Producer, set: &LiveSet, started: Instant) -> Self {
        let pins = set.pins();
        Self {
            producer,
            namespaces: pins.namespaces().count(),
            mounts: pins.mounts(),
            pinned_entries: (0..pins.roots().count()).map(|root| pins.entries(root).len()).sum(),
            elapsed_ms: u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
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

fn compare(root: usize, live: [&LiveSet; 2], scanned: &LiveSet) -> Vec<Difference> {
    let entries =
        |set: &LiveSet| -> BTreeSet<Vec<u8>> { set.pins().entries(root).into_iter().map(<[u8]>::to_vec).collect() };
    let [before, after] = [entries(live[0]), entries(live[1])];
    let scan = entries(scanned);
    let difference = |entry: &Vec<u8>, seen_by, missed_by, cause| Difference {
        root,
        entry: entry.clone(),
        seen_by: vec![seen_by],
        missed_by: vec![missed_by],
        cause,
    };
    let live_only = before
        .intersection(&after)
        .filter(|entry| !scan.contains(*entry))
        .map(|entry| difference(entry, Producer::Live, Producer::Scan, renamed(root, entry, live[1], scanned)));
    let scan_only = scan
        .iter()
        .filter(|entry| !before.contains(*entry) && !after.contains(*entry))
        .map(|entry| difference(entry, Producer::Scan, Producer::Live, renamed(root, entry, scanned, live[1])));
    live_only.chain(scan_only).collect()
}

/// The same mount shows under another entry in the other set: the entry was renamed, for which the kernel sends nothing.
fn renamed(root: usize, entry: &[u8], seen: &LiveSet, other: &LiveSet) -> Option<String> {
    let mounts: BTreeSet<MountId> = seen.pins().pins_of(root, entry).iter().map(|pin| pin.mount).collect();
    let elsewhere = entries_of(other.pins(), root, &mounts);
    let name = elsewhere.keys().next()?;
    Some(format!("renamed while in use: the other sees the same mount on {}", String::from_utf8_lossy(name)))
}

fn entries_of(pins: &PinSet, root: usize, mounts: &BTreeSet<MountId>) -> BTreeMap<Vec<u8>, MountId> {
    let mut found = BTreeMap::new();
    for key in pins.entries(root) {
        if let Some(pin) = pins.pins_of(root, key).iter().find(|pin| mounts.contains(&pin.mount)) {
            found.insert(key.to_vec(), pin.mount);
        }
    }
    found
}
