//! What is told of a pass as it goes, and its summary.

use super::examine::now;
use super::options::{EntryEvent, PassEvent, PassOptions};
use super::troubles::Troubles;
use crate::config::{RemoveRule, RootConfig};
use crate::evidence::source::View;
use crate::model::pin::Pin;
use crate::model::report::{PassSummary, Producer, Reason, Remarks, Verdict};
use crate::model::tally::{Outcome, Tally};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Why an entry has its name back, where there is no more to say.
const GIVEN_BACK: &str =
    "what keeps it shows only once it is condemned, so it is condemned and given back in each pass";

/// Faults told of single entries in a pass that does not tell of every entry.
const FAULTS_TOLD: u64 = 20;

/// The claim of the evidence that was taken last.
#[derive(Debug, Default)]
pub(super) struct Claim {
    producer: Option<Producer>,
    complete: bool,
    covered: bool,
    gaps: BTreeMap<&'static str, u64>,
}

impl Claim {
    /// Takes the claim of a view for the entries of a root, and for the root's owner.
    pub(super) fn take(&mut self, view: &View<'_>, rules: &RootConfig, owner: u32) {
        let claim = view.claim(rules.remove != RemoveRule::Empty);
        let gaps = claim.gaps().iter().map(|(cause, count)| (cause.name(), *count)).collect();
        let (complete, covered) = (claim.complete(), claim.covered(owner));
        *self = Self { producer: Some(view.producer), complete, covered, gaps };
    }
}

/// Counts entries and tells of them. The only way into either, so that neither goes without the other.
pub(super) struct Report<'a> {
    tally: Tally,
    pub(super) candidates: u64,
    faults: u64,
    weaker_told: bool,
    /// What the summary tells besides counts.
    pub(super) remarks: Remarks,
    pub(super) troubles: Troubles,
    pub(super) per_entry: bool,
    on_event: &'a mut dyn FnMut(PassEvent),
}

impl<'a> Report<'a> {
    /// Nothing counted yet.
    pub(super) fn new(per_entry: bool, troubles: Troubles, on_event: &'a mut dyn FnMut(PassEvent)) -> Self {
        let (tally, remarks) = (Tally::default(), Remarks::default());
        Self { tally, candidates: 0, faults: 0, weaker_told: false, remarks, troubles, per_entry, on_event }
    }

    /// What became of an entry.
    pub(super) fn entry(
        &mut self,
        name: &[u8],
        outcome: Outcome,
        reason: Option<Reason>,
        pins: Vec<Pin>,
        detail: Option<String>,
    ) {
        self.tally.record(outcome);
        let is_fault = matches!(outcome, Outcome::Restored(_) | Outcome::Condemned) || detail.is_some();
        let lasts = lasts(outcome, reason, detail.is_some());
        let is_given_back = matches!(outcome, Outcome::Restored(_));
        let why = detail.clone().or_else(|| (lasts && is_given_back).then(|| GIVEN_BACK.to_owned()));
        let due = !lasts || self.is_due(name, outcome, why.as_deref());
        if self.per_entry || (is_fault && due && self.has_room()) {
            self.tell(name, outcome, reason, pins, if self.per_entry { detail } else { why }, lasts);
        }
    }

    /// What became of an entry that an earlier pass could not remove and that is left alone for now.
    pub(super) fn quiet(&mut self, name: &[u8], outcome: Outcome, reason: Option<Reason>, detail: Option<String>) {
        self.tally.record(outcome);
        if self.is_due(name, outcome, None) && self.has_room() || self.per_entry {
            self.tell(name, outcome, reason, Vec::new(), detail, true);
        }
    }

    /// An entry was proved to be free, and there was no time to remove it. How many there are is told once in a pass.
    pub(super) fn left(&mut self, name: &[u8]) {
        self.tally.record(Outcome::Condemned);
        self.troubles.look_past(name);
        if self.per_entry {
            let detail = "the pass had to end before it was removed; a later one goes on";
            self.tell(name, Outcome::Condemned, None, Vec::new(), Some(detail.into()), false);
        }
    }

