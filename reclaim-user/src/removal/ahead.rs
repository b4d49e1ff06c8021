//! Looking ahead: the first look at names that the listing decides on next, on a thread of its own.
//!
//! The thread is given names and gives back what it found, with the lock on each entry that has passed so far. It asks no
//! evidence and changes nothing. What it found may be a moment old when it is used: before anything is removed, evidence
//! has compared it with what is there, or whatever can have changed since is looked at again.

use super::examine::{Examined, Examiner, Look, Stop};
use super::leases;
use super::place::Root;
use super::words::Words;
use crate::config::RootConfig;
use crate::model::verdict;
use crate::sys::directory::open_child;
use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};

/// Names that the thread is given at a time.
const CHUNK: usize = 256;

/// Chunks that are under way at most. Their entries are locked and open, so there must not be many.
const CHUNKS: usize = 4;

/// A name, and the place in the listing behind it.
pub(super) type Listed = (CString, i64);

/// A name that was looked at.
pub(super) type Looked = (CString, i64, Result<Examined, Stop>);

/// The thread, and what is on its way.
#[derive(Debug)]
pub(super) struct Ahead {
    ask: Sender<Vec<Listed>>,
    answers: Receiver<Vec<Looked>>,
    thread: JoinHandle<()>,
    next: Vec<Listed>,
    under_way: usize,
}

impl Ahead {
    /// Starts the thread. None when there is none to be had.
    pub(super) fn begin(rules: &RootConfig, root: &Root, words: &Arc<Words>) -> Option<Self> {
        let (rules, examiner) = (rules.clone(), Examiner::new(root, Arc::clone(words)));
        // One of its own, and no copy of the descriptor: what two processors count in one place is slow for both.
        let directory = open_child(&root.directory, c".").ok()?;
        leases::make_room(&directory);
        let (ask, asked) = channel();
        let (answer, answers) = channel();
        let work = move || work(&rules, examiner, &directory, &asked, &answer);
        let thread = Builder::new().name("looker".into()).spawn(work).ok()?;
        Some(Self { ask, answers, thread, next: Vec::new(), under_way: 0 })
    }

    /// Whether it takes no more names for now.
    pub(super) fn is_full(&self) -> bool {
        self.under_way >= CHUNKS
    }

    /// Whether all that it was given has come back.
    pub(super) fn is_through(&self) -> bool {
        self.under_way == 0 && self.next.is_empty()
    }

    /// Has one more name looked at.
    pub(super) fn add(&mut self, name: &CStr, place: i64) {
        self.next.push((name.to_owned(), place));
        if self.next.len() >= CHUNK {
            self.send();
        }
    }

    fn send(&mut self) {
        // A thread that is gone is found out by waiting for its answer.
        let _ = self.ask.send(std::mem::replace(&mut self.next, Vec::with_capacity(CHUNK)));
        self.under_way += 1;
    }

    /// Waits for the next names, in the order that they were given in. None when there are none.
    pub(super) fn answer(&mut self) -> Option<Vec<Looked>> {
        if self.under_way == 0 && !self.next.is_empty() {
            self.send();
        }
        if self.under_way == 0 {
            return None;
        }
        let looked = self.answers.recv().ok();
        self.under_way -= usize::from(looked.is_some());
        looked
    }

    /// Ends the thread. A panic on it goes on here.
    pub(super) fn close(self) {
        let Self { ask, answers, thread, .. } = self;
        drop((ask, answers));
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    }
}

fn work(
    rules: &RootConfig,
    mut examiner: Examiner,
    directory: &OwnedFd,
    asked: &Receiver<Vec<Listed>>,
    answer: &Sender<Vec<Looked>>,
) {
    while let Ok(names) = asked.recv() {
        examiner.refresh();
        let mut look = |name: &CStr| {
            let named = verdict::by_name(rules, name.to_bytes(), false)?;
            examiner.examine(rules, named, directory, name, Look::First)
        };
        let looked = names.into_iter().map(|(name, place)| {
            let result = look(&name);
            (name, place, result)
        });
        if answer.send(looked.collect()).is_err() {
            return;
        }
    }
}
