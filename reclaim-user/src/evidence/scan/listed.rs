//! A scan where the kernel lists every mount namespace, with or without tasks.

use super::Progress;
use super::reader::Reader;
use super::second::{Asked, Done, Part, Second};
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

/// Namespaces that are read before a second thread is worth it.
const WORTH_A_THREAD: usize = 64;

impl<'a> Progress<'a> {
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
        std::thread::scope(|scope| {
            let mut second = None;
            let walked = self.walk_with(&mut second, &|reader| Second::begin(scope, reader));
            if let Some(second) = second {
                self.take(second.close());
            }
            walked
        })
    }

    fn walk_with<'s>(
        &mut self,
        second: &mut Option<Second<'s>>,
        begin: &dyn Fn(&Reader<'a>) -> Option<Second<'s>>,
    ) -> nix::Result<()> {
        let home = self.reader.home().try_clone().map_err(|_| Errno::EMFILE)?;
        let mut current = first(home)?;
        let mut direction = Direction::Next;
        for pass in 1..=PASSES {
            let mut unseen = 0;
            loop {
                let next = step(&current.0, direction)?;
                let is_last = next.is_none();
                let id = self.unseen(&current.0, current.1)?;
                unseen += u32::from(id.is_some());
                match (id, next) {
                    (Some(id), Some(next)) => {
                        let (namespace, NamespaceInfo { id: kernel_id, .. }) = std::mem::replace(&mut current, next);
                        if second.is_none() && self.kernel_ids.len() == WORTH_A_THREAD {
                            *second = begin(&self.reader);
                        }
                        let asked = Asked { id, kernel_id, namespace };
                        let refused = match second {
                            Some(second) => second.offer(asked),
                            None => Some(asked),
                        };
                        if let Some(Asked { id, namespace, .. }) = refused {
                            self.read(id, &namespace);
                        }
                    }
                    (Some(id), None) => self.read(id, &current.0),
                    (None, Some(next)) => current = next,
                    (None, None) => {}
                }
                if is_last {
                    break;
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

    /// The number of a namespace that was not seen before. It is to be read while it is held open, so that it cannot end
    /// unread.
    fn unseen(&mut self, namespace: &OwnedFd, info: NamespaceInfo) -> nix::Result<Option<NamespaceId>> {
        let id = NamespaceId(inode(namespace)?);
        Ok((self.kernel_ids.insert(id, info.id) != Some(info.id)).then_some(id))
    }

    fn read(&mut self, id: NamespaceId, namespace: &OwnedFd) {
        match self.reader.read(namespace) {
            Ok(table) => self.keep(id, table),
            Err(_) => _ = self.unread.insert(id),
        }
    }

    /// Takes in what a second thread read.
    fn take(&mut self, part: Part) {
        self.layers.merge(part.layers);
        for Done { id, kernel_id, table } in part.namespaces {
            // Its number may have gone to another one since, which was read by whoever came by that.
            if self.kernel_ids.get(&id) != Some(&kernel_id) {
                continue;
            }
            match table {
                Ok(table) => {
                    self.unread.remove(&id);
                    self.tables.insert(id, table);
                }
                Err(_) => _ = self.unread.insert(id),
            }
        }
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

#[cfg(test)]
mod tests {
    use super::super::reader::Unread;
    use super::super::table::Table;
    use super::*;
    use crate::evidence::layers::Layers;
    use crate::evidence::scan::{ScanOptions, identities};
    use crate::model::coverage::Coverage;
    use std::collections::{BTreeMap, HashMap, HashSet};

    #[test]
    fn what_the_second_thread_read_counts_unless_its_number_went_to_another_namespace() {
        let procfs = Procfs::open().expect("procfs is mounted");
        let [read, refused, again] = [1, 2, 3].map(NamespaceId);
        let table = |id| {
            let text = format!("{id} 1 0:2 / / rw - ext4 r rw\n");
            Table::parse(text.as_bytes()).expect("the text is valid")
        };
        let done = |id, kernel_id, table| Done { id, kernel_id, table };
        let namespaces = vec![
            done(read, 11, Ok(table(11))),
            done(refused, 12, Err(Unread)),
            done(again, 13, Ok(table(13))),
            done(again, 13, Err(Unread)),
        ];
        std::thread::scope(|scope| {
            // On a thread that ends with it: its working directory becomes its own.
            scope.spawn(|| {
                let mut progress = Progress {
                    reader: Reader::start(&procfs, ScanOptions::default()).expect("a thread may have its own"),
                    tables: BTreeMap::from([(again, table(99))]),
                    kernel_ids: HashMap::from([(read, 11), (refused, 12), (again, 99)]),
                    unread: HashSet::from([read]),
                    tasks: Tasks::default(),
                    coverage: Coverage::full(identities()),
                    layers: Layers::default(),
                };
                progress.take(Part { namespaces, layers: Layers::default() });
                assert_eq!(progress.tables, BTreeMap::from([(read, table(11)), (again, table(99))]));
                assert_eq!(progress.unread, HashSet::from([refused]));
            });
        });
    }
}
