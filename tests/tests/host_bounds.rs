//! What bounds a pass: its budget, and whoever waits for it.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use reclaim_tests::{
    ConfigFile, Connection, Host, OrFail as _, Pass, Reclaim, Root, Service, is_stopped, private_host, wait_until,
};
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;
use std::process::Stdio;
use std::thread::{JoinHandle, sleep, spawn};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(30);

/// A program that says what is live, which is nothing, once a file is there. It takes as long as it is given.
struct SlowClaims {
    asked: PathBuf,
    go_on: PathBuf,
    key: String,
}

impl SlowClaims {
    fn of(host: &Host) -> Self {
        let (asked, go_on) = (host.path("asked"), host.path("go-on"));
        let script = format!(
            "#!/bin/sh\necho asked >> {}\nwhile [ ! -e {} ]; do sleep 0.05; done\n",
            asked.display(),
            go_on.display()
        );
        let program = host.make_program("slow-claims", &script);
        let key = format!("{{ command = ['{}'], timeout = '50s' }}", program.display());
        Self { asked, go_on, key }
    }

    fn times_asked(&self) -> usize {
        fs::read_to_string(&self.asked).unwrap_or_default().lines().count()
    }

    #[track_caller]
    fn wait_until_asked(&self, times: usize) {
        wait_until("the claims to be asked for", LIMIT, || (self.times_asked() >= times).then_some(()));
    }

    fn let_it_end(&self) {
        fs::write(&self.go_on, "").or_fail("let the program end");
    }
}

/// Sends a request, and gives who waits for the answer.
fn ask(service: &Service, request: Value) -> JoinHandle<Value> {
    let mut connection: Connection = service.connect();
    spawn(move || connection.ask(&request))
}

