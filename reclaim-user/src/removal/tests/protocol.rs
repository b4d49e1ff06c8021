//! The course of a pass: leftovers, budget and cursor, what stays behind, and what never changes.

use super::support::{Evidence, Room, Sandbox, condemned, held, names, options, pattern, run, run_with};
use crate::config::{KindRule, RemoveRule, RootConfig};
use crate::model::report::{Reason, Verdict};
use crate::removal::{PassOptions, RootState};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Makes a batch as a crashed pass leaves it.
fn leftover(room: &Room, batch: &str, entries: &[&str]) {
    let store = room.entry(".reclaim");
    let mut private = fs::DirBuilder::new();
    private.mode(0o700).recursive(true);
    for entry in entries {
        private.create(store.join(batch).join(entry)).unwrap();
    }
}

pub(super) fn set_immutable(path: &Path, on: bool) {
    assert!(Command::new("chattr").arg(if on { "+i" } else { "-i" }).arg(path).status().unwrap().success());
}

#[test]
fn everything_stale_goes_and_nothing_is_left_behind() {
    // By two threads and by three.
    for processors in [2, 3] {
        let room = Room::new();
        for index in 0..10_000 {
            room.stale(format!("entry-{index}"));
        }
        fs::write(room.entry("file"), "").unwrap();
        fs::write(room.entry("full"), "x").unwrap();
        let asked = PassOptions { processors, ..options() };
        let told = run_with(&room.rules(), &mut Evidence::of(&room), &asked, &mut RootState::default()).unwrap();
        assert_eq!((told.summary.removed, told.summary.candidates, told.summary.listed), (10_001, 10_001, 10_002));
        assert_eq!(room.names(), ["full"]);
        assert!(told.notes.is_empty(), "{:?}", told.notes);
    }
}

#[test]
fn every_guard_holds_for_a_group_that_is_removed_beside_the_listing() {
    guards_hold_beside_the_listing(&PassOptions { processors: 3, ..held(0) });
}

#[test]
fn every_guard_holds_for_a_group_that_is_removed_by_the_thread_that_looks_ahead() {
    guards_hold_beside_the_listing(&PassOptions { processors: 2, ..held(0) });
}

fn guards_hold_beside_the_listing(asked: &PassOptions) {
    let room = Room::new();
    for index in 0..3_000 {
        room.stale(format!("entry-{index}"));
    }
    let (store, outside) = (room.entry(".reclaim"), room.path("outside"));
    let (keep, kept) = std::sync::mpsc::channel();
    let mut evidence = Evidence::of(&room);
    evidence.while_condemned = Some(Box::new(move || {
        // A slow machine may condemn them in several groups.
        let batch = store.join(&names(&store)[0]);
        let condemned = names(&batch);
        let [filled, leased, bound] = [0, condemned.len() / 2, condemned.len() - 1].map(|at| condemned[at].clone());
        fs::write(batch.join(&filled).join("work"), "work").unwrap();
        let opened = File::open(batch.join(&leased)).unwrap();
        let lease = nix::fcntl::Flock::lock(opened, nix::fcntl::FlockArg::LockExclusiveNonblock).unwrap();
        let sandbox = Sandbox::bind(&batch.join(&bound), &outside);
        keep.send(([filled, leased, bound], lease, sandbox)).unwrap();
    }));
    // A lock that is held on is tested elsewhere: nobody else gets it.
    let told = run_with(&room.rules(), &mut evidence, asked, &mut RootState::default()).unwrap();
    assert_eq!((told.summary.removed, told.summary.restored), (2_997, 3), "{:?}", told.summary);
    let (mut touched, lease, sandbox) = kept.recv().unwrap();
    for (name, reason) in touched.iter().zip([Reason::NotEmpty, Reason::Leased, Reason::Pinned]) {
        assert_eq!(told.of(name), (Verdict::Restored, Some(reason)));
    }
    assert!(room.entry(&touched[0]).join("work").exists());
    touched.sort();
    assert_eq!(room.names(), touched);
    drop((lease, sandbox));
}

