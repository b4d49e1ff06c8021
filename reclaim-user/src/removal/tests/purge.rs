//! What happens to the targets of a purge between their first proof and their end.

use super::support::{Evidence, Room, Sandbox, condemned, names};
use crate::config::{KindRule, RemoveRule, RootConfig};
use crate::evidence::source::Settled;
use crate::model::coverage::Reach;
use crate::model::hold::Print;
use crate::model::plan::BATCH_ENTRIES;
use crate::model::purge::TargetVerdict;
use crate::model::report::Reason;
use crate::removal::leases::Leases;
use crate::removal::{EntryTarget, Managed, PurgeOptions, Purged, RemovalError, Site, Target, purge};
use crate::sys::file_status::status_at;
use std::ffi::CString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

fn options() -> PurgeOptions {
    PurgeOptions { dry_run: false, state_dir: None, settle_limit: Duration::from_secs(5), stop: None }
}

/// Two trees, `a` and `b`.
fn room() -> Room {
    let room = Room::new();
    for name in ["a", "b"] {
        room.stale(name);
        fs::write(room.entry(name).join("file"), name).unwrap();
    }
    room
}

fn target(site: usize, name: &str, rules: &RootConfig) -> Target {
    EntryTarget { site, name: CString::new(name).unwrap(), rules: rules.clone(), only: None }.into()
}

/// What a manager knows by a file.
fn managed(file: &Path) -> Target {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let path = file.display().to_string();
    let present = Some(words(&["test", "-e", &path]));
    Target::Managed(Managed { command: words(&["rm", &path]), present, limit: Duration::from_secs(60) })
}

fn run_with(
    room: &Room,
    rules: &RootConfig,
    evidence: &mut Evidence,
    options: &PurgeOptions,
) -> Result<Vec<Purged>, RemovalError> {
    run_between(room, rules, evidence, options, &mut |_| {})
}

fn run_between(
    room: &Room,
    rules: &RootConfig,
    evidence: &mut Evidence,
    options: &PurgeOptions,
    between: &mut dyn FnMut(&mut Evidence),
) -> Result<Vec<Purged>, RemovalError> {
    let location = evidence.location.clone();
    let path = room.root();
    let site = Site { path: &path, index: 0, location: Some(&location) };
    purge(&[site], &["a", "b"].map(|name| target(0, name, rules)), evidence, options, between)
}

fn run(room: &Room, evidence: &mut Evidence) -> [(TargetVerdict, Option<Reason>); 2] {
    let rules = RootConfig { remove: RemoveRule::Tree, ..room.rules() };
    let purged = run_with(room, &rules, evidence, &options()).unwrap();
    [0, 1].map(|at| (purged[at].verdict, purged[at].reason))
}

fn expect_both_back(room: &Room) {
    assert_eq!(room.names(), ["a", "b"]);
    for name in ["a", "b"] {
        assert_eq!(fs::read_to_string(room.entry(name).join("file")).unwrap(), name);
    }
}

const KEPT: (TargetVerdict, Option<Reason>) = (TargetVerdict::Kept, None);

fn refused(reason: Reason) -> (TargetVerdict, Option<Reason>) {
    (TargetVerdict::Refused, Some(reason))
}

#[test]
fn both_go_together() {
    let room = room();
    let both = run(&room, &mut Evidence::of(&room));
    assert_eq!(both, [(TargetVerdict::Removed, None); 2]);
    assert_eq!(room.names(), [""; 0]);
}

#[test]
fn a_mount_that_came_while_they_were_condemned_gives_both_back() {
    let room = room();
    let (root, outside) = (room.root(), room.path("outside"));
    let (keep, kept) = channel();
    let mut evidence = Evidence::of(&room);
    evidence.while_condemned = Some(Box::new(move || {
        keep.send(Sandbox::bind(&condemned(&root, "b"), &outside)).unwrap();
    }));
    assert_eq!(run(&room, &mut evidence), [KEPT, refused(Reason::Pinned)]);
    expect_both_back(&room);
    assert!(kept.recv().unwrap().can_write(&room.path("outside")));
}

