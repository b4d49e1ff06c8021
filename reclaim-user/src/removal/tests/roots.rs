//! Roots that are none, and a `.reclaim` that is not ours.

use super::support::{Evidence, Room, Sandbox, names, options, run, run_with};
use crate::config::{RemoveRule, RootConfig};
use crate::model::report::Reason;
use crate::removal::place::Root;
use crate::removal::{PassOptions, RemovalError, RootState, locate};
use nix::fcntl::{Flock, FlockArg};
use nix::mount::{MsFlags, mount, umount};
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown, symlink};
use std::os::unix::process::ExitStatusExt;

fn refusal(room: &Room, rules: &RootConfig, evidence: &mut Evidence) -> RemovalError {
    let before = names(&room.path("outside"));
    let error = run_with(rules, evidence, &options(), &mut RootState::default()).unwrap_err();
    assert_eq!(names(&room.path("outside")), before);
    error
}

#[test]
fn a_missing_or_empty_root_is_nothing_to_do() {
    let room = Room::new();
    let told = run(&room.rules(), &mut Evidence::of(&room));
    assert_eq!((told.summary.listed, told.summary.truncated), (0, false));
    let missing = RootConfig { path: room.path("absent"), ..room.rules() };
    assert_eq!(run(&missing, &mut Evidence::of(&room)).summary.listed, 0);
}

