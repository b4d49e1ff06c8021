//! Cases 1, 2, 3 and 5: sources and targets of live sandboxes, pids that lie, namespaces without a process, mounts without
//! a namespace.

use reclaim_tests::{
    Actor, ConfigFile, Held, Host, Kept, Mode, OrFail as _, PinLine, Request, Root, Subject, cases, earned_skip,
    kernel_lists_namespaces,
};
use std::fs::File;
use std::os::unix::net::UnixListener;
use std::path::Path;

cases! {
    live_empty_source: service, scan, fallback;
    live_target: service, scan, fallback;
    launcher_exits_and_child_stays: service, scan, fallback;
    thread_of_a_zombie_leader: service, scan, fallback;
    plain_zombies_lower_nothing: service, scan, fallback;
    namespace_kept_by_file: service, scan;
    namespace_kept_by_descriptor: service, scan;
    namespace_without_tasks_cannot_be_listed: fallback;
    pinned_before_the_first_pass: service;
    open_descriptor: service, scan;
    detached_tree: service, scan, fallback;
    unmounted_with_a_descriptor_inside: service, scan, fallback;
    unmounted_with_a_working_directory_inside: service, scan, fallback;
    reference_that_the_kernel_alone_shows: service;
}

#[track_caller]
fn only_pin(subject: &Subject, entry: &Path, namespace: u64) -> PinLine {
    let mut answer = subject.who(entry);
    assert_eq!(answer.path, entry.to_string_lossy());
    answer.pins.retain(|pin| pin.namespace == Some(namespace));
    assert_eq!(answer.pins.len(), 1, "one pin in namespace {namespace}: {answer:?}");
    answer.pins.remove(0)
}

#[track_caller]
fn expect_task(pin: &PinLine, pid: i32) {
    assert!(pin.tasks.iter().any(|task| task.pid == pid), "task {pid} in {pin:?}");
}

fn live_empty_source(host: &Host, mode: Mode) {
    let subject = Subject::start(host, mode);
    let (entry, stale) = (host.entry("live"), host.entries("stale", 3));
    let (mut sandbox, point) = host.sandbox_with(&entry);
    subject.expect_pinned(&entry);
    let pin = only_pin(&subject, &entry, sandbox.namespace());
    assert_eq!((pin.role.as_str(), pin.place.as_str(), pin.state.as_str()), ("source", "exact", "attached"));
    assert_eq!(pin.mount_point.as_deref(), point.to_str());
    expect_task(&pin, sandbox.pid());

    let pass = subject.sweep_until_gone(&stale, &[&entry]);
    assert!(pass.kept("pinned") >= 1, "{pass:?}");
    sandbox.still_works(&point, &entry);

    sandbox.kill();
    subject.expect_free(&entry);
    subject.sweep_until_gone(&[&entry], &[] as &[&Path]);
    assert!(host.names().is_empty() && host.condemned().is_empty());
}

fn live_target(host: &Host, mode: Mode) {
    let subject = Subject::start(host, mode);
    let (entry, stale) = (host.entry("live"), host.entries("stale", 3));
    let secret = host.make_file("elsewhere/secret", "kept");
    let mut sandbox = host.sandbox();
    sandbox.bind(host.path("elsewhere"), &entry);
    subject.expect_pinned(&entry);
    let pin = only_pin(&subject, &entry, sandbox.namespace());
    assert_eq!((pin.role.as_str(), pin.place.as_str(), pin.state.as_str()), ("target", "exact", "attached"));
    expect_task(&pin, sandbox.pid());

    let pass = subject.sweep_until_gone(&stale, &[&entry]);
    assert!(pass.kept("pinned") >= 1, "{pass:?}");
    assert_eq!(sandbox.ask(&Request::Read(entry.join("secret").into())), "kept");

    sandbox.kill();
    subject.sweep_until_gone(&[&entry], &[&secret]);
}

fn launcher_exits_and_child_stays(host: &Host, mode: Mode) {
    let subject = Subject::start(host, mode);
    let (entry, stale) = (host.entry("live"), host.entry("stale"));
    let (mut sandbox, point) = host.sandbox_with(&entry);
    sandbox.hand_over();
    subject.expect_pinned(&entry);
    expect_task(&only_pin(&subject, &entry, sandbox.namespace()), sandbox.pid());
    subject.sweep_until_gone(&[&stale], &[&entry]);
    sandbox.still_works(&point, &entry);
    drop(sandbox);
    subject.sweep_until_gone(&[&entry], &[] as &[&Path]);
}

