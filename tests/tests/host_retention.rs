//! Retention by birth and by a manifest in the entry, through the binary.

use reclaim_tests::{
    ConfigFile, Host, Mode, OrFail as _, Pass, Reclaim, Root, Subject, cases, private_host, run_to_end, set_mode,
    wait_until,
};
use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

cases! {
    the_manifest_tells_when_it_began: service, scan;
    the_earlier_deadline_counts: scan;
    a_longer_window_gives_nothing_back: service, scan;
    without_a_manifest_its_rule_counts: scan;
    odd_manifests_are_broken_and_hang_nothing: service, scan;
    times_of_change_count_for_nothing: scan;
    a_window_of_nothing_clears_what_is_not_kept: scan;
}

const FROM: &str = "{ file = 'manifest.json', field = 'created_at', deadline = 'expires_at' }";

fn rules(host: &Host, window: &str, from: &str) -> Root {
    Root::of(host).text("remove", "tree").text("retain", window).raw("retain_from", from)
}

fn start(host: &Host, mode: Mode, root: Root) -> Subject {
    Subject::start_with(host, mode, &ConfigFile::write(host, [root]))
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).or_fail("read the clock").as_secs()
}

/// An entry with this manifest, which appears at once with all that it holds, as a pass must not meet it half made.
fn with_manifest(host: &Host, name: &str, manifest: &str) -> PathBuf {
    host.make_file(format!("made/{name}/manifest.json"), manifest);
    host.make_file(format!("made/{name}/work/file"), "text");
    let entry = host.root().join(name);
    fs::rename(host.path(format!("made/{name}")), &entry).or_fail("move an entry into the root");
    entry
}

#[track_caller]
fn expect(subject: &Subject, kept: &[PathBuf], stale: &[PathBuf]) -> Pass {
    let pass = subject.sweep_until_gone(stale, kept);
    assert_eq!(pass.kept("retained"), kept.len() as u64, "{pass:?}");
    pass
}

fn the_manifest_tells_when_it_began(host: &Host, mode: Mode) {
    let subject = start(host, mode, rules(host, "1h", FROM));
    let ago = |seconds: u64| format!("{{\"created_at\": {}}}", now() - seconds);
    let kept = [
        with_manifest(host, "fresh", &ago(3_500)),
        with_manifest(host, "later", &format!("{{\"created_at\": {}}}", now() + 900)),
    ];
    let stale = [
        with_manifest(host, "old", &ago(3_601)),
        with_manifest(host, "text", "{\"created_at\": \"2001-09-09T03:46:40+02:00\", \"more\": [1, {}]}"),
    ];
    expect(&subject, &kept, &stale);
}

fn the_earlier_deadline_counts(host: &Host, mode: Mode) {
    let manifest = |begun: u64, until: u64| {
        format!("{{\"created_at\": {}, \"expires_at\": {}}}", now() - begun, now() - 1000 + until)
    };
    let mut config = ConfigFile::write(host, [rules(host, "1h", FROM)]);
    let subject = Subject::start_with(host, mode, &config);
    let recorded_over = with_manifest(host, "recorded-over", &manifest(60, 999));
    let window_over = with_manifest(host, "window-over", &manifest(3_601, 90_000));
    let neither = with_manifest(host, "neither", &manifest(1_800, 90_000));
    let short = with_manifest(host, "short", &manifest(1_800, 1_900));
    expect(&subject, &[neither.clone(), short.clone()], &[recorded_over, window_over]);
    // A longer window gives nothing back.
    let over = with_manifest(host, "over", &manifest(60, 999));
    config.change_roots([rules(host, "90d", FROM)]);
    expect(&subject, &[neither.clone(), short.clone()], &[over]);
    // A shorter one applies to what is there.
    config.change_roots([rules(host, "20m", FROM)]);
    expect(&subject, &[], &[neither, short]);
}

