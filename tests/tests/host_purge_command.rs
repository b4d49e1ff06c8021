//! What another manager owns: its own command removes it, in a purge and in a pass.

use reclaim_tests::{
    ConfigFile, Host, OrFail as _, PurgeLine, Reclaim, Root, alive, claim_places, private_host, run_to_end, wait_until,
};
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The manager: a program of one host that notes its arguments and does what it is told.
fn manager(host: &Host, script: &str) -> PathBuf {
    let log = host.path("called");
    host.make_program(
        "bin/acme",
        &format!("#!/bin/sh\nprintf '%s|' \"$@\" >> '{}'\necho >> '{}'\n{script}\n", log.display(), log.display()),
    )
}

fn calls(host: &Host) -> Vec<String> {
    let text = fs::read_to_string(host.path("called")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Storage of the manager, and a directory that reclaim removes itself.
fn config(host: &Host, rest: &str) -> ConfigFile {
    host.make_dir("managed");
    host.make_dir("ws");
    ConfigFile::write(host, []).tables(&format!(
        "\n[[owned]]\npath = '{0}/ws/{{id}}'\n\n[[owned]]\npath = '{0}/managed/{{id}}'\nremove = 'command'\n\
         command = ['{0}/bin/acme', 'rm', '{{id}}', '--at={{path}}']\n{rest}\n",
        host.directory().display()
    ))
}

fn make(host: &Host, id: &str) -> [PathBuf; 2] {
    host.make_file(format!("ws/{id}/file"), "text");
    host.make_file(format!("managed/{id}/file"), "text");
    [format!("ws/{id}"), format!("managed/{id}")].map(|path| host.path(path))
}

/// A purge that nothing but the targets themselves decides, and what it ended with.
fn purge(reclaim: &Reclaim, id: &str) -> (PurgeLine, i32) {
    wait_until("a purge without a doubt", Duration::from_secs(90), || {
        let (objects, code) = reclaim.objects(&["purge", id], &[0, 1, 3, 4]);
        let line: PurgeLine = serde_json::from_value(objects[0].clone()).or_fail("read a report");
        line.check();
        line.is_certain().then_some((line, code))
    })
}

fn with_scan(config: &ConfigFile) -> Reclaim {
    Reclaim::with(config).evidence("scan")
}

#[test]
fn the_manager_finds_it_under_its_own_name_and_no_shell_sees_the_id() {
    private_host(|host| {
        manager(host, &format!("rm -r '{}'/managed/\"$2\"", host.directory().display()));
        let config = config(host, "");
        let id = "a b;$(touch 'x')`id`*{path}";
        let [ours, managed] = make(host, id);
        let sibling = make(host, "a");
        let (line, code) = purge(&with_scan(&config), id);
        assert_eq!((code, line.removed), (0, 2), "{line:?}");
        assert!(!ours.exists() && !managed.exists());
        assert_eq!(calls(host), [format!("rm|{id}|--at={}|", managed.display())]);
        assert!(line.target(&managed).weaker_proof && !line.target(&ours).weaker_proof, "{line:?}");
        assert!(sibling.iter().all(|path| path.is_dir()));
        assert!(!host.path("managed/.reclaim").exists(), "nothing is made in storage of others");
        // What is absent is not asked of the manager.
        assert_eq!(purge(&with_scan(&config), id).1, 0);
        assert_eq!(calls(host).len(), 1);
    });
}

#[test]
fn nothing_is_run_for_a_target_that_is_refused_or_for_a_dry_run() {
    private_host(|host| {
        manager(host, "exit 0");
        let config = config(host, "");
        let [ours, managed] = make(host, "abc");
        let (sandbox, _) = host.sandbox_with(&managed);
        let (line, code) = purge(&with_scan(&config), "abc");
        assert_eq!((code, line.target(&managed).reason.as_deref()), (3, Some("pinned")), "{line:?}");
        assert_eq!(line.target(&ours).verdict, "kept");
        drop(sandbox);
        let (sandbox, _) = host.sandbox_with(&ours);
        assert_eq!(purge(&with_scan(&config), "abc").1, 3);
        drop(sandbox);
        wait_until("a dry run without a refusal", Duration::from_secs(40), || {
            let finished = with_scan(&config).run(&["purge", "abc", "--dry-run"]);
            (finished.code() == 0).then_some(())
        });
        assert!(ours.is_dir() && managed.is_dir());
        assert_eq!(calls(host), Vec::<String>::new());
    });
}

#[test]
fn a_command_that_fails_is_told_and_keeps_the_rest() {
    private_host(|host| {
        manager(host, "echo 'it is still in use' >&2; echo 'by you' >&2; exit 17");
        let config = config(host, "");
        let [ours, managed] = make(host, "abc");
        let (line, code) = purge(&with_scan(&config), "abc");
        let target = line.target(&managed);
        assert_eq!((code, target.verdict.as_str(), line.removed), (1, "failed", 0), "{line:?}");
        let detail = target.detail.clone().unwrap_or_default();
        assert!(detail.contains("exit code 17") && detail.contains("it is still in use / by you"), "{line:?}");
        assert_eq!(line.target(&ours).verdict, "kept", "{line:?}");
        assert!(ours.join("file").is_file() && managed.join("file").is_file());
        assert!(!host.path("ws/.reclaim").exists());
    });
}

#[test]
fn a_command_that_ends_well_and_removes_nothing_has_failed() {
    private_host(|host| {
        manager(host, "exit 0");
        let config = config(host, "");
        let [ours, managed] = make(host, "abc");
        let (line, code) = purge(&with_scan(&config), "abc");
        assert_eq!((code, line.target(&managed).verdict.as_str()), (1, "failed"), "{line:?}");
        assert!(line.target(&managed).detail.as_ref().is_some_and(|detail| detail.contains("still there")), "{line:?}");
        assert!(ours.is_dir() && managed.is_dir());
        // A program that is not there is a failure like any other.
        fs::remove_file(host.path("bin/acme")).or_fail("remove the program");
        let (line, code) = purge(&with_scan(&config), "abc");
        assert_eq!(code, 1);
        assert!(line.target(&managed).detail.as_ref().is_some_and(|detail| detail.contains("cannot be started")));
        assert!(ours.is_dir() && managed.is_dir());
    });
}

#[test]
fn a_command_that_hangs_is_killed_with_all_it_started() {
    private_host(|host| {
        let mark = format!("287.{}", std::process::id());
        manager(host, &format!("sleep {mark} & sleep {mark}"));
        let config = config(host, "timeout = '1s'");
        let [ours, managed] = make(host, "abc");
        let asked = Instant::now();
        let (line, code) = purge(&with_scan(&config), "abc");
        assert!(asked.elapsed() < Duration::from_secs(45), "{:?}", asked.elapsed());
        assert_eq!((code, line.target(&managed).verdict.as_str()), (1, "failed"), "{line:?}");
        assert!(
            line.target(&managed).detail.as_ref().is_some_and(|detail| detail.contains("longer than 1s")),
            "{line:?}"
        );
        assert!(ours.is_dir() && managed.is_dir());
        wait_until("the whole group to be gone", Duration::from_secs(10), || (alive(&mark) == 0).then_some(()));
    });
}

/// The manager may lock what it removes, as reclaim did while it looked.
#[test]
fn the_lock_is_let_go_of_before_the_command_runs() {
    private_host(|host| {
        manager(host, "for at; do :; done; exec flock -n \"${at#--at=}\" rm -r \"${at#--at=}\"");
        let config = config(host, "");
        let [_, managed] = make(host, "abc");
        let (line, code) = purge(&with_scan(&config), "abc");
        assert_eq!(code, 0, "{line:?}");
        assert!(!managed.exists());
    });
}

/// A root of the manager: passes have the command remove what passes every fence, under its own name.
fn managed_root(host: &Host, command: &str) -> ConfigFile {
    let root = Root::of(host).text("remove", "command").text("match", "^vol-(?<id>[a-z0-9]+)$").raw("command", command);
    ConfigFile::write(host, [root])
}

#[test]
fn a_pass_has_the_manager_remove_entries() {
    private_host(|host| {
        let root = host.root();
        manager(host, &format!("rm -r '{}'/\"$2\"", root.display()));
        let program = host.path("bin/acme");
        let config = managed_root(host, &format!("['{}', 'rm', '{{name}}', '{{id}}', '{{path}}']", program.display()));
        let stale: Vec<PathBuf> = (0..20).map(|number| host.make_dir(format!("root/vol-{number}/sub"))).collect();
        let (pinned, other) = (host.entry("vol-live"), host.entry("other"));
        let (mut sandbox, point) = host.sandbox_with(&pinned);
        let dry = with_scan(&config).sweep_with(&["--dry-run"]);
        assert!(calls(host).is_empty() && dry[0].removed == 0, "{dry:?}");
        wait_until("what is stale to go", Duration::from_secs(40), || {
            let pass = with_scan(&config).sweep().remove(0);
            assert!(pass.condemned == 0 && pass.kept("name") == 1, "{pass:?}");
            (!stale.iter().any(|path| path.exists())).then_some(())
        });
        assert!(other.is_dir());
        sandbox.still_works(&point, &pinned);
        let mut called = calls(host);
        called.sort();
        assert_eq!(called.len(), 20, "each once: {called:?}");
        assert_eq!(called[0], format!("rm|vol-0|0|{}|", root.join("vol-0").display()));
        assert!(!root.join(".reclaim").exists(), "nothing is made in storage of others");
    });
}

#[test]
fn a_pass_keeps_what_the_command_did_not_remove() {
    private_host(|host| {
        manager(host, "echo no >&2; exit 3");
        let program = host.path("bin/acme");
        let config = managed_root(host, &format!("['{}', '{{path}}']", program.display()));
        let stale = host.make_dir("root/vol-1");
        let (passes, entries) = wait_until("evidence enough to call it", Duration::from_secs(40), || {
            let told = with_scan(&config).sweep_verbosely(&[]);
            (told.0[0].kept("failed") == 1).then_some(told)
        });
        assert_eq!((passes[0].removed, passes[0].restored, passes[0].condemned), (0, 0, 0), "{passes:?}");
        assert_eq!(
            (entries[0].verdict.as_str(), entries[0].reason.as_deref()),
            ("kept", Some("failed")),
            "{entries:?}"
        );
        assert!(stale.is_dir());
        let text = with_scan(&config).run(&["-v", "sweep"]);
        let told = format!("{}{}", text.stdout, text.stderr);
        assert!(told.contains("exit code 3, and said: no"), "{told}");
    });
}

/// In a service that goes on, a command that fails is not run again in every pass.
#[test]
fn a_failing_command_is_tried_rarely() {
    private_host(|host| {
        manager(host, "exit 3");
        let program = host.path("bin/acme");
        let config = managed_root(host, &format!("['{}', '{{path}}']", program.display())).every("200ms");
        host.make_dir("root/vol-1");
        let mut service = reclaim_tests::Service::start(host, &config, &Reclaim::with(&config));
        wait_until("the first call", Duration::from_secs(40), || (!calls(host).is_empty()).then_some(()));
        let seen = service.passes().len();
        service.wait_for_passes(seen + 5);
        assert_eq!(calls(host).len(), 1, "once a minute at most");
    });
}

/// Which program that would be depends on where the caller stands.
#[test]
fn a_program_by_a_path_that_is_not_whole_is_refused() {
    private_host(|host| {
        let program = manager(host, "exit 0");
        let whole = program.display().to_string();
        let ours = host.make_dir("ws/abc");
        host.entry("vol-1");
        let net = |command: &str, present: &str| {
            format!(
                "\n[[owned]]\nremove = 'command'\ncommand = ['{command}', '{{id}}']\npresent = ['{present}', '{{id}}', '?']\n"
            )
        };
        let path = format!(
            "\n[[owned]]\npath = '{}/ws/{{id}}'\nremove = 'command'\ncommand = ['bin/acme', '{{id}}']\n",
            host.directory().display()
        );
        let root = Root::of(host);
        let of_root = root.clone().text("remove", "command").raw("command", "['./bin/acme', '{name}']");
        let claimed = root.clone().raw("claims", "{ command = ['bin/acme'] }");
        for (root, tables, key) in [
            (of_root, String::new(), "root.command"),
            (claimed, String::new(), "root.claims.command"),
            (root.clone(), path, "owned.command"),
            (root.clone(), net("bin/acme", &whole), "owned.command"),
            (root, net(&whole, "../acme"), "owned.present"),
        ] {
            let config = ConfigFile::write(host, [root]).tables(&tables);
            for arguments in [&["purge", "abc"][..], &["sweep"]] {
                let mut command = with_scan(&config).command(arguments);
                let finished = run_to_end(command.current_dir(host.directory()), Duration::from_secs(40));
                assert_eq!(finished.code(), 2, "{key}: {finished:?}");
                let words = [key, "give its whole path, or its name alone, which is looked for in PATH", ".toml:"];
                assert!(words.iter().all(|words| finished.stderr.contains(words)), "{key}: {finished:?}");
            }
        }
        assert!(ours.is_dir() && calls(host).is_empty());
    });
}

#[test]
fn a_command_runs_in_the_root_directory() {
    private_host(|host| {
        let directory = host.directory().display();
        manager(host, &format!("pwd >> '{directory}/where'; rm -r '{directory}'/managed/\"$2\""));
        let config = config(host, "");
        make(host, "abc");
        wait_until("a purge without a doubt", Duration::from_secs(90), || {
            let mut command = with_scan(&config).command(&["purge", "abc"]);
            run_to_end(command.current_dir(host.directory()), Duration::from_secs(40)).status.success().then_some(())
        });
        assert_eq!(fs::read_to_string(host.path("where")).or_fail("where it ran"), "/\n");
    });
}

/// The configuration of the page on purging, as it stands there.
#[test]
fn the_configuration_of_the_page_works_as_it_stands() {
    private_host(|host| {
        let page = include_str!("../../docs/purge.md");
        let block = page.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).or_fail("a block of TOML");
        claim_places(host);
        for directory in ["/srv/ws/_cache", "/srv/sandboxes", "/var/lib/acme/volumes"] {
            fs::create_dir_all(directory).or_fail("make a directory of the page");
        }
        manager(host, "rm -r /var/lib/acme/volumes/\"$3\"");
        // A podman that knows networks by files.
        let nets = host.make_dir("nets");
        let script = "case $2 in exists) test -e \"$3\";; rm) rm \"$3\";; *) exit 125;; esac";
        host.make_program("bin/podman", &format!("#!/bin/sh\ncd '{}' || exit 125\n{script}\n", nets.display()));
        let config = ConfigFile::write(host, []);
        config.write_text(block);
        let path = format!("{}:/usr/bin:/bin", host.path("bin").display());
        let reclaim = with_scan(&config).variable("PATH", path);
        let make = |id: &str| {
            let net = nets.join(format!("acme-{id}")).display().to_string();
            let paths = [
                net.clone(),
                format!("/srv/ws/{id}"),
                format!("/srv/ws/_cache/{id}.tar"),
                format!("/srv/sandboxes/job-{id}-1"),
                format!("/var/lib/acme/volumes/{id}"),
            ];
            for path in &paths {
                match path.ends_with(".tar") || *path == net {
                    true => fs::write(path, "text").or_fail("make a file"),
                    false => fs::create_dir_all(path).or_fail("make a directory"),
                }
            }
            paths.map(PathBuf::from)
        };
        let (ours, sibling) = (make("7f3a"), make("7f3"));
        let (line, code) = purge(&reclaim, "7f3a");
        assert_eq!((code, line.removed), (0, 5), "{line:?}");
        assert!(!ours.iter().any(|path| path.exists()) && sibling.iter().all(|path| path.exists()));
        assert_eq!(calls(host), ["volume|rm|7f3a|"]);
    });
}
