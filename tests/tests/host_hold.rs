//! Holds around real sandboxes: placeholders come, deny, and go with the last one that needs them.

use reclaim_tests::{
    ConfigFile, Hold, Host, Mode, OrFail as _, Reclaim, Request, Root, Subject, cases, manifests, private_host,
    run_to_end, wait_for_no_manifest, wait_until,
};
use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

cases! {
    placeholders_come_and_go: service, scan, command;
    overlapping_holds_end_in_any_order: service, scan, command;
    somebody_else_may_need_it: service, scan, command;
}

const LIMIT: Duration = Duration::from_secs(60);

/// A host with a project, and the binary.
fn project(host: &Host) -> (PathBuf, ConfigFile, Reclaim) {
    let config = ConfigFile::write(host, [Root::of(host)]);
    let reclaim = Reclaim::with(&config);
    (host.make_dir("project"), config, reclaim)
}

#[track_caller]
fn wait_until_gone(path: &Path) {
    let gone = || path.symlink_metadata().is_err().then_some(());
    wait_until(&format!("{} to go", path.display()), LIMIT, gone);
}

#[track_caller]
fn inode(path: &Path) -> u64 {
    fs::symlink_metadata(path).or_fail(format_args!("look at {}", path.display())).ino()
}

fn placeholders_come_and_go(host: &Host, mode: Mode) {
    let subject = Subject::start(host, mode);
    let project = host.make_dir("project");
    let (file, directory) = (project.join(".env"), project.join(".git"));
    let hold = Hold::by(subject.reclaim()).file(&file).directory(&directory);
    let mut sandbox = hold.sandbox();
    assert!(file.is_file() && fs::metadata(&file).or_fail("look").len() == 0 && directory.is_dir());
    for denied in [file.clone(), directory.join("config")] {
        sandbox.attempt(&Request::Touch(denied.clone().into())).expect_err("a denied write");
    }
    subject.expect_pinned(&file);
    assert!(project.join(".env").exists(), "it is needed");
    drop(sandbox);
    wait_until_gone(&file);
    wait_until_gone(&directory);
    wait_until("nothing beside them", LIMIT, || fs::read_dir(&project).or_fail("list").next().is_none().then_some(()));
}

fn overlapping_holds_end_in_any_order(host: &Host, mode: Mode) {
    let subject = Subject::start(host, mode);
    let file = host.make_dir("project").join(".env");
    let hold = Hold::by(subject.reclaim()).file(&file);
    for first_ends_first in [true, false] {
        let (first, second) = (hold.sandbox(), hold.sandbox());
        let made = inode(&file);
        let (ends, mut stays) = if first_ends_first { (first, second) } else { (second, first) };
        drop(ends);
        // Whatever goes by mistake goes within this.
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!(inode(&file), made, "somebody else holds it");
        stays.attempt(&Request::Touch(file.clone().into())).expect_err("a denied write");
        drop(stays);
        wait_until_gone(&file);
    }
}

fn somebody_else_may_need_it(host: &Host, mode: Mode) {
    let config = ConfigFile::write(host, [Root::of(host)]);
    let subject = Subject::start_with(host, mode, &config);
    let file = host.make_dir("project").join(".env");
    let policy = host.make_file("policy", "");
    let held = Hold::by(subject.reclaim()).file(&file).sandbox();
    let mut other = host.sandbox();
    other.bind(&policy, &file);
    drop(held);
    std::thread::sleep(Duration::from_secs(1));
    assert!(file.exists(), "somebody has it mounted on");
    assert_eq!(manifests(&config).len(), 1);
    drop(other);
    wait_until("a pass to remove it", LIMIT, || {
        subject.sweep();
        file.symlink_metadata().is_err().then_some(())
    });
    wait_for_no_manifest(&config);
}

#[test]
fn the_own_file_of_the_user_is_never_taken_for_a_placeholder() {
    private_host(|host| {
        let (project, config, reclaim) = project(host);
        let (file, directory) = (host.make_file("project/.env", ""), host.make_dir("project/.git"));
        let identities = [inode(&file), inode(&directory)];
        let hold = Hold::by(&reclaim).file(&file).directory(&directory);
        for _ in 0..2 {
            drop(hold.sandbox());
            wait_for_no_manifest(&config);
            assert_eq!([inode(&file), inode(&directory)], identities);
        }
        drop(project);
    });
}

