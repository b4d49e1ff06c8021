//! The probes on the running kernel: what they report, what they lose, and what the mount clock waits for. Needs root.
//!
//! Every test attaches probes of its own and looks at the events of its own namespaces only, so tests run side by side.

#[path = "host_probes/rungs.rs"]
mod rungs;
mod support;

use std::iter;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, unshare};
use nix::unistd::gettid;
use reclaim_user::evidence::clock::{Wait, Waited};
use reclaim_user::evidence::probes::{HookState, ProbeOptions, Probes};
use reclaim_user::model::event::{Event, Hook};
use support::{HangingMount, has_ended, in_private_namespace, make_slave, namespace_here, namespace_of};

/// Long enough for anything that is not going to hang.
const SOON: Duration = Duration::from_secs(30);

fn attach(options: ProbeOptions) -> Probes {
    Probes::attach(options).expect("the probes attach; these tests need root and a kernel with BPF and BTF")
}

fn attach_default() -> Probes {
    attach(ProbeOptions::default())
}

/// Drains until an event is there that the test looks for, and returns all events up to then.
#[track_caller]
fn drain_until(probes: &mut Probes, found: impl Fn(&Event) -> bool) -> Vec<Event> {
    let mut events = Vec::new();
    let started = Instant::now();
    while !events.iter().any(&found) {
        assert!(started.elapsed() < SOON, "the event does not come; there are {events:#?}");
        thread::sleep(Duration::from_millis(1));
        // Other tests put programs on the same functions, by which returns are missed: that counts as loss.
        assert_eq!(probes.drain(&mut events).malformed, 0);
    }
    events
}

fn settles(probes: &Probes) -> Waited {
    let clock = probes.clock();
    clock.wait_since(clock.now().entered, Instant::now() + SOON)
}

#[test]
fn every_hook_is_attached_or_this_kernel_has_no_such_call() {
    let probes = attach_default();
    for hook in probes.hooks() {
        assert!(!matches!(hook.state, HookState::Refused { .. }), "{hook:?}");
        if !["open_tree_attr", "mount_setattr"].contains(&hook.hook) {
            assert_eq!(hook.state, HookState::Attached, "{}", hook.hook);
        }
    }
    assert_eq!(probes.hooks().len(), 15);
}

