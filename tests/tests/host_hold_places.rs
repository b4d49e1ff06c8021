//! Holds whose directories go, lead to one place by two paths, or cannot be used.

use reclaim_tests::{
    ConfigFile, Hold, Host, OrFail as _, Reclaim, Root, forge, manifest_of, manifests, private_host, run_to_end,
    wait_for_no_manifest, wait_until,
};
use std::fs;
use std::path::Path;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

fn config(host: &Host) -> (ConfigFile, Reclaim) {
    let config = ConfigFile::write(host, [Root::of(host)]);
    let reclaim = Reclaim::with(&config);
    (config, reclaim)
}

/// A placeholder of a holder that died as soon as it had made it.
#[track_caller]
fn left_behind(reclaim: &Reclaim, path: &Path) {
    let dying = Hold::by(reclaim).file(path).variable("RECLAIM_TEST_CRASH", "hold-made");
    assert_eq!(run_to_end(&mut dying.command(&["true"]), LIMIT).status.code(), None);
    assert!(path.exists());
}

#[test]
fn a_hold_whose_project_was_removed_leaves_nothing() {
    private_host(|host| {
        let (config, reclaim) = config(host);
        for script in ["rm -r project", "rm -r project; mkdir -p other project", "mv project moved"] {
            host.make_dir("project");
            let hold = Hold::by(&reclaim).file(&host.path("project/.env")).directory(&host.path("project/.git"));
            let script = format!("cd {}; {script}", host.path("").display());
            let finished = run_to_end(&mut hold.command(&["sh", "-c", &script]), LIMIT);
            assert_eq!(finished.code(), 0, "{finished:?}");
            wait_for_no_manifest(&config);
            let _gone = fs::remove_dir_all(host.path("project"));
        }
    });
}

#[test]
fn a_manifest_stays_while_its_file_system_may_only_not_be_mounted() {
    private_host(|host| {
        let (config, reclaim) = config(host);
        let disk = host.make_dir("disk");
        host.mount_small(&disk);
        let project = disk.join("project");
        fs::create_dir(&project).or_fail("make");
        left_behind(&reclaim, &project.join(".env"));
        let covered = host.make_dir("empty");
        host.bind(&covered, &disk);
        for _ in 0..2 {
            let finished = reclaim.run(&["sweep"]);
            assert!(finished.stderr.contains("cannot be opened"), "{finished:?}");
            assert_eq!(manifests(&config).len(), 1, "the directory is there, below another mount");
        }
        nix::mount::umount(&disk).or_fail("umount");
        wait_until("it to go once that can be seen", LIMIT, || {
            let _told = reclaim.run(&["sweep"]);
            (!project.join(".env").exists()).then_some(())
        });
        wait_for_no_manifest(&config);
    });
}

#[test]
fn a_directory_that_cannot_be_used_stops_no_other() {
    private_host(|host| {
        let (config, reclaim) = config(host);
        let paths = ["one", "two", "three"].map(|name| host.make_file(format!("{name}/.env"), ""));
        for (number, path) in paths.iter().enumerate() {
            forge(&config, 0, &number.to_string(), &manifest_of(path));
        }
        let in_the_way = host.make_file("two/.reclaim", "");
        wait_until("the others to go", LIMIT, || {
            let _told = reclaim.run(&["sweep"]);
            (!paths[0].exists() && !paths[2].exists()).then_some(())
        });
        assert!(paths[1].exists() && !host.path("one/.reclaim").exists() && !host.path("three/.reclaim").exists());
        fs::remove_file(in_the_way).or_fail("remove");
        wait_until("it to go", LIMIT, || {
            let _told = reclaim.run(&["sweep"]);
            (!paths[1].exists()).then_some(())
        });
        wait_for_no_manifest(&config);
    });
}

#[test]
fn a_keep_holds_a_placeholder_by_whatever_path_it_was_made() {
    private_host(|host| {
        let (config, reclaim) = config(host);
        let alias = host.make_dir("alias");
        host.bind(&host.root(), &alias);
        left_behind(&reclaim, &alias.join("made"));
        let file = host.root().join("made");
        let path = file.to_str().or_fail("text");
        assert_eq!(reclaim.run(&["keep", path, "--for", "1h"]).code(), 0);
        for _ in 0..2 {
            let _told = reclaim.run(&["sweep"]);
            assert!(file.exists(), "its owner keeps it");
        }
        assert_eq!(reclaim.run(&["unkeep", path]).code(), 0);
        wait_until("it to go once nobody keeps it", LIMIT, || {
            let _told = reclaim.run(&["sweep"]);
            (!file.exists()).then_some(())
        });
        wait_for_no_manifest(&config);
    });
}

#[test]
fn more_manifests_than_are_read_at_a_time_are_settled_in_turn() {
    private_host(|host| {
        let (config, reclaim) = config(host);
        let held = host.make_file("project/held", "");
        let text = manifest_of(&held);
        let long = format!("{text}{}", " ".repeat(1_000_000));
        for number in 0..40 {
            forge(&config, 0, &format!("ended-{number}"), &long);
        }
        // It comes last by its name, and is read all the same.
        let living = Hold::by(&reclaim).file(&host.path("project/.env"));
        let mut process = living.command(&["sleep", "60"]).spawn().or_fail("start a hold");
        wait_until("the placeholder", LIMIT, || host.path("project/.env").exists().then_some(()));
        wait_until("those of the dead to go", LIMIT, || {
            let _told = reclaim.run(&["sweep"]);
            (manifests(&config).len() == 1).then_some(())
        });
        assert!(!held.exists() && host.path("project/.env").exists());
        process.kill().and_then(|()| process.wait()).or_fail("end the hold");
        wait_for_no_manifest(&config);
    });
}
