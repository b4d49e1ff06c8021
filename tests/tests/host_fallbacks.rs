//! What reclaim does on kernels that lack something: each thing is taken away by itself, and some together.

use reclaim_tests::{
    Actor, Held, Host, Kept, Mode, OrFail as _, Pass, Request, Subject, cases, kernel_lists_namespaces, query_for,
    verdicts,
};
use serde_json::Value;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

cases! {
    type_information: command;
    bpf_system_call: command;
    walk: service, command;
    known_answer_of_the_walk: service, command;
    mount_clock: command;
    task_iterator: service, command;
    known_answer_of_the_references: service, command;
    count_of_references_that_means_something_else: service, command;
    type_information_and_mount_list: command;
    bpf_system_call_and_namespace_list: service;
    walk_and_namespace_list: command;
    walk_and_mount_clock: service;
    every_fallback_at_once: service;
    namespace_without_a_way_in: command;
    questions_without_the_walk: service, command;
    questions_without_the_walk_and_the_iterator: service, command;
    questions_about_a_path_and_one_below_it: service, command;
}

const NOTHING: &[&Path] = &[];
/// What every kernel that the tests run on has; each case takes some of it away.
const ALL: Kernel = Kernel { lacking: "", walks: true, probes: true, clock: true, iterator: true, lists: true };

/// A kernel, by what it has.
#[derive(Clone, Copy)]
struct Kernel {
    /// What is taken away, as `RECLAIM_TEST_DISABLE` lists it.
    lacking: &'static str,
    walks: bool,
    probes: bool,
    clock: bool,
    iterator: bool,
    /// Namespaces that no task is in can be listed, unless the kernel is too old for that anyway.
    lists: bool,
}

impl Kernel {
    /// A kernel without BPF, or without the means to use it.
    const fn without_programs(lacking: &'static str) -> Self {
        Self { lacking, walks: false, probes: false, clock: false, iterator: false, ..ALL }
    }

    fn sees_kept_namespaces(self) -> bool {
        self.walks || (self.lists && kernel_lists_namespaces())
    }

    /// Who speaks for the mounts at last.
    fn evidence(self) -> &'static str {
        match (self.walks, self.probes) {
            (true, _) => "walk",
            (false, true) => "live",
            (false, false) => "scan",
        }
    }
}

fn type_information(host: &Host, mode: Mode) {
    let kernel = Kernel::without_programs("btf");
    check(host, mode, kernel, &[("feature", "kernel type information")]);
    reclaims_on(host, mode, kernel);
}

fn bpf_system_call(host: &Host, mode: Mode) {
    let kernel = Kernel::without_programs("bpf");
    let all = ["BPF system call", "BPF ring buffer", "raw tracepoints", "tracepoints", "fentry and fexit"];
    check(host, mode, kernel, &all.map(|name| ("feature", name)));
    reclaims_on(host, mode, kernel);
}

fn walk(host: &Host, mode: Mode) {
    let kernel = Kernel { lacking: "walk", walks: false, ..ALL };
    check(host, mode, kernel, &[]);
    reclaims_on(host, mode, kernel);
}

/// It loads and runs, and does not find what it has to.
fn known_answer_of_the_walk(host: &Host, mode: Mode) {
    let kernel = Kernel { lacking: "walk-answer", walks: false, ..ALL };
    check(host, mode, kernel, &[("feature", "walk of mounts")]);
    reclaims_on(host, mode, kernel);
}

fn mount_clock(host: &Host, mode: Mode) {
    let kernel = Kernel { lacking: "clock", clock: false, ..ALL };
    check(host, mode, kernel, &[]);
    reclaims_on(host, mode, kernel);
}

fn task_iterator(host: &Host, mode: Mode) {
    let kernel = Kernel { lacking: "references", iterator: false, ..ALL };
    check(host, mode, kernel, &[("feature", "task iterator")]);
    reclaims_on(host, mode, kernel);
}

fn known_answer_of_the_references(host: &Host, mode: Mode) {
    let kernel = Kernel { lacking: "references-answer", iterator: false, ..ALL };
    check(host, mode, kernel, &[("feature", "task iterator")]);
    reclaims_on(host, mode, kernel);
}

