//! One namespace by itself, and the list of all: what the live set asks for.

use super::listed::walk;
use super::reader::Reader;
use super::table::Table;
use super::{Known, ScanError, Scanner, TASKS_KNOWN, mount_table, own_table};
use crate::evidence::layers::View;
use crate::evidence::procfs::{Procfs, inode};
use crate::evidence::tasks;
use crate::model::id::NamespaceId;
use crate::model::pin_set::NamespacePins;
use crate::sys::mount_list::Answer;
use crate::sys::namespace;
use nix::errno::Errno;
use std::collections::HashSet;
use std::os::fd::OwnedFd;

/// What became of reading one namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reading {
    /// It was read from its own root.
    Table(NamespacePins),
    /// No such namespace exists.
    Gone,
    /// It may exist, and could not be read.
    Unknown {
        /// Why.
        why: &'static str,
    },
}

/// The mount namespaces that exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// Inode numbers, each once.
    pub namespaces: Vec<NamespaceId>,
    /// No other exists. Never so where only tasks tell.
    pub complete: bool,
}

impl Scanner {
    /// Tells of a task in a namespace, so that reading the namespace need not look for one.
    pub fn hint(&mut self, namespace: NamespaceId, task: u32) {
        let tasks = &mut self.known.entry(namespace).or_default().tasks;
        tasks.retain(|known| *known != task);
        tasks.truncate(TASKS_KNOWN - 1);
        tasks.insert(0, task);
    }

    /// Reads one namespace. Quick where the namespace was seen before or [`Scanner::hint`] told of a task in it.
    ///
    /// # Errors
    /// When nothing at all can be read.
    pub fn read_namespace(&mut self, namespace: NamespaceId) -> Result<Reading, ScanError> {
        let known = self.known.get(&namespace).cloned().unwrap_or_default();
        if self.options.use_mount_list
            && let Some(kernel_id) = known.kernel_id
            && let Some(table) = self.list_known(kernel_id)
        {
            let pins = NamespacePins { table: mount_table(table, &self.layers), tasks: known.tasks };
            return Ok(Reading::Table(pins));
        }
        let procfs = Procfs::open()?;
        let open = match self.find(&procfs, namespace, &known)? {
            Found::Open(open) => open,
            Found::Gone => {
                self.known.remove(&namespace);
                return Ok(Reading::Gone);
            }
            Found::Nowhere => return Ok(Reading::Unknown { why: "no task in it was found" }),
        };
        let kernel_id = namespace::info(&open).ok().map(|info| info.id);
        self.known.insert(namespace, Known { kernel_id, tasks: known.tasks.clone() });
        self.enter(&procfs, open, known.tasks)
    }

    /// Lists the namespaces that exist, without reading them.
    ///
    /// # Errors
    /// When there is no procfs.
    pub fn list_namespaces(&mut self) -> Result<Listing, ScanError> {
        let procfs = Procfs::open()?;
        let mut namespaces = Vec::new();
        if self.options.use_namespace_list {
            let listed = self.walk(&procfs, |id, _| {
                namespaces.push(id);
                false
            });
            if listed.is_ok() {
                let complete = procfs.privileged_over_host();
                if complete {
                    let alive: HashSet<_> = namespaces.iter().collect();
                    self.known.retain(|namespace, _| alive.contains(namespace));
                }
                return Ok(Listing { namespaces, complete });
            }
        }
        let found = tasks::list(&procfs).map_err(|source| ScanError::Own { file: "", source })?;
        let namespaces = found.by_namespace.into_iter().map(|(namespace, tasks)| {
            self.known.entry(namespace).or_default().tasks = tasks.into_iter().take(TASKS_KNOWN).collect();
            namespace
        });
        Ok(Listing { namespaces: namespaces.collect(), complete: false })
    }

    /// Walks the kernel's list, notes what it learns, and returns the namespace that `wanted` says yes to.
    fn walk(
        &mut self,
        procfs: &Procfs,
        mut wanted: impl FnMut(NamespaceId, &OwnedFd) -> bool,
    ) -> nix::Result<Option<OwnedFd>> {
        let mut found = None;
        walk(procfs.open_file("thread-self/ns/mnt")?, |namespace, info| {
            let id = NamespaceId(inode(namespace)?);
            let known = self.known.entry(id).or_default();
            if known.kernel_id != Some(info.id) {
                known.kernel_id = Some(info.id);
            }
            if wanted(id, namespace) {
                found = namespace.try_clone().ok();
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// By listmount, without entering it. None where that does not show everything.
    fn list_known(&self, kernel_id: u64) -> Option<Table> {
        let table = Table::list(kernel_id, false, &mut Answer::default()).ok()?;
        let all_known = table.unions.iter().all(|union| self.layers.knows(&union.key));
        (all_known && table.sees_all_points()).then_some(table)
    }

    fn find(&mut self, procfs: &Procfs, namespace: NamespaceId, known: &Known) -> Result<Found, ScanError> {
        for task in &known.tasks {
            let open = procfs.open_file(&format!("{task}/ns/mnt"));
            if let Ok(open) = open.and_then(|open| (inode(&open)? == namespace.0).then_some(open).ok_or(Errno::ESRCH)) {
                return Ok(Found::Open(open));
            }
        }
        if self.options.use_namespace_list
            && let Ok(found) = self.walk(procfs, |id, _| id == namespace)
        {
            match found {
                Some(open) => return Ok(Found::Open(open)),
                None if procfs.privileged_over_host() => return Ok(Found::Gone),
                None => {}
            }
        }
        // Without the list, that no task is in it does not mean that it is gone, whatever else was looked at: an open
        // mountinfo file keeps a namespace alive and names it nowhere (`struct proc_mounts` of <fs/mount.h>).
        let found = tasks::list(procfs).map_err(|source| ScanError::Own { file: "", source })?;
        let tasks = found.by_namespace.get(&namespace).map_or(&[][..], Vec::as_slice);
        let open = tasks.iter().find_map(|task| {
            procfs.open_file(&format!("{task}/ns/mnt")).ok().filter(|open| inode(open) == Ok(namespace.0))
        });
        Ok(open.map_or(Found::Nowhere, Found::Open))
    }

    fn enter(&mut self, procfs: &Procfs, open: OwnedFd, tasks: Vec<u32>) -> Result<Reading, ScanError> {
        let (options, layers) = (self.options, &mut self.layers);
        let table = std::thread::scope(|scope| {
            let run = || {
                let mut reader = Reader::start(procfs, options)?;
                let table = reader.read(&open);
                if let Ok(table) = &table {
                    table.unions.iter().for_each(|union| layers.look_up(&union.key, reader.view(table)));
                }
                reader.leave();
                drop(open);
                Ok::<_, ScanError>(table)
            };
            let helper = std::thread::Builder::new().name("reclaim-read".into()).spawn_scoped(scope, run);
            let helper = helper.map_err(ScanError::Helper)?;
            helper.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
        let Ok(table) = table else {
            return Ok(Reading::Unknown { why: "its mount table could not be read from its own root" });
        };
        if !table.unions.is_empty() {
            let own = own_table(procfs)?;
            self.layers.look_up_all(View { procfs, mounts: &own.mounts, stalling: &own.stalling });
        }
        Ok(Reading::Table(NamespacePins { table: mount_table(table, &self.layers), tasks }))
    }
}

enum Found {
    Open(OwnedFd),
    /// The kernel's list, which was complete, did not have it.
    Gone,
    Nowhere,
}