#[test]
fn what_proves_to_be_live_has_its_name_back_before_anything_goes() {
    let room = Room::new();
    // Enough for another thread.
    (0..520).for_each(|index| drop(room.stale(format!("entry-{index}"))));
    let mut evidence = Evidence::of(&room);
    evidence.late_pins = [0, 260, 519].map(|index| evidence.pin(&format!("entry-{index}"))).into();
    let told = run(&room.rules(), &mut evidence);
    assert_eq!((told.summary.removed, told.summary.restored, evidence.confirmed), (517, 3, 1), "{:?}", told.summary);
    let first = told.entries[..3].iter().map(|entry| entry.verdict);
    assert_eq!(first.collect::<Vec<_>>(), [Verdict::Restored; 3]);
}

#[test]
fn a_group_grows_as_long_as_its_wait_lasts_anyway() {
    let room = Room::new();
    let confirmations = |settling| {
        (0..6_000).for_each(|index| drop(room.stale(format!("entry-{index}"))));
        let mut evidence = Evidence::of(&room);
        evidence.settling = settling;
        let told = run(&room.rules(), &mut evidence);
        assert_eq!(told.summary.removed, 6_000, "{:?}", told.summary);
        (evidence.confirmed, told.summary.elapsed_ms)
    };
    assert!(confirmations(false).0 > 1);
    // However long the wait, a group is filled for a second at most, which a slow machine comes to.
    let (confirmed, elapsed) = confirmations(true);
    assert!(confirmed == 1 || elapsed >= 1_000, "{confirmed} confirmations in {elapsed} ms");
}

#[test]
fn names_are_bytes() {
    let room = Room::new();
    let long = "n".repeat(255);
    let all: [&[u8]; 9] =
        [b" ", b"a\nb", b"\xff\xfe", b"-rf", b"//deleted".split_at(2).1, b"\\040", b"#", b"tab\t", long.as_bytes()];
    for name in all {
        room.stale(OsStr::from_bytes(name));
    }
    let held = room.stale("held\nname");
    let sandbox = Sandbox::bind(&held, &room.path("outside"));
    let told = run(&room.rules(), &mut Evidence::of(&room));
    assert_eq!((told.summary.removed, told.kept(Reason::Pinned)), (9, 1), "{told:#?}");
    assert!(all.iter().all(|name| told.entries.iter().any(|entry| entry.name == *name)));
    drop(sandbox);
}

#[test]
fn a_dry_run_changes_nothing_and_takes_no_lock() {
    let room = Room::new();
    room.stale("a");
    fs::write(room.entry("full"), "x").unwrap();
    leftover(&room, "01234567-1-2-3", &["old"]);
    leftover(&room, "notes", &["no entry"]);
    let lock = nix::fcntl::Flock::lock(
        File::open(room.entry(".reclaim")).unwrap(),
        nix::fcntl::FlockArg::LockExclusiveNonblock,
    )
    .unwrap();
    let dry = PassOptions { dry_run: true, ..options() };
    let told = run_with(&room.rules(), &mut Evidence::of(&room), &dry, &mut RootState::default()).unwrap();
    assert_eq!((told.summary.candidates, told.summary.removed, told.summary.condemned), (1, 0, 1));
    assert_eq!(told.of("a"), (Verdict::WouldRemove, None));
    assert_eq!(room.names(), [".reclaim", "a", "full"]);
    drop(lock);
}

#[test]
fn leftovers_are_restored_or_removed_first() {
    let room = Room::new();
    leftover(&room, "01234567-1-2-3", &["sb_free", "sb_live", "stranger"]);
    leftover(&room, "01234567-1-2-4", &["sb_free", "sb_full"]);
    fs::write(room.entry(".reclaim/01234567-1-2-4/sb_full/work"), "").unwrap();
    fs::create_dir(room.entry(".reclaim/notes")).unwrap();
    let sandbox = Sandbox::bind(&room.entry(".reclaim/01234567-1-2-3/sb_live"), &room.path("outside"));
    let rules = RootConfig { pattern: pattern("^sb_"), ..room.rules() };
    let told = run(&rules, &mut Evidence::of(&room));
    assert_eq!(told.of("sb_live"), (Verdict::Restored, Some(Reason::Pinned)), "{told:#?}");
    // What the configuration cannot prove ours is never removed, whoever condemned it.
    assert_eq!(told.of("stranger"), (Verdict::Restored, Some(Reason::Name)));
    assert_eq!(told.of("sb_full"), (Verdict::Restored, Some(Reason::NotEmpty)));
    assert_eq!((told.summary.removed, told.summary.restored, told.summary.listed), (2, 3, 5));
    assert!(told.notes.iter().any(|note| note.contains(".reclaim/notes")), "{:?}", told.notes);
    assert_eq!(room.names(), [".reclaim", "sb_full", "sb_live", "stranger"]);
    assert_eq!(names(&room.entry(".reclaim")), ["notes"]);
    assert!(sandbox.can_write(&room.path("outside")));
}

