//! Holds against users who mean harm, processes that have nothing left, and moments that are the worst.

use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode as FileMode;
use nix::unistd::{Pid, Uid, chown, mkfifo};
use reclaim_tests::{
    ConfigFile, Hold, Host, OrFail as _, Reclaim, Root, Service, forge, helper_program, manifest_of, manifests,
    private_host, run_to_end, set_mode, wait_for_no_manifest, wait_until,
};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
/// Whatever goes by mistake goes within this.
const A_WHILE: Duration = Duration::from_millis(700);
/// A user that is not root.
const USER: u32 = 4321;

fn start(host: &Host) -> (PathBuf, ConfigFile, Reclaim) {
    let config = ConfigFile::write(host, [Root::of(host)]);
    let reclaim = Reclaim::with(&config);
    (host.make_dir("project"), config, reclaim)
}

fn listed(directory: &Path) -> Vec<PathBuf> {
    fs::read_dir(directory).or_fail("list").map(|entry| entry.or_fail("list").path()).collect()
}

#[track_caller]
fn sweep_until_gone(reclaim: &Reclaim, path: &Path) {
    wait_until(&format!("{} to go", path.display()), LIMIT, || {
        let _told = reclaim.run(&["sweep"]);
        path.symlink_metadata().is_err().then_some(())
    });
}

/// Dies at a step of making its placeholders.
#[track_caller]
fn dies(hold: &Hold, step: &str) {
    let finished = run_to_end(&mut hold.clone().variable("RECLAIM_TEST_CRASH", step).command(&["true"]), LIMIT);
    assert_eq!(finished.status.code(), None, "it never came to {step}: {finished:?}");
}

#[test]
fn a_command_is_not_started_without_somebody_who_keeps_its_hold() {
    private_host(|host| {
        let (project, config, reclaim) = start(host);
        let source = host.make_dir("source");
        let hold = Hold::by(&reclaim).source(&source).file(&project.join(".env"));
        // Whoever can take the lock alone has found nobody who leases the source.
        let text = source.to_str().or_fail("text");
        let script = "flock --nonblock --exclusive \"$1\" true && echo unleased; echo started";
        let inner = ["sh", "-c", script, "sh", text].map(Into::into);
        let bare = ["unshare", "--mount", "sh", "-c", "mount -t tmpfs none /dev && exec \"$@\"", "sh"];
        let mut runs: Vec<Vec<String>> = vec![bare.map(str::to_owned).into()];
        runs.extend((4..24).step_by(2).map(|most| vec!["prlimit".to_owned(), format!("--nofile={most}:{most}")]));
        let mut refused = 0;
        for outer in runs {
            let outer: Vec<&str> = outer.iter().map(String::as_str).collect();
            let finished = run_to_end(&mut hold.command_through(&outer, &inner), LIMIT);
            assert!(!finished.stdout.contains("unleased"), "{outer:?}: {finished:?}");
            refused += usize::from(!finished.stdout.contains("started"));
            wait_until("nothing to be left", LIMIT, || {
                let _told = reclaim.run(&["sweep"]);
                (listed(&project).is_empty() && manifests(&config).is_empty()).then_some(())
            });
            wait_for_no_manifest(&config);
        }
        assert!(refused > 1, "nothing stood in the way");
    });
}

fn bare_command(words: &[&str]) -> std::process::Command {
    let mut command = std::process::Command::new(helper_program());
    command.args(["exec", "--"]).args(words);
    command
}