    /// Whether it is time to tell of an entry with which it will be no other way in the next pass: at first and then once a
    /// day.
    fn is_due(&mut self, name: &[u8], outcome: Outcome, why: Option<&str>) -> bool {
        self.troubles.see(name, why, outcome == Outcome::Condemned, now())
    }

    /// Counts a fault. Whether there is room for it among those that are told of.
    fn has_room(&mut self) -> bool {
        if self.per_entry {
            return true;
        }
        self.faults += 1;
        if self.faults == FAULTS_TOLD + 1 {
            self.note("more entries were restored or failed; only counts are told of them from here on".into());
        }
        self.faults <= FAULTS_TOLD
    }

    /// `lasts`: it is remembered that this was told.
    fn tell(
        &mut self,
        name: &[u8],
        outcome: Outcome,
        reason: Option<Reason>,
        pins: Vec<Pin>,
        detail: Option<String>,
        lasts: bool,
    ) {
        if lasts {
            self.troubles.told(name, outcome == Outcome::Condemned, now());
        }
        let verdict = match outcome {
            Outcome::Kept(_) => Verdict::Kept,
            Outcome::Restored(_) => Verdict::Restored,
            Outcome::Removed => Verdict::Removed,
            Outcome::Condemned => Verdict::Condemned,
            Outcome::WouldRemove => Verdict::WouldRemove,
        };
        (self.on_event)(PassEvent::Entry(EntryEvent { name: name.to_vec(), verdict, reason, pins, detail }));
    }

    /// Something about the pass as a whole.
    pub(super) fn note(&mut self, note: String) {
        (self.on_event)(PassEvent::Note(note));
    }

    /// Tells, once in a pass, that the wait before confirmation is no proof.
    pub(super) fn weaker(&mut self, waited: Duration, why: &str) {
        if !std::mem::replace(&mut self.weaker_told, true) {
            self.note(weaker(waited, why));
        }
    }

    /// Tells how far the pass is.
    pub(super) fn progress(&mut self) {
        let (listed, removed) = (self.tally.listed(), self.tally.removed());
        (self.on_event)(PassEvent::Progress { listed, removed });
    }
}

/// What is told of a wait that is no proof.
pub(super) fn weaker(waited: Duration, why: &str) -> String {
    let waited = waited.as_millis();
    format!("{why}; {waited} ms were waited instead, which is a weaker guarantee")
}

/// Whether it is the next pass that would come to the same: the entry cannot be removed, cannot be judged, or is condemned
/// and given back each time. Not what others say of it, or could not say: that is seen before the next pass condemns it.
fn lasts(outcome: Outcome, reason: Option<Reason>, is_told: bool) -> bool {
    match outcome {
        Outcome::Restored(reason) => {
            !matches!(reason, Reason::NoEvidence | Reason::Claimed | Reason::KeepUntil | Reason::Leased)
        }
        Outcome::Kept(Reason::Retained) => is_told,
        _ => reason == Some(Reason::Failed),
    }
}

/// The summary of a pass that has ended.
pub(super) fn summary(
    rules: &RootConfig,
    report: Report<'_>,
    claim: Claim,
    options: &PassOptions,
    truncated: bool,
    begun: Instant,
) -> PassSummary {
    let Report { tally, candidates, remarks, .. } = report;
    let Claim { producer, complete, covered, gaps } = claim;
    PassSummary {
        root: rules.name.clone(),
        // Nothing was asked where the pass was over before there was anything to ask about; then nothing was removed.
        evidence: producer.unwrap_or(Producer::Scan),
        complete,
        covered,
        gaps,
        listed: tally.listed(),
        candidates,
        kept: tally.kept().clone(),
        removed: tally.removed(),
        restored: tally.restored(),
        condemned: tally.condemned(),
        truncated,
        dry_run: options.dry_run,
        remarks,
        elapsed_ms: u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX),
    }
}
