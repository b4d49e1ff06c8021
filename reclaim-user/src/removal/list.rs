//! Listing a root: every entry goes through the fences and the pins seen so far, and what passes is condemned.

use super::ahead::{Ahead, Answer, Looked};
use super::condemn::{Condemned, Group, NotCondemned, condemn, makeshift, mark};
use super::confirm::doubt;
use super::error::RemovalError;
use super::examine::{Examined, Examiner, Look, Stop};
use super::leases::Leases;
use super::listing::Listing;
use super::lock::{NoStore, STORE, Store};
use super::options::{Cursor, PassOptions, Stuck};
use super::pass::{PIECE, Pass};
use super::place::Root;
use super::report::Report;
use crate::config::{RemoveRule, RootConfig};
use crate::evidence::source::{EvidenceSource, View};
use crate::model::plan::{GROUP_ENTRIES, GROUP_FIRST, Pile, group_is_due, next_group};
use crate::model::report::Reason;
use crate::model::tally::Outcome;
use crate::model::verdict;
use crate::sys::file_status::status_at;
use nix::errno::Errno;
use nix::fcntl::Flock;
use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;
use std::time::Instant;

/// Entries between two looks at the clock.
const STRIDE: usize = 16;

/// Names that are looked at before a thread is worth it that looks ahead.
const WORTH_A_THREAD: usize = 512;

/// Names that are decided on at once while others are looked for to be looked at ahead.
const DECIDED_AT_ONCE: usize = 512;

/// What a listing has in hand.
struct Work {
    group: Group,
    /// Entries that the group is full with.
    most: usize,
    /// There was a group before.
    is_under_way: bool,
    pile: Pile<CString>,
    /// Names that the pile held back, to be looked at once more.
    again: Vec<CString>,
    /// The thread that looks ahead, once there are enough names for one.
    ahead: Option<Ahead>,
    /// What it has looked at.
    looked: std::vec::IntoIter<Looked>,
    /// Names that were looked at on this thread.
    looks: usize,
    /// Behind the name that was decided on last.
    place: i64,
}

impl Work {
    /// Whether there are names that the listing has given and that were not decided on.
    fn is_in_hand(&self) -> bool {
        !self.again.is_empty() || self.looked.len() > 0 || self.ahead.as_ref().is_some_and(|ahead| !ahead.is_through())
    }
}