fn count_of_references_that_means_something_else(host: &Host, mode: Mode) {
    reclaims_on(host, mode, Kernel { lacking: "references-idle", ..ALL });
}

fn type_information_and_mount_list(host: &Host, mode: Mode) {
    reclaims_on(host, mode, Kernel::without_programs("btf,listmount"));
}

fn bpf_system_call_and_namespace_list(host: &Host, mode: Mode) {
    reclaims_on(host, mode, Kernel { lists: false, ..Kernel::without_programs("bpf,nslist") });
}

fn walk_and_namespace_list(host: &Host, mode: Mode) {
    reclaims_on(host, mode, Kernel { lacking: "walk,nslist", walks: false, lists: false, ..ALL });
}

fn walk_and_mount_clock(host: &Host, mode: Mode) {
    reclaims_on(host, mode, Kernel { lacking: "walk,clock", walks: false, clock: false, ..ALL });
}

fn every_fallback_at_once(host: &Host, mode: Mode) {
    let lacking = "bpf,btf,walk,clock,references,nslist,listmount";
    reclaims_on(host, mode, Kernel { lists: false, ..Kernel::without_programs(lacking) });
}

/// What a check says of what was taken away: not there, and why.
fn check(host: &Host, mode: Mode, kernel: Kernel, rows: &[(&str, &str)]) {
    if mode != Mode::Command {
        return;
    }
    let subject = Subject::start_without(host, mode, kernel.lacking);
    let (objects, _) = subject.reclaim().objects(&["check"], &[0]);
    for (kind, name) in rows {
        let row = objects.iter().find(|object| object["type"] == *kind && object["name"] == *name);
        let row = row.or_fail(format_args!("{name} in a check"));
        let why = row["why"].as_str().or_fail(format_args!("a reason: {row}"));
        // A refusal can have many causes, so that it is no proof of absence.
        let refused = row["answer"] == "could-not-tell" && why.contains("Operation not permitted");
        let absent = row["answer"] == "no" && !why.is_empty();
        assert!(absent || (refused && kernel.lacking == "bpf"), "{row}");
    }
    let clock = objects.iter().find_map(|object| object["clock"].as_bool()).or_fail("a word on the clock");
    assert_eq!(clock, kernel.clock);
    let text = subject.reclaim().run(&["check"]).stdout;
    let line = |start: &str| text.lines().find(|line| line.starts_with(start)).map(str::to_owned);
    let expect = |there: bool, start: &str| {
        let line = line(start);
        let reason = line.as_ref().is_some_and(|line| line.len() > start.len());
        assert_eq!(reason, !there, "{start:?} with a reason where it is not there: {line:?} in\n{text}");
    };
    expect(kernel.walks, "walk\tno\t");
    expect(kernel.probes, "probes\tnone\t");
    expect(kernel.clock, "clock\tno\t");
    let references = ["no", "could not tell"].map(|answer| line(&format!("references\t{answer}\t")));
    assert_eq!(references.iter().flatten().count(), usize::from(!kernel.iterator), "{text}");
    let evidence = line("evidence\t").or_fail("a word on evidence");
    assert_eq!(evidence.contains("which is a weaker guarantee"), !kernel.clock, "{evidence}");
}

/// What is relied on, one entry for each way.
struct Reliance {
    sandboxes: Vec<(Actor, PathBuf, PathBuf)>,
    kept: Option<(Kept, PathBuf)>,
    open: (File, PathBuf),
}

impl Reliance {
    fn make(host: &Host, kernel: Kernel) -> Self {
        let [source, target, lower, upper] =
            ["source", "target", "lower", "upper"].map(|name| host.entry(format!("live-{name}")));
        let (sandbox, point) = host.sandbox_with(&source);
        let mut sandboxes = vec![(sandbox, point, source)];
        let mut sandbox = host.sandbox();
        let elsewhere = host.make_dir("elsewhere");
        sandbox.bind(&elsewhere, &target);
        sandboxes.push((sandbox, target, elsewhere));
        let mut sandbox = host.sandbox();
        let (point, work) = (host.mount_point(), host.make_dir("work"));
        let [low, up, work] = [&lower, &upper, &work].map(|path| path.display());
        let options = format!("lowerdir={low},upperdir={up},workdir={work}");
        sandbox.ask(&Request::Overlay(point.clone().into(), options.into_bytes()));
        sandboxes.push((sandbox, point, upper));
        let kept = kernel.sees_kept_namespaces().then(|| {
            let entry = host.entry("live-kept");
            (Kept::by_file(host, &entry), entry)
        });
        let open = host.entry("live-open");
        Self { sandboxes, kept, open: (File::open(&open).or_fail("open an entry"), open) }
    }

