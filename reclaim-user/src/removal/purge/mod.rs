//! Purging: the targets of one id, wherever they lie, are proved together and then removed, or none of them is.
//!
//! 1. managers are asked whether what has no path is there, and every other target is looked at under its own name:
//!    fences, pins, references ([`look`]);
//! 2. all are condemned, each in the `.reclaim` of its directory, in batches that say that nothing is decided
//!    ([`together`]); what a command removes stays where it is;
//! 3. mount calls are waited for, and every directory is confirmed. One denial, and all get their names back;
//! 4. commands are run first, since they can refuse; then the batches are decided on, and what is in them is removed.
//!
//! A crash before the decision leaves batches that the next pass or purge gives back; after it, such as are removed.

mod find;
mod look;
mod together;

pub use find::entries_of;

use super::confirm::Denied;
use super::crash;
use super::error::RemovalError;
use super::examine::Examiner;
use super::lock::{NoStore, Store};
use super::managed::Managed;
use super::place::Root;
use super::words::Words;
use crate::config::{RemoveRule, RootConfig};
use crate::evidence::source::EvidenceSource;
use crate::model::fence::FileKind;
use crate::model::hold::Print;
use crate::model::id::Location;
use crate::model::pin::Pin;
use crate::model::purge::TargetVerdict;
use crate::model::report::Reason;
use crate::sys::file_status::FileStatus;
use nix::fcntl::Flock;
use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A directory that targets lie in.
#[derive(Clone, Copy, Debug)]
pub struct Site<'a> {
    /// The directory, without a link in its path.
    pub path: &'a Path,
    /// Its index in the evidence.
    pub index: usize,
    /// Where it lies in its file system, as evidence knows it; none when it did not exist.
    pub location: Option<&'a Location>,
}

/// Something that belongs to the id.
#[derive(Clone, Debug)]
pub enum Target {
    /// It lies in a site.
    Entry(Box<EntryTarget>),
    /// It has no path.
    Managed(Managed),
}

impl Target {
    fn entry(&self) -> Option<&EntryTarget> {
        match self {
            Self::Entry(entry) => Some(entry),
            Self::Managed(_) => None,
        }
    }
}

impl From<EntryTarget> for Target {
    fn from(entry: EntryTarget) -> Self {
        Self::Entry(Box::new(entry))
    }
}

/// A target that lies in a site.
#[derive(Clone, Debug)]
pub struct EntryTarget {
    /// Index of its site.
    pub site: usize,
    /// Its name there, one component.
    pub name: CString,
    /// The fences that it has to pass, and how it is removed.
    pub rules: RootConfig,
    /// The one file that is meant; none when it is whatever has the name.
    pub only: Option<Print>,
}

impl EntryTarget {
    /// Whether what was found under its name is meant. A file whose contents were touched since is not; a directory may
    /// have been worked in.
    fn means(&self, found: &FileStatus) -> bool {
        let print = Print::of(found.identity.device, found.identity.inode, &found.status);
        let is_untouched = |only: &Print| found.status.kind == FileKind::Directory || only.modified == print.modified;
        self.only.is_none_or(|only| only.is_same_file(&print, true) && is_untouched(&only))
    }
}

/// How a purge is made.
#[derive(Clone, Debug)]
pub struct PurgeOptions {
    /// Change nothing, take no lock.
    pub dry_run: bool,
    /// Where keeps are told; none when there are none.
    pub state_dir: Option<PathBuf>,
    /// Longest wait for mount calls in flight.
    pub settle_limit: Duration,
    /// Once true, nothing more is begun.
    pub stop: Option<Arc<AtomicBool>>,
}

/// Why nothing was removed although nothing spoke against it.
const STOPPED: &str = "reclaim was told to stop";

/// What became of a target.
#[derive(Clone, Debug)]
pub struct Purged {
    /// What became of it.
    pub verdict: TargetVerdict,
    /// Why it was refused, or failed.
    pub reason: Option<Reason>,
    /// Pins that speak against it.
    pub pins: Vec<Pin>,
    /// More, for people.
    pub detail: Option<String>,
}

impl Purged {
    fn of(verdict: TargetVerdict) -> Self {
        Self { verdict, reason: None, pins: Vec::new(), detail: None }
    }

    fn refused(denied: Denied) -> Self {
        let Denied { reason, pins, detail } = denied;
        Self { verdict: TargetVerdict::Refused, reason: Some(reason), pins, detail }
    }

    fn failed(detail: String) -> Self {
        Self { reason: Some(Reason::Failed), detail: Some(detail), ..Self::of(TargetVerdict::Failed) }
    }

    /// Nothing was tried, for this reason.
    #[must_use]
    pub fn undone(detail: String) -> Self {
        Self::failed(detail)
    }

    fn kept(why: &str) -> Self {
        Self { detail: Some(why.to_owned()), ..Self::of(TargetVerdict::Kept) }
    }
}

