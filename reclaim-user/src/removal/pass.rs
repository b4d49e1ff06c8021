//! One pass over one root: what its steps share, and the end that every condemned entry comes to.

use super::ahead::Ahead;
use super::condemn::{Batch, Condemned, Group, key_into};
use super::confirm::{Denied, Proof, prove};
use super::crash;
use super::error::RemovalError;
use super::examine::Examiner;
use super::finish::{Ended, Hand, Proven, Queue, Tools, end};
use super::leases::{self, Leases};
use super::limits::Limits;
use super::lock::Store;
use super::options::{PassEvent, PassOptions, RootState, Stuck};
use super::place::Root;
use super::report::{Claim, Report, summary};
use super::restore::restore;
use super::troubles::Looked;
use super::words::Words;
use crate::config::{RemoveRule, RootConfig};
use crate::evidence::source::{CondemnedIn, EvidenceSource, Settled};
use crate::model::id::Location;
use crate::model::report::{PassSummary, Reason};
use crate::model::tally::Outcome;
use crate::sys::directory;
use nix::fcntl::Flock;
use std::collections::HashSet;
use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest piece of work between two calls of `between`.
pub(super) const PIECE: Duration = Duration::from_millis(40);

/// Entries that are left to another thread to remove while a group is proved, before it is known how many it removes.
const MEANWHILE_FIRST: usize = 256;

/// Shortest time that mount calls in flight are given, however little is left of the budget.
const SETTLE_LEAST: Duration = Duration::from_millis(250);

/// How long programs that tell what is to be kept have, once somebody waits for the pass and entries are condemned: that is
/// enough for most, and what is not heard in time has its name back.
const CUT_PATIENCE: Duration = Duration::from_secs(1);

/// Makes one pass over a root: leftovers first, then its entries from where the pass before was cut short.
///
/// `index` is the root's index in the evidence, `location` where it lies in its file system; both are checked against
/// the root as it is opened. `between` is called between pieces of work, at least every 50 ms or so but for single
/// calls that take longer, so that queries can be answered meanwhile.
///
/// # Errors
/// When the pass cannot be made or has to end early. Nothing that is live is condemned then.
#[expect(
    clippy::too_many_arguments,
    reason = "each is another owner's, and a struct of borrows would only rename them"
)]
pub fn pass<E: EvidenceSource>(
    root: &RootConfig,
    index: usize,
    location: &Location,
    evidence: &mut E,
    options: &PassOptions,
    state: &mut RootState,
    on_event: &mut dyn FnMut(PassEvent),
    between: &mut dyn FnMut(&mut E),
) -> Result<PassSummary, RemovalError> {
    let begun = Instant::now();
    let rules = root;
    let report = Report::new(options.per_entry, std::mem::take(&mut state.troubles), on_event);
    let claim = Claim::default();
    let Some(root) = Root::open(&rules.path)? else {
        state.cursor = Default::default();
        return Ok(summary(rules, report, claim, options, false, begun));
    };
    let words = Arc::new(Words::unheard());
    let examiner = Examiner::new(&root, Arc::clone(&words));
    let mut pass = Pass {
        rules,
        index,
        location,
        root,
        evidence,
        options,
        state,
        report,
        between,
        begun,
        breathed: begun,
        claim,
        obstacle: None,
        examiner,
        words,
        done: HashSet::new(),
        truncated: false,
        verified: false,
        store: None,
        leases: Leases::up_to(options.held_leases),
        root_lock: None,
        hand: None,
        meanwhile: MEANWHILE_FIRST,
        proved: None,
        left: 0,
    };
    let result = pass.run();
    let Pass { mut report, claim, truncated, store, root, state, evidence, left, .. } = pass;
    evidence.guard(None);
    if left > 0 {
        let (entries, them) = if left == 1 { ("entry", "it") } else { ("entries", "them") };
        report.note(format!(
            "{left} {entries} proved to be free could not be removed in time; a later pass goes on with {them}"
        ));
    }
    // A dry run finds out of nothing whether it can be removed.
    let is_real = matches!(result, Ok(true)) && !options.dry_run;
    let is_through = is_real && !truncated && !options.leftovers_only;
    if options.leftovers_only {
        report.troubles.forget_given_back();
    }
    report.troubles.end(Looked { condemned: is_real, listed: is_through });
    state.troubles = std::mem::take(&mut report.troubles);
    let RootState { troubles, stuck, .. } = state;
    // Somebody else may have removed what lay under its own name. What lies condemned was gone through by the look at that.
    stuck.retain(|(batch, name), _| !batch.is_empty() || !is_through || troubles.may_have(name));
    if let Some(store) = store {
        store.close(&root);
    }
    report.remarks.cut = truncated && options.is_cut();
    result.map(|_| summary(rules, report, claim, options, truncated, begun))
}