impl<E: EvidenceSource> Pass<'_, E> {
    /// Lists the root from the cursor to its end, and on from its start to the cursor.
    pub(super) fn list(&mut self) -> Result<(), RemovalError> {
        let pile = Pile::new(self.rules.pile, self.state.cursor.pile_met);
        let looked = Vec::new().into_iter();
        let (group, most) = (Group::new(), GROUP_FIRST);
        let again = Vec::new();
        let mut work = Work { group, most, is_under_way: false, pile, again, ahead: None, looked, looks: 0, place: 0 };
        let result = self.list_all(&mut work);
        // Locks on what is not decided on in this pass end here.
        work.looked = Vec::new().into_iter();
        if let Some(ahead) = &mut work.ahead {
            ahead.give_no_more();
            while !matches!(ahead.answer(PIECE), Answer::Nothing) {
                self.breathe();
            }
        }
        // However the listing ended, what is condemned comes to its end.
        self.conclude_group(&mut work);
        let store = self.store.take();
        self.finish(store.as_ref());
        self.store = store;
        if let Some(ahead) = work.ahead.take() {
            ahead.close();
        }
        let held = work.pile.into_held().into_iter().map(|name| (name, Reason::Pile));
        // Only an error leaves names that were to be looked at once more.
        let dropped = work.again.into_iter().map(|name| (name, Reason::NoEvidence));
        for (name, reason) in held.chain(dropped) {
            self.report.entry(name.to_bytes(), Outcome::Kept(reason), Some(reason), Vec::new(), None);
        }
        result
    }

    fn list_all(&mut self, work: &mut Work) -> Result<(), RemovalError> {
        let path = self.root.path.clone();
        let fault = |call| {
            let path = path.clone();
            move |source| RemovalError::Call { call, path, source }
        };
        let mut listing = Listing::begin(&self.root.directory, self.state.cursor).map_err(fault("lseek"))?;
        work.place = listing.begin;
        let mut looked = false;
        loop {
            if !work.is_in_hand() && !listing.fill(&self.root.directory).map_err(fault("getdents64"))? {
                if !self.verified {
                    // There was nothing to decide on: the claim of the report still has to be a true one.
                    self.piece(&mut listing, work)?;
                }
                self.state.cursor = Cursor::default();
                return Ok(());
            }
            self.breathe();
            self.collect();
            if listing.left() >= WORTH_A_THREAD && !self.options.dry_run {
                self.evidence.prepare();
            }
            // Names of the pile are looked at even then: there are no more of them than its threshold.
            // One piece is always made: else a start that takes all of the budget would leave every pass where it began. Who
            // calls a pass off sees to that himself.
            if work.again.is_empty() && self.is_over() && (looked || self.is_called_off()) {
                self.truncated = true;
                let pile_met = self.rules.pile.is_some() && work.pile.is_open();
                // The place behind the last name is a mark of the end on some file systems: nothing lies behind it.
                let place = if listing.turned && !work.is_in_hand() { 0 } else { work.place };
                self.state.cursor = Cursor { place, descending: listing.descending, pile_met };
                return Ok(());
            }
            self.piece(&mut listing, work)?;
            looked = true;
            let left = self.options.budget.saturating_sub(self.begun.elapsed());
            let most = self.room(work);
            let (entries, filled_for) = (work.group.entries.len(), work.group.begun.elapsed());
            if work.group.is_full(most) || group_is_due(entries, most, filled_for, left) {
                self.conclude_group(work);
            }
        }
    }

    /// Entries that the group is full with at the moment.
    fn room(&self, work: &Work) -> usize {
        // Nothing is removed meanwhile, so there is the room of two groups.
        if self.evidence.is_settling() { 2 * GROUP_ENTRIES } else { work.most }
    }

    fn conclude_group(&mut self, work: &mut Work) {
        let group = std::mem::replace(&mut work.group, Group::new());
        let store = self.store.take();
        let filled_for = group.begun.elapsed();
        let confirmed_for = self.conclude(store.as_ref(), group, work.ahead.as_ref());
        self.store = store;
        // The first one takes what has to be done once as well.
        if std::mem::replace(&mut work.is_under_way, true) {
            work.most = next_group(work.most, self.leases.largest_group(), filled_for, confirmed_for);
        }
        // Concluding takes time that is not spent on filling the next one.
        work.group.begun = Instant::now();
    }

    /// Decides on entries for a moment.
    fn piece(&mut self, listing: &mut Listing, work: &mut Work) -> Result<(), RemovalError> {
        self.examiner.refresh();
        let most = self.room(work);
        let Self { rules, index, location, root, evidence, options, report, claim, state, words, .. } = self;
        let view = evidence
            .consult()
            .map_err(|source| RemovalError::Evidence { path: root.path.clone(), source: Box::new(source) })?;
        let watched = view.pins.roots().nth(*index);
        if !self.verified || watched != Some(*location) {
            root.verify(watched, location)?;
            claim.take(&view, rules, rules.owner.unwrap_or(root.status.status.owner));
            self.verified = true;
        }
        let (obstacle, examiner, done) = (&mut self.obstacle, &mut self.examiner, &mut self.done);
        let (index, store, root_lock, seen) = (*index, &mut self.store, &mut self.root_lock, Seen::of(&view));
        let leases = self.leases;
        let stuck = &state.stuck;
        let mut desk = Desk {
            rules,
            index,
            root,
            options,
            report,
            obstacle,
            examiner,
            done,
            store,
            root_lock,
            leases,
            seen,
            stuck,
        };
        // From here on, for whatever the evidence took: else slow evidence would be all that a pass has time for.
        let until = Instant::now() + PIECE;
        for step in 1.. {
            if let Some(name) = work.again.pop() {
                desk.decide(work, &name)?;
            } else if let Some((name, place, looked)) = work.looked.next() {
                desk.judge(work, name, Some(looked))?;
                work.place = place;
            } else if let Some(mut ahead) = work.ahead.take() {
                let filled = desk.feed(work, most, listing, &mut ahead);
                let answer = ahead.answer(until.saturating_duration_since(Instant::now()));
                // Only a panic, which goes on here, ends it before it has answered.
                match matches!(answer, Answer::Nothing) && !ahead.is_through() {
                    true => ahead.close(),
                    false => work.ahead = Some(ahead),
                }
                filled?;
                match answer {
                    Answer::Looked(looked) => work.looked = looked.into_iter(),
                    Answer::NotYet | Answer::Nothing => break,
                }
            } else if let Some((name, place)) = listing.next() {
                desk.decide(work, name)?;
                work.looks += 1;
                work.place = place;
                if work.looks == WORTH_A_THREAD {
                    work.ahead = Ahead::begin(rules, desk.root, words);
                }
            } else {
                break;
            }
            if work.group.is_full(most) || (step % STRIDE == 0 && Instant::now() >= until) {
                break;
            }
        }
        Ok(())
    }
}

