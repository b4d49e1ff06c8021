//! Holds where something stands in the way: no room, no rights, manifests that say nothing, and other users.

use nix::unistd::{Gid, Uid, chown};
use reclaim_tests::{
    ConfigFile, Hold, Host, OrFail as _, Reclaim, Root, Service, forge, manifest_of, manifests, private_host,
    run_to_end, set_immutable, set_mode, wait_for_no_manifest, wait_until,
};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
/// A user that is not root.
const USER: u32 = 4321;

fn config(host: &Host) -> (ConfigFile, Reclaim) {
    let config = ConfigFile::write(host, [Root::of(host)]);
    let reclaim = Reclaim::with(&config);
    (config, reclaim)
}

/// A hold that must be refused, naming a path, and the sandbox with it.
#[track_caller]
fn refused(hold: &Hold, part: &str) {
    let finished = run_to_end(&mut hold.command(&["echo", "started"]), LIMIT);
    assert_eq!(finished.code(), 1, "{finished:?}");
    assert!(finished.stdout.is_empty() && finished.stderr.contains(part), "{part}: {finished:?}");
}

#[track_caller]
fn fill(directory: &Path) {
    let full = fs::write(directory.join("ballast"), vec![0; 1 << 20]);
    assert!(full.is_err(), "it is not full");
}

#[test]
fn without_room_for_a_manifest_nothing_is_made() {
    private_host(|host| {
        let (config, reclaim) = config(host);
        let project = host.make_dir("project");
        fs::create_dir(config.holds()).or_fail("make the directory for holds");
        host.mount_small(&config.holds());
        set_mode(&config.holds(), 0o1777);
        let hold = Hold::by(&reclaim).file(&project.join(".env")).directory(&project.join(".git"));
        drop(hold.sandbox());
        wait_for_no_manifest(&config);
        fill(&config.holds().join("0"));
        refused(&hold, "No space left");
        assert_eq!(fs::read_dir(&project).or_fail("list").count(), 0, "something was made");
        assert!(manifests(&config).is_empty());
    });
}

#[test]
fn without_room_for_a_placeholder_those_before_it_go_again() {
    private_host(|host| {
        let (config, reclaim) = config(host);
        let (project, full) = (host.make_dir("project"), host.make_dir("full"));
        host.mount_small(&full);
        // Every inode is in use, so not even an empty file can be made.
        let mut made = 0;
        while fs::write(full.join(made.to_string()), "").is_ok() {
            made += 1;
            assert!(made < 100_000, "it never becomes full");
        }
        let before = fs::read_dir(&full).or_fail("list").count();
        for hold in [
            Hold::by(&reclaim).file(&project.join(".env")).file(&full.join(".env")),
            Hold::by(&reclaim).directory(&project.join(".git")).directory(&full.join(".git")),
        ] {
            refused(&hold, "No space left");
            assert_eq!(fs::read_dir(&project).or_fail("list").count(), 0, "something was left");
            assert_eq!(fs::read_dir(&full).or_fail("list").count(), before);
            wait_for_no_manifest(&config);
        }
    });
}

#[test]
fn a_directory_that_is_not_writable_is_told_and_nothing_is_left() {
    private_host(|host| {
        let (config, reclaim) = config(host);
        let (project, locked) = (host.make_dir("project"), host.make_dir("locked"));
        set_immutable(&locked, true);
        refused(&Hold::by(&reclaim).file(&project.join("a")).file(&locked.join(".env")), "locked/.env");
        refused(&Hold::by(&reclaim).directory(&locked.join(".git")), "locked/.git");
        set_immutable(&locked, false);
        assert_eq!(fs::read_dir(&project).or_fail("list").count(), 0, "something was left");
        // What is there already needs no right to write.
        host.make_file("locked/.env", "");
        set_immutable(&locked, true);
        drop(Hold::by(&reclaim).file(&locked.join(".env")).sandbox());
        set_immutable(&locked, false);
        wait_for_no_manifest(&config);
    });
}

