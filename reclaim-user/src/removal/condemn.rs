//! Condemning: moving an entry to where no path leads, under its own name.

use super::crash;
use super::error::failed;
use super::examine::{Examined, Settled};
use super::leases::{Held, Leases};
use super::lock::{STORE, Store};
use super::manifest::Witness;
use super::process::start_ticks;
use crate::evidence::source::{CondemnedIn, Own, Seal, View};
use crate::model::fence::{FileKind, Timestamp};
use crate::model::plan::{BATCH_ENTRIES, GROUP_BATCHES, UNDECIDED};
use crate::model::report::Reason;
use crate::model::verdict::Named;
use crate::sys::directory;
use crate::sys::file_status::{FileStatus, Identity, status_at};
use nix::errno::Errno;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::fmt::Write as _;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Entries of a makeshift batch. They only have to make room for a store and a batch in it.
const MAKESHIFT_ENTRIES: usize = 64;

/// Entries whose removal by a command shares one confirmation: what is known of the last one is as old as the others
/// took, and a pass goes on for as many after its budget is over.
const COMMAND_ENTRIES: usize = 8;

/// What a makeshift batch's entries are called in the root: this, the batch's name, a dot, and the entry's own name.
const MAKESHIFT: &[u8] = b".reclaim-";

/// Condemned entries that are together in one directory.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) name: CString,
    pub(super) directory: OwnedFd,
    pub(super) entries: usize,
    /// When the latest look at one of its entries was, by the clock that ages go by.
    pub(super) looked: Timestamp,
    /// The directory is the root itself, since its file system has no room for one more: its entries have long names.
    pub(super) makeshift: bool,
    /// Its entries were not moved at all: the command that removes them has to find them under their own names.
    pub(super) in_place: bool,
    /// An earlier pass made it, or somebody who gives such names: nothing more is put in.
    pub(super) is_leftover: bool,
}

impl Batch {
    /// One without entries, in a directory of its own.
    pub(super) fn new(name: CString, directory: OwnedFd) -> Self {
        let (looked, makeshift, in_place, is_leftover) = (Timestamp(0), false, false, false);
        Self { name, directory, entries: 0, looked, makeshift, in_place, is_leftover }
    }

    /// Where its entries are, for evidence, and which of them this process has a descriptor of.
    pub(super) fn place<'a>(&self, entries: impl Iterator<Item = &'a Condemned> + Clone) -> CondemnedIn<'_> {
        let mut counts = [(Own::Nothing, 0_usize), (Own::Directory, 0), (Own::File, 0)];
        let mut seal = Some(Seal::begin());
        for condemned in entries.clone() {
            let held = condemned.own();
            counts.iter_mut().filter(|(of, _)| *of == held).for_each(|(_, count)| *count += 1);
            let (name, Identity { inode, .. }) = (condemned.stored().to_bytes(), condemned.identity);
            seal = seal.and_then(|seal| seal.and(name, inode, condemned.mode?, condemned.owner));
        }
        let held = counts.into_iter().max_by_key(|(_, count)| *count).map_or(Own::Nothing, |(held, _)| held);
        let unlike = entries.filter(|condemned| condemned.own() != held);
        let unlike = unlike.map(|condemned| (condemned.stored().to_bytes().to_vec(), condemned.own())).collect();
        CondemnedIn { directory: self.directory.as_fd(), path: self.path(), held, unlike, seal }
    }

    /// What leads from the root to its entries: nothing where they are in the root itself.
    fn path(&self) -> Vec<u8> {
        match self.makeshift {
            true => Vec::new(),
            false => [STORE.to_bytes(), self.name.to_bytes()].join(&b'/'),
        }
    }

    /// Whether fresh evidence found each of its entries to be what it was when it was looked at.
    ///
    /// Evidence goes by the owners that the file system itself knows, and a mount may show others in their place
    /// (mount_setattr(2), `MOUNT_ATTR_IDMAP`). So one entry of each owner is looked at nevertheless.
    pub(super) fn is_unchanged<'a>(&self, view: &View<'_>, entries: impl Iterator<Item = &'a Condemned>) -> bool {
        if self.makeshift || !view.unchanged.contains(&self.path()) {
            return false;
        }
        let mut owners = BTreeSet::new();
        let mut first_of_each = entries.filter(|condemned| owners.insert(condemned.owner));
        first_of_each.all(|condemned| {
            let file = status_at(&self.directory, condemned.stored());
            file.is_ok_and(|file| file.status.owner == condemned.owner)
        })
    }

    /// What an entry is called in the directory of the batch. None when that would be too long.
    fn stored<'n>(&self, name: &'n CStr) -> Option<Cow<'n, CStr>> {
        if !self.makeshift || self.in_place {
            return Some(Cow::Borrowed(name));
        }
        let stored = [MAKESHIFT, self.name.to_bytes(), b".", name.to_bytes()].concat();
        CString::new(stored).ok().filter(|stored| stored.as_bytes().len() <= 255).map(Cow::Owned)
    }
}

