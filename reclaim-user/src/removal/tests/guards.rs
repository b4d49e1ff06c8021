//! One test for each guard that stands in front of a removal: it is red when that guard alone is taken out.

use super::support::{Evidence, Room, Sandbox, Sleeper, Told, condemned, held, options, pattern, run, run_with};
use crate::config::{KindRule, RemoveRule, RootConfig};
use crate::evidence::references::Finder;
use crate::evidence::source::Settled;
use crate::model::coverage::{Holder, Reach};
use crate::model::report::{Reason, Verdict};
use crate::removal::{RemovalError, RootState};
use nix::fcntl::{Flock, FlockArg};
use std::fs::{self, File, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Command;
use std::time::Duration;

const KEPT: fn(Reason) -> (Verdict, Option<Reason>) = |reason| (Verdict::Kept, Some(reason));
const RESTORED: fn(Reason) -> (Verdict, Option<Reason>) = |reason| (Verdict::Restored, Some(reason));
const REMOVED: (Verdict, Option<Reason>) = (Verdict::Removed, None);

/// Two entries, `a` and `b`, of which something happens to `a` while both are condemned: `a` is restored, `b` goes.
#[track_caller]
fn while_condemned(room: &Room, rules: &RootConfig, evidence: Evidence, act: impl FnMut() + 'static, reason: Reason) {
    while_condemned_with(room, rules, evidence, act, reason, usize::MAX);
}

#[track_caller]
fn while_condemned_with(
    room: &Room,
    rules: &RootConfig,
    mut evidence: Evidence,
    act: impl FnMut() + 'static,
    reason: Reason,
    held_leases: usize,
) {
    evidence.while_condemned = Some(Box::new(act));
    let told = run_with(rules, &mut evidence, &held(held_leases), &mut RootState::default()).unwrap();
    assert_eq!(told.of("a"), RESTORED(reason), "{told:#?}");
    assert_eq!(told.of("b"), REMOVED, "{told:#?}");
    assert_eq!(room.names(), ["a"]);
    assert_eq!((told.summary.restored, told.summary.removed, told.kept(reason)), (1, 1, 1));
}

fn pair() -> Room {
    let room = Room::new();
    room.stale("a");
    room.stale("b");
    room
}

#[test]
fn a_live_source_and_a_live_target_are_never_condemned() {
    let room = Room::new();
    let (source, target) = (room.stale("source"), room.stale("target"));
    room.stale("sourc");
    room.stale("free");
    let outside = room.path("outside");
    let first = Sandbox::bind(&source, &outside);
    let second = Sandbox::bind(&outside, &target);
    let told = run(&room.rules(), &mut Evidence::of(&room));
    for name in ["source", "target"] {
        assert_eq!(told.of(name), KEPT(Reason::Pinned));
        let entry = told.entries.iter().find(|entry| entry.name == name.as_bytes()).unwrap();
        assert!(entry.pins[0].namespace.is_some(), "{entry:?}");
    }
    assert_eq!((told.of("sourc"), told.of("free")), (REMOVED, REMOVED));
    assert_eq!(told.summary.restored, 0, "a pin that was seen before is not worth a rename");
    assert!(first.can_write(&outside));
    drop((first, second));
    assert_eq!(run(&room.rules(), &mut Evidence::of(&room)).summary.removed, 2);
}

#[test]
fn each_fence_of_the_configuration_keeps() {
    // Entries are opened where the lock on them has to be tried, and otherwise only where that is the way to look inside.
    [true, false].into_iter().for_each(each_fence_keeps);
}

fn each_fence_keeps(leases: bool) {
    let room = Room::new();
    for name in ["sb_1_a", "name", "sb_1_owner", "sb_1_mode", "sb_1_full"] {
        room.stale(name);
    }
    fs::write(room.entry("sb_1_kind"), "").unwrap();
    chown(room.entry("sb_1_owner"), Some(1000), None).unwrap();
    fs::set_permissions(room.entry("sb_1_mode"), Permissions::from_mode(0o755)).unwrap();
    fs::write(room.entry("sb_1_full/x"), "x").unwrap();
    let rules = RootConfig {
        pattern: pattern(r"^sb_(\d)_\w+$"),
        kind: KindRule::Directory,
        owner: Some(0),
        mode: Some(0o700),
        leases,
        ..room.rules()
    };
    let told = run(&rules, &mut Evidence::of(&room));
    assert_eq!(told.of("sb_1_a"), REMOVED);
    assert_eq!(told.summary.restored, 0, "what can be seen before is not worth a rename");
    for (name, reason) in [
        ("name", Reason::Name),
        ("sb_1_owner", Reason::Owner),
        ("sb_1_mode", Reason::Mode),
        ("sb_1_kind", Reason::Kind),
        ("sb_1_full", Reason::NotEmpty),
    ] {
        assert_eq!(told.of(name), KEPT(reason));
    }
    assert_eq!(told.summary.restored, 0);
}

#[test]
fn age_retention_and_the_process_of_a_name_keep() {
    let room = Room::new();
    let old = Sleeper::new();
    std::thread::sleep(Duration::from_millis(150));
    let alive = format!("sb_{}", old.id());
    room.stale(&alive);
    room.stale("sb_0");
    room.stale("sb_4194399");
    room.stale("sb_4194303");
    let rules = RootConfig { pattern: pattern(r"^sb_(?<pid>\d+)$"), ..room.rules() };
    let young = RootConfig { min_age: Duration::from_secs(60), ..rules.clone() };
    assert_eq!(run(&young, &mut Evidence::of(&room)).kept(Reason::Young), 4);
    let retained = RootConfig { retain: Some(Duration::from_secs(60)), ..rules.clone() };
    assert_eq!(run(&retained, &mut Evidence::of(&room)).kept(Reason::Retained), 4);
    let told = run(&rules, &mut Evidence::of(&room));
    assert_eq!(told.of("sb_4194303"), REMOVED);
    for name in [alive.as_str(), "sb_0", "sb_4194399"] {
        assert_eq!(told.of(name), KEPT(Reason::PidAlive));
    }
    // The same number, given to a task that started after the entry was born.
    drop(old);
    std::thread::sleep(Duration::from_millis(150));
    let later = Sleeper::new();
    fs::rename(room.entry(&alive), room.entry(format!("sb_{}", later.id()))).unwrap();
    assert_eq!(run(&rules, &mut Evidence::of(&room)).summary.removed, 1);
    drop(later);
    let backstop = RootConfig { backstop: Some(Duration::ZERO), ..rules };
    assert_eq!(run(&backstop, &mut Evidence::of(&room)).summary.removed, 2);
}

#[test]
fn a_leased_entry_is_never_renamed() {
    let room = pair();
    let lease = Flock::lock(File::open(room.entry("a")).unwrap(), FlockArg::LockSharedNonblock).unwrap();
    let told = run(&room.rules(), &mut Evidence::of(&room));
    assert_eq!((told.of("a"), told.of("b")), (KEPT(Reason::Leased), REMOVED));
    assert_eq!(told.summary.restored, 0);
    let ignoring = RootConfig { leases: false, ..room.rules() };
    assert_eq!(run(&ignoring, &mut Evidence::of(&room)).of("a"), REMOVED);
    drop(lease);
}

#[test]
fn a_lease_taken_while_condemned_restores() {
    let room = pair();
    let held = File::open(room.entry("a")).unwrap();
    let mut slot = Some(held);
    let keep = std::rc::Rc::new(std::cell::RefCell::new(None));
    let kept = keep.clone();
    let act = move || {
        let file = slot.take().unwrap();
        *kept.borrow_mut() = Some(Flock::lock(file, FlockArg::LockExclusiveNonblock).unwrap());
    };
    // Where its lock is not held on, since there are no descriptors for that.
    while_condemned_with(&room, &room.rules(), Evidence::of(&room), act, Reason::Leased, 0);
    drop(keep);
}

#[test]
fn a_bind_through_a_descriptor_while_condemned_restores() {
    let room = pair();
    let held = File::open(room.entry("a")).unwrap();
    let outside = room.path("outside");
    let sandbox = std::rc::Rc::new(std::cell::RefCell::new(None));
    let (kept, target) = (sandbox.clone(), outside.clone());
    let act = move || {
        let source = format!("/proc/{}/fd/{}", std::process::id(), held.as_raw_fd());
        *kept.borrow_mut() = Some(Sandbox::bind(source.as_ref(), &target));
    };
    while_condemned(&room, &room.rules(), Evidence::of(&room), act, Reason::Pinned);
    assert!(sandbox.borrow().as_ref().unwrap().can_write(&outside));
}

#[test]
fn a_pin_under_the_old_name_restores() {
    let room = pair();
    let mut evidence = Evidence::of(&room);
    evidence.late_pins = vec![evidence.pin("a/upper")];
    while_condemned(&room, &room.rules(), evidence, || {}, Reason::Pinned);
}

#[test]
fn a_mount_in_our_own_namespace_while_condemned_is_not_removed() {
    let room = pair();
    let mut evidence = Evidence::of(&room);
    evidence.blind = true;
    let root = room.root();
    let place = std::rc::Rc::new(std::cell::RefCell::new(None));
    // Something mounted in our own namespace only: evidence that sees nothing leaves it to the mount root attribute.
    let act = {
        let place = place.clone();
        move || {
            let path = condemned(&root, "a");
            nix::mount::mount(Some("tmpfs"), &path, Some("tmpfs"), nix::mount::MsFlags::empty(), None::<&str>).unwrap();
            *place.borrow_mut() = Some(path);
        }
    };
    evidence.while_condemned = Some(Box::new(act));
    let told = run(&room.rules(), &mut evidence);
    // A mount point in our own namespace cannot be renamed, so it stays condemned, and whole.
    assert_eq!(told.of("a"), (Verdict::Condemned, Some(Reason::Pinned)), "{told:#?}");
    nix::mount::umount(place.borrow().as_ref().unwrap()).unwrap();
    assert_eq!(run(&room.rules(), &mut Evidence::of(&room)).of("a"), REMOVED);
}

#[test]
fn a_mount_in_our_own_namespace_is_seen_without_evidence() {
    let room = pair();
    let (outside, entry) = (room.path("outside"), room.entry("a"));
    let flags = nix::mount::MsFlags::MS_BIND;
    nix::mount::mount(Some(&outside), &entry, None::<&str>, flags, None::<&str>).unwrap();
    let mut evidence = Evidence::of(&room);
    evidence.blind = true;
    let told = run(&RootConfig { leases: false, remove: RemoveRule::Tree, ..room.rules() }, &mut evidence);
    assert_eq!((told.of("a"), told.of("b")), (KEPT(Reason::Pinned), REMOVED));
}

#[test]
fn a_layer_that_cannot_be_resolved_keeps_and_restores() {
    for (early, expected) in [(true, KEPT(Reason::Pinned)), (false, RESTORED(Reason::Pinned))] {
        let room = pair();
        let mut evidence = Evidence::of(&room);
        evidence.layer = Some((b"x/a/upper".to_vec(), early));
        let told = run(&room.rules(), &mut evidence);
        assert_eq!((told.of("a"), told.of("b")), (expected, REMOVED), "{told:#?}");
        assert!(told.detail("a").contains("x/a/upper"));
    }
}

#[test]
fn evidence_that_does_not_cover_an_owner_keeps_and_restores() {
    let task = |uid| Reach::Holder(Holder { uids: vec![uid], user_namespace_owner: Some(0) });
    for (early, expected) in [(true, KEPT(Reason::NoEvidence)), (false, RESTORED(Reason::NoEvidence))] {
        let room = pair();
        chown(room.entry("a"), Some(1000), None).unwrap();
        chown(room.entry("b"), Some(1001), None).unwrap();
        let mut evidence = Evidence::of(&room);
        evidence.gap = Some((task(1000), early));
        let told = run(&room.rules(), &mut evidence);
        assert_eq!((told.of("a"), told.of("b")), (expected, REMOVED), "{told:#?}");
        assert!(!told.summary.complete);
        evidence.gap = Some((Reach::Everybody, true));
        assert_eq!(run(&room.rules(), &mut evidence).kept(Reason::NoEvidence), 1);
    }
}

#[test]
fn what_changes_while_condemned_restores() {
    let room = pair();
    let owned = RootConfig { owner: Some(0), ..room.rules() };
    let root = room.root();
    let act = move || chown(condemned(&root, "a"), Some(1000), None).unwrap();
    while_condemned(&room, &owned, Evidence::of(&room), act, Reason::Owner);

    let room = pair();
    let root = room.root();
    // Without an owner fence too: coverage was judged for the owner that it had.
    let act = move || chown(condemned(&root, "a"), Some(1000), None).unwrap();
    while_condemned(&room, &room.rules(), Evidence::of(&room), act, Reason::Failed);

    let room = pair();
    let moded = RootConfig { mode: Some(0o700), ..room.rules() };
    let root = room.root();
    let act = move || fs::set_permissions(condemned(&root, "a"), Permissions::from_mode(0o711)).unwrap();
    while_condemned(&room, &moded, Evidence::of(&room), act, Reason::Mode);

    let room = pair();
    let root = room.root();
    let act = move || fs::write(condemned(&root, "a").join("file"), "work").unwrap();
    while_condemned(&room, &room.rules(), Evidence::of(&room), act, Reason::NotEmpty);
    assert_eq!(fs::read(room.entry("a/file")).unwrap(), b"work");

    let room = pair();
    let root = room.root();
    let act = move || {
        let path = condemned(&root, "a");
        fs::create_dir(path.with_file_name("other")).unwrap();
        fs::remove_dir(&path).unwrap();
        fs::rename(path.with_file_name("other"), &path).unwrap();
    };
    while_condemned(&room, &room.rules(), Evidence::of(&room), act, Reason::Failed);
}

#[test]
fn without_an_end_of_the_wait_or_fresh_evidence_everything_is_restored() {
    let break_it: [fn(&mut Evidence); 2] = [
        |evidence| evidence.settled = vec![Settled::Overdue { calls: vec!["mount by 17".into()] }],
        |evidence| evidence.confirm_fails = true,
    ];
    for (index, break_it) in break_it.into_iter().enumerate() {
        let room = pair();
        let mut evidence = Evidence::of(&room);
        break_it(&mut evidence);
        let told = run(&room.rules(), &mut evidence);
        assert_eq!((told.summary.restored, told.kept(Reason::NoEvidence)), (2, 2), "{told:#?}");
        assert_eq!(room.names(), ["a", "b"]);
        assert_eq!(told.notes.len(), 1);
        assert!(told.notes[0].contains(["mount by 17", "no evidence"][index]), "{:?}", told.notes);
    }
    let room = pair();
    let mut evidence = Evidence::of(&room);
    evidence.settled = vec![Settled::Fixed { waited: Duration::from_millis(3), why: "no clock".into() }];
    let told = run(&room.rules(), &mut evidence);
    assert_eq!(told.summary.removed, 2);
    assert!(told.notes[0].contains("no clock") && told.notes[0].contains("weaker"), "{:?}", told.notes);
}

#[test]
fn a_root_that_moved_is_not_judged_by_pins_of_its_old_place() {
    let room = pair();
    let mut evidence = Evidence::of(&room);
    let path = room.path("");
    evidence.while_condemned = Some(Box::new(move || {
        fs::create_dir(path.join("deeper")).unwrap();
        fs::rename(path.join("root"), path.join("deeper/root")).unwrap();
    }));
    let told = run(&room.rules(), &mut evidence);
    assert_eq!(told.kept(Reason::NoEvidence), 2, "{told:#?}");
    fs::rename(room.path("deeper"), room.path("elsewhere")).unwrap();
    let rules = RootConfig { path: room.path("elsewhere/root"), ..room.rules() };
    let error = run_with(&rules, &mut evidence, &options(), &mut RootState::default()).unwrap_err();
    assert!(matches!(error, RemovalError::Moved { .. }), "{error}");
}

#[test]
fn a_name_that_was_taken_is_not_overwritten() {
    let room = pair();
    let rules = room.rules();
    let mut evidence = Evidence::of(&room);
    evidence.late_pins = vec![evidence.pin("a")];
    let path = room.entry("a");
    let taken = path.clone();
    evidence.while_condemned = Some(Box::new(move || {
        fs::create_dir(&taken).unwrap();
        fs::write(taken.join("file"), "other").unwrap();
    }));
    let told = run(&rules, &mut evidence);
    assert_eq!(told.entries.iter().filter(|entry| entry.name == b"a").count(), 1, "{told:#?}");
    assert_eq!((told.summary.condemned, told.summary.removed), (1, 1), "{told:#?}");
    assert!(told.detail("a").contains("name was taken"), "{told:#?}");
    assert_eq!(fs::read(path.join("file")).unwrap(), b"other");
    // Once the name is free again it comes back, for it is still pinned.
    fs::remove_dir_all(&path).unwrap();
    let told = run(&rules, &mut evidence);
    assert_eq!(told.of("a"), RESTORED(Reason::Pinned));
    assert_eq!(room.names(), ["a"]);
}

#[test]
fn fewer_candidates_than_the_pile_are_all_kept() {
    let room = Room::new();
    for name in ["a", "b", "c"] {
        room.stale(name);
    }
    let told = run(&RootConfig { pile: Some(4), ..room.rules() }, &mut Evidence::of(&room));
    assert_eq!((told.kept(Reason::Pile), told.summary.listed, told.summary.candidates), (3, 3, 0));
    assert_eq!(run(&RootConfig { pile: Some(3), ..room.rules() }, &mut Evidence::of(&room)).summary.removed, 3);
}

/// What evidence does not compare is told from what took its place right after the rename.
#[test]
fn what_took_an_entrys_place_while_it_was_condemned_gets_its_name_back_at_once() {
    use crate::removal::condemn::{Group, NotCondemned, condemn};
    use crate::removal::examine::Examined;
    use crate::removal::leases::Leases;
    let room = pair();
    fs::write(room.entry("a/work"), "work").unwrap();
    let root = File::open(room.root()).unwrap();
    let judged = crate::sys::file_status::status_at(&root, c"b").unwrap();
    let (identity, kind, owner) = (judged.identity, judged.status.kind, judged.status.owner);
    let named = crate::model::verdict::by_name(&room.rules(), b"a", false).unwrap();
    let (mode, process_gone, witness, lease) = (None, false, None, None);
    let at = crate::removal::now();
    let examined = Examined { identity, kind, owner, mode, empty: true, named, process_gone, witness, at, lease };
    let mut group = Group::new();
    let result = condemn(None, &root, &mut group, c"a".into(), examined, Leases::up_to(0));
    assert!(matches!(result, Err((_, NotCondemned::Swapped { restored: true }))), "{result:?}");
    assert!(group.entries.is_empty());
    assert_eq!(fs::read(room.entry("a/work")).unwrap(), b"work");
}

/// What a process may bind an entry by after its name is gone.
#[test]
fn host_an_entry_that_a_process_refers_to_is_restored_and_goes_when_the_process_does() {
    for (finder, sees_all) in [(Finder::default(), true), (Finder::by_procfs(), false)] {
        let room = Room::new();
        room.stale("held");
        room.stale("free");
        let mut evidence = Evidence::of(&room);
        evidence.finder = Some(finder);
        let child = Command::new("sleep").arg("600").current_dir(room.entry("held")).spawn().unwrap();
        let holder = Sleeper::of(child);
        let told = run(&room.rules(), &mut evidence);
        assert_eq!(told.of("held"), (Verdict::Restored, Some(Reason::Pinned)));
        let (detail, expected) =
            (told.detail("held"), format!("process {} has it as its working directory", holder.id()));
        assert!(detail.split(", ").any(|told| told == expected), "{detail}");
        let goes = |name: &str, mut told: Told, evidence: &mut Evidence| {
            for _ in 0..50 {
                if told.of(name).0 == Verdict::Removed {
                    return;
                }
                // A child that another test has just forked has what is open here, a lease too, for a moment.
                assert_eq!(told.of(name), RESTORED(Reason::Pinned), "{told:#?}");
                std::thread::sleep(Duration::from_millis(20));
                told = run(&room.rules(), evidence);
            }
            panic!("{name} stays: {told:#?}");
        };
        // Where the first process may not be looked at, nothing goes at all.
        if !sees_all && told.of("free") == RESTORED(Reason::NoEvidence) {
            continue;
        }
        goes("free", told, &mut evidence);
        drop(holder);
        if sees_all {
            let told = run(&room.rules(), &mut evidence);
            goes("held", told, &mut evidence);
        }
    }
}
