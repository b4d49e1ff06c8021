//! Claims: what a program or a file says is live is kept, and everything is where they cannot say it.

use reclaim_tests::{
    ConfigFile, Host, Mode, OrFail as _, Reclaim, Root, Service, Subject, cases, private_host, wait_until,
};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

cases! {
    a_claimed_entry_stays: service, scan;
    a_file_claims: service, scan;
    whatever_goes_wrong_keeps_everything: scan;
    claims_that_change_are_heard: service, scan;
    only_ours_goes_whatever_is_claimed: scan;
}

const NOTHING: &[&Path] = &[];

/// A program of the host with this text as a shell script. The binary under test never uses a shell itself.
fn program(host: &Host, name: &str, script: &str) -> PathBuf {
    host.make_program(format!("bin/{name}"), &format!("#!/bin/sh\n{script}\n"))
}

fn by_program(host: &Host, script: &str) -> Root {
    let program = program(host, "list-live", script);
    Root::of(host).raw("claims", &format!("{{ command = ['{}'] }}", program.display()))
}

fn a_claimed_entry_stays(host: &Host, mode: Mode) {
    let list = host.make_file("live", "one\nsome where\n");
    let root = by_program(host, &format!("cat {}", list.display())).text("match", "^sb-(?<id>.+)$");
    let subject = Subject::start_with(host, mode, &ConfigFile::write(host, [root]));
    let kept = [host.entry("sb-one"), host.entry("sb-some where")];
    // The id is the group: the whole name is none.
    let stale = [host.entry("sb-two"), host.entry("sb-sb-one"), host.entry("sb-on")];
    let pass = subject.sweep_until_gone(&stale, &kept);
    assert_eq!((pass.kept("claimed"), pass.kept.len()), (2, 1), "{pass:?}");
    fs::write(&list, "").or_fail("write the list");
    subject.sweep_until_gone(&kept, NOTHING);
}

fn a_file_claims(host: &Host, mode: Mode) {
    let list = host.make_file("live", "");
    // An id is bytes, and no line of another one does harm.
    fs::write(&list, b"odd\xff\r\n\xfe\xff\nwhole-name\n").or_fail("write the list");
    let root = Root::of(host).raw("claims", &format!("{{ file = '{}' }}", list.display()));
    let subject = Subject::start_with(host, mode, &ConfigFile::write(host, [root]));
    let kept = [host.entry(b"odd\xff"), host.entry("whole-name")];
    let pass = subject.sweep_until_gone(&[host.entry("other")], &kept);
    assert_eq!(pass.kept("claimed"), 2, "{pass:?}");
    fs::remove_file(&list).or_fail("remove the list");
    let other = host.entry("other");
    let pass = subject.sweep();
    assert!(other.is_dir() && pass.kept("claimed") == 3, "{pass:?}");
}

