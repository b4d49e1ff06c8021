//! What belongs to an id and has no path: its manager's commands tell whether it is there, and remove it.

use nix::sys::signal::Signal;
use reclaim_tests::{
    ConfigFile, Host, Mode, OrFail as _, PurgeLine, Reclaim, Root, Service, Subject, alive, blocks, cases,
    private_host, run_to_end, set_mode, wait_until,
};
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

cases! {
    it_goes_with_the_rest_and_a_repeat_is_a_success: service, scan, command;
    what_cannot_be_told_keeps_everything: service, scan;
    a_dry_run_asks_and_runs_no_command: service, scan;
    a_refusal_of_another_runs_no_command: service, scan;
    commands_run_in_the_order_of_the_configuration: scan;
    a_failure_gives_names_back_and_later_commands_are_not_run: service, scan;
}

/// A program of the manager. It notes its arguments, and knows networks by files: `$net` is the one that it is told of.
fn program(host: &Host, name: &str, script: &str) -> PathBuf {
    let directory = host.directory().display();
    let text = format!(
        "#!/bin/sh\ncd '{directory}'\n{{ printf '%s|' {name} \"$@\"; echo; }} >> called\nnet=\"nets/$1\"\n{script}\n"
    );
    host.make_program(Path::new("bin").join(name), &text)
}

/// A manager that does what it is asked: `rm` removes a network, `ask` tells of one.
fn manager(host: &Host) {
    host.make_dir("nets");
    program(host, "rm", "exec rm -- \"$net\"");
    program(host, "ask", "test -e \"$net\"");
}