#[test]
fn a_sandbox_inherits_one_end_of_a_pipe_and_nothing_else() {
    private_host(|host| {
        let (project, config, reclaim) = start(host);
        let script = "for fd in /proc/$$/fd/*; do echo \"${fd##*/} $(readlink \"$fd\") $(stat -Lc %F \"$fd\") \
                      $(sed -n 's/^flags:[[:space:]]*//p' /proc/$$/fdinfo/${fd##*/})\"; done";
        // By way of the program that the tests start everything with.
        let bare = run_to_end(&mut bare_command(&["sh", "-c", script]), LIMIT).stdout;
        for hold in [
            Hold::by(&reclaim).source(&project).file(&project.join("a")).directory(&project.join("b")),
            Hold::by(&reclaim).source(&project),
        ] {
            let finished = run_to_end(&mut hold.command(&["sh", "-c", script]), LIMIT);
            // Its standard streams are the caller's, and so is what it would have without a hold.
            let number = |line: &str| line.split(' ').next().unwrap_or_default().to_owned();
            let is_more = |line: &&str| !bare.lines().any(|known| number(known) == number(line));
            let inherited: Vec<&str> = finished.stdout.lines().filter(is_more).collect();
            let [pipe] = *inherited else { panic!("it inherits {inherited:?}: {finished:?}") };
            let flags = pipe.rsplit(' ').next().and_then(|flags| u32::from_str_radix(flags, 8).ok()).or_fail("flags");
            assert!(pipe.contains(" fifo ") && flags & 0o3 == 0o1, "{pipe}");
        }
        wait_for_no_manifest(&config);
    });
}

#[test]
fn what_a_user_emptied_stays_although_another_hold_found_it() {
    private_host(|host| {
        let (project, config, reclaim) = start(host);
        let names = ["emptied", "touched", "untouched"].map(|name| project.join(name));
        let hold = names.iter().fold(Hold::by(&reclaim), |hold, path| hold.file(path));
        let begin = || {
            let before = manifests(&config).len();
            let held = hold.command(&["sleep", "60"]).spawn().or_fail("start a hold");
            wait_until("a manifest", LIMIT, || {
                let names_all =
                    |path: &PathBuf| fs::read_to_string(path).is_ok_and(|text| text.contains("\"untouched\""));
                (manifests(&config).iter().filter(|path| names_all(path)).count() > before).then_some(())
            });
            held
        };
        let mut first = begin();
        std::thread::sleep(Duration::from_millis(20));
        fs::write(&names[0], "mine").or_fail("write");
        fs::write(&names[0], "").or_fail("empty");
        let touched = File::options().write(true).open(&names[1]).or_fail("open");
        touched.set_modified(std::time::SystemTime::now()).or_fail("touch");
        drop(touched);
        let mut second = begin();
        for held in [&mut first, &mut second] {
            held.kill().and_then(|()| held.wait()).or_fail("end a hold");
            std::thread::sleep(A_WHILE);
        }
        sweep_until_gone(&reclaim, &names[2]);
        wait_for_no_manifest(&config);
        assert!(names[0].exists() && names[1].exists(), "they are the user's: {:?}", listed(&project));
    });
}

#[test]
fn what_had_no_name_of_its_own_yet_is_found_where_it_lies_condemned() {
    private_host(|host| {
        let (project, config, reclaim) = start(host);
        let elsewhere = host.make_dir("elsewhere").join("x");
        for step in ["hold-temporary", "hold-identified"] {
            dies(&Hold::by(&reclaim).directory(&project.join(".git")), step);
            let other = Hold::by(&reclaim).file(&elsewhere).variable("RECLAIM_TEST_CRASH", "after-condemn");
            assert_eq!(run_to_end(&mut other.command(&["true"]), LIMIT).code(), 0);
            wait_until("it to be condemned", LIMIT, || project.join(".reclaim").exists().then_some(()));
            wait_until("nothing to be left", LIMIT, || {
                let _told = reclaim.run(&["sweep"]);
                manifests(&config).is_empty().then_some(())
            });
            assert_eq!(listed(&project), [] as [PathBuf; 0], "after {step}");
        }
    });
}

