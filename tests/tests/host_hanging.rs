//! Mount calls that hang: they delay what was condemned meanwhile, which is given back, and nobody else.
//!
//! The wait for calls in flight lasts five seconds at most; each test sees it to its end. They take turns: what hangs for
//! one of them would delay the passes of all.

use nix::sys::signal::Signal;
use reclaim_tests::{
    ConfigFile, Hanging, Host, OrFail as _, Reclaim, Root, Service, private_host, verdict, wait_until,
};
use serde_json::{Value, json};
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Longer than the wait for calls in flight, by far.
const LIMIT: Duration = Duration::from_secs(120);

static TURN: Mutex<()> = Mutex::new(());

fn in_turn(body: impl FnOnce(&Host) + Send + 'static) {
    // Whoever failed leaves nothing that hangs.
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    private_host(body);
}

/// An entry that holds something, which is what no count of references tells of.
fn make_tree(host: &Host, name: &str) -> PathBuf {
    host.make_file(format!("root/{name}/data/file"), "precious");
    host.root().join(name)
}

fn tree_root(host: &Host) -> ConfigFile {
    ConfigFile::write(host, [Root::of(host).text("remove", "tree")])
}

/// One sweep without a service: its only summary, and what was said.
fn sweep(reclaim: &Reclaim) -> (Value, String) {
    let finished = reclaim.run(&["--json", "sweep"]);
    assert!([0, 4].contains(&finished.code()), "{finished:?}");
    let mut objects = finished.stdout.lines().map(|line| serde_json::from_str::<Value>(line).or_fail("a line of JSON"));
    let pass = objects.rfind(|object| object["type"] == "pass").or_fail("a summary");
    (pass, finished.stderr)
}

/// Fails the test unless a call of that process is named as one that has not come back.
fn names(text: &str, call: &str, process: i32) {
    assert!(text.contains("have not come back"), "{text}");
    assert!(text.contains(&format!("{call} by thread {process} of process {process}")), "{text}");
    assert!(!text.contains("there is no mount clock"), "there is one: {text}");
}

/// Sweeps until a path has gone.
fn goes_in_the_end(reclaim: &Reclaim, path: &Path) {
    wait_until("a pass that removes what is free", LIMIT, || {
        reclaim.sweep();
        (!path.exists()).then_some(())
    });
}

#[test]
fn a_call_from_before_a_sweep_gives_trees_back() {
    in_turn(|host| {
        let (live, stale) = (make_tree(host, "live"), make_tree(host, "stale"));
        let reclaim = Reclaim::with(&tree_root(host)).within(LIMIT);
        let hanging = Hanging::bind(host, &live);
        let (pass, said) = sweep(&reclaim);
        names(&said, "mount", hanging.pid());
        assert!(hanging.is_inside(), "the test is of a call that hangs all the time");
        assert_eq!((&pass["removed"], &pass["restored"]), (&json!(0), &json!(2)), "{pass}");
        assert!(live.join("data/file").exists() && stale.join("data/file").exists());
        hanging.works_in_the_end(&live);
        goes_in_the_end(&reclaim, &stale);
    });
}

#[test]
fn a_call_from_before_a_sweep_gives_what_is_empty_back() {
    in_turn(|host| {
        let (live, stale) = (host.entry("live"), host.entry("stale"));
        let config = ConfigFile::write(host, [Root::of(host)]);
        let reclaim = Reclaim::with(&config).within(LIMIT);
        let hanging = Hanging::bind(host, &live);
        let (pass, said) = sweep(&reclaim);
        names(&said, "mount", hanging.pid());
        assert_eq!((&pass["removed"], &pass["restored"]), (&json!(0), &json!(2)), "{pass}");
        assert!(live.is_dir() && stale.is_dir());
        hanging.works_in_the_end(&live);
        goes_in_the_end(&reclaim, &stale);
    });
}

