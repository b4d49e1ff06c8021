//! The end of proven entries: one more look where evidence has not compared them with the first one, then removal; on
//! another thread where there are many.
//!
//! The thread is given entries and proofs by value and holds nothing else of the pass. It never gives a name back, counts
//! or tells: that is done by the pass, so that what the listing may come by once more is known before it does. A pass that
//! waits for the thread takes its part of the entries.

use super::ahead::Ahead;
use super::condemn::{Batch, Condemned};
use super::confirm::{Denied, Proof, confirm};
use super::crash;
use super::examine::Examiner;
use super::leases;
use super::limits::Limits;
use super::remove::{Removal, remove};
use crate::config::RootConfig;
use crate::model::report::Reason;
use std::ffi::CString;
use std::iter::{Zip, zip};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};
use std::vec::IntoIter;

/// Fewer entries than this are not worth a thread.
const WORTH_A_THREAD: usize = 512;

/// Longest time between two entries that another thread goes on without telling, or without a look at what else it has to do.
const PART: Duration = Duration::from_millis(2);

/// What became of a proven entry. Most are gone, so that is kept small: it goes from one thread to another.
#[derive(Debug)]
pub(super) enum Ended {
    /// It is gone.
    Gone {
        /// The name that it had in the root.
        name: CString,
        /// Index of its batch.
        batch: usize,
    },
    /// It has to have its name back.
    Denied(Box<(Condemned, Denied)>),
    /// It could not be removed, or not all of it.
    Stuck(Box<(Condemned, String)>),
    /// The pass had to end before.
    Interrupted(Box<Condemned>),
}

impl Ended {
    /// The lock on it stays with the thread that removed it, so that the one that lists has no part in what letting go of a
    /// removed directory takes.
    fn gone(condemned: Condemned, leases: &mut leases::Ended) -> Self {
        let Condemned { name, batch, lease, .. } = condemned;
        leases.add(lease);
        Self::Gone { name, batch }
    }

    fn denied(condemned: Condemned, denied: Denied) -> Self {
        Self::Denied(Box::new((condemned, denied)))
    }

    fn failed(condemned: Condemned, why: String) -> Self {
        Self::denied(condemned, Denied { reason: Reason::Failed, pins: Vec::new(), detail: Some(why) })
    }
}

/// Brings one proven entry to its end, but for giving its name back. The lock on one that is gone is left in `leases`.
pub(super) fn end(
    rules: &RootConfig,
    examiner: &mut Examiner,
    batch: &Batch,
    condemned: Condemned,
    proof: Proof,
    leases: &mut leases::Ended,
    go_on: &mut dyn FnMut() -> bool,
) -> Ended {
    let confirmed = match confirm(rules, examiner, batch, condemned, proof) {
        Ok(confirmed) => confirmed,
        Err((condemned, Some(denied))) => return Ended::denied(condemned, denied),
        // Somebody else removed it.
        Err((condemned, None)) => return Ended::gone(condemned, leases),
    };
    match remove(confirmed, batch, rules, go_on) {
        Removal::Gone(condemned) => {
            crash::step("mid-remove");
            Ended::gone(condemned, leases)
        }
        Removal::Filled(condemned) => Ended::denied(condemned, Denied::of(Reason::NotEmpty)),
        Removal::Mounted(condemned) => Ended::denied(condemned, Denied::of(Reason::Pinned)),
        Removal::Stuck(condemned, fault) if batch.in_place => Ended::failed(condemned, fault),
        Removal::Stuck(condemned, fault) => Ended::Stuck(Box::new((condemned, fault))),
        Removal::Unsuited(condemned, why) => Ended::failed(condemned, why.into()),
        Removal::Interrupted(condemned) => Ended::Interrupted(Box::new(condemned)),
    }
}

/// Entries of one group, each with what fresh evidence said of it.
pub(super) struct Proven {
    pub(super) batches: Arc<[Batch]>,
    pub(super) entries: Queue,
}

/// Entries that are taken at a time. Whoever takes them brings them to their ends, whatever else happens.
const HANDFUL: usize = 64;

/// Proven entries that nobody has taken yet. Two threads take them from its two ends: entries of one batch lie side by
/// side, and two threads that remove from one directory wait for each other.
#[derive(Clone, Debug)]
pub(super) struct Queue(Arc<Mutex<Zip<IntoIter<Condemned>, IntoIter<Proof>>>>);

impl Queue {
    /// Entries, and the proofs of each of them.
    pub(super) fn new(entries: Vec<Condemned>, proofs: Vec<Proof>) -> Self {
        Self(Arc::new(Mutex::new(zip(entries, proofs))))
    }

    /// Takes some of them, in their order or from the end. None are left when it is empty.
    fn some(&self, from_end: bool) -> Vec<(Condemned, Proof)> {
        let mut left = self.lock();
        match from_end {
            true => left.by_ref().rev().take(HANDFUL).collect(),
            false => left.by_ref().take(HANDFUL).collect(),
        }
    }

