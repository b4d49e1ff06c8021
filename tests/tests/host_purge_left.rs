//! What a purge condemned and could not remove: told once, listed, told to whoever purges again, and removed when that works.

use reclaim_tests::{ConfigFile, Host, OrFail as _, Reclaim, Root, Service, private_host, set_immutable};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// A template, and a root whose entries tell ids. A file in either cannot be removed.
fn plant(host: &Host) -> ConfigFile {
    let owned = format!("\n[[owned]]\npath = '{}/ws/{{id}}'\n", host.directory().display());
    let root = Root::of(host).text("match", r"^job-(?<id>[a-z0-9]+)$").text("remove", "tree");
    for file in ["ws/a/stays", "root/job-a/stays"] {
        set_immutable(&host.make_file(file, "text"), true);
    }
    ConfigFile::write(host, [root]).tables(&owned)
}

/// Lets what lies condemned below a directory be removed.
fn unlock(directory: &Path) {
    for batch in fs::read_dir(directory.join(".reclaim")).or_fail("list .reclaim").flatten() {
        for entry in fs::read_dir(batch.path()).or_fail("list a batch").flatten() {
            set_immutable(&entry.path().join("stays"), false);
        }
    }
}

fn stuck(reclaim: &Reclaim) -> Vec<String> {
    let (objects, _) = reclaim.objects(&["check"], &[0, 1]);
    let stuck = objects.into_iter().filter(|object| object["type"] == "stuck");
    let mut names: Vec<String> = stuck
        .inspect(|object| assert!(object["why"].as_str().is_some_and(|why| why.contains("EPERM")), "{object}"))
        .map(|object| object["name"].as_str().unwrap_or_default().to_owned())
        .collect();
    names.sort();
    names
}

fn verdicts(reclaim: &Reclaim) -> (Vec<String>, String) {
    let ended = reclaim.run(&["--json", "purge", "a"]);
    assert_eq!(ended.code(), 1, "{ended:?}");
    let told: Value = serde_json::from_str(ended.stdout.trim()).or_fail("a report");
    let targets = told["targets"].as_array().or_fail("targets").iter();
    (targets.map(|target| target["verdict"].as_str().unwrap_or_default().to_owned()).collect(), ended.stderr)
}

#[test]
fn it_is_told_once_and_listed_until_it_goes() {
    private_host(|host| {
        let config = plant(host);
        let reclaim = Reclaim::with(&config).evidence("scan");
        assert_eq!(verdicts(&reclaim).0, ["failed", "failed"]);
        assert_eq!(stuck(&reclaim), ["a", "job-a"], "at once");
        // Who purges again is told that it is still there, and the log is not told again.
        let (again, log) = verdicts(&reclaim);
        assert_eq!(again, ["failed", "failed"]);
        assert!(!log.contains("left behind"), "{log}");
        let ended = reclaim.run(&["sweep"]);
        assert_eq!(
            (ended.code(), ended.stderr.contains("/a") || ended.stderr.contains("job-a")),
            (0, false),
            "{ended:?}"
        );
        // Nor does a service that starts later.
        let mut service = Service::start(host, &config, &Reclaim::with(&config));
        service.wait_for_passes(1);
        assert_eq!(Reclaim::with(&config).run(&["sweep"]).code(), 0);
        let log = service.log();
        assert!(!log.contains("left behind") && !log.contains("job-a"), "{log}");
        drop(service.terminate());
        assert_eq!(stuck(&reclaim), ["a", "job-a"], "a purge and a sweep have forgotten nothing");
        unlock(&host.path("ws"));
        unlock(&host.root());
        assert_eq!(reclaim.run(&["sweep"]).code(), 0);
        assert!(stuck(&reclaim).is_empty(), "what has gone is not listed");
        assert_eq!(reclaim.run(&["purge", "a"]).code(), 0);
        assert!(!host.path("ws/.reclaim").exists() && host.condemned().is_empty());
    });
}

/// Where no root is configured, a sweep still goes on with what purges have condemned.
#[test]
fn a_sweep_needs_no_root_for_that() {
    private_host(|host| {
        let owned = format!("\n[[owned]]\npath = '{}/ws/{{id}}'\n", host.directory().display());
        let config = ConfigFile::write(host, []).tables(&owned);
        let reclaim = Reclaim::with(&config).evidence("scan");
        set_immutable(&host.make_file("ws/a/stays", "text"), true);
        assert_eq!(reclaim.run(&["purge", "a"]).code(), 1);
        unlock(&host.path("ws"));
        let ended = reclaim.run(&["sweep"]);
        assert_eq!((ended.code(), ended.stdout.as_str()), (0, ""), "{ended:?}");
        assert!(!host.path("ws/.reclaim").exists());
        assert_eq!(reclaim.run(&["sweep", "--root", "ws"]).code(), 2, "there is no such root");
    });
}

