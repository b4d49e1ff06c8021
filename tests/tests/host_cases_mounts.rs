//! Cases 4, 6, 12, 13 and 16: binds that are hidden, inside, deep, renamed, doubled and propagated.

use reclaim_tests::{
    Actor, Background, ConfigFile, Host, Mode, OrFail as _, Request, Root, Subject, cases, wait_until,
};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, Instant};

cases! {
    hidden_by_chroot: service, scan, fallback;
    bind_inside_in_the_own_namespace: service, scan, fallback;
    bind_inside_in_another_namespace: service, scan, fallback;
    swapped_for_a_link: service, scan;
    same_name_on_another_file_system: service, scan, fallback;
    deleted_source_made_again: service, scan, fallback;
    prefix_of_a_pinned_name: service, scan, fallback;
    bind_of_a_child_deep_inside: service, scan, fallback;
    renamed_while_bound: service, scan, fallback;
    bound_twice: service, scan, fallback;
    propagated_to_peers: service, scan, fallback;
    propagated_away_again: service, scan, fallback;
}

const NOTHING: &[&Path] = &[];

fn trees(host: &Host, mode: Mode) -> Subject {
    Subject::start_with(host, mode, &ConfigFile::write(host, [Root::of(host).text("remove", "tree")]))
}

fn hidden_by_chroot(host: &Host, mode: Mode) {
    let subject = Subject::start(host, mode);
    let (entry, stale, jail) = (host.entry("live"), host.entry("stale"), host.make_dir("jail"));
    let (mut sandbox, point) = host.sandbox_with(&entry);
    let relative = point.strip_prefix(host.directory()).or_fail("a relative path").to_owned();
    sandbox.ask(&Request::ChangeDir(host.directory().into()));
    sandbox.ask(&Request::ChangeRoot(jail.into()));
    if mode == Mode::Fallback {
        // Read from the jail alone, the namespace is not known: the answer may be weak, never wrong.
        assert_ne!(subject.query(&entry).verdict, "free");
    } else {
        subject.expect_pinned(&entry);
    }
    subject.sweep();
    assert!(entry.is_dir());
    sandbox.still_works(&relative, &entry);
    sandbox.kill();
    subject.sweep_until_gone(&[&entry, &stale], NOTHING);
}

fn bind_inside_in_the_own_namespace(host: &Host, mode: Mode) {
    let subject = trees(host, mode);
    let file = host.make_file("home/precious", "text");
    let entry = host.entry("live");
    let stale = host.make_file("root/stale/inside/file", "").ancestors().nth(2).or_fail("the entry").to_owned();
    let inside = host.make_dir("root/live/inside");
    host.bind(&host.path("home"), &inside);
    subject.expect_pinned(&entry);
    let who = subject.who(&entry);
    assert!(who.pins.iter().any(|pin| pin.role == "target" && pin.place == "below"), "{who:?}");
    subject.sweep_until_gone(&[&stale], &[&file, &inside.join("precious")]);
    host.unmount(&inside);
    subject.sweep_until_gone(&[&entry], &[&file]);
}

fn bind_inside_in_another_namespace(host: &Host, mode: Mode) {
    let subject = trees(host, mode);
    let file = host.make_file("home/precious", "text");
    let entry = host.entry("live");
    let stale = host.make_file("root/stale/inside/file", "").ancestors().nth(2).or_fail("the entry").to_owned();
    let inside = host.make_dir("root/live/inside");
    let beside = host.make_file("root/live/beside", "");
    let mut sandbox = host.sandbox();
    sandbox.bind(host.path("home"), &inside);
    subject.expect_pinned(&entry);
    subject.sweep_until_gone(&[&stale], &[&file, &beside, &inside]);
    assert_eq!(sandbox.ask(&Request::Read(inside.join("precious").into())), "text");
    sandbox.kill();
    subject.sweep_until_gone(&[&entry], &[&file]);
}

