//! Removal of all that belongs to an id: together, or not at all.

use nix::mount::{MsFlags, mount};
use reclaim_tests::{
    ConfigFile, Host, Mode, OrFail as _, PurgeLine, Reclaim, Request, Root, Subject, cases, private_host, run_to_end,
    wait_until,
};
use serde_json::json;
use std::fs;
use std::os::unix::fs::{chown, symlink};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

cases! {
    everything_of_an_id_goes_and_nothing_else: service, scan;
    one_pinned_target_keeps_all: service, scan;
    what_is_denied_after_it_was_condemned_gives_all_back: service;
    a_dry_run_changes_nothing: service, scan;
    what_is_absent_is_a_success: service, scan;
    every_fence_refuses: scan;
    waiting_for_a_pin: service, scan;
    a_busy_root: scan;
    a_busy_root_without_a_target_hinders_nobody: service, scan;
}

/// Templates in two directories, a file beside one of them, and a root whose names tell ids.
fn config(host: &Host) -> ConfigFile {
    for directory in ["ws", "ws/_cache", "run"] {
        host.make_dir(directory);
    }
    ConfigFile::write(host, [Root::of(host).text("match", r"^job-(?<id>[a-z0-9]+)-(?<pid>\d+)$").text("min_age", "1h")])
        .tables(&format!(
            "\n[[owned]]\npath = '{0}/ws/{{id}}'\n\n[[owned]]\npath = '{0}/ws/_cache/{{id}}'\n\n[[owned]]\npath = '{0}/run/{{id}}.sock.lock'\n",
            host.directory().display()
        ))
}

/// All that belongs to an id, made.
fn make(host: &Host, id: &str) -> Vec<PathBuf> {
    host.make_file(format!("ws/{id}/deep/er/file"), "text");
    host.make_file(format!("ws/_cache/{id}/file"), "text");
    vec![
        host.path(format!("ws/{id}")),
        host.path(format!("ws/_cache/{id}")),
        host.make_file(format!("run/{id}.sock.lock"), "1"),
        // Empty, as the root's rule wants it; the process that it tells is alive, which does not matter here.
        host.entry(format!("job-{id}-{}", std::process::id())),
    ]
}

fn all_there(paths: &[PathBuf]) -> bool {
    paths.iter().all(|path| path.symlink_metadata().is_ok())
}

fn none_there(paths: &[PathBuf]) -> bool {
    !paths.iter().any(|path| path.symlink_metadata().is_ok())
}

/// Names that lie in some directory beside what belongs there.
fn no_store_left(host: &Host) {
    for directory in ["ws", "ws/_cache", "run", "root"] {
        assert!(!host.path(directory).join(".reclaim").exists(), "{directory} still has a .reclaim");
    }
}

fn purge(reclaim: &Reclaim, id: &str) -> PurgeLine {
    reclaim.purge(id, &[], 0)
}

fn everything_of_an_id_goes_and_nothing_else(host: &Host, mode: Mode) {
    let subject = Subject::start_with(host, mode, &config(host));
    let (ours, siblings) = (make(host, "abc"), [make(host, "abcd"), make(host, "ab")].concat());
    let line = purge(subject.reclaim(), "abc");
    assert_eq!((line.removed, line.refused, line.targets.len()), (4, 0, 4), "{line:?}");
    assert!(ours.iter().all(|path| line.target(path).verdict == "removed" && !line.target(path).weaker_proof));
    assert!(none_there(&ours) && all_there(&siblings), "{line:?}");
    assert_eq!(fs::read_to_string(host.path("ws/abcd/deep/er/file")).or_fail("read"), "text");
    no_store_left(host);
}

