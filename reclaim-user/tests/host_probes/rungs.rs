//! Every rung of the ladder: that it reports, what it misses, and that nothing of it stays.

use std::collections::BTreeMap;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use aya::programs::{ProgramType, loaded_links, loaded_programs};
use aya::sys::is_program_supported;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::gettid;
use reclaim_user::evidence::clock::Waited;
use reclaim_user::evidence::probes::{HookState, ProbeOptions, Probes, Rung, Rungs, Why};
use reclaim_user::model::event::Hook;
#[cfg(target_arch = "x86_64")]
use reclaim_user::sys::caller_32;

use super::support::{FailedMount, HangingMount, in_private_namespace, make_slave, namespace_here};
use super::{SOON, attach, attach_default, drain_until, settles};

fn attach_by(rungs: Rungs) -> Probes {
    attach(ProbeOptions { rungs, ..ProbeOptions::default() })
}

/// Whether the kernel lets programs of a rung be loaded, asked without a program of ours. Where it does not, a test is
/// skipped, or a part of it, and says so. That has to be earned: a kernel that is not locked down refuses nothing that it
/// has.
fn is_permitted(rung: Rung) -> bool {
    let answer = match rung {
        Rung::Fentry => is_program_supported(ProgramType::Tracing),
        Rung::Kprobe if !Path::new("/sys/bus/event_source/devices/kprobe").exists() => Ok(false),
        Rung::Kprobe => is_program_supported(ProgramType::KProbe),
        _ => Ok(true),
    };
    let permitted = matches!(answer, Ok(true));
    if !permitted {
        let lockdown = std::fs::read_to_string("/sys/kernel/security/lockdown").unwrap_or_default();
        assert!(answer.is_ok() || !lockdown.contains("[none]"), "{rung} is refused without a reason: {answer:?}");
        skip(&format!("this kernel does not permit {rung}: {answer:?}"));
    }
    permitted
}

/// Says that a test is skipped, or a part of it, as those who count skips expect it.
fn skip(why: &str) {
    eprintln!("SKIP {}: {why}", thread::current().name().unwrap_or("test"));
}

/// What a thread of ours is reported to do on a rung, in order.
fn reports_each_step(rung: Rung) {
    if is_permitted(rung) {
        each_step_is_reported_to(&mut attach_by(Rungs::only(rung)));
    }
}

/// What a thread of ours is reported to do, in order.
fn each_step_is_reported_to(probes: &mut Probes) {
    for _ in 0..5 {
        let (expected, reported, lost) = steps(probes);
        // Other tests put programs on the same functions, by which returns are missed: then something must be lost.
        if lost == 0 || expected == reported {
            assert_eq!(expected, reported, "each step once, and the call that failed not at all");
            return;
        }
    }
    panic!("records are lost each time");
}

type Steps = Vec<(Hook, Option<u32>)>;

/// What a thread of ours does, what is reported of it, and how much was lost meanwhile.
fn steps(probes: &mut Probes) -> (Steps, Steps, u64) {
    let (home, made, thread) = thread::spawn(|| {
        let home = namespace_here();
        let descriptor = std::fs::File::open("/proc/thread-self/ns/mnt").expect("the thread has a namespace");
        unshare(CloneFlags::CLONE_NEWNS).expect("unshare");
        let made = namespace_here();
        make_slave();
        mount(Some("tmpfs"), "/mnt", Some("tmpfs"), MsFlags::empty(), None::<&str>).expect("mount");
        mount(Some("no such source"), "/mnt", None::<&str>, MsFlags::MS_BIND, None::<&str>).expect_err("no source");
        umount2("/mnt", MntFlags::MNT_DETACH).expect("umount");
        setns(descriptor, CloneFlags::CLONE_NEWNS).expect("setns");
        (home, made, gettid().as_raw().unsigned_abs())
    })
    .join()
    .expect("the thread ends");
    assert_ne!(home, made);
    // It had done all this before the drain began.
    let mut events = Vec::new();
    let drained = probes.drain(&mut events);
    let own = events.iter().filter(|event| event.thread == thread && event.hook != Hook::Exit);
    let reported = own.map(|event| (event.hook, event.namespace)).collect();
    let (home, made) = (Some(home), Some(made));
    let expected = vec![
        (Hook::Depart, home),
        (Hook::Unshare, made),
        (Hook::Mount, made),
        (Hook::Mount, made),
        (Hook::Umount, made),
        (Hook::Depart, made),
        (Hook::Setns, home),
    ];
    (expected, reported, drained.lost + drained.malformed)
}

#[test]
fn each_step_is_reported_by_syscall_tracepoints() {
    reports_each_step(Rung::SyscallTracepoint);
}

#[test]
fn each_step_is_reported_by_the_tracepoint_of_every_syscall() {
    reports_each_step(Rung::EverySyscall);
}

#[test]
fn each_step_is_reported_by_fentry() {
    reports_each_step(Rung::Fentry);
}

#[test]
fn each_step_is_reported_by_kprobes() {
    reports_each_step(Rung::Kprobe);
}

