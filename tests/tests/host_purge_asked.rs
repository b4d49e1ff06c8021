//! How `reclaim purge` comes to its work: through which service, without one, by whose configuration, and until when.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use reclaim_tests::{
    Actor, ConfigFile, Finished, Host, Mode, OrFail as _, Reclaim, Request, Root, Service, Subject, alive, cases,
    is_stopped, private_host, set_mode, wait_until,
};
use serde_json::json;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

cases! {
    every_id_is_tried_and_the_worst_decides: service, scan;
}

/// Templates in directories of their own, and a root for passes that has nothing of an id.
fn config(host: &Host, directories: &[&str]) -> ConfigFile {
    ConfigFile::write(host, [Root::of(host)]).tables(&tables(host, directories))
}

fn tables(host: &Host, directories: &[&str]) -> String {
    let table = |directory: &&str| format!("\n[[owned]]\npath = '{}/{{id}}'\n", host.make_dir(directory).display());
    directories.iter().map(table).collect()
}

fn make(host: &Host, directory: &str, id: &str) -> PathBuf {
    host.make_file(format!("{directory}/{id}/file"), "text");
    host.path(format!("{directory}/{id}"))
}

/// A service that never read what its callers go by does nothing for them, until it reads its file again.
#[test]
fn a_service_with_another_configuration_refuses() {
    private_host(|host| {
        let config = config(host, &["ws"]);
        let reclaim = Reclaim::with(&config);
        let service = Service::start(host, &config, &reclaim);
        let (ours, cache) = (make(host, "ws", "abc"), make(host, "cache", "abc"));
        let config = config.tables(&tables(host, &["cache"]));
        for arguments in [&["purge", "abc"][..], &["purge", "abc", "--wait", "20s"], &["purge", "abc", "--dry-run"]] {
            let finished = reclaim.run(arguments);
            assert_eq!(finished.code(), 2, "{finished:?}");
            let words = ["cache/{id}", "this command alone", "systemctl reload", "SIGHUP", "--config"];
            assert!(words.iter().all(|words| finished.stderr.contains(words)), "{finished:?}");
        }
        assert!(ours.is_dir() && cache.is_dir());
        // Whoever says nothing of its configuration goes by that of the service.
        let answer = service.connect().ask(&json!({"op": "purge", "id": "abc", "dry_run": true}));
        assert_eq!(answer.pointer("/results/0/type"), Some(&json!("purge")), "{answer}");
        service.signal(Signal::SIGHUP);
        wait_until("the configuration to be read again", Duration::from_secs(40), || {
            service.log().contains("was read again").then_some(())
        });
        assert_eq!(reclaim.purge("abc", &[], 0).removed, 2);
        assert!(!ours.exists() && !cache.exists());
        // What the service has alone is a difference, too, and so is how something is removed.
        let (ours, text) = (make(host, "ws", "abc"), config.to_toml());
        let without = text.rsplit_once("\n[[owned]]").or_fail("a table").0.to_owned();
        let otherwise = text.replace("ws/{id}'", "ws/{id}'\nremove = 'empty'");
        for (text, words) in [(without, "that of the service alone"), (otherwise, "remove = \"empty\"")] {
            config.write_text(&text);
            let finished = reclaim.run(&["--json", "purge", "abc"]);
            assert_eq!(finished.code(), 2, "{finished:?}");
            assert!(finished.stderr.contains(words), "{finished:?}");
            assert!(ours.is_dir());
        }
    });
}

/// The same of a root whose entries tell ids: its path and its names.
#[test]
fn a_root_that_tells_ids_otherwise_is_a_difference() {
    private_host(|host| {
        let root = |pattern: &str| Root::of(host).text("match", pattern).text("remove", "tree").text("min_age", "1h");
        let mut config = ConfigFile::write(host, [root("^job-(?<id>[a-z]+)$")]);
        let reclaim = Reclaim::with(&config);
        let _service = Service::start(host, &config, &reclaim);
        let entry = host.entry("job-abc");
        config.change_roots([root("^job-(?<id>[a-z]+)(-[0-9]+)?$")]);
        let finished = reclaim.run(&["purge", "abc"]);
        assert_eq!(finished.code(), 2, "{finished:?}");
        assert!(finished.stderr.contains("(-[0-9]+)?"), "{finished:?}");
        assert!(entry.is_dir());
        // What passes alone go by is none.
        config.change_roots([root("^job-(?<id>[a-z]+)$").text("min_age", "2h").text("retain", "3h")]);
        reclaim.purge("abc", &[], 0);
        assert!(!entry.exists());
    });
}

