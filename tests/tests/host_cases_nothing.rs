//! Case 17: nothing to do, and roots that are none.

use nix::mount::{MsFlags, mount};
use reclaim_tests::{ConfigFile, Host, Mode, OrFail as _, Reclaim, Root, Subject, cases, private_host};
use std::fs;
use std::os::unix::fs::symlink;

cases! {
    empty_root: service, scan, fallback;
    missing_root: service, scan;
    read_only_root: scan, service;
}

fn empty_root(host: &Host, mode: Mode) {
    let subject = Subject::start(host, mode);
    for _ in 0..2 {
        let pass = subject.sweep();
        assert_eq!((pass.listed, pass.removed, pass.candidates), (0, 0, 0), "{pass:?}");
    }
    assert!(host.names().is_empty());
    // The claim is as true as that about a root in which there is something to decide on.
    let empty = subject.sweep();
    let _sandbox = host.sandbox_with(&host.entry("live"));
    let pass = subject.sweep();
    assert_eq!((pass.kept("pinned"), &empty.evidence), (1, &pass.evidence), "{empty:?}");
}

fn missing_root(host: &Host, mode: Mode) {
    let missing = host.path("missing");
    let config = ConfigFile::write(host, [Root::of(host), Root::at("missing", &missing)]);
    let reclaim = Reclaim::with(&config);
    let mut service = (mode == Mode::Service).then(|| reclaim_tests::Service::start(host, &config, &reclaim));
    let stale = host.entry("stale");
    // Nothing is there yet, which is nothing to do: the other root is swept and nobody makes this one.
    let finished = reclaim.run(&["--json", "sweep"]);
    assert!([0, 4].contains(&finished.code()), "{finished:?}");
    assert!(!stale.exists(), "{finished:?}");
    assert!(!missing.exists());
    // It is swept once it is there.
    fs::create_dir_all(missing.join("late")).or_fail("make a root");
    reclaim_tests::wait_until("the late root", std::time::Duration::from_secs(30), || {
        reclaim.run(&["--json", "sweep"]);
        (!missing.join("late").exists()).then_some(())
    });
    if let Some(service) = &mut service {
        service.assert_running();
    }
}

fn read_only_root(host: &Host, mode: Mode) {
    let root = host.make_tmpfs("read-only");
    fs::create_dir(root.join("stale")).or_fail("make an entry");
    let flags = MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
    mount(None::<&str>, &root, None::<&str>, flags, None::<&str>).or_fail("make the root read-only");
    let config = ConfigFile::write(host, [Root::of(host), Root::at("read-only", &root)]);
    let reclaim = Reclaim::with(&config);
    let mut service = (mode == Mode::Service).then(|| reclaim_tests::Service::start(host, &config, &reclaim));
    let stale = host.entry("stale");
    let finished = reclaim.run(&["--json", "sweep"]);
    assert!([0, 1, 4].contains(&finished.code()), "{finished:?}");
    assert!(root.join("stale").is_dir());
    assert!(!stale.exists(), "one bad root does not stop the other: {finished:?}");
    let told = finished.stdout.contains("failed") || finished.stderr.contains("ead-only");
    assert!(told, "why the entry stays: {finished:?}");
    if let Some(service) = &mut service {
        service.assert_running();
    }
}

#[test]
fn a_root_that_is_a_link_is_refused() {
    private_host(|host| {
        let stale = host.entry("stale");
        let link = host.path("link");
        symlink(host.root(), &link).or_fail("make a link");
        let config = ConfigFile::write(host, [Root::at("link", &link)]);
        let finished = Reclaim::with(&config).run(&["sweep"]);
        assert_eq!(finished.code(), 2, "{finished:?}");
        assert!(finished.stderr.contains("path") && finished.stderr.contains("link"), "{finished:?}");
        assert!(stale.is_dir());
    });
}

#[test]
fn a_root_inside_another_is_refused() {
    private_host(|host| {
        let inner = host.make_dir("root/inner");
        host.make_dir("root/inner/stale");
        let config = ConfigFile::write(host, [Root::of(host), Root::at("inner", &inner)]);
        let finished = Reclaim::with(&config).run(&["sweep"]);
        assert_eq!(finished.code(), 2, "{finished:?}");
        assert!(inner.join("stale").is_dir());
    });
}