#[test]
fn each_step_is_reported_once_by_a_mixture_of_rungs() {
    let without = "fentry/mount,fentry/umount,fentry/setns,kprobe/umount,kprobe/setns,tracepoint/setns";
    let mut probes = attach_by(Rungs::without(without));
    let is_on = |name, rung| {
        let hook = probes.hooks().iter().find(|hook| hook.hook == name).expect("a hook");
        assert_eq!(hook.rung, rung, "{name}: {}", hook.ladder());
    };
    is_on("umount", Rung::SyscallTracepoint);
    is_on("setns", Rung::EverySyscall);
    if is_permitted(Rung::Fentry) && is_permitted(Rung::Kprobe) {
        is_on("unshare", Rung::Fentry);
        is_on("mount", Rung::Kprobe);
    }
    each_step_is_reported_to(&mut probes);
    // A call is counted once, however many rungs there are.
    let before = probes.clock().now();
    in_private_namespace(|| (0..50).for_each(|_| make_slave()));
    let after = probes.clock().now();
    assert!(after.entered - before.entered >= 52 && after.left - before.left >= 52);
    let mut events = Vec::new();
    probes.drain(&mut events);
    let own = events.iter().filter(|event| event.process == std::process::id() && event.hook == Hook::Mount);
    let mut by_thread = BTreeMap::<u32, usize>::new();
    own.for_each(|event| *by_thread.entry(event.thread).or_default() += 1);
    assert!(by_thread.values().any(|&count| count == 51), "{by_thread:?}");
}

#[test]
fn the_first_rung_that_works_is_used_and_the_others_have_a_reason() {
    let permitted: Vec<Rung> = Rung::LADDER.into_iter().filter(|&rung| is_permitted(rung)).collect();
    let probes = attach_default();
    for hook in probes.hooks().iter().filter(|hook| hook.rung != Rung::SchedulerTracepoint) {
        assert_eq!(hook.rung, permitted[0], "{}: {}", hook.hook, hook.ladder());
        assert_eq!(hook.passed.len(), Rung::LADDER.len() - permitted.len(), "{}", hook.ladder());
    }
}

#[test]
fn a_rung_that_does_not_report_what_it_should_is_not_used() {
    let probes = attach_by(Rungs::without("fentry-answer,kprobe-answer,tracepoint-answer"));
    for hook in probes.hooks().iter().filter(|hook| hook.rung != Rung::SchedulerTracepoint) {
        if matches!(hook.state, HookState::Absent { .. }) {
            continue;
        }
        assert_eq!(hook.rung, Rung::EverySyscall);
        let tracepoint = hook.passed.iter().find(|passed| passed.rung == Rung::SyscallTracepoint);
        assert!(tracepoint.is_some_and(|passed| matches!(passed.why, Why::Untrue(_))), "{}", hook.ladder());
        for rung in [Rung::Fentry, Rung::Kprobe].into_iter().filter(|&rung| is_permitted(rung)) {
            let passed = hook.passed.iter().find(|passed| passed.rung == rung);
            assert!(passed.is_some_and(|passed| matches!(passed.why, Why::Untrue(_))), "{}", hook.ladder());
        }
    }
}

#[test]
fn where_no_rung_is_left_every_reason_is_told() {
    let rungs = Rungs::without("fentry,kprobe,tracepoint,every-syscall/mount");
    let error = Probes::attach(ProbeOptions { rungs, ..ProbeOptions::default() }).expect_err("mount has no rung left");
    let text = error.to_string();
    for rung in Rung::LADDER {
        assert!(text.contains(&format!("{rung}: refused: ")), "{text}");
    }
}

