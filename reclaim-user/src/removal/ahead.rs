//! Looking ahead: the first look at names that the listing decides on next, on a thread of its own.
//!
//! The thread is given names and gives back what it found, with the lock on each entry that has passed so far. It asks no
//! evidence. What it found may be a moment old when it is used: before anything is removed, evidence has compared it with
//! what is there, or whatever can have changed since is looked at again.
//!
//! Where there are only two processors it takes on other work as well: of three threads one would always be kept waiting,
//! and mostly the one that all the others wait for. Such work gets all the time in which no name waits, and else a fifth.

use super::examine::{Examined, Examiner, Look, Stop};
use super::leases;
use super::place::Root;
use super::words::Words;
use crate::config::RootConfig;
use crate::model::verdict;
use crate::sys::directory::open_child;
use std::collections::VecDeque;
use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// Names that the thread is given at a time.
const CHUNK: usize = 256;

/// Chunks that are under way at most. Their entries are locked and open, so there must not be many.
const CHUNKS: usize = 4;

/// How many times as long as on other work the thread is at looks while names wait.
const LOOKS_TO_ASIDE: u32 = 4;

/// A name, and the place in the listing behind it.
pub(super) type Listed = (CString, i64);

/// A name that was looked at.
pub(super) type Looked = (CString, i64, Result<Examined, Stop>);

/// Work that the thread does between looks: a small part of it at a time, and whether there is more.
pub(super) type Aside = Box<dyn FnMut() -> bool + Send>;

/// What the thread is asked to do.
enum Task {
    Look(Vec<Listed>),
    Aside(Aside),
}

/// What came back.
#[derive(Debug)]
pub(super) enum Answer {
    /// The next names, in the order that they were given in.
    Looked(Vec<Looked>),
    /// Not in time.
    NotYet,
    /// There are none.
    Nothing,
}

/// The thread, and what is on its way.
#[derive(Debug)]
pub(super) struct Ahead {
    ask: Sender<Task>,
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
        let _ = self.ask.send(Task::Look(std::mem::replace(&mut self.next, Vec::with_capacity(CHUNK))));
        self.under_way += 1;
    }

    /// Waits for the next names.
    pub(super) fn answer(&mut self, limit: Duration) -> Answer {
        if self.under_way == 0 && !self.next.is_empty() {
            self.send();
        }
        if self.under_way == 0 {
            return Answer::Nothing;
        }
        match self.answers.recv_timeout(limit) {
            Ok(looked) => {
                self.under_way -= 1;
                Answer::Looked(looked)
            }
            Err(RecvTimeoutError::Timeout) => Answer::NotYet,
            Err(RecvTimeoutError::Disconnected) => Answer::Nothing,
        }
    }

    /// Takes back names that the thread was not given yet. Those that it was given still come back.
    pub(super) fn give_no_more(&mut self) {
        self.next.clear();
    }

    /// Has other work done between looks. Where the thread is gone it is dropped.
    pub(super) fn take_on(&self, aside: Aside) {
        let _ = self.ask.send(Task::Aside(aside));
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
    asked: &Receiver<Task>,
    answer: &Sender<Vec<Looked>>,
) {
    let mut asides: VecDeque<Aside> = VecDeque::new();
    loop {
        let task = match asides.is_empty() {
            true => asked.recv().map_err(|_| TryRecvError::Disconnected),
            false => asked.try_recv(),
        };
        let names = match task {
            Ok(Task::Look(names)) => names,
            Ok(Task::Aside(aside)) => {
                asides.push_back(aside);
                continue;
            }
            Err(TryRecvError::Disconnected) if asides.is_empty() => return,
            Err(_) => {
                go_on(&mut asides);
                continue;
            }
        };
        let begun = Instant::now();
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
        // Names may come for as long as a root is large, and what was taken on is not to wait for their end.
        let until = Instant::now() + begun.elapsed() / LOOKS_TO_ASIDE;
        while go_on(&mut asides) && Instant::now() < until {}
    }
}

/// Does a part of what was taken on first. Returns whether there is more of anything.
fn go_on(asides: &mut VecDeque<Aside>) -> bool {
    if asides.front_mut().is_some_and(|aside| !aside()) {
        asides.pop_front();
    }
    !asides.is_empty()
}

#[cfg(test)]
mod tests {
    use super::super::tests::support::Room;
    use super::*;
    use std::sync::mpsc::sync_channel;

    fn begin(room: &Room) -> Ahead {
        let root = Root::open(&room.root()).unwrap().unwrap();
        Ahead::begin(&room.rules(), &root, &Arc::new(Words::silence())).unwrap()
    }

    fn looked(ahead: &mut Ahead) -> usize {
        loop {
            match ahead.answer(Duration::from_secs(1)) {
                Answer::Looked(looked) => return looked.len(),
                Answer::NotYet => {}
                Answer::Nothing => return 0,
            }
        }
    }

    #[test]
    fn names_are_looked_at_between_the_parts_of_other_work() {
        let room = Room::new();
        room.stale("a");
        let mut ahead = begin(&room);
        let ((begin, begun), (end, ended)) = (channel(), sync_channel(0));
        ahead.take_on(Box::new(move || begin.send(()).is_ok() && end.send(()).is_ok()));
        for _ in 0..3 {
            begun.recv().unwrap();
            ahead.add(c"a", 1);
            assert!(matches!(ahead.answer(Duration::from_millis(20)), Answer::NotYet));
            ended.recv().unwrap();
            assert_eq!(looked(&mut ahead), 1);
        }
        drop((begun, ended));
        ahead.close();
    }

    #[test]
    fn other_work_goes_on_however_many_names_there_are() {
        let room = Room::new();
        room.stale("a");
        let mut ahead = begin(&room);
        let ((part, parts), (begin, begun), (end, ended)) = (channel(), channel(), sync_channel(0));
        let mut is_first = true;
        ahead.take_on(Box::new(move || {
            if std::mem::take(&mut is_first) {
                begin.send(()).unwrap();
                end.send(()).unwrap();
            }
            part.send(()).is_ok()
        }));
        begun.recv().unwrap();
        // While all of them wait.
        for place in 0.. {
            if ahead.is_full() {
                break;
            }
            ahead.add(c"a", place);
        }
        ended.recv().unwrap();
        for _ in 0..CHUNKS {
            assert_eq!(looked(&mut ahead), CHUNK);
        }
        // The one that was under way, and one behind each of the others but the last.
        assert!(parts.try_iter().count() >= CHUNKS);
        drop(parts);
        ahead.close();
    }

    #[test]
    fn other_work_is_done_to_its_end() {
        let room = Room::new();
        room.stale("a");
        let mut ahead = begin(&room);
        let (part, parts) = channel();
        for first in [0, 10] {
            let (part, mut left) = (part.clone(), first..first + 3);
            ahead.take_on(Box::new(move || left.next().is_some_and(|number| part.send(number).is_ok())));
        }
        ahead.add(c"a", 1);
        ahead.give_no_more();
        assert_eq!(looked(&mut ahead), 0);
        ahead.close();
        drop(part);
        assert_eq!(parts.iter().collect::<Vec<_>>(), [0, 1, 2, 10, 11, 12]);
    }
}