fn swapped_for_a_link(host: &Host, mode: Mode) {
    let subject = trees(host, mode);
    let outside: Vec<_> = (0..200).map(|index| host.make_file(format!("outside/{index}"), "precious")).collect();
    let deep = host.make_file("outside/deep/er/file", "precious");
    let make = |round: usize| {
        for index in 0..25 {
            for file in 0..30 {
                host.make_file(format!("root/{round}-{index}/sub/{file}"), "");
            }
            let link = host.root().join(format!("{round}-{index}/link"));
            symlink(host.path("outside"), link).or_fail("make a link");
        }
    };
    make(0);
    let swaps = Background::swap_loop(&host.root());
    let deadline = Instant::now() + Duration::from_secs(4);
    let mut round = 0;
    let mut removed = 0;
    while Instant::now() < deadline {
        removed += subject.sweep().removed;
        round += 1;
        make(round);
    }
    let counts = swaps.stop();
    assert!(counts.rounds > 100, "the loop swapped too rarely to mean anything: {counts:?}");
    assert!(removed > 0, "no entry went, so nothing was descended into");
    for file in outside.iter().chain([&deep]) {
        assert_eq!(fs::read_to_string(file).or_fail(format_args!("read {}", file.display())), "precious");
    }
    wait_until("the entries to go", Duration::from_secs(40), || {
        subject.sweep();
        host.names().is_empty().then_some(())
    });
    assert!(deep.is_file());
}

fn same_name_on_another_file_system(host: &Host, mode: Mode) {
    let second = host.make_tmpfs("second");
    let config = ConfigFile::write(host, [Root::of(host), Root::at("second", &second)]);
    let subject = Subject::start_with(host, mode, &config);
    let (here, there) = (host.entry("same"), second.join("same"));
    fs::create_dir(&there).or_fail("make an entry");
    let (mut sandbox, point) = host.sandbox_with(&there);
    subject.expect_pinned(&there);
    subject.expect_free(&here);
    wait_until("the free one to go", Duration::from_secs(40), || {
        let passes = subject.reclaim().sweep();
        assert_eq!(passes.len(), 2, "{passes:?}");
        assert!(there.is_dir(), "{passes:?}");
        (!here.exists()).then_some(())
    });
    sandbox.still_works(&point, &there);
}

fn deleted_source_made_again(host: &Host, mode: Mode) {
    let subject = Subject::start(host, mode);
    let entry = host.entry("again");
    let (sandbox, _point) = host.sandbox_with(&entry);
    subject.expect_pinned(&entry);
    fs::remove_dir(&entry).or_fail("delete a live source");
    host.entry("again");
    subject.expect_free(&entry);
    subject.sweep_until_gone(&[&entry], NOTHING);
    drop(sandbox);
}

fn prefix_of_a_pinned_name(host: &Host, mode: Mode) {
    let subject = Subject::start(host, mode);
    let pinned = [host.entry("ab"), host.entry("x")];
    let stale = [host.entry("a"), host.entry("abc"), host.entry("xy")];
    let (mut first, first_point) = host.sandbox_with(&pinned[0]);
    let (mut second, second_point) = host.sandbox_with(&pinned[1]);
    subject.sweep_until_gone(&stale, &pinned);
    first.still_works(&first_point, &pinned[0]);
    second.still_works(&second_point, &pinned[1]);
}

fn bind_of_a_child_deep_inside(host: &Host, mode: Mode) {
    let subject = trees(host, mode);
    let file = host.make_file("root/live/very/deep/file", "text");
    let beside = host.make_file("root/live/beside", "");
    let (entry, deep) = (host.root().join("live"), host.root().join("live/very/deep"));
    let stale = host.entry("stale");
    let (mut sandbox, point) = host.sandbox_with(&deep);
    subject.expect_pinned(&entry);
    let who = subject.who(&entry);
    assert!(who.pins.iter().any(|pin| pin.role == "source" && pin.place == "below"), "{who:?}");
    let exact = subject.who(&deep);
    assert!(exact.pins.iter().any(|pin| pin.place == "exact"), "{exact:?}");
    subject.sweep_until_gone(&[&stale], &[&file, &beside]);
    sandbox.still_works(&point, &deep);
    sandbox.kill();
    subject.sweep_until_gone(&[&entry], NOTHING);
}