/// Has a directory of templates held by another reclaimer, until that lets go of it.
fn hold(host: &Host, directory: &str) -> Actor {
    let store = host.make_dir(format!("{directory}/.reclaim"));
    set_mode(&store, 0o700);
    let mut other = Actor::start();
    other.ask(&Request::Lock(store.into()));
    other
}

fn every_id_is_tried_and_the_worst_decides(host: &Host, mode: Mode) {
    let subject = Subject::start_with(host, mode, &config(host, &["ws", "cache"]));
    let (busy, free) = (make(host, "cache", "d"), make(host, "ws", "f"));
    let other = hold(host, "cache");
    wait_until("the second id to go", Duration::from_secs(60), || {
        let finished = subject.reclaim().run(&["purge", "d", "f"]);
        assert_eq!(finished.code(), 5, "{finished:?}");
        assert!(finished.stderr.contains(&other.pid().to_string()), "who holds it: {finished:?}");
        assert!(busy.is_dir() && finished.stdout.contains("f: "), "{finished:?}");
        (!free.exists()).then_some(())
    });
    // The worst decides, wherever it stands.
    let (sandbox, _) = host.sandbox_with(&make(host, "ws", "f"));
    let finished = subject.reclaim().run(&["purge", "d", "f", "d"]);
    assert_eq!(finished.code(), 5, "{finished:?}");
    assert_eq!(finished.stderr.matches("is held by").count(), 2, "{finished:?}");
    drop(sandbox);
}

/// A purge that waits for a sandbox on a thread of its own, and what it ended with.
fn wait_for(config: &ConfigFile) -> JoinHandle<Finished> {
    let reclaim = Reclaim::with(config).within(Duration::from_secs(120));
    spawn(move || reclaim.run(&["-v", "purge", "abc", "--wait", "90s"]))
}

/// Who waits goes on without a service that ends, and through one that comes.
#[test]
fn whoever_waits_outlives_services() {
    private_host(|host| {
        let config = config(host, &["ws"]);
        let reclaim = Reclaim::with(&config);
        let ours = make(host, "ws", "abc");
        let (sandbox, _) = host.sandbox_with(&ours);
        let asked = |service: &Service| {
            wait_until("the service to be asked", Duration::from_secs(60), || service.has_told("purge").then_some(()));
        };
        let first = Service::start(host, &config, &reclaim);
        let waiting = wait_for(&config);
        asked(&first);
        assert_eq!(first.terminate().code(), 0);
        sleep(Duration::from_secs(2));
        assert!(!waiting.is_finished(), "{:?}", waiting.join());
        let told = config.socket().with_extension("sock.out");
        fs::remove_file(told).or_fail("forget what the first one told");
        let second = Service::start(host, &config, &reclaim);
        asked(&second);
        // One that has no time to say anything is outlived, too.
        second.kill();
        sleep(Duration::from_secs(1));
        assert!(!waiting.is_finished() && ours.is_dir(), "{:?}", waiting.join());
        sandbox.kill();
        let finished = waiting.join().ok().or_fail("the purge");
        assert_eq!(finished.code(), 0, "{finished:?}");
        assert!(!ours.exists());
    });
}