/// Takes the name of an entry of a makeshift batch apart: the batch, and the name that the entry had.
pub(super) fn makeshift(stored: &CStr) -> Option<(CString, CString)> {
    let rest = stored.to_bytes().strip_prefix(MAKESHIFT)?;
    let dot = rest.iter().position(|byte| *byte == b'.')?;
    let (batch, name) = (&rest[..dot], &rest[dot + 1..]);
    (is_batch_name(batch) && !name.is_empty()).then(|| Some((CString::new(batch).ok()?, CString::new(name).ok()?)))?
}

/// A condemned entry. Nothing is known of its pins yet.
#[derive(Debug)]
pub(super) struct Condemned {
    /// The name that it had in the root.
    pub(super) name: CString,
    /// What it is called in its batch; none when that is its name.
    pub(super) stored: Option<CString>,
    /// Index of its batch in its group.
    pub(super) batch: usize,
    pub(super) identity: Identity,
    pub(super) kind: FileKind,
    pub(super) owner: u32,
    /// Its mode with the bits of its kind, where evidence may compare it instead of another look at it.
    pub(super) mode: Option<u32>,
    /// It was known to hold nothing when it was condemned.
    pub(super) empty: bool,
    /// What its name told; none when it was not asked in this pass.
    pub(super) named: Option<Named>,
    /// The process of its name was asked about in this pass, and is gone.
    pub(super) process_gone: bool,
    /// The manifest that it was judged by; none where there is none to judge by, or it was not judged in this pass.
    pub(super) witness: Option<Witness>,
    /// The lock on it, held until it is removed or has its name back.
    pub(super) lease: Option<Held>,
}

impl Condemned {
    /// What it is called in its batch.
    pub(super) fn stored(&self) -> &CStr {
        self.stored.as_deref().unwrap_or(&self.name)
    }

    /// What this process has of it.
    fn own(&self) -> Own {
        match (&self.lease, self.kind) {
            (None, _) => Own::Nothing,
            (Some(_), FileKind::Directory) => Own::Directory,
            (Some(_), _) => Own::File,
        }
    }

    /// Whether it is left to evidence to tell that it is what was looked at: a directory, of which `rmdir` is the judge.
    pub(super) fn is_compared(&self) -> bool {
        is_compared(self.mode, self.kind)
    }

    /// What need not be asked again.
    pub(super) fn settled(&self) -> Settled<'_> {
        let (own_name, witness) = (self.stored.as_ref().map(|_| self.name.as_c_str()), self.witness);
        Settled { own_name, witness, process_gone: self.process_gone, leased: self.lease.is_some() }
    }

    /// One that an earlier pass condemned. Nothing about it is settled.
    pub(super) fn leftover(name: CString, stored: Option<CString>, batch: usize, file: &FileStatus) -> Self {
        let FileStatus { identity, status, .. } = *file;
        let (kind, owner) = (status.kind, status.owner);
        let (mode, empty, named, process_gone, witness, lease) = (None, false, None, false, None, None);
        Self { name, stored, batch, identity, kind, owner, mode, empty, named, process_gone, witness, lease }
    }
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

    /// The batch that takes entries, if it has room.
    fn taking(&self) -> Option<usize> {
        self.batches.iter().rposition(|batch| !batch.is_leftover)
    }

    /// It takes entries that stay in the root.
    pub(super) fn is_makeshift(&self) -> bool {
        self.taking().is_some_and(|at| self.batches[at].makeshift)
    }

    /// It is as large as a group gets, or makes room: it has a makeshift batch with as many entries as are needed for that,
    /// or as many as wait for a command.
    pub(super) fn is_full(&self, most: usize) -> bool {
        let enough = |batch: &Batch| if batch.in_place { COMMAND_ENTRIES } else { MAKESHIFT_ENTRIES };
        let makes_room = |batch: &Batch| batch.makeshift && batch.entries >= enough(batch);
        let makes_room = self.taking().is_some_and(|at| makes_room(&self.batches[at]));
        makes_room || self.entries.len() >= most || self.batches.len() >= GROUP_BATCHES
    }

    /// Index of the makeshift batch of an earlier pass that has this name.
    pub(super) fn leftover_batch(&mut self, root: impl AsFd, name: CString) -> Result<usize, Errno> {
        if let Some(known) = self.batches.iter().position(|batch| batch.is_leftover && batch.name == name) {
            return Ok(known);
        }
        let batch = makeshift_batch(root, name)?;
        self.batches.push(Batch { is_leftover: true, ..batch });
        Ok(self.batches.len() - 1)
    }
}

