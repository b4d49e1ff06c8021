//! Leftovers: what earlier passes condemned and did not bring to an end, for whatever reason.

use super::condemn::{Batch, Condemned, Group, is_batch_name, is_undecided};
use super::confirm::{Denied, is_pinned};
use super::error::{RemovalError, failed};
use super::lock::Store;
use super::options::Stuck;
use super::pass::Pass;
use crate::evidence::source::EvidenceSource;
use crate::model::fence::FileKind;
use crate::model::plan::{GROUP_BATCHES, GROUP_ENTRIES};
use crate::model::report::Reason;
use crate::model::tally::Outcome;
use crate::sys::directory::{self, Names, Reader};
use crate::sys::file_status::{status_at, status_of};
use nix::errno::Errno;
use nix::unistd::geteuid;
use std::ffi::CStr;
use std::os::fd::AsFd;
use std::time::Instant;

impl<E: EvidenceSource> Pass<'_, E> {
    /// Judges everything in `.reclaim`: it is restored, or removed, or it stays for a later pass.
    pub(super) fn leftovers(&mut self, store: &Store) -> Result<(), RemovalError> {
        let mut earlier = std::mem::take(&mut self.state.stuck);
        let unfinished = std::mem::take(&mut self.state.unfinished);
        let mut group = Group::new();
        let mut names = self.names(store.directory())?;
        // What took all the time of an earlier pass lets others go first.
        names.sort_by_key(|name| unfinished.iter().any(|(batch, _)| batch == name.to_bytes()));
        for name in names {
            let Some(batch) = self.open_batch(store, &name) else { continue };
            if is_undecided(batch.name.to_bytes()) {
                self.give_all_back(store, batch)?;
                continue;
            }
            let (mut due, mut later) = (Vec::new(), Vec::new());
            for name in self.names(&batch.directory)? {
                self.breathe();
                let Ok(file) = status_at(&batch.directory, &name) else { continue };
                let key = (batch.name.to_bytes().to_vec(), name.to_bytes().to_vec());
                let stuck: Option<Stuck> = earlier.remove(&key);
                let kept = match stuck {
                    Some(stuck) if !stuck.is_due(Instant::now()) => &mut later,
                    _ => &mut due,
                };
                if let Some(stuck) = stuck {
                    self.state.stuck.insert(key, stuck);
                }
                kept.push(Condemned::leftover(name, None, 0, &file));
            }
            let later = self.pinned_only(&batch, later)?;
            due.extend(later);
            if due.is_empty() {
                // Empty already, or all of it waits: this only removes what is empty.
                let _ = directory::remove_directory(store.directory(), &batch.name);
                continue;
            }
            let key = |condemned: &Condemned| (batch.name.to_bytes().to_vec(), condemned.name.to_bytes().to_vec());
            due.sort_by_cached_key(|condemned| unfinished.contains(&key(condemned)));
            for condemned in &mut due {
                condemned.batch = group.batches.len();
                if unfinished.contains(&key(condemned)) {
                    self.state.unfinished.insert(key(condemned));
                }
            }
            group.batches.push(Batch { entries: due.len(), ..batch });
            group.entries.extend(due);
            if group.entries.len() >= GROUP_ENTRIES || group.batches.len() >= GROUP_BATCHES {
                let full = std::mem::replace(&mut group, Group::new());
                self.conclude(Some(store), full, None);
            }
        }
        self.conclude(Some(store), group, None);
        Ok(())
    }

    /// Gives back what was condemned together and never proved together: one of it may be in use, and then all stays.
    fn give_all_back(&mut self, store: &Store, batch: Batch) -> Result<(), RemovalError> {
        let batches = [batch];
        let [batch] = &batches;
        for name in self.names(&batch.directory)? {
            self.breathe();
            let Ok(file) = status_at(&batch.directory, &name) else { continue };
            let detail = Some("what it was to be removed with was not proved to be free".into());
            let denied = Denied { reason: Reason::Failed, pins: Vec::new(), detail };
            self.give_back(&batches, Condemned::leftover(name, None, 0, &file), denied);
        }
        self.remove_batches(Some(store), &batches);
        Ok(())
    }

    /// Counts what is in `.reclaim` of a root that a dry run looks at. Nothing is locked.
    pub(super) fn count_leftovers(&mut self) -> Result<(), RemovalError> {
        let Ok(store) = directory::open_child(&self.root.directory, super::lock::STORE) else { return Ok(()) };
        for name in self.names(&store)?.into_iter().filter(|name| is_ours(name)) {
            let Ok(batch) = directory::open_child(&store, &name) else { continue };
            for name in self.names(&batch)? {
                self.report.entry(name.to_bytes(), Outcome::Condemned, None, Vec::new(), None);
            }
        }
        Ok(())
    }

    /// Of entries that are left alone for now: those that something came to rely on nevertheless. The others are counted.
    fn pinned_only(&mut self, batch: &Batch, later: Vec<Condemned>) -> Result<Vec<Condemned>, RemovalError> {
        if later.is_empty() {
            return Ok(later);
        }
        let (index, path) = (self.index, self.root.path.clone());
        let view = self.evidence.consult().map_err(|source| RemovalError::Evidence { path, source: source.into() })?;
        let (pinned, left) = later.into_iter().partition(|condemned| is_pinned(index, &view, batch, condemned));
        let left: Vec<Condemned> = left;
        for condemned in left {
            let detail = "it could not be removed before and is left alone for a while";
            self.report.quiet(condemned.name.to_bytes(), Outcome::Condemned, Some(Reason::Failed), Some(detail.into()));
        }
        Ok(pinned)
    }

    fn open_batch(&mut self, store: &Store, name: &CStr) -> Option<Batch> {
        let shown = name.to_string_lossy();
        let mut alone = |why: &str| {
            self.report.note(format!("`.reclaim/{shown}` is left alone, for {why}"));
            None
        };
        if !is_ours(name) {
            return alone("reclaim makes nothing of that name");
        }
        let directory = match directory::open_child(store.directory(), name) {
            Ok(directory) => directory,
            Err(Errno::ENOENT) => return None,
            Err(error) => return alone(&failed("openat2", error)),
        };
        match status_of(&directory) {
            Ok(file) if file.status.kind == FileKind::Directory && file.status.owner == geteuid().as_raw() => {}
            Ok(_) => return alone("it does not belong to reclaim"),
            Err(error) => return alone(&failed("statx", error)),
        }
        Some(Batch::new(name.into(), directory))
    }

    fn names(&self, directory: impl AsFd) -> Result<Vec<std::ffi::CString>, RemovalError> {
        let (mut reader, mut names) = (Reader::default(), Names::default());
        let path = self.root.path.join(".reclaim");
        while reader.read(&directory, &mut names).map_err(|source| RemovalError::Call {
            call: "getdents64",
            path: path.clone(),
            source,
        })? {}
        Ok((0..names.len()).filter_map(|index| names.get(index).map(|(name, _, _)| name.to_owned())).collect())
    }
}

fn is_ours(name: &CStr) -> bool {
    is_batch_name(name.to_bytes()) || is_undecided(name.to_bytes())
}
