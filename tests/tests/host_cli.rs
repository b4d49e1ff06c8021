//! The command line: bad input, missing permission, exit codes, and output for programs.

use reclaim_tests::{ConfigFile, Held, Host, OrFail as _, Reclaim, Root, private_host, run_to_end, set_mode};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Runs every command that reads a configuration on a bad one: 2, one message, and nothing touched.
fn expect_refused(host: &Host, config: &ConfigFile, text: &str, line: Option<usize>, words: &[&str]) {
    let stale = host.entry("stale");
    let before = host.names();
    config.write_text(text);
    for command in ["sweep", "run", "pins", "check"] {
        let finished = Reclaim::with(config).within(Duration::from_secs(20)).run(&[command]);
        if command == "check" {
            // It tells faults of the configuration, and may do so on standard output.
            assert_ne!(finished.code(), 0, "{command} of\n{text}\n{finished:?}");
            continue;
        }
        assert_eq!(finished.code(), 2, "{command} of\n{text}\n{finished:?}");
        let message = &finished.stderr;
        for word in words {
            assert!(message.contains(word), "{command} does not say {word:?}: {message}");
        }
        if let Some(line) = line {
            let named = [format!("line {line}"), format!(":{line}:"), format!(":{line} ")];
            assert!(named.iter().any(|form| message.contains(form)), "{command} does not name line {line}: {message}");
        }
        let errors = message.lines().filter(|line| line.starts_with("error") || line.starts_with("reclaim:")).count();
        assert!(errors <= 1, "more than one message: {message}");
        assert!(!message.contains("panicked"), "{message}");
        assert!(finished.stdout.is_empty(), "{finished:?}");
    }
    assert_eq!(host.names(), before);
    assert!(stale.is_dir() && !host.root().join(".reclaim").exists() && !config.socket().exists());
}

fn line_of(text: &str, part: &str) -> usize {
    let at = text.find(part).or_fail(format_args!("{part} in\n{text}"));
    text[..at].lines().count() + usize::from(text[..at].ends_with('\n'))
}

/// One bad root each: the line as it is written, and what the message must name.
#[test]
fn a_bad_key_is_refused_with_its_line_and_a_remedy() {
    private_host(|host| {
        let table: &[(&str, &str, &[&str])] = &[
            ("an unknown key", "min_aeg = '60s'", &["min_aeg", "min_age"]),
            ("a number for a string", "mode = 700", &["mode"]),
            ("a string for a number", "pile = 'many'", &["pile"]),
            ("a string for a flag", "leases = 'yes'", &["leases"]),
            ("an unknown kind", "kind = 'socket'", &["kind", "dir"]),
            ("an unknown way to remove", "remove = 'everything'", &["remove", "tree"]),
            ("a duration without a unit", "backstop = '24'", &["backstop"]),
            ("a duration that is none", "retain = 'soon'", &["retain"]),
            ("a mode that is not octal", "mode = '0799'", &["mode"]),
            ("a pattern that does not compile", "match = '^acme_('", &["match"]),
            ("a user that does not exist", "owner = 'no-such-user-here'", &["owner", "no-such-user-here"]),
        ];
        for (what, bad_line, words) in table {
            let config = ConfigFile::write(host, [Root::of(host)]);
            let text = format!("{}{bad_line}\n", config.to_toml());
            eprintln!("{what}");
            expect_refused(host, &config, &text, Some(line_of(&text, bad_line)), words);
        }
    });
}

#[test]
fn a_bad_root_is_refused() {
    private_host(|host| {
        let (link, file) = (host.path("link"), host.make_file("file", ""));
        symlink(host.root(), &link).or_fail("make a link");
        let below_link = link.join("stale");
        let inner = host.root().join("inner");
        let slash = Path::new("/");
        let [template, braces] = [host.path("ws/{id}").display().to_string(), "a}".to_owned()];
        let roots: [(&str, Vec<Root>, &[&str]); 10] = [
            ("the text of a template as its name", vec![Root::at(&template, &host.root())], &["root.name", "letters"]),
            ("a brace in its name", vec![Root::at(&braces, &host.root())], &["root.name", "letters"]),
            ("a link", vec![Root::at("root", &link)], &["path", "link"]),
            ("below a link", vec![Root::at("root", &below_link)], &["path", "link"]),
            ("the root of the system", vec![Root::at("root", slash)], &["path"]),
            ("a file", vec![Root::at("root", &file)], &["path"]),
            ("a relative path", vec![Root::of(host).text("path", "relative")], &["path", "absolute"]),
            ("twice the same path", vec![Root::of(host), Root::at("second", &host.root())], &["root", "second"]),
            ("one inside the other", vec![Root::of(host), Root::at("second", &inner)], &["root", "second"]),
            ("twice the same name", vec![Root::of(host), Root::at("root", &host.make_dir("other"))], &["root", "name"]),
        ];
        for (what, roots, words) in roots {
            let config = ConfigFile::write(host, roots);
            eprintln!("{what}");
            expect_refused(host, &config, &config.to_toml(), None, words);
        }
    });
}