#[test]
fn nothing_is_left_after_the_probes_are_gone() {
    for rung in Rung::LADDER.into_iter().filter(|&rung| is_permitted(rung)) {
        let probes = attach_by(Rungs::only(rung));
        let programs = probes.programs();
        let links = || loaded_links().flatten().filter(|link| programs.contains(&link.program_id())).count();
        let loaded = || loaded_programs().flatten().filter(|program| programs.contains(&program.id())).count();
        // A link for each of the scheduler's events, and two for each call or for all of them.
        assert!(links() >= if rung == Rung::EverySyscall { 4 } else { 2 + 2 * 12 }, "{rung}: {} links", links());
        assert_eq!(loaded(), programs.len());
        drop(probes);
        // The kernel lets go of some of them a little later.
        let started = Instant::now();
        while links() + loaded() > 0 {
            assert!(started.elapsed() < SOON, "{rung}: {} links and {} programs are left", links(), loaded());
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Run by hand: `cargo test -p reclaim-user --test host_probes -- --ignored --exact --nocapture rungs::speed_of_attaching`.
#[test]
#[ignore = "a measurement, not a test"]
fn speed_of_attaching() {
    for rung in Rung::LADDER.into_iter().filter(|&rung| is_permitted(rung)) {
        for _ in 0..3 {
            let begun = Instant::now();
            let probes = attach_by(Rungs::only(rung));
            let attached = begun.elapsed();
            let begun = Instant::now();
            drop(probes);
            println!("{rung}: attached and tried in {attached:?}, detached in {:?}", begun.elapsed());
        }
    }
}

#[test]
fn a_second_reclaim_and_one_that_is_loaded_again_see_as_much() {
    let mut first = attach_default();
    let mut second = attach_default();
    each_step_is_reported_to(&mut first);
    each_step_is_reported_to(&mut second);
    drop(first);
    each_step_is_reported_to(&mut second);
    let mut third = attach_default();
    each_step_is_reported_to(&mut third);
    each_step_is_reported_to(&mut second);
}

/// A call that is inside while others put programs on its function and take them off, and whose thread lives on.
fn a_return_is_told_or_missed_by_name(rung: Rung) {
    if !is_permitted(rung) {
        return;
    }
    let mut probes = attach_by(Rungs::only(rung));
    let hanging = HangingMount::start();
    drop(attach_by(Rungs::only(rung)));
    let failed = hanging.let_fail();
    let inside = probes.clock().in_flight().iter().any(|call| call.thread == failed.thread());
    eprintln!("{rung}: the return was {}", if inside { "missed" } else { "seen" });
    assert!(matches!(settles(&probes), Waited::Done), "a thread that is outside is not waited for");
    if inside {
        let drained = probes.drain(&mut Vec::new());
        assert!(drained.lost > 0, "what the call did was never told: {drained:?}");
    }
    failed.end();
    assert!(matches!(settles(&probes), Waited::Done));
}

#[test]
fn a_return_that_fentry_misses_counts_as_lost_and_holds_nobody_up() {
    a_return_is_told_or_missed_by_name(Rung::Fentry);
}

#[test]
fn a_return_that_a_kprobe_misses_counts_as_lost_and_holds_nobody_up() {
    a_return_is_told_or_missed_by_name(Rung::Kprobe);
}

#[test]
fn what_a_call_from_before_the_probes_does_counts_as_lost() {
    for rung in [Rung::Fentry, Rung::Kprobe].into_iter().filter(|&rung| is_permitted(rung)) {
        let hanging = HangingMount::start();
        let mut probes = attach_by(Rungs::only(rung));
        let failed = hanging.let_fail();
        // A thread that has just told that it is out still runs, and is looked at again until it sleeps.
        let deadline = Instant::now() + SOON;
        loop {
            let drained = probes.drain(&mut Vec::new());
            if drained.lost > 0 {
                break;
            }
            assert!(Instant::now() < deadline, "{rung}: nothing saw the call return: {drained:?}");
            thread::sleep(Duration::from_millis(5));
        }
        failed.end();
    }
}

#[test]
fn more_calls_hang_than_kprobes_have_room_for() {
    if !is_permitted(Rung::Kprobe) {
        return;
    }
    let processors = thread::available_parallelism().expect("there are some").get();
    let mut probes = attach_by(Rungs::only(Rung::Kprobe));
    // The kernel makes room for 10, or for two for each processor. <kernel/kprobes.c>
    let hanging: Vec<_> = (0..(2 * processors).max(10) + 3).map(|_| HangingMount::start()).collect();
    assert!(!matches!(probes.clock().wait_since(probes.clock().now().entered, Instant::now()), Waited::Done));
    let failed: Vec<_> = hanging.into_iter().map(HangingMount::let_fail).collect();
    let inside = probes.clock().in_flight().len();
    eprintln!("{inside} returns of {} were missed", failed.len());
    assert!(matches!(settles(&probes), Waited::Done), "threads that are outside are not waited for");
    let drained = probes.drain(&mut Vec::new());
    assert!(inside == 0 || drained.lost > 0, "{drained:?}");
    failed.into_iter().for_each(FailedMount::end);
    assert!(matches!(settles(&probes), Waited::Done));
}

/// A caller of 32 bits unmounts something; whether that is reported.
#[cfg(target_arch = "x86_64")]
fn a_32_bit_caller_is_reported_by(rung: Rung) -> Option<bool> {
    let symbols = std::fs::read_to_string("/proc/kallsyms").expect("the kernel lists its functions");
    if !is_permitted(rung) || !symbols.contains(" __ia32_sys_umount") {
        skip(&format!("needs {rung} and a kernel with callers of 32 bits"));
        return None;
    }
    let mut probes = attach_by(Rungs::only(rung));
    let (thread, before) = in_private_namespace(|| {
        mount(Some("tmpfs"), "/mnt", Some("tmpfs"), MsFlags::empty(), None::<&str>).expect("mount");
        caller_32::umount(c"/mnt", 0).expect("umount");
        (gettid().as_raw().unsigned_abs(), namespace_here())
    });
    let events = drain_until(&mut probes, |event| event.hook == Hook::Exit && event.namespace == Some(before));
    Some(events.iter().any(|event| event.thread == thread && event.hook == Hook::Umount))
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_32_bit_caller_is_seen_by_fentry_and_kprobes() {
    assert!(a_32_bit_caller_is_reported_by(Rung::Fentry).unwrap_or(true));
    assert!(a_32_bit_caller_is_reported_by(Rung::Kprobe).unwrap_or(true));
    // What `reclaim check` says of tracepoints.
    assert!(!a_32_bit_caller_is_reported_by(Rung::SyscallTracepoint).unwrap_or(false));
}
