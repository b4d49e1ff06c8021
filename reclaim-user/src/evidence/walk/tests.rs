//! The walk on the running kernel. Needs root.

use super::*;
use crate::sys::mount_tree::clone_tree;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Runs a test in a mount namespace of its own, with a tmpfs as its root directory.
fn with_tmpfs(test: impl FnOnce(&Path) + Send) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNS).expect("this test needs root: cargo xtask test");
            mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SLAVE, None::<&str>).unwrap();
            let scratch = tempfile::tempdir().unwrap();
            mount(Some("tmpfs"), scratch.path(), Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
            test(scratch.path());
            umount2(scratch.path(), MntFlags::MNT_DETACH).unwrap();
        });
    });
}

fn bind(source: &Path, target: &Path) {
    mount(Some(source), target, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
}

fn directory(path: &Path) -> &Path {
    fs::create_dir_all(path).unwrap();
    path
}

fn all_of(number: u64, directory: &File) -> Base<'_> {
    Base { number, directory: directory.as_fd(), only: None }
}

fn entries(walker: &mut Walker, root: &Path) -> Vec<(Vec<u8>, Role, State, Place)> {
    let base = fs::metadata(root).unwrap().ino();
    let opened = File::open(root).unwrap();
    let walked = walker.walk(&opened, &[all_of(base, &opened)]).unwrap();
    let mut found: Vec<_> = walked
        .pins
        .into_iter()
        .map(|pin| {
            assert_eq!(pin.base, base);
            (pin.name, pin.role, pin.state, pin.place)
        })
        .collect();
    found.sort();
    found
}

#[test]
fn host_walk_sees_what_mount_tables_show_and_what_they_do_not() {
    with_tmpfs(|top| {
        let root = directory(&top.join("root")).to_owned();
        let target = directory(&top.join("target")).to_owned();
        for name in ["free", "source", "deep/er", "target", "detached", "busy", "gone", "gone-2"] {
            directory(&root.join(name));
        }
        let mut walker = Walker::load().unwrap();
        assert_eq!(entries(&mut walker, &root), []);
        bind(&root.join("source"), &target);
        bind(&root.join("deep/er"), directory(&top.join("target-2")));
        bind(&target, &root.join("target"));
        let detached = clone_tree(File::open(root.join("detached")).unwrap()).unwrap();
        let lazily = directory(&top.join("target-3")).to_owned();
        bind(&root.join("busy"), &lazily);
        let busy = File::open(&lazily).unwrap();
        umount2(&lazily, MntFlags::MNT_DETACH).unwrap();
        bind(&root.join("gone"), directory(&top.join("target-4")));
        fs::remove_dir(root.join("gone")).unwrap();
        directory(&root.join("gone"));
        let (attached, exact) = (State::Attached, Place::Exact);
        let expected = [
            (b"busy".to_vec(), Role::Source, State::Unmounted, exact),
            (b"deep".to_vec(), Role::Source, attached, Place::Below),
            (b"detached".to_vec(), Role::Source, State::Detached, exact),
            (b"source".to_vec(), Role::Source, attached, exact),
            (b"source".to_vec(), Role::Source, attached, exact),
            (b"target".to_vec(), Role::Target, attached, exact),
        ];
        assert_eq!(entries(&mut walker, &root), expected);
        drop((detached, busy));
        umount2(&target, MntFlags::empty()).unwrap();
        umount2(&root.join("target"), MntFlags::empty()).unwrap();
        assert_eq!(entries(&mut walker, &root), [(b"deep".to_vec(), Role::Source, attached, Place::Below)]);
    });
}

#[test]
fn host_walk_with_too_little_room_makes_more_and_never_answers_short() {
    with_tmpfs(|top| {
        let root = directory(&top.join("root")).to_owned();
        let target = directory(&top.join("target")).to_owned();
        for number in 0..40 {
            bind(directory(&root.join(number.to_string())), &target);
        }
        let layout = layouts::of_running_kernel().unwrap().walk.clone().unwrap();
        let mut walker = Walker::with(layout, 2).unwrap();
        let sources = entries(&mut walker, &root).into_iter().filter(|(_, role, ..)| *role == Role::Source);
        assert_eq!(sources.count(), 40);
    });
}

#[test]
fn host_walk_sees_overlay_layers_by_themselves() {
    with_tmpfs(|top| {
        let root = directory(&top.join("root")).to_owned();
        for name in ["lower", "upper/u", "upper/w"] {
            directory(&root.join(name));
        }
        let options = format!("lowerdir={0}/lower,upperdir={0}/upper/u,workdir={0}/upper/w", root.display());
        let merged = directory(&top.join("merged")).to_owned();
        mount(Some("overlay"), &merged, Some("overlay"), MsFlags::empty(), Some(options.as_str())).unwrap();
        let mut walker = Walker::load().unwrap();
        let found = entries(&mut walker, &root);
        assert!(found.contains(&(b"lower".to_vec(), Role::Layer, State::Attached, Place::Exact)), "{found:?}");
        assert!(found.contains(&(b"upper".to_vec(), Role::Layer, State::Attached, Place::Below)), "{found:?}");
        umount2(&merged, MntFlags::empty()).unwrap();
        assert_eq!(entries(&mut walker, &root), []);
    });
}

