//! Case 15: a procfs that hides tasks, tasks that cannot be read, tasks that vanish.

use reclaim_tests::{Actor, Background, ConfigFile, Host, Mode, Reclaim, Request, Root, ScanLine, Subject};
use reclaim_tests::{cases, private_host, wait_until};
use std::path::Path;
use std::time::Duration;

cases! {
    vanishing_tasks: service, scan, fallback;
    task_that_cannot_be_read: scan, fallback;
}

const USER: u32 = 1000;
const STRANGER: u32 = 12_345;

#[test]
fn a_filtered_procfs_lowers_both_claims() {
    private_host(|host| {
        let entry = host.entry("live");
        let config = ConfigFile::write(host, [Root::of(host).text("owner", "1000")]);
        let (mut sandbox, point) = host.sandbox_with(&entry);
        let reclaim = Reclaim::with(&config).as_user(USER).with_filtered_procfs();
        for evidence in ["scan", "auto"] {
            let reclaim = reclaim.clone().evidence(evidence);
            let (objects, code) = reclaim.objects(&["scan"], &[4]);
            assert_eq!(code, 4);
            let scan: ScanLine =
                serde_json::from_value(objects[0].clone()).unwrap_or_else(|error| panic!("read {objects:?}: {error}"));
            assert!(!scan.complete && scan.gap("procfs-filtered") > 0, "{scan:?}");
            assert!(!scan.covered.is_empty() && scan.covered.values().all(|covered| !covered), "{scan:?}");
            let answer = reclaim.query(&entry);
            assert_eq!(answer.verdict, "unknown", "{answer:?}");
            assert!(answer.why.is_some_and(|why| !why.is_empty()));
        }
        sandbox.still_works(&point, &entry);
    });
}

#[test]
fn a_filtered_procfs_is_noticed_by_root_without_the_right_to_see_others() {
    private_host(|host| {
        let entry = host.entry("stale");
        let config = ConfigFile::write(host, [Root::of(host)]);
        let reclaim = Reclaim::with(&config).with_filtered_procfs().evidence("scan");
        let outer = ["setpriv", "--bounding-set", "-sys_ptrace", "--inh-caps", "-sys_ptrace", "--"];
        let mut command = reclaim.command_through(&outer, &["--json", "sweep"]);
        let finished = reclaim_tests::run_to_end(&mut command, Duration::from_secs(60));
        assert_eq!(finished.code(), 4, "{finished:?}");
        assert!(entry.is_dir(), "{finished:?}");
        assert!(finished.stdout.contains("no-evidence"), "{finished:?}");
    });
}

fn vanishing_tasks(host: &Host, mode: Mode) {
    let subject = Subject::start(host, mode);
    let (entry, point) = (host.entry("live"), host.mount_point());
    host.entry("stormy0");
    let storm = Background::process_storm();
    let sandboxes = Background::sandbox_storm(&host.root(), &point, "stormy", 1);
    let (mut sandbox, point) = host.sandbox_with(&entry);
    for round in 0..3 {
        subject.expect_pinned(&entry);
        let stale = host.entries(&format!("stale-{round}-"), 10);
        // Somebody vanishes during every scan, and yet the stale ones go: what is gone holds nothing.
        subject.sweep_until_gone(&stale, &[&entry]);
        sandbox.still_works(&point, &entry);
    }
    let counts = storm.stop();
    counts.expect_clean("processes");
    assert!(counts.rounds > 100, "{counts:?}");
    sandboxes.stop();
}

/// Covers what tells a task's mounts with what the kernel refuses to root here: the same of pid 1.
fn make_unreadable(host: &Host, pid: i32) {
    for task in [format!("/proc/{pid}"), format!("/proc/{pid}/task/{pid}")] {
        host.bind(Path::new("/proc/1/ns"), Path::new(&format!("{task}/ns")));
        for file in ["mountinfo", "mounts", "mountstats"] {
            let covered = format!("{task}/{file}");
            if Path::new(&covered).exists() {
                host.bind(Path::new("/proc/1/environ"), Path::new(&covered));
            }
        }
    }
}

fn task_that_cannot_be_read(host: &Host, mode: Mode) {
    let refused = std::fs::read("/proc/1/environ").is_err() && std::fs::read_link("/proc/1/ns/mnt").is_err();
    reclaim_tests::earned_skip!(refused, "nothing is refused to this root, so no task can be made unreadable");
    let roots = [(USER, "user"), (STRANGER, "stranger")];
    let roots = roots.map(|(id, name)| Root::at(name, &host.make_dir(name)).text("owner", &id.to_string()));
    let subject = Subject::start_with(host, mode, &ConfigFile::write(host, roots));
    let covered = |scan: &ScanLine, id: u32| scan.covered.get(&id).copied();
    let baseline = wait_until("both to be covered", Duration::from_secs(30), || {
        let scan = subject.scan();
        (covered(&scan, USER) == Some(true) && covered(&scan, STRANGER) == Some(true)).then_some(scan)
    });
    let mut stranger = Actor::start();
    stranger.unshare();
    stranger.ask(&Request::BecomeUser(STRANGER));
    make_unreadable(host, stranger.pid());
    let scan = wait_until("the user to be covered", Duration::from_secs(30), || {
        let scan = subject.scan();
        (covered(&scan, USER) == Some(true)).then_some(scan)
    });
    assert!(!scan.complete, "{scan:?}");
    assert!(scan.gap("task-unreadable") > baseline.gap("task-unreadable"), "{baseline:?} {scan:?}");
    if mode == Mode::Fallback {
        // Where every namespace is listed, what the task could hold was seen without it.
        assert_eq!(covered(&scan, STRANGER), Some(false), "the stranger could hold its own entries: {scan:?}");
    }
}