#[test]
fn a_change_of_the_target_itself_gives_both_back() {
    let room = room();
    let root = room.root();
    let mut evidence = Evidence::of(&room);
    evidence.while_condemned = Some(Box::new(move || {
        nix::unistd::chown(&condemned(&root, "a"), Some(nix::unistd::Uid::from_raw(1000)), None).unwrap();
    }));
    let rules = RootConfig { remove: RemoveRule::Tree, owner: Some(0), ..room.rules() };
    let purged = run_with(&room, &rules, &mut evidence, &options()).unwrap();
    assert_eq!((purged[0].reason, purged[1].verdict), (Some(Reason::Owner), TargetVerdict::Kept), "{purged:?}");
    expect_both_back(&room);
}

#[test]
fn what_was_empty_and_came_to_hold_something_gives_both_back() {
    let room = Room::new();
    let _both = ["a", "b"].map(|name| room.stale(name));
    let root = room.root();
    let mut evidence = Evidence::of(&room);
    evidence.while_condemned = Some(Box::new(move || fs::write(condemned(&root, "b").join("work"), "work").unwrap()));
    let purged = run_with(&room, &room.rules(), &mut evidence, &options()).unwrap();
    assert_eq!((purged[0].verdict, purged[1].reason), (TargetVerdict::Kept, Some(Reason::NotEmpty)), "{purged:?}");
    assert_eq!(room.names(), ["a", "b"]);
    assert_eq!(fs::read_to_string(room.entry("b/work")).unwrap(), "work");
}

#[test]
fn a_call_that_does_not_come_back_gives_both_back() {
    let room = room();
    let mut evidence = Evidence::of(&room);
    evidence.settled = vec![Settled::Overdue { calls: vec!["mount of process 7".into()] }];
    let rules = RootConfig { remove: RemoveRule::Tree, ..room.rules() };
    let purged = run_with(&room, &rules, &mut evidence, &options()).unwrap();
    assert_eq!((purged[0].reason, purged[1].verdict), (Some(Reason::NoEvidence), TargetVerdict::Kept), "{purged:?}");
    assert!(purged[0].detail.as_ref().unwrap().contains("process 7"));
    expect_both_back(&room);
}

#[test]
fn too_little_evidence_condemns_nothing() {
    let room = room();
    let mut evidence = Evidence::of(&room);
    evidence.gap = Some((Reach::Everybody, true));
    assert_eq!(run(&room, &mut evidence), [refused(Reason::NoEvidence), refused(Reason::NoEvidence)]);
    expect_both_back(&room);
    evidence.gap = None;
    evidence.confirm_fails = true;
    let rules = RootConfig { remove: RemoveRule::Tree, ..room.rules() };
    let error = loop {
        match run_with(&room, &rules, &mut evidence, &options()) {
            Err(error) => break error,
            // A child that another test just makes has the locks of the purge before until it runs its program.
            Ok(purged) => assert!(purged.iter().any(|end| end.reason == Some(Reason::Leased)), "{purged:?}"),
        }
    };
    assert!(matches!(error, RemovalError::Evidence { .. }), "{error}");
    expect_both_back(&room);
    // Evidence that watches another place would see no pin at all.
    let mut elsewhere = Evidence::at(&room.path("outside"));
    elsewhere.location = Evidence::of(&room).location;
    elsewhere.watches = Some(room.path("outside"));
    let error = run_with(&room, &rules, &mut elsewhere, &options()).unwrap_err();
    assert!(matches!(error, RemovalError::Moved { .. }), "{error}");
    expect_both_back(&room);
}

#[test]
fn a_name_that_was_taken_meanwhile_is_not_overwritten() {
    let room = room();
    let (again, root, outside) = (room.entry("a"), room.root(), room.path("outside"));
    let (keep, _kept) = channel();
    let mut evidence = Evidence::of(&room);
    evidence.while_condemned = Some(Box::new(move || {
        keep.send(Sandbox::bind(&condemned(&root, "b"), &outside)).unwrap();
        fs::create_dir(&again).unwrap();
        fs::write(again.join("theirs"), "theirs").unwrap();
    }));
    let [a, b] = run(&room, &mut evidence);
    assert_eq!((a, b), ((TargetVerdict::Failed, Some(Reason::Failed)), refused(Reason::Pinned)));
    assert_eq!(fs::read_to_string(room.entry("a/theirs")).unwrap(), "theirs");
    assert_eq!(fs::read_to_string(condemned(&room.root(), "a").join("file")).unwrap(), "a");
    assert!(room.entry("b").is_dir());
}

