//! Commands that run by themselves.

use crate::support::{Place, finish};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::process::{Command, Stdio};

fn keys(object: &Value) -> BTreeSet<&str> {
    object.as_object().expect("an object").keys().map(String::as_str).collect()
}

fn set<'a>(keys: &[&'a str]) -> BTreeSet<&'a str> {
    keys.iter().copied().collect()
}

#[test]
fn a_bad_configuration_ends_every_command_with_2_and_touches_nothing() {
    let place = Place::new();
    let stale = place.entry("stale");
    place.configure("min_agee = \"60s\"");
    for command in [&["sweep"][..], &["run"], &["pins"], &["audit"], &["scan"], &["query", "/"], &["who", "/"]] {
        let (code, out, err) = place.run(command);
        assert_eq!((code, out.as_str()), (2, ""), "{command:?}: {err}");
        assert!(err.contains(":8: `root.min_agee`: unknown key; did you mean `min_age`?"), "{err}");
        assert_eq!(err.lines().count(), 1, "one message: {err}");
    }
    let (code, objects) = place.objects(&["check"]);
    assert_eq!(code, 2);
    assert!(objects.iter().any(|object| object["type"] == "fault" && object["serious"] == true), "{objects:?}");
    assert!(stale.is_dir() && !place.root().join(".reclaim").exists() && !place.socket().exists());
}

#[test]
fn bad_usage_is_2_and_help_is_0() {
    let place = Place::new();
    let bad: [&[&str]; 5] =
        [&[], &["fly"], &["query"], &["sweep", "--root", "other"], &["--evidence", "guess", "scan"]];
    for arguments in bad {
        let (code, _, err) = place.run(arguments);
        assert!(code == 2 && !err.is_empty(), "{arguments:?}: {code} {err}");
    }
    for arguments in [&["--help"][..], &["--version"], &["sweep", "--help"]] {
        assert_eq!(place.run(arguments).0, 0, "{arguments:?}");
    }
}

#[test]
fn completions_and_manual_pages_know_every_command_whatever_the_configuration_is() {
    let place = Place::new();
    place.configure("min_agee = \"60s\"");
    let (code, help, _) = place.run(&["--help"]);
    let listed = help.lines().skip_while(|line| !line.starts_with("Commands:")).skip(1);
    // What a long description goes on with is indented further.
    let named = listed.take_while(|line| !line.is_empty()).filter_map(|line| line.strip_prefix("  "));
    let commands: Vec<&str> = named.filter_map(|line| line.split(' ').next()).filter(|name| !name.is_empty()).collect();
    assert!(code == 0 && commands.contains(&"sweep") && commands.len() >= 17, "{help}");
    for shell in ["bash", "zsh", "fish"] {
        let (code, script, err) = place.run(&["completions", shell]);
        assert_eq!(code, 0, "{err}");
        for word in commands.iter().chain(&["placeholder", "evidence"]) {
            assert!(script.contains(word), "{shell} completes no {word}");
        }
    }
    let script = place.path("reclaim.bash");
    fs::write(&script, place.run(&["completions", "bash"]).1).expect("a file");
    let ask =
        "source \"$1\"; COMP_WORDS=(reclaim que); COMP_CWORD=1; _reclaim reclaim que reclaim; echo \"${COMPREPLY[*]}\"";
    let asked = Command::new("bash").args(["-c", ask, "bash"]).arg(&script).output().expect("bash");
    assert_eq!(String::from_utf8_lossy(&asked.stdout).trim(), "query", "{asked:?}");
    let (code, page, err) = place.run(&["man"]);
    assert!(code == 0 && page.contains(".TH reclaim 1"), "{err}");
    for command in commands {
        assert!(page.contains(&format!("reclaim\\-{command}")), "{command} is not on the page");
        if command != "help" {
            let (code, page, err) = place.run(&["man", command]);
            assert!(code == 0 && page.contains(&format!(".TH reclaim-{command} 1")), "{command}: {err}");
            assert!(page.contains("evidence"), "{command}: global options are missing");
        }
    }
    assert_eq!(place.run(&["man", "fly"]).0, 2);
    assert_eq!(place.run(&["completions", "dos"]).0, 2);
}