/// A site that is open, and locked unless nothing will be changed.
struct Open<'a> {
    index: usize,
    location: &'a Location,
    root: Root,
    examiner: Examiner,
    store: Option<Store>,
    /// Held instead of the store's lock where nothing may be made.
    _lock: Option<Flock<OwnedFd>>,
}

/// Removes all targets, or none. The answers are in the order of the targets, and so are commands run.
///
/// `between` is called now and then, so that questions can be answered meanwhile.
///
/// # Errors
/// When a directory cannot be used or is held by another reclaimer, or no evidence can be taken. Nothing is removed then.
/// What has no path needs no evidence.
pub fn purge<E: EvidenceSource>(
    sites: &[Site<'_>],
    targets: &[Target],
    evidence: &mut E,
    options: &PurgeOptions,
    between: &mut dyn FnMut(&mut E),
) -> Result<Vec<Purged>, RemovalError> {
    crash::step("purge-begins");
    let mut open = Vec::new();
    let opened = sites.iter().enumerate().try_for_each(|(at, site)| {
        let of_site = targets.iter().filter_map(Target::entry).filter(|target| target.site == at);
        Open::new(*site, of_site, options).map(|site| open.push(site))
    });
    let result = opened.and_then(|()| {
        // One store can be guarded at a time, and nothing rests on it.
        evidence.guard(open.iter().flatten().find_map(|open| open.store.as_ref()).map(Store::directory));
        let result = act(&mut open, targets, evidence, options, between);
        evidence.guard(None);
        result
    });
    // Those that were opened before one failed, too.
    for Open { root, store, .. } in open.into_iter().flatten() {
        if let Some(store) = store {
            store.close(&root);
        }
    }
    result
}

fn act<E: EvidenceSource>(
    open: &mut [Option<Open<'_>>],
    targets: &[Target],
    evidence: &mut E,
    options: &PurgeOptions,
    between: &mut dyn FnMut(&mut E),
) -> Result<Vec<Purged>, RemovalError> {
    let looked = look::look(open, targets, evidence, options, between)?;
    let refused = looked.iter().any(|looked| matches!(looked, Err(Purged { verdict: TargetVerdict::Refused, .. })));
    if refused || options.dry_run {
        let spared = || match refused {
            true => Purged::kept("another target was refused"),
            false => Purged::of(TargetVerdict::WouldRemove),
        };
        return Ok(looked.into_iter().map(|looked| looked.map_or_else(|purged| purged, |_| spared())).collect());
    }
    if options.is_stopped() {
        let stopped = || Purged::refused(Denied { detail: Some(STOPPED.to_owned()), ..Denied::of(Reason::Failed) });
        return Ok(looked.into_iter().map(|looked| looked.map_or_else(|purged| purged, |_| stopped())).collect());
    }
    together::remove(open, targets, looked, evidence, options, between)
}

impl PurgeOptions {
    /// What a program is run with: answers questions meanwhile, and tells whether it may go on.
    fn turns<'t, E>(&'t self, evidence: &'t mut E, between: &'t mut dyn FnMut(&mut E)) -> impl FnMut() -> bool + 't {
        move || {
            between(evidence);
            !self.is_stopped()
        }
    }

    fn is_stopped(&self) -> bool {
        self.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed))
    }
}

impl<'a> Open<'a> {
    /// Opens a site. None when there is nothing at its path.
    fn new<'t>(
        site: Site<'a>,
        mut targets: impl Iterator<Item = &'t EntryTarget>,
        options: &PurgeOptions,
    ) -> Result<Option<Self>, RemovalError> {
        let Some(root) = Root::open(site.path)? else { return Ok(None) };
        let Site { path, index, location } = site;
        let Some(location) = location else {
            return Err(RemovalError::Moved { path: path.into(), found: None, watched: "nothing yet".into() });
        };
        let (mut store, mut lock) = (None, None);
        match (options.dry_run, targets.any(|target| target.rules.remove != RemoveRule::Command)) {
            (true, _) => {}
            // Nothing is made in storage that another manager owns.
            (false, false) => {
                lock = Some(Store::lock_root(&root)?);
                drop(Store::open_existing(&root, true)?);
            }
            (false, true) => match Store::open(&root, false) {
                Ok(opened) => store = Some(opened),
                Err(NoStore::Error(error)) => return Err(error),
                Err(NoStore::Cannot(source)) => {
                    return Err(RemovalError::Call { call: "mkdirat", path: root.path.join(".reclaim"), source });
                }
            },
        }
        let examiner = Examiner::new(&root, kept_in(&root, options));
        Ok(Some(Self { index, location, examiner, root, store, _lock: lock }))
    }

    /// Reads again what is to be kept.
    fn hear(&mut self, options: &PurgeOptions) {
        self.examiner.listen(kept_in(&self.root, options));
    }
}

fn kept_in(root: &Root, options: &PurgeOptions) -> Arc<Words> {
    Arc::new(Words::of_keeps(options.state_dir.as_deref(), &root.path))
}
