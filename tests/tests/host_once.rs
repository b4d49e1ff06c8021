//! Legacy residue: names that prove nothing by themselves, taken once, in a pile, and then never looked at again.

use reclaim_tests::{
    ConfigFile, Host, Mode, OrFail as _, Pass, Reclaim, Request, Root, Service, Subject, cases, private_host, set_mode,
    wait_until,
};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

cases! {
    residue_of_exact_shape_goes_and_the_root_retires: service, scan;
    under_the_threshold_nothing_is_touched: service, scan;
    what_is_left_for_age_alone_keeps_the_root_in_use: scan;
    a_dry_run_retires_nothing: service, scan;
    what_somebody_has_locked_keeps_the_root_in_use: scan;
}

/// What an unkeyed launcher left behind: `tmp.` and eight letters or digits, mode 0700, empty.
fn legacy(host: &Host) -> Root {
    let root = Root::of(host).text("match", "^tmp\\.[A-Za-z0-9]{8}$").text("owner", "root").text("mode", "0700");
    root.text("min_age", "1s").raw("pile", "8").raw("once", "true")
}

fn residue(host: &Host, from: usize, count: usize) -> Vec<PathBuf> {
    (from..from + count)
        .map(|index| {
            let entry = host.entry(format!("tmp.{index:08}"));
            set_mode(&entry, 0o700);
            entry
        })
        .collect()
}

fn start(host: &Host, mode: Mode) -> (ConfigFile, Subject) {
    let config = ConfigFile::write(host, [legacy(host)]);
    // A service begins with a pass of its own, which may find the root done with before the test has begun.
    residue(host, 90_000, 1);
    let subject = Subject::start_with(host, mode, &config);
    for marker in markers(&config) {
        fs::remove_file(marker).or_fail("remove a marker");
    }
    (config, subject)
}

#[track_caller]
fn markers(config: &ConfigFile) -> Vec<PathBuf> {
    let names = fs::read_dir(config.state()).into_iter().flatten().flatten();
    names.map(|name| name.path()).filter(|path| path.to_string_lossy().contains("retired-root-")).collect()
}

#[track_caller]
fn sweep(subject: &Subject) -> Value {
    let (objects, _) = subject.reclaim().objects(&["sweep"], &[0, 4]);
    objects[0].clone()
}

fn residue_of_exact_shape_goes_and_the_root_retires(host: &Host, mode: Mode) {
    let (config, subject) = start(host, mode);
    let stale = residue(host, 0, 20);
    let shape = [host.entry("tmp.1234567"), host.entry("tmp.123456789"), host.entry("xtmp.12345678")];
    let [foreign, wide, file, full, pinned] =
        ["tmp.foreign1", "tmp.widemode", "tmp.afile000", "tmp.full0000", "tmp.pinned00"]
            .map(|name| host.root().join(name));
    for path in [&foreign, &wide, &full, &pinned] {
        fs::create_dir(path).or_fail("make an entry");
        set_mode(path, 0o700);
    }
    chown(&foreign, Some(1000), Some(1000)).or_fail("chown");
    set_mode(&wide, 0o755);
    fs::write(&file, "").or_fail("make a file");
    set_mode(&file, 0o700);
    fs::write(full.join("file"), "").or_fail("fill an entry");
    let (mut sandbox, point) = host.sandbox_with(&pinned);
    sleep(Duration::from_millis(1_100));
    let kept = [&shape[0], &shape[1], &shape[2], &foreign, &wide, &file, &full, &pinned];
    let pass = subject.sweep_until_gone(&stale, &kept);
    for (reason, count) in [("name", 3), ("owner", 1), ("mode", 1), ("kind", 1), ("not-empty", 1), ("pinned", 1)] {
        assert_eq!(pass.kept(reason), count, "{reason}: {pass:?}");
    }
    sandbox.still_works(&point, &pinned);
    assert_eq!(markers(&config).len(), 1, "nothing was left for age alone: {pass:?}");

    // From here on nothing of it is looked at.
    let more = residue(host, 100, 20);
    sleep(Duration::from_millis(1_100));
    let told = sweep(&subject);
    assert!(told["retired_since"].is_string() && told["listed"] == 0, "{told}");
    assert!(more.iter().all(|entry| entry.is_dir()), "a retired root was swept: {told}");
    let (objects, _) = subject.reclaim().objects(&["check"], &[0, 1]);
    let root = objects.iter().find(|object| object["type"] == "root").or_fail("the root in check");
    assert_eq!(root["retired_since"], told["retired_since"]);
    let text = subject.reclaim().run(&["sweep"]).stdout;
    assert!(text.contains("retired since"), "{text}");
    if mode == Mode::Service {
        let (objects, _) = subject.reclaim().objects(&["status"], &[0]);
        assert_eq!(objects[0]["passes"][0]["retired_since"], told["retired_since"], "{objects:?}");
    }
    // Taking the marker away puts it in use again.
    fs::remove_file(&markers(&config)[0]).or_fail("remove the marker");
    subject.sweep_until_gone(&more, &kept);
}

fn under_the_threshold_nothing_is_touched(host: &Host, mode: Mode) {
    let (_config, subject) = start(host, mode);
    let few = residue(host, 0, 6);
    sleep(Duration::from_millis(1_100));
    let told = sweep(&subject);
    assert_eq!((&told["removed"], &told["kept"]), (&json!(0), &json!({"pile": 7})), "{told}");
    assert!(few.iter().all(|entry| entry.is_dir()));
}

