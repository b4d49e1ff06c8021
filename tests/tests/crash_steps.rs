//! A crash at each named step of a pass, and what the next pass makes of what is left.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use reclaim_tests::{
    Actor, ConfigFile, Host, OrFail as _, Pass, Reclaim, Root, is_stopped, private_host, set_mode, wait_until,
};
use std::fs;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread::available_parallelism;
use std::time::Duration;

/// More than the pass removes by itself: a second thread takes part.
const STALE: usize = 600;

/// Where entries are condemned to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Store,
    /// The root itself, for want of room: under long names.
    Makeshift,
}

/// Runs a pass that ends itself at a step, and fails when it does not get there. Namespaces that are just going may hold
/// everything back in one pass.
fn crash_at(reclaim: &Reclaim, step: &str) {
    let dying = reclaim.clone().variable("RECLAIM_TEST_CRASH", step);
    wait_until(&format!("a pass to come to {step}"), Duration::from_secs(40), || {
        let finished = dying.run(&["--json", "sweep"]);
        assert!(!finished.status.success(), "the pass never came to {step}: {finished:?}");
        let clean_end = finished.stdout.contains("\"type\":\"pass\"");
        let held_back = clean_end && finished.status.code() == Some(4);
        assert!(held_back || !clean_end, "the pass came to its end, and did not crash at {step}: {finished:?}");
        (!held_back).then_some(())
    });
}

/// What lies condemned, by the names that the entries had, and where.
fn condemned_entries(host: &Host, place: Place) -> Vec<(String, PathBuf)> {
    let children = |path: &Path| fs::read_dir(path).or_fail("list what is condemned").flatten().collect::<Vec<_>>();
    let named = |entry: &fs::DirEntry| entry.file_name().into_string().ok();
    match place {
        Place::Store => {
            let batches = children(&host.root().join(".reclaim")).into_iter();
            let entries = batches.flat_map(|batch| children(&batch.path()));
            entries.filter_map(|entry| Some((named(&entry)?, entry.path()))).collect()
        }
        Place::Makeshift => {
            // `.reclaim-BATCH.NAME`
            let entries = children(&host.root()).into_iter();
            let own = |entry: &fs::DirEntry| {
                let stored = named(entry)?;
                Some(stored.strip_prefix(".reclaim-")?.split_once('.')?.1.to_owned())
            };
            entries.filter_map(|entry| Some((own(&entry)?, entry.path()))).collect()
        }
    }
}

/// Where an entry lies condemned.
fn condemned_path(host: &Host, name: &str) -> PathBuf {
    let mut condemned = condemned_entries(host, Place::Store).into_iter();
    let found = condemned.find(|(own, _)| own == name);
    found.or_fail(format_args!("{name} among what is condemned: {:?}", host.condemned().len())).1
}

/// Three entries that lie condemned: which of them a pass comes to first is the file system's choice.
fn three_condemned(host: &Host, place: Place) -> [(String, PathBuf); 3] {
    let stale = condemned_entries(host, place).into_iter().filter(|(name, _)| name.starts_with("stale-"));
    let three: Vec<(String, PathBuf)> = stale.take(3).collect();
    <[(String, PathBuf); 3]>::try_from(three).ok().or_fail("three entries that lie condemned")
}

fn condemned_names(host: &Host) -> [String; 3] {
    three_condemned(host, Place::Store).map(|(name, _)| name)
}

/// Makes stale entries: as many as a test takes, or as there is room for.
fn make_stale(host: &Host, place: Place) -> Vec<PathBuf> {
    match place {
        Place::Store => host.entries("stale-", STALE),
        Place::Makeshift => {
            let paths = (0..).map(|index| host.root().join(format!("stale-{index}")));
            let made: Vec<PathBuf> = paths.take_while(|path| fs::create_dir(path).is_ok()).collect();
            assert!((20..STALE).contains(&made.len()), "{} entries fill the file system", made.len());
            made
        }
    }
}

/// Entries that sandboxes rely on, something that is not empty, and stale ones.
struct Scene {
    live: Vec<(Actor, PathBuf, PathBuf)>,
    full: PathBuf,
}

impl Scene {
    fn set(host: &Host, place: Place, in_a_tree: bool) -> Self {
        if place == Place::Makeshift {
            host.mount_small(&host.root());
        }
        let live = host.entries("live-", 6).into_iter().map(|entry| {
            let (sandbox, point) = host.sandbox_with(&entry);
            (sandbox, point, entry)
        });
        let live = live.collect();
        let full = host.make_file("root/full/file", "text");
        for entry in make_stale(host, place) {
            if in_a_tree {
                fs::create_dir_all(entry.join("deep/er")).or_fail("make a tree");
            }
        }
        Self { live, full }
    }

    /// Later passes finish what the one that crashed began, and bring back what something relies on.
    fn ends_well(mut self, host: &Host, reclaim: &Reclaim) {
        let expected = self.live.len() + 1;
        wait_until("everything stale to go", Duration::from_secs(40), || {
            reclaim.sweep();
            (host.names().len() == expected && host.condemned().is_empty()).then_some(())
        });
        for (sandbox, point, entry) in &mut self.live {
            assert!(entry.is_dir(), "{} is not under its own name", entry.display());
            sandbox.still_works(&*point, &*entry);
        }
        assert_eq!(fs::read_to_string(self.full).or_fail("read what is not empty"), "text");
        drop(self.live);
        wait_until("the rest to go", Duration::from_secs(40), || {
            reclaim.sweep();
            (host.names() == [b"full"]).then_some(())
        });
        assert!(!host.root().join(".reclaim").exists(), "a place to condemn to is left with nothing in it");
    }
}

