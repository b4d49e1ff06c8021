//! What the kernel does without reclaim: the facts that the cases rest on, and with them the sandboxes of the tests.

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use reclaim_tests::{Actor, Background, Crowd, Kept, OrFail as _, Request, Torture};
use reclaim_tests::{earned_skip, kernel_lists_namespaces, private_host, wait_until};
use std::fs;
use std::path::Path;
use std::time::Duration;

fn table_of(task: impl std::fmt::Display) -> std::io::Result<String> {
    fs::read_to_string(format!("/proc/{task}/mountinfo"))
}

fn shows(task: impl std::fmt::Display, path: &Path) -> bool {
    let name = path.file_name().or_fail("a name").to_string_lossy().into_owned();
    table_of(task).or_fail("read a mount table").contains(&format!("/{name} "))
}

/// Whether any task of this machine shows a mount of an entry.
fn any_task_shows(entry: &Path) -> bool {
    let name = entry.file_name().or_fail("a name").to_string_lossy().into_owned();
    let tasks = fs::read_dir("/proc").or_fail("list /proc");
    tasks
        .flatten()
        .filter_map(|task| task.file_name().to_str()?.parse::<i32>().ok())
        .filter_map(|pid| table_of(pid).ok())
        .any(|table| table.contains(&format!("/{name} ")))
}

fn remove_is_seen(sandbox: &mut Actor, point: &Path, entry: &Path) {
    sandbox.still_works(point, entry);
    fs::remove_dir(entry).or_fail("rmdir of a live source");
    let refusal = sandbox.works(point, entry).expect_err("a deleted source takes no files");
    assert!(refusal.contains("ENOENT") || refusal.contains("No such file"), "{refusal}");
}

#[test]
fn a_live_source_is_removed_without_a_word_and_the_sandbox_fails() {
    private_host(|host| {
        let entry = host.entry("live");
        let (mut sandbox, point) = host.sandbox_with(&entry);
        remove_is_seen(&mut sandbox, &point, &entry);
    });
}

#[test]
fn a_foreign_target_is_removed_without_a_word_and_detached() {
    private_host(|host| {
        let (entry, secret) = (host.entry("live-target"), host.make_file("elsewhere/secret", "kept").clone());
        let mut sandbox = host.sandbox();
        sandbox.bind(secret.parent().or_fail("a parent"), &entry);
        assert_eq!(sandbox.ask(&Request::Read(entry.join("secret").into())), "kept");
        assert!(shows(sandbox.pid(), &entry));
        fs::remove_dir(&entry).or_fail("rmdir of a foreign target");
        assert!(!shows(sandbox.pid(), &entry));
    });
}

#[test]
fn a_target_of_the_own_namespace_is_busy() {
    private_host(|host| {
        let entry = host.entry("own-target");
        let other = host.make_dir("elsewhere");
        host.bind(&other, &entry);
        let error = fs::remove_dir(&entry).expect_err("rmdir of an own target");
        assert_eq!(error.raw_os_error(), Some(Errno::EBUSY as i32));
        host.unmount(&entry);
    });
}

#[test]
fn a_namespace_outlives_its_launcher() {
    private_host(|host| {
        let entry = host.entry("handed-over");
        let (mut sandbox, point) = host.sandbox_with(&entry);
        let (first, namespace) = (sandbox.pid(), sandbox.namespace());
        sandbox.hand_over();
        assert!(!Path::new(&format!("/proc/{first}")).exists());
        assert_eq!(sandbox.namespace(), namespace);
        remove_is_seen(&mut sandbox, &point, &entry);
    });
}

#[test]
fn a_zombie_leader_answers_einval_and_its_thread_does_not() {
    private_host(|host| {
        let (entry, point) = (host.entry("of-a-thread"), host.mount_point());
        let mut sandbox = Actor::start();
        let own = sandbox.namespace();
        let thread = sandbox.leader_dies(&entry, &point);
        let pid = sandbox.pid();
        let error = table_of(pid).expect_err("the table of a zombie");
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput, "{error}");
        assert!(shows(format_args!("{pid}/task/{thread}"), &entry));
        assert_ne!(sandbox.namespace_of_thread(thread), own);
        remove_is_seen(&mut sandbox, &point, &entry);
    });
}

#[test]
fn a_namespace_kept_by_a_file_or_a_descriptor_shows_in_no_task() {
    private_host(|host| {
        let (by_file, by_descriptor) = (host.entry("kept-by-file"), host.entry("kept-by-descriptor"));
        let file = Kept::by_file(host, &by_file);
        let descriptor = Kept::by_descriptor(host, &by_descriptor);
        for entry in [&by_file, &by_descriptor] {
            wait_until("the tasks to end", Duration::from_secs(10), || (!any_task_shows(entry)).then_some(()));
        }
        file.still_works(&by_file);
        descriptor.still_works(&by_descriptor);
        file.release();
        descriptor.release();
    });
}

#[test]
fn a_chroot_hides_a_bind_from_the_table() {
    private_host(|host| {
        let (entry, jail) = (host.entry("hidden"), host.make_dir("jail"));
        let (mut sandbox, point) = host.sandbox_with(&entry);
        assert!(shows(sandbox.pid(), &entry));
        let relative = point.strip_prefix(host.directory()).or_fail("a relative path").to_owned();
        sandbox.ask(&Request::ChangeDir(host.directory().into()));
        sandbox.ask(&Request::ChangeRoot(jail.into()));
        assert!(!shows(sandbox.pid(), &entry));
        remove_is_seen(&mut sandbox, &relative, &entry);
    });
}