/// A purge of another id looks at what lies condemned as well, and forgets nothing that only passes list.
#[test]
fn a_purge_forgets_nothing_that_passes_told_of() {
    private_host(|host| {
        let config = plant(host);
        let reclaim = Reclaim::with(&config).evidence("scan");
        let itself = host.entry("job-itself");
        set_immutable(&itself, true);
        assert_eq!(reclaim.run(&["sweep"]).code(), 0);
        assert_eq!(stuck(&reclaim), ["job-a", "job-itself"]);
        assert_eq!(reclaim.run(&["purge", "other"]).code(), 0);
        assert_eq!(stuck(&reclaim), ["job-a", "job-itself"]);
        set_immutable(&itself, false);
        set_immutable(&host.path("ws/a/stays"), false);
        unlock(&host.root());
        assert_eq!(reclaim.run(&["sweep"]).code(), 0);
        assert!(stuck(&reclaim).is_empty());
    });
}

/// Another one of its name comes, and goes with the next purge; the one that lies condemned is told of all the same.
#[test]
fn one_that_is_left_is_told_beside_another_of_its_name() {
    private_host(|host| {
        let config = plant(host);
        let reclaim = Reclaim::with(&config).evidence("scan");
        assert_eq!(verdicts(&reclaim).0, ["failed", "failed"]);
        for directory in ["ws/a", "root/job-a"] {
            host.make_file(format!("{directory}/file"), "text");
        }
        let (mut told, _) = verdicts(&reclaim);
        told.sort();
        assert_eq!(told, ["failed", "failed", "removed", "removed"]);
        let ended = reclaim.run(&["purge", "a", "--dry-run"]);
        assert!(ended.code() == 0 && ended.stdout.contains("it lies in `.reclaim`"), "{ended:?}");
        unlock(&host.path("ws"));
        unlock(&host.root());
        assert_eq!(reclaim.run(&["purge", "a"]).code(), 0);
    });
}

/// What a purge that was killed had condemned has its name back, and is nothing that cannot be removed.
#[test]
fn what_was_given_back_where_no_pass_looks_is_not_listed() {
    private_host(|host| {
        let owned = format!("\n[[owned]]\npath = '{}/ws/{{id}}'\n", host.directory().display());
        let config = ConfigFile::write(host, []).tables(&owned);
        let reclaim = Reclaim::with(&config).evidence("scan");
        let file = host.make_file("ws/a/file", "text");
        set_immutable(&file, true);
        assert_eq!(reclaim.run(&["purge", "a"]).code(), 1);
        unlock_file(host);
        // As one that was killed before its decision leaves it.
        let batch = fs::read_dir(host.path("ws/.reclaim")).or_fail("list").flatten().next().or_fail("a batch").path();
        let mut undecided = batch.clone().into_os_string();
        undecided.push("-undecided");
        fs::rename(&batch, &undecided).or_fail("rename");
        let ended = reclaim.run(&["sweep"]);
        assert!(ended.code() == 0 && ended.stderr.contains("restored") && file.exists(), "{ended:?}");
        assert!(stuck(&reclaim).is_empty());
    });
}

/// A purge is told what goes, so claims have a say only in what lies condemned there, which passes have judged by them.
#[test]
fn claims_are_read_where_something_is_left_and_not_else() {
    private_host(|host| {
        let asked = host.path("asked");
        let claims = host.make_program("claims", &format!("#!/bin/sh\ntouch {}\nexit 1\n", asked.display()));
        let root = Root::of(host).text("match", r"^job-(?<id>[a-z0-9]+)$").text("remove", "tree");
        let root = root.raw("claims", &format!("{{ command = ['{}'] }}", claims.display()));
        let reclaim = Reclaim::with(&ConfigFile::write(host, [root])).evidence("scan");
        set_immutable(&host.make_file("root/job-a/stays", "text"), true);
        host.make_file("root/job-b/goes", "text");
        assert_eq!(reclaim.run(&["purge", "a"]).code(), 1);
        assert!(!asked.exists(), "nothing was left when it was purged");
        let ended = reclaim.run(&["purge", "b"]);
        assert!(asked.exists() && ended.stderr.contains("claims cannot be read"), "{ended:?}");
        let back = host.root().join("job-a/stays");
        assert!(ended.code() == 0 && back.exists() && !host.root().join("job-b").exists(), "{ended:?}");
        fs::remove_file(&asked).or_fail("forget that it was asked");
        set_immutable(&back, false);
        let ended = reclaim.run(&["purge", "a"]);
        assert!(ended.code() == 0 && !back.exists(), "{ended:?}");
        assert!(!asked.exists() && !ended.stderr.contains("claims"), "{ended:?}");
    });
}

fn unlock_file(host: &Host) {
    for batch in fs::read_dir(host.path("ws/.reclaim")).or_fail("list .reclaim").flatten() {
        set_immutable(&batch.path().join("a/file"), false);
    }
}