fn thread_of_a_zombie_leader(host: &Host, mode: Mode) {
    let subject = Subject::start(host, mode);
    let (entry, stale) = (host.entry("live"), host.entry("stale"));
    let mut sandbox = Actor::start();
    let point = host.mount_point();
    let thread = sandbox.leader_dies(&entry, &point);
    subject.expect_pinned(&entry);
    only_pin(&subject, &entry, sandbox.namespace_of_thread(thread));
    subject.sweep_until_gone(&[&stale], &[&entry]);
    sandbox.still_works(&point, &entry);
    drop(sandbox);
    subject.sweep_until_gone(&[&entry], &[] as &[&Path]);
}

fn plain_zombies_lower_nothing(host: &Host, mode: Mode) {
    let subject = Subject::start(host, mode);
    const ZOMBIES: u64 = 40;
    let mut parent = Actor::start();
    let before = subject.scan();
    parent.ask(&Request::Zombies(usize::try_from(ZOMBIES).or_fail("a count")));
    let after = subject.scan();
    for cause in ["task-unreadable", "task-departed", "namespace-unread"] {
        // Other tests run beside this one, so a few may come and go.
        assert!(after.gap(cause) < before.gap(cause) + ZOMBIES / 2, "{cause}: {before:?} {after:?}");
    }
    let stale = host.entry("stale");
    subject.sweep_until_gone(&[&stale], &[] as &[&Path]);
    parent.ask(&Request::Reap);
}

fn namespace_kept_by_file(host: &Host, mode: Mode) {
    earned_skip!(sees_kept_namespaces(mode), "the kernel has no NS_MNT_GET_NEXT (before 6.12)");
    kept_namespace(host, mode, Kept::by_file);
}

fn namespace_kept_by_descriptor(host: &Host, mode: Mode) {
    earned_skip!(sees_kept_namespaces(mode), "the kernel has no NS_MNT_GET_NEXT (before 6.12)");
    kept_namespace(host, mode, Kept::by_descriptor);
}

/// A service walks, which takes no list of namespaces.
fn sees_kept_namespaces(mode: Mode) -> bool {
    mode == Mode::Service || kernel_lists_namespaces()
}

fn kept_namespace(host: &Host, mode: Mode, keep: fn(&Host, &Path) -> Kept) {
    let subject = Subject::start(host, mode);
    let (entry, stale) = (host.entry("live"), host.entry("stale"));
    let kept = keep(host, &entry);
    subject.expect_pinned(&entry);
    let pin = only_pin(&subject, &entry, kept.namespace());
    assert!(pin.tasks.is_empty(), "no task is there: {pin:?}");
    subject.sweep_until_gone(&[&stale], &[&entry]);
    kept.still_works(&entry);
    kept.release();
    subject.sweep_until_gone(&[&entry], &[] as &[&Path]);
}

fn namespace_without_tasks_cannot_be_listed(host: &Host, mode: Mode) {
    let subject = Subject::start(host, mode);
    let entry = host.entry("live");
    let kept = Kept::by_descriptor(host, &entry);
    let scan = subject.scan();
    assert!(!scan.complete && scan.gap("namespaces-unlisted") > 0, "{scan:?}");
    let answer = subject.query(&entry);
    assert_ne!(answer.verdict, "free", "{answer:?}");
    let who = subject.who(&entry);
    assert!(!who.complete, "{who:?}");
    kept.still_works(&entry);
}