#[test]
fn text_that_is_no_configuration_is_refused() {
    private_host(|host| {
        let config = ConfigFile::write(host, [Root::of(host)]);
        expect_refused(host, &config, "[service\nevery = '5m'\n", Some(1), &[]);
        expect_refused(host, &config, "[service]\nevry = '5m'\n", Some(2), &["evry", "every"]);
        expect_refused(host, &config, "[[roots]]\nname = 'x'\n", Some(1), &["roots", "root"]);
        let nameless = format!("[[root]]\npath = '{}'\n", host.root().display());
        expect_refused(host, &config, &nameless, None, &["name"]);
        expect_refused(host, &config, "[[root]]\nname = 'root'\n", None, &["path"]);
    });
}

#[test]
fn bad_usage_is_refused() {
    private_host(|host| {
        let stale = host.entry("stale");
        let config = ConfigFile::write(host, [Root::of(host)]);
        let reclaim = Reclaim::with(&config);
        for arguments in
            [&["no-such-command"][..], &["sweep", "--no-such-flag"], &["sweep", "--root", "no-such-root"], &["query"]]
        {
            let finished = reclaim.run(arguments);
            assert_eq!(finished.code(), 2, "{arguments:?}: {finished:?}");
            assert!(!finished.stderr.is_empty(), "{arguments:?}");
        }
        config.write_text("");
        fs::remove_file(config.path()).or_fail("remove the configuration");
        let finished = reclaim.run(&["sweep"]);
        assert_eq!(finished.code(), 2, "{finished:?}");
        assert!(finished.stderr.contains(&*config.path().to_string_lossy()), "{finished:?}");
        assert!(stale.is_dir());
    });
}

#[test]
fn without_permission_it_says_what_is_missing_and_what_works() {
    private_host(|host| {
        let stale = host.entry("stale");
        let config = ConfigFile::write(host, [Root::of(host)]);
        for user in [65_534, 1000] {
            let reclaim = Reclaim::with(&config).as_user(user);
            let finished = reclaim.run(&["sweep"]);
            assert!([1, 4].contains(&finished.code()), "{finished:?}");
            assert!(finished.stderr.contains("CAP_"), "which capability is missing: {finished:?}");
            let hint = ["reclaim query", "reclaim check", "still", "works"];
            assert!(hint.iter().any(|word| finished.stderr.contains(word)), "what works without it: {finished:?}");
            assert!(stale.is_dir() && !host.root().join(".reclaim").exists());

            let finished = reclaim.run(&["check"]);
            assert!(finished.stdout.contains("CAP_") || finished.stderr.contains("CAP_"), "{finished:?}");
            let finished = reclaim.run(&["run"]);
            assert!([1, 4].contains(&finished.code()) && finished.stderr.contains("CAP_"), "{finished:?}");
            assert!(stale.is_dir());
        }
    });
}

/// That the walk works in one root says nothing of another: an empty file system has nothing to prove it on.
#[test]
fn a_check_tells_for_each_root_whether_the_walk_has_proved_itself() {
    private_host(|host| {
        let (first, empty) = (Root::of(host), host.make_dir("empty"));
        let one = ConfigFile::write(host, [Root::of(host)]);
        let walk_lines = |reclaim: &Reclaim| -> Vec<String> {
            let text = reclaim.run(&["check"]).stdout;
            text.lines().filter(|line| line.starts_with("walk\t")).map(str::to_owned).collect()
        };
        let walks = "condemned entries are confirmed by the kernel's own list of mounts";
        assert_eq!(walk_lines(&Reclaim::with(&one)), [format!("walk\tyes\t{walks}")]);

        host.mount_small(&empty);
        let both = Reclaim::with(&ConfigFile::write(host, [first, Root::at("empty", &empty)]));
        let lines = walk_lines(&both);
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert_eq!(lines[0], format!("walk\tyes\troot: {walks}"));
        assert!(lines[1].starts_with("walk\tcould not tell\tempty: "), "{lines:?}");
        let (objects, _) = both.objects(&["check"], &[0]);
        let root = |name: &str| {
            let row = objects.iter().find(|object| object["type"] == "root" && object["name"] == name);
            row.or_fail("the row of a root").clone()
        };
        assert_eq!((&root("root")["walk"], &root("root")["walk_why"]), (&"yes".into(), &Value::Null));
        assert_eq!(root("empty")["walk"], "could-not-tell");
        assert!(root("empty")["walk_why"].is_string(), "{objects:?}");
        let feature = objects.iter().find(|object| object["name"] == "walk of mounts").or_fail("the walk's row");
        assert_eq!(feature["answer"], "could-not-tell", "{feature}");
    });
}