#[test]
fn what_two_holders_left_by_two_paths_of_one_directory_goes() {
    private_host(|host| {
        let (project, config, reclaim) = start(host);
        let bound = host.make_dir("bound");
        host.bind(&project, &bound);
        dies(&Hold::by(&reclaim).file(&project.join(".env")), "hold-made");
        dies(&Hold::by(&reclaim).file(&bound.join(".env")).directory(&bound.join(".git")), "hold-made");
        assert_eq!(manifests(&config).len(), 2);
        for name in [".env", ".git"] {
            sweep_until_gone(&reclaim, &project.join(name));
        }
        wait_for_no_manifest(&config);
    });
}

#[test]
fn nothing_is_made_under_names_that_reclaim_works_with() {
    private_host(|host| {
        let (project, _, reclaim) = start(host);
        host.make_dir("project/.reclaim/below");
        for bad in [".reclaim", ".reclaim/", ".reclaim/x", ".reclaim/below/x", ".reclaim/below/x/"] {
            let bad = project.join(bad);
            let finished =
                reclaim.run(&["hold", "--placeholder", bad.to_str().or_fail("text"), "--", "echo", "started"]);
            assert!(finished.code() == 2 && finished.stdout.is_empty(), "{}: {finished:?}", bad.display());
        }
        assert_eq!(listed(&project.join(".reclaim/below")), [] as [PathBuf; 0]);
    });
}

#[test]
fn root_removes_nothing_for_a_user_where_that_user_could_not() {
    private_host(|host| {
        let (_, config, reclaim) = start(host);
        // As spools have them: an empty file of the user in a directory that is root's.
        let (spooled, own) = (host.make_file("spool/user", ""), host.make_file("home/own", ""));
        let inside = host.make_dir("homes/user");
        for path in [&spooled, &own, &inside, &host.path("home")] {
            chown(path, Some(Uid::from_raw(USER)), None).or_fail("chown");
        }
        for (name, path) in [("a", &spooled), ("b", &own), ("c", &inside)] {
            forge(&config, USER, name, &manifest_of(path));
        }
        sweep_until_gone(&reclaim, &own);
        assert!(spooled.exists() && inside.exists(), "a user had root remove what only root may remove");
    });
}

/// A manifest of a user whose holder lives for as long as what is returned.
fn forge_living(config: &ConfigFile, owner: u32, text: &str) -> [Flock<File>; 1] {
    let alive = forge(config, owner, "living", text).with_extension("alive");
    let flags = nix::libc::O_NONBLOCK;
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(&alive).or_fail("open a pipe");
    [Flock::lock(opened, FlockArg::LockSharedNonblock).map_err(|(_, error)| error).or_fail("lock")]
}

#[test]
fn a_user_holds_nothing_that_is_anothers() {
    private_host(|host| {
        let (project, config, reclaim) = start(host);
        let file = project.join(".env");
        dies(&Hold::by(&reclaim).file(&file), "hold-made");
        let living = forge_living(&config, USER, &manifest_of(&file));
        sweep_until_gone(&reclaim, &file);
        drop(living);
        sweep_until_gone(&reclaim, &config.holds().join(USER.to_string()).join("living.json"));
    });
}

#[test]
fn a_user_has_nothing_of_roots_taken_for_a_placeholder() {
    private_host(|host| {
        let (_, config, reclaim) = start(host);
        let file = host.make_file("project/own", "");
        let living = forge_living(&config, USER, &manifest_of(&file));
        let hold = Hold::by(&reclaim).file(&file);
        assert_eq!(run_to_end(&mut hold.command(&["true"]), LIMIT).code(), 0);
        std::thread::sleep(A_WHILE);
        let _told = reclaim.run(&["sweep"]);
        assert!(file.exists(), "root's own file was removed on the word of a user");
        drop(living);
    });
}

