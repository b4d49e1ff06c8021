//! A crash at each named step of a pass, and what the next pass makes of what is left.

use nix::unistd::Pid;
use reclaim_tests::{
    Actor, ConfigFile, Host, OrFail as _, Reclaim, Root, is_stopped, private_host, set_mode, wait_until,
};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

const STALE: usize = 300;

/// Runs a pass that ends itself at a step, and fails when it does not get there.
fn crash_at(reclaim: &Reclaim, step: &str) {
    let finished = reclaim.clone().variable("RECLAIM_TEST_CRASH", step).run(&["--json", "sweep"]);
    assert!(!finished.status.success(), "the pass never came to {step}: {finished:?}");
    let clean_end = finished.stdout.contains("\"type\":\"pass\"");
    assert!(!clean_end, "the pass came to its end, and did not crash at {step}: {finished:?}");
}

/// Where an entry lies condemned.
fn condemned_path(host: &Host, name: &str) -> PathBuf {
    let own = host.root().join(".reclaim");
    let batches = fs::read_dir(&own).or_fail("list .reclaim");
    let found = batches.flatten().map(|batch| batch.path().join(OsStr::from_bytes(name.as_bytes())));
    let mut found = found.filter(|path| path.symlink_metadata().is_ok());
    found.next().or_fail(format_args!("{name} among what is condemned: {:?}", host.condemned().len()))
}

/// Names of three entries that lie condemned: which of them a pass comes to first is the file system's choice.
fn condemned_names(host: &Host) -> [String; 3] {
    let stale = host.condemned().into_iter().filter_map(|name| String::from_utf8(name).ok());
    let names: Vec<String> = stale.filter(|name| name.starts_with("stale-")).take(3).collect();
    <[String; 3]>::try_from(names).ok().or_fail("three entries that lie condemned")
}

fn crashes_at(host: &Host, evidence: &'static str, step: &str) {
    let in_a_tree = step == "mid-tree";
    let rules = match in_a_tree {
        true => Root::of(host).text("remove", "tree").text("match", "^(live|stale)-"),
        false => Root::of(host),
    };
    let config = ConfigFile::write(host, [rules]);
    let reclaim = Reclaim::with(&config).evidence(evidence);
    let mut live: Vec<(Actor, PathBuf, PathBuf)> = host
        .entries("live-", 6)
        .into_iter()
        .map(|entry| {
            let (sandbox, point) = host.sandbox_with(&entry);
            (sandbox, point, entry)
        })
        .collect();
    let full = host.make_file("root/full/file", "text");
    for entry in host.entries("stale-", STALE) {
        if in_a_tree {
            fs::create_dir_all(entry.join("deep/er")).or_fail("make a tree");
        }
    }
    let mut expected = live.len() + 1;
    if ["after-lock", "mid-restore"].contains(&step) {
        // Something to restore: an entry that a descriptor from before led a sandbox to, after it was condemned.
        crash_at(&reclaim, "after-condemn");
        for name in condemned_names(host) {
            let (sandbox, point) = host.sandbox_with(&condemned_path(host, &name));
            live.push((sandbox, point, host.root().join(name)));
        }
        expected += 3;
    }
    crash_at(&reclaim, step);
    wait_until("everything stale to go", Duration::from_secs(40), || {
        reclaim.sweep();
        (host.names().len() == expected && host.condemned().is_empty()).then_some(())
    });
    for (sandbox, point, entry) in &mut live {
        assert!(entry.is_dir(), "{} is not under its own name", entry.display());
        sandbox.still_works(&*point, &*entry);
    }
    assert_eq!(fs::read_to_string(full).or_fail("read what is not empty"), "text");
    drop(live);
    wait_until("the rest to go", Duration::from_secs(40), || {
        reclaim.sweep();
        (host.names() == [b"full"]).then_some(())
    });
}

macro_rules! steps {
    ($($test:ident: $evidence:literal, $step:literal;)+) => {
        $(#[test]
        fn $test() {
            private_host(|host| crashes_at(host, $evidence, $step));
        })+
    };
}

