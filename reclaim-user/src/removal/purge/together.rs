//! All or none: condemn, wait, confirm, run commands, decide, remove.

use super::look::{Looked, Passed, explained, unproved};
use super::{EntryTarget, Open, PurgeOptions, Purged, STOPPED, Target};
use crate::config::RemoveRule;
use crate::evidence::source::{EvidenceSource, Settled};
use crate::model::fence::FileKind;
use crate::model::plan::BATCH_ENTRIES;
use crate::model::purge::TargetVerdict;
use crate::model::report::Reason;
use crate::model::tally::Outcome;
use crate::removal::condemn::{Batch, Condemned, Group, NotCondemned, begin_undecided, condemn, decide, key, mark};
use crate::removal::confirm::{Confirmed, Denied, Proof, confirm, prove};
use crate::removal::crash;
use crate::removal::error::{RemovalError, failed};
use crate::removal::leases::Leases;
use crate::removal::remove::{self, Removal};
use crate::removal::report::weaker;
use crate::removal::restore::restore;
use crate::sys::directory::{self, Names, Reader};
use crate::sys::file_status::status_at;

/// A target in the hands of a purge.
enum Hand {
    /// It came to its end.
    Ended(Purged),
    /// It is condemned, or marked where it is.
    Taken(Condemned),
    /// Leave to remove it was given.
    Leave(Confirmed),
    /// It has no path, so that nothing could be condemned or proved.
    Managed,
}

/// Why a target stays that nothing speaks against.
const SPARED: &str = "another target was refused or failed";

/// What the steps share.
struct Work<'w, 'o> {
    open: &'w mut [Option<Open<'o>>],
    targets: &'w [Target],
    /// The batches of each site.
    groups: Vec<Group>,
    hands: Vec<Hand>,
}

