//! Holds that die or stop at every step: whoever comes next makes it good, and no placeholder is left without a manifest.

use nix::unistd::Pid;
use reclaim_tests::{
    ConfigFile, Hold, Host, OrFail as _, Reclaim, Root, Service, is_stopped, manifests, private_host, run_to_end,
    wait_for_no_manifest, wait_until,
};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
/// The steps of a hold, and whether a placeholder may be there after a death at it.
const STEPS: [&str; 5] = ["hold-manifest", "hold-recorded", "hold-made", "hold-temporary", "hold-identified"];
/// The steps of the removal that follows the end of a holder.
const ENDS: [&str; 6] =
    ["after-condemn", "after-settle", "after-confirm", "after-decision", "mid-remove", "mid-restore"];

fn start(host: &Host) -> (PathBuf, ConfigFile, Reclaim) {
    let config = ConfigFile::write(host, [Root::of(host)]);
    let reclaim = Reclaim::with(&config);
    (host.make_dir("project"), config, reclaim)
}

fn listed(directory: &Path) -> Vec<PathBuf> {
    fs::read_dir(directory).or_fail("list").map(|entry| entry.or_fail("list").path()).collect()
}

/// Who mends it.
#[derive(Clone, Copy)]
enum By {
    Hold,
    Sweep,
    Service,
}

#[track_caller]
fn mend(host: &Host, config: &ConfigFile, reclaim: &Reclaim, by: By) {
    let service = matches!(by, By::Service).then(|| Service::start(host, config, reclaim));
    let elsewhere = host.make_dir("elsewhere").join("x");
    wait_until("it to be mended", LIMIT, || {
        match by {
            By::Hold => {
                let other = Hold::by(reclaim).file(&elsewhere);
                assert_eq!(run_to_end(&mut other.command(&["true"]), LIMIT).code(), 0);
            }
            By::Sweep => drop(reclaim.run(&["sweep"])),
            By::Service => {}
        }
        listed(&host.path("project")).is_empty().then_some(())
    });
    wait_for_no_manifest(config);
    drop(service);
}

fn dies_at_every_step(host: &Host, by: By) {
    let (project, config, reclaim) = start(host);
    let hold = Hold::by(&reclaim).file(&project.join(".env")).directory(&project.join(".git"));
    for step in STEPS {
        let finished = run_to_end(&mut hold.clone().variable("RECLAIM_TEST_CRASH", step).command(&["true"]), LIMIT);
        assert_eq!(finished.status.code(), None, "it never came to {step}: {finished:?}");
        for left in listed(&project) {
            let name = left.file_name().or_fail("a name").to_string_lossy().into_owned();
            let named = manifests(&config)
                .iter()
                .any(|manifest| fs::read_to_string(manifest).or_fail("read a manifest").contains(&name));
            assert!(named, "after {step} no manifest names {name}");
        }
        mend(host, &config, &reclaim, by);
    }
    // A directory has a name of its own from the start, and is recorded twice.
    let hold = Hold::by(&reclaim).directory(&project.join(".git"));
    let finished = run_to_end(&mut hold.variable("RECLAIM_TEST_CRASH", "hold-made").command(&["true"]), LIMIT);
    assert_eq!(finished.status.code(), None, "{finished:?}");
    assert_eq!(listed(&project), [project.join(".git")]);
    mend(host, &config, &reclaim, by);
}

#[test]
fn a_hold_that_dies_is_mended_by_another_hold() {
    private_host(|host| dies_at_every_step(host, By::Hold));
}

#[test]
fn a_hold_that_dies_is_mended_by_a_sweep() {
    private_host(|host| dies_at_every_step(host, By::Sweep));
}

#[test]
fn a_hold_that_dies_is_mended_by_the_service() {
    private_host(|host| dies_at_every_step(host, By::Service));
}