/// Only tables tell of the work directory of an overlay, which is never empty.
#[test]
fn what_may_hold_something_goes_only_when_the_tables_cover_it_too() {
    for (remove, expected) in [
        (RemoveRule::Empty, (Verdict::Removed, None)),
        (RemoveRule::Tree, (Verdict::Restored, Some(Reason::NoEvidence))),
    ] {
        let room = Room::new();
        // It comes to the confirmation without having been listed.
        leftover(&room, "01234567-1-2-3", &["a"]);
        let mut evidence = Evidence::of(&room);
        evidence.tables_gap = true;
        let told = run(&RootConfig { remove, ..room.rules() }, &mut evidence);
        assert_eq!(told.of("a"), expected, "{remove:?}: {told:#?}");
    }
}

#[test]
fn leftovers_come_back_when_evidence_is_too_weak() {
    let room = Room::new();
    leftover(&room, "01234567-1-2-3", &["a"]);
    let mut evidence = Evidence::of(&room);
    evidence.gap = Some((crate::model::coverage::Reach::Everybody, true));
    let told = run(&room.rules(), &mut evidence);
    assert_eq!(told.of("a"), (Verdict::Restored, Some(Reason::NoEvidence)));
    assert_eq!(room.names(), ["a"]);
}

#[test]
fn a_pass_without_time_goes_on_where_it_stopped() {
    let room = Room::new();
    for index in 0..20_000 {
        room.stale(format!("entry-{index}"));
    }
    let short = PassOptions { budget: Duration::from_millis(60), ..options() };
    let (mut state, mut evidence) = (RootState::default(), Evidence::of(&room));
    let rules = RootConfig { pattern: pattern("never"), ..room.rules() };
    let mut seen = std::collections::BTreeSet::new();
    let mut passes = 0;
    while seen.len() < 20_000 {
        let told = run_with(&rules, &mut evidence, &short, &mut state).unwrap();
        seen.extend(told.entries.into_iter().map(|entry| entry.name));
        passes += 1;
        assert!(passes < 200, "{} of 20000 after {passes} passes", seen.len());
    }
    let none = PassOptions { budget: Duration::ZERO, ..options() };
    let told = run_with(&room.rules(), &mut evidence, &none, &mut state).unwrap();
    assert!(told.summary.truncated && told.summary.listed > 0, "without any time it gets on all the same");
    let mut left = 20_000 - told.summary.removed;
    for pass in 0.. {
        let told = run_with(&room.rules(), &mut evidence, &short, &mut state).unwrap();
        left -= told.summary.removed;
        assert_eq!(told.summary.condemned, 0);
        if !told.summary.truncated && left == 0 {
            break;
        }
        assert!(pass < 500);
    }
    assert!(room.names().is_empty());
}

#[test]
fn a_cursor_wraps_around_and_sees_every_entry_once() {
    let room = Room::new();
    for index in 0..3000 {
        room.stale(format!("entry-{index}"));
    }
    let mut listing = crate::sys::directory::Names::default();
    let opened = File::open(room.root()).unwrap();
    while crate::sys::directory::Reader::default().read(&opened, &mut listing).unwrap() {}
    let mut state = RootState::default();
    state.cursor.place = listing.get(1234).unwrap().2;
    let rules = RootConfig { pattern: pattern("never"), ..room.rules() };
    let told = run_with(&rules, &mut Evidence::of(&room), &options(), &mut state).unwrap();
    assert_eq!((told.summary.listed, told.kept(Reason::Name)), (3000, 3000));
    assert_eq!(state.cursor, Default::default());
}