/// What a thread is inside of is seen from the kernel's side where /proc does not tell it, as on hosts where nobody may look
/// at others, root included.
#[test]
fn a_call_of_a_process_that_may_not_be_looked_at_gives_what_is_empty_back() {
    in_turn(|host| a_call_that_the_kernel_tells_of(host, |reclaim| reclaim));
}

/// Its answer is waited for, however long it takes to load what asks it.
#[test]
fn a_call_that_the_kernel_tells_of_late_gives_what_is_empty_back() {
    in_turn(|host| {
        a_call_that_the_kernel_tells_of(host, |reclaim| reclaim.variable("RECLAIM_TEST_DISABLE", "inside-late"));
    });
}

fn a_call_that_the_kernel_tells_of(host: &Host, with: impl FnOnce(Reclaim) -> Reclaim) {
    let (live, stale) = (host.entry("live"), host.entry("stale"));
    let hanging = Hanging::bind(host, &live);
    let config = ConfigFile::write(host, [Root::of(host)]);
    // Trees are kept by then, for the mount tables of others cannot be read either.
    let reclaim = with(Reclaim::with(&config).within(LIMIT).without_ptrace());
    let (pass, said) = sweep(&reclaim);
    names(&said, "mount", hanging.pid());
    assert_eq!((&pass["removed"], &pass["restored"]), (&json!(0), &json!(2)), "{pass}");
    hanging.works_in_the_end(&live);
    goes_in_the_end(&reclaim, &stale);
}

#[test]
fn what_nothing_tells_of_a_thread_is_told() {
    in_turn(|host| {
        let config = ConfigFile::write(host, [Root::of(host)]);
        let reclaim = Reclaim::with(&config).within(LIMIT).without_ptrace();
        let says = |reclaim: &Reclaim| reclaim.run(&["check"]).stdout.contains("threads may not be looked at");
        assert!(!says(&reclaim), "the kernel tells");
        // Neither one that cannot be had nor one that does not pass its trial is relied on.
        for word in ["inside", "inside-answer"] {
            assert!(says(&reclaim.clone().variable("RECLAIM_TEST_DISABLE", word)), "{word}");
        }
    });
}

/// A configuration in which an id has a tree outside of every root.
fn owned(host: &Host) -> (ConfigFile, PathBuf) {
    host.make_file("ws/abc/data/file", "precious");
    let config = ConfigFile::write(host, [Root::of(host)]);
    (config.tables(&format!("\n[[owned]]\npath = '{}/ws/{{id}}'\n", host.directory().display())), host.path("ws/abc"))
}

#[test]
fn a_call_from_before_a_purge_gives_its_targets_back() {
    in_turn(|host| {
        let (config, target) = owned(host);
        let reclaim = Reclaim::with(&config).within(LIMIT);
        let hanging = Hanging::bind(host, &target);
        let line = reclaim.run(&["--json", "purge", "abc"]);
        names(&line.stdout, "mount", hanging.pid());
        assert_eq!(line.code(), 4, "{line:?}");
        assert!(target.join("data/file").exists() && !host.path("ws/.reclaim").exists(), "{line:?}");
        hanging.works_in_the_end(&target);
    });
}

/// Asks a service about its state and about a path that is in use until some work is through: how long the slowest answer took, and what
/// the work came to.
fn slowest_meanwhile<T: Send + 'static>(service: &Service, path: &Path, work: JoinHandle<T>) -> (Duration, T) {
    let mut connection = service.connect();
    let mut slowest = Duration::ZERO;
    while !work.is_finished() {
        let asked = Instant::now();
        assert_eq!(connection.ask(&json!({"op": "status"}))["type"], "status");
        slowest = slowest.max(asked.elapsed());
        let asked = Instant::now();
        assert_eq!(verdict(&mut connection, path), "pinned");
        slowest = slowest.max(asked.elapsed());
        thread::sleep(Duration::from_millis(20));
    }
    let Ok(result) = work.join() else { panic!("the work came to nothing") };
    (slowest, result)
}