/// A process made by the given call in a namespace of its own, which says so and waits for its input to end.
fn made_by(call: &str) {
    let script = format!(
        "use strict; $| = 1; my $child = {call}; die \"clone: $!\" if $child < 0; \
         if ($child == 0) {{ my $own = readlink('/proc/self/ns/mnt'); print \"$own\\n\"; <STDIN>; exit 0 }} \
         waitpid($child, 0);"
    );
    let mut probes = attach_default();
    let mut child = Command::new("perl")
        .args(["-e", &script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("perl starts: it makes the raw system call; install perl-base");
    let mut line = String::new();
    let mut output = std::io::BufReader::new(child.stdout.take().expect("piped"));
    std::io::BufRead::read_line(&mut output, &mut line).expect("the child says where it is");
    let made: u32 = line.trim().trim_start_matches("mnt:[").trim_end_matches(']').parse().expect("a namespace");
    let events = drain_until(&mut probes, |event| event.hook == Hook::Clone && event.namespace == Some(made));
    // Not the first of the namespace: the inode number of one that died is soon used again.
    let event = events.iter().rfind(|event| event.hook == Hook::Clone && event.namespace == Some(made));
    let event = event.expect("found above");
    let first = events.iter().find(|other| other.process == event.process).expect("there is one at least");
    assert_eq!(first.hook, Hook::Clone, "the making comes before anything that happens inside");
    assert_ne!(event.process, child.id(), "it names the made task, not its maker");
    assert_eq!(namespace_of(event.process), made);
    drop(child.stdin.take());
    child.wait().expect("the child ends");
    drain_until(&mut probes, |event| event.hook == Hook::Exit && event.namespace == Some(made));
    assert!(matches!(settles(&probes), Waited::Done), "the maker's call was counted out");
}

#[test]
fn a_task_made_by_clone_is_reported_with_its_own_namespace() {
    // CLONE_NEWNS and SIGCHLD.
    made_by(&format!("syscall({}, 0x20011, 0, 0, 0, 0)", libc::SYS_clone));
}

#[test]
fn a_task_made_by_clone3_is_reported_with_its_own_namespace() {
    // struct clone_args: flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls.
    made_by(&format!(
        "do {{ my $arguments = pack('Q8', 0x20000, 0, 0, 0, 17, 0, 0, 0); syscall({}, $arguments, 64) }}",
        libc::SYS_clone3
    ));
}

/// Not a test: the process that `a_process_of_many_threads_dies_with_a_report` starts in a namespace of its own.
#[test]
#[ignore = "is started by another test"]
fn many_threads() {
    for _ in 0..16 {
        thread::spawn(|| thread::sleep(SOON * 2));
    }
    println!("\nready");
    thread::sleep(SOON * 2);
}

#[test]
fn a_process_of_many_threads_dies_with_a_report() {
    let mut probes = attach_default();
    for _ in 0..10 {
        let own = std::env::current_exe().expect("this program has a path");
        let mut child = Command::new("unshare")
            .arg("--mount")
            .arg(own)
            .args(["--ignored", "--exact", "many_threads", "--nocapture"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare starts");
        let output = std::io::BufReader::new(child.stdout.take().expect("piped"));
        let ready = std::io::BufRead::lines(output).map_while(Result::ok).any(|line| line == "ready");
        assert!(ready, "the process gets ready");
        let made = namespace_of(child.id());
        assert_ne!(made, namespace_here());
        // All threads die at the same time.
        child.kill().expect("kill");
        child.wait().expect("the process ends");
        drain_until(&mut probes, |event| event.hook == Hook::Exit && event.namespace == Some(made));
    }
}

#[test]
fn a_full_ring_loses_nothing_silently() {
    let mut probes = attach(ProbeOptions { ring_bytes: Some(4096), ..ProbeOptions::default() });
    let before = probes.clock().now();
    in_private_namespace(|| {
        for _ in 0..500 {
            make_slave();
        }
    });
    let mut events = Vec::new();
    let drained = probes.drain(&mut events);
    assert!(drained.lost > 300, "{drained:?}");
    assert!(events.len() < 250, "{} events came through a ring of a page", events.len());
    let numbered = probes.clock().now().sequence - before.sequence;
    assert!(drained.lost + events.len() as u64 >= numbered.min(500), "{drained:?}");

    // More than once, for other tests can make the probes miss a return.
    let goes_on = (0..5).any(|_| {
        events.clear();
        in_private_namespace(make_slave);
        let drained = probes.drain(&mut events);
        (drained.lost, drained.malformed) == (0, 0) && events.len() >= 4
    });
    assert!(goes_on, "what was lost is told once, and the ring goes on: {events:?}");
}

#[test]
fn the_clock_waits_for_a_call_that_hangs() {
    let probes = attach_default();
    let hanging = HangingMount::start();
    let clock = probes.clock();
    let mark = clock.now().entered;
    match clock.wait_since(mark, Instant::now() + Duration::from_millis(300)) {
        Waited::Overdue { calls, .. } => {
            let call = calls.iter().find(|call| call.thread == hanging.thread()).expect("the call is named");
            assert_eq!(call.hook, Hook::Mount);
            assert!(call.number <= mark);
        }
        other => panic!("a call hangs and the wait ends with {other:?}"),
    }
    hanging.release();
    assert!(matches!(settles(&probes), Waited::Done));
}

#[test]
fn the_clock_does_not_wait_for_a_call_that_began_later() {
    let probes = attach_default();
    let before = HangingMount::start();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| settles(&probes));
        // For the wait to begin.
        thread::sleep(Duration::from_millis(500));
        let later = HangingMount::start();
        assert!(!waiting.is_finished(), "a call hangs that had entered before");
        before.release();
        let waited = waiting.join().expect("the wait ends");
        assert!(matches!(waited, Waited::Done), "{waited:?}");
        later.release();
    });
}

/// What was waited for in one piece is not forgotten in the next.
#[test]
fn a_wait_in_pieces_does_not_wait_for_a_call_that_began_later() {
    let probes = attach_default();
    let clock = probes.clock();
    let before = HangingMount::start();
    let mut wait = Wait::since(clock.now().entered, Instant::now() + SOON);
    let mut piece = || clock.go_on(&mut wait, Instant::now() + Duration::from_millis(10));
    assert!(matches!(piece(), Waited::Pending));
    let later = HangingMount::start();
    assert!(matches!(piece(), Waited::Pending));
    before.release();
    let ended = iter::repeat_with(piece).find(|waited| !matches!(waited, Waited::Pending));
    assert!(matches!(ended, Some(Waited::Done)), "{ended:?}");
    later.release();
}

#[test]
fn the_clock_knows_that_it_lost_track() {
    let probes = attach(ProbeOptions { in_flight_slots: Some(1), ..ProbeOptions::default() });
    let (first, second) = (HangingMount::start(), HangingMount::start());
    let clock = probes.clock();
    assert!(clock.now().untracked > 0, "there is room for one call and two hang: {:?}", clock.now());
    let wait = |limit| clock.wait_since(clock.now().entered, Instant::now() + limit);
    let unfinished = || !matches!(wait(Duration::from_millis(500)), Waited::Done);
    assert!(unfinished());
    first.release();
    assert!(unfinished());
    second.release();
    // The wait that finds a call untracked may end unsure; others make untracked calls all the time.
    assert!((0..20).any(|_| matches!(wait(SOON), Waited::Done)));
}

#[test]
fn the_clock_does_not_wait_for_a_task_that_died_in_its_call() {
    let probes = attach_default();
    let hanging = HangingMount::start();
    let mut child = hanging.child();
    let process = child.id();
    let inside = |probes: &Probes| probes.clock().in_flight().iter().any(|call| call.process == process);
    let started = Instant::now();
    while !inside(&probes) {
        assert!(started.elapsed() < SOON, "mount(8) does not hang");
        thread::sleep(Duration::from_millis(1));
    }
    child.kill().expect("kill");
    child.wait().expect("the child ends");
    assert!(!inside(&probes));
    hanging.release();
    assert!(matches!(settles(&probes), Waited::Done));
}

#[test]
fn a_call_from_before_the_probes_is_waited_for_too() {
    let hanging = HangingMount::start();
    let probes = attach_default();
    let clock = probes.clock();
    let wait = |limit| clock.wait_since(clock.now().entered, Instant::now() + limit);
    match wait(Duration::from_millis(700)) {
        Waited::Overdue { uncounted, .. } => {
            let call = uncounted.iter().find(|call| call.thread == hanging.thread()).expect("the call is named");
            assert_eq!((call.hook, call.process), (Hook::Mount, std::process::id()));
        }
        other => panic!("a call from before hangs and the wait ends with {other:?}"),
    }
    hanging.release();
    assert!(matches!(wait(SOON), Waited::Done));
}

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn the_clock_settles_while_others_never_stop_mounting() {
    let probes = attach_default();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        // Also when an assertion fails: the scope waits for the threads.
        let _stop = StopOnDrop(&stop);
        for _ in 0..3 {
            scope.spawn(|| {
                unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS).expect("unshare");
                while !stop.load(Ordering::Relaxed) {
                    make_slave();
                }
            });
        }
        let mut slowest = Duration::ZERO;
        for _ in 0..200 {
            let started = Instant::now();
            assert!(matches!(settles(&probes), Waited::Done));
            slowest = slowest.max(started.elapsed());
        }
        eprintln!("slowest of 200 waits: {slowest:?}");
    });
    let now = probes.clock().now();
    assert_eq!(now.untracked, 0);
    assert!(now.entered > 1000, "the others did mount: {now:?}");
}

#[test]
fn a_drain_sees_whatever_finished_before_it() {
    let mut probes = attach_default();
    let (done, finished) = mpsc::channel();
    let (go_on, gate) = mpsc::channel::<()>();
    let worker = thread::spawn(move || {
        unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS).expect("unshare");
        while gate.recv().is_ok() {
            make_slave();
            done.send(gettid().as_raw()).expect("the test listens");
        }
    });
    let mut events = Vec::new();
    for round in 0..300 {
        go_on.send(()).expect("the worker listens");
        let thread = finished.recv().expect("the worker answers");
        events.clear();
        let drained = probes.drain(&mut events);
        let own = |event: &&Event| i64::from(event.thread) == i64::from(thread) && event.hook == Hook::Mount;
        let count = events.iter().filter(own).count();
        assert!(count == 1 || (count == 0 && drained.lost > 0), "round {round}: {count} events, {drained:?}");
    }
    drop(go_on);
    worker.join().expect("the worker ends");
    assert!(has_ended(&finished));
}