/// Removes what was looked at, or nothing of it.
pub(super) fn remove<E: EvidenceSource>(
    open: &mut [Option<Open<'_>>],
    targets: &[Target],
    looked: Vec<Looked>,
    evidence: &mut E,
    options: &PurgeOptions,
    between: &mut dyn FnMut(&mut E),
) -> Result<Vec<Purged>, RemovalError> {
    let groups = open.iter().map(|_| Group::new()).collect();
    let mut work = Work { open, targets, groups, hands: Vec::with_capacity(targets.len()) };
    if let Err(denied) = work.condemn(looked) {
        return Ok(work.give_back(denied));
    }
    crash::step("after-condemn");
    // What has no path is nothing that evidence could tell of.
    if let Some(first) = work.first() {
        let settled = evidence.settle(options.settle_limit, &mut |evidence| {
            between(evidence);
            !options.is_stopped()
        });
        crash::step("after-settle");
        match settled {
            Settled::Clock => {}
            Settled::Fixed { waited, why } => tracing::warn!("a purge: {}", weaker(waited, &why)),
            Settled::Overdue { .. } if options.is_stopped() => {
                return Ok(work.give_back(failure(first, STOPPED.to_owned())));
            }
            Settled::Overdue { calls } => {
                let detail = format!("mount calls that began before have not come back: {}", calls.join(", "));
                let denied = Denied { reason: Reason::NoEvidence, pins: Vec::new(), detail: Some(detail) };
                return Ok(work.give_back(vec![(first, denied)]));
            }
        }
        work.open.iter_mut().flatten().for_each(|open| open.hear(options));
        if let Err(denied) = work.confirm(evidence) {
            return Ok(work.give_back(denied));
        }
    }
    crash::step("after-confirm");
    // From here on commands hear of it themselves, and what is decided is left to the next purge.
    if let Some(first) = work.first().filter(|_| options.is_stopped()) {
        return Ok(work.give_back(failure(first, STOPPED.to_owned())));
    }
    let mut go_on = options.turns(evidence, between);
    if let Err(denied) = work.run_commands(&mut go_on) {
        return Ok(work.give_back(denied));
    }
    if let Err(denied) = work.decide() {
        return Ok(work.give_back(denied));
    }
    crash::step("after-decision");
    Ok(work.remove(&mut go_on))
}

/// Targets that stopped it, by their index, each with why.
type Denials = Vec<(usize, Denied)>;

fn failure(index: usize, detail: String) -> Denials {
    vec![(index, Denied { reason: Reason::Failed, pins: Vec::new(), detail: Some(detail) })]
}

impl Work<'_, '_> {
    /// The first target that is condemned, or marked where it is.
    fn first(&self) -> Option<usize> {
        self.hands.iter().position(|hand| matches!(hand, Hand::Taken(_) | Hand::Leave(_)))
    }

    fn condemn(&mut self, looked: Vec<Looked>) -> Result<(), Denials> {
        let mut denied = Denials::new();
        for (index, looked) in looked.into_iter().enumerate() {
            let (examined, target) = match (looked, self.targets[index].entry()) {
                (Err(purged), _) => {
                    self.hands.push(Hand::Ended(purged));
                    continue;
                }
                (Ok(Passed::Managed), _) | (Ok(_), None) => {
                    self.hands.push(Hand::Managed);
                    continue;
                }
                (Ok(Passed::Entry(examined)), Some(target)) => (*examined, target),
            };
            let group = &mut self.groups[target.site];
            let open = match self.open[target.site].as_ref() {
                None => {
                    self.hands.push(Hand::Ended(Purged::of(TargetVerdict::Absent)));
                    continue;
                }
                // Once one was denied nothing more is touched.
                Some(_) if !denied.is_empty() => {
                    self.hands.push(Hand::Ended(Purged::kept("another target was refused")));
                    continue;
                }
                Some(open) => open,
            };
            let (name, root) = (target.name.clone(), &open.root.directory);
            // A lock that is held keeps others out until the target is gone; there are few targets.
            let leases = Leases::up_to(usize::MAX);
            let condemned = match (&open.store, target.rules.remove == RemoveRule::Command) {
                (_, true) => mark(root, group, name, examined, leases),
                (None, false) => Err((name, NotCondemned::Entry("there is no `.reclaim` to move it to".into()))),
                (Some(store), false) => {
                    // The last batch is the one that takes entries. One that is not decided on has to be there before it is full.
                    let takes = |batch: &Batch| !batch.in_place && batch.entries < BATCH_ENTRIES;
                    let batch = match group.batches.last().is_some_and(takes) {
                        true => Ok(()),
                        false => begin_undecided(store).map(|batch| group.batches.push(batch)),
                    };
                    match batch {
                        Ok(()) => condemn(Some(store), root, group, name, examined, leases),
                        Err(error) => Err((name, NotCondemned::Root(error))),
                    }
                }
            };
            self.hands.push(match condemned.map(|()| group.entries.pop()) {
                Ok(Some(condemned)) => Hand::Taken(condemned),
                Ok(None) | Err((_, NotCondemned::Vanished)) => Hand::Ended(Purged::of(TargetVerdict::Absent)),
                Err((_, not)) => {
                    let detail = why(not);
                    denied.extend(failure(index, detail.clone()));
                    Hand::Ended(Purged::refused(Denied { detail: Some(detail), ..Denied::of(Reason::Failed) }))
                }
            });
        }
        if denied.is_empty() { Ok(()) } else { Err(denied) }
    }

    /// Takes fresh evidence about every site, and looks at each target once more.
    fn confirm<E: EvidenceSource>(&mut self, evidence: &mut E) -> Result<(), Denials> {
        let mut denied = Denials::new();
        let mut proofs: Vec<Option<Proof>> = self.hands.iter().map(|_| None).collect();
        for (at, open) in self.open.iter().enumerate() {
            let Some(open) = open else { continue };
            let batches = &self.groups[at].batches;
            let taken: Vec<(usize, &EntryTarget, &Condemned)> = self
                .hands
                .iter()
                .enumerate()
                .filter_map(|(index, hand)| match (hand, self.targets[index].entry()) {
                    (Hand::Taken(condemned), Some(target)) if target.site == at => Some((index, target, condemned)),
                    _ => None,
                })
                .collect();
            let Some((first, ..)) = taken.first() else { continue };
            let of_batch = |number| {
                taken.iter().map(|(.., condemned)| *condemned).filter(move |condemned| condemned.batch == number)
            };
            let places: Vec<_> =
                batches.iter().enumerate().map(|(number, batch)| batch.place(of_batch(number))).collect();
            let view = match evidence.confirm(open.index, &places) {
                Ok(view) => view,
                Err(error) => {
                    denied.push((*first, unproved(&error)));
                    continue;
                }
            };
            if let Err(error) = open.root.verify(view.pins.roots().nth(open.index), open.location) {
                denied.push((*first, unproved(&error)));
                continue;
            }
            for (index, target, condemned) in taken {
                let key = key(&batches[condemned.batch], condemned);
                let proof = prove(&target.rules, open.index, &view, &key, condemned, false, true);
                proofs[index] = match proof.into_result() {
                    Ok(proof) => Some(proof),
                    Err(against) => {
                        denied.push((index, explained(against, &view)));
                        None
                    }
                };
            }
        }
        if !denied.is_empty() {
            return Err(denied);
        }
        for (index, proof) in proofs.into_iter().enumerate() {
            if let Some(proof) = proof {
                denied.extend(self.look_again(index, proof));
            }
        }
        if denied.is_empty() { Ok(()) } else { Err(denied) }
    }

    fn look_again(&mut self, index: usize, proof: Proof) -> Option<(usize, Denied)> {
        let target = self.targets[index].entry()?;
        let absent = || Hand::Ended(Purged::of(TargetVerdict::Absent));
        let hand = std::mem::replace(&mut self.hands[index], absent());
        let (Hand::Taken(condemned), Some(open)) = (hand, &mut self.open[target.site]) else { return None };
        let batch = &self.groups[target.site].batches[condemned.batch];
        open.examiner.refresh();
        // Its number alone could have gone to another file between the first look and the rename.
        if !status_at(&batch.directory, condemned.stored()).is_ok_and(|found| target.means(&found)) {
            self.hands[index] = Hand::Taken(condemned);
            let detail = Some("another file came to have its name, or somebody changed it".to_owned());
            return Some((index, Denied { reason: Reason::Failed, pins: Vec::new(), detail }));
        }
        match confirm(&target.rules, &mut open.examiner, batch, condemned, proof) {
            Ok(confirmed) => {
                let filled = target.rules.remove == RemoveRule::Empty
                    && confirmed.kind() == FileKind::Directory
                    && !is_empty(batch, confirmed.condemned());
                self.hands[index] = Hand::Leave(confirmed);
                filled.then(|| (index, Denied::of(Reason::NotEmpty)))
            }
            // Somebody else removed it.
            Err((_, None)) => None,
            Err((condemned, Some(denied))) => {
                self.hands[index] = Hand::Taken(condemned);
                Some((index, denied))
            }
        }
    }

    /// Has commands remove what they own. The first that fails ends it.
    fn run_commands(&mut self, go_on: &mut dyn FnMut() -> bool) -> Result<(), Denials> {
        for index in 0..self.hands.len() {
            let ended = match (&self.targets[index], &self.hands[index]) {
                (Target::Managed(managed), Hand::Managed) => match managed.remove(go_on) {
                    Ok(()) => Purged::of(TargetVerdict::Removed),
                    Err(fault) => Purged::failed(fault),
                },
                (Target::Entry(target), _) if target.rules.remove == RemoveRule::Command => {
                    match self.remove_one(index, go_on) {
                        None => continue,
                        Some(Removal::Gone(_)) => Purged::of(TargetVerdict::Removed),
                        Some(Removal::Stuck(_, fault)) => Purged::failed(fault),
                        Some(Removal::Unsuited(_, why)) => Purged::failed(why.to_owned()),
                        Some(Removal::Filled(_) | Removal::Mounted(_) | Removal::Interrupted(_)) => {
                            Purged::failed("its command did not come to its end".to_owned())
                        }
                    }
                }
                _ => continue,
            };
            let is_gone = ended.verdict == TargetVerdict::Removed;
            self.hands[index] = Hand::Ended(ended);
            if !is_gone {
                return Err(Denials::new());
            }
        }
        Ok(())
    }

    /// Removes a target that there is leave for; its place is left as one that was absent.
    fn remove_one(&mut self, index: usize, go_on: &mut dyn FnMut() -> bool) -> Option<Removal> {
        let absent = Hand::Ended(Purged::of(TargetVerdict::Absent));
        let target = self.targets[index].entry()?;
        match std::mem::replace(&mut self.hands[index], absent) {
            Hand::Leave(confirmed) => {
                let batch = &self.groups[target.site].batches[confirmed.condemned().batch];
                Some(remove::remove(confirmed, batch, &target.rules, go_on))
            }
            hand => {
                self.hands[index] = hand;
                None
            }
        }
    }

    /// From here on nothing of it comes back.
    fn decide(&mut self) -> Result<(), Denials> {
        let first = self.first();
        for (open, group) in self.open.iter().zip(&mut self.groups) {
            let Some(store) = open.as_ref().and_then(|open| open.store.as_ref()) else { continue };
            for batch in group.batches.iter_mut().filter(|batch| !batch.in_place) {
                if let Err(error) = decide(store, batch) {
                    return Err(failure(first.unwrap_or_default(), failed("renameat2", error)));
                }
            }
        }
        Ok(())
    }

    fn remove(mut self, go_on: &mut dyn FnMut() -> bool) -> Vec<Purged> {
        for index in 0..self.hands.len() {
            let stays = |fault: String| Purged::failed(format!("it lies condemned and is tried again: {fault}"));
            let Some(removal) = self.remove_one(index, go_on) else { continue };
            let ended = match removal {
                Removal::Gone(_) => Purged::of(TargetVerdict::Removed),
                Removal::Stuck(_, fault) => stays(fault),
                Removal::Interrupted(_) => stays("reclaim was told to stop half-way".to_owned()),
                Removal::Unsuited(condemned, why) => self.back(index, condemned, why.to_owned()),
                Removal::Filled(condemned) => self.back(index, condemned, "something came to be in it".to_owned()),
                Removal::Mounted(condemned) => self.back(index, condemned, "something is mounted in it".to_owned()),
            };
            self.hands[index] = Hand::Ended(ended);
            crash::step("mid-remove");
        }
        self.close()
    }

    /// A target that has to have its name back after others have gone.
    fn back(&self, index: usize, condemned: Condemned, why: String) -> Purged {
        let mut denied = Denied { detail: Some(why), ..Denied::of(Reason::Failed) };
        self.restore(index, &condemned, &mut denied);
        Purged::failed(denied.detail.unwrap_or_default())
    }

    /// Gives every target that is still there its name back. `denied` tells which of them stopped it.
    fn give_back(mut self, mut denied: Denials) -> Vec<Purged> {
        for index in 0..self.hands.len() {
            let against = denied.iter().position(|(of, _)| *of == index).map(|at| denied.swap_remove(at).1);
            let absent = Hand::Ended(Purged::of(TargetVerdict::Absent));
            let condemned = match std::mem::replace(&mut self.hands[index], absent) {
                Hand::Taken(condemned) => condemned,
                Hand::Leave(confirmed) => confirmed.into_condemned(),
                Hand::Managed => {
                    self.hands[index] = Hand::Ended(Purged::kept(SPARED));
                    continue;
                }
                ended @ Hand::Ended(_) => {
                    self.hands[index] = ended;
                    continue;
                }
            };
            let is_spared = against.is_none();
            let mut told = against.unwrap_or_else(|| Denied::of(Reason::Failed));
            let outcome = self.restore(index, &condemned, &mut told);
            crash::step("mid-restore");
            self.hands[index] = Hand::Ended(match (outcome, is_spared) {
                (Outcome::Condemned, _) => Purged::failed(told.detail.unwrap_or_default()),
                (_, true) => Purged::kept(SPARED),
                (_, false) => Purged::refused(told),
            });
        }
        self.close()
    }

    fn restore(&self, index: usize, condemned: &Condemned, denied: &mut Denied) -> Outcome {
        let Some(site) = self.targets[index].entry().map(|target| target.site) else { return Outcome::Condemned };
        let Some(open) = &self.open[site] else { return Outcome::Condemned };
        restore(&open.root.directory, &self.groups[site].batches[condemned.batch], condemned, denied)
    }

    /// Takes empty batches away, and gives the answers.
    fn close(self) -> Vec<Purged> {
        for (open, group) in self.open.iter().zip(&self.groups) {
            let Some(store) = open.as_ref().and_then(|open| open.store.as_ref()) else { continue };
            for batch in group.batches.iter().filter(|batch| !batch.in_place) {
                // What is still condemned keeps it from being removed.
                let _ = directory::remove_directory(store.directory(), &batch.name);
            }
        }
        let end = |hand| match hand {
            Hand::Ended(purged) => purged,
            Hand::Taken(_) | Hand::Leave(_) | Hand::Managed => {
                Purged::failed("it was not brought to an end".to_owned())
            }
        };
        self.hands.into_iter().map(end).collect()
    }
}

fn why(not: NotCondemned) -> String {
    match not {
        NotCondemned::Entry(fault) => fault,
        NotCondemned::Root(error) => failed("nothing can be condemned beside it", error),
        NotCondemned::Swapped { restored: true } => "something else took its place meanwhile".to_owned(),
        NotCondemned::Swapped { restored: false } => {
            "something else took its place meanwhile, and lies condemned until its name is free".to_owned()
        }
        NotCondemned::Vanished | NotCondemned::Blocked(_) => "it could not be condemned".to_owned(),
    }
}

/// Not knowing counts as holding something.
fn is_empty(batch: &Batch, condemned: &Condemned) -> bool {
    let opened = directory::open_child(&batch.directory, condemned.stored());
    opened.and_then(|opened| Reader::with_room(1024).is_empty(&opened, &mut Names::default())).unwrap_or(false)
}
