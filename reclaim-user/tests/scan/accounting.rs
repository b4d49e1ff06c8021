//! Scans say what they did not see (case 15).

use super::support::{Scene, WAYS, claims, eventually, kernel_lists_namespaces, scan};
use nix::mount::{MsFlags, mount};
use reclaim_user::evidence::scan::{ScanOptions, Scanner, identities};
use reclaim_user::model::coverage::GapCause;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

fn mount_proc(options: &str) {
    mount(Some("proc"), "/proc", Some("proc"), MsFlags::empty(), Some(options)).unwrap();
}

#[test]
fn a_procfs_that_hides_tasks_lowers_both_claims() {
    let _claims = claims();
    let _scene = Scene::new();
    for way in WAYS {
        assert!(!scan(way).coverage.gaps().contains_key(&GapCause::ProcfsFiltered), "{way:?}");
    }
    // Members of the group, root's by default, are spared.
    mount_proc("hidepid=2");
    assert!(!scan(WAYS[0]).coverage.gaps().contains_key(&GapCause::ProcfsFiltered));
    mount_proc("hidepid=2,gid=54321");
    for way in WAYS {
        let coverage = scan(way).coverage;
        assert!(coverage.gaps().contains_key(&GapCause::ProcfsFiltered), "{way:?}");
        assert!(!coverage.complete() && !coverage.covered(1000) && !coverage.covered(0), "{way:?}");
    }
    mount_proc("hidepid=4");
    assert!(!scan(WAYS[0]).coverage.covered(1000));
    mount(Some("t"), "/proc", Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
    let error = Scanner::new(WAYS[0]).scan().unwrap_err();
    assert!(error.to_string().contains("no procfs"), "{error}");
}

#[test]
fn a_task_that_refuses_to_tell_lowers_complete_only() {
    let _claims = claims();
    let _scene = Scene::new();
    let refused = std::fs::read_link("/proc/1/ns/mnt").is_err();
    for way in WAYS {
        let coverage = scan(way).coverage;
        let counted = coverage.gaps().get(&GapCause::TaskUnreadable).copied().unwrap_or(0);
        assert_eq!(counted > 0, refused, "{way:?}");
        assert!(!(refused && coverage.complete()), "{way:?}");
        assert!(coverage.covered(1000), "{way:?}: {coverage:?}");
    }
}

#[test]
fn tasks_that_come_and_go_leave_the_list_of_namespaces_whole() {
    if !kernel_lists_namespaces() {
        return;
    }
    let _claims = claims();
    let _scene = Scene::new();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Also when this panics, for the scope waits for the thread before it lets the panic go on.
        let _stop = StopOnDrop(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                Command::new("unshare").args(["-m", "true"]).status().unwrap();
            }
        });
        for _ in 0..10 {
            let found = scan(ScanOptions::default());
            assert!(found.coverage.covered(0), "{:?}", found.coverage);
            assert_eq!(found.accounting.namespaces, found.accounting.namespaces_read);
        }
    });
}

/// Tells a thread to end when this goes out of scope, in whatever way.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn the_account_counts_each_thread_once() {
    let scene = Scene::new();
    let before = scan(WAYS[0]).accounting;
    let program = "for _ in range(50):\n    threading.Thread(target=time.sleep, args=(1000,)).start()\n\
        print('ready', flush=True)";
    let _many = scene.python(program);
    let after = scan(WAYS[0]).accounting;
    let threads = i128::from(after.threads) - i128::from(before.threads);
    // Other tests start and end a few of their own at the same time.
    assert!((51 - 40..=51 + 40).contains(&threads), "{threads}");
    assert!(after.threads >= after.tasks + 50 && after.mounts > 0 && after.namespaces >= 2);
}

#[test]
fn a_scan_leaves_no_descriptor_and_nobody_elsewhere() {
    let _scene = Scene::new();
    let own = std::fs::read_link("/proc/thread-self/ns/mnt").unwrap();
    let mut scanner = Scanner::new(ScanOptions::default());
    scanner.scan().unwrap();
    assert_eq!(std::fs::read_link("/proc/thread-self/ns/mnt").unwrap(), own);
    let held = || {
        let links =
            std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok());
        links.filter(|link| link.to_string_lossy().starts_with("mnt:[")).count()
    };
    // Tests of the same binary may hold some for a moment, but none for good.
    assert!(eventually(|| held() == 0));
}

#[test]
fn the_host_tells_its_overflow_id() {
    let told = std::fs::read_to_string("/proc/sys/kernel/overflowuid").unwrap();
    assert_eq!(identities().overflow.map(|id| id.to_string()).as_deref(), Some(told.trim()));
}

/// Runs a scan as an ordinary user, in a process of its own, and returns what it said.
fn scan_as_another_user() -> String {
    let test = ["--exact", "accounting::part_of_another_test_that_runs_as_another_user", "--ignored", "--nocapture"];
    let output = Command::new("/proc/self/exe").args(test).uid(54_321).gid(54_321).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
#[ignore = "a part of whoever_may_not_look_claims_nothing"]
fn part_of_another_test_that_runs_as_another_user() {
    for way in WAYS {
        let found = scan(way);
        let coverage = &found.coverage;
        let claims = (coverage.complete(), coverage.covered(0), coverage.covered(54_321));
        println!("claims {claims:?} {:?}", coverage.gaps());
        assert!(found.accounting.namespaces_read >= 1 && found.accounting.mounts >= 1);
    }
}

#[test]
fn whoever_may_not_look_claims_nothing() {
    let _scene = Scene::new();
    let open = scan_as_another_user();
    mount_proc("hidepid=2");
    let hidden = scan_as_another_user();
    for (said, cause) in [(open, "TaskUnreadable"), (hidden, "ProcfsFiltered")] {
        let lines: Vec<_> = said.lines().filter(|line| line.contains("claims")).collect();
        assert_eq!(lines.len(), WAYS.len(), "{said}");
        assert!(lines.iter().all(|line| line.contains("(false, false, false)") && line.contains(cause)), "{said}");
    }
}