fn whatever_goes_wrong_keeps_everything(host: &Host, mode: Mode) {
    let list = host.path("live");
    let entry = host.entry("free");
    let slow = program(host, "slow", "sleep 600 & echo one; wait");
    for (claims, told) in [
        ("{ command = ['/no/such/program'] }".to_owned(), "cannot be run"),
        (
            format!("{{ command = ['{}'] }}", program(host, "fails", "echo one; echo broken >&2; exit 7").display()),
            "broken",
        ),
        (format!("{{ command = ['{}'] }}", program(host, "cut", "printf 'one\\ntw'").display()), "cut short"),
        (format!("{{ command = ['{}'], timeout = '300ms' }}", slow.display()), "did not end within 300ms"),
        (format!("{{ command = ['{}'] }}", program(host, "much", "head -c 17000000 /dev/zero").display()), "more than"),
        (format!("{{ file = '{}' }}", list.display()), "cannot read"),
        (format!("{{ file = '{}' }}", host.root().display()), "not a regular file"),
        (format!("{{ file = '{}' }}", host.make_file("empty", "").display()), "empty: it is empty"),
        (format!("{{ file = '{}' }}", host.make_file("marked", "\u{feff}one\n").display()), "byte order mark"),
        (
            format!("{{ command = ['{}'] }}", program(host, "wide", "printf 'o\\000n\\000\\n\\000'; echo").display()),
            "zero byte",
        ),
    ] {
        let config = ConfigFile::write(host, [Root::of(host).raw("claims", &claims)]);
        let subject = Subject::start_with(host, mode, &config);
        let (objects, code) = subject.reclaim().objects(&["sweep"], &[0]);
        let pass = &objects[0];
        assert!(entry.is_dir(), "{claims}: {pass}");
        assert_eq!(pass.pointer("/kept/claimed").and_then(serde_json::Value::as_u64), Some(1), "{claims}: {pass}");
        let fault = pass.get("claims_fault").and_then(serde_json::Value::as_str).unwrap_or_default();
        assert!(fault.contains(told) && code == 0, "{claims}: {pass}");
        // Since when that is so stays the same from one pass to the next, over a second at least.
        let since = |object: &serde_json::Value| object.get("claims_unread_since").cloned().or_fail("since when");
        std::thread::sleep(Duration::from_millis(1_100));
        let (again, _) = subject.reclaim().objects(&["sweep"], &[0]);
        assert_eq!(since(pass), since(&again[0]), "{claims}");
    }
    let alive = fs::read_dir("/proc").or_fail("list /proc").flatten().filter(|task| {
        let line = fs::read(task.path().join("cmdline")).unwrap_or_default();
        line.windows(slow.as_os_str().len()).any(|part| part == slow.as_os_str().as_encoded_bytes())
    });
    assert_eq!(alive.count(), 0, "the program that hung was not killed");
    // Once they can be read again nothing is told of the time before. An empty line says in a file that nothing is live.
    let nothing = format!("{{ file = '{}' }}", host.make_file("nothing", "\n").display());
    let config = ConfigFile::write(host, [Root::of(host).raw("claims", &nothing)]);
    let subject = Subject::start_with(host, mode, &config);
    subject.sweep_until_gone(&[&entry], NOTHING);
}

/// What the program says when it is asked the second time, with the entry condemned, is what counts.
fn claims_that_change_are_heard(host: &Host, mode: Mode) {
    let asked = host.path("asked");
    let script = format!("[ -e {0}/late ] || exit 0; if [ -e {0}/asked ]; then echo late; fi; touch {0}/asked", {
        fs::create_dir(&asked).or_fail("make a directory");
        asked.display()
    });
    let subject = Subject::start_with(host, mode, &ConfigFile::write(host, [by_program(host, &script)]));
    let (late, other) = (host.entry("late"), host.entry("other"));
    fs::write(asked.join("late"), "").or_fail("have the program claim late");
    let pass = subject.sweep();
    assert!(late.is_dir() && !other.exists(), "{pass:?}");
    assert_eq!((pass.restored, pass.kept("claimed"), pass.candidates), (1, 1, 2), "{pass:?}");
    let (objects, _) = subject.reclaim().objects(&["check"], &[0, 1]);
    assert!(!objects.iter().any(|object| object["type"] == "stuck"), "the next pass sees that: {objects:?}");

    // It fails when it is asked again: everything has its name back.
    let third = host.entry("third");
    fs::remove_file(asked.join("asked")).or_fail("start again");
    let failing = format!("if [ -e {0}/asked ]; then exit 1; fi; touch {0}/asked", asked.display());
    program(host, "list-live", &failing);
    let pass = subject.sweep();
    assert!(late.is_dir() && third.is_dir(), "{pass:?}");
    assert_eq!((pass.restored, pass.kept("claimed"), pass.removed), (2, 2, 0), "{pass:?}");
}