/// What a service gave up because it was told to stop is not the answer to who waits.
#[test]
fn whoever_waits_goes_on_with_what_a_service_gave_up() {
    private_host(|host| {
        let slow = host.make_file("slow", "");
        let directory = host.directory().display().to_string();
        let program = host.make_program(
            "bin/acme",
            &format!("#!/bin/sh\ncd '{directory}'\ntouch begun\nwhile test -e slow; do sleep 0.1; done\nrm nets/$1\n"),
        );
        let net = host.make_file("nets/abc", "");
        let managed = format!("\n[[owned]]\nremove = 'command'\ncommand = ['{}', '{{id}}']\n", program.display());
        let config = config(host, &["ws"]).tables(&managed);
        let ours = make(host, "ws", "abc");
        let service = Service::start(host, &config, &Reclaim::with(&config));
        let waiting = wait_for(&config);
        wait_until("the manager to be asked", Duration::from_secs(60), || host.path("begun").exists().then_some(()));
        assert_eq!(service.terminate().code(), 0);
        assert!(net.exists() && ours.is_dir());
        fs::remove_file(slow).or_fail("let the manager go on");
        let finished = waiting.join().ok().or_fail("the purge");
        assert_eq!(finished.code(), 0, "{finished:?}");
        assert!(!net.exists() && !ours.exists());
    });
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).or_fail("a pid"))
}

/// Starts a command without a service, has it told to stop by a signal where it stands still by itself, and lets it go on.
/// None when it never came there.
fn told_at(step: &str, reclaim: &Reclaim, signal: Signal, arguments: &[&str]) -> Option<Finished> {
    let stopping = reclaim.clone().variable("RECLAIM_TEST_STOP", step);
    let mut command = stopping.command(arguments);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().or_fail("start it");
    let pid = pid_of(&child);
    let mut is_told = false;
    wait_until("it to end", LIMIT, || {
        if is_stopped(pid) {
            if !is_told {
                kill(pid, signal).or_fail("tell it to stop");
                is_told = true;
            }
            kill(pid, Signal::SIGCONT).or_fail("let it go on");
        }
        child.try_wait().or_fail("look at it")
    });
    let output = child.wait_with_output().or_fail("wait for it");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    is_told.then(|| Finished { status: output.status, stdout: text(output.stdout), stderr: text(output.stderr) })
}

/// When something was last moved or changed.
fn changed(path: &Path) -> (i64, i64) {
    let status = path.symlink_metadata().or_fail("look at it");
    (status.ctime(), status.ctime_nsec())
}

/// What a purge has in hand gets its names back, and the ids behind it are told.
#[test]
fn a_purge_that_is_told_to_stop_gives_names_back() {
    private_host(|host| {
        let config = config(host, &["ws", "cache"]);
        let reclaim = Reclaim::with(&config).evidence("scan");
        let ours = [make(host, "ws", "abc"), make(host, "cache", "abc")];
        let next = make(host, "ws", "next");
        for (step, signal) in [
            ("purge-begins", Signal::SIGTERM),
            ("after-condemn", Signal::SIGTERM),
            ("after-condemn", Signal::SIGINT),
            ("after-confirm", Signal::SIGTERM),
        ] {
            let (changed, finished) = wait_until("evidence enough to come to the step", LIMIT, || {
                Some((changed(&ours[0]), told_at(step, &reclaim, signal, &["purge", "abc", "next"])?))
            });
            assert_eq!(
                changed == self::changed(&ours[0]),
                step == "purge-begins",
                "whether it was moved: {finished:?}"
            );
            assert_eq!(finished.code(), 1, "{step}: {finished:?}");
            assert!(finished.stdout.contains("reclaim was told to stop"), "{step}: {finished:?}");
            assert!(finished.stderr.contains("not purged: next"), "{step}: {finished:?}");
            assert!(ours.iter().all(|path| path.join("file").is_file()) && next.is_dir(), "{step}: {finished:?}");
            assert!(!["ws", "cache"].iter().any(|path| host.path(path).join(".reclaim").exists()), "{step}");
        }
        assert_eq!(reclaim.purge("abc", &[], 0).removed, 2);
    });
}

/// The manager's command is ended with all that it started.
#[test]
fn a_purge_that_is_told_to_stop_ends_the_command() {
    private_host(|host| {
        let (managed, mark) = hanging(host);
        let config = config(host, &["ws"]).tables(&managed);
        let ours = make(host, "ws", "abc");
        let reclaim = Reclaim::with(&config).evidence("scan");
        let mut command = reclaim.command(&["purge", "abc", "--wait", "90s"]);
        let child = command.stdout(Stdio::piped()).spawn().or_fail("start it");
        wait_until("the command to run", LIMIT, || host.path("begun").exists().then_some(()));
        assert!(!host.path("ws/abc").exists(), "it is condemned by then");
        kill(pid_of(&child), Signal::SIGTERM).or_fail("tell it to stop");
        let output = child.wait_with_output().or_fail("wait for it");
        let told = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.code() == Some(1) && told.contains("reclaim was told to stop"), "{output:?}");
        wait_until("the whole group to be gone", LIMIT, || (alive(&mark) == 0).then_some(()));
        assert!(ours.join("file").is_file() && !host.path("ws/.reclaim").exists());
    });
}