fn a_longer_window_gives_nothing_back(host: &Host, mode: Mode) {
    const SHORT: Duration = Duration::from_secs(4);
    let root = |window: &str| Root::of(host).text("remove", "tree").text("retain", window);
    let mut config = ConfigFile::write(host, [root("4s")]);
    let memory = config.state().join("roots.json");
    let mut start = |window: &str| {
        config.change_roots([root(window)]);
        Subject::start_with(host, mode, &config)
    };
    let subject = start("4s");
    // Made, and seen by a pass before its window was over.
    let taken_in = |subject: &Subject| {
        for number in 0..20 {
            host.make_file(format!("root/{number}/work"), "text");
            let made = (host.root().join(number.to_string()), Instant::now());
            subject.sweep();
            if made.0.exists() {
                return made;
            }
        }
        panic!("no pass came in time");
    };
    let (early, made) = taken_in(&subject);
    drop(subject);
    host.make_file("root/late/work", "text");
    let subject = start("1h");
    let late = host.root().join("late");
    sleep(SHORT.saturating_sub(made.elapsed()));
    subject.sweep_until_gone(&[&early], &[&late]);
    // It was born before that pass, and has the window of then.
    sleep(SHORT);
    expect(&subject, std::slice::from_ref(&late), &[]);
    drop(subject);
    let subject = start("4s");
    subject.sweep_until_gone(&[&late], &[] as &[PathBuf]);
    // Nobody knows any more under which it was taken in.
    let (early, made) = taken_in(&subject);
    drop(subject);
    fs::write(&memory, "nonsense").or_fail("spoil what is remembered");
    let subject = start("1h");
    sleep(SHORT.saturating_sub(made.elapsed()));
    expect(&subject, &[early], &[]);
}

fn without_a_manifest_its_rule_counts(host: &Host, mode: Mode) {
    let from = |absent: &str, broken: &str| {
        format!("{{ file = 'manifest.json', field = 'created_at', absent = '{absent}', broken = '{broken}' }}")
    };
    let mut config = ConfigFile::write(host, [rules(host, "1ms", FROM)]);
    let subject = Subject::start_with(host, mode, &config);
    let make = || {
        host.make_file("root/absent/work", "text");
        (host.root().join("absent"), with_manifest(host, "broken", "{\"created_at\": \"some day\"}"))
    };
    let (absent, broken) = make();
    sleep(Duration::from_millis(20));
    // Not knowing is keeping, unless the configuration says otherwise.
    expect(&subject, &[absent.clone(), broken.clone()], &[]);
    config.change_roots([rules(host, "1ms", &from("birth", "keep"))]);
    expect(&subject, std::slice::from_ref(&broken), &[absent]);
    let absent = host.make_file("root/absent/work", "text");
    config.change_roots([rules(host, "1ms", &from("keep", "birth"))]);
    expect(&subject, &[absent.parent().or_fail("an entry").to_owned()], &[broken]);
    // By birth is by the window too: by the one that was in force then.
    config.change_roots([rules(host, "1h", &from("birth", "birth"))]);
    let taken_in_before = host.root().join("absent");
    subject.sweep_until_gone(&[&taken_in_before], &[] as &[PathBuf]);
    with_manifest(host, "broken", "{");
    host.make_file("root/absent/work", "text");
    let pass = subject.sweep();
    assert_eq!((pass.removed, pass.kept("retained")), (0, 2), "{pass:?}");
}

fn odd_manifests_are_broken_and_hang_nothing(host: &Host, mode: Mode) {
    let keep = "{ file = 'manifest.json', field = 'created_at', absent = 'birth', broken = 'keep' }";
    let subject = start(host, mode, rules(host, "1ms", keep));
    let old = "{\"created_at\": 1}";
    let outside = host.make_file("outside.json", old);
    let entry = |name: &str, make: &dyn Fn(&Path)| {
        let made = host.make_dir(format!("made/{name}"));
        make(&made.join("manifest.json"));
        let entry = host.root().join(name);
        fs::rename(made, &entry).or_fail("move an entry into the root");
        entry
    };
    let kept = [
        entry("pipe", &|path| nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).or_fail("make a pipe")),
        entry("link", &|path| std::os::unix::fs::symlink(&outside, path).or_fail("make a link")),
        entry("directory", &|path| fs::create_dir(path).or_fail("make a directory")),
        entry("long", &|path| fs::write(path, format!("{old}{}", " ".repeat(70_000))).or_fail("write")),
        entry("bytes", &|path| fs::write(path, b"{\"created_at\": \"\xff\"}").or_fail("write")),
        entry("empty", &|path| fs::write(path, "").or_fail("write")),
        entry("list", &|path| fs::write(path, "[1]").or_fail("write")),
        entry("other", &|path| fs::write(path, "{\"began\": 1}").or_fail("write")),
    ];
    sleep(Duration::from_millis(20));
    expect(&subject, &kept, &[with_manifest(host, "good", old)]);
    assert!(outside.is_file());
}

fn times_of_change_count_for_nothing(host: &Host, mode: Mode) {
    let subject = start(host, mode, rules(host, "1h", FROM));
    let old = with_manifest(host, "old", &format!("{{\"created_at\": {}}}", now() - 4_000));
    let fresh = with_manifest(host, "fresh", &format!("{{\"created_at\": {}}}", now()));
    let set = |path: &Path, time: SystemTime| {
        fs::File::open(path).and_then(|file| file.set_modified(time)).or_fail("set a time of change");
    };
    for name in ["", "manifest.json", "work"] {
        set(&old.join(name), SystemTime::now());
        set(&fresh.join(name), UNIX_EPOCH);
    }
    expect(&subject, &[fresh], &[old]);
}