    /// Takes them one after the other, in their order.
    pub(super) fn taken(&self) -> impl Iterator<Item = (Condemned, Proof)> {
        std::iter::from_fn(|| Some(self.some(false)).filter(|some| !some.is_empty())).flatten()
    }

    /// Takes them one after the other from the end, until there are about so many.
    pub(super) fn taken_to(&self, leave: usize) -> impl Iterator<Item = (Condemned, Proof)> {
        let handful = move || (self.len() > leave).then(|| self.some(true)).filter(|some| !some.is_empty());
        std::iter::from_fn(handful).flatten()
    }

    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, Zip<IntoIter<Condemned>, IntoIter<Proof>>> {
        // Nothing is done under the lock that a panic could leave half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the thread takes along.
pub(super) struct Tools {
    pub(super) rules: RootConfig,
    pub(super) examiner: Examiner,
    pub(super) limits: Limits,
}

/// A group whose entries come to their ends on a thread.
#[derive(Debug)]
pub(super) struct Hand {
    pub(super) batches: Arc<[Batch]>,
    pub(super) left: Queue,
    pub(super) limits: Limits,
    results: Receiver<Vec<Ended>>,
    /// None when the thread is another's.
    thread: Option<JoinHandle<()>>,
}

impl Hand {
    /// Hands a group over, to a thread that has other work too or to one of its own. It comes back when it is not worth a
    /// thread, or when there is no thread to be had.
    pub(super) fn over(proven: Proven, tools: impl FnOnce() -> Tools, to: Option<&Ahead>) -> Result<Self, Proven> {
        // What lies in the root itself is there to make room first of all.
        if proven.entries.len() < WORTH_A_THREAD || proven.batches.iter().any(|batch| batch.makeshift) {
            return Err(proven);
        }
        let tools = tools();
        let limits = tools.limits.clone();
        let (tell, results) = channel();
        let mut remover = Remover::new(&proven, tools, tell);
        let thread = match to {
            Some(ahead) => {
                ahead.take_on(Box::new(move || remover.go_on()));
                None
            }
            None => match Builder::new().name("remover".into()).spawn(move || while remover.go_on() {}) {
                Ok(thread) => Some(thread),
                Err(_) => return Err(proven),
            },
        };
        let Proven { batches, entries: left } = proven;
        Ok(Self { batches, left, limits, results, thread })
    }

    /// Results so far, without waiting. None when there are none at the moment.
    pub(super) fn ready(&self) -> Option<Vec<Ended>> {
        self.results.try_recv().ok()
    }

    /// Waits for results. Empty when there are none in time, none when the thread is through.
    pub(super) fn wait(&self, limit: Duration) -> Option<Vec<Ended>> {
        match self.results.recv_timeout(limit) {
            Ok(results) => Some(results),
            Err(RecvTimeoutError::Timeout) => Some(Vec::new()),
            Err(RecvTimeoutError::Disconnected) => None,
        }
    }

    /// Takes the thread off once it is through. A panic on it goes on here.
    pub(super) fn close(self) -> Arc<[Batch]> {
        if let Some(Err(panic)) = self.thread.map(JoinHandle::join) {
            std::panic::resume_unwind(panic);
        }
        self.batches
    }
}

/// Removes a group on another thread than the one that lists.
struct Remover {
    batches: Arc<[Batch]>,
    left: Queue,
    /// What was taken of them.
    taken: IntoIter<(Condemned, Proof)>,
    rules: RootConfig,
    examiner: Examiner,
    limits: Limits,
    leases: leases::Ended,
    tell: Sender<Vec<Ended>>,
}

impl Remover {
    fn new(proven: &Proven, tools: Tools, tell: Sender<Vec<Ended>>) -> Self {
        let (batches, left) = (Arc::clone(&proven.batches), proven.entries.clone());
        let Tools { rules, examiner, limits } = tools;
        let (leases, taken) = (leases::Ended::default(), Vec::new().into_iter());
        Self { batches, left, taken, rules, examiner, limits, leases, tell }
    }

    /// Brings some entries to their ends, and tells. Returns whether there are more.
    fn go_on(&mut self) -> bool {
        let until = Instant::now() + PART;
        if self.taken.len() == 0 {
            self.taken = self.left.some(false).into_iter();
        }
        let goes_on = self.taken.len() > 0;
        let mut results = Vec::with_capacity(self.taken.len());
        while let Some((condemned, proof)) = self.taken.next() {
            let Self { batches, rules, examiner, limits, leases, .. } = self;
            let mut go_on = || limits.go_on();
            let ended = end(rules, examiner, &batches[condemned.batch], condemned, proof, leases, &mut go_on);
            // Who is to have its name back does not wait for others.
            let is_urgent = matches!(ended, Ended::Denied(..));
            results.push(ended);
            if is_urgent || Instant::now() >= until {
                break;
            }
        }
        // The pass waits for every result, so there is somebody to tell.
        let _ = self.tell.send(results);
        goes_on
    }
}