#[test]
fn root_holds_what_it_found_of_a_user() {
    private_host(|host| {
        let (project, config, reclaim) = start(host);
        let file = host.make_file("project/.env", "");
        for path in [&file, &project] {
            chown(path, Some(Uid::from_raw(USER)), None).or_fail("chown");
        }
        forge(&config, USER, "ended", &manifest_of(&file));
        let mut held = Hold::by(&reclaim).file(&file).command(&["sleep", "60"]).spawn().or_fail("start a hold");
        wait_until("root's manifest", LIMIT, || (manifests(&config).len() == 2).then_some(()));
        for _ in 0..2 {
            let _told = reclaim.run(&["sweep"]);
            assert!(file.exists(), "root holds it");
        }
        held.kill().and_then(|()| held.wait()).or_fail("end the hold");
        sweep_until_gone(&reclaim, &file);
        wait_for_no_manifest(&config);
    });
}

#[test]
fn what_a_user_wrote_down_takes_no_more_memory_than_it_may() {
    private_host(|host| {
        let (_, config, reclaim) = start(host);
        let victim = host.make_file("home/victim", "");
        let mut manifest: serde_json::Value = serde_json::from_str(&manifest_of(&victim)).or_fail("read it");
        let one = manifest["placeholders"][0].clone();
        manifest["placeholders"] = std::iter::repeat_n(one, 3_000).collect();
        let text = manifest.to_string();
        let file = forge(&config, USER, "0", &text);
        for name in 1..1_000 {
            fs::hard_link(&file, file.with_file_name(format!("{name}.json"))).or_fail("link");
        }
        let begun = std::time::Instant::now();
        let limited = reclaim.command_through(&["prlimit", "--as=1500000000"], &["sweep"]);
        let finished = run_to_end(&mut { limited }, LIMIT);
        assert!(matches!(finished.code(), 0 | 4), "{finished:?}");
        assert!(finished.stderr.lines().count() < 100, "it floods the log: {} lines", finished.stderr.lines().count());
        assert!(finished.stderr.contains("longer") || finished.stderr.contains("more than"), "{finished:?}");
        assert!(begun.elapsed() < Duration::from_secs(30) && victim.exists());
        fs::remove_dir_all(file.parent().or_fail("a store")).or_fail("remove");
    });
}

#[test]
fn stores_that_are_not_their_users_are_told_once_and_left() {
    private_host(|host| {
        let (project, config, reclaim) = start(host);
        drop(Hold::by(&reclaim).file(&project.join("x")).sandbox());
        wait_for_no_manifest(&config);
        let (victim, text) = (project.join("victim"), |path: &Path| manifest_of(path));
        host.make_file("project/victim", "");
        for user in 10_000..10_050 {
            let manifest = forge(&config, user, "a", &text(&victim));
            chown(manifest.parent().or_fail("a store"), Some(Uid::from_raw(USER)), None).or_fail("chown");
        }
        let finished = reclaim.run(&["sweep"]);
        let told = finished.stderr.lines().filter(|line| line.contains("holds")).count();
        assert!(told <= 2 && finished.stderr.contains("50"), "{finished:?}");
        assert!(victim.exists());
    });
}

/// The process that stays behind a command with a hold.
fn keeper(project: &Path) -> Option<Pid> {
    let named = |pid: i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let text = String::from_utf8_lossy(&line).into_owned();
        text.contains(project.to_str()?).then_some(())?;
        let fds = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
        fds.ends_with("reclaim").then_some(pid)
    };
    let all = fs::read_dir("/proc").or_fail("list").filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    all.filter_map(named).map(Pid::from_raw).next()
}