#[test]
fn renaming_a_live_source_or_a_foreign_target_is_harmless() {
    private_host(|host| {
        let (source, target) = (host.entry("source"), host.entry("target"));
        let (mut sandbox, point) = host.sandbox_with(&source);
        let elsewhere = host.make_file("elsewhere/file", "text");
        sandbox.bind(elsewhere.parent().or_fail("a parent"), &target);
        let (moved_source, moved_target) = (host.root().join("moved-source"), host.root().join("moved-target"));
        fs::rename(&source, &moved_source).or_fail("rename a source");
        fs::rename(&target, &moved_target).or_fail("rename a target");
        sandbox.still_works(&point, &moved_source);
        assert!(shows(sandbox.pid(), &moved_source) && shows(sandbox.pid(), &moved_target));
        assert_eq!(sandbox.ask(&Request::Read(moved_target.join("file").into())), "text");
    });
}

#[test]
fn an_overlay_shows_its_layers_in_options_only() {
    private_host(|host| {
        for name in ["one", "two", "upper", "work"] {
            host.entry(name);
        }
        let point = host.mount_point();
        let mut sandbox = host.sandbox();
        sandbox.ask(&Request::ChangeDir(host.root().into()));
        let options = b"lowerdir=one:two,upperdir=upper,workdir=work".to_vec();
        sandbox.ask(&Request::Overlay(point.clone().into(), options));
        let table = table_of(sandbox.pid()).or_fail("read a mount table");
        let line = table.lines().find(|line| line.contains(" - overlay ")).or_fail("the overlay");
        assert_eq!(line.split(' ').nth(3), Some("/"), "{line}");
        assert!(line.contains("lowerdir=one:two") && line.contains("upperdir=upper"), "{line}");
        sandbox.still_works(&point, host.root().join("upper"));
    });
}

#[test]
fn a_bind_in_a_shared_mount_shows_up_in_its_peers() {
    private_host(|host| {
        let (entry, shared) = (host.entry("shared-out"), host.make_dir("shared/point"));
        let parent = shared.parent().or_fail("a parent");
        let mut first = host.sandbox();
        first.bind(parent, parent);
        first.ask(&Request::MakeShared(parent.into()));
        let mut second = Actor::start();
        second.ask(&Request::Join(first.pid()));
        second.ask(&Request::UnshareSharing);
        first.bind(&entry, &shared);
        assert!(shows(second.pid(), &entry), "no call was made in the peer");
        second.still_works(&shared, &entry);
        first.kill();
        second.still_works(&shared, &entry);
    });
}

#[test]
fn a_lock_is_dropped_with_its_holder() {
    private_host(|host| {
        let entry = host.entry("locked");
        let mut holder = Actor::start();
        holder.ask(&Request::Lock(entry.clone().into()));
        let mut other = Actor::start();
        assert!(other.attempt(&Request::Lock(entry.clone().into())).is_err());
        holder.kill();
        other.ask(&Request::Lock(entry.into()));
    });
}

#[test]
fn the_loops_of_the_tests_come_to_their_rounds() {
    private_host(|host| {
        let (entry, point) = (host.entry("looped"), host.mount_point());
        let binds = Background::bind_loop(&entry, &point);
        let storm = Background::process_storm();
        let sandboxes = Background::sandbox_storm(&host.root(), &point, "looped", 0);
        let launches = Torture::start(host, 2);
        host.make_file("root/swapped/sub/file", "");
        std::os::unix::fs::symlink("/nowhere", host.root().join("swapped/link")).or_fail("make a link");
        let swaps = Background::swap_loop(&host.root());
        Background::bind_rounds(&entry, &point, 50).wait(Duration::from_secs(10)).expect_clean("fifty rounds");
        wait_until("launches", Duration::from_secs(10), || (host.names().len() > 20).then_some(()));
        binds.stop().expect_clean("bind and unmount");
        storm.stop().expect_clean("processes");
        let launched = launches.stop();
        assert!(launched.violations.is_empty() && launched.refused.is_empty(), "{launched}");
        swaps.stop().expect_clean("swaps");
        assert!(sandboxes.stop().failures == 0);
    });
}

#[test]
fn an_exchange_swaps_a_directory_and_a_link() {
    private_host(|host| {
        let directory = host.make_dir("root/swapped/sub");
        let link = host.root().join("swapped/link");
        std::os::unix::fs::symlink("/nowhere", &link).or_fail("make a link");
        renameat2(AT_FDCWD, &directory, AT_FDCWD, &link, RenameFlags::RENAME_EXCHANGE).or_fail("exchange");
        assert!(directory.is_symlink() && link.is_dir());
    });
}

#[test]
fn a_crowd_works_and_ends() {
    private_host(|host| {
        host.entries("member-", 30);
        let crowd = Crowd::start(&host.root(), &host.make_dir("points"), "member-", 10, 3);
        crowd.still_works();
        let pids: Vec<i32> = crowd.pids().collect();
        drop(crowd);
        assert!(pids.iter().all(|pid| !Path::new(&format!("/proc/{pid}")).exists()));
    });
}

#[test]
fn namespaces_can_be_listed_where_the_kernel_says_so() {
    earned_skip!(kernel_lists_namespaces(), "the kernel has no NS_MNT_GET_NEXT (before 6.12)");
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").or_fail("read the release");
    let mut numbers = release.split(|byte: char| !byte.is_ascii_digit()).map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    assert!(version >= (6, 11), "the probe says yes on {release}, which the call is newer than");
}