/// A manager whose command hangs: the table of it, and what its processes are known by.
fn hanging(host: &Host) -> (String, String) {
    let mark = format!("283.{}", std::process::id());
    let script = format!("#!/bin/sh\ntouch '{}'\nsleep {mark} & sleep {mark}\n", host.path("begun").display());
    let program = host.make_program("bin/acme", &script);
    (format!("\n[[owned]]\nremove = 'command'\ncommand = ['{}', '{{id}}']\n", program.display()), mark)
}

/// A purge through a service has nothing to put in order, and the service goes on with it.
#[test]
fn a_purge_through_a_service_ends_at_once() {
    private_host(|host| {
        let (managed, mark) = hanging(host);
        let config = config(host, &["ws"]).tables(&managed);
        let service = Service::start(host, &config, &Reclaim::with(&config));
        make(host, "ws", "abc");
        let mut child = Reclaim::with(&config).command(&["purge", "abc", "--wait", "90s"]).spawn().or_fail("start it");
        wait_until("the command to run", LIMIT, || host.path("begun").exists().then_some(()));
        kill(pid_of(&child), Signal::SIGTERM).or_fail("tell it to stop");
        let status = wait_until("it to end", Duration::from_secs(20), || child.try_wait().or_fail("look at it"));
        assert_eq!(status.signal(), Some(15), "{status}");
        assert!(alive(&mark) > 0, "the service goes on");
        assert_eq!(service.terminate().code(), 0);
    });
}

/// A second signal ends it at once; what it leaves behind comes back with the next command.
#[test]
fn a_second_signal_is_not_argued_with() {
    private_host(|host| {
        let config = config(host, &["ws"]);
        let reclaim = Reclaim::with(&config).evidence("scan");
        let ours = make(host, "ws", "abc");
        let stopping = reclaim.clone().variable("RECLAIM_TEST_STOP", "after-condemn");
        let mut child = stopping.command(&["purge", "abc"]).spawn().or_fail("start it");
        wait_until("it to stand still", LIMIT, || is_stopped(pid_of(&child)).then_some(()));
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGCONT] {
            kill(pid_of(&child), signal).or_fail("send a signal");
        }
        let status = child.wait().or_fail("wait for it");
        assert!(matches!(status.signal(), Some(2 | 15)), "{status}");
        assert!(!ours.exists());
        reclaim.run(&["purge", "other"]);
        assert!(ours.join("file").is_file());
    });
}

/// A sweep ends the step in hand, as a pass of the service does, and does not begin with the next root.
#[test]
fn a_sweep_that_is_told_to_stop_ends_the_step_in_hand() {
    private_host(|host| {
        let second = host.make_dir("second");
        let config = ConfigFile::write(host, [Root::of(host), Root::at("second", &second)]);
        let reclaim = Reclaim::with(&config).evidence("scan");
        let stale: Vec<PathBuf> = (0..5).map(|number| host.entry(format!("stale-{number}"))).collect();
        let other = host.make_dir("second/stale");
        let finished = wait_until("evidence enough to come to the step", LIMIT, || {
            told_at("after-condemn", &reclaim, Signal::SIGTERM, &["sweep"])
        });
        assert_eq!(finished.code(), 1, "{finished:?}");
        assert!(finished.stderr.contains("told to stop by a signal"), "{finished:?}");
        assert!(other.is_dir() && !finished.stdout.contains("second"), "{finished:?}");
        assert!(host.condemned().is_empty(), "{finished:?}");
        wait_until("the rest to go", LIMIT, || {
            reclaim.sweep();
            (!stale.iter().any(|path| path.exists()) && !other.exists()).then_some(())
        });
    });
}