#[test]
fn no_signal_but_the_one_that_cannot_be_heeded_ends_the_keeper() {
    private_host(|host| {
        let (project, config, reclaim) = start(host);
        let file = project.join(".env");
        let hold = Hold::by(&reclaim).source(&project).file(&file);
        let mut held = hold.command(&["sleep", "60"]).spawn().or_fail("start a hold");
        wait_until("the placeholder", LIMIT, || file.exists().then_some(()));
        std::thread::sleep(A_WHILE);
        let keeper = keeper(&project).or_fail("the keeper");
        let endures = |signal: &Signal| !matches!(signal, Signal::SIGKILL | Signal::SIGSTOP | Signal::SIGCONT);
        for signal in Signal::iterator().filter(endures) {
            kill(keeper, signal).or_fail("send a signal");
        }
        std::thread::sleep(A_WHILE);
        assert!(kill(keeper, None).is_ok(), "it ended, and with it the lease");
        let alone = Flock::lock(File::open(&project).or_fail("open"), FlockArg::LockExclusiveNonblock);
        assert!(alone.is_err(), "nobody leases the source");
        held.kill().and_then(|()| held.wait()).or_fail("end the hold");
        wait_until("it to go", LIMIT, || (!file.exists()).then_some(()));
        wait_for_no_manifest(&config);
    });
}

/// With nothing mounted, only what is written down and locked tells that somebody holds.
#[test]
fn a_holder_that_has_bound_nothing_yet_keeps_its_placeholders() {
    private_host(|host| {
        let (project, config, reclaim) = start(host);
        let file = project.join(".env");
        let hold = Hold::by(&reclaim).file(&file);
        // One of them gives up all that it inherits: then the lock of what waits behind it is all there is.
        let script = "for fd in /proc/$$/fd/*; do fd=${fd##*/}; test $fd -lt 3 || eval \"exec $fd>&-\"; done; \
                      echo closed; sleep 60";
        let commands: [&[&str]; 2] = [&["sleep", "60"], &["bash", "-c", script]];
        for order in [[0, 1], [1, 0]] {
            let mut held = order.map(|at| hold.command(commands[at]).spawn().or_fail("start a hold"));
            wait_until("both manifests", LIMIT, || {
                let both = manifests(&config);
                let names = |path: &PathBuf| fs::read_to_string(path).is_ok_and(|text| text.contains("\".env\""));
                (both.len() == 2 && both.iter().all(names)).then_some(())
            });
            std::thread::sleep(A_WHILE);
            let made = fs::metadata(&file).or_fail("look").ino();
            held[0].kill().and_then(|()| held[0].wait()).or_fail("end a hold");
            std::thread::sleep(A_WHILE);
            let finished = reclaim.run(&["sweep"]);
            assert_eq!(fs::metadata(&file).or_fail("look").ino(), made, "somebody holds it: {finished:?}");
            held[1].kill().and_then(|()| held[1].wait()).or_fail("end a hold");
            wait_until("it to go", LIMIT, || (!file.exists()).then_some(()));
            wait_for_no_manifest(&config);
        }
    });
}

#[test]
fn what_cannot_be_told_of_a_manifest_keeps_its_placeholder() {
    private_host(|host| {
        let (project, config, reclaim) = start(host);
        let file = host.make_file("project/.env", "");
        let text = manifest_of(&file);
        let inode = fs::metadata(&project).or_fail("look").ino();
        let elsewhere = text.replace(&format!("\"directory_inode\":{inode}"), "\"directory_inode\":1");
        let another_boot = elsewhere.replace("\"boot\":\"", "\"boot\":\"x");
        assert!(another_boot != elsewhere && elsewhere != text);
        // What the device was in another boot tells nothing, and in this one that the directory is another.
        for (text, is_kept) in [(&another_boot, true), (&elsewhere, false)] {
            let moved = forge(&config, 0, "moved", text);
            let finished = reclaim.run(&["sweep"]);
            assert!(file.exists() && finished.stderr.contains("moved, and another"), "{finished:?}");
            assert_eq!(moved.exists(), is_kept, "{finished:?}");
        }
        // Whether its holder lives cannot be told by what is no pipe.
        let odd = forge(&config, 0, "odd", &text);
        fs::remove_file(odd.with_extension("alive")).or_fail("remove");
        fs::write(odd.with_extension("alive"), "").or_fail("write");
        let finished = reclaim.run(&["sweep"]);
        assert!(file.exists() && odd.exists(), "{finished:?}");
        fs::remove_file(odd.with_extension("alive")).or_fail("remove");
        forge(&config, 0, "odd", &text);
        sweep_until_gone(&reclaim, &file);
        wait_for_no_manifest(&config);
    });
}