fn renamed_while_bound(host: &Host, mode: Mode) {
    let subject = Subject::start(host, mode);
    let (before, after) = (host.entry("before"), host.root().join("after"));
    let stale = host.entry("stale");
    let (mut sandbox, point) = host.sandbox_with(&before);
    subject.expect_pinned(&before);
    fs::rename(&before, &after).or_fail("rename a live source");
    // No mount call tells of that.
    subject.expect_pinned(&after);
    subject.sweep_until_gone(&[&stale], &[&after]);
    subject.expect_pinned(&after);
    sandbox.still_works(&point, &after);
    // The old name is nobody's now.
    host.entry("before");
    subject.sweep_until_gone(&[&before], &[&after]);
    sandbox.still_works(&point, &after);
    sandbox.kill();
    subject.sweep_until_gone(&[&after], NOTHING);
}

fn bound_twice(host: &Host, mode: Mode) {
    let subject = Subject::start(host, mode);
    let (entry, stale) = (host.entry("live"), host.entry("stale"));
    let (first, _) = host.sandbox_with(&entry);
    let (mut second, point) = host.sandbox_with(&entry);
    let namespaces = [first.namespace(), second.namespace()];
    let who = subject.who(&entry);
    for namespace in namespaces {
        assert!(who.pins.iter().any(|pin| pin.namespace == Some(namespace)), "{namespace} in {who:?}");
    }
    first.kill();
    subject.expect_pinned(&entry);
    subject.sweep_until_gone(&[&stale], &[&entry]);
    second.still_works(&point, &entry);
    second.kill();
    subject.sweep_until_gone(&[&entry], NOTHING);
}

/// Two sandboxes whose mounts of one directory are peers; the directory has one mount point in it.
fn peers(host: &Host) -> (Actor, Actor, std::path::PathBuf) {
    let point = host.make_dir("shared/point");
    let parent = host.path("shared");
    let mut first = host.sandbox();
    first.bind(&parent, &parent);
    first.ask(&Request::MakeShared(parent.into()));
    let mut second = Actor::start();
    second.ask(&Request::Join(first.pid()));
    second.ask(&Request::UnshareSharing);
    (first, second, point)
}

fn propagated_to_peers(host: &Host, mode: Mode) {
    let (mut first, mut second, point) = peers(host);
    let (_first_point, slave_point) = (point.clone(), point.clone());
    let mut slave = Actor::start();
    slave.ask(&Request::Join(first.pid()));
    slave.ask(&Request::UnshareSharing);
    slave.ask(&Request::MakeSlave(host.path("shared").into()));
    let subject = Subject::start(host, mode);
    let (entry, stale) = (host.entry("live"), host.entry("stale"));
    first.bind(&entry, &point);
    let who = subject.who(&entry);
    for namespace in [first.namespace(), second.namespace(), slave.namespace()] {
        assert!(who.pins.iter().any(|pin| pin.namespace == Some(namespace)), "{namespace} in {who:?}");
    }
    first.still_works(&point, &entry);
    first.kill();
    subject.expect_pinned(&entry);
    subject.sweep_until_gone(&[&stale], &[&entry]);
    second.still_works(&point, &entry);
    second.kill();
    subject.expect_pinned(&entry);
    slave.still_works(&slave_point, &entry);
    slave.kill();
    subject.sweep_until_gone(&[&entry], NOTHING);
}

fn propagated_away_again(host: &Host, mode: Mode) {
    let (mut first, second, point) = peers(host);
    let subject = Subject::start(host, mode);
    let entry = host.entry("live");
    first.bind(&entry, &point);
    assert_eq!(subject.who(&entry).pins.len(), 2);
    first.unmount(&point);
    subject.expect_free(&entry);
    subject.sweep_until_gone(&[&entry], NOTHING);
    drop(second);
}