#[test]
fn a_cursor_at_the_end_begins_at_the_start() {
    let room = Room::new();
    for index in 0..100 {
        room.stale(format!("entry-{index}"));
    }
    let (mut listing, mut reader) = (crate::sys::directory::Names::default(), crate::sys::directory::Reader::default());
    let opened = File::open(room.root()).unwrap();
    while reader.read(&opened, &mut listing).unwrap() {}
    let place = |at: usize| listing.get(at).unwrap().2;
    let mut state = RootState::default();
    (state.cursor.place, state.cursor.descending) = (place(listing.len() - 1), place(1) < place(0));
    let rules = RootConfig { pattern: pattern("never"), ..room.rules() };
    let told = run_with(&rules, &mut Evidence::of(&room), &options(), &mut state).unwrap();
    assert_eq!(told.summary.listed, 100, "a pass that was cut short behind the last name leaves such a cursor");
}

#[test]
fn a_pass_that_is_cut_short_at_the_last_name_goes_on_from_the_first() {
    let room = Room::new();
    for index in 0..300 {
        room.stale(format!("entry-{index}"));
    }
    let mut listing = crate::sys::directory::Names::default();
    let opened = File::open(room.root()).unwrap();
    while crate::sys::directory::Reader::default().read(&opened, &mut listing).unwrap() {}
    let mut state = RootState::default();
    state.cursor.place = listing.get(289).unwrap().2;
    let rules = RootConfig { pattern: pattern("never"), ..room.rules() };
    let none = PassOptions { budget: Duration::ZERO, ..options() };
    let told = run_with(&rules, &mut Evidence::of(&room), &none, &mut state).unwrap();
    assert_eq!((told.summary.listed, told.summary.truncated, state.cursor.place), (10, true, 0));
    let told = run_with(&rules, &mut Evidence::of(&room), &none, &mut state).unwrap();
    assert!(told.summary.listed > 0, "{:?}", told.summary);
}

#[test]
fn a_stop_ends_the_pass_and_leaves_nothing_live_condemned() {
    let room = Room::new();
    for name in ["a", "b"] {
        room.stale(name);
    }
    let stop = Arc::new(AtomicBool::new(false));
    let asked = PassOptions { stop: Some(stop.clone()), ..options() };
    let mut evidence = Evidence::of(&room);
    evidence.late_pins = vec![evidence.pin("a")];
    evidence.while_condemned = Some(Box::new(move || stop.store(true, std::sync::atomic::Ordering::Relaxed)));
    run_with(&room.rules(), &mut evidence, &asked, &mut RootState::default()).unwrap();
    assert_eq!(room.names(), ["a"]);
    room.stale("c");
    let told = run_with(&room.rules(), &mut evidence, &asked, &mut RootState::default()).unwrap();
    assert!(told.summary.truncated);
    assert_eq!(room.names(), ["a", "c"]);
}

#[test]
fn evidence_that_ends_in_the_middle_ends_the_pass_and_condemns_nothing() {
    let room = Room::new();
    room.stale("a");
    let mut evidence = Evidence::of(&room);
    evidence.consults_left = Some(0);
    let error = run_with(&room.rules(), &mut evidence, &options(), &mut RootState::default()).unwrap_err();
    assert!(matches!(error, crate::removal::RemovalError::Evidence { .. }), "{error}");
    assert_eq!(room.names(), ["a"]);
}