#[test]
fn without_a_file_only_what_needs_roots_is_refused() {
    let place = Place::new();
    // The host's own file, should there be one, is not seen in this namespace.
    if fs::exists("/etc/reclaim").expect("a look") {
        let hide = nix::mount::MsFlags::empty();
        nix::mount::mount(Some("tmpfs"), "/etc/reclaim", Some("tmpfs"), hide, None::<&str>).expect("a tmpfs");
    }
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_reclaim"));
        finish(command.args(["--evidence", "scan"]).args(arguments).current_dir(place.path("")))
    };
    for (arguments, name) in [(&["sweep"][..], "sweep"), (&["run"], "run"), (&["audit"], "audit")] {
        let (code, _, err) = run(arguments);
        assert!(code == 2 && err.contains("/etc/reclaim/reclaim.toml") && err.contains(name), "{code} {err}");
    }
    for arguments in [&["query", "."][..], &["who", "."], &["scan"], &["pins"]] {
        let (code, _, err) = run(arguments);
        assert!([0, 3, 4].contains(&code), "{arguments:?}: {code} {err}");
    }
}

#[test]
fn who_and_query_tell_a_pin_through_any_path_to_it() {
    let place = Place::new();
    let (entry, free) = (place.entry("live"), place.entry("live-not"));
    let pinned = place.pin(&entry);
    std::os::unix::fs::symlink(place.root(), place.path("link")).expect("a link");
    for path in ["root/live", "./root/live", "link/live", "root", "root/../root/live", &entry.to_string_lossy()] {
        let (code, objects) = place.objects(&["--evidence", "scan", "query", path]);
        assert_eq!((code, &objects[0]["verdict"]), (3, &"pinned".into()), "{path}: {objects:?}");
        let (code, objects) = place.objects(&["--evidence", "scan", "who", path]);
        assert_eq!((code, &objects[0]["pinned"]), (3, &true.into()), "{path}: {objects:?}");
    }
    let (code, objects) = place.objects(&["query", &free.to_string_lossy(), &entry.to_string_lossy()]);
    assert_eq!((code, objects.len()), (3, 2), "the worst counts");
    assert_eq!(objects[0]["verdict"], "free", "{objects:?}");
    assert_eq!(keys(&objects[0]), set(&["type", "path", "verdict", "evidence"]));

    let (_, objects) = place.objects(&["who", "root/live"]);
    let expected = ["type", "path", "pinned", "evidence", "complete", "covered", "pins"];
    assert_eq!(keys(&objects[0]), set(&expected));
    let pin = &objects[0]["pins"][0];
    let expected = ["role", "where", "namespace", "mount_id", "mount_point", "state", "tasks"];
    assert_eq!(keys(pin), set(&expected));
    assert_eq!((&pin["role"], &pin["where"]), (&"source".into(), &"exact".into()));
    assert_eq!(pin["mount_point"], pinned.point.to_string_lossy().as_ref());
    let task = &pin["tasks"][0];
    assert!(keys(task).is_superset(&set(&["pid", "comm", "cgroup"])) && task["comm"] == "sleep", "{task}");

    // In the sandbox's own mount point the place is a target; seen from here nothing is mounted on it.
    let (code, objects) = place.objects(&["who", &pinned.point.to_string_lossy()]);
    assert_eq!((code, &objects[0]["pins"][0]["role"]), (3, &"target".into()), "{objects:?}");
    drop(pinned);
    assert_eq!(place.objects(&["query", "root/live"]).0, 0);
}

#[test]
fn a_missing_path_is_an_error_for_who_and_unknown_for_query() {
    let place = Place::new();
    let (code, _, err) = place.run(&["who", "not/there"]);
    assert!(code == 1 && err.contains("not/there"), "{code} {err}");
    let (code, objects) = place.objects(&["query", "not/there"]);
    assert_eq!((code, &objects[0]["verdict"]), (4, &"unknown".into()));
    assert!(objects[0]["why"].as_str().is_some_and(|why| why.contains("not/there")), "{objects:?}");
}