#[test]
fn a_call_that_hangs_does_not_hold_the_service_up() {
    in_turn(|host| {
        let (config, target) = owned(host);
        let reclaim = Reclaim::with(&config).within(LIMIT);
        let mut service = Service::start(host, &config, &reclaim);
        service.wait_for_passes(1);
        let (live, pinned) = (host.entry("live"), host.entry("pinned"));
        let _sandbox = host.sandbox_with(&pinned);
        let hanging = Hanging::bind(host, &live);
        for arguments in [["--json", "sweep"].as_slice(), &["--json", "purge", "abc"]] {
            let begun = Instant::now();
            let asking = reclaim.clone();
            let work = thread::spawn(move || (asking.run(arguments), begun.elapsed()));
            let (slowest, (finished, took)) = slowest_meanwhile(&service, &pinned, work);
            eprintln!("{arguments:?} took {took:?}, the slowest answer meanwhile {slowest:?}");
            assert_eq!(finished.code(), 4, "{finished:?}");
            // Of the five seconds that are waited.
            assert!(took > Duration::from_secs(4), "nothing was waited for: {took:?}, {finished:?}");
            assert!(slowest < took / 5, "{slowest:?} of {took:?}");
            assert!(live.is_dir() && target.is_dir(), "{finished:?}");
        }
        names(&service.log(), "mount", hanging.pid());
        hanging.works_in_the_end(&live);
    });
}

#[test]
fn a_service_that_is_told_to_stop_waits_for_no_call_that_hangs() {
    in_turn(|host| {
        let config = ConfigFile::write(host, [Root::of(host)]);
        let reclaim = Reclaim::with(&config).within(LIMIT);
        let mut service = Service::start(host, &config, &reclaim);
        service.wait_for_passes(1);
        let live = host.entry("live");
        let hanging = Hanging::bind(host, &live);
        let asking = reclaim.clone();
        let work = thread::spawn(move || asking.run(&["sweep"]));
        wait_until("an entry that lies condemned", LIMIT, || (!host.condemned().is_empty()).then_some(()));
        let told = Instant::now();
        service.signal(Signal::SIGTERM);
        // Not until the service has ended, which on some machines takes longer than the wait would.
        wait_until("everything to be given back", LIMIT, || host.condemned().is_empty().then_some(()));
        let took = told.elapsed();
        assert!(took < Duration::from_secs(4), "the wait for the call goes on for five seconds: {took:?}");
        assert!(live.is_dir());
        let _cut_off = work.join();
        hanging.works_in_the_end(&live);
    });
}

/// Unmounting pins nothing, however long it takes. What a count of references tells of goes meanwhile; what it does not
/// tell of waits, for the looks that take its place go by the same clock.
fn unmounting_holds_nothing_empty_up(host: &Host, begin: impl FnOnce(&Reclaim, &ConfigFile) -> Option<Service>) {
    let trees = Root::of(host).text("remove", "tree");
    let config = ConfigFile::write(host, [trees, Root::at("empty", &host.make_dir("empty"))]);
    let reclaim = Reclaim::with(&config).within(LIMIT);
    let _service = begin(&reclaim, &config);
    let hanging = Hanging::unmount(host);
    let (tree, empty) = (make_tree(host, "tree"), host.make_dir("empty/stale"));
    for _ in 0..2 {
        let finished = reclaim.run(&["--json", "sweep"]);
        assert!(!finished.stderr.contains("have not come back"), "{finished:?}");
        assert!(tree.join("data/file").exists(), "{finished:?}");
    }
    assert!(hanging.is_inside() && !empty.exists());
    let (_sandbox, answer, _) = hanging.let_go();
    assert!(answer.is_err(), "there is nothing to unmount: {answer:?}");
    goes_in_the_end(&reclaim, &tree);
}

