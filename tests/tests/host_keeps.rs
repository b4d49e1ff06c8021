//! Keep-until: one entry, by its owner or root, through the service and without one.

use reclaim_tests::{
    ConfigFile, Host, Mode, OrFail as _, Reclaim, Root, Service, Subject, cases, private_host, set_mode,
};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

cases! {
    a_kept_entry_stays_until_its_time: service, scan;
    another_entry_of_the_name_is_not_kept: service, scan;
    keeps_that_cannot_be_read_keep_everything: service, scan;
    a_keep_never_lets_anything_go: service, scan;
    names_of_bytes_are_kept: service, scan;
    only_entries_can_be_kept: service, scan;
}

const NOTHING: &[&Path] = &[];

fn start(host: &Host, mode: Mode, root: Root) -> (ConfigFile, Subject) {
    let config = ConfigFile::write(host, [root]);
    let subject = Subject::start_with(host, mode, &config);
    (config, subject)
}

#[track_caller]
fn keep(subject: &Subject, path: &Path, time: &str) -> Value {
    let arguments = ["keep".as_ref(), path.as_os_str(), "--for".as_ref(), time.as_ref()];
    let (objects, _) = subject.reclaim().objects(&arguments, &[0]);
    assert_eq!((objects.len(), objects[0]["type"].as_str()), (1, Some("keep")), "{objects:?}");
    objects[0].clone()
}

#[track_caller]
fn unkeep(subject: &Subject, path: &Path) -> bool {
    let (objects, _) = subject.reclaim().objects(&["unkeep".as_ref(), path.as_os_str()], &[0]);
    assert_eq!((objects.len(), objects[0]["type"].as_str()), (1, Some("unkeep")), "{objects:?}");
    objects[0]["was_kept"].as_bool().or_fail("was_kept")
}

#[track_caller]
fn keeps(subject: &Subject) -> Vec<Value> {
    subject.reclaim().objects(&["keeps"], &[0]).0
}

fn a_kept_entry_stays_until_its_time(host: &Host, mode: Mode) {
    // A keep beats retention, also a window of nothing at all.
    let (config, subject) = start(host, mode, Root::of(host).text("retain", "0s"));
    let (kept, short) = (host.entry("kept"), host.entry("short"));
    let told = keep(&subject, &kept, "7d");
    assert_eq!((told["path"].as_str(), told["owner"].as_u64()), (kept.to_str(), Some(0)), "{told}");
    keep(&subject, &short, "1h");
    keep(&subject, &short, "3s");
    let pass = subject.sweep_until_gone(&[host.entry("stale")], &[&kept, &short]);
    assert_eq!(pass.kept("keep-until"), 2, "{pass:?}");
    assert_eq!(keeps(&subject).len(), 2);
    sleep(Duration::from_secs(4));
    subject.sweep_until_gone(&[&short], &[&kept]);
    let left = keeps(&subject);
    assert_eq!((left.len(), left[0]["path"].as_str()), (1, kept.to_str()), "what is over is pruned: {left:?}");
    let text = fs::read_to_string(config.state().join("keeps.json")).or_fail("read the keeps");
    if mode == Mode::Service {
        assert!(!text.contains("short"), "what is over is pruned from the file: {text}");
    }
    assert!(unkeep(&subject, &kept) && !unkeep(&subject, &kept));
    subject.sweep_until_gone(&[&kept], NOTHING);
    assert!(!unkeep(&subject, &kept), "root may end what has gone");
    assert!(keeps(&subject).is_empty());
}

fn another_entry_of_the_name_is_not_kept(host: &Host, mode: Mode) {
    let (_config, subject) = start(host, mode, Root::of(host));
    let entry = host.entry("entry");
    keep(&subject, &entry, "1h");
    let pass = subject.sweep();
    assert!(entry.is_dir() && pass.kept("keep-until") == 1, "{pass:?}");
    fs::remove_dir(&entry).or_fail("remove the entry");
    sleep(Duration::from_millis(20));
    host.entry("entry");
    subject.sweep_until_gone(&[&entry], NOTHING);
    // The other way round: the kept one under another name.
    let other = host.entry("other");
    keep(&subject, &other, "1h");
    fs::rename(&other, host.root().join("renamed")).or_fail("rename");
    subject.sweep_until_gone(&[host.root().join("renamed")], NOTHING);
}