#[test]
fn a_swap_before_it_is_condemned_is_undone() {
    let room = room();
    // Evidence is taken between the look at a target and its rename.
    let mut evidence = Evidence::of(&room);
    let (entry, aside) = (room.entry("b"), room.path("outside/b"));
    evidence.while_asked = Some(Box::new(move || {
        fs::rename(&entry, &aside).unwrap();
        fs::create_dir(&entry).unwrap();
        fs::write(entry.join("file"), "b").unwrap();
    }));
    assert_eq!(run(&room, &mut evidence), [KEPT, refused(Reason::Failed)]);
    expect_both_back(&room);
}

#[test]
fn a_stop_before_the_decision_gives_both_back() {
    let room = room();
    let stop = Arc::new(AtomicBool::new(false));
    let asked = PurgeOptions { stop: Some(Arc::clone(&stop)), ..options() };
    let mut evidence = Evidence::of(&room);
    evidence.while_condemned = Some(Box::new(move || stop.store(true, Ordering::Relaxed)));
    let rules = RootConfig { remove: RemoveRule::Tree, ..room.rules() };
    let purged = run_with(&room, &rules, &mut evidence, &asked).unwrap();
    assert_eq!([0, 1].map(|at| (purged[at].verdict, purged[at].reason)), [refused(Reason::Failed), KEPT]);
    expect_both_back(&room);
}

#[test]
fn what_cannot_be_removed_stays_condemned_and_is_told() {
    let room = room();
    let stop = Arc::new(AtomicBool::new(false));
    let asked = PurgeOptions { stop: Some(Arc::clone(&stop)), ..options() };
    let mut evidence = Evidence::of(&room);
    let rules = RootConfig { remove: RemoveRule::Tree, ..room.rules() };
    // A stop comes while trees are removed: what was decided on is told, whichever of it is left.
    let mut between = |_: &mut Evidence| stop.store(true, Ordering::Relaxed);
    let purged = run_between(&room, &rules, &mut evidence, &asked, &mut between).unwrap();
    assert!(purged.iter().any(|purged| purged.verdict == TargetVerdict::Failed), "{purged:?}");
    for (name, purged) in ["a", "b"].iter().zip(purged) {
        let is_left = names(&room.root()).contains(&".reclaim".to_owned())
            && names(&room.entry(".reclaim"))
                .iter()
                .any(|batch| room.entry(".reclaim").join(batch).join(name).exists());
        assert_eq!(is_left, purged.verdict == TargetVerdict::Failed, "{name}: {purged:?}");
        assert!(!room.entry(name).exists());
    }
}

/// The store of a site that was opened before one failed is taken away again, too.
#[test]
fn a_site_that_cannot_be_used_leaves_nothing_in_the_others() {
    let room = room();
    fs::create_dir(room.path("outside/c")).unwrap();
    let mut evidence = Evidence::of(&room);
    let location = evidence.location.clone();
    let (path, outside) = (room.root(), room.path("outside"));
    // Evidence knows nothing of the second.
    let sites =
        [Site { path: &path, index: 0, location: Some(&location) }, Site { path: &outside, index: 1, location: None }];
    let rules = RootConfig { remove: RemoveRule::Tree, ..room.rules() };
    let targets = [target(0, "a", &rules), target(1, "c", &rules)];
    let error = purge(&sites, &targets, &mut evidence, &options(), &mut |_| {}).unwrap_err();
    assert!(matches!(error, RemovalError::Moved { .. }), "{error}");
    expect_both_back(&room);
}

/// No site and no evidence: nothing of it could be told by mounts.
#[test]
fn what_has_no_path_asks_no_evidence() {
    let room = room();
    let mut evidence = Evidence::of(&room);
    evidence.settled = vec![Settled::Overdue { calls: vec!["mount of process 7".into()] }];
    evidence.confirm_fails = true;
    let file = room.entry("a/file");
    let mut ended = || purge(&[], &[managed(&file)], &mut evidence, &options(), &mut |_| {}).unwrap();
    assert_eq!(ended()[0].verdict, TargetVerdict::Removed);
    assert!(!file.exists() && room.entry("b/file").exists());
    assert_eq!(ended()[0].verdict, TargetVerdict::Absent);
    assert_eq!(evidence.confirmed, 0);
}