    /// Everything works as if nobody had cleaned up.
    fn still_works(&mut self) {
        for (sandbox, point, source) in &mut self.sandboxes {
            sandbox.still_works(point, source);
        }
        if let Some((kept, entry)) = &self.kept {
            kept.still_works(entry);
        }
        assert!(self.open.1.is_dir());
    }
}

/// What a case goes through: what is relied on stays, and what is not goes as far as the claim allows.
fn reclaims_on(host: &Host, mode: Mode, kernel: Kernel) {
    let mut subject = Subject::start_without(host, mode, kernel.lacking);
    let mut reliance = Reliance::make(host, kernel);
    let live: Vec<PathBuf> = host.names().iter().map(|name| host.root().join(text(name))).collect();
    let stale = host.entries("stale-", 3);
    sweep_as_claimed(&mut subject, kernel, &stale, &live);
    reliance.still_works();
    let Reliance { sandboxes, kept, open } = reliance;
    drop((sandboxes, open));
    if let Some((kept, _)) = kept {
        kept.release();
    }
    sweep_as_claimed(&mut subject, kernel, &live, NOTHING);
}

/// Sweeps until all that is stale has gone, or until it is plain that the claim does not allow it: then it is all there.
fn sweep_as_claimed<S: AsRef<Path>>(subject: &mut Subject, kernel: Kernel, stale: &[PathBuf], live: &[S]) {
    let begun = Instant::now();
    let mut kept_in_a_row = 0;
    loop {
        let (pass, log) = sweep(subject);
        for entry in live.iter().map(AsRef::as_ref) {
            assert!(entry.is_dir(), "{} is relied on and has gone: {pass:?}", entry.display());
        }
        // What confirms is told once there was something to confirm: where a namespace that is going cannot be read, a pass
        // may find nothing that it could prove.
        if pass.candidates > 0 {
            assert_eq!(pass.evidence, kernel.evidence(), "{pass:?}");
        }
        if !kernel.sees_kept_namespaces() {
            assert!(!pass.complete && pass.gaps.contains_key("namespaces-unlisted"), "{pass:?}");
        }
        let left = stale.iter().filter(|entry| entry.exists()).count() as u64;
        let claimed = pass.complete || pass.covered;
        assert!(claimed || pass.removed == 0, "something went without a claim: {pass:?}");
        if pass.removed > 0 {
            let weaker = log.contains("there is no mount clock") && log.contains("weaker guarantee");
            assert!(weaker || kernel.clock, "the weaker guarantee is not told: {log}");
        }
        if left == 0 {
            return;
        }
        let is_kept = !claimed && !pass.gaps.is_empty() && pass.kept("no-evidence") >= left;
        kept_in_a_row = if is_kept { kept_in_a_row + 1 } else { 0 };
        if kept_in_a_row == 5 {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(120), "{left} stale entries are still there: {pass:?}\n{log}");
        sleep(Duration::from_millis(20));
    }
}

/// One pass, and all that was logged until its end.
fn sweep(subject: &mut Subject) -> (Pass, String) {
    if let Some(service) = subject.service() {
        let log = service.log();
        let pass = subject.sweep();
        let after = subject.service().or_fail("a service").log();
        return (pass, after[log.len()..].to_owned());
    }
    let finished = subject.reclaim().run(&["--json", "sweep"]);
    assert!([0, 4].contains(&finished.code()), "{finished:?}");
    let objects = finished.stdout.lines().map(|line| serde_json::from_str(line).or_fail("a line of JSON"));
    let mut passes: Vec<Value> = objects.filter(|object: &Value| object["type"] == "pass").collect();
    assert_eq!(passes.len(), 1, "{finished:?}");
    let pass: Pass = serde_json::from_value(passes.remove(0)).or_fail("a summary");
    pass.check();
    (pass, finished.stderr)
}