/// What deciding on an entry takes, while the evidence is being looked at.
struct Desk<'d, 'r> {
    rules: &'d RootConfig,
    index: usize,
    root: &'d Root,
    options: &'d PassOptions,
    report: &'d mut Report<'r>,
    obstacle: &'d mut Option<Reason>,
    examiner: &'d mut Examiner,
    done: &'d mut HashSet<Vec<u8>>,
    store: &'d mut Option<Store>,
    root_lock: &'d mut Option<Flock<OwnedFd>>,
    leases: Leases,
    seen: Seen<'d>,
    stuck: &'d HashMap<(Vec<u8>, Vec<u8>), Stuck>,
}

impl Desk<'_, '_> {
    /// Has the next names looked at ahead.
    fn feed(
        &mut self,
        work: &mut Work,
        most: usize,
        listing: &mut Listing,
        ahead: &mut Ahead,
    ) -> Result<(), RemovalError> {
        // What is kept at sight never fills it, and others are to have their turn.
        let mut decided = 0;
        while !ahead.is_full() && decided < DECIDED_AT_ONCE && !work.group.is_full(most) {
            let Some((name, place)) = listing.next() else {
                let fault = |source| RemovalError::Call { call: "getdents64", path: self.root.path.clone(), source };
                if listing.fill(&self.root.directory).map_err(fault)? {
                    continue;
                }
                break;
            };
            // What relies on an entry is nobody whose lock should be tried.
            match self.is_plain(name) && !self.is_pinned(name) {
                true => ahead.add(name, place),
                false => {
                    self.decide(work, name)?;
                    decided += 1;
                }
            }
        }
        Ok(())
    }

    /// Neither ours nor known already.
    fn is_plain(&self, name: &CStr) -> bool {
        name != STORE && makeshift(name).is_none() && !self.is_done(name)
    }

    fn is_done(&self, name: &CStr) -> bool {
        !self.done.is_empty() && self.done.contains(name.to_bytes())
    }

    fn is_pinned(&self, name: &CStr) -> bool {
        self.seen.view.pins.is_pinned(self.index, name.to_bytes())
    }

    fn decide(&mut self, work: &mut Work, name: &CStr) -> Result<(), RemovalError> {
        if name == STORE || self.is_done(name) {
            return Ok(());
        }
        if let Some((batch, own_name)) = makeshift(name) {
            return self.makeshift_leftover(&mut work.group, name, batch, own_name);
        }
        self.judge(work, name.to_owned(), None)
    }