/// Its command is run when all else was proved, and no sooner.
#[test]
fn what_has_no_path_stays_when_a_mount_came_while_the_rest_was_condemned() {
    let room = room();
    let file = room.path("outside/file");
    fs::write(&file, "").unwrap();
    let (root, outside) = (room.root(), room.path("outside"));
    let (keep, _kept) = channel();
    let mut evidence = Evidence::of(&room);
    evidence.while_condemned = Some(Box::new(move || {
        keep.send(Sandbox::bind(&condemned(&root, "b"), &outside)).unwrap();
    }));
    let location = evidence.location.clone();
    let path = room.root();
    let site = Site { path: &path, index: 0, location: Some(&location) };
    let rules = RootConfig { remove: RemoveRule::Tree, ..room.rules() };
    let targets = [managed(&file), target(0, "a", &rules), target(0, "b", &rules)];
    let purged = purge(&[site], &targets, &mut evidence, &options(), &mut |_| {}).unwrap();
    let ends: Vec<_> = purged.iter().map(|purged| (purged.verdict, purged.reason)).collect();
    assert_eq!(ends, [KEPT, KEPT, refused(Reason::Pinned)], "{purged:?}");
    assert!(file.exists());
    expect_both_back(&room);
}

/// A purge of the one file that is written down, while others act.
fn purge_only(change_before: bool, act: fn(&Path)) -> (Purged, PathBuf) {
    let room = Room::new();
    let file = room.entry("a");
    fs::write(&file, "").unwrap();
    let found = status_at(File::open(room.root()).unwrap(), c"a").unwrap();
    let only = Some(Print::of(found.identity.device, found.identity.inode, &found.status));
    let mut evidence = Evidence::of(&room);
    // Times of files go in steps.
    std::thread::sleep(Duration::from_millis(20));
    let of = file.clone();
    match change_before {
        true => act(&file),
        false => evidence.while_asked = Some(Box::new(move || act(&of))),
    }
    let location = evidence.location.clone();
    let path = room.root();
    let site = Site { path: &path, index: 0, location: Some(&location) };
    let rules = RootConfig { kind: KindRule::Any, ..room.rules() };
    let target = EntryTarget { site: 0, name: c"a".into(), rules, only }.into();
    let purged = purge(&[site], &[target], &mut evidence, &options(), &mut |_| {}).unwrap().remove(0);
    assert_eq!(file.exists(), purged.verdict != TargetVerdict::Removed, "{purged:?}");
    // It goes with the room.
    (purged, file)
}

fn touch(file: &Path) {
    fs::write(file, "mine").unwrap();
    fs::write(file, "").unwrap();
}

fn replace(file: &Path) {
    fs::rename(file, file.with_file_name("aside")).unwrap();
    fs::write(file, "").unwrap();
}

#[test]
fn only_the_file_that_is_meant_goes_and_only_as_it_was() {
    let (purged, _) = purge_only(true, |_| {});
    assert_eq!(purged.verdict, TargetVerdict::Removed, "{purged:?}");
    for change in [touch, replace] {
        let (before, _) = purge_only(true, change);
        assert_eq!(before.verdict, TargetVerdict::Absent, "{before:?}");
        // Between the first look and the rename.
        let (between, _) = purge_only(false, change);
        assert_eq!((between.verdict, between.reason), refused(Reason::Failed), "{between:?}");
    }
}

/// All that one batch has no room for is not decided on either.
#[test]
fn targets_by_the_thousand_are_not_decided_on_until_all_are_proved() {
    let room = Room::new();
    let names: Vec<String> = (0..BATCH_ENTRIES + 10).map(|index| format!("entry-{index}")).collect();
    names.iter().for_each(|name| drop(room.stale(name)));
    // As many descriptors as a pass may have.
    let _room = Leases::up_to(usize::MAX);
    let (store, (tell, told_of)) = (room.entry(".reclaim"), channel());
    let mut evidence = Evidence::of(&room);
    evidence.blind = true;
    evidence.settled = vec![Settled::Overdue { calls: vec!["a call that hangs".into()] }];
    evidence.while_condemned = Some(Box::new(move || tell.send(super::support::names(&store)).unwrap()));
    let (path, location) = (room.root(), evidence.location.clone());
    let site = Site { path: &path, index: 0, location: Some(&location) };
    let targets: Vec<Target> = names.iter().map(|name| target(0, name, &room.rules())).collect();
    let purged = purge(&[site], &targets, &mut evidence, &options(), &mut |_| {}).unwrap();
    assert!(purged.iter().all(|purged| purged.verdict != TargetVerdict::Removed));
    assert_eq!(room.names().len(), names.len());
    let batches = told_of.recv().unwrap();
    assert_eq!(batches.len(), 2, "{batches:?}");
    assert!(batches.iter().all(|batch| batch.ends_with("-undecided")), "{batches:?}");
}