fn what_is_left_for_age_alone_keeps_the_root_in_use(host: &Host, mode: Mode) {
    let (config, subject) = start(host, mode);
    let old = residue(host, 0, 20);
    sleep(Duration::from_millis(1_100));
    let young = residue(host, 100, 1);
    let pass: Pass = subject.sweep();
    assert!(old.iter().all(|entry| !entry.exists()) && young[0].is_dir(), "{pass:?}");
    assert!(pass.kept("young") == 1 && markers(&config).is_empty(), "{pass:?}");
    sleep(Duration::from_millis(1_100));
    // Alone it is under the threshold, which is no matter of age.
    let told = sweep(&subject);
    assert_eq!(told["kept"], json!({"pile": 1}), "{told}");
    assert_eq!(markers(&config).len(), 1);
}

fn what_somebody_has_locked_keeps_the_root_in_use(host: &Host, mode: Mode) {
    let (config, subject) = start(host, mode);
    let (leased, stale) = (residue(host, 100, 1), residue(host, 0, 20));
    let mut holder = reclaim_tests::Actor::start();
    holder.ask(&Request::Lock(leased[0].clone().into()));
    sleep(Duration::from_millis(1_100));
    let pass = subject.sweep_until_gone(&stale, &leased);
    assert_eq!(pass.kept("leased"), 1, "{pass:?}");
    assert!(markers(&config).is_empty(), "it goes once the lock is let go: {pass:?}");
}

fn a_dry_run_retires_nothing(host: &Host, mode: Mode) {
    let (config, subject) = start(host, mode);
    let before = markers(&config).len();
    sleep(Duration::from_millis(1_100));
    subject.reclaim().sweep_with(&["--dry-run"]);
    assert_eq!(markers(&config).len(), before);
}

/// A pass that is cut short has not seen what may be left.
#[test]
fn a_pass_that_is_cut_short_retires_nothing() {
    private_host(|host| {
        residue(host, 0, 20_000);
        sleep(Duration::from_millis(1_100));
        let config = ConfigFile::write(host, [legacy(host)]).budget("1ms");
        let reclaim = Reclaim::with(&config).evidence("scan");
        let pass = reclaim.sweep().remove(0);
        assert!(pass.truncated && markers(&config).is_empty(), "{pass:?}");
    });
}

/// What lies in the place of the marker is not written through, and skips the root as a marker would.
#[test]
fn a_link_in_the_place_of_the_marker_leads_nowhere() {
    private_host(|host| {
        let config = ConfigFile::write(host, [legacy(host)]);
        let reclaim = Reclaim::with(&config).evidence("scan");
        let stale = residue(host, 0, 20);
        sleep(Duration::from_millis(1_100));
        reclaim.sweep();
        assert!(stale.iter().all(|entry| !entry.exists()));
        let marker = markers(&config).remove(0);
        let target = host.path("target");
        fs::remove_file(&marker).or_fail("remove the marker");
        std::os::unix::fs::symlink(&target, &marker).or_fail("make a link");
        let more = residue(host, 100, 20);
        sleep(Duration::from_millis(1_100));
        let (objects, _) = reclaim.objects(&["sweep"], &[0]);
        assert!(objects[0]["retired_since"].is_string(), "{objects:?}");
        assert!(more.iter().all(|entry| entry.is_dir()) && !target.exists());
        // A root of the same name elsewhere is another one.
        let elsewhere = host.make_dir("elsewhere");
        let other = Root::at("root", &elsewhere).text("min_age", "0s").raw("once", "true");
        let mut config = config;
        config.change_roots([other]);
        fs::create_dir(elsewhere.join("stale")).or_fail("make an entry");
        reclaim.sweep();
        assert!(!elsewhere.join("stale").exists());
    });
}

/// A root that does not exist yet is not done with.
#[test]
fn a_missing_root_is_not_retired() {
    private_host(|host| {
        let missing: &Path = &host.path("missing");
        let config = ConfigFile::write(host, [Root::at("root", missing).raw("once", "true")]);
        let mut service = Service::start(host, &config, &Reclaim::with(&config));
        service.wait_for_passes(1);
        assert!(markers(&config).is_empty());
    });
}

/// Who looks only at what an earlier run left condemned does so in a retired root too, and retires none.
#[test]
fn what_lies_condemned_in_a_retired_root_is_brought_to_its_end() {
    private_host(|host| {
        let config = ConfigFile::write(host, [legacy(host).text("match", "^tmp\\.(?<id>[A-Za-z0-9]{8})$")]);
        let reclaim = Reclaim::with(&config).evidence("scan");
        reclaim.sweep();
        let marker = markers(&config).remove(0);
        let retired = fs::read(&marker).or_fail("read the marker");
        for (round, is_retired) in [true, false].into_iter().enumerate() {
            fs::remove_file(&marker).or_fail("remove the marker");
            residue(host, round * 100, 20);
            sleep(Duration::from_millis(1_100));
            wait_until("a pass that condemns", Duration::from_secs(60), || {
                reclaim.clone().variable("RECLAIM_TEST_CRASH", "after-condemn").run(&["sweep"]);
                (!host.condemned().is_empty()).then_some(())
            });
            if is_retired {
                fs::write(&marker, &retired).or_fail("write the marker");
            }
            let finished = reclaim.run(&["purge", "nobody"]);
            assert_eq!(finished.code(), 0, "{finished:?}");
            assert!(host.condemned().is_empty(), "retired: {is_retired}: {finished:?}");
            assert_eq!(marker.exists(), is_retired, "{finished:?}");
            // The next round begins with a root that is retired.
            fs::write(&marker, &retired).or_fail("write the marker");
        }
    });
}
