//! A scan where the kernel lists every mount namespace, with or without tasks.

use super::Progress;
use super::unlisted::Outcome;
use crate::evidence::procfs::inode;
use crate::model::coverage::{GapCause, Reach};
use crate::model::id::NamespaceId;
use crate::sys::namespace::{self, Direction, NamespaceInfo};
use nix::errno::Errno;
use std::os::fd::{AsFd, OwnedFd};

/// Tasks are listed again, this often at most, when some went before they were read.
const ROUNDS: u32 = 3;

impl Progress<'_> {
    /// Returns whether the list was walked to its end.
    pub(super) fn run_listed(&mut self) -> bool {
        // Tasks are for the account and the reports only: what they could hold, the list has.
        for round in 1..=ROUNDS {
            if !self.list_tasks() || self.tasks.departed == 0 {
                break;
            }
            if round == ROUNDS {
                self.coverage.lower(GapCause::TaskDeparted, self.tasks.departed, Reach::Nobody);
            }
        }
        let walked = self.walk_namespaces();
        if walked {
            let unreadable = self.tasks.unreadable.len() as u64;
            self.coverage.lower(GapCause::TaskUnreadable, unreadable, Reach::Nobody);
            self.read_rest_through_tasks();
        }
        walked
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

    fn walk_namespaces(&mut self) -> bool {
        let Ok(home) = self.reader.home().try_clone() else { return false };
        walk(home, |namespace, info| {
            let id = NamespaceId(inode(namespace)?);
            self.kernel_ids.insert(id, info.id);
            match self.reader.read(namespace) {
                Ok(table) => self.keep(id, table),
                Err(_) => {
                    self.unread.insert(id);
                }
            }
            Ok(())
        })
        .is_ok()
    }
}

/// Shows every mount namespace that the caller is privileged over, each held open while it is shown, in the order in
/// which they were made: one that is made meanwhile, a copy of one that was not shown yet among them, comes later.
pub(super) fn walk(from: OwnedFd, mut show: impl FnMut(&OwnedFd, NamespaceInfo) -> nix::Result<()>) -> nix::Result<()> {
    let step = |namespace: &OwnedFd, direction| match namespace::neighbour(namespace.as_fd(), direction) {
        Ok(neighbour) => Ok(Some(neighbour)),
        Err(Errno::ENOENT) => Ok(None),
        Err(errno) => Err(errno),
    };
    let mut info = namespace::info(&from)?;
    let mut current = from;
    while let Some((previous, its_info)) = step(&current, Direction::Previous)? {
        (current, info) = (previous, its_info);
    }
    loop {
        show(&current, info)?;
        match step(&current, Direction::Next)? {
            Some((next, its_info)) => (current, info) = (next, its_info),
            None => return Ok(()),
        }
    }
}