fn one_pinned_target_keeps_all(host: &Host, mode: Mode) {
    let subject = Subject::start_with(host, mode, &config(host));
    let ours = make(host, "abc");
    for (pinned, source) in
        [(&ours[1], ours[1].clone()), (&ours[0], ours[0].join("deep/er")), (&ours[3], ours[3].clone())]
    {
        let (mut sandbox, point) = host.sandbox_with(&source);
        let line = subject.reclaim().purge("abc", &[], 3);
        let target = line.target(pinned);
        assert_eq!((target.verdict.as_str(), target.reason.as_deref()), ("refused", Some("pinned")), "{line:?}");
        let pin = target.pins.iter().find(|pin| pin.namespace == Some(sandbox.namespace())).or_fail("who holds it");
        assert_eq!(pin.mount_point.as_deref(), point.to_str());
        assert!(pin.tasks.iter().any(|task| task.pid == sandbox.pid()), "{pin:?}");
        for other in ours.iter().filter(|path| *path != pinned) {
            assert_eq!(line.target(other).verdict, "kept", "{line:?}");
        }
        assert_eq!(line.refused, 1);
        assert!(all_there(&ours));
        sandbox.still_works(&point, &source);
        no_store_left(host);
        let table = subject.reclaim().run(&["purge", "abc"]);
        assert!(
            table.code() == 3 && table.stdout.contains(&format!("{} reclaim-test-he", sandbox.pid())),
            "the holder is told: {table:?}"
        );
        assert!(table.stdout.contains("nothing was removed"), "{table:?}");
        sandbox.kill();
    }
    wait_until("the last sandbox to be gone", Duration::from_secs(60), || {
        (subject.reclaim().run(&["purge", "abc"]).code() == 0).then_some(())
    });
    assert!(none_there(&ours));
}

/// A descriptor is no mount: who has a target open could still bind it, and so keeps all.
fn what_is_denied_after_it_was_condemned_gives_all_back(host: &Host, mode: Mode) {
    let subject = Subject::start_with(host, mode, &config(host));
    let ours = make(host, "abc");
    let mut holder = host.sandbox();
    holder.ask(&Request::Hold(ours[1].clone().into()));
    let line = subject.reclaim().purge("abc", &[], 3);
    assert_eq!(line.target(&ours[1]).reason.as_deref(), Some("pinned"), "{line:?}");
    let detail = line.target(&ours[1]).detail.clone().unwrap_or_default();
    assert!(detail.contains(&format!("process {}", holder.pid())), "{line:?}");
    assert!(all_there(&ours));
    no_store_left(host);
    holder.ask(&Request::Release);
    purge(subject.reclaim(), "abc");
    assert!(none_there(&ours));
}

fn a_dry_run_changes_nothing(host: &Host, mode: Mode) {
    let subject = Subject::start_with(host, mode, &config(host));
    let ours = make(host, "abc");
    let line = subject.reclaim().purge("abc", &["--dry-run"], 0);
    assert!(ours.iter().all(|path| line.target(path).verdict == "would-remove"), "{line:?}");
    assert_eq!((line.removed, line.refused), (0, 0));
    let (sandbox, _) = host.sandbox_with(&ours[0]);
    assert_eq!(subject.reclaim().purge("abc", &["--dry-run"], 3).target(&ours[0]).verdict, "refused");
    drop(sandbox);
    assert!(all_there(&ours));
    no_store_left(host);
}

fn what_is_absent_is_a_success(host: &Host, mode: Mode) {
    let config = config(host);
    let subject = Subject::start_with(host, mode, &config);
    let line = subject.reclaim().purge("nobody", &[], 0);
    assert_eq!((line.removed, line.refused, line.targets.len()), (0, 0, 3), "no entry has the id: {line:?}");
    assert!(line.targets.iter().all(|target| target.verdict == "absent"), "{line:?}");
    // A create that failed half-way: some of it is there, and one of the directories is not.
    let half = host.make_file("ws/half/file", "text");
    fs::remove_dir(host.path("run")).or_fail("remove a directory of templates");
    let line = purge(subject.reclaim(), "half");
    assert_eq!((line.removed, line.target(&host.path("ws/half")).verdict.as_str()), (1, "removed"), "{line:?}");
    assert_eq!(line.target(&host.path("run/half.sock.lock")).verdict, "absent");
    assert!(!half.exists());
    assert!(!host.path("run").exists(), "no directory is made for a purge");
    // And once more: it is a success that nothing is left.
    assert!(subject.reclaim().purge("half", &[], 0).targets.iter().all(|target| target.verdict == "absent"));
}

