//! Case 8: launchers that bind a moment after they made an entry, and die by SIGKILL, while their root is swept without an
//! age fence.
//!
//! Eight processes bind by path, by a descriptor, by `open_tree` and `move_mount`, and under a lease. None of them may see
//! what it bound deleted, and none may see an entry renamed that it holds a lease on.
//!
//! `RECLAIM_TORTURE_SECONDS=600 cargo xtask test launchers` makes the service sweep among them for ten minutes instead of
//! one. Single sweeps by scans, which have no mount clock and wait a fixed time instead, take a third of that in addition.
//! `cargo xtask test` ends a test file after twenty minutes, so 800 seconds are the most.

use reclaim_tests::{
    ConfigFile, Host, Mode, OrFail as _, Root, Subject, Torture, Way, cases, check_then_delete, private_host,
    rename_whoever_holds_a_lease, share_of,
};
use std::env;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

cases! {
    launchers_never_lose_what_is_live: service, scan;
}

const LAUNCHERS: u64 = 8;
/// Seconds that the service sweeps for.
const SECONDS: u64 = 60;
/// Longest time that a fault may stay unseen.
const SEEN_WITHIN: Duration = Duration::from_secs(60);

/// The tests take turns: each of them fills the processors.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn seconds(mode: Mode) -> u64 {
    let asked = env::var("RECLAIM_TORTURE_SECONDS");
    let all = asked.map_or_else(
        |_| share_of(SECONDS as usize) as u64,
        |text| text.parse().or_fail("RECLAIM_TORTURE_SECONDS as a number"),
    );
    if mode == Mode::Service { all } else { all.div_ceil(3) }
}

fn launchers_never_lose_what_is_live(host: &Host, mode: Mode) {
    let _alone = alone();
    let seconds = seconds(mode);
    let torture = Torture::start(host, LAUNCHERS);
    let (mut passes, mut removed, mut restored) = (0, 0, 0);
    let mut sweep = |rule| {
        let subject = Subject::start_with(host, mode, &ConfigFile::write(host, [Root::of(host).text("remove", rule)]));
        let deadline = Instant::now() + Duration::from_secs(seconds) / 2;
        while Instant::now() < deadline && torture.first_violation("").is_none() {
            let pass = subject.sweep();
            passes += 1;
            removed += pass.removed;
            restored += pass.restored;
        }
        subject
    };
    // Where only what is empty goes, and then with all that it holds. A service ends by SIGKILL in between.
    drop(sweep("empty"));
    let subject = sweep("tree");
    let counts = torture.stop();
    println!("{mode:?}, {seconds} s: {passes} passes, {removed} removed, {restored} restored; {counts}");
    assert!(counts.violations.is_empty(), "{counts}");
    for way in Way::ALL {
        let verified = counts.verified.get(&way).copied().unwrap_or(0);
        assert!(verified >= seconds, "{way:?}: {verified} binds are too few to mean anything: {counts}");
    }
    assert!(counts.deaths >= seconds, "{counts}");
    assert!(removed >= 2 * seconds, "{removed} removed: too little was at risk");
    // A sweep by scans waits for longer than most launchers hold on to anything.
    assert!(restored > 0 || mode != Mode::Service, "nothing was held back, so no descriptor and no bind met a sweep");
    let begun = Instant::now();
    while !host.names().is_empty() || !host.condemned().is_empty() {
        let (passes, entries) = subject.reclaim().sweep_verbosely(&[]);
        let in_time = begun.elapsed() < Duration::from_secs(60);
        assert!(
            in_time,
            "what the launchers left does not go: {passes:?} {:?}",
            entries.iter().take(5).collect::<Vec<_>>()
        );
    }
}

/// Lets a stand-in work on the root until launchers come to harm of one kind, and see it.
fn expect_harm(host: &Host, harm: &str, mut work: impl FnMut() -> u64) {
    let _alone = alone();
    let torture = Torture::start(host, LAUNCHERS);
    let (begun, mut done) = (Instant::now(), 0);
    let seen = loop {
        done += work();
        let seen = torture.first_violation(harm);
        if seen.is_some() || begun.elapsed() >= SEEN_WITHIN {
            break seen;
        }
    };
    let after = begun.elapsed();
    println!("{seen:?} after {after:?} and {done} entries: {}", torture.stop());
    assert!(seen.is_some(), "launchers do not see it within {SEEN_WITHIN:?}: {harm}");
}

#[test]
fn launchers_see_it_when_a_live_source_is_deleted() {
    private_host(|host| {
        let root = host.root();
        expect_harm(host, "a live source was deleted", || check_then_delete(&root));
    });
}

#[test]
fn launchers_see_it_when_a_leased_entry_is_renamed() {
    private_host(|host| {
        let (root, aside) = (host.root(), host.make_dir("aside"));
        expect_harm(host, "a leased entry was renamed", || rename_whoever_holds_a_lease(&root, &aside));
    });
}
