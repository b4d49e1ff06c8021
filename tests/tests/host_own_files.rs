//! Reclaim's own files: nothing it does comes by them, and where they are lost nothing goes for that. And roots that cannot
//! be used: each for itself.

use nix::mount::{MsFlags, mount};
use reclaim_tests::{
    ConfigFile, Host, Mode, OrFail as _, Reclaim, Root, Service, Subject, cases, private_host, wait_until,
};
use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

cases! {
    a_store_of_keeps_that_is_lost_frees_nothing: service;
    one_that_cannot_be_used_stops_no_other: service, scan;
}

/// A configuration with these places, and a root.
fn with(host: &Host, service: &str, root: &Path, rules: &str) -> Reclaim {
    let config = ConfigFile::write(host, []);
    config.write_text(&format!("[service]\n{service}\n[[root]]\nname = 'r'\npath = '{}'\n{rules}\n", root.display()));
    Reclaim::with(&config).evidence("scan")
}

#[test]
fn no_pass_comes_by_them() {
    private_host(|host| {
        let root = host.root();
        host.make_dir("root/own");
        let alias = host.make_dir("alias");
        host.bind(&root, &alias);
        let (top, root_shown) = (host.directory().display(), root.display());
        let apart = format!("state_dir = '{top}/state'\nsocket = '{top}/s/sock'");
        for (service, told) in [
            (format!("state_dir = '{root_shown}/own/state'\nsocket = '{top}/s/sock'"), "state_dir"),
            (format!("state_dir = '{root_shown}/own'\nsocket = '{top}/s/sock'"), "state_dir"),
            (format!("state_dir = '{root_shown}'\nsocket = '{top}/s/sock'"), "state_dir"),
            (format!("{apart}\nholds = '{root_shown}/own/holds'"), "the holds"),
            (format!("state_dir = '{top}/state'\nsocket = '{root_shown}/own/sock'"), "the control socket"),
            // By another mount of the same directory, whether the last part is there or not.
            (format!("state_dir = '{}/own'\nsocket = '{top}/s/sock'", alias.display()), "state_dir"),
            (format!("state_dir = '{}/missing/state'\nsocket = '{top}/s/sock'", alias.display()), "state_dir"),
        ] {
            let ended = with(host, &service, &root, "remove = 'tree'").run(&["sweep"]);
            let is_told = ended.stderr.contains(told) && ended.stderr.contains("root.path");
            assert!(ended.code() == 2 && is_told && host.path("root/own").exists(), "{service}: {ended:?}");
        }
        // A root within them, also by another mount.
        for (state, told) in [(root_shown.to_string(), "state_dir"), (alias.display().to_string(), "state_dir")] {
            let service = format!("state_dir = '{state}'\nsocket = '{top}/s/sock'\nholds = '{top}/holds'");
            let ended = with(host, &service, &host.path("root/own"), "remove = 'tree'").run(&["sweep"]);
            assert!(ended.code() == 2 && ended.stderr.contains(told), "{service}: {ended:?}");
        }
        // Where the pattern leaves the name out it is no entry, and beside the root it is out of reach.
        let inside = format!("state_dir = '{root_shown}/own/state'\nsocket = '{root_shown}/own/sock'");
        for (service, rules) in [(inside.as_str(), "match = '^sb-'\nremove = 'tree'"), (&apart, "remove = 'tree'")] {
            assert_eq!(with(host, service, &root, rules).run(&["sweep"]).code(), 0, "{service}");
        }
    });
}

#[test]
fn no_id_names_them() {
    private_host(|host| {
        let top = host.directory().display();
        let config = ConfigFile::write(host, []);
        let reclaim = Reclaim::with(&config).evidence("scan");
        host.make_file("var/state/file", "text");
        config.write_text(&format!(
            "[service]\nstate_dir = '{top}/var/state'\nsocket = '{top}/var/run/sock'\nholds = '{top}/var/held'\n\n\
             [[owned]]\npath = '{top}/var/{{id}}'\n"
        ));
        for id in ["state", "run", "held"] {
            let ended = reclaim.run(&["purge", id]);
            assert!(ended.code() == 2 && ended.stderr.contains("is shared"), "{ended:?}");
        }
        assert!(host.path("var/state/file").exists());
        assert_eq!(reclaim.run(&["purge", "other"]).code(), 0);
    });
}