    /// Decides on an entry, looked at already or not.
    fn judge(
        &mut self,
        work: &mut Work,
        name: CString,
        looked: Option<Result<Examined, Stop>>,
    ) -> Result<(), RemovalError> {
        if self.rules.remove == RemoveRule::Command && self.waits(&name) {
            let detail = "its command failed before, and it is left alone for a while";
            let kept = Outcome::Kept(Reason::Failed);
            self.report.quiet(name.to_bytes(), kept, Some(Reason::Failed), Some(detail.into()));
            return Ok(());
        }
        let pinned = self.is_pinned(&name);
        match self.look(&name, pinned, looked) {
            Ok(examined) if work.pile.is_open() => return self.go(&mut work.group, name, examined),
            // The lock on it ends here; it is looked at once more when there are enough.
            Ok(_) => work.again = work.pile.add(name),
            Err(Stop::Vanished) => {}
            Err(Stop::Keep(reason, detail)) => {
                let with_pins = pinned && self.report.per_entry;
                let bytes = name.to_bytes();
                let pins = if with_pins { self.seen.view.pins.pins_of(self.index, bytes) } else { Vec::new() };
                self.report.entry(bytes, Outcome::Kept(reason), Some(reason), pins, detail);
            }
        }
        Ok(())
    }

    /// Whether it is too early for another try at an entry that could not be removed in its place.
    fn waits(&self, name: &CStr) -> bool {
        let known = self.stuck.get(&(Vec::new(), name.to_bytes().to_vec()));
        known.is_some_and(|stuck| !stuck.is_due(Instant::now()))
    }

    fn look(&mut self, name: &CStr, pinned: bool, looked: Option<Result<Examined, Stop>>) -> Result<Examined, Stop> {
        let examined = match looked {
            Some(looked) if !pinned => looked?,
            _ => {
                let named = verdict::by_name(self.rules, name.to_bytes(), pinned)?;
                self.examiner.examine(self.rules, named, &self.root.directory, name, Look::First)?
            }
        };
        self.seen.judge(name, examined)
    }

    /// Condemns an entry that passed every fence.
    fn go(&mut self, group: &mut Group, name: CString, examined: Examined) -> Result<(), RemovalError> {
        if self.options.dry_run {
            self.report.candidates += 1;
            self.report.entry(name.to_bytes(), Outcome::WouldRemove, None, Vec::new(), None);
            return Ok(());
        }
        let by_command = self.rules.remove == RemoveRule::Command;
        let in_hand = group.is_makeshift();
        if by_command {
            // Nothing is made in storage that another manager owns, so the lock is on the directory itself.
            self.lock_root()?;
        } else if self.store.is_none() && self.obstacle.is_none() && !in_hand {
            match Store::open(self.root, self.root_lock.is_some()) {
                Ok(store) => *self.store = Some(store),
                Err(NoStore::Error(error)) => return Err(error),
                // A full file system is what reclaim is there for: the first few entries make room without a store.
                Err(NoStore::Cannot(Errno::ENOSPC | Errno::EDQUOT)) => self.lock_root()?,
                Err(NoStore::Cannot(error)) => self.block(error),
            }
        }
        let swapped = || Some("something else took its place while it was condemned".into());
        let result = match *self.obstacle {
            None if by_command => mark(&self.root.directory, group, name, examined, self.leases),
            None => condemn(self.store.as_ref(), &self.root.directory, group, name, examined, self.leases),
            Some(reason) => Err((name, NotCondemned::Blocked(reason))),
        };
        let (name, not_condemned) = match result {
            Err((_, NotCondemned::Vanished)) => return Ok(()),
            Err(failed) => failed,
            Ok(()) => {
                self.report.candidates += 1;
                if let Some(stored) = group.entries.last().and_then(|condemned| condemned.stored.as_ref()) {
                    self.done.insert(stored.to_bytes().to_vec());
                }
                return Ok(());
            }
        };
        let (outcome, reason, detail) = match not_condemned {
            NotCondemned::Vanished => return Ok(()),
            NotCondemned::Blocked(reason) => {
                let why = (reason == Reason::Failed).then(|| "nothing can be condemned in its root".into());
                (Outcome::Kept(reason), reason, why)
            }
            NotCondemned::Entry(fault) => (Outcome::Kept(Reason::Failed), Reason::Failed, Some(fault)),
            NotCondemned::Root(error) => {
                self.block(error);
                (
                    Outcome::Kept(Reason::Failed),
                    Reason::Failed,
                    Some(format!("nothing can be condemned in its root: {error}")),
                )
            }
            NotCondemned::Swapped { restored: true } => {
                self.done.insert(name.to_bytes().to_vec());
                (Outcome::Restored(Reason::Failed), Reason::Failed, swapped())
            }
            NotCondemned::Swapped { restored: false } => (Outcome::Condemned, Reason::Failed, swapped()),
        };
        self.report.candidates += 1;
        self.report.entry(name.to_bytes(), outcome, Some(reason), Vec::new(), detail);
        Ok(())
    }