/// Directories that are closed again before anybody is asked are not looked at: nothing in them is said to be free.
#[test]
fn more_directories_than_stay_open_leave_their_entries_unknown() {
    private_host(|host| {
        let config = ConfigFile::write(host, [Root::of(host)]);
        let entries: Vec<_> = (0..80).map(|number| host.make_dir(format!("apart/{number}/entry"))).collect();
        let held = Held::tree(host, &entries[0]);
        let ask = |entries: &[PathBuf]| -> Vec<String> {
            let mut arguments = vec!["query".as_ref()];
            arguments.extend(entries.iter().map(|entry| entry.as_os_str()));
            let (objects, _) = Reclaim::with(&config).evidence("scan").objects(&arguments, &[0, 3, 4]);
            objects.iter().map(|object| object["verdict"].as_str().or_fail("a verdict").to_owned()).collect()
        };
        assert!(ask(&entries).iter().all(|verdict| verdict == "unknown"));
        assert_eq!(ask(&entries[..1]), ["pinned"]);
        let _keeper = held.release();
    });
}

#[test]
fn every_exit_code_is_reached() {
    private_host(|host| {
        let config = ConfigFile::write(host, [Root::of(host)]);
        let reclaim = Reclaim::with(&config).evidence("scan");
        let entry = host.entry("entry");
        reclaim_tests::wait_until("free and 0", Duration::from_secs(30), || {
            (reclaim.run(&["query", &entry.to_string_lossy()]).code() == 0).then_some(())
        });
        let sandbox = host.sandbox_with(&entry);
        for command in ["query", "who"] {
            assert_eq!(reclaim.run(&[command, &entry.to_string_lossy()]).code(), 3, "{command}");
        }
        drop(sandbox);
        let filtered = reclaim.clone().as_user(1000).with_filtered_procfs();
        assert_eq!(filtered.run(&["query", &entry.to_string_lossy()]).code(), 4);
        assert_eq!(filtered.run(&["scan"]).code(), 4);
        let blocked = host.make_file("blocked", "");
        let text = config.to_toml().replace(&*config.socket().to_string_lossy(), &blocked.join("s").to_string_lossy());
        config.write_text(&text);
        let finished = reclaim.run(&["run"]);
        assert_eq!(finished.code(), 1, "a socket below a file: {finished:?}");
        assert!(finished.stderr.contains("blocked"), "{finished:?}");
    });
}

#[test]
fn a_second_reclaimer_is_told_who_holds_the_root() {
    private_host(|host| {
        let config = ConfigFile::write(host, [Root::of(host)]);
        let reclaim = Reclaim::with(&config).evidence("scan");
        host.entry("first");
        reclaim_tests::wait_until("a first pass", Duration::from_secs(30), || {
            reclaim.sweep();
            host.names().is_empty().then_some(())
        });
        let own = host.root().join(".reclaim");
        fs::create_dir_all(&own).or_fail("make the directory that a pass works in");
        set_mode(&own, 0o700);
        let stale = host.entry("stale");
        let lock = fs::File::open(&own).or_fail("open .reclaim");
        let lock =
            nix::fcntl::Flock::lock(lock, nix::fcntl::FlockArg::LockExclusiveNonblock).map_err(|(_, error)| error);
        let lock = lock.or_fail("lock .reclaim, which nobody holds between passes");
        let finished = reclaim.run(&["sweep"]);
        assert_eq!(finished.code(), 5, "{finished:?}");
        let holder = std::process::id().to_string();
        assert!(finished.stderr.contains(&holder), "the holder is {holder}: {finished:?}");
        assert!(stale.is_dir());
        drop(lock);
        reclaim_tests::wait_until("a later pass", Duration::from_secs(30), || {
            reclaim.sweep();
            (!stale.exists()).then_some(())
        });
    });
}