/// What the steps of a pass share.
pub(super) struct Pass<'a, E: EvidenceSource> {
    pub(super) rules: &'a RootConfig,
    pub(super) index: usize,
    pub(super) location: &'a Location,
    pub(super) root: Root,
    pub(super) evidence: &'a mut E,
    pub(super) options: &'a PassOptions,
    pub(super) state: &'a mut RootState,
    pub(super) report: Report<'a>,
    pub(super) between: &'a mut dyn FnMut(&mut E),
    pub(super) begun: Instant,
    pub(super) breathed: Instant,
    pub(super) claim: Claim,
    /// Why nothing more can be condemned in this pass. It was told once.
    pub(super) obstacle: Option<Reason>,
    pub(super) examiner: Examiner,
    /// What others say of entries, as it was heard last.
    pub(super) words: Arc<Words>,
    /// Names that came to be in this pass, given back or makeshift: the listing may come by them once more.
    pub(super) done: HashSet<Vec<u8>>,
    pub(super) truncated: bool,
    /// The root was seen to lie where evidence looks, in this pass.
    pub(super) verified: bool,
    pub(super) store: Option<Store>,
    pub(super) leases: Leases,
    /// Held instead of the store's lock while there is no room for a store.
    pub(super) root_lock: Option<Flock<OwnedFd>>,
    /// The group that is being removed while the listing goes on.
    hand: Option<Hand>,
    /// Entries of it that are removed while a group is proved, as far as that is known.
    meanwhile: usize,
    /// When the first group of what lay condemned was proved, or of what is listed.
    proved: Option<Instant>,
    /// Entries that were proved and that there was no time for.
    left: u64,
}