#[test]
fn unmounting_from_before_a_sweep_holds_nothing_empty_up() {
    in_turn(|host| unmounting_holds_nothing_empty_up(host, |_, _| None));
}

#[test]
fn unmounting_that_hangs_holds_nothing_empty_up() {
    in_turn(|host| {
        unmounting_holds_nothing_empty_up(host, |reclaim, config| {
            let mut service = Service::start(host, config, reclaim);
            service.wait_for_passes(2);
            Some(service)
        });
    });
}

/// A thread that is in the kernel all the time, and never asleep.
struct Busy {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Busy {
    fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut zeros = File::open("/dev/zero").or_fail("open /dev/zero");
            let mut room = vec![0; 64 << 20];
            while !stopped.load(Ordering::Relaxed) {
                zeros.read_exact(&mut room).or_fail("read zeros");
            }
        });
        Self { stop, thread }
    }

    fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        assert!(self.thread.join().is_ok());
    }
}

/// What a thread does that runs all the time is told by the kernel alone.
#[test]
fn a_thread_that_never_sleeps_is_seen_to_be_in_no_mount_call() {
    in_turn(|host| {
        let tree = make_tree(host, "tree");
        let reclaim = Reclaim::with(&tree_root(host)).within(LIMIT);
        let busy = Busy::start();
        wait_until("a pass that is sure of the rest", LIMIT, || {
            let (_, said) = sweep(&reclaim);
            assert!(!said.contains(&format!("of process {} was running", std::process::id())), "{said}");
            (!tree.exists()).then_some(())
        });
        busy.stop();
    });
}

/// Without that it cannot be told. What nobody refers to is free all the same; what no count tells of waits for another
/// pass.
#[test]
fn where_the_clock_is_in_doubt_trees_wait_and_the_reason_is_told() {
    in_turn(|host| {
        let (tree, empty) = (make_tree(host, "tree"), host.make_dir("empty/stale"));
        let trees = Root::of(host).text("remove", "tree");
        let config = ConfigFile::write(host, [trees, Root::at("empty", &host.path("empty"))]);
        let reclaim = Reclaim::with(&config).within(LIMIT).variable("RECLAIM_TEST_DISABLE", "inside");
        let busy = Busy::start();
        let finished = reclaim.run(&["--json", "sweep"]);
        busy.stop();
        let said = &finished.stderr;
        assert!(said.contains("the mount clock cannot vouch for this") && said.contains("weaker guarantee"), "{said}");
        assert!(said.contains(&format!("of process {} was running", std::process::id())), "{said}");
        assert!(tree.join("data/file").exists() && !empty.exists(), "{finished:?}");
        goes_in_the_end(&reclaim, &tree);
    });
}

/// The guarantee is weaker there, and trees are not kept for ever.
#[test]
fn without_a_clock_trees_go_and_it_is_told_that_there_is_none() {
    in_turn(|host| {
        let tree = make_tree(host, "tree");
        let reclaim = Reclaim::with(&tree_root(host)).variable("RECLAIM_TEST_DISABLE", "clock").within(LIMIT);
        wait_until("a pass that is sure of the rest", LIMIT, || {
            let (pass, said) = sweep(&reclaim);
            assert!(pass["candidates"] == 0 || said.contains("there is no mount clock; 300 ms"), "{pass} {said}");
            (!tree.exists()).then_some(())
        });
        let (config, target) = owned(host);
        let reclaim = Reclaim::with(&config).variable("RECLAIM_TEST_DISABLE", "clock").within(LIMIT);
        wait_until("a purge that is sure of the rest", LIMIT, || {
            let finished = reclaim.run(&["purge", "abc"]);
            let is_gone = !target.exists();
            assert!(!is_gone || finished.stderr.contains("there is no mount clock; 300 ms"), "{finished:?}");
            is_gone.then_some(())
        });
    });
}