    /// An entry of a makeshift batch that an earlier pass did not bring to an end. It comes to that with this group.
    fn makeshift_leftover(
        &mut self,
        group: &mut Group,
        stored: &CStr,
        batch: CString,
        name: CString,
    ) -> Result<(), RemovalError> {
        let Ok(file) = status_at(&self.root.directory, stored) else { return Ok(()) };
        if self.options.dry_run {
            self.report.entry(name.to_bytes(), Outcome::Condemned, None, Vec::new(), None);
            return Ok(());
        }
        if self.store.is_none() {
            self.lock_root()?;
        }
        self.done.insert(stored.to_bytes().to_vec());
        let fault = |source| RemovalError::Call { call: "openat2", path: self.root.path.clone(), source };
        let batch = group.leftover_batch(&self.root.directory, batch).map_err(fault)?;
        group.entries.push(Condemned::leftover(name, Some(stored.into()), batch, &file));
        Ok(())
    }

    fn lock_root(&mut self) -> Result<(), RemovalError> {
        if self.root_lock.is_none() {
            *self.root_lock = Some(Store::lock_root(self.root)?);
            // Somebody may have found room for a store since.
            if self.store.is_none() {
                *self.store = Store::open_existing(self.root, true)?;
            }
        }
        Ok(())
    }

    fn block(&mut self, error: Errno) {
        *self.obstacle = Some(Reason::Failed);
        let remedy = match error {
            Errno::EROFS => "it is read-only",
            Errno::EACCES | Errno::EPERM => "run as root, or with CAP_DAC_OVERRIDE and CAP_FOWNER",
            _ => "see `reclaim check`",
        };
        self.report.note(format!("nothing can be condemned in this root ({error}), so nothing is removed; {remedy}"));
    }
}

/// Evidence as it is asked for one entry after another: what holds for all of them is worked out once.
struct Seen<'v> {
    view: &'v View<'v>,
    complete: bool,
    doubts: bool,
    covered: Vec<(u32, bool)>,
}

impl<'v> Seen<'v> {
    fn of(view: &'v View<'v>) -> Self {
        let (complete, doubts) = (view.tables.complete(), view.pins.doubts() > 0);
        Self { view, complete, doubts, covered: Vec::new() }
    }

    fn judge(&mut self, name: &CStr, examined: Examined) -> Result<Examined, Stop> {
        let doubt = if self.doubts { doubt(self.view, name.to_bytes(), examined.empty) } else { None };
        let covered = self.complete || self.covers(examined.owner);
        match verdict::by_evidence(doubt.is_some(), self.complete, covered) {
            Ok(()) => Ok(examined),
            Err(reason) => Err(Stop::Keep(reason, doubt)),
        }
    }

    fn covers(&mut self, owner: u32) -> bool {
        if let Some((_, covered)) = self.covered.iter().find(|(known, _)| *known == owner) {
            return *covered;
        }
        let covered = self.view.tables.covered(owner);
        // Roots without an owner fence may hold entries of many owners; a few are worth remembering.
        self.covered.truncate(15);
        self.covered.push((owner, covered));
        covered
    }
}
