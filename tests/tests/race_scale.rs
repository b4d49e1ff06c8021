//! 200,000 stale entries and 1,000 sandboxes of 30 binds on one tmpfs.

use reclaim_tests::{
    Background, ConfigFile, Crowd, Host, OrFail as _, Reclaim, Root, Service, private_host, share_of, wait_until,
};
use std::fs;
use std::process::Stdio;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const BINDS: usize = 30;
/// Namespaces that have the same binds.
const NAMESPACES: usize = 1_000;
const MEMORY_KIB: u64 = 200 << 10;

fn stale() -> usize {
    share_of(200_000)
}

fn sandboxes() -> usize {
    share_of(1_000)
}

/// The two take turns: a thousand namespaces at a time are what is asked for.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn crowd(host: &Host) -> Crowd {
    host.entries("member-", sandboxes() * BINDS);
    Crowd::start(&host.root(), &host.make_dir("points"), "member-", sandboxes(), BINDS)
}

#[track_caller]
fn expect_only_members(host: &Host) {
    let names = host.names();
    assert!(names.iter().all(|name| name.starts_with(b"member-")), "something stale is left");
    assert_eq!(names.len(), sandboxes() * BINDS, "something pinned has gone");
    assert!(host.condemned().is_empty());
}

#[test]
fn in_one_pass_of_the_service() {
    private_host(|host| {
        let _alone = alone();
        host.entries("stale-", stale());
        let crowd = crowd(host);
        let config = ConfigFile::write(host, [Root::of(host)]).budget("10m");
        let reclaim = Reclaim::with(&config).within(Duration::from_secs(300));
        let mut service = Service::start(host, &config, &reclaim);
        let first = wait_until("the first pass", Duration::from_secs(300), || {
            service.assert_running();
            service.passes().into_iter().next()
        });
        assert_eq!(first.listed, (stale() + sandboxes() * BINDS) as u64, "{first:?}");
        assert_eq!(first.removed, stale() as u64, "{first:?}\n{}", service.log());
        assert_eq!(first.kept("pinned"), (sandboxes() * BINDS) as u64, "{first:?}");
        assert!(!first.truncated, "{first:?}");
        expect_only_members(host);
        crowd.still_works();
        let peak = service.status_number("VmHWM");
        eprintln!("{first:?}; peak of resident memory {peak} KiB");
        assert!(peak < MEMORY_KIB, "{peak} KiB of resident memory at the peak");

        drop(crowd);
        wait_until("the members to go", Duration::from_secs(200), || {
            reclaim.sweep();
            host.names().is_empty().then_some(())
        });
        let peak = service.status_number("VmHWM");
        assert!(peak < MEMORY_KIB, "{peak} KiB of resident memory at the peak");
    });
}

#[test]
fn over_several_passes_of_a_small_budget() {
    private_host(|host| {
        let _alone = alone();
        host.entries("stale-", stale());
        let crowd = crowd(host);
        let config = ConfigFile::write(host, [Root::of(host)]).budget(&format!("{}ms", share_of(2_000)));
        let reclaim = Reclaim::with(&config).evidence("scan");
        let (mut passes, mut peak, mut truncated) = (0, 0, 0);
        wait_until("everything stale to go", Duration::from_secs(300), || {
            let output = host.path("sweep.out");
            let mut sweep = reclaim
                .command(&["--json", "sweep"])
                .stdin(Stdio::null())
                .stdout(fs::File::create(&output).or_fail("make a file"))
                .spawn()
                .or_fail("start a sweep");
            while sweep.try_wait().or_fail("look at the sweep").is_none() {
                peak = peak.max(resident_peak(sweep.id()));
                std::thread::sleep(Duration::from_millis(3));
            }
            let text = fs::read_to_string(&output).or_fail("read a summary");
            let pass: reclaim_tests::Pass =
                serde_json::from_str(text.lines().last().or_fail("a summary")).or_fail("read a summary");
            pass.check();
            passes += 1;
            truncated += u32::from(pass.truncated);
            assert!(passes < 2_000, "no end in sight: {pass:?}");
            (host.names().len() == sandboxes() * BINDS).then_some(())
        });
        eprintln!("{passes} passes, {truncated} of them cut short; peak of resident memory {peak} KiB");
        assert!(truncated > 0 && passes > 1, "the budget was large enough for one pass: {passes}");
        assert!(peak > 0 && peak < MEMORY_KIB, "{peak} KiB of resident memory at the peak");
        // A last one without leftovers.
        reclaim.sweep();
        expect_only_members(host);
        crowd.still_works();
    });
}

/// Mounts of one file system, a hundred thousand unless `RECLAIM_MOUNTS` tells another number.
fn mounts() -> usize {
    let told = std::env::var("RECLAIM_MOUNTS").ok();
    told.map_or_else(|| share_of(100_000), |told| told.parse().or_fail("RECLAIM_MOUNTS as a number"))
}

#[test]
fn a_walk_over_as_many_mounts_as_are_asked_for() {
    private_host(|host| {
        let _alone = alone();
        let binds = (mounts() / NAMESPACES).max(1);
        let (pinned, stale) = (host.entries("member-", binds), host.entries("stale-", 100));
        let config = ConfigFile::write(host, [Root::of(host)]).budget("10m");
        let reclaim = Reclaim::with(&config).evidence("walk").within(Duration::from_secs(300));
        let copies = Background::copies(&host.root(), &host.make_dir("points"), "member-", NAMESPACES, binds);
        let begun = Instant::now();
        assert_eq!(reclaim.query(&pinned[binds / 2]).verdict, "pinned");
        let answer = reclaim.query(&stale[0]);
        assert_eq!((&*answer.verdict, &*answer.evidence), ("free", "walk"), "{answer:?}");
        eprintln!("two questions about one of {binds} x {NAMESPACES} mounts: {:?}", begun.elapsed());
        let begun = Instant::now();
        let pass = wait_until("everything stale to go", Duration::from_secs(300), || {
            let pass = reclaim.sweep().remove(0);
            assert_eq!(pass.kept("pinned") as usize, binds, "{pass:?}");
            (host.names().len() == binds).then_some(pass)
        });
        eprintln!("{:?}: {pass:?}", begun.elapsed());
        copies.end();
    });
}

/// The largest resident memory of a process so far, in KiB; 0 once it has gone.
fn resident_peak(pid: u32) -> u64 {
    let Ok(text) = fs::read_to_string(format!("/proc/{pid}/status")) else { return 0 };
    text.lines().find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