#[test]
fn a_stopped_keeper_keeps_all_until_it_goes_on() {
    private_host(|host| {
        let (project, config, reclaim) = start(host);
        let file = project.join(".env");
        let hold = Hold::by(&reclaim).file(&file);
        let mut held = hold.command(&["sleep", "60"]).spawn().or_fail("start a hold");
        wait_until("the placeholder", LIMIT, || file.exists().then_some(()));
        std::thread::sleep(A_WHILE);
        let keeper = keeper(&project).or_fail("the keeper");
        kill(keeper, Signal::SIGSTOP).or_fail("stop it");
        held.kill().and_then(|()| held.wait()).or_fail("end the hold");
        let finished = reclaim.run(&["sweep"]);
        assert!(file.exists(), "whoever keeps it cannot be told from one that works: {finished:?}");
        kill(keeper, Signal::SIGCONT).or_fail("let it go on");
        wait_until("it to go", LIMIT, || (!file.exists()).then_some(()));
        wait_for_no_manifest(&config);
    });
}

#[test]
fn a_keeper_tries_again_when_the_service_could_not_look() {
    private_host(|host| {
        let (project, config, reclaim) = start(host);
        let service = Service::start(host, &config, &reclaim);
        let file = project.join(".env");
        let mut held = Hold::by(&reclaim).file(&file).command(&["sleep", "60"]).spawn().or_fail("start a hold");
        wait_until("the placeholder", LIMIT, || file.exists().then_some(()));
        std::thread::sleep(A_WHILE);
        let store = File::open(config.holds().join("0")).or_fail("open the store");
        let lock = Flock::lock(store, FlockArg::LockExclusive).map_err(|(_, error)| error).or_fail("lock");
        held.kill().and_then(|()| held.wait()).or_fail("end the hold");
        // Longer than the service waits for a store.
        std::thread::sleep(Duration::from_millis(1_600));
        drop(lock);
        wait_until("it to go", Duration::from_secs(20), || (!file.exists()).then_some(()));
        wait_for_no_manifest(&config);
        drop(service);
    });
}

#[test]
fn half_written_manifests_go_with_the_next_hold() {
    private_host(|host| {
        let (project, config, reclaim) = start(host);
        let store = forge(&config, 0, "x", "").parent().or_fail("a store").to_owned();
        fs::remove_file(store.join("x.json")).or_fail("remove");
        let name = ".8c0f1b3e-1111-4222-8333-444455556666.json.4711.0";
        fs::write(store.join(name), "{").or_fail("write");
        drop(Hold::by(&reclaim).file(&project.join(".env")).sandbox());
        wait_for_no_manifest(&config);
    });
}

#[test]
fn what_lies_condemned_in_a_root_is_judged_by_the_rules_of_the_root() {
    private_host(|host| {
        let (project, _, reclaim) = start(host);
        let entry = host.entry("entry");
        let crash = reclaim.clone().variable("RECLAIM_TEST", "1").variable("RECLAIM_TEST_CRASH", "after-condemn");
        let finished = crash.run(&["sweep"]);
        assert!(finished.status.code().is_none() && !entry.exists(), "{finished:?}");
        // Rules that keep it.
        let config = ConfigFile::write(host, [Root::of(host).text("owner", "1000")]);
        let reclaim = Reclaim::with(&config);
        let root = entry.parent().or_fail("a root");
        let text = manifest_of(&host.make_dir("project/x"));
        let text = text.replace(project.to_str().or_fail("text"), root.to_str().or_fail("text"));
        let inode = |path: &Path| fs::metadata(path).or_fail("look").ino().to_string();
        let text = text.replace(&inode(&project), &inode(root)).replace("\"x\"", "\"entry\"");
        forge(&config, 0, "forged", &text);
        let other = host.make_dir("elsewhere").join("x");
        assert_eq!(run_to_end(&mut Hold::by(&reclaim).file(&other).command(&["true"]), LIMIT).code(), 0);
        wait_until("the hold to be done with", LIMIT, || (!other.exists()).then_some(()));
        let _told = reclaim.run(&["sweep"]);
        assert!(entry.exists(), "it was removed by rules that are not its root's");
    });
}

