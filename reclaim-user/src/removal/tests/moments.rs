//! What others do between two steps of a pass.

use super::support::{Evidence, Room, condemned, names, options, run, run_with};
use crate::config::{RemoveRule, RootConfig};
use crate::evidence::source::EvidenceSource;
use crate::model::plan::BATCH_ENTRIES;
use crate::model::report::{Reason, Verdict};
use crate::model::verdict;
use crate::removal::condemn::{Batch, Condemned, Group, condemn, key};
use crate::removal::confirm::{Confirmed, confirm, prove};
use crate::removal::examine::{Examiner, Look};
use crate::removal::leases::Leases;
use crate::removal::place::Root;
use crate::removal::remove::{Removal, remove};
use crate::removal::{RemovalError, RootState};
use nix::fcntl::{Flock, FlockArg};
use nix::mount::{MsFlags, mount, umount};
use std::ffi::CString;
use std::fs::{self, File};
use std::path::PathBuf;

/// A pass that is made one step at a time.
struct Steps {
    room: Room,
    rules: RootConfig,
    root: Root,
    examiner: Examiner,
    group: Group,
}

impl Steps {
    fn begin() -> Self {
        let room = Room::new();
        let rules = room.rules();
        let root = Root::open(&room.root()).unwrap().unwrap();
        let examiner = Examiner::new(&root, std::sync::Arc::new(crate::removal::words::Words::silence()));
        Self { room, rules, root, examiner, group: Group::new() }
    }

    fn condemn(&mut self, name: &str) {
        let name = CString::new(name).unwrap();
        self.examiner.refresh();
        let named = verdict::by_name(&self.rules, name.to_bytes(), false).unwrap();
        let examined = self.examiner.examine(&self.rules, named, &self.root.directory, &name, Look::First).unwrap();
        condemn(None, &self.root.directory, &mut self.group, name, examined, Leases::up_to(0)).unwrap();
    }

    /// Which batch each entry is in.
    fn batches(&self) -> Vec<usize> {
        self.group.entries.iter().map(|condemned| condemned.batch).collect()
    }

    /// Confirms the only entry; returns where it is, too.
    fn confirm(&mut self) -> (Confirmed, PathBuf) {
        let condemned: Condemned = self.group.entries.pop().unwrap();
        let path = self.room.entry(condemned.stored().to_str().unwrap());
        let mut evidence = Evidence::of(&self.room);
        let view = evidence.confirm(0, &[]).unwrap();
        let batch: &Batch = &self.group.batches[condemned.batch];
        let proof = prove(&self.rules, 0, &view, &key(batch, &condemned), &condemned, false, false);
        (confirm(&self.rules, &mut self.examiner, batch, condemned, proof).unwrap(), path)
    }

    fn remove(&self, confirmed: Confirmed) -> Removal {
        remove(confirmed, &self.group.batches[0], &self.rules, &mut || true)
    }
}

#[test]
fn what_happens_to_an_entry_after_it_was_confirmed() {
    let confirmed = || {
        let mut steps = Steps::begin();
        steps.room.stale("a");
        steps.condemn("a");
        let (confirmed, path) = steps.confirm();
        assert!(path.is_dir());
        (steps, confirmed, path)
    };
    let (steps, leave, path) = confirmed();
    assert!(matches!(steps.remove(leave), Removal::Gone(_)));
    assert!(!path.exists());

    let (steps, leave, path) = confirmed();
    fs::remove_dir(&path).unwrap();
    assert!(matches!(steps.remove(leave), Removal::Gone(_)), "somebody else removed it");

    let (steps, leave, path) = confirmed();
    fs::write(path.join("work"), "work").unwrap();
    assert!(matches!(steps.remove(leave), Removal::Filled(_)));
    assert_eq!(fs::read(path.join("work")).unwrap(), b"work");

    let (steps, leave, path) = confirmed();
    mount(Some("tmpfs"), &path, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
    assert!(matches!(steps.remove(leave), Removal::Mounted(_)));
    umount(&path).unwrap();
}

#[test]
fn a_batch_that_is_full_takes_no_more() {
    let mut steps = Steps::begin();
    for (name, before) in [("a", 0), ("b", BATCH_ENTRIES - 1), ("c", BATCH_ENTRIES)] {
        if let Some(batch) = steps.group.batches.last_mut() {
            batch.entries = before;
        }
        steps.room.stale(name);
        steps.condemn(name);
    }
    assert_eq!(steps.batches(), [0, 0, 1]);
}

/// Who waits for the lock of an entry and then sees its path lead to it has a lease: it is never renamed from there on.
#[test]
fn the_lock_on_an_entry_is_held_until_its_name_is_gone() {
    let mut steps = Steps::begin();
    for _ in 0..1_000 {
        let path = steps.room.stale("a");
        let name = c"a";
        steps.examiner.refresh();
        let named = verdict::by_name(&steps.rules, name.to_bytes(), false).unwrap();
        let examined = steps.examiner.examine(&steps.rules, named, &steps.root.directory, name, Look::First).unwrap();
        let (ready, begun) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let mut file = File::open(&path).unwrap();
                ready.send(()).unwrap();
                let _lease = loop {
                    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                        Ok(lease) => break lease,
                        Err((again, _)) => file = again,
                    }
                };
                path.exists()
            });
            begun.recv().unwrap();
            condemn(None, &steps.root.directory, &mut steps.group, name.into(), examined, Leases::up_to(0)).unwrap();
            assert!(!waiter.join().unwrap(), "a leased entry was renamed");
        });
    }
}