/// What is there and cannot be what was asked for stays, and that is said: the launcher may fail for it.
#[test]
fn what_is_of_another_kind_is_left_and_told() {
    private_host(|host| {
        let (project, config, reclaim) = project(host);
        let (link, directory, file) =
            (project.join("link"), host.make_dir("project/dir"), host.make_file("project/file", ""));
        symlink("/nowhere", &link).or_fail("link");
        let hold = Hold::by(&reclaim).file(&link).file(&directory).directory(&file);
        let ended = hold.command(&["true"]).output().or_fail("run a hold");
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        for (path, wanted) in [(&link, "file"), (&directory, "file"), (&file, "directory")] {
            assert!(said.contains(&format!("{} is there and is no {wanted}", path.display())), "{said}");
        }
        wait_for_no_manifest(&config);
        assert!(link.is_symlink() && directory.is_dir() && file.is_file());
    });
}

#[test]
fn what_became_the_users_stays() {
    private_host(|host| {
        let (project, config, reclaim) = project(host);
        let names = ["written", "emptied", "replaced", "filled"];
        let paths = names.map(|name| project.join(name));
        let [written, emptied, replaced, filled] = &paths;
        let hold = Hold::by(&reclaim).file(written).file(emptied).file(replaced).directory(filled);
        // Without a sandbox nothing keeps the user from it.
        let mut held = hold.command(&["sleep", "60"]).spawn().or_fail("start a hold");
        wait_until("the placeholders", LIMIT, || filled.exists().then_some(()));
        fs::write(written, "mine").or_fail("write");
        fs::write(emptied, "").or_fail("empty");
        fs::remove_file(replaced).or_fail("remove");
        fs::write(replaced, "").or_fail("make it again");
        fs::write(filled.join("file"), "").or_fail("fill");
        held.kill().and_then(|()| held.wait()).or_fail("end the hold");
        wait_for_no_manifest_but_filled(&config, &reclaim, filled);
        for path in &paths {
            assert!(path.exists(), "{} is the user's", path.display());
        }
        fs::remove_file(filled.join("file")).or_fail("empty it again");
        wait_until("the directory to go once it is empty", LIMIT, || {
            let _told = reclaim.run(&["sweep"]);
            filled.symlink_metadata().is_err().then_some(())
        });
        wait_for_no_manifest(&config);
    });
}

/// A directory with something in it is kept, and tried again.
#[track_caller]
fn wait_for_no_manifest_but_filled(config: &ConfigFile, reclaim: &Reclaim, filled: &Path) {
    wait_until("the holder to be ended", LIMIT, || {
        let _told = reclaim.run(&["sweep"]);
        let [manifest] = manifests(config).try_into().ok()?;
        let text = fs::read_to_string(&manifest).or_fail("read a manifest");
        text.contains(filled.file_name()?.to_str()?).then_some(())
    });
}

#[test]
fn a_command_that_cannot_be_started_leaves_nothing() {
    private_host(|host| {
        let (project, config, reclaim) = project(host);
        let file = project.join(".env");
        let hold = Hold::by(&reclaim).file(&file);
        let not_a_program = host.make_file("data", "text").display().to_string();
        for (command, code) in [("/nowhere/at/all", 127), (not_a_program.as_str(), 126)] {
            let finished = run_to_end(&mut hold.command(&[command]), LIMIT);
            assert_eq!(finished.code(), code, "{finished:?}");
            assert!(finished.stderr.contains(command), "{finished:?}");
            wait_until_gone(&file);
            wait_for_no_manifest(&config);
        }
    });
}

#[test]
fn the_command_is_this_process_with_its_code_and_streams() {
    private_host(|host| {
        let (project, config, reclaim) = project(host);
        let hold = Hold::by(&reclaim).source(&project).file(&project.join("x"));
        // It comes back although something goes on behind it: none of its pipes is kept open.
        let finished = run_to_end(&mut hold.command(&["sh", "-c", "echo out; echo err >&2; exit 42"]), LIMIT);
        assert_eq!((finished.code(), &*finished.stdout, &*finished.stderr), (42, "out\n", "err\n"));
        let finished = run_to_end(&mut hold.command(&["sh", "-c", "kill -TERM $$"]), LIMIT);
        assert_eq!(finished.status.code(), None, "it died by the signal: {finished:?}");
        // Whoever waits for all of its children has none that it did not start.
        let mut held = hold.command(&["sleep", "60"]).spawn().or_fail("start a hold");
        wait_until("the command", LIMIT, || (command_of(held.id()) == "sleep").then_some(()));
        assert_eq!(children_of(held.id()), Vec::<u32>::new(), "the command has a child that it did not start");
        held.kill().and_then(|()| held.wait()).or_fail("end the hold");
        wait_for_no_manifest(&config);
    });
}

fn command_of(process: u32) -> String {
    fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default().trim_end().to_owned()
}