#[test]
fn another_user_without_a_service_keeps_what_cannot_be_proved() {
    private_host(|host| {
        let (config, reclaim) = config(host);
        let service = Service::start(host, &config, &reclaim);
        let project = host.make_dir("home/project");
        chown(&project, Some(Uid::from_raw(USER)), Some(Gid::from_raw(USER))).or_fail("chown");
        set_mode(config.path(), 0o644);
        set_mode(host.directory(), 0o755);
        let user = Reclaim::with(&config).as_user(USER);
        let file = project.join(".env");
        let hold = Hold::by(&user).file(&file);
        // Through the service, which sees the whole host.
        let finished = run_to_end(&mut hold.command(&["test", "-f", file.to_str().or_fail("text")]), LIMIT);
        assert_eq!(finished.code(), 0, "{finished:?}");
        wait_until("the service to remove it", LIMIT, || file.symlink_metadata().is_err().then_some(()));
        wait_for_no_manifest(&config);
        drop(service);
        // A user sees too little of a host to say that nobody needs it.
        assert_eq!(run_to_end(&mut hold.command(&["true"]), LIMIT).code(), 0);
        std::thread::sleep(Duration::from_secs(1));
        assert!(file.exists(), "without evidence it has to stay");
        // The next pass of root finds it.
        wait_until("a sweep to remove it", LIMIT, || {
            let _told = reclaim.run(&["sweep"]);
            file.symlink_metadata().is_err().then_some(())
        });
        wait_for_no_manifest(&config);
    });
}

#[test]
fn a_manifest_gives_leave_for_its_owners_files_alone() {
    private_host(|host| {
        let (config, reclaim) = config(host);
        let (own, others) = (host.make_file("home/own", ""), host.make_file("home/others", ""));
        for path in [&own, &host.path("home")] {
            chown(path, Some(Uid::from_raw(USER)), None).or_fail("chown");
        }
        forge(&config, USER, "own", &manifest_of(&own));
        forge(&config, USER, "others", &manifest_of(&others));
        // A manifest is believed as far as its owner may go: this shows that the other one is refused for its owner.
        wait_until("the own file to go", LIMIT, || {
            let _told = reclaim.run(&["sweep"]);
            own.symlink_metadata().is_err().then_some(())
        });
        wait_for_no_manifest(&config);
        assert!(others.exists(), "a user had root remove another one's file");
    });
}

#[test]
fn what_holds_a_manifest_that_says_nothing_keeps_everything() {
    private_host(|host| {
        let (config, reclaim) = config(host);
        let file = host.make_dir("project").join(".env");
        // Its holder lives, and nobody knows what it relies on.
        let mut held =
            Hold::by(&reclaim).file(&host.path("project/other")).command(&["sleep", "60"]).spawn().or_fail("hold");
        let [manifest] = wait_until("a manifest", LIMIT, || <[PathBuf; 1]>::try_from(manifests(&config)).ok());
        let text = fs::read(&manifest).or_fail("read");
        fs::write(&manifest, "garbage").or_fail("spoil it");
        drop(Hold::by(&reclaim).file(&file).sandbox());
        let finished = reclaim.run(&["sweep"]);
        assert!(finished.stderr.contains("everything is kept"), "{finished:?}");
        std::thread::sleep(Duration::from_millis(500));
        assert!(file.exists(), "it could be the one that is held");
        fs::write(&manifest, text).or_fail("mend it");
        wait_until("it to go", LIMIT, || {
            let _told = reclaim.run(&["sweep"]);
            file.symlink_metadata().is_err().then_some(())
        });
        held.kill().and_then(|()| held.wait()).or_fail("end the hold");
        wait_for_no_manifest(&config);
    });
}

