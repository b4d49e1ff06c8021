//! SIGKILL at every step of the protocol, then another pass: nothing is lost and nothing live stays condemned.

use super::support::{Evidence, Room, Sandbox, condemned, run};
use crate::config::{RemoveRule, RootConfig};
use crate::model::report::Reason;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};

/// Steps and how the root is prepared for each to be come to.
const STEPS: [&str; 9] = [
    "after-lock",
    "after-condemn-first",
    "after-condemn",
    "after-settle",
    "after-confirm",
    "mid-restore",
    "mid-tree",
    "mid-remove",
    "after-remove",
];

fn rules(room_rules: RootConfig) -> RootConfig {
    RootConfig { remove: RemoveRule::Tree, ..room_rules }
}

/// Runs one pass in a process of its own, which inherits this thread's mount namespace.
pub(super) fn pass_that_dies(root: PathBuf, step: &str) -> ExitStatus {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--ignored", "removal::tests::crashes::one_pass"])
        .env("RECLAIM_TEST", "1")
        .env("RECLAIM_TEST_CRASH", step)
        .env("RECLAIM_TEST_ROOT", root)
        .output()
        .unwrap()
        .status
}

#[test]
#[ignore = "the other half of the crash test, which runs it in a process of its own"]
fn one_pass() {
    let path = PathBuf::from(std::env::var_os("RECLAIM_TEST_ROOT").expect("only the crash test runs this"));
    let mut evidence = Evidence::at(&path);
    evidence.late_pins = vec![evidence.pin("late")];
    let rules = RootConfig {
        name: "test".into(),
        path,
        owner: None,
        pattern: None,
        kind: crate::config::KindRule::Any,
        mode: None,
        min_age: std::time::Duration::ZERO,
        backstop: None,
        retain: None,
        retain_from: None,
        remove: RemoveRule::Tree,
        pile: None,
        once: false,
        leases: true,
        command: None,
        claims: None,
    };
    run(&rules, &mut evidence);
}

#[test]
fn a_crash_at_any_step_is_mended_by_the_next_pass() {
    for step in STEPS {
        let room = Room::new();
        for index in 0..20 {
            fs::create_dir_all(room.entry(format!("stale-{index}/x"))).unwrap();
        }
        let late = room.stale("late");
        fs::write(late.join("work"), "work").unwrap();
        let live = room.stale("live");
        // A batch of an earlier crash with something live in it, as when a launcher bound it through a descriptor.
        let batch = room.entry(".reclaim/01234567-1-2-3");
        DirBuilder::new().mode(0o700).recursive(true).create(batch.join("orphan")).unwrap();
        let outside = room.path("outside");
        let sandbox = Sandbox::bind(&batch.join("orphan"), &outside);
        let second = Sandbox::bind(&live, &outside);

        let status = pass_that_dies(room.root(), step);
        assert_eq!(status.signal(), Some(9), "the pass did not come to {step}: {status}");

        let mut evidence = Evidence::of(&room);
        evidence.late_pins = vec![evidence.pin("late")];
        let told = run(&rules(room.rules()), &mut evidence);
        assert_eq!(told.summary.condemned, 0, "{step}: {told:#?}");
        assert_eq!(room.names(), ["late", "live", "orphan"], "{step}: {told:#?}");
        assert_eq!(fs::read(late.join("work")).unwrap(), b"work", "{step}");
        assert!(sandbox.can_write(&outside) && second.can_write(&outside), "{step}");
    }
}

#[test]
fn after_a_crash_a_name_taken_meanwhile_is_not_overwritten() {
    let room = Room::new();
    let late = room.stale("late");
    fs::write(late.join("work"), "work").unwrap();
    assert_eq!(pass_that_dies(room.root(), "after-condemn").signal(), Some(9));
    assert_eq!(fs::read(condemned(&room.root(), "late").join("work")).unwrap(), b"work");
    fs::create_dir(&late).unwrap();
    fs::write(late.join("other"), "other").unwrap();
    let mut evidence = Evidence::of(&room);
    evidence.late_pins = vec![evidence.pin("late")];
    // The pin is told under the old name, so both are held.
    let told = run(&rules(room.rules()), &mut evidence);
    assert_eq!((told.summary.condemned, told.kept(Reason::Pinned)), (1, 1), "{told:#?}");
    assert_eq!(fs::read(late.join("other")).unwrap(), b"other");
    assert_eq!(fs::read(condemned(&room.root(), "late").join("work")).unwrap(), b"work");
}