#[test]
fn a_dry_run_counts_and_removes_nothing() {
    private_host(|host| {
        let config = ConfigFile::write(host, [Root::of(host)]);
        let reclaim = Reclaim::with(&config).evidence("scan");
        host.entries("stale-", 12);
        let pinned = host.entry("pinned");
        let _sandbox = host.sandbox_with(&pinned);
        let before = host.names();
        let (pass, entries) = reclaim_tests::wait_until("evidence", Duration::from_secs(30), || {
            let (mut passes, entries) = reclaim.sweep_verbosely(&["--dry-run"]);
            let pass = passes.remove(0);
            (pass.kept("no-evidence") == 0).then_some((pass, entries))
        });
        assert!(pass.dry_run);
        assert_eq!((pass.listed, pass.candidates, pass.kept("pinned")), (13, 12, 1), "{pass:?}");
        let would = entries.iter().filter(|entry| entry.verdict == "would-remove").count();
        assert_eq!(would, 12, "{entries:?}");
        assert_eq!(host.names(), before);
        assert!(host.condemned().is_empty());
    });
}

/// Entries that are kept must not take every run's time from those that come behind them.
#[test]
fn one_shot_sweeps_go_on_from_where_the_last_was_cut_short() {
    private_host(|host| {
        let config = ConfigFile::write(host, [Root::of(host)]).budget("20ms");
        // A listing may give the newest names first or last: some lie behind the kept ones either way.
        host.entries("stale-first-", 5);
        for index in 0..30_000 {
            host.make_dir(format!("root/kept-{index}/something"));
        }
        host.entries("stale-last-", 5);
        let reclaim = Reclaim::with(&config).evidence("scan");
        let mut truncated = 0;
        reclaim_tests::wait_until("the entries behind the kept ones", Duration::from_secs(100), || {
            let pass = reclaim.sweep().remove(0);
            truncated += u64::from(pass.truncated);
            host.names().iter().all(|name| !name.starts_with(b"stale")).then_some(())
        });
        assert!(truncated > 1, "the budget was large enough for one pass");
    });
}

#[test]
fn roots_can_be_chosen_by_name() {
    private_host(|host| {
        let other = host.make_dir("other");
        let config = ConfigFile::write(host, [Root::of(host), Root::at("other", &other)]);
        let (here, there) = (host.entry("stale"), host.make_dir("other/stale"));
        let reclaim = Reclaim::with(&config).evidence("scan");
        reclaim_tests::wait_until("the chosen root", Duration::from_secs(30), || {
            let passes = reclaim.sweep_with(&["--root", "other"]);
            assert_eq!(passes.iter().map(|pass| pass.root.as_str()).collect::<Vec<_>>(), ["other"]);
            (!there.exists()).then_some(())
        });
        assert!(here.is_dir());
    });
}

/// `who` and `query` need no root, and say the truth of paths that nobody configured.
#[test]
fn any_path_can_be_asked_about() {
    private_host(|host| {
        let config = ConfigFile::write(host, [Root::of(host)]);
        let reclaim = Reclaim::with(&config).evidence("scan");
        let directory = host.make_dir("not/configured/at-all");
        let (sandbox, point) = host.sandbox_with(&directory);
        for path in [&directory, &host.path("not/configured"), &host.path("not")] {
            assert_eq!(reclaim.query(path).verdict, "pinned", "{}", path.display());
            let who = reclaim.who(path);
            assert!(who.pins.iter().any(|pin| pin.mount_point.as_deref() == point.to_str()), "{who:?}");
        }
        assert!(reclaim.who(&point).pins.iter().any(|pin| pin.role == "target"));
        drop(sandbox);
        let absent = host.path("not/there");
        let finished = reclaim.run(&["query", &absent.to_string_lossy()]);
        assert_ne!(finished.code(), 3, "{finished:?}");
        let (objects, _) =
            reclaim.objects(&["query", &directory.to_string_lossy(), &point.to_string_lossy()], &[0, 3, 4]);
        assert_eq!(objects.len(), 2, "one object for each path: {objects:?}");
    });
}

fn keys(object: &Value) -> BTreeSet<&str> {
    object.as_object().or_fail("an object").keys().map(String::as_str).collect()
}

#[track_caller]
fn expect_keys(object: &Value, expected: &[&str]) {
    let found = keys(object);
    let missing: Vec<_> = expected.iter().filter(|key| !found.contains(**key)).collect();
    assert!(missing.is_empty(), "{missing:?} missing in {object}");
}