#[test]
fn what_another_users_word_could_name_is_kept_while_it_cannot_be_read() {
    private_host(|host| {
        let (config, reclaim) = config(host);
        host.make_dir("home");
        chown(&host.path("home"), Some(Uid::from_raw(USER)), None).or_fail("chown");
        let own = host.make_file("home/own", "");
        chown(&own, Some(Uid::from_raw(USER)), None).or_fail("chown");
        // Root holds by something, and could hold by this: nothing is bound yet that would show it.
        let project = host.make_dir("project");
        let mut held = Hold::by(&reclaim).file(&project.join("x")).command(&["sleep", "60"]).spawn().or_fail("hold");
        wait_until("the placeholder", LIMIT, || project.join("x").exists().then_some(()));
        let [manifest] = <[PathBuf; 1]>::try_from(manifests(&config)).ok().or_fail("one manifest");
        let text = fs::read(&manifest).or_fail("read");
        fs::write(&manifest, "garbage").or_fail("spoil it");
        let ended = forge(&config, USER, "own", &manifest_of(&own));
        let is_kept = || {
            let finished = reclaim.run(&["sweep"]);
            assert!(own.exists() && ended.exists(), "{finished:?}");
            assert!(finished.stderr.contains("what another user holds by cannot be read"), "{finished:?}");
        };
        is_kept();
        fs::write(&manifest, text).or_fail("mend it");
        let store = manifest.parent().or_fail("it lies in a store");
        set_mode(store, 0o755);
        is_kept();
        set_mode(store, 0o700);
        wait_until("it to go once that can be read", LIMIT, || {
            let _told = reclaim.run(&["sweep"]);
            own.symlink_metadata().is_err().then_some(())
        });
        held.kill().and_then(|()| held.wait()).or_fail("end the hold");
        wait_for_no_manifest(&config);
    });
}

#[test]
fn what_may_be_a_placeholder_is_there_for_a_later_holder_and_goes_with_its_own() {
    private_host(|host| {
        let (config, reclaim) = config(host);
        let file = host.make_dir("project").join(".env");
        let hold = || {
            let known = manifests(&config);
            let held = Hold::by(&reclaim).file(&file).command(&["sleep", "60"]).spawn().or_fail("hold");
            let manifest = wait_until("a manifest that names it", LIMIT, || {
                let is_written = |path: &PathBuf| fs::read_to_string(path).is_ok_and(|text| text.contains("\"print\""));
                manifests(&config).into_iter().find(|path| !known.contains(path) && is_written(path))
            });
            (held, manifest)
        };
        let (mut first, manifest) = hold();
        let text = fs::read(&manifest).or_fail("read");
        fs::write(&manifest, "garbage").or_fail("spoil it");
        // Nobody can tell the later one that this file is a placeholder, and it has not bound anything on it yet.
        let (mut second, _) = hold();
        fs::write(&manifest, &text).or_fail("mend it");
        first.kill().and_then(|()| first.wait()).or_fail("end the first hold");
        for _ in 0..3 {
            let told = reclaim.run(&["sweep"]);
            assert!(file.exists(), "the second holder relies on it: {told:?}");
        }
        second.kill().and_then(|()| second.wait()).or_fail("end the second hold");
        wait_until("it to go", LIMIT, || {
            let _told = reclaim.run(&["sweep"]);
            file.symlink_metadata().is_err().then_some(())
        });
        wait_for_no_manifest(&config);
        // A file of the user's that was taken for one that may be a placeholder stays.
        let own = host.make_file("project/own", "");
        let mut other =
            Hold::by(&reclaim).file(&host.path("project/other")).command(&["sleep", "60"]).spawn().or_fail("hold");
        let [manifest] = wait_until("a manifest", LIMIT, || <[PathBuf; 1]>::try_from(manifests(&config)).ok());
        let text = wait_until("what it names", LIMIT, || {
            fs::read_to_string(&manifest).ok().filter(|text| text.contains("\"print\""))
        });
        fs::write(&manifest, "garbage").or_fail("spoil it");
        drop(Hold::by(&reclaim).file(&own).sandbox());
        fs::write(&manifest, text).or_fail("mend it");
        other.kill().and_then(|()| other.wait()).or_fail("end the hold");
        sweep_until_no_manifest(&config, &reclaim);
        assert!(own.exists(), "it was the user's");
    });
}