fn keeps_that_cannot_be_read_keep_everything(host: &Host, mode: Mode) {
    let (config, subject) = start(host, mode, Root::of(host));
    let file = config.state().join("keeps.json");
    let entry = host.entry("entry");
    keep(&subject, &entry, "1h");
    let good = fs::read(&file).or_fail("read the keeps");
    let stale = host.entry("stale");
    for bad in [&good[..good.len() - 1], b"", b"{}", b"[]", b"{\"version\":9,\"keeps\":[]}"] {
        fs::write(&file, bad).or_fail("damage the keeps");
        let (objects, _) = subject.reclaim().objects(&["sweep"], &[0]);
        let pass = &objects[0];
        assert!(stale.is_dir() && entry.is_dir(), "{pass}");
        assert_eq!(pass["kept"], json!({"keep-until": 2}), "{pass}");
        let fault = pass["keeps_fault"].as_str().unwrap_or_default();
        assert!(fault.contains("keeps.json") && fault.contains("mend"), "{pass}");
        // Nothing is written over what somebody may still need.
        let refused = subject.reclaim().run(&["keep".as_ref(), stale.as_os_str(), "--for".as_ref(), "1h".as_ref()]);
        assert_eq!(refused.code(), 1, "{refused:?}");
        assert_eq!(fs::read(&file).or_fail("read the keeps"), bad);
        let (objects, code) = subject.reclaim().objects(&["check"], &[0, 1]);
        assert!(code == 1 && objects.iter().any(|fault| fault["about"] == "keeps"), "{objects:?}");
    }
    fs::remove_file(&file).or_fail("remove the keeps");
    std::os::unix::fs::symlink("/dev/null", &file).or_fail("make a link");
    let pass = subject.sweep();
    assert!(stale.is_dir() && pass.kept("keep-until") == 2, "a link is not followed: {pass:?}");
    fs::remove_file(&file).or_fail("remove the link");
    fs::write(&file, &good).or_fail("mend the keeps");
    subject.sweep_until_gone(&[&stale], &[&entry]);
}

fn a_keep_never_lets_anything_go(host: &Host, mode: Mode) {
    let (_config, subject) = start(host, mode, Root::of(host).text("min_age", "1h"));
    let (young, pinned) = (host.entry("young"), host.entry("pinned"));
    let (mut sandbox, point) = host.sandbox_with(&pinned);
    for entry in [&young, &pinned] {
        keep(&subject, entry, "1s");
    }
    sleep(Duration::from_secs(3));
    let pass = subject.sweep();
    assert_eq!((pass.removed, pass.kept("young"), pass.kept("pinned")), (0, 1, 1), "{pass:?}");
    sandbox.still_works(&point, &pinned);
}

fn names_of_bytes_are_kept(host: &Host, mode: Mode) {
    let (_config, subject) = start(host, mode, Root::of(host));
    let entries = [&b"a\nb\t"[..], b"\xff\xfe", b"-x", &[b'n'; 255]].map(|name| host.entry(name));
    for entry in &entries {
        keep(&subject, entry, "1h");
    }
    let pass = subject.sweep_until_gone(&[host.entry("stale")], &entries);
    assert_eq!(pass.kept("keep-until"), 4, "{pass:?}");
    let told = keeps(&subject);
    assert!(told.iter().any(|keep| keep["path_hex"].as_str().is_some_and(|hex| hex.ends_with("2ffffe"))), "{told:?}");
    for entry in &entries {
        assert!(unkeep(&subject, entry));
    }
    subject.sweep_until_gone(&entries, NOTHING);
}