fn calls(host: &Host) -> Vec<String> {
    let text = fs::read_to_string(host.path("called")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Calls that remove something.
fn removals(host: &Host) -> Vec<String> {
    calls(host).into_iter().filter(|call| !call.starts_with("ask|")).collect()
}

/// A table of networks whose names begin so.
fn table(host: &Host, prefix: &str, is_asked: bool, rest: &str) -> String {
    let bin = host.path("bin");
    let bin = bin.display();
    let asked = if is_asked { format!("present = ['{bin}/ask', '{prefix}-{{id}}']\n") } else { String::new() };
    format!("\n[[owned]]\nremove = 'command'\ncommand = ['{bin}/rm', '{prefix}-{{id}}']\n{asked}{rest}\n")
}

/// A directory that reclaim removes itself.
fn place(host: &Host) -> String {
    host.make_dir("ws");
    format!("\n[[owned]]\npath = '{}/ws/{{id}}'\n", host.directory().display())
}

/// Networks with a directory behind them, and a root for passes that has nothing of an id.
fn config(host: &Host, rest: &str) -> ConfigFile {
    ConfigFile::write(host, [Root::of(host)]).tables(&format!("{}{}", table(host, "n", true, rest), place(host)))
}

fn make(host: &Host, id: &str) -> [PathBuf; 2] {
    host.make_file(format!("ws/{id}/file"), "text");
    [host.make_file(format!("nets/n-{id}"), ""), host.path(format!("ws/{id}"))]
}

fn is_kept_whole(host: &Host, line: &PurgeLine, ours: &Path) {
    assert_eq!(line.target(ours).verdict, "kept", "{line:?}");
    assert!(ours.join("file").is_file() && !host.path("ws/.reclaim").exists(), "{line:?}");
}

fn it_goes_with_the_rest_and_a_repeat_is_a_success(host: &Host, mode: Mode) {
    manager(host);
    let subject = Subject::start_with(host, mode, &config(host, ""));
    let (all, siblings) = (make(host, "abc"), [make(host, "abcd"), make(host, "ab")].concat());
    let line = subject.reclaim().purge("abc", &[], 0);
    assert_eq!((line.removed, line.targets.len()), (2, 2), "{line:?}");
    let net = line.managed("n-abc");
    assert_eq!((net.verdict.as_str(), net.weaker_proof, net.detail.as_deref()), ("removed", true, None), "{line:?}");
    let called = [host.path("bin/rm").display().to_string(), "n-abc".to_owned()];
    assert_eq!(net.command.as_deref(), Some(&called[..]));
    assert!(!line.target(&all[1]).weaker_proof, "{line:?}");
    assert!(all.iter().all(|path| !path.exists()) && siblings.iter().all(|path| path.exists()));
    assert_eq!(calls(host).last().map(String::as_str), Some("ask|n-abc|"), "it is asked once more");
    assert_eq!(removals(host), ["rm|n-abc|"]);
    // Nothing of it is left, which is a success, and nobody is told to remove what is not there.
    let line = subject.reclaim().purge("abc", &[], 0);
    assert!(line.targets.iter().all(|target| target.verdict == "absent" && !target.weaker_proof), "{line:?}");
    assert_eq!(removals(host).len(), 1);
    // A create that failed half-way.
    let half = host.make_file("nets/n-half", "");
    let line = subject.reclaim().purge("half", &[], 0);
    assert_eq!((line.removed, line.managed("n-half").verdict.as_str()), (1, "removed"), "{line:?}");
    assert!(!half.exists());
    let table = subject.reclaim().run(&["purge", "abc"]);
    let told = format!("{} n-abc", host.path("bin/rm").display());
    assert!(table.code() == 0 && table.stdout.contains(&told), "{table:?}");
}

fn what_cannot_be_told_keeps_everything(host: &Host, mode: Mode) {
    manager(host);
    let mark = format!("283.{}", std::process::id());
    let subject = Subject::start_with(host, mode, &config(host, "timeout = '1s'"));
    let [net, ours] = make(host, "abc");
    let hangs = format!("sleep {mark} & sleep {mark}");
    for (script, why) in [
        ("echo 'no daemon' >&2; exit 2", "`{}` ended with exit code 2, and said: no daemon"),
        ("exit 125", "`{}` ended with exit code 125"),
        ("kill -KILL $$", "`{}` ended by signal: 9"),
        (&hangs, "`{}` was killed with its process group: it took longer than 1s"),
        ("", "`{}` cannot be started"),
    ] {
        let ask = program(host, "ask", script);
        if script.is_empty() {
            fs::remove_file(&ask).or_fail("remove the program");
        }
        for arguments in [&["--dry-run"][..], &[]] {
            let line = subject.reclaim().purge("abc", arguments, 1);
            let told = line.managed("n-abc");
            assert_eq!((told.verdict.as_str(), told.reason.as_deref()), ("refused", Some("failed")), "{line:?}");
            let detail = told.detail.clone().unwrap_or_default();
            let why = why.replace("{}", &ask.display().to_string());
            assert!(detail.starts_with("whether it is there cannot be told: ") && detail.contains(&why), "{line:?}");
            assert!(!told.weaker_proof);
            is_kept_whole(host, &line, &ours);
        }
    }
    assert!(net.exists());
    assert_eq!(removals(host), [""; 0]);
    wait_until("the whole group to be gone", Duration::from_secs(10), || (alive(&mark) == 0).then_some(()));
}

fn a_dry_run_asks_and_runs_no_command(host: &Host, mode: Mode) {
    manager(host);
    let subject = Subject::start_with(host, mode, &config(host, ""));
    let [net, ours] = make(host, "abc");
    let line = subject.reclaim().purge("abc", &["--dry-run"], 0);
    let told = line.managed("n-abc");
    assert_eq!((told.verdict.as_str(), told.weaker_proof), ("would-remove", true), "{line:?}");
    assert_eq!(line.target(&ours).verdict, "would-remove");
    assert!(net.exists() && ours.is_dir() && !calls(host).is_empty());
    fs::remove_file(&net).or_fail("remove the network");
    let line = subject.reclaim().purge("abc", &["--dry-run"], 0);
    assert_eq!(line.managed("n-abc").verdict, "absent", "{line:?}");
    assert_eq!(removals(host), [""; 0]);
}

fn a_refusal_of_another_runs_no_command(host: &Host, mode: Mode) {
    manager(host);
    let subject = Subject::start_with(host, mode, &config(host, ""));
    let [net, ours] = make(host, "abc");
    let (sandbox, _) = host.sandbox_with(&ours);
    let line = subject.reclaim().purge("abc", &[], 3);
    assert_eq!(line.target(&ours).reason.as_deref(), Some("pinned"), "{line:?}");
    assert_eq!((line.managed("n-abc").verdict.as_str(), line.managed("n-abc").weaker_proof), ("kept", false));
    drop(sandbox);
    // No mount, and yet somebody has it open.
    let mut holder = host.sandbox();
    holder.ask(&reclaim_tests::Request::Hold(ours.clone().into()));
    let line = subject.reclaim().purge("abc", &[], 3);
    assert_eq!(line.target(&ours).reason.as_deref(), Some("pinned"), "{line:?}");
    assert_eq!(line.managed("n-abc").verdict, "kept", "{line:?}");
    assert!(net.exists() && ours.join("file").is_file() && !host.path("ws/.reclaim").exists());
    assert_eq!(removals(host), [""; 0]);
}

fn commands_run_in_the_order_of_the_configuration(host: &Host, mode: Mode) {
    manager(host);
    // Whatever runs has to find that all else is condemned by then.
    let gone = "test -e ws/abc && echo 'it is still there' >> called\n";
    program(host, "rm", &format!("{gone}exec rm -- \"$net\""));
    program(host, "volume", &format!("{gone}exec rm -r -- \"volumes/$1\""));
    let volume = format!(
        "\n[[owned]]\npath = '{0}/volumes/{{id}}'\nremove = 'command'\ncommand = ['{0}/bin/volume', '{{id}}']\n",
        host.directory().display()
    );
    let tables = [place(host), table(host, "one", true, ""), volume, table(host, "two", false, "")];
    let root = Root::of(host).text("match", "^job-(?<id>[a-z]+)$");
    let config = ConfigFile::write(host, [root]).tables(&tables.concat());
    let subject = Subject::start_with(host, mode, &config);
    let volume = host.make_dir("volumes/abc");
    let all = [
        host.make_dir("ws/abc"),
        host.make_file("nets/one-abc", ""),
        volume.clone(),
        host.make_file("nets/two-abc", ""),
        host.entry("job-abc"),
    ];
    let line = subject.reclaim().purge("abc", &[], 0);
    assert_eq!(line.removed, 5, "{line:?}");
    assert!(all.iter().all(|path| !path.exists()));
    assert_eq!(removals(host), ["rm|one-abc|", "volume|abc|", "rm|two-abc|"]);
    let paths = line.targets.iter().map(|target| target.path.as_deref().map(Path::new));
    let expected = [Some(all[0].as_path()), None, Some(&volume), None, Some(&all[4])];
    assert_eq!(paths.collect::<Vec<_>>(), expected, "told in that order, too");
}

fn a_failure_gives_names_back_and_later_commands_are_not_run(host: &Host, mode: Mode) {
    manager(host);
    program(host, "rm", "case $1 in two-*) echo 'in use' >&2; exit 17;; esac; exec rm -- \"$net\"");
    let tables = ["one", "two", "three"].map(|prefix| table(host, prefix, true, "")).concat();
    let config = ConfigFile::write(host, [Root::of(host)]).tables(&format!("{}{tables}", place(host)));
    let subject = Subject::start_with(host, mode, &config);
    let [_, ours] = make(host, "abc");
    let nets = ["one", "two", "three"].map(|prefix| host.make_file(format!("nets/{prefix}-abc"), ""));
    let line = subject.reclaim().purge("abc", &[], 1);
    let verdicts = ["one-abc", "two-abc", "three-abc"].map(|net| line.managed(net).verdict.as_str());
    assert_eq!(verdicts, ["removed", "failed", "kept"], "{line:?}");
    let detail = line.managed("two-abc").detail.clone().unwrap_or_default();
    assert!(detail.contains("ended with exit code 17, and said: in use"), "{line:?}");
    assert_eq!(line.managed("two-abc").reason.as_deref(), Some("failed"));
    is_kept_whole(host, &line, &ours);
    assert_eq!(nets.map(|net| net.exists()), [false, true, true]);
    assert_eq!(removals(host), ["rm|one-abc|", "rm|two-abc|"]);
}

/// What the manager says of it afterwards decides, not how the command ended.
#[test]
fn the_manager_is_asked_again_after_the_command() {
    private_host(|host| {
        manager(host);
        let config = config(host, "");
        let reclaim = Reclaim::with(&config).evidence("scan");
        // It complains, and it is gone.
        program(host, "rm", "rm -- \"$net\"; exit 9");
        make(host, "abc");
        let line = reclaim.purge("abc", &[], 0);
        assert_eq!((line.removed, line.managed("n-abc").verdict.as_str()), (2, "removed"), "{line:?}");
        make(host, "abc");
        let told = reclaim.run(&["purge", "abc"]).stderr;
        assert!(told.contains("is gone, and yet") && told.contains("exit code 9"), "{told}");
        let [net, ours] = make(host, "abc");
        // It ends well, and it is still there; or nobody can tell any more.
        let cannot = "test -e ran && { echo 'no daemon' >&2; exit 2; }; test -e \"$net\"";
        for (rm, ask, expected) in [
            ("exit 0", "test -e \"$net\"", "ended well, and it is still there"),
            ("rm -- \"$net\"; touch ran", cannot, "ended well, and whether it is gone cannot be told"),
            ("touch ran; exit 9", cannot, "ended with exit code 9; whether it is gone cannot be told"),
        ] {
            let _maybe = fs::remove_file(host.path("ran"));
            fs::write(&net, "").or_fail("make the network");
            program(host, "rm", rm);
            program(host, "ask", ask);
            let line = reclaim.purge("abc", &[], 1);
            let told = line.managed("n-abc");
            assert_eq!((told.verdict.as_str(), told.reason.as_deref()), ("failed", Some("failed")), "{line:?}");
            assert!(told.detail.as_ref().is_some_and(|detail| detail.contains(expected)), "{expected}: {line:?}");
            assert!(!told.weaker_proof);
            is_kept_whole(host, &line, &ours);
        }
    });
}

#[test]
fn without_a_question_it_counts_as_there_and_the_exit_code_decides() {
    private_host(|host| {
        manager(host);
        let tables = format!("{}{}", table(host, "n", false, ""), place(host));
        let reclaim = Reclaim::with(&ConfigFile::write(host, []).tables(&tables)).evidence("scan");
        let [_, ours] = make(host, "abc");
        assert_eq!(reclaim.purge("abc", &["--dry-run"], 0).managed("n-abc").verdict, "would-remove");
        assert_eq!(calls(host), [""; 0]);
        assert_eq!(reclaim.purge("abc", &[], 0).removed, 2);
        assert_eq!(calls(host), ["rm|n-abc|"]);
        host.make_file("ws/abc/file", "text");
        let line = reclaim.purge("abc", &[], 1);
        assert_eq!(line.managed("n-abc").verdict, "failed", "{line:?}");
        is_kept_whole(host, &line, &ours);
        program(host, "rm", "exit 0");
        assert_eq!(reclaim.purge("abc", &[], 0).removed, 2);
    });
}

#[test]
fn a_command_that_hangs_is_killed_with_all_it_started() {
    private_host(|host| {
        manager(host);
        let mark = format!("281.{}", std::process::id());
        program(host, "rm", &format!("sleep {mark} & sleep {mark}"));
        let config = config(host, "timeout = '1s'");
        let [net, ours] = make(host, "abc");
        let line = Reclaim::with(&config).evidence("scan").purge("abc", &[], 1);
        let told = line.managed("n-abc");
        assert_eq!(told.verdict, "failed", "{line:?}");
        assert!(told.detail.as_ref().is_some_and(|detail| detail.contains("longer than 1s")), "{line:?}");
        is_kept_whole(host, &line, &ours);
        assert!(net.exists());
        wait_until("the whole group to be gone", Duration::from_secs(10), || (alive(&mark) == 0).then_some(()));
    });
}

#[test]
fn no_shell_sees_the_id() {
    private_host(|host| {
        manager(host);
        let config = config(host, "");
        let id = "a b;$(touch 'x')`id`*{id}{path}";
        let all = make(host, id);
        let line = Reclaim::with(&config).evidence("scan").purge(id, &[], 0);
        assert_eq!(line.removed, 2, "{line:?}");
        assert!(all.iter().all(|path| !path.exists()));
        assert_eq!(removals(host), [format!("rm|n-{id}|")]);
    });
}

/// What another id has beside it: `n-{id}-data` tells whose `n-a-data` is.
#[test]
fn an_id_that_would_name_what_is_anothers_is_refused() {
    private_host(|host| {
        manager(host);
        let data = table(host, "n", true, "").replace("-{id}'", "-{id}-data'");
        let tables = format!("{}{}{data}", place(host), table(host, "n", true, ""));
        let reclaim = Reclaim::with(&ConfigFile::write(host, []).tables(&tables)).evidence("scan");
        let all = [make(host, "a"), [host.make_file("nets/n-a-data", ""), host.make_dir("ws/a-data")]].concat();
        let finished = reclaim.run(&["purge", "a-data"]);
        assert!(finished.code() == 2 && finished.stderr.contains("to be of the id `a`"), "{finished:?}");
        assert!(all.iter().all(|path| path.exists()));
        assert_eq!(calls(host), [""; 0]);
        assert_eq!(reclaim.purge("a", &[], 0).removed, 3);
        assert!(all[3].is_dir());
        // Nor with an option more, nor where another table has a path.
        let bin = host.path("bin");
        let with_option = data.replace("/rm', ", "/rm', '--force', ");
        host.make_dir("volumes");
        let (top, bin) = (host.directory().display(), bin.display());
        let with_path = format!(
            "\n[[owned]]\npath = '{top}/volumes/n-{{id}}-data'\nremove = 'command'\ncommand = ['{bin}/rm', '{{name}}']\n"
        );
        let before = calls(host);
        for other in [with_option, with_path] {
            let tables = format!("{}{other}", table(host, "n", true, ""));
            let net = host.make_file("nets/n-a-data", "");
            let finished = Reclaim::with(&ConfigFile::write(host, []).tables(&tables)).run(&["purge", "a-data"]);
            assert!(finished.code() == 2 && finished.stderr.contains("to be of the id `a`"), "{finished:?}");
            assert!(net.exists() && calls(host) == before);
        }
    });
}

/// A configuration in which nothing has a path: no directory is watched, and no evidence is asked for.
#[test]
fn a_configuration_without_any_path_works() {
    private_host(|host| {
        manager(host);
        let config = ConfigFile::write(host, []).tables(&table(host, "n", true, ""));
        let purges = |reclaim: &Reclaim| {
            let net = host.make_file("nets/n-abc", "");
            assert_eq!(reclaim.purge("abc", &["--dry-run"], 0).managed("n-abc").verdict, "would-remove");
            let line = reclaim.purge("abc", &[], 0);
            assert_eq!((line.removed, line.targets.len()), (1, 1), "{line:?}");
            assert!(!net.exists());
            assert_eq!(reclaim.purge("abc", &[], 0).managed("n-abc").verdict, "absent");
        };
        for evidence in ["auto", "scan", "walk", "live"] {
            purges(&Reclaim::with(&config).evidence(evidence));
        }
        // Whoever lacks what evidence needs can have a manager remove what is the manager's.
        set_mode(host.directory(), 0o777);
        set_mode(&host.path("nets"), 0o777);
        set_mode(&host.path("called"), 0o666);
        let mine = ConfigFile::write(host, []).tables(&table(host, "n", true, ""));
        for evidence in ["auto", "live"] {
            purges(&Reclaim::with(&mine).as_user(1000).evidence(evidence));
        }
        let reclaim = Reclaim::with(&config);
        let (objects, _) = reclaim.objects(&["check"], &[0, 1]);
        let faults = objects.iter().filter(|object| object["type"] == "fault" && object["about"] == "configuration");
        assert_eq!(faults.count(), 0, "{objects:?}");
        let swept = reclaim.run(&["sweep"]);
        assert!(swept.code() == 2 && swept.stderr.contains("no root is configured"), "{swept:?}");
        let service = Service::start(host, &config, &reclaim);
        let before = calls(host).len();
        purges(&reclaim);
        assert!(calls(host).len() > before && service.log().contains("ready"), "{}", service.log());
        let finished = service.terminate();
        assert_eq!(finished.code(), 0, "{finished:?}");
    });
}

/// Roots and paths that went from the configuration, and a network that came.
#[test]
fn a_service_that_reads_its_configuration_again_knows_it() {
    private_host(|host| {
        manager(host);
        let config = ConfigFile::write(host, [Root::of(host)]).tables(&place(host));
        let reclaim = Reclaim::with(&config);
        let mut service = Service::start(host, &config, &reclaim);
        service.wait_for_passes(1);
        let net = host.make_file("nets/n-abc", "");
        let text = format!(
            "[service]\nstate_dir = '{}'\nsocket = '{}'\n{}",
            config.state().display(),
            config.socket().display(),
            table(host, "n", true, "")
        );
        config.write_text(&text);
        service.signal(Signal::SIGHUP);
        wait_until("the configuration to be read again", Duration::from_secs(40), || {
            service.log().contains("was read again").then_some(())
        });
        assert_eq!(reclaim.purge("abc", &[], 0).removed, 1);
        assert!(!net.exists());
        service.assert_running();
    });
}

/// The program that the page on purging puts before docker.
#[test]
fn the_program_of_the_page_tells_apart_what_docker_does_not() {
    private_host(|host| {
        let page = include_str!("../../docs/purge.md");
        let text = blocks(page, "sh").into_iter().find(|(_, text)| text.starts_with("#!")).or_fail("a program").1;
        let exists = host.make_program("bin/acme-network-exists", &text);
        let path = format!("{}:/usr/bin:/bin", host.path("bin").display());
        for (docker, expected) in [
            ("printf 'bridge\nn-abcd\nn-abc\n'", 0),
            ("printf 'bridge\nn-abcd\nx-n-abc\n'", 1),
            ("exit 0", 1),
            ("echo 'Cannot connect to the Docker daemon' >&2; exit 1", 2),
        ] {
            host.make_program("bin/docker", &format!("#!/bin/sh\n{docker}\n"));
            let mut asked = Command::new(&exists);
            let finished = run_to_end(asked.arg("n-abc").env("PATH", &path), Duration::from_secs(40));
            assert_eq!(finished.code(), expected, "{docker}: {finished:?}");
        }
    });
}

/// Questions are answered while a manager takes its time, and a stop ends that.
#[test]
fn a_service_goes_on_while_a_manager_is_asked_and_a_stop_ends_it() {
    private_host(|host| {
        manager(host);
        let config = config(host, "timeout = '10m'");
        let mark = format!("279.{}", std::process::id());
        for hanging in ["ask", "rm"] {
            manager(host);
            let [net, ours] = make(host, "abc");
            program(host, hanging, &format!("touch begun; sleep {mark} & sleep {mark}"));
            let service = Service::start(host, &config, &Reclaim::with(&config));
            let mut asking = service.connect();
            let purge = thread::spawn(move || asking.ask(&json!({"op": "purge", "id": "abc"})));
            wait_until("the manager to hang", Duration::from_secs(90), || host.path("begun").exists().then_some(()));
            let status = service.connect().ask(&json!({"op": "status"}));
            assert_eq!(status["type"], "status", "{status}");
            assert!(!purge.is_finished(), "{hanging}");
            let finished = service.terminate();
            assert_eq!(finished.code(), 0, "{finished:?}");
            let _answered = purge.join();
            wait_until("the whole group to be gone", Duration::from_secs(10), || (alive(&mark) == 0).then_some(()));
            assert!(net.exists() && ours.join("file").is_file() && !host.path("ws/.reclaim").exists(), "{hanging}");
            fs::remove_file(host.path("begun")).or_fail("forget that it began");
        }
        assert_eq!(removals(host), ["rm|n-abc|"]);
    });
}