#[test]
fn a_sweep_tells_each_entry_and_names_keep_their_bytes() {
    let place = Place::new();
    place.entry("stale");
    let odd = std::ffi::OsStr::from_bytes(b"odd\xff\x1b[31m");
    fs::create_dir(place.root().join(odd)).expect("an entry");
    let entry = place.entry("live");
    let _pinned = place.pin(&entry);
    let (code, objects) = place.objects(&["-v", "sweep", "--dry-run"]);
    assert_eq!(code, 0, "{objects:?}");
    let pass = objects.last().expect("a summary");
    let expected = "type root evidence complete covered gaps listed candidates kept removed restored condemned truncated \
                    dry_run elapsed_ms";
    assert_eq!(keys(pass), expected.split(' ').collect());
    assert_eq!((&pass["listed"], &pass["candidates"], &pass["kept"]["pinned"]), (&3.into(), &2.into(), &1.into()));
    let named = objects.iter().find(|object| object["name_hex"] == "6f6464ff1b5b33316d").expect("the odd name");
    assert_eq!(named["verdict"], "would-remove");
    let kept = objects.iter().find(|object| object["name"] == "live").expect("the pinned one");
    assert_eq!((&kept["verdict"], &kept["reason"]), (&"kept".into(), &"pinned".into()));
    assert_eq!(kept["pins"][0]["role"], "source");

    let (code, out, _) = place.run(&["-v", "sweep"]);
    assert_eq!(code, 0);
    assert!(out.contains("removed      r/odd\\xff\\u{1b}[31m") && !out.contains('\u{1b}'), "{out}");
    assert!(entry.is_dir() && !place.root().join("stale").exists());
}

#[test]
fn a_pass_that_keeps_for_want_of_evidence_is_4_and_a_held_root_is_5() {
    let place = Place::new();
    place.entry("first");
    assert_eq!(place.run(&["sweep"]).0, 0);
    place.entry("stale");
    fs::DirBuilder::new().mode(0o700).create(place.root().join(".reclaim")).expect("the directory of passes");
    let lock = fs::File::open(place.root().join(".reclaim")).expect("the directory of passes");
    lock.lock().expect("nobody holds it");
    let (code, _, err) = place.run(&["sweep"]);
    assert!(code == 5 && err.contains(&std::process::id().to_string()), "{code} {err}");
    drop(lock);
    // A user other than root sees too little of a host to say anything.
    let mut command = place.command(&["--evidence", "scan", "--json", "sweep", "--dry-run"]);
    make_readable(&place);
    let (code, out, err) = finish(as_user(&mut command));
    assert!(code == 4 && out.contains("no-evidence"), "{code} {out} {err}");
    assert!(err.contains("CAP_SYS_ADMIN") && err.contains("What still works"), "{err}");
}

/// Lets another user reach the place and read the configuration.
fn make_readable(place: &Place) {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(place.path(""), fs::Permissions::from_mode(0o755)).expect("a mode");
    // The program itself may lie where only root gets to.
    fs::copy(env!("CARGO_BIN_EXE_reclaim"), place.path("reclaim")).expect("a copy");
}

fn as_user(command: &mut Command) -> &mut Command {
    use std::os::unix::process::CommandExt as _;
    let arguments: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
    let directory = command.get_current_dir().expect("a directory").to_path_buf();
    *command = Command::new(directory.join("reclaim"));
    command.args(arguments).current_dir(directory).uid(1000).gid(1000)
}

#[test]
fn a_reader_that_hangs_up_ends_a_command_quietly() {
    let place = Place::new();
    for index in 0..2_000 {
        place.entry(&format!("an-entry-with-a-long-name-{index}"));
    }
    let mut command = place.command(&["-v", "sweep", "--dry-run"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(0), "{:?}", output.status);
    assert!(!String::from_utf8_lossy(&output.stderr).contains("reclaim:"), "{output:?}");
}

#[test]
fn status_without_a_service_says_so() {
    let place = Place::new();
    let (code, out, err) = place.run(&["--json", "status"]);
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(err.contains("no service listens on") && err.contains("reclaim run"), "{err}");
}

#[test]
fn check_tells_features_capabilities_and_leftovers() {
    let place = Place::new();
    let batch = place.root().join(".reclaim/batch");
    fs::create_dir_all(batch.join("left")).expect("a leftover");
    let (code, objects) = place.objects(&["check"]);
    assert_eq!(code, 0, "{objects:?}");
    let of = |kind: &str| -> Vec<&Value> { objects.iter().filter(|object| object["type"] == kind).collect() };
    for feature in of("feature") {
        let answer = feature["answer"].as_str().expect("an answer");
        assert!(["yes", "no", "could-not-tell"].contains(&answer), "{feature}");
        assert!(answer == "yes" || feature["why"].is_string(), "a no has a why: {feature}");
    }
    assert_eq!(of("capability").len(), 5);
    assert_eq!((&of("root")[0]["batches"], &of("root")[0]["condemned"]), (&1.into(), &1.into()));
    assert_eq!(of("check").len(), 1);
    assert!(batch.join("left").is_dir(), "nothing is touched");
}