/// Processes whose parent this is.
fn children_of(process: u32) -> Vec<u32> {
    let listed = fs::read_dir("/proc").or_fail("list /proc").flatten();
    let processes = listed.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let parent = |process: &u32| {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        stat.rsplit(')').next()?.split_ascii_whitespace().nth(1)?.parse::<u32>().ok()
    };
    processes.filter(|child| parent(child) == Some(process)).collect()
}

#[test]
fn a_keep_holds_a_placeholder_too() {
    private_host(|host| {
        let config = ConfigFile::write(host, [Root::of(host).text("kind", "file").text("min_age", "1h")]);
        let reclaim = Reclaim::with(&config);
        let file = host.root().join(".env");
        let dying = Hold::by(&reclaim).file(&file).variable("RECLAIM_TEST_CRASH", "hold-made");
        assert_eq!(run_to_end(&mut dying.command(&["true"]), LIMIT).status.code(), None);
        let path = file.to_str().or_fail("text");
        assert_eq!(reclaim.run(&["keep", path, "--for", "1h"]).code(), 0);
        for _ in 0..2 {
            let _told = reclaim.sweep();
            assert!(file.exists(), "its owner keeps it");
        }
        assert_eq!(reclaim.run(&["unkeep", path]).code(), 0);
        wait_until("it to go once nobody keeps it", LIMIT, || {
            let _told = reclaim.sweep();
            file.symlink_metadata().is_err().then_some(())
        });
        wait_for_no_manifest(&config);
    });
}

#[test]
fn a_hold_lives_as_long_as_what_its_command_started() {
    private_host(|host| {
        let (project, config, reclaim) = project(host);
        let file = project.join(".env");
        let hold = Hold::by(&reclaim).file(&file);
        // The command ends, what it left behind does not.
        let script = "sleep 60 </dev/null >/dev/null 2>&1 & echo $!";
        let finished = run_to_end(&mut hold.command(&["sh", "-c", script]), LIMIT);
        let left: i32 = finished.stdout.trim().parse().or_fail("read a pid");
        std::thread::sleep(Duration::from_millis(500));
        assert!(file.exists(), "a process that inherited the hold is there");
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(left), nix::sys::signal::Signal::SIGKILL).or_fail("kill");
        wait_until_gone(&file);
        // And the other way round: a command that closes all that it inherits is waited for.
        let script = "for fd in /proc/$$/fd/*; do fd=${fd##*/}; \
                      test $fd -lt 3 || eval \"exec $fd>&-\"; done; sleep 4; test -e \"$1\" && echo there";
        let path = file.display().to_string();
        let finished = run_to_end(&mut hold.command(&["bash", "-c", script, "bash", &path]), LIMIT);
        assert_eq!(finished.stdout, "there\n", "{finished:?}");
        wait_until_gone(&file);
        wait_for_no_manifest(&config);
    });
}

#[test]
fn a_lease_lives_as_long_as_what_its_command_started() {
    private_host(|host| {
        let (project, _, reclaim) = project(host);
        let hold = Hold::by(&reclaim).source(&project);
        let finished =
            run_to_end(&mut hold.command(&["sh", "-c", "sleep 60 </dev/null >/dev/null 2>&1 & echo $!"]), LIMIT);
        let left: i32 = finished.stdout.trim().parse().or_fail("read a pid");
        let alone = || {
            let opened = fs::File::open(&project).or_fail("open");
            nix::fcntl::Flock::lock(opened, nix::fcntl::FlockArg::LockExclusiveNonblock).is_ok()
        };
        std::thread::sleep(Duration::from_secs(1));
        assert!(!alone(), "a process that inherited the hold is there");
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(left), nix::sys::signal::Signal::SIGKILL).or_fail("kill");
        wait_until("the lease to end", LIMIT, || alone().then_some(()));
    });
}

#[test]
fn a_leased_source_outlives_every_pass_until_its_sandbox_ends() {
    private_host(|host| {
        let (_, config, reclaim) = project(host);
        let (source, stale) = (host.entry("source"), host.entry("stale"));
        let mut held = Hold::by(&reclaim).source(&source).command(&["sleep", "60"]).spawn().or_fail("start a hold");
        wait_until("the lease", LIMIT, || {
            let pass = &reclaim.sweep_with(&["--dry-run"])[0];
            (pass.kept("leased") == 1).then_some(())
        });
        wait_until("the stale entry to go", LIMIT, || {
            let _told = reclaim.sweep();
            assert!(source.exists(), "it is leased");
            (!stale.exists()).then_some(())
        });
        held.kill().and_then(|()| held.wait()).or_fail("end the hold");
        wait_until("the source to go", LIMIT, || {
            let _told = reclaim.sweep();
            (!source.exists()).then_some(())
        });
        let absent = Hold::by(&reclaim).source(&source).command(&["true"]);
        let finished = run_to_end(&mut { absent }, LIMIT);
        assert!(finished.code() == 1 && finished.stderr.contains("source"), "{finished:?}");
        assert!(manifests(&config).is_empty(), "nothing is written down for a lease");
    });
}

