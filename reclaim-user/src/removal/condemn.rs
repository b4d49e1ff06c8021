//! Condemning: moving an entry to where no path leads, under its own name.

use super::crash;
use super::error::failed;
use super::examine::Examined;
use super::lock::{STORE, Store};
use super::process::start_ticks;
use crate::model::fence::FileKind;
use crate::model::plan::BATCH_ENTRIES;
use crate::model::report::Reason;
use crate::sys::directory;
use crate::sys::file_status::{Identity, status_at};
use nix::errno::Errno;
use std::ffi::{CStr, CString};
use std::fmt::Write as _;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// A directory of condemned entries.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) name: CString,
    pub(super) directory: OwnedFd,
    pub(super) entries: usize,
}

/// A condemned entry. Nothing is known of its pins yet.
#[derive(Debug)]
pub(super) struct Condemned {
    pub(super) name: CString,
    /// Index of its batch in its group.
    pub(super) batch: usize,
    pub(super) identity: Identity,
    pub(super) kind: FileKind,
    pub(super) owner: u32,
    /// It was known to hold nothing when it was condemned.
    pub(super) empty: bool,
}

/// Batches that share one wait and one confirmation.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) batches: Vec<Batch>,
    pub(super) entries: Vec<Condemned>,
    pub(super) begun: Instant,
}

impl Group {
    /// An empty group.
    pub(super) fn new() -> Self {
        Self { batches: Vec::new(), entries: Vec::new(), begun: Instant::now() }
    }
}

/// The key of a condemned entry in the pin set.
pub(super) fn key(batch: &CStr, name: &CStr) -> Vec<u8> {
    [STORE.to_bytes(), batch.to_bytes(), name.to_bytes()].join(&b'/')
}

/// Why an entry was not condemned.
#[derive(Debug)]
pub(super) enum NotCondemned {
    /// It is not there any more.
    Vanished,
    /// This entry cannot be moved.
    Entry(String),
    /// Nothing in this root can be condemned.
    Root(Errno),
    /// Nothing more is condemned in this pass.
    Blocked(Reason),
    /// Something else took its place in between. It has its name back, or else could not get it back.
    Swapped {
        /// It has its name back.
        restored: bool,
    },
}

/// Moves `name` out of the root into a batch of the group. The entry's lock is held until that is done.
pub(super) fn condemn(
    store: &Store,
    root: impl AsFd,
    group: &mut Group,
    name: &CStr,
    examined: Examined,
) -> Result<(), NotCondemned> {
    let Examined { identity, kind, owner, empty, lock } = examined;
    let mut batch = match group.batches.last() {
        Some(batch) if batch.entries < BATCH_ENTRIES => group.batches.len() - 1,
        _ => begin_batch(store, group)?,
    };
    let mut moved = directory::move_entry(&root, name, &group.batches[batch].directory);
    if moved == Err(Errno::EEXIST) {
        // Made again under the same name since that was condemned.
        batch = begin_batch(store, group)?;
        moved = directory::move_entry(&root, name, &group.batches[batch].directory);
    }
    match moved {
        Ok(()) => {}
        Err(Errno::ENOENT) => return Err(NotCondemned::Vanished),
        Err(Errno::EROFS) => return Err(NotCondemned::Root(Errno::EROFS)),
        Err(error) => return Err(NotCondemned::Entry(failed("renameat2", error))),
    }
    drop(lock);
    let directory = &group.batches[batch].directory;
    let same = status_at(directory, name).is_ok_and(|file| file.identity == identity && file.status.kind == kind);
    if !same {
        return Err(NotCondemned::Swapped { restored: directory::move_entry(directory, name, &root).is_ok() });
    }
    group.batches[batch].entries += 1;
    group.entries.push(Condemned { name: name.into(), batch, identity, kind, owner, empty });
    crash::step("after-condemn-first");
    Ok(())
}

fn begin_batch(store: &Store, group: &mut Group) -> Result<usize, NotCondemned> {
    loop {
        let name = batch_name();
        match directory::make(store.directory(), &name) {
            Ok(()) => {}
            Err(Errno::EEXIST) => continue,
            Err(error) => return Err(NotCondemned::Root(error)),
        }
        let directory = directory::open_child(store.directory(), &name).map_err(NotCondemned::Root)?;
        group.batches.push(Batch { name, directory, entries: 0 });
        return Ok(group.batches.len() - 1);
    }
}

/// `BOOT-PID-START-COUNTER`: who made a batch, for people that find one.
fn batch_name() -> CString {
    static PREFIX: OnceLock<String> = OnceLock::new();
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let prefix = PREFIX.get_or_init(|| {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let boot: String = boot.chars().filter(char::is_ascii_hexdigit).take(8).collect();
        let started = std::fs::read("/proc/self/stat").ok().and_then(|stat| start_ticks(&stat));
        format!("{boot:0>8}-{}-{}", std::process::id(), started.unwrap_or_default())
    });
    let mut name = prefix.clone();
    write!(name, "-{}", COUNTER.fetch_add(1, Ordering::Relaxed)).expect("writing to a string cannot fail");
    CString::new(name).expect("digits and dashes hold no zero byte")
}

/// Whether a name could be that of a batch.
pub(super) fn is_batch_name(name: &[u8]) -> bool {
    let parts: Vec<&[u8]> = name.split(|byte| *byte == b'-').collect();
    let [boot, numbers @ ..] = parts.as_slice() else { return false };
    boot.len() == 8
        && boot.iter().all(u8::is_ascii_hexdigit)
        && numbers.len() == 3
        && numbers.iter().all(|number| !number.is_empty() && number.iter().all(u8::is_ascii_digit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_known_by_its_name() {
        assert!(is_batch_name(batch_name().to_bytes()));
        assert_ne!(batch_name(), batch_name());
        for name in
            ["", "holder", "0123456-1-2-3", "01234567-1-2", "01234567-1-2-x", "01234567-1--3", "01234567-1-2-3-4"]
        {
            assert!(!is_batch_name(name.as_bytes()), "{name}");
        }
    }
}