#[test]
fn host_walk_of_nothing_open_says_so() {
    let mut walker = Walker::load().unwrap();
    walker.state.store(2, 1);
    let mut options = RawTracePointRunOptions::new();
    options.args[0] = 1 << 20;
    program(&mut walker.programs).unwrap().test_run(options).unwrap();
    assert_eq!(low(walker.state.load(3)), WALK_NO_FILE);
}

/// As in another subvolume: a directory on the way up that only has the number of one that is looked for.
#[test]
fn host_walk_goes_by_the_directory_and_not_by_its_number() {
    with_tmpfs(|top| {
        let root = directory(&top.join("root")).to_owned();
        let inner = directory(&root.join("entry/inner")).to_owned();
        directory(&inner.join("source"));
        let _held = clone_tree(File::open(inner.join("source")).unwrap()).unwrap();
        let mut walker = Walker::load().unwrap();
        let (base, number) = (fs::metadata(&root).unwrap().ino(), fs::metadata(&inner).unwrap().ino());
        let opened = File::open(&root).unwrap();
        let walked = walker.walk(&opened, &[all_of(base, &opened), all_of(number, &opened)]).unwrap();
        let found: Vec<_> = walked.pins.iter().map(|pin| (pin.base, &*pin.name, pin.place)).collect();
        assert_eq!(found, [(base, &b"entry"[..], Place::Below)]);
    });
}

#[test]
fn one_entry_is_told_without_its_neighbours() {
    with_tmpfs(|top| {
        let root = directory(&top.join("root")).to_owned();
        let names = ["one", "two", "three"];
        let _held =
            names.map(|name| clone_tree(File::open(directory(&root.join(name).join("inner"))).unwrap()).unwrap());
        let opened = File::open(&root).unwrap();
        let base = fs::metadata(&root).unwrap().ino();
        let mut walker = Walker::load().unwrap();
        let two = File::open(root.join("two")).unwrap();
        let mut told = |only: Option<BorrowedFd<'_>>| {
            let walked = walker.walk(&opened, &[Base { only, ..all_of(base, &opened) }]).unwrap();
            let mut names: Vec<_> = walked.pins.into_iter().map(|pin| String::from_utf8(pin.name).unwrap()).collect();
            names.sort();
            names
        };
        assert_eq!(told(Some(two.as_fd())), ["two"]);
        assert_eq!(told(None), ["one", "three", "two"]);
    });
}

/// What is remembered of one place never speaks for another one.
#[test]
fn host_walk_tells_places_that_lie_side_by_side() {
    with_tmpfs(|top| {
        let inner = directory(&top.join("a/b")).to_owned();
        // In this order they come one after the other in the kernel's list, or from the last to the first.
        for (number, place) in
            ["", "a/x", "a/b/e", "a/y", "a/b", "plain", "a/b/f/g", "a", "a/b/e", ""].iter().enumerate()
        {
            bind(directory(&top.join(place)), directory(&top.join(format!("targets/{number}"))));
        }
        let mut walker = Walker::load().unwrap();
        let mut sources = |bases: &[&Path]| {
            let opened: Vec<File> = bases.iter().map(|base| File::open(base).unwrap()).collect();
            let bases: Vec<_> = opened.iter().map(|base| all_of(base.metadata().unwrap().ino(), base)).collect();
            let walked = walker.walk(&opened[0], &bases).unwrap();
            let number = |pin: &WalkPin| bases.iter().position(|base| base.number == pin.base).unwrap();
            let sources = walked.pins.iter().filter(|pin| pin.role == Role::Source);
            let mut found: Vec<_> =
                sources.map(|pin| (number(pin), String::from_utf8(pin.name.clone()).unwrap(), pin.place)).collect();
            found.sort();
            found
        };
        let told = |found: &[(usize, &str, Place)]| -> Vec<_> {
            found.iter().map(|(base, name, place)| (*base, (*name).to_owned(), *place)).collect()
        };
        let (exact, below) = (Place::Exact, Place::Below);
        let of_inner = |base| [(base, "e", exact), (base, "e", exact), (base, "f", below)];
        assert_eq!(sources(&[&inner]), told(&of_inner(0)));
        let of_top = [(0, "a", exact), (0, "a", below), (0, "a", below), (0, "a", below), (0, "plain", exact)];
        assert_eq!(sources(&[top, &inner]), told(&[&of_top[..], &of_inner(1)].concat()));
        let all_of_top = [&of_top[..1], &[(0, "a", below); 6], &of_top[4..]].concat();
        assert_eq!(sources(&[top]), told(&all_of_top));
    });
}
