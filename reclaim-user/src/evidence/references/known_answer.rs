//! Trying the iterators on references that are known, before anything is believed of them.

use super::iterators::{Iterators, Record, ReferenceError};
use crate::evidence::lacking::lacks;
use crate::model::pin::Place;
use crate::model::reference::ReferenceKind;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::{Mode, fstat};
use nix::unistd::{chroot, fchdir};
use std::io;
use std::os::fd::AsFd;
use std::sync::mpsc;
use std::thread;

/// The directory whose child is referred to, that child, and something below the child. They are there wherever the
/// kernel tells its types, without which nothing is loaded.
const BASE: &str = "/sys/kernel";
const ENTRY: &str = "/sys/kernel/btf";
const BELOW: &str = "/sys/kernel/btf/vmlinux";

/// Lets a thread with a working directory and a root of its own refer to a directory, opens that and a file in it, and
/// requires each to be found.
pub(super) fn check(iterators: &mut Iterators) -> Result<(), ReferenceError> {
    let open = |path: &str| open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty()).map_err(failed("open"));
    let (base, entry, below) = (open(BASE)?, open(ENTRY)?, open(BELOW)?);
    let number = fstat(&entry).map_err(failed("fstat"))?.st_ino;
    let (ready, wait) = mpsc::channel();
    let (end, ended) = mpsc::channel::<()>();
    let mut records = thread::scope(|scope| {
        let entry = entry.as_fd();
        scope.spawn(move || {
            // A send fails only when nobody waits any more.
            let _ = ready.send(settle_in(entry));
            let _ = ended.recv();
        });
        let settled = wait.recv().unwrap_or(Err(ReferenceError::Restless));
        let records = settled.and_then(|()| iterators.records(&[base.as_fd()], false));
        drop(end);
        records
    })?;
    drop(below);
    if lacks("references-answer") {
        records.retain(|record| record.entry != number);
    }
    let is_met = |kind, place| {
        let wanted = |record: &&Record| {
            (record.base, record.entry, &*record.name) == (0, number, b"btf")
                && (record.kind, record.place) == (kind, place)
        };
        records.iter().any(|record| wanted(&record))
    };
    for (kind, place, what) in [
        (ReferenceKind::Descriptor, Place::Exact, "a descriptor"),
        (ReferenceKind::Descriptor, Place::Below, "a descriptor below"),
        (ReferenceKind::WorkingDirectory, Place::Exact, "a working directory"),
        (ReferenceKind::Root, Place::Exact, "a root directory"),
    ] {
        if !is_met(kind, place) {
            return Err(ReferenceError::Unmet { what: format!("{what} that was made for them to meet") });
        }
    }
    Ok(())
}

fn settle_in(entry: impl AsFd) -> Result<(), ReferenceError> {
    unshare(CloneFlags::CLONE_FS).map_err(failed("unshare(CLONE_FS)"))?;
    fchdir(&entry).map_err(failed("fchdir"))?;
    chroot(".").map_err(failed("chroot"))
}

fn failed(call: &'static str) -> impl FnOnce(Errno) -> ReferenceError {
    move |errno| ReferenceError::Probe { call, source: io::Error::from(errno) }
}
