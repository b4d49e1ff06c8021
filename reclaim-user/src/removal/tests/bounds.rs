//! What ends a pass before it is through.

use super::protocol::set_immutable;
use super::support::{Evidence, Room, condemned, options, run_with};
use crate::config::{ClaimsConfig, ClaimsSource, RemoveCommand, RemoveRule, RootConfig};
use crate::model::purge::{CommandTemplate, Places};
use crate::model::report::Reason;
use crate::removal::{PassOptions, RootState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[test]
fn a_pass_that_makes_way_finishes_what_is_in_hand_and_goes_on_there() {
    let room = Room::new();
    for index in 0..20_000 {
        room.stale(format!("entry-{index}"));
    }
    let cut = Arc::new(AtomicBool::new(true));
    let asked = PassOptions { cut: Some(Arc::clone(&cut)), ..options() };
    let (mut state, mut evidence) = (RootState::default(), Evidence::of(&room));
    let summary = run_with(&room.rules(), &mut evidence, &asked, &mut state).unwrap().summary;
    assert!(summary.truncated && summary.remarks.cut && summary.listed == 0, "nothing is begun: {summary:?}");
    cut.store(false, Ordering::Relaxed);
    let make_way = Arc::clone(&cut);
    evidence.while_condemned = Some(Box::new(move || make_way.store(true, Ordering::Relaxed)));
    let first = run_with(&room.rules(), &mut evidence, &asked, &mut state).unwrap().summary;
    assert!(first.truncated && first.remarks.cut && first.removed > 0 && first.condemned == 0, "{first:?}");
    cut.store(false, Ordering::Relaxed);
    let rest = run_with(&room.rules(), &mut evidence, &asked, &mut state).unwrap().summary;
    assert!(!rest.truncated && !rest.remarks.cut, "{rest:?}");
    // Before 6.6 places in a tmpfs move up as names before them go, so that one may be passed over until the next pass; and
    // a child that another test has just forked may have the lock on one for a moment.
    let mut last = rest.clone();
    for _ in 0..20 {
        if room.names().is_empty() {
            return;
        }
        last = run_with(&room.rules(), &mut evidence, &asked, &mut state).unwrap().summary;
        assert!(last.listed < 10, "the pass before has looked at the rest: {rest:?} {last:?}");
    }
    panic!("{last:?}");
}

/// What is condemned has no path, so a program that needs a moment is heard all the same; one that hangs is not.
#[test]
fn claims_have_a_moment_where_entries_are_condemned_and_somebody_waits() {
    for (claims, goes) in
        [("[ -e asked ] && sleep 0.3; touch asked", true), ("[ -e asked ] && sleep 60; touch asked", false)]
    {
        let room = Room::new();
        room.stale("entry");
        let script = format!("cd {} && {{ {claims}; }}", room.path("outside").display());
        let source = ClaimsSource::Command(["sh", "-c", &script].map(str::to_owned).to_vec());
        let claims = Some(ClaimsConfig { source, timeout: Duration::from_secs(30) });
        let rules = RootConfig { claims, ..room.rules() };
        let cut = Arc::new(AtomicBool::new(false));
        let asked = PassOptions { cut: Some(Arc::clone(&cut)), ..options() };
        let mut evidence = Evidence::of(&room);
        evidence.while_condemned = Some(Box::new(move || cut.store(true, Ordering::Relaxed)));
        let told = run_with(&rules, &mut evidence, &asked, &mut RootState::default()).unwrap();
        assert_eq!(room.names().contains(&"entry".to_owned()), !goes, "{script}: {told:#?}");
        assert_eq!(told.summary.remarks.claims_fault, None, "{script}");
        assert!(told.summary.elapsed_ms < 15_000, "{script}: {told:#?}");
    }
}

/// Nothing is known of claims then, so nothing is judged by them: what was proved to be free does not come back for that.
#[test]
fn what_lies_condemned_stays_so_where_claims_are_not_waited_for() {
    let room = Room::new();
    std::fs::create_dir(room.entry("tree")).unwrap();
    std::fs::write(room.entry("tree/stays"), "").unwrap();
    set_immutable(&room.entry("tree/stays"), true);
    let mut rules = RootConfig { remove: RemoveRule::Tree, ..room.rules() };
    let (mut state, mut evidence) = (RootState::default(), Evidence::of(&room));
    run_with(&rules, &mut evidence, &options(), &mut state).unwrap();
    let source = ClaimsSource::Command(vec!["sleep".into(), "60".into()]);
    rules.claims = Some(ClaimsConfig { source, timeout: Duration::from_secs(30) });
    let cut = PassOptions { cut: Some(Arc::new(AtomicBool::new(true))), ..options() };
    let told = run_with(&rules, &mut evidence, &cut, &mut state).unwrap();
    assert_eq!((told.summary.listed, told.summary.truncated), (0, true), "{told:#?}");
    assert_eq!(state.troubles.iter().count(), 1, "what was told of it is not forgotten");
    set_immutable(&condemned(&room.root(), "tree").join("stays"), false);
}

#[test]
fn a_tree_that_took_all_the_time_lets_others_go_first() {
    let room = Room::new();
    for tree in ["a", "b", "c"] {
        room.stale(tree);
    }
    let rules = RootConfig { remove: RemoveRule::Tree, ..room.rules() };
    let stop = Arc::new(AtomicBool::new(false));
    let asked = PassOptions { stop: Some(Arc::clone(&stop)), ..options() };
    let (mut state, mut evidence) = (RootState::default(), Evidence::of(&room));
    let mut first = Vec::new();
    for _ in 0..3 {
        let over = Arc::clone(&stop);
        stop.store(false, Ordering::Relaxed);
        evidence.while_asked = Some(Box::new(move || over.store(true, Ordering::Relaxed)));
        let told = run_with(&rules, &mut evidence, &asked, &mut state).unwrap();
        assert_eq!((told.summary.condemned, told.entries.len(), told.notes.len()), (3, 3, 1), "{told:#?}");
        first.push(told.entries[0].name.clone());
    }
    first.sort();
    first.dedup();
    assert_eq!(first.len(), 3, "one of them was first more than once");
    stop.store(false, Ordering::Relaxed);
    let last = run_with(&rules, &mut evidence, &asked, &mut state).unwrap();
    assert_eq!((last.summary.removed, room.names().len()), (3, 0), "{last:#?}");
}

#[test]
fn trees_make_way_and_commands_do_not() {
    for (remove, left) in [(RemoveRule::Tree, 1), (RemoveRule::Command, 0)] {
        let room = Room::new();
        room.stale("entry");
        let words = CommandTemplate::parse(["rm", "-r", "{path}"].map(str::to_owned).to_vec(), Places::Entry).unwrap();
        let command = Some(RemoveCommand { words, limit: Duration::from_secs(30), id: None });
        let rules = RootConfig { remove, command, ..room.rules() };
        let cut = Arc::new(AtomicBool::new(false));
        let asked = PassOptions { cut: Some(Arc::clone(&cut)), ..options() };
        let mut evidence = Evidence::of(&room);
        evidence.while_asked = Some(Box::new(move || cut.store(true, Ordering::Relaxed)));
        let summary = run_with(&rules, &mut evidence, &asked, &mut RootState::default()).unwrap().summary;
        assert_eq!((summary.condemned, summary.removed), (left, 1 - left), "{remove:?}: {summary:?}");
    }
}

/// Others have their turn between two pieces, also where nothing has to be looked at.
#[test]
fn what_is_kept_at_sight_is_decided_on_in_pieces() {
    let room = Room::new();
    let mut evidence = Evidence::of(&room);
    evidence.blind = true;
    for index in 0..6_000 {
        let name = format!("entry-{index}");
        room.stale(&name);
        let pin = evidence.pin(&name);
        evidence.early_pins.push(pin);
    }
    let told = run_with(&room.rules(), &mut evidence, &options(), &mut RootState::default()).unwrap();
    assert_eq!(told.kept(Reason::Pinned), 6_000, "{:?}", told.summary);
    assert!(evidence.consulted >= 10, "{} pieces", evidence.consulted);
}