fn a_store_of_keeps_that_is_lost_frees_nothing(host: &Host, mode: Mode) {
    let config = ConfigFile::write(host, [Root::of(host)]);
    let subject = Subject::start_with(host, mode, &config);
    let kept = host.entry("kept");
    subject.reclaim().objects(&["keep".as_ref(), kept.as_os_str(), "--for".as_ref(), "1h".as_ref()], &[0]);
    let aside = host.path("aside");
    fs::rename(config.state(), &aside).or_fail("take the state directory away");
    let stale = host.entry("stale");
    let (objects, _) = subject.reclaim().objects(&["sweep"], &[0]);
    assert!(kept.is_dir() && stale.is_dir(), "{objects:?}");
    assert!(objects[0]["keeps_fault"].as_str().is_some_and(|fault| fault.contains("not any more")), "{objects:?}");
    let _made_again = fs::remove_dir_all(config.state());
    fs::rename(&aside, config.state()).or_fail("put it back");
    subject.sweep_until_gone(&[stale], &[kept]);
}

/// As where the file system that it lies in is not mounted.
#[test]
fn a_state_directory_that_is_a_link_to_nowhere_frees_nothing() {
    private_host(|host| {
        let config = ConfigFile::write(host, [Root::of(host)]);
        let reclaim = Reclaim::with(&config).evidence("scan");
        let entry = host.entry("entry");
        let away = host.path("away");
        symlink(&away, config.state()).or_fail("link");
        let (objects, _) = reclaim.objects(&["sweep"], &[0]);
        assert!(entry.is_dir() && objects[0]["keeps_fault"].is_string(), "{objects:?}");
        fs::create_dir(&away).or_fail("make what it leads to");
        reclaim.sweep();
        assert!(!entry.exists());
    });
}

/// A directory whose file system answers nothing any more.
fn dead(host: &Host, name: &str) -> PathBuf {
    let path = host.make_dir(name);
    let server = File::options().read(true).write(true).open("/dev/fuse").or_fail("open /dev/fuse");
    let data = format!("fd={},rootmode=40000,user_id=0,group_id=0", server.as_raw_fd());
    mount(Some("reclaim-test"), &path, Some("fuse"), MsFlags::empty(), Some(data.as_str())).or_fail("mount");
    path
}

fn one_that_cannot_be_used_stops_no_other(host: &Host, mode: Mode) {
    let bad = dead(host, "bad");
    let owned = format!("\n[[owned]]\npath = '{}/ws/{{id}}'\n", host.directory().display());
    let config = ConfigFile::write(host, [Root::at("bad", &bad), Root::of(host)]).tables(&owned);
    let stale = host.entry("stale");
    let belongs = host.make_file("ws/a/file", "text");
    if matches!(mode, Mode::Scan) {
        let reclaim = Reclaim::with(&config).evidence("scan");
        let ended = reclaim.run(&["sweep"]);
        let is_told = ended.stderr.contains("bad") && ended.stderr.contains("ENOTCONN");
        assert!(ended.code() == 1 && is_told && !stale.exists(), "{ended:?}");
        assert_eq!(reclaim.run(&["purge", "a"]).code(), 0);
        assert!(!belongs.exists());
        return;
    }
    let mut service = Service::start(host, &config, &Reclaim::with(&config));
    wait_until("the other root to be passed over", Duration::from_secs(30), || (!stale.exists()).then_some(()));
    assert!(service.log().contains("ENOTCONN"), "{}", service.log());
    assert_eq!(Reclaim::with(&config).run(&["purge", "a"]).code(), 0);
    assert!(!belongs.exists());
    service.assert_running();
}