fn every_fence_refuses(host: &Host, mode: Mode) {
    let config = ConfigFile::write(host, [Root::of(host).text("match", "^job-(?<id>[a-z0-9]+)$").text("mode", "0755")])
        .tables(&format!(
            "[[owned]]\npath = '{0}/ws/{{id}}'\nowner = '1000'\n[[owned]]\npath = '{0}/plain/{{id}}'\nkind = 'dir'\n[[owned]]\npath = '{0}/any/{{id}}'\n",
            host.directory().display()
        ));
    for directory in ["ws", "plain", "any", "elsewhere"] {
        host.make_dir(directory);
    }
    let subject = Subject::start_with(host, mode, &config);
    let precious = host.make_file("elsewhere/precious", "text");
    let refused = |id: &str, path: &Path, reason: &str, code: i32, other: &Path| {
        let line = subject.reclaim().purge(id, &[], code);
        let target = line.target(path);
        assert_eq!((target.verdict.as_str(), target.reason.as_deref()), ("refused", Some(reason)), "{line:?}");
        assert_eq!((line.target(other).verdict.as_str(), line.refused), ("kept", 1), "{line:?}");
        assert!(path.symlink_metadata().is_ok() && other.symlink_metadata().is_ok(), "{line:?}");
    };
    let plain = |id: &str| host.make_dir(format!("plain/{id}"));
    let of_user = |id: &str| {
        let path = host.make_dir(format!("ws/{id}"));
        chown(&path, Some(1000), Some(1000)).or_fail("chown");
        path
    };
    refused("strange", &host.make_dir("ws/strange"), "owner", 1, &plain("strange"));
    refused("file", &host.make_file("plain/file", ""), "kind", 1, &of_user("file"));
    for (id, target) in [("link", "elsewhere"), ("absolute", "/etc"), ("gone", "nowhere")] {
        let link = host.path("any").join(id);
        symlink(if target == "elsewhere" { host.path(target) } else { target.into() }, &link).or_fail("make a link");
        refused(id, &link, "kind", 1, &of_user(id));
    }
    let fifo = host.path("any/fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).or_fail("make a fifo");
    refused("fifo", &fifo, "kind", 1, &of_user("fifo"));
    let mut holder = reclaim_tests::Actor::start();
    holder.ask(&Request::Lock(plain("leased").into()));
    refused("leased", &host.path("plain/leased"), "leased", 3, &of_user("leased"));
    holder.ask(&Request::Release);
    // The rules of a root stay those of its entries, but for what guesses at their age.
    host.make_file("root/job-full/file", "text");
    refused("full", &host.root().join("job-full"), "not-empty", 1, &plain("full"));
    reclaim_tests::set_mode(&host.entry("job-mode"), 0o700);
    refused("mode", &host.root().join("job-mode"), "mode", 1, &plain("mode"));
    // Something is mounted on it, or inside of it, where reclaim itself is.
    let mounted = host.make_tmpfs("plain/mounted");
    host.make_file("plain/mounted/file", "text");
    refused("mounted", &mounted, "pinned", 3, &of_user("mounted"));
    host.unmount(&mounted);
    let (outer, inner) = (plain("inside"), host.make_dir("plain/inside/point"));
    host.bind(&host.path("elsewhere"), &inner);
    refused("inside", &outer, "pinned", 3, &of_user("inside"));
    host.unmount(&inner);
    assert_eq!(fs::read_to_string(precious).or_fail("read"), "text");
    assert!(purge(subject.reclaim(), "inside").removed == 2);
}

#[test]
fn what_is_no_id_is_bad_usage_and_touches_nothing() {
    private_host(|host| {
        let config = config(host);
        let (reclaim, ours) = (Reclaim::with(&config).evidence("scan"), make(host, "abc"));
        let long = "x".repeat(250);
        let cases: [&[&str]; 15] = [
            &["purge"],
            &["purge", ""],
            &["purge", "."],
            &["purge", ".."],
            &["purge", "abc/deep"],
            &["purge", "../ws/abc"],
            &["purge", "/etc"],
            &["purge", "-x"],
            &["purge", "--", "-x"],
            &["purge", "a\nb"],
            // Shared: a directory of templates, and reclaim's own.
            &["purge", "_cache"],
            &["purge", ".reclaim"],
            // Together with another suffix it is longer than any name.
            &["purge", &long],
            // One bad id, and the good one is not purged either.
            &["purge", "abc", ".."],
            &["purge", "abc", "_cache"],
        ];
        for arguments in cases {
            let finished = reclaim.run(arguments);
            assert_eq!(finished.code(), 2, "{arguments:?}: {finished:?}");
            assert!(!finished.stderr.is_empty() && !finished.stderr.contains("panicked"), "{finished:?}");
            assert!(all_there(&ours) && host.path("ws/_cache").is_dir(), "{arguments:?}");
        }
        assert_eq!(reclaim.run(&["purge", "abc", "--wait", "1s", "--dry-run"]).code(), 2);
        let none = ConfigFile::write(host, [Root::of(host)]);
        let finished = Reclaim::with(&none).run(&["purge", "abc"]);
        assert!(finished.code() == 2 && finished.stderr.contains("[[owned]]"), "{finished:?}");
    });
}

/// A root may lie where a template has its ids: the id that names it is none.
#[test]
fn no_id_names_a_root_or_what_holds_one() {
    private_host(|host| {
        let entry = host.make_dir("srv/ws/root/stale");
        let config = ConfigFile::write(host, [Root::at("deep", &host.path("srv/ws/root"))])
            .tables(&format!("[[owned]]\npath = '{}/srv/{{id}}'\n", host.directory().display()));
        let reclaim = Reclaim::with(&config).evidence("scan");
        let finished = reclaim.run(&["purge", "ws"]);
        assert!(finished.code() == 2 && finished.stderr.contains("shared"), "{finished:?}");
        assert!(entry.is_dir());
        host.make_dir("srv/other");
        assert_eq!(purge(&reclaim, "other").removed, 1);
    });
}

/// An id may hold what another template or a root adds to one: what it would name is another id's.
#[test]
fn no_id_names_what_another_id_has_beside_it() {
    private_host(|host| {
        let root = Root::of(host).text("match", "^job-(?<id>[a-z]+)$").text("remove", "tree");
        let templates = ["ws/{id}", "ws/{id}-data", "ws/{id}.lock", "root/{id}", "root/{id}.tmp"];
        let tables = templates.map(|path| format!("[[owned]]\npath = '{}/{path}'\n", host.directory().display()));
        let config = ConfigFile::write(host, [root]).tables(&tables.concat());
        let reclaim = Reclaim::with(&config).evidence("scan");
        let ours = ["ws/a", "ws/a-data", "ws/a.lock", "root/job-a", "root/a.tmp"].map(|path| host.make_dir(path));
        for id in ["a-data", "a.lock", "job-a", "a.tmp"] {
            let finished = reclaim.run(&["purge", id]);
            assert!(finished.code() == 2 && finished.stderr.contains("to be of the id `a`"), "{id}: {finished:?}");
            assert!(all_there(&ours), "{id}");
        }
        let other = host.make_dir("ws/b");
        assert_eq!(purge(&reclaim, "a").removed, 5);
        assert!(none_there(&ours) && other.is_dir());
    });
}

/// A directory that nothing can be condemned in ends it, and the others are left as they were.
#[test]
fn a_directory_that_cannot_be_used_leaves_nothing_in_the_others() {
    private_host(|host| {
        let config = config(host);
        let read_only = host.make_tmpfs("run");
        let ours = make(host, "abc");
        let flags = MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        mount(None::<&str>, &read_only, None::<&str>, flags, None::<&str>).or_fail("make it read-only");
        let finished = Reclaim::with(&config).evidence("scan").run(&["purge", "abc"]);
        assert!(finished.code() == 1 && finished.stderr.contains("mkdirat"), "{finished:?}");
        assert!(all_there(&ours));
        no_store_left(host);
    });
}

/// A directory of templates that became a link leads nowhere.
#[test]
fn a_directory_that_became_a_link_is_not_followed() {
    private_host(|host| {
        let config = config(host);
        let precious = host.make_file("elsewhere/abc/precious", "text");
        fs::remove_dir(host.path("ws/_cache")).or_fail("remove it");
        symlink(host.path("elsewhere"), host.path("ws/_cache")).or_fail("make a link");
        let beside = host.make_dir("ws/abc");
        let finished = Reclaim::with(&config).evidence("scan").run(&["purge", "abc"]);
        assert!(finished.code() == 2 && finished.stderr.contains("link"), "{finished:?}");
        assert!(beside.is_dir() && precious.is_file());
    });
}

fn waiting_for_a_pin(host: &Host, mode: Mode) {
    let subject = Subject::start_with(host, mode, &config(host));
    let ours = make(host, "abc");
    let (sandbox, _) = host.sandbox_with(&ours[0]);
    let asked = Instant::now();
    subject.reclaim().purge("abc", &["--wait", "1500ms"], 3);
    assert!(asked.elapsed() >= Duration::from_millis(1_500), "it waits");
    assert!(all_there(&ours));
    let ending = std::thread::spawn(move || {
        sleep(Duration::from_secs(2));
        sandbox.kill();
    });
    let asked = Instant::now();
    let line = subject.reclaim().purge("abc", &["--wait", "50s"], 0);
    assert!(asked.elapsed() < Duration::from_secs(40), "it does not wait longer than it has to");
    assert!(ending.join().is_ok(), "the sandbox was ended");
    assert_eq!(line.removed, 4, "{line:?}");
    assert!(none_there(&ours));
}

fn a_busy_root(host: &Host, mode: Mode) {
    let subject = Subject::start_with(host, mode, &config(host));
    let ours = make(host, "abc");
    let store = host.make_dir("ws/_cache/.reclaim");
    reclaim_tests::set_mode(&store, 0o700);
    let mut other = reclaim_tests::Actor::start();
    other.ask(&Request::Lock(store.into()));
    let finished = subject.reclaim().run(&["purge", "abc"]);
    assert_eq!(finished.code(), 5, "{finished:?}");
    assert!(finished.stderr.contains(&other.pid().to_string()), "who holds it: {finished:?}");
    assert!(all_there(&ours));
    let asked = Instant::now();
    assert_eq!(subject.reclaim().run(&["purge", "abc", "--wait", "1s"]).code(), 5);
    assert!(asked.elapsed() >= Duration::from_secs(1), "it waits");
    let ending = std::thread::spawn(move || {
        sleep(Duration::from_millis(1_500));
        other.ask(&Request::Release);
        other
    });
    let line = subject.reclaim().purge("abc", &["--wait", "50s"], 0);
    assert!(ending.join().is_ok() && line.removed == 4, "{line:?}");
    assert!(none_there(&ours));
}

fn a_busy_root_without_a_target_hinders_nobody(host: &Host, mode: Mode) {
    let subject = Subject::start_with(host, mode, &config(host));
    let mut other = reclaim_tests::Actor::start();
    let mut stores = Vec::new();
    for directory in ["root", "ws/_cache"] {
        let store = host.make_dir(directory).join(".reclaim");
        fs::create_dir(&store).or_fail("make a store");
        reclaim_tests::set_mode(&store, 0o700);
        other.ask(&Request::Lock(store.clone().into()));
        stores.push(store);
    }
    let of_another = host.make_dir("ws/_cache/other");
    let file = host.make_file("ws/abc/deep/file", "text");
    let line = purge(subject.reclaim(), "abc");
    assert_eq!((line.removed, line.targets.len()), (1, 3), "{line:?}");
    assert_eq!(line.target(&host.path("ws/_cache/abc")).verdict, "absent", "{line:?}");
    assert!(!file.exists() && of_another.is_dir());
    assert_eq!(subject.reclaim().run(&["purge", "other"]).code(), 5);
    // What the other one has condemned is still there, and may come back.
    for (store, name) in stores.iter().zip(["job-abc-1", "abc"]) {
        let file = host.make_file("ws/abc/deep/file", "text");
        let lies = store.join("batch").join(name);
        fs::create_dir_all(&lies).or_fail("make what is condemned");
        let finished = subject.reclaim().run(&["purge", "abc"]);
        assert_eq!(finished.code(), 5, "{name}: {finished:?}");
        assert!(file.exists() && lies.is_dir());
        fs::remove_dir(&lies).or_fail("remove it");
    }
}

#[test]
fn only_root_purges_through_the_socket() {
    private_host(|host| {
        let config = config(host);
        let mut subject = Subject::start_with(host, Mode::Service, &config);
        let ours = make(host, "abc");
        reclaim_tests::set_mode(config.socket(), 0o666);
        let mut user = host.sandbox();
        user.ask(&Request::BecomeUser(1000));
        let request = json!({"op": "purge", "id": "abc"}).to_string();
        let answer = user.ask(&Request::AskSocket(config.socket().into(), request));
        assert!(answer.contains("only root"), "{answer}");
        assert!(all_there(&ours));
        let service = subject.service().or_fail("a service");
        let mut connection = service.connect();
        for bad in ["..", "", "a/b", "_cache"] {
            let answer = connection.ask(&json!({"op": "purge", "id": bad}));
            let error = answer.get("error").or_else(|| answer.pointer("/results/0/error"));
            assert!(error.is_some(), "{bad}: {answer}");
        }
        let answer = connection.ask(&json!({"op": "purge", "id": "abc", "dry_run": true}));
        assert_eq!(answer.pointer("/results/0/type"), Some(&json!("purge")), "{answer}");
        assert!(all_there(&ours));
        wait_until("the service to purge", Duration::from_secs(40), || {
            let answer = connection.ask(&json!({"op": "purge", "id": "abc"}));
            (answer.pointer("/results/0/removed") == Some(&json!(4))).then_some(())
        });
        assert!(none_there(&ours));
    });
}

/// Where a process has to ask for more descriptors, a dry run asks as the purge does.
#[test]
fn a_dry_run_of_many_targets_says_what_the_purge_does() {
    private_host(|host| {
        let reclaim = Reclaim::with(&config(host));
        let entries: Vec<_> = (0..400).map(|number| host.entry(format!("job-abc-{number}"))).collect();
        let limited = ["prlimit", "--nofile=256:16384"];
        for (arguments, verdict) in
            [(&["--json", "purge", "abc", "--dry-run"][..], "would-remove"), (&["--json", "purge", "abc"], "removed")]
        {
            let finished = run_to_end(&mut reclaim.command_through(&limited, arguments), Duration::from_secs(60));
            assert_eq!(finished.code(), 0, "{arguments:?}: {finished:?}");
            assert!(finished.stdout.matches(&format!("\"{verdict}\"")).count() >= entries.len(), "{finished:?}");
        }
        assert!(none_there(&entries));
    });
}
