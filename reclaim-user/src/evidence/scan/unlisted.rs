//! A scan where the kernel does not list mount namespaces: they are found through tasks, through open descriptors and
//! through mounted namespace files.

use super::Progress;
use crate::evidence::layers::stalls_at;
use crate::evidence::procfs::{inode, namespace_number};
use crate::model::coverage::{GapCause, Holder, Reach};
use crate::model::id::{MountId, NamespaceId};
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use std::collections::HashSet;
use std::os::fd::OwnedFd;

/// The host is looked at again, this often at most, when some task or namespace went before it was read.
const ROUNDS: u32 = 8;

/// How reading one namespace through its tasks ended.
pub(super) enum Outcome {
    Read,
    /// None of its tasks is in it any more.
    Vanished,
    /// Only what one of its tasks sees was read.
    Partial(Reach),
}

impl Progress<'_> {
    pub(super) fn run_unlisted(&mut self) {
        // A namespace that nobody is in, that no open file and no mount in any table shows, cannot be found.
        self.coverage.lower(GapCause::NamespacesUnlisted, 1, Reach::Nobody);
        self.tables.clear();
        self.unread.clear();
        let mut partial = Vec::new();
        for round in 1..=ROUNDS {
            // Else the namespace that was read last would seem to be alive, with this thread as a task in it.
            self.reader.leave();
            if !self.list_tasks() {
                return;
            }
            partial.clear();
            // A task that went may have left its namespace to a task that was already read elsewhere: look at all again.
            let mut departed = self.tasks.departed;
            let mut found: Vec<(NamespaceId, Vec<u32>)> = self.tasks.by_namespace.clone().into_iter().collect();
            found.sort_unstable_by_key(|(namespace, _)| *namespace);
            for (namespace, tasks) in found {
                if self.tables.contains_key(&namespace) && !self.unread.contains(&namespace) {
                    continue;
                }
                match self.read_through(namespace, &tasks) {
                    Outcome::Read => {}
                    Outcome::Vanished => departed += 1,
                    Outcome::Partial(reach) => partial.push(reach),
                }
            }
            self.read_held_by_descriptors();
            if departed == 0 {
                break;
            }
            if round == ROUNDS {
                let anybodys = Holder { uids: vec![], user_namespace_owner: Some(0) };
                self.coverage.lower(GapCause::TaskDeparted, departed, Reach::Holder(anybodys));
            }
        }
        for reach in partial {
            self.coverage.lower(GapCause::ReaderChrooted, 1, reach);
        }
        self.account_unreadable();
        let without_table = self.unread.iter().filter(|namespace| !self.tables.contains_key(namespace)).count();
        self.coverage.lower(GapCause::NamespaceUnread, without_table as u64, Reach::Everybody);
    }

    fn read_through(&mut self, namespace: NamespaceId, tasks: &[u32]) -> Outcome {
        let mut refused = None;
        for task in tasks {
            match self.reader.open_of_task(*task, namespace) {
                Ok(open) => {
                    if self.read_open(namespace, open) {
                        return Outcome::Read;
                    }
                    refused = Some(*task);
                    break;
                }
                Err(Errno::ESRCH | Errno::ENOENT) => {}
                Err(_) => refused = Some(*task),
            }
        }
        let Some(task) = refused else { return Outcome::Vanished };
        self.read_view_of(namespace, task)
    }

    /// Reads a namespace and those whose files are mounted in it.
    fn read_open(&mut self, namespace: NamespaceId, open: OwnedFd) -> bool {
        let mut waiting = vec![(namespace, open)];
        let mut first_read = false;
        while let Some((id, open)) = waiting.pop() {
            let Ok(table) = self.reader.read(&open) else {
                self.unread.insert(id);
                continue;
            };
            first_read |= id == namespace;
            for (index, inode_number) in &table.namespaces {
                let mounted = NamespaceId(*inode_number);
                let is_known = mounted == id || self.tables.contains_key(&mounted) && !self.unread.contains(&mounted);
                if is_known || waiting.iter().any(|(other, _)| *other == mounted) {
                    continue;
                }
                let point = table.mounts[*index].point.as_deref();
                match point.and_then(|point| open_mounted(point, mounted, &table)) {
                    Some(open) => waiting.push((mounted, open)),
                    // A task may be in it, so this is settled when all else was read.
                    None => _ = self.unread.insert(mounted),
                }
            }
            self.keep(id, table);
        }
        first_read
    }

    /// Reads what one task sees. That is the whole namespace when its root is the namespace's own.
    pub(super) fn read_view_of(&mut self, namespace: NamespaceId, task: u32) -> Outcome {
        let procfs = self.reader.procfs();
        let Some(table) = self.reader.read_text(&task.to_string()) else {
            // Nothing was read at all; it stays known as unread.
            self.unread.insert(namespace);
            return Outcome::Read;
        };
        // The kernel gives the root of a task in another namespace as a path from that namespace's own root.
        let at_root = procfs.link(&format!("{task}/root")).is_ok_and(|root| root == b"/");
        let stayed = procfs.namespace_link(&format!("{task}/ns/mnt"), "mnt") == Ok(namespace.0);
        if !stayed {
            return Outcome::Vanished;
        }
        self.tables.remove(&namespace);
        self.keep_view(namespace, table);
        if at_root {
            self.unread.remove(&namespace);
            return Outcome::Read;
        }
        self.unread.insert(namespace);
        Outcome::Partial(self.holder_of(task))
    }

    /// Reads namespaces that an open descriptor keeps.
    fn read_held_by_descriptors(&mut self) {
        let procfs = self.reader.procfs();
        for process in std::mem::take(&mut self.tasks.processes) {
            let Ok(descriptors) = procfs.numbers(&format!("{process}/fd")) else { continue };
            for descriptor in descriptors {
                let path = format!("{process}/fd/{descriptor}");
                let held = procfs.link(&path).ok().and_then(|link| namespace_number(&link, "mnt")).map(NamespaceId);
                let Some(namespace) = held else { continue };
                if self.tables.contains_key(&namespace) && !self.unread.contains(&namespace) {
                    continue;
                }
                let open = procfs.open_file(&path).ok().filter(|open| inode(open) == Ok(namespace.0));
                match open {
                    Some(open) => _ = self.read_open(namespace, open),
                    None => _ = self.unread.insert(namespace),
                }
            }
        }
    }

    /// Tasks that do not tell their namespace: their mounts count, and those show whether it was read.
    fn account_unreadable(&mut self) {
        let whole = |namespace: &NamespaceId| !self.unread.contains(namespace);
        let tables = self.tables.iter().filter(|(namespace, _)| whole(namespace));
        let read: HashSet<MountId> = tables.flat_map(|(_, table)| table.mounts.iter().map(|m| m.id)).collect();
        for task in std::mem::take(&mut self.tasks.unreadable) {
            let reach = match self.reader.read_text(&task.to_string()) {
                // A mount is in one namespace only, so this task is in one that was read.
                Some(table) if table.mounts.iter().any(|mount| read.contains(&mount.id)) => Reach::Nobody,
                Some(table) => {
                    self.keep_view(NamespaceId::UNKNOWN, table);
                    self.holder_of(task)
                }
                None => self.holder_of(task),
            };
            self.coverage.lower(GapCause::TaskUnreadable, 1, reach);
        }
    }
}

/// Opens a namespace file where the table of the calling thread's namespace shows it.
fn open_mounted(point: &[u8], expected: NamespaceId, table: &super::Table) -> Option<OwnedFd> {
    if stalls_at(point, &table.mounts, &table.stalling) {
        return None;
    }
    let open = open(point, OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty()).ok()?;
    (inode(&open) == Ok(expected.0)).then_some(open)
}