#[test]
fn objects_have_the_keys_of_the_contract() {
    private_host(|host| {
        let config = ConfigFile::write(host, [Root::of(host)]);
        let reclaim = Reclaim::with(&config).evidence("scan");
        let pinned = host.entry("pinned");
        let not_text = host.entry(b"\xff\xfe");
        let _sandbox = host.sandbox_with(&pinned);
        let _other = host.sandbox_with(&not_text);

        let (objects, _) = reclaim.objects(&["-v", "sweep", "--dry-run"], &[0, 4]);
        let pass = objects.last().or_fail("a summary");
        assert_eq!(pass["type"], "pass", "the summary comes last");
        let expected = "type root evidence complete covered gaps listed candidates kept removed restored condemned \
                        truncated dry_run elapsed_ms";
        expect_keys(pass, &expected.split(' ').collect::<Vec<_>>());
        for entry in objects.iter().filter(|object| object["type"] == "entry") {
            expect_keys(entry, &["type", "root", "name", "verdict", "reason"]);
        }
        assert!(objects.iter().any(|object| object["name_hex"] == "fffe"), "{objects:?}");

        let (objects, _) = reclaim.objects(&["who", &pinned.to_string_lossy()], &[3]);
        expect_keys(&objects[0], &["type", "path", "pinned", "evidence", "complete", "pins"]);
        let pin = &objects[0]["pins"][0];
        expect_keys(pin, &["role", "where", "namespace", "mount_id", "mount_point", "state", "tasks"]);
        expect_keys(&pin["tasks"][0], &["pid", "comm", "cgroup"]);

        let (objects, _) = reclaim.objects(&["query", &pinned.to_string_lossy()], &[3]);
        expect_keys(&objects[0], &["type", "path", "verdict", "evidence"]);

        let (objects, _) = reclaim.objects(&["scan"], &[0, 4]);
        let expected = "type tasks threads namespaces namespaces_read mounts complete covered gaps elapsed_ms";
        expect_keys(&objects[0], &expected.split(' ').collect::<Vec<_>>());
        assert!(objects[0]["covered"].get("0").is_some_and(Value::is_boolean), "{objects:?}");

        let (objects, _) = reclaim.objects(&["audit"], &[0, 3, 4]);
        expect_keys(objects.last().or_fail("the end of an audit"), &["type", "agree", "differences", "producers"]);

        let (objects, _) = reclaim.objects(&["pins"], &[0, 3, 4]);
        assert!(!objects.is_empty(), "two pins are there");
        let (objects, _) = reclaim.objects(&["pins", "--by", "namespace"], &[0, 3, 4]);
        assert!(!objects.is_empty(), "two namespaces are there");
        let (objects, _) = reclaim.objects(&["check"], &[0, 1, 3, 4]);
        assert!(!objects.is_empty());
    });
}

/// What a person sees: plain columns in a pipe, no escape sequences even from names, and the log elsewhere.
#[test]
fn output_for_people_holds_no_control_characters() {
    private_host(|host| {
        let config = ConfigFile::write(host, [Root::of(host)]);
        let reclaim = Reclaim::with(&config).evidence("scan");
        let odd = host.entry(b"odd-\x1b[31m\x07\nline");
        let _sandbox = host.sandbox_with(&odd);
        let path = odd.to_string_lossy().into_owned();
        for arguments in [&["-v", "sweep", "--dry-run"][..], &["who", &path], &["pins"], &["query", &path], &["scan"]] {
            let finished = run_to_end(&mut reclaim.command(arguments), Duration::from_secs(60));
            assert!(!finished.stdout.is_empty(), "{arguments:?}: {finished:?}");
            let control = |byte: u8| byte < 0x20 && byte != b'\n' && byte != b'\t';
            assert!(!finished.stdout.bytes().any(control), "{arguments:?}: {:?}", finished.stdout);
        }
    });
}

#[test]
fn help_and_version_need_nothing() {
    let run = |arguments: &[&str]| {
        let mut command = std::process::Command::new(reclaim_tests::reclaim_binary());
        run_to_end(command.args(arguments), Duration::from_secs(20))
    };
    assert!(run(&["--version"]).stdout.starts_with("reclaim "));
    let help = run(&["--help"]);
    assert_eq!(help.code(), 0);
    for command in ["run", "sweep", "audit", "pins", "scan", "who", "query", "check"] {
        assert!(help.stdout.contains(command), "{command} in {}", help.stdout);
        assert_eq!(run(&[command, "--help"]).code(), 0, "{command}");
    }
}