fn crashes_at(host: &Host, evidence: &'static str, step: &str, place: Place) {
    let in_a_tree = step == "mid-tree";
    let mut scene = Scene::set(host, place, in_a_tree);
    let rules = match in_a_tree {
        true => Root::of(host).text("remove", "tree").text("match", "^(live|stale)-"),
        false => Root::of(host),
    };
    let config = ConfigFile::write(host, [rules]);
    let reclaim = Reclaim::with(&config).evidence(evidence);
    if ["after-lock", "mid-restore"].contains(&step) {
        // Something to restore: an entry that a descriptor from before led a sandbox to, after it was condemned.
        crash_at(&reclaim, "after-condemn");
        for (name, path) in three_condemned(host, place) {
            let (sandbox, point) = host.sandbox_with(&path);
            scene.live.push((sandbox, point, host.root().join(name)));
        }
    }
    crash_at(&reclaim, step);
    scene.ends_well(host, &reclaim);
}

macro_rules! steps {
    (@place) => { Place::Store };
    (@place $place:ident) => { Place::$place };
    ($($test:ident: $evidence:literal, $step:literal $(, $place:ident)?;)+) => {
        $(#[test]
        fn $test() {
            private_host(|host| crashes_at(host, $evidence, $step, steps!(@place $($place)?)));
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
    after_batch: "scan", "after-batch";
    before_close: "scan", "before-close";
    after_batch_auto: "auto", "after-batch";
    before_close_auto: "auto", "before-close";
    makeshift_after_batch: "scan", "after-batch", Makeshift;
    makeshift_after_condemn_first: "scan", "after-condemn-first", Makeshift;
    makeshift_after_condemn: "scan", "after-condemn", Makeshift;
    makeshift_after_settle: "scan", "after-settle", Makeshift;
    makeshift_after_confirm: "scan", "after-confirm", Makeshift;
    makeshift_mid_restore: "scan", "mid-restore", Makeshift;
    makeshift_mid_remove: "scan", "mid-remove", Makeshift;
    makeshift_after_remove: "scan", "after-remove", Makeshift;
    makeshift_after_condemn_auto: "auto", "after-condemn", Makeshift;
    makeshift_mid_restore_auto: "auto", "mid-restore", Makeshift;
    makeshift_mid_remove_auto: "auto", "mid-remove", Makeshift;
}

/// Whether a process has a thread of a name.
fn has_thread(process: Pid, name: &str) -> bool {
    let threads = fs::read_dir(format!("/proc/{process}/task")).or_fail("list threads").flatten();
    threads.filter_map(|thread| fs::read_to_string(thread.path().join("comm")).ok()).any(|comm| comm.trim() == name)
}

#[test]
fn killed_while_a_second_thread_removes() {
    private_host(|host| {
        let scene = Scene::set(host, Place::Store, false);
        let config = ConfigFile::write(host, [Root::of(host)]);
        let reclaim = Reclaim::with(&config).evidence("scan");
        let stopping = reclaim.clone().variable("RECLAIM_TEST_STOP", "mid-remove");
        let mut command = stopping.command(&["--json", "sweep"]);
        let mut pass = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().or_fail("start a pass");
        let pid = Pid::from_raw(i32::try_from(pass.id()).or_fail("a pid"));
        // The thread that looks ahead removes as well where there is no processor for a third.
        let second = if available_parallelism().map_or(1, NonZero::get) <= 2 { "looker" } else { "remover" };
        // It stops with each entry; the first may be one of the pass itself, before the thread has its name.
        wait_until("the second thread to be at work", Duration::from_secs(40), || {
            assert!(pass.try_wait().or_fail("look at the pass").is_none(), "no second thread has removed anything");
            if !is_stopped(pid) {
                return None;
            }
            let at_work = has_thread(pid, second);
            if !at_work {
                kill(pid, Signal::SIGCONT).or_fail("let it go on");
            }
            at_work.then_some(())
        });
        assert!(!host.condemned().is_empty(), "it is not through");
        pass.kill().or_fail("kill the pass");
        pass.wait().or_fail("reap the pass");
        scene.ends_well(host, &reclaim);
    });
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
fn more_batches_are_left_than_one_look_takes() {
    private_host(|host| {
        let config = ConfigFile::write(host, [Root::of(host)]);
        set_mode(&host.make_dir("root/.reclaim"), 0o700);
        let batches = 1_100;
        for batch in 0..batches {
            host.make_dir(format!("root/.reclaim/00000000-1-2-{batch}/stale-{batch}"));
        }
        let finished = Reclaim::with(&config).run(&["--json", "sweep"]);
        assert_eq!(finished.code(), 0, "{finished:?}");
        let pass = finished.stdout.lines().find(|line| line.contains("\"type\":\"pass\"")).or_fail("a summary");
        let pass: Pass = serde_json::from_str(pass).or_fail("read a summary");
        assert_eq!(pass.removed, batches, "{finished:?}");
        // As where a look takes no more than there are: then something else would have to speak for it.
        assert!(!finished.stderr.contains("cannot be relied on"), "{finished:?}");
        assert!(!finished.stderr.contains("/proc is read"), "{finished:?}");
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