impl<E: EvidenceSource> Pass<'_, E> {
    /// Gives whether it has looked at all that lay condemned.
    fn run(&mut self) -> Result<bool, RemovalError> {
        let windows = &mut self.state.windows;
        windows.be_of(&self.rules.path.to_string_lossy());
        // A pass that lists nothing takes nothing in.
        if !self.options.dry_run && !self.options.leftovers_only {
            windows.note(self.rules.retain, super::examine::now());
        }
        // Where nothing is listed, words are heard before what lies condemned is judged, and nothing lies there most times.
        if !self.options.leftovers_only && !self.hear(Duration::ZERO) {
            // What cannot be judged is left as it is: what lies condemned was proved once, and is judged by the next pass.
            self.truncated = true;
            return Ok(false);
        }
        if self.options.dry_run {
            self.count_leftovers()?;
        } else if let Some(store) = Store::open_existing(&self.root, false)? {
            crash::step("after-lock");
            let result = self.leftovers(&store);
            self.finish(Some(&store));
            self.store = Some(store);
            result?;
        }
        if !self.options.leftovers_only {
            // A tree that takes all the time of many passes holds up no other entry.
            self.proved = None;
            self.list()?;
        }
        Ok(true)
    }

    /// Whether nothing more is to be begun.
    pub(super) fn is_over(&self) -> bool {
        self.is_called_off() || self.begun.elapsed() >= self.options.budget
    }

    /// Whether it was told to stop, or to make way.
    pub(super) fn is_called_off(&self) -> bool {
        self.options.is_stopped() || self.options.is_cut()
    }

    /// Lets others have their turn when it is time for that.
    pub(super) fn breathe(&mut self) {
        if self.breathed.elapsed() >= PIECE {
            self.report.progress();
            (self.between)(self.evidence);
            self.breathed = Instant::now();
        }
    }

    /// Nothing more is condemned in this pass. Entries that pass every fence are kept for this reason.
    pub(super) fn block(&mut self, reason: Reason, note: String) {
        if self.obstacle.is_none() {
            self.obstacle = Some(reason);
            self.report.note(note);
        }
    }

    /// Waits, confirms, and restores or removes every entry of a group. Nothing of it is left without an end, but for
    /// what cannot be moved or removed. [`Pass::finish`] has to follow: the removal may still be under way, on the thread that
    /// looks ahead where there is one and no processor for another. Returns what waiting and confirming took.
    pub(super) fn conclude(&mut self, store: Option<&Store>, group: Group, ahead: Option<&Ahead>) -> Duration {
        let Group { batches, entries, .. } = group;
        let batches: Arc<[Batch]> = batches.into();
        if entries.is_empty() {
            self.remove_batches(store, &batches);
            return Duration::ZERO;
        }
        let begun = Instant::now();
        self.evidence.guard(store.map(Store::directory));
        crash::step("after-condemn");
        let waited = self.wait();
        let waited_for = begun.elapsed();
        // One group at a time, and no proof is older than it has to be: what is still being removed is about as much as
        // will be by the time that this group is proved.
        match self.rules.remove {
            RemoveRule::Empty => self.help(self.meanwhile),
            RemoveRule::Tree | RemoveRule::Command => self.finish(store),
        }
        let (left, begun) = (self.being_removed(), Instant::now());
        // Before the evidence, which must not be older than it has to be.
        if waited.is_ok() {
            self.hear(CUT_PATIENCE);
        }
        let proofs = waited.and_then(|()| self.prove(&batches, &entries));
        let confirmed_for = waited_for + begun.elapsed();
        self.meanwhile = match self.being_removed() {
            0 => (2 * left).max(MEANWHILE_FIRST),
            still => left - still,
        };
        self.finish(store);
        crash::step("after-confirm");
        match proofs {
            Ok(proofs) => {
                let (entries, proofs) = self.give_back_denied(&batches, entries, proofs);
                let proven = Proven { batches, entries: Queue::new(entries, proofs) };
                let Self { rules, root, options, words, .. } = self;
                let proved = *self.proved.get_or_insert_with(Instant::now);
                let limits = Limits::new(rules, options, self.begun, proved);
                let tools = || Tools {
                    rules: (*rules).clone(),
                    examiner: Examiner::new(root, Arc::clone(words)),
                    limits: limits.clone(),
                };
                // A third thread would keep one of the others waiting. But what takes long would keep names waiting.
                let shares = rules.remove == RemoveRule::Empty && options.processors <= 2;
                match Hand::over(proven, tools, ahead.filter(|_| shares)) {
                    Ok(hand) => self.hand = Some(hand),
                    Err(Proven { batches, entries }) => {
                        self.end_here(&batches, entries.taken(), &limits);
                        crash::step("after-remove");
                        self.remove_batches(store, &batches);
                    }
                }
            }
            Err(note) => {
                self.block(Reason::NoEvidence, note);
                for condemned in entries {
                    self.breathe();
                    self.give_back(&batches, condemned, Denied::of(Reason::NoEvidence));
                }
                self.remove_batches(store, &batches);
            }
        }
        self.report.progress();
        confirmed_for
    }

    /// Gives back what was found to be live, before anything that goes: no path leads to it meanwhile.
    fn give_back_denied(
        &mut self,
        batches: &[Batch],
        entries: Vec<Condemned>,
        proofs: Vec<Proof>,
    ) -> (Vec<Condemned>, Vec<Proof>) {
        if proofs.iter().all(Proof::passes) {
            return (entries, proofs);
        }
        let mut left = (Vec::with_capacity(entries.len()), Vec::with_capacity(proofs.len()));
        for (condemned, proof) in std::iter::zip(entries, proofs) {
            match proof.into_result() {
                Ok(proof) => left.extend([(condemned, proof)]),
                Err(denied) => {
                    self.breathe();
                    self.give_back(batches, condemned, denied);
                }
            }
        }
        left
    }

    /// Brings the entries of a group to their ends on this thread, or those that no other thread takes meanwhile.
    fn end_here(&mut self, batches: &[Batch], entries: impl Iterator<Item = (Condemned, Proof)>, limits: &Limits) {
        self.examiner.refresh();
        let mut leases = leases::Ended::default();
        for (condemned, proof) in entries {
            self.breathe();
            self.collect();
            let Self { evidence, between, report, breathed, rules, examiner, .. } = self;
            let mut go_on = || {
                if breathed.elapsed() >= PIECE {
                    report.progress();
                    between(evidence);
                    *breathed = Instant::now();
                }
                limits.go_on()
            };
            let ended = end(rules, examiner, &batches[condemned.batch], condemned, proof, &mut leases, &mut go_on);
            self.take(batches, ended);
        }
    }

    /// Takes part in removing the group that is being removed meanwhile, until about so many are left of it. Not where an entry
    /// may take long: what the thread has for it then has to be given its name back without waiting for that.
    fn help(&mut self, leave: usize) {
        if let Some(hand) = self.hand.as_ref().filter(|_| self.rules.remove == RemoveRule::Empty) {
            let (batches, left, limits) = (Arc::clone(&hand.batches), hand.left.clone(), hand.limits.clone());
            self.end_here(&batches, left.taken_to(leave), &limits);
        }
    }

    fn being_removed(&self) -> usize {
        self.hand.as_ref().map_or(0, |hand| hand.left.len())
    }

    /// Takes what is ready of the group that is being removed meanwhile.
    pub(super) fn collect(&mut self) {
        while let Some(ready) = self.hand.as_ref().and_then(Hand::ready) {
            self.take_all(ready);
        }
    }

    /// Waits until the group that is being removed meanwhile is through.
    pub(super) fn finish(&mut self, store: Option<&Store>) {
        self.help(0);
        while let Some(ready) = self.hand.as_ref().and_then(|hand| hand.wait(PIECE)) {
            self.take_all(ready);
            self.breathe();
        }
        if let Some(hand) = self.hand.take() {
            let batches = hand.close();
            crash::step("after-remove");
            self.remove_batches(store, &batches);
            self.report.progress();
        }
    }

    fn take_all(&mut self, results: Vec<Ended>) {
        if let Some(batches) = self.hand.as_ref().map(|hand| Arc::clone(&hand.batches)) {
            results.into_iter().for_each(|ended| self.take(&batches, ended));
        }
    }

    pub(super) fn remove_batches(&self, store: Option<&Store>, batches: &[Batch]) {
        for batch in batches.iter().filter(|batch| !batch.makeshift) {
            // What is still condemned keeps it from being removed.
            let _ = store.map(|store| directory::remove_directory(store.directory(), &batch.name));
        }
    }

    /// Waits until every mount call that could have resolved an old path is over. Others have their turn meanwhile.
    fn wait(&mut self) -> Result<(), String> {
        let left = self.options.budget.saturating_sub(self.begun.elapsed());
        let limit = self.options.settle_limit.min(left.max(SETTLE_LEAST));
        let begun = Instant::now();
        let Self { evidence, between, report, breathed, options, .. } = self;
        let settled = evidence.settle(limit, &mut |evidence| {
            report.progress();
            between(evidence);
            *breathed = Instant::now();
            // Whoever calls it off has no more time left for it than a pass without any.
            !(options.is_stopped() || options.is_cut()) || begun.elapsed() < SETTLE_LEAST
        });
        crash::step("after-settle");
        match settled {
            Settled::Clock => Ok(()),
            Settled::Fixed { waited, why } => {
                self.report.weaker(waited, &why);
                Ok(())
            }
            Settled::Overdue { calls } => Err(format!(
                "mount calls that began before entries were condemned have not come back, so all were restored: {}",
                calls.join(", ")
            )),
        }
    }

    /// Takes fresh evidence and asks it about every entry.
    fn prove(&mut self, batches: &[Batch], entries: &[Condemned]) -> Result<Vec<Proof>, String> {
        let Self { rules, index, location, root, evidence, report, claim, .. } = self;
        let mut by_batch: Vec<Vec<&Condemned>> = vec![Vec::new(); batches.len()];
        entries.iter().for_each(|condemned| by_batch[condemned.batch].push(condemned));
        // All that lies in the root itself is in one place, however many batches it is of.
        let in_root = batches.iter().position(|batch| batch.makeshift);
        let is_told = |index: usize, batch: &Batch| !batch.makeshift || in_root == Some(index);
        let told = batches.iter().enumerate().filter(|(index, batch)| is_told(*index, batch));
        let condemned: Vec<CondemnedIn<'_>> =
            told.map(|(index, batch)| batch.place(by_batch[index].iter().copied())).collect();
        let view = evidence.confirm(*index, &condemned).map_err(|error| {
            format!("no fresh evidence could be taken, so all that was condemned was restored: {}", chain(&error))
        })?;
        root.verify(view.pins.roots().nth(*index), location).map_err(|error| chain(&error))?;
        claim.take(&view, rules, rules.owner.unwrap_or(root.status.status.owner));
        let with_pins = report.per_entry;
        let is_unchanged = |(index, batch): (usize, &Batch)| batch.is_unchanged(&view, by_batch[index].iter().copied());
        let unchanged: Vec<bool> = batches.iter().enumerate().map(is_unchanged).collect();
        let mut key = Vec::new();
        let proof = |condemned: &Condemned| {
            key_into(&mut key, &batches[condemned.batch], condemned);
            prove(rules, *index, &view, &key, condemned, unchanged[condemned.batch], with_pins)
        };
        Ok(entries.iter().map(proof).collect())
    }

    /// Counts, remembers and tells what became of an entry, and gives it its name back where it has to have it.
    fn take(&mut self, batches: &[Batch], ended: Ended) {
        let key = |batch: usize, name: &CStr| (batches[batch].name.to_bytes().to_vec(), name.to_bytes().to_vec());
        match ended {
            Ended::Gone { name, batch } => {
                if !self.state.stuck.is_empty() {
                    self.state.stuck.remove(&key(batch, &name));
                }
                self.report.entry(name.to_bytes(), Outcome::Removed, None, Vec::new(), None);
            }
            Ended::Denied(denied) => self.give_back(batches, denied.0, denied.1),
            Ended::Stuck(stuck) => {
                let (condemned, fault) = *stuck;
                let key = key(condemned.batch, &condemned.name);
                let stuck = Stuck::again(self.state.stuck.get(&key).copied(), Instant::now());
                self.state.stuck.insert(key, stuck);
                let detail = Some(format!("it stays condemned and is tried again more and more rarely: {fault}"));
                let name = condemned.name.to_bytes();
                self.report.entry(name, Outcome::Condemned, Some(Reason::Failed), Vec::new(), detail);
            }
            Ended::Interrupted(condemned) => {
                // The first one had the time, and the others had none.
                if self.left == 0 {
                    self.state.unfinished.insert(key(condemned.batch, &condemned.name));
                }
                self.left += 1;
                self.report.left(condemned.name.to_bytes());
            }
        }
    }

    pub(super) fn give_back(&mut self, batches: &[Batch], condemned: Condemned, mut denied: Denied) {
        let batch = &batches[condemned.batch];
        let outcome = restore(&self.root.directory, batch, &condemned, &mut denied);
        let name = condemned.name.to_bytes();
        if batch.in_place {
            let key = (Vec::new(), name.to_vec());
            match denied.reason {
                Reason::Failed => {
                    let stuck = Stuck::again(self.state.stuck.get(&key).copied(), Instant::now());
                    self.state.stuck.insert(key, stuck);
                }
                _ => drop(self.state.stuck.remove(&key)),
            }
        }
        if matches!(outcome, Outcome::Restored(_)) {
            self.done.insert(name.to_vec());
            self.state.stuck.remove(&(batch.name.to_bytes().to_vec(), name.to_vec()));
        }
        self.report.entry(name, outcome, Some(denied.reason), denied.pins, denied.detail);
    }
}

/// An error with its causes, for people.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    std::iter::successors(error.source(), |error| error.source())
        .fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