fn only_entries_can_be_kept(host: &Host, mode: Mode) {
    let (_config, subject) = start(host, mode, Root::of(host));
    host.make_dir("root/entry/below");
    let refused = |path: &Path, time: &str| {
        let arguments = ["keep".as_ref(), path.as_os_str(), "--for".as_ref(), time.as_ref()];
        let ended = subject.reclaim().run(&arguments);
        assert!(ended.code() == 1 || ended.code() == 2, "{}: {ended:?}", path.display());
        ended.stderr
    };
    for path in [host.root(), host.root().join("entry/below"), host.path("elsewhere"), host.root().join("absent")] {
        refused(&path, "1h");
    }
    for time in ["", "soon", "0s", "500y", "9999999w", "-5s"] {
        refused(&host.root().join("entry"), time);
    }
    assert!(keeps(&subject).is_empty());
}

/// A purge hears keeps as a pass does, and says when it cannot.
#[test]
fn a_purge_says_that_keeps_cannot_be_read() {
    private_host(|host| {
        let config = ConfigFile::write(host, [Root::of(host).text("match", "^sb-(?<id>.+)$")]);
        let reclaim = Reclaim::with(&config).evidence("scan");
        let entry = host.entry("sb-one");
        let file = config.state().join("keeps.json");
        fs::create_dir_all(config.state()).or_fail("make the state directory");
        fs::write(&file, "{").or_fail("damage the keeps");
        let (objects, _) = reclaim.objects(&["purge", "one"], &[1]);
        let target = &objects[0]["targets"][0];
        assert_eq!((&target["verdict"], &target["reason"]), (&json!("refused"), &json!("keep-until")), "{target}");
        assert!(target["detail"].as_str().is_some_and(|detail| detail.contains("keeps.json")), "{target}");
        assert!(entry.is_dir());
        fs::remove_file(&file).or_fail("remove the keeps");
        reclaim.objects(&["purge", "one"], &[0]);
        assert!(!entry.exists());
    });
}

/// A keep that comes while its entry is condemned counts before anything is removed.
#[track_caller]
fn keep_while_condemned(act: impl FnOnce(&Host, &Reclaim) + Send + 'static) {
    private_host(|host| {
        let config = ConfigFile::write(host, [Root::of(host).text("match", "^sb-(?<id>.+)$")]);
        let reclaim = Reclaim::with(&config).evidence("scan");
        let entry = host.entry("sb-one");
        let keep = ["keep".as_ref(), entry.as_os_str(), "--for".as_ref(), "1h".as_ref()];
        reclaim.objects(&keep, &[0]);
        let file = config.state().join("keeps.json");
        let text = fs::read(&file).or_fail("read the keeps");
        fs::remove_file(&file).or_fail("remove the keeps");
        // Without a mount clock a pass waits a while between condemning and its last look.
        let written = std::thread::spawn({
            let entry = entry.clone();
            move || {
                while entry.exists() {
                    std::hint::spin_loop();
                }
                fs::write(&file, text).or_fail("write the keeps");
            }
        });
        act(host, &reclaim);
        written.join().or_fail_thread();
        assert!(entry.is_dir());
    });
}

#[test]
fn the_last_look_of_a_pass_hears_a_keep() {
    keep_while_condemned(|host, reclaim| {
        let other = host.entry("sb-other");
        let passes = reclaim.sweep();
        assert!(!other.exists(), "{passes:?}");
        assert_eq!((passes[0].restored, passes[0].kept("keep-until")), (1, 1), "{passes:?}");
    });
}

#[test]
fn the_last_look_of_a_purge_hears_a_keep() {
    keep_while_condemned(|_, reclaim| {
        let (objects, _) = reclaim.objects(&["purge", "one"], &[1]);
        let target = &objects[0]["targets"][0];
        assert_eq!((&target["verdict"], &target["reason"]), (&json!("refused"), &json!("keep-until")), "{target}");
    });
}

trait OrFailThread {
    fn or_fail_thread(self);
}

impl OrFailThread for std::thread::Result<()> {
    fn or_fail_thread(self) {
        self.map_err(|_panic| "the thread panicked").or_fail("write the keeps in time");
    }
}

