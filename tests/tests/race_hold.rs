//! Twelve processes hold, run and sweep in one project at once, with real sandboxes.

use reclaim_tests::{
    ConfigFile, Hold, OrFail as _, Reclaim, Root, private_host, run_to_end, share_of, wait_for_no_manifest, wait_until,
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
        let reclaim = Reclaim::with(&config).within(LIMIT);
        let project = host.make_dir("project");
        host.make_file("project/own", "mine\n");
        let own_empty = host.make_file("project/own-empty", "");
        let commands = share_of(COMMANDS);
        let (ran, swept) = (AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            for process in 0..PROCESSES {
                let (reclaim, project, ran, swept) = (&reclaim, &project, &ran, &swept);
                scope.spawn(move || {
                    for command in 0..commands {
                        if (command + process) % SWEEP_EACH == SWEEP_EACH - 1 {
                            let finished = reclaim.run(&["sweep"]);
                            // Another pass may hold the root.
                            assert!(matches!(finished.code(), 0 | 4 | 5), "process {process}: {finished:?}");
                            swept.fetch_add(1, Ordering::Relaxed);
                            continue;
                        }
                        let hold = Hold::by(reclaim)
                            .source(project)
                            .file(&project.join(".env"))
                            .file(&project.join(".mcp.json"))
                            .file(&project.join("own-empty"))
                            .directory(&project.join(".git"));
                        let mut inner = hold.bubblewrap();
                        inner.extend(["sh", "-c", SCRIPT].map(OsString::from));
                        let mut held = hold.command_through(&[], &inner);
                        let finished = run_to_end(held.current_dir(project), LIMIT);
                        let what = format!("process {process}, command {command}: {finished:?}");
                        assert_eq!(finished.status.code(), Some(0), "it was refused or did not start: {what}");
                        assert_eq!(finished.stdout, "ran\n", "{what}");
                        ran.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert!(ran.into_inner() > 0 && swept.into_inner() > 0, "it did nothing");
        let names = || -> Vec<_> {
            let listed = fs::read_dir(&project).or_fail("list").flatten().map(|entry| entry.file_name());
            let mut names: Vec<_> = listed.collect();
            names.sort();
            names
        };
        wait_until("nothing to be left behind", LIMIT, || {
            // The pass of anybody, for what the last ones could not prove on a busy host.
            let _told = reclaim.run(&["sweep"]);
            (names() == ["own", "own-empty"]).then_some(())
        });
        assert_eq!(fs::metadata(&own_empty).or_fail("look").len(), 0, "a denied write landed");
        wait_for_no_manifest(&config);
    });
}