/// Entries of another instance are no candidates, though nobody claims them.
fn only_ours_goes_whatever_is_claimed(host: &Host, mode: Mode) {
    let root = by_program(host, "echo mine-1").text("match", "^mine-").text("owner", "root");
    let subject = Subject::start_with(host, mode, &ConfigFile::write(host, [root]));
    let (other, foreign) = (host.entry("theirs-1"), host.entry("mine-3"));
    std::os::unix::fs::chown(&foreign, Some(1000), None).or_fail("chown");
    let kept = [host.entry("mine-1"), other, foreign];
    let pass = subject.sweep_until_gone(&[host.entry("mine-2")], &kept);
    assert_eq!((pass.kept("claimed"), pass.kept("name"), pass.kept("owner")), (1, 1, 1), "{pass:?}");
}

/// The service answers while a program takes its time, says at warning level what is held back, and remembers over a start.
#[test]
fn slow_claims_stop_no_answer_and_since_when_survives_a_start() {
    private_host(|host| {
        let config = ConfigFile::write(host, [by_program(host, "sleep 4; exit 1")]).every("1h");
        let reclaim = Reclaim::with(&config);
        let entry = host.entry("entry");
        let mut service = Service::start(host, &config, &reclaim);
        let mut connection = service.connect();
        // A question is answered long before the program ends.
        wait_until("the first pass to begin", Duration::from_secs(30), || {
            let status = connection.ask(&serde_json::json!({"op": "status"}));
            (status["sweeping"] == "root").then_some(())
        });
        assert!(service.passes().is_empty(), "the pass cannot be over");
        service.wait_for_passes(1);
        let since = |status: &serde_json::Value| status["passes"][0]["claims_unread_since"].clone();
        let status = connection.ask(&serde_json::json!({"op": "status"}));
        assert!(since(&status).is_string(), "{status}");
        let log = service.log();
        assert!(
            log.lines().any(|line| line.contains("WARN") && line.contains("everything in this root is kept")),
            "{log}"
        );
        drop(service.terminate());

        let mut service = Service::start(host, &config, &reclaim);
        let before = service.passes().len();
        service.wait_for_passes(before + 1);
        let again = service.connect().ask(&serde_json::json!({"op": "status"}));
        assert_eq!(since(&again), since(&status), "since when is kept in the state directory");
        let (objects, _) = reclaim.objects(&["check"], &[0, 1]);
        let root = objects.iter().find(|object| object["type"] == "root").or_fail("the root in check");
        assert_eq!(root["claims_unread_since"], since(&status));
        assert!(entry.is_dir());
    });
}

/// Two sweeps of different roots at once: neither forgets what the other one has to remember.
#[test]
fn sweeps_at_once_remember_each_their_own_root() {
    private_host(|host| {
        let (begun, go_on) = (host.path("begun"), host.path("go-on"));
        let script =
            format!("touch {}; while [ ! -e {} ]; do sleep 0.05; done; exit 1", begun.display(), go_on.display());
        let slow = program(host, "slow", &script);
        let roots = [("slow", slow), ("quick", program(host, "quick", "exit 1"))].map(|(name, claims)| {
            let claims = format!("{{ command = ['{}'], timeout = '50s' }}", claims.display());
            Root::at(name, &host.make_dir(name)).raw("claims", &claims)
        });
        let config = ConfigFile::write(host, roots);
        let reclaim = Reclaim::with(&config).evidence("scan");
        let first = std::thread::spawn({
            let reclaim = reclaim.clone();
            move || reclaim.run(&["sweep", "--root", "slow"])
        });
        wait_until("the first sweep to ask for claims", Duration::from_secs(30), || begun.exists().then_some(()));
        reclaim.objects(&["sweep", "--root", "quick"], &[0]);
        fs::write(&go_on, "").or_fail("let the first sweep go on");
        assert!(first.join().is_ok_and(|finished| finished.code() == 0));
        let remembered = fs::read_to_string(config.state().join("roots.json")).or_fail("read what is remembered");
        assert!(remembered.contains("\"slow\"") && remembered.contains("\"quick\""), "{remembered}");
    });
}