#[test]
fn poison_stops_nothing_and_is_tried_again_rarely() {
    let room = Room::new();
    let rules = RootConfig { remove: RemoveRule::Tree, ..room.rules() };
    for index in 0..18 {
        fs::create_dir_all(room.entry(format!("good-{index}/x/y"))).unwrap();
    }
    fs::create_dir_all(room.entry("inside/deep")).unwrap();
    for name in ["inside/deep/stays", "inside/deep/goes", "inside/goes"] {
        fs::write(room.entry(name), "").unwrap();
    }
    room.stale("itself");
    set_immutable(&room.entry("inside/deep/stays"), true);
    set_immutable(&room.entry("itself"), true);
    let (mut state, mut evidence) = (RootState::default(), Evidence::of(&room));
    let told = run_with(&rules, &mut evidence, &options(), &mut state).unwrap();
    assert_eq!((told.summary.removed, told.summary.condemned, told.kept(Reason::Failed)), (18, 1, 1), "{told:#?}");
    assert!(told.detail("itself").contains("EPERM"), "{}", told.detail("itself"));
    assert!(told.detail("inside").contains("EPERM") && told.detail("inside").contains("stays"));
    let stuck = condemned(&room.root(), "inside");
    assert_eq!(names(&stuck), ["deep"]);
    assert_eq!(names(&stuck.join("deep")), ["stays"]);
    // Said once: the next pass counts it and leaves it alone, without a wait and a confirmation of its own.
    set_immutable(&stuck.join("deep/stays"), false);
    let quiet = PassOptions { per_entry: false, ..options() };
    let confirmed = evidence.confirmed;
    let told = run_with(&rules, &mut evidence, &quiet, &mut state).unwrap();
    assert_eq!((told.summary.condemned, evidence.confirmed), (1, confirmed), "{told:#?}");
    assert!(!told.entries.iter().any(|entry| entry.name == b"inside"), "{told:#?}");
    // What comes to be pinned has its name back, tried again or not.
    let sandbox = Sandbox::bind(&stuck, &room.path("outside"));
    let told = run_with(&rules, &mut evidence, &options(), &mut state).unwrap();
    assert_eq!(told.of("inside"), (Verdict::Restored, Some(Reason::Pinned)));
    drop(sandbox);
    set_immutable(&room.entry("itself"), false);
    let told = run_with(&rules, &mut evidence, &options(), &mut state).unwrap();
    assert_eq!(told.summary.removed, 2);
    assert!(room.names().is_empty());
}

#[test]
fn a_one_shot_run_tries_what_was_stuck() {
    let room = Room::new();
    let rules = RootConfig { remove: RemoveRule::Tree, ..room.rules() };
    fs::create_dir(room.entry("a")).unwrap();
    fs::write(room.entry("a/stays"), "").unwrap();
    set_immutable(&room.entry("a/stays"), true);
    assert_eq!(run(&rules, &mut Evidence::of(&room)).summary.condemned, 1);
    assert_eq!(run(&rules, &mut Evidence::of(&room)).summary.condemned, 1);
    set_immutable(&condemned(&room.root(), "a").join("stays"), false);
    assert_eq!(run(&rules, &mut Evidence::of(&room)).summary.removed, 1);
    assert!(room.names().is_empty());
}

#[test]
fn what_is_neither_directory_nor_file_is_never_empty_and_never_opened() {
    let room = Room::new();
    nix::unistd::mkfifo(&room.entry("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    std::os::unix::fs::symlink(room.path("outside"), room.entry("link")).unwrap();
    fs::write(room.path("outside/file"), "x").unwrap();
    assert_eq!(run(&room.rules(), &mut Evidence::of(&room)).kept(Reason::NotEmpty), 2);
    let directories = RootConfig { kind: KindRule::Directory, remove: RemoveRule::Tree, ..room.rules() };
    assert_eq!(run(&directories, &mut Evidence::of(&room)).kept(Reason::Kind), 2);
    let tree = RootConfig { remove: RemoveRule::Tree, ..room.rules() };
    assert_eq!(run(&tree, &mut Evidence::of(&room)).summary.removed, 2);
    assert_eq!(names(&room.path("outside")), ["file"]);
}

#[test]
fn a_name_made_again_is_condemned_beside_its_elder() {
    let room = Room::new();
    let again = room.stale("a");
    let mut evidence = Evidence::of(&room);
    let root = room.root();
    // The elder is condemned in a batch that stays; a younger one of the same name is an entry of its own.
    evidence.while_condemned = Some(Box::new(move || {
        fs::write(condemned(&root, "a").join("x"), "").unwrap();
        fs::create_dir(&again).unwrap();
    }));
    let told = run(&room.rules(), &mut evidence);
    assert_eq!(told.summary.condemned, 1, "{told:#?}");
    let told = run(&room.rules(), &mut evidence);
    // The elder is tried first and finds its name taken; then the younger one goes.
    assert_eq!((told.summary.removed, told.summary.condemned), (1, 1), "{told:#?}");
    let told = run(&room.rules(), &mut evidence);
    assert_eq!(told.of("a"), (Verdict::Restored, Some(Reason::NotEmpty)));
}