#[test]
fn a_root_that_became_a_link_is_refused() {
    let room = Room::new();
    room.stale("a");
    fs::create_dir(room.path("outside/a")).unwrap();
    let mut evidence = Evidence::of(&room);
    fs::rename(room.root(), room.path("aside")).unwrap();
    symlink(room.path("outside"), room.root()).unwrap();
    let error = refusal(&room, &room.rules(), &mut evidence);
    assert!(matches!(error, RemovalError::Configuration { .. }) && error.to_string().contains("link"), "{error}");
    fs::remove_file(room.root()).unwrap();
    // A link further up is no better.
    symlink(room.path("outside"), room.path("way")).unwrap();
    let behind = RootConfig { path: room.path("way/a"), ..room.rules() };
    assert!(matches!(refusal(&room, &behind, &mut evidence), RemovalError::Configuration { .. }));
    for path in ["/", "/proc/self/root", "/proc/1/root", "/."] {
        let slash = RootConfig { path: path.into(), ..room.rules() };
        assert!(matches!(refusal(&room, &slash, &mut evidence), RemovalError::Configuration { .. }), "{path}");
    }
    // The same directory by another way.
    mount(Some("/"), &room.path("outside"), None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    let bound = RootConfig { path: room.path("outside"), ..room.rules() };
    assert!(matches!(refusal(&room, &bound, &mut evidence), RemovalError::Configuration { .. }));
    umount(&room.path("outside")).unwrap();
    fs::write(room.root(), "").unwrap();
    assert!(matches!(refusal(&room, &room.rules(), &mut evidence), RemovalError::Configuration { .. }));
}

#[test]
fn a_root_that_evidence_does_not_watch_or_that_lies_elsewhere_is_not_judged() {
    let room = Room::new();
    let root = Root::open(&room.root()).unwrap().unwrap();
    let (here, elsewhere) = (locate(&room.root()).unwrap(), locate(&room.path("outside")).unwrap());
    root.verify(Some(&here), &here).unwrap();
    for (watched, expected) in [(None, &here), (Some(&elsewhere), &here), (Some(&elsewhere), &elsewhere)] {
        let error = root.verify(watched, expected).unwrap_err();
        assert!(matches!(error, RemovalError::Moved { .. }), "{error}");
    }
}

#[test]
fn a_batch_that_is_not_ours_is_left_alone_and_told() {
    let room = Room::new();
    let store = room.entry(".reclaim");
    let private = |path: &std::path::Path| fs::DirBuilder::new().mode(0o700).create(path).unwrap();
    private(&store);
    let (foreign, link, file) =
        (store.join("01234567-1-2-3"), store.join("01234567-1-2-4"), store.join("01234567-1-2-5"));
    private(&foreign);
    private(&foreign.join("theirs"));
    chown(&foreign, Some(1000), None).unwrap();
    fs::create_dir(room.path("outside/theirs")).unwrap();
    symlink(room.path("outside"), &link).unwrap();
    fs::write(&file, "").unwrap();
    let told = run(&room.rules(), &mut Evidence::of(&room));
    assert_eq!((told.summary.listed, told.notes.len()), (0, 3), "{told:#?}");
    assert!(told.notes.iter().any(|note| note.contains("1-2-3") && note.contains("belong")), "{:?}", told.notes);
    assert!(foreign.join("theirs").is_dir() && room.path("outside/theirs").is_dir() && file.exists());
}

#[test]
fn a_store_that_is_not_ours_is_refused() {
    type Plant = fn(&Room);
    let plant: [(&str, Plant); 5] = [
        ("not a directory", |room| symlink(room.path("outside"), room.entry(".reclaim")).unwrap()),
        ("not a directory", |room| fs::write(room.entry(".reclaim"), "").unwrap()),
        ("belongs to user 1000", |room| {
            fs::DirBuilder::new().mode(0o700).create(room.entry(".reclaim")).unwrap();
            chown(room.entry(".reclaim"), Some(1000), None).unwrap();
        }),
        ("has mode 0750", |room| {
            fs::create_dir(room.entry(".reclaim")).unwrap();
            fs::set_permissions(room.entry(".reclaim"), Permissions::from_mode(0o750)).unwrap();
        }),
        ("is a mount point", |room| {
            fs::DirBuilder::new().mode(0o700).create(room.entry(".reclaim")).unwrap();
            fs::set_permissions(room.path("outside"), Permissions::from_mode(0o700)).unwrap();
            let (from, to) = (room.path("outside"), room.entry(".reclaim"));
            mount(Some(&from), &to, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
        }),
    ];
    for (fault, plant) in plant {
        let room = Room::new();
        room.stale("a");
        plant(&room);
        let error = refusal(&room, &room.rules(), &mut Evidence::of(&room));
        assert!(matches!(error, RemovalError::Refused { .. }) && error.to_string().contains(fault), "{error}");
        assert_eq!(room.names(), [".reclaim", "a"]);
        let _ = umount(&room.entry(".reclaim"));
    }
}

#[test]
fn a_root_that_is_held_says_by_whom() {
    let room = Room::new();
    room.stale("a");
    fs::DirBuilder::new().mode(0o700).create(room.entry(".reclaim")).unwrap();
    let held = Flock::lock(File::open(room.entry(".reclaim")).unwrap(), FlockArg::LockExclusiveNonblock).unwrap();
    let error = refusal(&room, &room.rules(), &mut Evidence::of(&room));
    assert!(
        matches!(error, RemovalError::Busy { process: Some(process), .. } if process == std::process::id()),
        "{error}"
    );
    drop(held);
    assert_eq!(run(&room.rules(), &mut Evidence::of(&room)).summary.removed, 1);
    assert!(room.names().is_empty(), "an empty store of an earlier pass is removed too");
}

#[test]
fn a_read_only_root_is_listed_and_said_once() {
    let room = Room::new();
    for name in ["a", "b", "c"] {
        room.stale(name);
    }
    let flags = MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
    mount(None::<&str>, &room.path(""), None::<&str>, flags, None::<&str>).unwrap();
    let told = run(&room.rules(), &mut Evidence::of(&room));
    assert_eq!((told.kept(Reason::Failed), told.summary.listed, told.summary.condemned), (3, 3, 0));
    assert_eq!(told.notes.len(), 1, "{:?}", told.notes);
    assert!(told.notes[0].contains("read-only"));
    for name in ["a", "b", "c"] {
        assert!(told.detail(name).contains("nothing can be condemned"), "{told:?}");
    }
    assert_eq!(room.names(), ["a", "b", "c"]);
}

#[test]
fn our_own_store_under_another_name_is_kept() {
    let room = Room::new();
    room.stale("a");
    let mut evidence = Evidence::of(&room);
    let (store, renamed) = (room.entry(".reclaim"), room.entry("renamed"));
    // Whoever owns the root may rename what is in it.
    evidence.while_condemned = Some(Box::new(move || {
        fs::rename(&store, &renamed).unwrap();
        fs::DirBuilder::new().mode(0o700).create(&store).unwrap();
    }));
    let rules = RootConfig { remove: RemoveRule::Tree, ..room.rules() };
    let told = run(&rules, &mut evidence);
    assert_eq!(told.summary.removed, 1, "{told:#?}");
    assert_eq!(room.names(), [".reclaim", "renamed"], "nor is what has its name now taken away: that is another's");
}

/// A root on a file system that has no inode left, all of it stale but for what is told.
fn full(live: &[&str]) -> Room {
    let room = Room::with("nr_inodes=300");
    for name in live {
        room.stale(name);
    }
    for index in 0.. {
        if let Err(error) = fs::DirBuilder::new().mode(0o700).create(room.entry(format!("stale-{index}"))) {
            assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
            assert!(index > 200);
            return room;
        }
    }
    room
}

#[test]
fn a_full_file_system_is_reclaimed() {
    let room = full(&["live", "late"]);
    let sandbox = Sandbox::bind(&room.entry("live"), &room.path("outside"));
    let mut evidence = Evidence::of(&room);
    evidence.late_pins = vec![evidence.pin("late")];
    let told = run(&room.rules(), &mut evidence);
    assert_eq!(room.names(), ["late", "live"], "{:?} {:?}", told.summary, told.notes);
    assert_eq!((told.kept(Reason::Pinned), told.summary.restored), (2, 1));
    assert_eq!(told.summary.removed, told.summary.candidates - 1);
    assert!(sandbox.can_write(&room.path("outside")));
}

#[test]
fn a_crash_on_a_full_file_system_is_mended_too() {
    for step in ["after-condemn-first", "after-condemn", "after-confirm", "mid-remove"] {
        let room = full(&[]);
        // The one that was made last is the first that a tmpfs lists, and so among the few that are condemned.
        fs::rename(room.entry(format!("stale-{}", room.names().len() - 1)), room.entry("late")).unwrap();
        assert_eq!(super::crashes::pass_that_dies(room.root(), step).signal(), Some(9), "{step}");
        let left = room.names();
        let condemned: Vec<&String> = left.iter().filter(|name| name.starts_with(".reclaim-")).collect();
        // By the time of the first removal it has its name back.
        let is_live = step != "mid-remove";
        assert!(!condemned.is_empty(), "{step}");
        assert_eq!(condemned.iter().any(|name| name.ends_with(".late")), is_live, "{step}: {condemned:?}");
        // A dry run counts what lies condemned and changes nothing.
        let dry = PassOptions { dry_run: true, ..options() };
        let told = run_with(&room.rules(), &mut Evidence::of(&room), &dry, &mut RootState::default()).unwrap();
        assert_eq!(told.summary.condemned, condemned.len() as u64, "{step}");
        assert_eq!(room.names(), left, "{step}");
        // Nor does anybody who is kept out by another reclaimer.
        let held = Flock::lock(File::open(room.root()).unwrap(), FlockArg::LockExclusiveNonblock).unwrap();
        let error = refusal(&room, &room.rules(), &mut Evidence::of(&room));
        assert!(matches!(error, RemovalError::Busy { .. }), "{step}: {error}");
        // An empty store may come to be where there is room for one.
        let entries: Vec<String> = room.names().into_iter().filter(|name| name != ".reclaim").collect();
        assert_eq!(entries, left, "{step}");
        drop(held);
        let mut evidence = Evidence::of(&room);
        evidence.late_pins = vec![evidence.pin("late")];
        let told = run(&room.rules(), &mut evidence);
        assert_eq!(room.names(), ["late"], "{step}: {:?} {:?}", told.summary, told.notes);
    }
}

#[test]
fn a_store_without_room_for_a_batch_does_not_stop_a_full_file_system_from_being_reclaimed() {
    let room = Room::with("nr_inodes=300");
    let private = |path| fs::DirBuilder::new().mode(0o700).create(path);
    private(room.entry(".reclaim")).unwrap();
    private(room.entry(".reclaim/notes")).unwrap();
    let made = (0..).map_while(|index| private(room.entry(format!("stale-{index}"))).ok()).count();
    let told = run(&room.rules(), &mut Evidence::of(&room));
    assert_eq!((told.summary.removed, room.names()), (made as u64, vec![".reclaim".to_owned()]), "{:?}", told.notes);
}

/// Whoever may make names in a root can make such as an earlier pass leaves for want of room. That no path leads to what is
/// condemned does not end with that, and a confirmation takes no longer.
#[test]
fn what_was_condemned_for_want_of_room_draws_nothing_after_it() {
    let room = Room::new();
    for index in 0..300 {
        room.stale(format!("a-{index}"));
        room.stale(format!(".reclaim-01234567-1-2-3.left-{index}"));
        room.stale(format!(".reclaim-01234567-1-2-{index}.other-{index}"));
        room.stale(format!("b-{index}"));
    }
    let (root, (tell, told_of)) = (room.root(), std::sync::mpsc::channel());
    let mut evidence = Evidence::of(&room);
    evidence.while_condemned = Some(Box::new(move || tell.send(super::support::names(&root)).unwrap()));
    let told = run(&room.rules(), &mut evidence);
    assert_eq!((told.summary.removed, room.names().len()), (1200, 0), "{:?}", told.summary);
    let names = told_of.recv().unwrap();
    let drawn = names.iter().find(|name| [".a-", ".b-"].iter().any(|own| name.contains(own)));
    assert_eq!(drawn, None);
    assert!(evidence.directories <= 3, "{} directories, each looked through", evidence.directories);
}

#[test]
fn one_reclaimer_at_a_time_works_on_a_full_file_system() {
    let room = full(&[]);
    let held = Flock::lock(File::open(room.root()).unwrap(), FlockArg::LockExclusiveNonblock).unwrap();
    let before = room.names();
    let error = refusal(&room, &room.rules(), &mut Evidence::of(&room));
    assert!(matches!(error, RemovalError::Busy { process: Some(_), .. }), "{error}");
    assert_eq!(room.names(), before);
    drop(held);
}

#[test]
fn whoever_has_locked_the_root_for_want_of_a_store_keeps_others_out_of_a_store_too() {
    let room = Room::new();
    room.stale("a");
    let held = Flock::lock(File::open(room.root()).unwrap(), FlockArg::LockExclusiveNonblock).unwrap();
    let error = refusal(&room, &room.rules(), &mut Evidence::of(&room));
    assert!(matches!(error, RemovalError::Busy { process: Some(_), .. }), "{error}");
    assert!(room.entry("a").is_dir());
    drop(held);
    assert_eq!(run(&room.rules(), &mut Evidence::of(&room)).summary.removed, 1);
}