/// A namespace that is seen through a jail alone could hold anything: nothing goes until it has ended.
fn namespace_without_a_way_in(host: &Host, mode: Mode) {
    let subject = Subject::start_without(host, mode, "btf,listmount,setns");
    let (entry, stale, jail) = (host.entry("live"), host.entry("stale"), host.make_dir("jail"));
    let (mut sandbox, point) = host.sandbox_with(&entry);
    let relative = point.strip_prefix(host.directory()).or_fail("a relative path").to_owned();
    sandbox.ask(&Request::ChangeDir(host.directory().into()));
    sandbox.ask(&Request::ChangeRoot(jail.into()));
    for _ in 0..3 {
        let pass = subject.sweep();
        assert!(!pass.complete && !pass.covered && pass.gaps.contains_key("reader-chrooted"), "{pass:?}");
        // A layer of a union file system of others whose place cannot be found out holds every entry as well.
        let kept = pass.kept("no-evidence") + pass.kept("pinned");
        assert_eq!((pass.removed, kept), (0, 2), "{pass:?}");
    }
    sandbox.still_works(&relative, &entry);
    assert!(entry.is_dir() && stale.is_dir());
}

fn questions_without_the_walk(host: &Host, mode: Mode) {
    questions_on(host, mode, "walk");
}

fn questions_without_the_walk_and_the_iterator(host: &Host, mode: Mode) {
    questions_on(host, mode, "walk,references");
}

/// What no mount table shows is never said to be free: not by a command, and not by a service.
fn questions_on(host: &Host, mode: Mode, lacking: &'static str) {
    let mut subject = Subject::start_without(host, mode, lacking);
    let entries = ["tree", "descriptor", "directory", "inside"].map(|name| host.entry(format!("live-{name}")));
    let stale = host.entry("stale");
    let below = host.make_dir(entries[3].join("deep/inside"));
    let held = [
        Held::tree(host, &entries[0]),
        Held::by_descriptor(host, &entries[1]),
        Held::by_working_directory(host, &entries[2]),
        Held::tree(host, &below),
    ];
    let mut ask = |expected: &str| {
        let begun = Instant::now();
        loop {
            let all: Vec<&Path> = entries.iter().chain([&stale]).map(PathBuf::as_path).collect();
            let mut told = match subject.service() {
                Some(service) => verdicts(&service.connect().ask(&query_for(&all))),
                None => all.iter().map(|path| subject.query(path).verdict).collect(),
            };
            let other = told.pop();
            // Where a host is busy or namespaces cannot be listed, evidence may be too weak to call anything free.
            let is_weak = other.as_deref() == Some("unknown");
            assert!(is_weak || other.as_deref() == Some("free"), "nobody has it: {other:?}");
            if told.iter().all(|verdict| verdict == expected || (is_weak && expected == "free" && verdict == "unknown"))
            {
                return;
            }
            assert!(expected == "free" && begun.elapsed() < Duration::from_secs(60), "not {expected}: {told:?}");
            sleep(Duration::from_millis(50));
        }
    };
    ask("pinned");
    let _keepers = held.map(Held::release);
    ask("free");
}

/// What is below the one is below the other, in whichever order they are given.
fn questions_about_a_path_and_one_below_it(host: &Host, mode: Mode) {
    let mut subject = Subject::start_without(host, mode, "walk");
    let outer = host.entry("live");
    let inner = host.make_dir(outer.join("deep"));
    let _held = Held::tree(host, &inner);
    for paths in [[&*outer, &*inner], [&*inner, &*outer]] {
        let told = match subject.service() {
            Some(service) => verdicts(&service.connect().ask(&query_for(&paths))),
            None => {
                let arguments = ["query".as_ref(), paths[0].as_os_str(), paths[1].as_os_str()];
                let (objects, _) = subject.reclaim().objects(&arguments, &[0, 3, 4]);
                objects.iter().map(|object| object["verdict"].as_str().unwrap_or_default().to_owned()).collect()
            }
        };
        assert_eq!(told, ["pinned", "pinned"], "{paths:?}");
    }
}

fn text(name: &[u8]) -> &str {
    std::str::from_utf8(name).or_fail("a name in ASCII")
}