#[test]
fn only_directories_and_files_are_leased() {
    private_host(|host| {
        let (_, _, reclaim) = start(host);
        let pipe = host.path("pipe");
        mkfifo(&pipe, FileMode::S_IRWXU).or_fail("mkfifo");
        for path in [pipe.as_path(), Path::new("/dev/null")] {
            let finished = run_to_end(&mut Hold::by(&reclaim).source(path).command(&["echo", "started"]), LIMIT);
            assert!(finished.code() == 1 && finished.stdout.is_empty(), "{finished:?}");
        }
    });
}

#[test]
fn more_directories_than_there_are_descriptors_for_are_done_in_parts() {
    private_host(|host| {
        let (project, config, reclaim) = start(host);
        let paths: Vec<_> = (0..150).map(|at| host.make_dir(format!("project/{at}")).join(".env")).collect();
        let hold = paths.iter().fold(Hold::by(&reclaim), |hold, path| hold.file(path));
        let unshared = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
        let ends = hold.command_through(&unshared, &["true".into()]);
        assert_eq!(run_to_end(&mut { ends }, LIMIT).code(), 0);
        assert!(paths.iter().all(|path| path.exists()) && manifests(&config).len() == 1);
        let limited = || reclaim.command_through(&["prlimit", "--nofile=250:250"], &["sweep"]);
        wait_until("all to go", LIMIT, || {
            let _told = run_to_end(&mut limited(), LIMIT);
            paths.iter().all(|path| !path.exists()).then_some(())
        });
        wait_for_no_manifest(&config);
        set_mode(&project, 0o755);
    });
}

/// A user may write down very many: whoever asks the service meanwhile does not wait until all of them are through.
#[test]
fn very_many_placeholders_of_a_user_keep_nobody_waiting() {
    private_host(|host| {
        let (project, config, reclaim) = start(host);
        let own = |path: &Path| chown(path, Some(Uid::from_raw(USER)), None).or_fail("chown");
        own(&project);
        let files: Vec<PathBuf> = (0..30_000).map(|at| host.make_file(format!("project/{at}"), "")).collect();
        files.iter().for_each(|file| own(file));
        let read =
            |file: &PathBuf| -> serde_json::Value { serde_json::from_str(&manifest_of(file)).or_fail("read it") };
        for (name, part) in files.chunks(3_000).enumerate() {
            let mut manifest = read(&part[0]);
            manifest["placeholders"] = part.iter().map(|file| read(file)["placeholders"][0].clone()).collect();
            forge(&config, USER, &name.to_string(), &manifest.to_string());
        }
        let mut service = Service::start(host, &config, &reclaim);
        let mut connection = service.connect();
        let mut slowest = Duration::ZERO;
        wait_until("most of them to go", Duration::from_secs(120), || {
            let asked = std::time::Instant::now();
            let status = connection.ask(&serde_json::json!({"op": "status"}));
            assert!(status["error"].is_null(), "{status}");
            slowest = slowest.max(asked.elapsed());
            (!files[15_000].exists()).then_some(())
        });
        service.assert_running();
        eprintln!("the slowest answer took {slowest:?}");
        // All of it takes twice as long and more.
        assert!(slowest < Duration::from_secs(6), "an answer took {slowest:?}");
    });
}