#[test]
fn two_names_of_one_directory_are_one_placeholder() {
    private_host(|host| {
        let (project, config, reclaim) = project(host);
        let (bound, linked) = (host.make_dir("bound"), host.path("linked"));
        host.bind(&project, &bound);
        symlink("project", &linked).or_fail("link");
        let file = project.join(".env");
        let holds = [&project, &bound, &linked].map(|above| Hold::by(&reclaim).file(&above.join(".env")));
        let mut sandboxes: Vec<_> = holds.iter().map(Hold::sandbox).collect();
        let made = inode(&file);
        while let Some(sandbox) = sandboxes.pop() {
            assert_eq!(inode(&file), made);
            drop(sandbox);
            std::thread::sleep(Duration::from_millis(300));
        }
        wait_until_gone(&file);
        wait_for_no_manifest(&config);
    });
}

#[test]
fn holders_in_different_pid_namespaces_agree() {
    private_host(|host| {
        let (project, config, reclaim) = project(host);
        let file = project.join(".env");
        let hold = Hold::by(&reclaim).file(&file);
        let namespace = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
        let first = hold.sandbox_through(&namespace);
        let second = hold.sandbox_through(&namespace);
        let third = hold.sandbox();
        let made = inode(&file);
        for ends in [second, first] {
            drop(ends);
            std::thread::sleep(Duration::from_millis(500));
            assert_eq!(inode(&file), made, "others hold it");
        }
        drop(third);
        wait_until("it to go, by whoever comes next", LIMIT, || {
            let _told = reclaim.sweep();
            file.symlink_metadata().is_err().then_some(())
        });
        wait_for_no_manifest(&config);
    });
}

#[test]
fn a_placeholder_may_lie_in_another() {
    private_host(|host| {
        let (project, config, reclaim) = project(host);
        let (outer, inner) = (project.join(".claude"), project.join(".claude/settings"));
        let hold = Hold::by(&reclaim).directory(&outer).file(&inner);
        let finished = run_to_end(&mut hold.command(&["test", "-f", inner.to_str().or_fail("text")]), LIMIT);
        assert_eq!(finished.code(), 0, "{finished:?}");
        wait_until_gone(&outer);
        wait_for_no_manifest(&config);
        let missing = Hold::by(&reclaim).file(&inner);
        let finished = run_to_end(&mut missing.command(&["true"]), LIMIT);
        assert!(finished.code() == 1 && finished.stderr.contains("its directory must exist"), "{finished:?}");
        wait_for_no_manifest(&config);
    });
}

#[test]
fn check_tells_who_holds_and_what_was_left() {
    private_host(|host| {
        let (project, config, reclaim) = project(host);
        let file = project.join(".env");
        let holds = || {
            let (objects, _) = reclaim.objects(&["check"], &[0, 1]);
            objects.into_iter().filter(|object| object["type"] == "hold").collect::<Vec<_>>()
        };
        assert!(holds().is_empty());
        let mut held = Hold::by(&reclaim).file(&file).command(&["sleep", "60"]).spawn().or_fail("start a hold");
        let told = wait_until("the hold to be told", LIMIT, || holds().pop());
        assert_eq!(told["placeholders"], serde_json::json!([file]), "{told}");
        assert!(told["alive"] == true && told["command"] == "sleep" && told["user"] == 0, "{told}");
        held.kill().and_then(|()| held.wait()).or_fail("end the hold");
        wait_for_no_manifest(&config);
        let finished = run_to_end(
            &mut Hold::by(&reclaim).file(&file).variable("RECLAIM_TEST_CRASH", "hold-made").command(&["true"]),
            LIMIT,
        );
        assert_eq!(finished.status.code(), None, "{finished:?}");
        let told = holds().pop().or_fail("what was left");
        assert_eq!(told["alive"], false, "{told}");
    });
}

#[test]
fn names_are_bytes_and_bad_ones_are_refused() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;
    private_host(|host| {
        let (project, config, reclaim) = project(host);
        let odd = project.join(OsStr::from_bytes(b"a \xff\n\\040"));
        drop(Hold::by(&reclaim).file(&odd).sandbox());
        wait_until_gone(&odd);
        wait_for_no_manifest(&config);
        for bad in ["/", "..", ".", "", "x/.."] {
            let finished = reclaim.run(&["hold", "--placeholder", bad, "--", "true"]);
            assert_eq!(finished.code(), 2, "{bad}: {finished:?}");
        }
    });
}