fn a_window_of_nothing_clears_what_is_not_kept(host: &Host, mode: Mode) {
    let subject = start(host, mode, rules(host, "0s", FROM));
    let later = with_manifest(host, "later", &format!("{{\"created_at\": {}}}", now() + 9_000));
    let broken = with_manifest(host, "broken", "{");
    host.make_file("root/absent/work", "text");
    let kept = with_manifest(host, "kept", "{");
    let keep = ["keep".as_ref(), kept.as_os_str(), "--for".as_ref(), "1h".as_ref()];
    subject.reclaim().objects(&keep, &[0]);
    let pass = subject.sweep_until_gone(&[later, broken, host.root().join("absent")], &[&kept]);
    assert_eq!(pass.kept("keep-until"), 1, "{pass:?}");
}

/// Not even a window of nothing clears what could not be looked at: here for want of the right to read it.
#[test]
fn a_manifest_that_cannot_be_read_holds_its_entry() {
    private_host(|host| {
        let config = ConfigFile::write(host, [rules(host, "0s", FROM)]);
        let reclaim = Reclaim::with(&config).evidence("scan");
        let [unread, plain] = ["unread", "plain"].map(|name| with_manifest(host, name, "{\"created_at\": 1}"));
        set_mode(&unread.join("manifest.json"), 0);
        let without_right = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search", "--"];
        wait_until("the entry that can be read to be gone", Duration::from_secs(60), || {
            let finished = run_to_end(
                &mut reclaim.command_through(&without_right, &["--json", "-v", "sweep"]),
                Duration::from_secs(60),
            );
            assert!(unread.is_dir(), "{finished:?}");
            assert!(finished.stdout.contains("its manifest cannot be read at the moment"), "{finished:?}");
            (!plain.exists()).then_some(())
        });
        // It is told at first and then once a day to who does not ask for every entry, and listed.
        let told = || {
            let mut sweep = reclaim.command_through(&without_right, &["sweep"]);
            run_to_end(&mut sweep, Duration::from_secs(60)).stderr.matches("root/unread").count()
        };
        assert_eq!(told(), 0, "it was told of with every other entry");
        fs::remove_file(config.state().join("roots.json")).or_fail("forget what was told");
        assert_eq!((told(), told()), (1, 0));
        let stuck = || {
            let (objects, _) = reclaim.objects(&["check"], &[0, 1]);
            objects.into_iter().filter(|object| object["type"] == "stuck").collect::<Vec<_>>()
        };
        let listed = stuck();
        assert_eq!((listed.len(), &listed[0]["name"]), (1, &"unread".into()), "{listed:?}");
        assert!(listed[0]["why"].as_str().is_some_and(|why| why.contains("manifest cannot be read")), "{listed:?}");
        // Who may read it clears it.
        wait_until("it to be gone", Duration::from_secs(60), || {
            reclaim.sweep();
            (!unread.exists()).then_some(())
        });
        assert!(stuck().is_empty());
    });
}

/// What a verdict was made on has to be the same, byte for byte, when the entry is to be removed.
#[test]
fn a_manifest_that_changes_while_condemned_gives_the_entry_back() {
    private_host(|host| {
        let subject = start(host, Mode::Scan, rules(host, "1h", FROM));
        let old = "{\"created_at\": 1}";
        let changed = with_manifest(host, "changed", old);
        let other = with_manifest(host, "other", old);
        // A descriptor would hold the entry by itself, so it is written through a second name of the file.
        let second = host.path("second-name");
        fs::hard_link(changed.join("manifest.json"), &second).or_fail("link");
        let written = std::thread::spawn({
            let changed = changed.clone();
            move || {
                while changed.exists() {
                    std::hint::spin_loop();
                }
                // The same verdict, and yet other bytes.
                fs::write(&second, "{\"created_at\": 2}").or_fail("write the manifest");
            }
        });
        let pass = subject.sweep();
        assert!(written.join().is_ok());
        assert!(changed.is_dir() && !other.exists(), "{pass:?}");
        assert_eq!((pass.restored, pass.kept("retained"), pass.removed), (1, 1, 1), "{pass:?}");
        wait_until("the next pass to take it", Duration::from_secs(30), || {
            subject.sweep();
            (!changed.exists()).then_some(())
        });
    });
}