#[track_caller]
fn answer(waiter: JoinHandle<Value>) -> Value {
    waiter.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Two roots, the first one with slow claims, and something of the id `a`.
fn plant(host: &Host, claims: &SlowClaims) -> ConfigFile {
    let roots = [
        Root::at("slow", &host.make_dir("slow")).raw("claims", &claims.key),
        Root::at("other", &host.make_dir("other")),
    ];
    for entry in ["slow/one", "other/one", "ws/a", "ws/b"] {
        host.make_dir(entry);
    }
    ConfigFile::write(host, roots).tables(&format!("\n[[owned]]\npath = '{}/ws/{{id}}'\n", host.directory().display()))
}

/// Who asks does not wait for the scheduled sweep, and no root goes without its pass for that.
#[test]
fn a_scheduled_pass_makes_way_for_a_request_once() {
    private_host(|host| {
        let claims = SlowClaims::of(host);
        let config = plant(host, &claims);
        let mut service = Service::start(host, &config, &Reclaim::with(&config));
        claims.wait_until_asked(1);
        let told = answer(ask(&service, json!({"op": "purge", "id": "a"})));
        assert_eq!(told["results"][0]["removed"], 1, "{told}");
        assert!(!host.path("ws/a").exists());
        // The roots that had not had their turn come first, and the one that made way has its own once more.
        let passes = service.wait_for_passes(2);
        assert_eq!((passes[0].root.as_str(), passes[0].truncated, passes[0].listed), ("slow", true, 0), "{passes:?}");
        assert_eq!((passes[1].root.as_str(), passes[1].removed), ("other", 1), "{passes:?}");
        let log = service.log();
        assert!(!log.contains("claims cannot be read"), "nothing is wrong with the claims: {log}");
        claims.wait_until_asked(2);
        let second = ask(&service, json!({"op": "purge", "id": "b"}));
        sleep(Duration::from_millis(1_500));
        assert!(!second.is_finished() && claims.times_asked() == 2, "a root makes way once in a sweep");
        claims.let_it_end();
        let told = answer(second);
        assert_eq!(told["results"][0]["removed"], 1, "{told}");
        let passes = service.wait_for_passes(3);
        assert_eq!((passes[2].root.as_str(), passes[2].removed, passes[2].truncated), ("slow", 1, false), "{passes:?}");
        assert_eq!(passes.len(), 3, "{passes:?}");
    });
}

/// A sweep that somebody waits for is as good as a purge that somebody waits for.
#[test]
fn a_sweep_that_was_asked_for_makes_way_for_nobody() {
    private_host(|host| {
        let claims = SlowClaims::of(host);
        let config = plant(host, &claims);
        let mut service = Service::start(host, &config, &Reclaim::with(&config));
        claims.wait_until_asked(1);
        let sweep = ask(&service, json!({"op": "sweep", "roots": ["slow"]}));
        claims.wait_until_asked(2);
        let purge = ask(&service, json!({"op": "purge", "id": "a"}));
        sleep(Duration::from_millis(1_500));
        assert!(!sweep.is_finished() && !purge.is_finished() && claims.times_asked() == 2);
        claims.let_it_end();
        let swept = answer(sweep);
        assert_eq!(swept["results"][0]["removed"], 1, "{swept}");
        assert_eq!(swept["results"][0]["truncated"], false, "{swept}");
        let purged = answer(purge);
        assert_eq!(purged["results"][0]["removed"], 1, "{purged}");
        // The scheduled sweep goes on afterwards.
        let passes = service.wait_for_passes(4);
        let roots: Vec<&str> = passes.iter().map(|pass| pass.root.as_str()).collect();
        assert_eq!(roots, ["slow", "slow", "other", "slow"]);
    });
}

/// A sweep that stands still at each file that it removes from a tree: at the first one until its time is over, and then for a
/// moment. Gives its summary and what it logged.
fn sweep_slowly(reclaim: &Reclaim) -> (Pass, String) {
    let reclaim = reclaim.clone().variable("RECLAIM_TEST_STOP", "mid-tree");
    let mut command = reclaim.command(&["--json", "sweep"]);
    let mut sweep = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().or_fail("start a sweep");
    let pid = Pid::from_raw(i32::try_from(sweep.id()).or_fail("a pid"));
    wait_until("the sweep to stand still", LIMIT, || is_stopped(pid).then_some(()));
    // Twice the budget, and a second beyond it at least.
    sleep(Duration::from_millis(2_200));
    wait_until("the sweep to end", LIMIT, || {
        if is_stopped(pid) {
            kill(pid, Signal::SIGCONT).or_fail("let it go on");
        }
        sweep.try_wait().or_fail("look at the sweep")
    });
    let ended = sweep.wait_with_output().or_fail("wait for the sweep");
    assert!(ended.status.success(), "{ended:?}");
    let pass: Pass = serde_json::from_slice(&ended.stdout).or_fail("read the summary");
    pass.check();
    (pass, String::from_utf8_lossy(&ended.stderr).into_owned())
}

/// A few are removed by the thread that lists, many beside it.
#[test]
fn trees_that_there_is_no_time_for_are_left_to_the_next_pass() {
    for count in [3_u64, 600] {
        private_host(move |host| {
            let config = ConfigFile::write(host, [Root::of(host).text("remove", "tree")]).budget("500ms");
            let reclaim = Reclaim::with(&config).evidence("scan");
            for tree in 0..count {
                for file in 0..3 {
                    host.make_file(format!("root/tree-{tree}/{file}"), "text");
                }
            }
            let (pass, log) = sweep_slowly(&reclaim);
            assert_eq!((pass.listed, pass.condemned, pass.removed), (count, count, 0), "{pass:?}");
            assert!(log.contains(&format!("{count} entries proved to be free could not be removed in time")), "{log}");
            assert!(!log.contains("tree-") && !log.contains("failed"), "that is no fault: {log}");
            let (objects, _) = reclaim.objects(&["check"], &[0, 1]);
            assert!(!objects.iter().any(|object| object["type"] == "stuck"), "{objects:?}");
            // What is left over from one pass to another holds up nothing else, either.
            let late = host.entry("late");
            let (pass, _) = sweep_slowly(&reclaim);
            assert_eq!((pass.condemned, pass.removed, late.exists()), (count, 1, false), "{pass:?}");
            let ended = reclaim.run(&["sweep"]);
            assert!(ended.code() == 0 && host.condemned().is_empty(), "{ended:?}");
            assert!(!host.root().join(".reclaim").exists(), "{ended:?}");
        });
    }
}