/// The baseline of the service must see what was there before it.
fn pinned_before_the_first_pass(host: &Host, mode: Mode) {
    let entries = host.entries("live", 6);
    let stale = host.entries("stale", 20);
    let (mut source, point) = host.sandbox_with(&entries[0]);
    let mut target = host.sandbox();
    target.bind(host.make_dir("elsewhere"), &entries[1]);
    let (mut child, child_point) = host.sandbox_with(&entries[2]);
    child.hand_over();
    let (mut thread, thread_point) = (Actor::start(), host.mount_point());
    thread.leader_dies(&entries[3], &thread_point);
    let (file, descriptor) = (Kept::by_file(host, &entries[4]), Kept::by_descriptor(host, &entries[5]));
    let mut subject = Subject::start(host, mode);
    let service = subject.service().or_fail("a service");
    let first = service.passes().remove(0);
    assert!(first.kept("pinned") >= 6, "{first:?}");
    for entry in &entries {
        subject.expect_pinned(entry);
    }
    subject.sweep_until_gone(&stale, &entries);
    source.still_works(&point, &entries[0]);
    child.still_works(&child_point, &entries[2]);
    thread.still_works(&thread_point, &entries[3]);
    file.still_works(&entries[4]);
    descriptor.still_works(&entries[5]);
    drop((source, target, child, thread));
    file.release();
    descriptor.release();
    subject.sweep_until_gone(&entries, &[] as &[&Path]);
}

/// Whoever has an entry open could bind it after its name is gone.
fn open_descriptor(host: &Host, mode: Mode) {
    let subject = Subject::start(host, mode);
    let open = File::open(host.entry("open")).or_fail("open an entry");
    for _ in 0..3 {
        subject.sweep_until_gone(&[host.entry("stale")], &[host.root().join("open")]);
    }
    assert_eq!(host.names(), [b"open"]);
    drop(open);
    subject.sweep_until_gone(&[host.root().join("open")], &[] as &[&Path]);
}

fn detached_tree(host: &Host, mode: Mode) {
    held(host, mode, Held::tree, ("detached", "descriptor"));
}

fn unmounted_with_a_descriptor_inside(host: &Host, mode: Mode) {
    held(host, mode, Held::by_descriptor, ("unmounted", "descriptor"));
}

fn unmounted_with_a_working_directory_inside(host: &Host, mode: Mode) {
    held(host, mode, Held::by_working_directory, ("unmounted", "working-directory"));
}

/// Kept while it is held, by the mount where the kernel can be walked and by who holds it elsewhere; gone afterwards.
fn held(host: &Host, mode: Mode, hold: fn(&Host, &Path) -> Held, (state, kind): (&str, &str)) {
    let subject = Subject::start(host, mode);
    let (entry, stale) = (host.entry("live"), host.entries("stale", 3));
    let mut held = hold(host, &entry);
    subject.expect_pinned(&entry);
    let who = subject.who(&entry);
    if mode == Mode::Service {
        assert_eq!(who.evidence, "walk");
        assert_eq!(who.pins.len(), 1, "{who:?}");
        let pin = &who.pins[0];
        let told = (pin.role.as_str(), pin.place.as_str(), pin.state.as_str(), pin.namespace);
        assert_eq!(told, ("source", "exact", state, None), "{who:?}");
    } else {
        let [reference] = &*who.references else { panic!("one reference: {who:?}") };
        assert_eq!((reference.kind.as_str(), reference.place.as_str()), (kind, "exact"), "{who:?}");
        assert_eq!(reference.task.as_ref().map(|task| task.pid), Some(held.pid()), "{who:?}");
    }
    if mode != Mode::Fallback {
        // What nobody holds is not held because a neighbour is.
        subject.expect_free(&stale[0]);
    }
    subject.sweep_until_gone(&stale, &[&entry]);
    for _ in 0..2 {
        subject.sweep();
        held.still_works(&entry);
    }
    let _keeper = held.release();
    subject.expect_free(&entry);
    subject.sweep_until_gone(&[&entry], &[] as &[&Path]);
    assert!(host.condemned().is_empty());
}

/// A socket that somebody listens on: no descriptor leads to its name, and the kernel counts a reference to it. That it is
/// alone or among directories, which reclaim has open itself by then, is no matter.
fn reference_that_the_kernel_alone_shows(host: &Host, mode: Mode) {
    let root = Root::of(host).text("kind", "any").text("remove", "tree");
    let subject = Subject::start_with(host, mode, &ConfigFile::write(host, [root]));
    let socket = host.root().join("socket");
    let listener = UnixListener::bind(&socket).or_fail("listen");
    let pass = subject.sweep();
    assert!(socket.exists(), "alone: {pass:?}");
    for _ in 0..3 {
        subject.sweep_until_gone(&host.entries("stale", 3), &[&socket]);
    }
    drop(listener);
    subject.sweep_until_gone(&[&socket], &[] as &[&Path]);
}
