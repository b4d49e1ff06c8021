//! A scan where the kernel lists every mount namespace, with or without tasks.

use super::Progress;
use super::unlisted::Outcome;
use crate::evidence::procfs::{Procfs, inode};
use crate::evidence::tasks::{self, Tasks};
use crate::model::coverage::{GapCause, Reach};
use crate::model::id::NamespaceId;
use crate::sys::namespace::{self, Direction, NamespaceInfo};
use nix::errno::Errno;
use std::os::fd::{AsFd, OwnedFd};

/// Tasks are listed again, this often at most, when some went before they were read.
const ROUNDS: u32 = 3;

/// The list is walked this often at most. Two passes are the rule: one that reads, and one that finds nothing more.
const PASSES: u32 = 8;

impl Progress<'_> {
    /// Brings in what tasks told. What they could hold was read by the list, so they lower no claim about owners.
    pub(super) fn account_listed(&mut self, tasks: nix::Result<Tasks>) {
        match tasks {
            Ok(tasks) => self.tasks = tasks,
            Err(_) => self.coverage.lower(GapCause::ProcfsUnreadable, 1, Reach::Everybody),
        }
        self.coverage.lower(GapCause::TaskDeparted, self.tasks.departed, Reach::Nobody);
        self.coverage.lower(GapCause::TaskUnreadable, self.tasks.unreadable.len() as u64, Reach::Nobody);
        self.read_rest_through_tasks();
    }

    /// What could not be entered may still be seen by a task in it.
    fn read_rest_through_tasks(&mut self) {
        let mut without_table = 0;
        for namespace in self.unread.clone() {
            let task = self.tasks.by_namespace.get(&namespace).and_then(|tasks| tasks.first().copied());
            match task.map(|task| self.read_view_of(namespace, task)) {
                Some(Outcome::Read) if !self.unread.contains(&namespace) => {}
                Some(Outcome::Partial(reach)) => self.coverage.lower(GapCause::ReaderChrooted, 1, reach),
                _ => without_table += 1,
            }
        }
        self.coverage.lower(GapCause::NamespaceUnread, without_table, Reach::Everybody);
    }

    /// Reads every namespace, and goes over the list until that shows none that was not read.
    ///
    /// The list is in the order of the kernel's ids, which each processor takes from a stock of its own (6.18): a copy of
    /// a namespace can come to lie behind the walk, and its original can end before the walk reaches it. So each time
    /// the walk goes the other way.
    pub(super) fn walk_namespaces(&mut self) -> nix::Result<()> {
        let home = self.reader.home().try_clone().map_err(|_| Errno::EMFILE)?;
        let mut current = first(home)?;
        let mut direction = Direction::Next;
        for pass in 1..=PASSES {
            let mut unseen = 0;
            loop {
                unseen += u32::from(self.visit(&current.0, current.1)?);
                match step(&current.0, direction)? {
                    Some(neighbour) => current = neighbour,
                    None => break,
                }
            }
            if pass > 1 && unseen == 0 {
                return Ok(());
            }
            direction = match direction {
                Direction::Next => Direction::Previous,
                Direction::Previous => Direction::Next,
            };
        }
        self.coverage.lower(GapCause::NamespacesUnlisted, 1, Reach::Everybody);
        Ok(())
    }

    /// Reads a namespace while it is held open, so that it cannot end unread. Returns whether it is one not seen before.
    fn visit(&mut self, namespace: &OwnedFd, info: NamespaceInfo) -> nix::Result<bool> {
        let id = NamespaceId(inode(namespace)?);
        if self.kernel_ids.insert(id, info.id) == Some(info.id) {
            return Ok(false);
        }
        match self.reader.read(namespace) {
            Ok(table) => self.keep(id, table),
            Err(_) => {
                self.unread.insert(id);
            }
        }
        Ok(true)
    }
}

/// Lists tasks until none goes between being listed and being read, or too often.
pub(super) fn list_tasks(procfs: &Procfs) -> nix::Result<Tasks> {
    let mut found = tasks::list(procfs)?;
    for _ in 1..ROUNDS {
        if found.departed == 0 {
            break;
        }
        found = tasks::list(procfs)?;
    }
    Ok(found)
}

/// Shows every mount namespace that the caller is privileged over, each held open while it is shown, in one pass: what
/// lives through all of the pass is shown.
pub(super) fn walk(from: OwnedFd, mut show: impl FnMut(&OwnedFd, NamespaceInfo) -> nix::Result<()>) -> nix::Result<()> {
    let mut current = first(from)?;
    loop {
        show(&current.0, current.1)?;
        match step(&current.0, Direction::Next)? {
            Some(next) => current = next,
            None => return Ok(()),
        }
    }
}

/// The first namespace of the list.
fn first(from: OwnedFd) -> nix::Result<(OwnedFd, NamespaceInfo)> {
    let info = namespace::info(&from)?;
    let mut current = (from, info);
    while let Some(previous) = step(&current.0, Direction::Previous)? {
        current = previous;
    }
    Ok(current)
}

fn step(namespace: &OwnedFd, direction: Direction) -> nix::Result<Option<(OwnedFd, NamespaceInfo)>> {
    match namespace::neighbour(namespace.as_fd(), direction) {
        Ok(neighbour) => Ok(Some(neighbour)),
        Err(Errno::ENOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}