steps! {
    after_lock: "scan", "after-lock";
    mid_tree: "scan", "mid-tree";
    after_lock_auto: "auto", "after-lock";
    mid_tree_auto: "auto", "mid-tree";
    after_condemn_first: "scan", "after-condemn-first";
    after_condemn: "scan", "after-condemn";
    after_settle: "scan", "after-settle";
    after_confirm: "scan", "after-confirm";
    mid_restore: "scan", "mid-restore";
    mid_remove: "scan", "mid-remove";
    after_remove: "scan", "after-remove";
    after_condemn_first_auto: "auto", "after-condemn-first";
    after_condemn_auto: "auto", "after-condemn";
    after_settle_auto: "auto", "after-settle";
    after_confirm_auto: "auto", "after-confirm";
    mid_restore_auto: "auto", "mid-restore";
    mid_remove_auto: "auto", "mid-remove";
    after_remove_auto: "auto", "after-remove";
}

#[test]
fn a_name_that_was_taken_meanwhile_is_not_overwritten() {
    private_host(|host| {
        let config = ConfigFile::write(host, [Root::of(host)]);
        let reclaim = Reclaim::with(&config).evidence("scan");
        host.entries("stale-", STALE);
        crash_at(&reclaim, "after-condemn");
        let [free, taken, empty] = condemned_names(host);
        let (mut restored, restored_point) = host.sandbox_with(&condemned_path(host, &free));
        let (mut stays, stays_point) = host.sandbox_with(&condemned_path(host, &taken));
        let theirs = [&taken, &empty].map(|name| host.make_file(format!("root/{name}/theirs"), "text"));

        wait_until("a pass that removes the rest", Duration::from_secs(40), || {
            reclaim.sweep();
            (host.condemned() == [taken.as_bytes()]).then_some(())
        });
        let passes = reclaim.sweep();
        assert_eq!(passes[0].condemned, 1, "what stays condemned is told: {passes:?}");
        restored.still_works(&restored_point, host.root().join(&free));
        stays.still_works(&stays_point, condemned_path(host, &taken));
        for file in &theirs {
            assert_eq!(fs::read_to_string(file).or_fail("read what took the name"), "text");
        }

        // The name is given back once it is free.
        fs::remove_dir_all(host.root().join(&taken)).or_fail("free the name");
        wait_until("the name to be given back", Duration::from_secs(40), || {
            reclaim.sweep();
            host.condemned().is_empty().then_some(())
        });
        stays.still_works(&stays_point, host.root().join(&taken));
        drop((restored, stays));
        wait_until("the rest to go", Duration::from_secs(40), || {
            reclaim.sweep();
            (host.names() == [empty.as_bytes()]).then_some(())
        });
    });
}

#[test]
fn a_store_that_is_taken_away_as_it_is_opened_is_made_again() {
    use nix::sys::signal::{Signal, kill};
    private_host(|host| {
        let config = ConfigFile::write(host, [Root::of(host)]);
        let reclaim = Reclaim::with(&config).evidence("scan");
        let stale = host.entry("stale");
        let store = host.entry(".reclaim");
        set_mode(&store, 0o700);
        let stopping = reclaim.clone().variable("RECLAIM_TEST_STOP", "store-opened");
        let mut command = stopping.command(&["--json", "sweep"]);
        let pass = command.stdout(Stdio::piped()).spawn().or_fail("start a pass");
        let pid = Pid::from_raw(i32::try_from(pass.id()).or_fail("a pid"));
        wait_until("the pass to stop", Duration::from_secs(40), || is_stopped(pid).then_some(()));
        // As another reclaimer does that has come to its end.
        fs::remove_dir(&store).or_fail("take the store away");
        let goes_on = || kill(pid, Signal::SIGCONT);
        // It stops each time that it opens a store.
        let output = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| pass.wait_with_output().or_fail("wait for the pass"));
            while !waiting.is_finished() {
                if is_stopped(pid) {
                    goes_on().or_fail("let it go on");
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            waiting.join().map_err(|_| "panicked").or_fail("wait for the pass")
        });
        assert!(!stale.exists(), "it worked in a store that leads nowhere: {output:?}");
        assert!(!store.exists(), "nothing is left of the store: {output:?}");
    });
}

#[test]
fn the_switch_does_nothing_outside_of_tests() {
    private_host(|host| {
        let config = ConfigFile::write(host, [Root::of(host)]);
        let reclaim = Reclaim::with(&config).evidence("scan");
        let stale = host.entry("stale");
        let mut command = reclaim.command(&["--json", "sweep"]);
        command.env_remove("RECLAIM_TEST").env("RECLAIM_TEST_CRASH", "after-condemn");
        let finished = reclaim_tests::run_to_end(&mut command, Duration::from_secs(60));
        assert!([0, 4].contains(&finished.code()), "{finished:?}");
        assert!(stale.is_dir() || host.condemned().is_empty());
    });
}