#[test]
fn a_name_that_is_made_again_while_its_group_is_filled_is_condemned_in_another_batch() {
    let mut steps = Steps::begin();
    for _ in 0..2 {
        steps.room.stale("a");
        steps.condemn("a");
    }
    assert_eq!(steps.batches(), [0, 1]);
}

#[test]
fn what_somebody_else_removed_while_it_was_condemned_is_gone() {
    let room = Room::new();
    for name in ["a", "b"] {
        room.stale(name);
    }
    let (mut evidence, root) = (Evidence::of(&room), room.root());
    evidence.while_condemned = Some(Box::new(move || fs::remove_dir(condemned(&root, "a")).unwrap()));
    let told = run(&room.rules(), &mut evidence);
    assert_eq!((told.of("a"), told.summary.removed), ((Verdict::Removed, None), 2), "{told:#?}");
    assert!(told.notes.is_empty() && room.names().is_empty(), "{told:#?}");
}

#[test]
fn evidence_that_ends_after_something_was_condemned_leaves_nothing_condemned() {
    let room = Room::new();
    for index in 0..8_000 {
        room.stale(format!("entry-{index}"));
    }
    let mut evidence = Evidence::of(&room);
    // One piece of work is done, which is not enough of a group to be brought to its end by itself.
    evidence.consults_left = Some(1);
    let error = run_with(&room.rules(), &mut evidence, &options(), &mut RootState::default()).unwrap_err();
    assert!(matches!(error, RemovalError::Evidence { .. }), "{error}");
    let left = room.names();
    assert!(left.len() < 8_000, "nothing was condemned, so nothing was tried");
    assert!(left.iter().all(|name| name.starts_with("entry-")), "{left:?}");
}

#[test]
fn what_is_stuck_and_pinned_under_its_old_name_is_restored() {
    let room = Room::new();
    let rules = RootConfig { remove: RemoveRule::Tree, ..room.rules() };
    fs::create_dir_all(room.entry("a/inside")).unwrap();
    let (from, to) = (room.path("outside"), room.entry("a/inside"));
    mount(Some(&from), &to, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    let (mut state, mut evidence) = (RootState::default(), Evidence::of(&room));
    // Evidence that sees nothing leads to a removal that stops at the mount.
    evidence.blind = true;
    let told = run_with(&rules, &mut evidence, &options(), &mut state).unwrap();
    assert_eq!(told.of("a"), (Verdict::Condemned, Some(Reason::Failed)), "{told:#?}");
    let told = run_with(&rules, &mut evidence, &options(), &mut state).unwrap();
    assert_eq!(told.of("a"), (Verdict::Condemned, Some(Reason::Failed)), "it is left alone for a while: {told:#?}");
    umount(&condemned(&room.root(), "a").join("inside")).unwrap();
    evidence.early_pins = vec![evidence.pin("a/work")];
    let told = run_with(&rules, &mut evidence, &options(), &mut state).unwrap();
    assert_eq!(told.of("a"), (Verdict::Restored, Some(Reason::Pinned)), "{told:#?}");
    assert_eq!(names(&room.entry("a")), ["inside"]);
}
