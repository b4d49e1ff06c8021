//! The examples of leases in the documentation, as they stand: each keeps an entry, and none loses one without noticing.

use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use reclaim_tests::{
    ConfigFile, Hold, Host, OrFail as _, Reclaim, Root, blocks, private_host, program_on_path, run_to_end, wait_until,
};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

/// A program that takes the lease of the directory that it is given, says so, and holds it until its input ends. It ends
/// with 75 when the directory was lost.
fn program(host: &Host, language: &str) -> Vec<OsString> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/held.md");
    let page = fs::read_to_string(page).or_fail("read the page");
    let (_, example) = blocks(&page, language).into_iter().next().or_fail("an example");
    let lines = example.lines().filter(|line| !line.trim().is_empty()).count();
    assert!(lines <= 16, "an example of {lines} lines is none to copy by hand");
    match language {
        "sh" => vec![host.make_program("lease.sh", &example).into()],
        "python" => {
            let rest = "\nimport sys\ntry:\n    held = lease(sys.argv[1])\nexcept FileNotFoundError:\n    sys.exit(75)\n\
                        print('leased', flush=True)\nsys.stdin.read()\n";
            vec![program_on_path("python3").into(), host.make_file("lease.py", &(example + rest)).into()]
        }
        _ => {
            let rest = "#include <stdio.h>\nint main(int count, char **words) {\n\
                        if (count < 2 || lease(words[1]) < 0) return 75;\nputs(\"leased\");\nfflush(stdout);\n\
                        while (getchar() != EOF) {}\nreturn 0;\n}\n";
            let (source, program) = (host.make_file("lease.c", &(example + rest)), host.path("lease"));
            let mut compiler = Command::new(program_on_path("cc"));
            let compiled = run_to_end(compiler.args(["-Wall", "-Werror", "-o"]).args([&program, &source]), LIMIT);
            assert_eq!(compiled.code(), 0, "{compiled:?}");
            vec![program.into()]
        }
    }
}

#[track_caller]
fn start(program: &[OsString], entry: &Path) -> Child {
    let mut command = Command::new(&program[0]);
    command.args(&program[1..]).arg(entry);
    if program.len() == 1 && program[0].to_string_lossy().ends_with(".sh") {
        command.args(["sh", "-c", "echo leased; cat"]);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().or_fail("start an example")
}

fn keeps_and_notices(language: &'static str) {
    private_host(move |host| {
        let program = program(host, language);
        let reclaim = Reclaim::with(&ConfigFile::write(host, [Root::of(host)]));
        let (entry, stale) = (host.entry("leased"), host.entry("stale"));
        let mut leased = start(&program, &entry);
        let mut line = String::new();
        let output = leased.stdout.as_mut().or_fail("its output");
        BufReader::new(output).read_line(&mut line).or_fail("read");
        assert_eq!(line, "leased\n");
        wait_until("the other entry to go", LIMIT, || {
            let pass = &reclaim.sweep()[0];
            assert!(pass.kept("leased") == 1 && entry.exists(), "{pass:?}");
            (!stale.exists()).then_some(())
        });
        drop(leased.stdin.take());
        assert!(leased.wait().or_fail("wait").success());
        wait_until("the entry to go once nobody leases it", LIMIT, || {
            let _told = reclaim.sweep();
            (!entry.exists()).then_some(())
        });
        // It waits for the lock, as it would for a pass, and the entry is another one when it gets it, or none.
        for is_made_again in [false, true] {
            let entry = host.entry("lost");
            let directory = File::open(&entry).or_fail("open");
            let lock = Flock::lock(directory, FlockArg::LockExclusive).map_err(|(_, error)| error).or_fail("lock");
            let mut waiting = start(&program, &entry);
            wait_until("it to wait for the lock", LIMIT, || waits_for_a_lock(waiting.id()).then_some(()));
            fs::rename(&entry, host.path("away")).or_fail("rename");
            if is_made_again {
                host.entry("lost");
            }
            drop(lock);
            drop(waiting.stdin.take());
            let ended = waiting.wait().or_fail("wait");
            assert_eq!(ended.code(), Some(75), "it did not notice: made again {is_made_again}");
            fs::remove_dir(host.path("away")).or_fail("remove");
        }
    });
}

/// Whether a process or a child of its waits for a lock.
fn waits_for_a_lock(process: u32) -> bool {
    let table = fs::read_to_string("/proc/locks").or_fail("read /proc/locks");
    let waiting = table.lines().filter(|line| line.contains("-> FLOCK"));
    let parent = |pid: &str| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(')').next().and_then(|rest| rest.split_ascii_whitespace().nth(1)?.parse::<u32>().ok())
    };
    waiting
        .filter_map(|line| line.split_ascii_whitespace().nth(5))
        .any(|pid| pid.parse() == Ok(process) || parent(pid) == Some(process))
}

#[test]
fn the_example_in_shell() {
    keeps_and_notices("sh");
}

#[test]
fn the_example_in_c() {
    keeps_and_notices("c");
}

#[test]
fn the_example_in_python() {
    keeps_and_notices("python");
}

/// It looks once more when it has the lock: a path that leads nowhere ends it, one that leads elsewhere is leased there.
#[test]
fn hold_notices_that_a_source_was_lost_or_replaced() {
    private_host(|host| {
        let reclaim = Reclaim::with(&ConfigFile::write(host, [Root::of(host)]));
        for is_made_again in [false, true] {
            let entry = host.entry("lost");
            let hold = Hold::by(&reclaim).source(&entry).variable("RECLAIM_TEST_STOP", "lease-opened");
            let mut hold = hold.command(&["sh", "-c", "echo leased; cat"]);
            let mut waiting = hold.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().or_fail("start a hold");
            // It has opened the directory and has no lock yet: the longest wait there is.
            wait_until("it to stop", LIMIT, || is_stopped(waiting.id()).then_some(()));
            fs::rename(&entry, host.path("away")).or_fail("rename");
            if is_made_again {
                host.entry("lost");
            }
            // It stops at each try.
            wait_until("it to go on", LIMIT, || {
                let process = Pid::from_raw(i32::try_from(waiting.id()).or_fail("a pid"));
                let _sent = kill(process, Signal::SIGCONT);
                std::thread::sleep(Duration::from_millis(50));
                (!is_stopped(waiting.id())).then_some(())
            });
            let mut line = String::new();
            let output = waiting.stdout.as_mut().or_fail("its output");
            BufReader::new(output).read_line(&mut line).or_fail("read");
            if is_made_again {
                assert_eq!(line, "leased\n");
                let taken = |path: &Path| {
                    let opened = File::open(path).or_fail("open");
                    Flock::lock(opened, FlockArg::LockExclusiveNonblock).is_err()
                };
                assert!(taken(&entry), "what has the path is not leased");
                assert!(!taken(&host.path("away")), "what lost the path is leased");
            } else {
                assert_eq!(line, "", "it did not notice");
            }
            drop(waiting.stdin.take());
            assert_eq!(waiting.wait().or_fail("wait").code(), Some(i32::from(!is_made_again)));
            fs::remove_dir(host.path("away")).or_fail("remove");
        }
    });
}

fn is_stopped(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
}