/// Puts the key of a condemned entry in the pin set into `key`.
pub(super) fn key_into(key: &mut Vec<u8>, batch: &Batch, condemned: &Condemned) {
    key.clear();
    if !batch.makeshift {
        for part in [STORE, &batch.name] {
            key.extend_from_slice(part.to_bytes());
            key.push(b'/');
        }
    }
    key.extend_from_slice(condemned.stored().to_bytes());
}

/// The key of a condemned entry in the pin set.
pub(super) fn key(batch: &Batch, condemned: &Condemned) -> Vec<u8> {
    let mut key = Vec::new();
    key_into(&mut key, batch, condemned);
    key
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

/// Moves `name` out of the root into a batch of the group. The entry's lock is held until that is done, and from there
/// until the entry has come to its end as long as `leases` says that there is room for that.
///
/// Without a store, or without room for a batch in it, the batch is a makeshift one.
pub(super) fn condemn(
    store: Option<&Store>,
    root: impl AsFd,
    group: &mut Group,
    name: CString,
    examined: Examined,
    leases: Leases,
) -> Result<(), (CString, NotCondemned)> {
    match moved(store, root, group, &name, &examined) {
        Ok((batch, stored)) => {
            group.entries.push(condemned(name, stored, batch, examined, leases));
            crash::step("after-condemn-first");
            Ok(())
        }
        Err(failed) => Err((name, failed)),
    }
}

fn condemned(name: CString, stored: Option<CString>, batch: usize, examined: Examined, leases: Leases) -> Condemned {
    let Examined { identity, kind, owner, mode, empty, named, process_gone, witness, at: _, lease } = examined;
    let (named, lease) = (Some(named), lease.and_then(|lease| leases.hold(lease)));
    Condemned { name, stored, batch, identity, kind, owner, mode, empty, named, process_gone, witness, lease }
}

/// Takes an entry into the group that stays where it is, for a command to remove it. The proof that follows is weaker
/// than that of a condemned one: a path leads to the entry until the command is through.
pub(super) fn mark(
    root: impl AsFd,
    group: &mut Group,
    name: CString,
    examined: Examined,
    leases: Leases,
) -> Result<(), (CString, NotCondemned)> {
    if !group.batches.last().is_some_and(|batch| batch.in_place) {
        match makeshift_batch(root, c"".into()) {
            Ok(batch) => group.batches.push(Batch { in_place: true, ..batch }),
            Err(error) => return Err((name, NotCondemned::Root(error))),
        }
    }
    let batch = group.batches.len() - 1;
    group.batches[batch].entries += 1;
    group.entries.push(condemned(name, None, batch, examined, leases));
    Ok(())
}

/// Begins a batch that is not decided on: until [`decide`] every entry in it will be given back.
pub(super) fn begin_undecided(store: &Store) -> Result<Batch, Errno> {
    let name = [batch_name().to_bytes(), UNDECIDED].concat();
    let name = CString::new(name).map_err(|_| Errno::EINVAL)?;
    directory::make(store.directory(), &name)?;
    let directory = directory::open_child(store.directory(), &name)?;
    Ok(Batch::new(name, directory))
}

/// From here on a crash leaves entries of the batch to be removed.
pub(super) fn decide(store: &Store, batch: &mut Batch) -> Result<(), Errno> {
    let Some(name) = batch.name.to_bytes().strip_suffix(UNDECIDED) else { return Ok(()) };
    let name = CString::new(name).map_err(|_| Errno::EINVAL)?;
    directory::move_entry(store.directory(), &batch.name, store.directory(), &name)?;
    batch.name = name;
    Ok(())
}

/// Whether a name is that of a batch that was not decided on.
pub(super) fn is_undecided(name: &[u8]) -> bool {
    name.strip_suffix(UNDECIDED).is_some_and(is_batch_name)
}

/// Moves it, and returns the index of its batch and what it is called there where that is another name.
fn moved(
    store: Option<&Store>,
    root: impl AsFd,
    group: &mut Group,
    name: &CStr,
    examined: &Examined,
) -> Result<(usize, Option<CString>), NotCondemned> {
    let (identity, kind) = (examined.identity, examined.kind);
    let mut index = match group.taking() {
        Some(at) if group.batches[at].entries < BATCH_ENTRIES => at,
        _ => begin_batch(store, &root, group)?,
    };
    let mut tries = 0;
    let stored = loop {
        let batch = &group.batches[index];
        let Some(stored) = batch.stored(name) else {
            return Err(NotCondemned::Entry(
                "its name is too long to be condemned without a directory for that".into(),
            ));
        };
        match directory::move_entry(&root, name, &batch.directory, &stored) {
            Ok(()) => break stored,
            // Made again under the same name since that was condemned.
            Err(Errno::EEXIST) if tries == 0 => {
                tries += 1;
                index = begin_batch(store, &root, group)?;
            }
            Err(Errno::ENOENT) => return Err(NotCondemned::Vanished),
            Err(Errno::EROFS) => return Err(NotCondemned::Root(Errno::EROFS)),
            Err(error) => return Err(NotCondemned::Entry(failed("renameat2", error))),
        }
    };
    let batch = &mut group.batches[index];
    let is_same =
        || status_at(&batch.directory, &stored).is_ok_and(|file| file.identity == identity && file.status.kind == kind);
    // Else what took its place is told from it by the confirmation, and has its name back then.
    let at_once = batch.makeshift || !is_compared(examined.mode, kind);
    if at_once && !is_same() {
        let restored = directory::move_entry(&batch.directory, &stored, &root, name).is_ok();
        return Err(NotCondemned::Swapped { restored });
    }
    batch.entries += 1;
    batch.looked = batch.looked.max(examined.at);
    Ok((index, batch.makeshift.then(|| stored.into_owned())))
}

fn is_compared(mode: Option<u32>, kind: FileKind) -> bool {
    mode.is_some() && kind == FileKind::Directory
}

fn begin_batch(store: Option<&Store>, root: impl AsFd, group: &mut Group) -> Result<usize, NotCondemned> {
    let mut batch = None;
    while let (None, Some(store)) = (&batch, store) {
        let name = batch_name();
        match directory::make(store.directory(), &name) {
            Ok(()) => {
                let directory = directory::open_child(store.directory(), &name).map_err(NotCondemned::Root)?;
                batch = Some(Batch::new(name, directory));
            }
            Err(Errno::EEXIST) => {}
            Err(Errno::ENOSPC | Errno::EDQUOT) => break,
            Err(error) => return Err(NotCondemned::Root(error)),
        }
    }
    let batch = match batch {
        Some(batch) => batch,
        None => makeshift_batch(root, batch_name()).map_err(NotCondemned::Root)?,
    };
    group.batches.push(batch);
    crash::step("after-batch");
    Ok(group.batches.len() - 1)
}

/// A batch whose entries stay in the root, under names that say so.
pub(super) fn makeshift_batch(root: impl AsFd, name: CString) -> Result<Batch, Errno> {
    let directory = directory::open_child(root, c".")?;
    Ok(Batch { makeshift: true, ..Batch::new(name, directory) })
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
    use std::fs::File;

    #[test]
    fn a_batch_is_known_by_its_name() {
        assert!(is_batch_name(batch_name().to_bytes()));
        assert_ne!(batch_name(), batch_name());
        let undecided = [batch_name().to_bytes(), UNDECIDED].concat();
        assert!(is_undecided(&undecided) && !is_batch_name(&undecided) && !is_undecided(batch_name().to_bytes()));
        let directory = File::open("/").unwrap().into();
        let batch = Batch { makeshift: true, ..Batch::new(batch_name(), directory) };
        let stored = batch.stored(c"a.b\xff").unwrap();
        assert_eq!(makeshift(&stored), Some((batch.name.clone(), c"a.b\xff".into())));
        assert_eq!(batch.stored(&CString::new("n".repeat(230)).unwrap()), None);
        for name in [c".reclaim-x.a", c".reclaim", c"a", c".reclaim-01234567-1-2-3", c".reclaim-01234567-1-2-3."] {
            assert_eq!(makeshift(name), None, "{name:?}");
        }
        for name in
            ["", "holder", "0123456-1-2-3", "01234567-1-2", "01234567-1-2-x", "01234567-1--3", "01234567-1-2-3-4"]
        {
            assert!(!is_batch_name(name.as_bytes()), "{name}");
        }
    }
}
