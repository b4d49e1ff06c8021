//! Twelve processes hold, run and sweep in one project at once, with real sandboxes.

use reclaim_tests::{
    ConfigFile, Hold, Host, OrFail as _, Reclaim, Root, Service, private_host, run_to_end, share_of,
    wait_for_no_manifest, wait_until,
};
use std::ffi::OsString;
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// Processes at once.
const PROCESSES: usize = 12;
/// Commands of each.
const COMMANDS: usize = 75;
/// Of so many commands one is a pass.
const SWEEP_EACH: usize = 15;
const LIMIT: Duration = Duration::from_secs(120);

/// What runs in a sandbox: the files that are denied are written to at once and a moment later, and the one that is the
/// user's is read. It says `landed` for a write that was not refused.
const SCRIPT: &str = r#"
for round in 1 2; do
    for path in .env .mcp.json; do
        if (echo landed > "$path") 2>/dev/null; then echo "landed in $path"; fi
    done
    if (: > .git/config) 2>/dev/null; then echo "landed in .git"; fi
    sleep 0.01
done
read -r own < own && test "$own" = mine && echo ran
"#;

#[test]
fn twelve_processes_hold_run_and_sweep_in_one_project() {
    private_host(|host| {
        let config = ConfigFile::write(host, [Root::of(host)]);
        work(host, &config, PROCESSES, share_of(COMMANDS));
    });
}

/// Few at a time, so that the last one of them goes again and again while the next one comes.
#[test]
fn two_processes_take_turns_beside_a_service() {
    private_host(|host| {
        let config = ConfigFile::write(host, [Root::of(host)]).every("1s");
        let service = Service::start(host, &config, &Reclaim::with(&config));
        work(host, &config, 2, share_of(COMMANDS));
        drop(service);
    });
}

/// Lets processes hold, run and sweep, each so many times, and looks for what they left.
fn work(host: &Host, config: &ConfigFile, processes: usize, commands: usize) {
    let reclaim = Reclaim::with(config).within(LIMIT);
    let project = host.make_dir("project");
    host.make_file("project/own", "mine\n");
    let own_empty = host.make_file("project/own-empty", "");
    let (ran, swept) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let hold = Hold::by(&reclaim)
        .source(&project)
        .file(&project.join(".env"))
        .file(&project.join(".mcp.json"))
        .file(&own_empty)
        .directory(&project.join(".git"));
    let run = |what: &str| {
        let mut inner = hold.bubblewrap();
        inner.extend(["sh", "-c", SCRIPT].map(OsString::from));
        let finished = run_to_end(hold.command_through(&[], &inner).current_dir(&project), LIMIT);
        assert_eq!(finished.status.code(), Some(0), "{what} was refused or did not start: {finished:?}");
        assert_eq!(finished.stdout, "ran\n", "{what}: {finished:?}");
        ran.fetch_add(1, Ordering::Relaxed);
    };
    let sweep = |what: &str| {
        let finished = reclaim.run(&["sweep"]);
        // Another pass may hold the root.
        assert!(matches!(finished.code(), 0 | 4 | 5), "{what}: {finished:?}");
        swept.fetch_add(1, Ordering::Relaxed);
    };
    thread::scope(|scope| {
        for process in 0..processes {
            let (run, sweep) = (&run, &sweep);
            scope.spawn(move || {
                for command in 0..commands {
                    let what = format!("command {command} of process {process}");
                    if (command + process) % SWEEP_EACH == SWEEP_EACH - 1 { sweep(&what) } else { run(&what) }
                }
            });
        }
    });
    assert!(ran.into_inner() > 0 && swept.into_inner() > 0, "it did nothing");
    let names = || -> Vec<_> {
        let mut names: Vec<_> =
            fs::read_dir(&project).or_fail("list").flatten().map(|entry| entry.file_name()).collect();
        names.sort();
        names
    };
    wait_until("nothing to be left behind", LIMIT, || {
        // The pass of anybody, for what the last ones could not prove on a busy host.
        let _told = reclaim.run(&["sweep"]);
        (names() == ["own", "own-empty"]).then_some(())
    });
    assert_eq!(fs::metadata(&own_empty).or_fail("look").len(), 0, "a denied write landed");
    wait_for_no_manifest(config);
}