fn sweep_until_no_manifest(config: &ConfigFile, reclaim: &Reclaim) {
    wait_until("no manifest to be left", LIMIT, || {
        let _told = reclaim.run(&["sweep"]);
        manifests(config).is_empty().then_some(())
    });
}

#[test]
fn whose_pipe_is_gone_may_live_until_the_next_boot() {
    private_host(|host| {
        let (config, reclaim) = config(host);
        let file = host.make_dir("project").join(".env");
        let mut held = Hold::by(&reclaim).file(&file).command(&["sleep", "60"]).spawn().or_fail("hold");
        wait_until("the placeholder", LIMIT, || file.exists().then_some(()));
        let [manifest] = <[PathBuf; 1]>::try_from(manifests(&config)).ok().or_fail("one manifest");
        fs::remove_file(manifest.with_extension("alive")).or_fail("take its pipe away");
        let _told = reclaim.run(&["sweep"]);
        assert!(file.exists() && manifest.exists(), "its holder lives, and no lock can tell");
        held.kill().and_then(|()| held.wait()).or_fail("end the hold");
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").or_fail("read the boot id");
        let text = fs::read_to_string(&manifest).or_fail("read");
        fs::write(&manifest, text.replace(boot.trim(), "an-earlier-boot")).or_fail("make it one of an earlier boot");
        wait_until("it to go", LIMIT, || {
            let _told = reclaim.run(&["sweep"]);
            file.symlink_metadata().is_err().then_some(())
        });
        wait_for_no_manifest(&config);
    });
}

#[test]
fn manifests_whose_holder_has_ended_harm_nothing_whatever_they_say() {
    private_host(|host| {
        let (config, reclaim) = config(host);
        let victim = host.make_file("home/victim", "");
        let good = manifest_of(&victim);
        let elsewhere = good.replace("\"victim\"", "\"../home/victim\"");
        let later = good.replace("\"version\":1", "\"version\":9");
        let kept: Vec<_> = [("a", "garbage"), ("b", &*elsewhere), ("c", &*later), ("d", "")]
            .map(|(name, text)| forge(&config, 0, name, text))
            .into();
        let of_another_boot = good.replace("\"boot\":\"", "\"boot\":\"x").replace("\"inode\":", "\"inode\":1");
        forge(&config, 0, "e", &of_another_boot);
        let finished = reclaim.run(&["sweep"]);
        assert!(victim.exists(), "{finished:?}");
        for manifest in &kept {
            assert!(manifest.exists(), "what cannot be understood is not thrown away");
            let name = manifest.file_name().or_fail("a name").to_string_lossy().into_owned();
            assert!(finished.stderr.contains(&name), "{name} is not told: {finished:?}");
            fs::remove_file(manifest).or_fail("remove");
        }
    });
}

#[test]
fn stores_that_others_could_change_are_refused() {
    private_host(|host| {
        let (config, reclaim) = config(host);
        let hold = Hold::by(&reclaim).file(&host.make_dir("project").join(".env"));
        fs::create_dir(config.holds()).or_fail("make the directory for holds");
        set_mode(&config.holds(), 0o777);
        refused(&hold, "anybody can take others' stores away");
        set_mode(&config.holds(), 0o1777);
        chown(&config.holds(), Some(Uid::from_raw(USER)), None).or_fail("chown");
        refused(&hold, "user 4321");
        chown(&config.holds(), Some(Uid::from_raw(0)), None).or_fail("chown");
        let store = config.holds().join("0");
        fs::create_dir(&store).or_fail("make a store");
        set_mode(&store, 0o755);
        refused(&hold, "0755");
        fs::remove_dir(&store).or_fail("remove");
        std::os::unix::fs::symlink(host.path("project"), &store).or_fail("link");
        refused(&hold, "holds");
        fs::remove_file(&store).or_fail("remove");
        fs::create_dir(&store).or_fail("make a store");
        set_mode(&store, 0o700);
        chown(&store, Some(Uid::from_raw(USER)), None).or_fail("chown");
        refused(&hold, "user 4321");
        assert!(!host.path("project/.env").exists());
    });
}