#[test]
fn everything_is_killed_and_the_next_pass_of_anybody_removes_it() {
    for by in [By::Hold, By::Sweep, By::Service] {
        private_host(move |host| {
            let (project, config, reclaim) = start(host);
            let file = project.join(".env");
            let hold = Hold::by(&reclaim).file(&file).directory(&project.join(".git"));
            // All that a pid namespace holds dies with its first process, by SIGKILL: launcher, sandbox, and what waits.
            let sandbox = hold.sandbox_through(&["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]);
            sandbox.kill();
            assert!(file.exists() && manifests(&config).len() == 1, "nobody was left to remove it");
            mend(host, &config, &reclaim, by);
        });
    }
}

#[test]
fn a_holder_that_is_stopped_half_way_is_waited_for_and_then_another_goes_on() {
    private_host(|host| {
        let (project, config, reclaim) = start(host);
        let file = project.join(".env");
        let hold = Hold::by(&reclaim).file(&file).directory(&project.join(".git"));
        for step in STEPS {
            let stopping = hold.clone().variable("RECLAIM_TEST_STOP", step);
            let mut stopped = stopping.command(&["sleep", "60"]).spawn().or_fail("start a hold");
            wait_until("it to stop", LIMIT, || {
                is_stopped(Pid::from_raw(i32::try_from(stopped.id()).or_fail("a pid"))).then_some(())
            });
            // What it has recorded so far is nobody's to take.
            let before = listed(&project);
            let _waits = reclaim.clone().within(LIMIT).run(&["sweep"]);
            assert_eq!(listed(&project), before, "a living holder's, at {step}");
            stopped.kill().and_then(|()| stopped.wait()).or_fail("kill");
            drop(hold.sandbox());
            wait_until("both to be done with", LIMIT, || listed(&project).is_empty().then_some(()));
            wait_for_no_manifest(&config);
        }
    });
}

#[test]
fn the_end_of_a_hold_that_dies_half_way_is_brought_to_its_end() {
    private_host(|host| {
        let (project, config, reclaim) = start(host);
        let file = project.join(".env");
        let hold = Hold::by(&reclaim).file(&file).file(&project.join("b"));
        for step in ENDS {
            // Whoever waits behind the command has the same environment.
            let dying = hold.clone().variable("RECLAIM_TEST_CRASH", step);
            let finished = run_to_end(&mut dying.command(&["true"]), LIMIT);
            assert_eq!(finished.code(), 0, "{step}: {finished:?}");
            mend(host, &config, &reclaim, By::Sweep);
        }
    });
}

#[test]
fn what_becomes_somebody_elses_at_the_last_moment_stays() {
    use nix::sys::signal::{Signal, kill};
    use nix::unistd::{Uid, chown};
    let replace = |file: &Path| {
        fs::remove_file(file).or_fail("remove");
        fs::write(file, "").or_fail("make it again");
    };
    let give_away = |file: &Path| chown(file, Some(Uid::from_raw(4321)), None).or_fail("chown");
    for change in [replace as fn(&Path), give_away] {
        private_host(move |host| {
            let (project, config, reclaim) = start(host);
            let file = project.join(".env");
            let dying = Hold::by(&reclaim).file(&file).variable("RECLAIM_TEST_CRASH", "hold-made");
            assert_eq!(run_to_end(&mut dying.command(&["true"]), LIMIT).status.code(), None);
            let stopping = reclaim.clone().variable("RECLAIM_TEST_STOP", "purge-begins");
            let mut sweep = stopping.command(&["sweep"]).spawn().or_fail("start a pass");
            let pid = Pid::from_raw(i32::try_from(sweep.id()).or_fail("a pid"));
            wait_until("it to come to the removal", LIMIT, || is_stopped(pid).then_some(()));
            change(&file);
            kill(pid, Signal::SIGCONT).or_fail("let it go on");
            wait_until("the pass to end", LIMIT, || sweep.try_wait().or_fail("wait"));
            assert!(file.exists(), "it was judged before it became somebody else's");
            wait_until("the manifest to be done with", LIMIT, || {
                let _told = reclaim.run(&["sweep"]);
                manifests(&config).is_empty().then_some(())
            });
            assert!(file.exists(), "it is somebody else's");
        });
    }
}