/// The owner may keep what is theirs, by what the kernel says of the peer, and learns nothing about anything else.
#[test]
fn the_owner_keeps_through_the_service_and_nobody_else() {
    private_host(|host| {
        let config = ConfigFile::write(host, [Root::of(host)]);
        set_mode(host.directory(), 0o755);
        let reclaim = Reclaim::with(&config);
        let (mine, of_root) = (host.entry("mine"), host.entry("of-root"));
        chown(&mine, Some(1000), Some(1000)).or_fail("chown");
        let by = |uid: u32, arguments: &[&str]| reclaim.clone().as_user(uid).run(arguments);
        let path = |path: &Path| path.to_str().or_fail("a path that is UTF-8").to_owned();
        let (mine_text, root_text) = (path(&mine), path(&of_root));

        let alone = by(1000, &["keep", &mine_text, "--for", "1h"]);
        assert!(alone.code() == 1 && alone.stderr.contains("needs a running service"), "{alone:?}");

        let mut service = Service::start(host, &config, &reclaim);
        service.wait_for_passes(1);
        // The first pass took them, unless they were kept: make them again.
        let (mine, of_root) = (host.entry("mine"), host.entry("of-root"));
        chown(&mine, Some(1000), Some(1000)).or_fail("chown");
        assert_eq!(by(1000, &["keep", &mine_text, "--for", "1h"]).code(), 0);
        let absent = path(&host.root().join("absent"));
        for (uid, path) in [(1000, &root_text), (1001, &mine_text), (1000, &absent)] {
            let refused = by(uid, &["keep", path, "--for", "1h"]);
            assert!(
                refused.code() == 1 && refused.stderr.contains("not there, or not yours"),
                "{uid} {path}: {refused:?}"
            );
            let refused = by(uid, &["unkeep", path]);
            assert!(
                refused.code() == 1 && refused.stderr.contains("not there, or not yours"),
                "{uid} {path}: {refused:?}"
            );
        }
        assert!(by(1001, &["--json", "keeps"]).stdout.is_empty(), "nobody sees what is another's");
        assert_eq!(by(1000, &["--json", "keeps"]).stdout.lines().count(), 1);
        let passes = reclaim.sweep();
        assert!(mine.is_dir() && !of_root.exists() && passes[0].kept("keep-until") == 1, "{passes:?}");

        // It survives a kill, and a start without the service.
        service.kill();
        let passes = reclaim.sweep();
        assert!(mine.is_dir() && passes[0].kept("keep-until") == 1, "{passes:?}");
        let service = Service::start(host, &config, &reclaim);
        assert_eq!(by(1000, &["unkeep", &mine_text]).code(), 0);
        drop(service.terminate());
        reclaim.sweep();
        assert!(!mine.exists());
    });
}

/// The file is replaced as a whole and keeps who owns it and who may read it.
#[test]
fn the_file_of_keeps_keeps_its_owner_and_mode() {
    private_host(|host| {
        let (config, subject) = start(host, Mode::Scan, Root::of(host));
        let file = config.state().join("keeps.json");
        keep(&subject, &host.entry("one"), "1h");
        assert_eq!(fs::metadata(&file).or_fail("look at the keeps").mode() & 0o7777, 0o600);
        chown(&file, Some(1000), Some(1001)).or_fail("chown");
        set_mode(&file, 0o640);
        let before = fs::metadata(&file).or_fail("look at the keeps");
        keep(&subject, &host.entry("two"), "1h");
        let after = fs::metadata(&file).or_fail("look at the keeps");
        assert_eq!((after.uid(), after.gid(), after.mode()), (1000, 1001, before.mode()));
        assert_ne!(after.ino(), before.ino(), "it was written in place");
        let beside: Vec<_> = fs::read_dir(config.state()).or_fail("list the state").flatten().collect();
        assert!(beside.iter().all(|entry| !entry.file_name().to_string_lossy().starts_with('.')), "{beside:?}");
    });
}
