//! References on the running kernel. Needs root.

use super::*;
use crate::evidence::source::Own;
use crate::model::pin::Place;
use crate::model::reference::ReferenceKind;
use nix::fcntl::{OFlag, open};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::Mode;
use nix::unistd::fchdir;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

#[path = "seal_tests.rs"]
mod seal;

/// Where the entries are, as the pin set calls it.
const STORE: &str = ".reclaim/batch";

/// A tmpfs in a mount namespace of this thread's own, with entries in the place of a batch.
struct Scene {
    place: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        unshare(CloneFlags::CLONE_NEWNS).expect("this test needs root: cargo xtask test");
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SLAVE, None::<&str>).unwrap();
        let place = tempfile::tempdir().unwrap();
        mount(Some("tmpfs"), place.path(), Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
        let scene = Self { place };
        for name in ["a", "b/below/deep"] {
            fs::create_dir_all(scene.entry(name)).unwrap();
        }
        fs::write(scene.entry("b/below/file"), "text").unwrap();
        scene
    }

    fn entry(&self, name: &str) -> PathBuf {
        self.place.path().join(STORE).join(name)
    }

    /// References of a process as both means see them, which have to agree.
    fn references(&self, process: u32) -> Vec<(&'static str, ReferenceKind, Place)> {
        let by_iterators = self.by(process, |condemned| Iterators::load().unwrap().look(condemned).unwrap());
        assert_eq!(
            by_iterators,
            self.by(process, |condemned| procfs::look_for(condemned, &[])),
            "iterators (left) and procfs differ"
        );
        by_iterators
    }

    fn by(
        &self,
        process: u32,
        mut look: impl FnMut(&[CondemnedIn<'_>]) -> Found,
    ) -> Vec<(&'static str, ReferenceKind, Place)> {
        let directory = path_only(&self.place.path().join(STORE));
        let found = look(&[CondemnedIn {
            directory: directory.as_fd(),
            path: STORE.into(),
            held: Own::Nothing,
            unlike: BTreeMap::new(),
            seal: None,
        }]);
        let mut seen = Vec::new();
        for name in ["a", "b"] {
            let key = format!("{STORE}/{name}");
            let of = found.references.of(key.as_bytes()).iter();
            seen.extend(
                of.filter(|reference| reference.process == Some(process))
                    .map(|reference| (name, reference.kind, reference.place)),
            );
        }
        seen.sort();
        seen.dedup();
        seen
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = umount2(self.place.path(), MntFlags::MNT_DETACH);
    }
}

fn path_only(path: &Path) -> OwnedFd {
    open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty()).unwrap()
}

/// A process that has what a script in Python set up, until it is dropped.
struct Helper(Child);

impl Helper {
    fn new(scene: &Scene, script: &str) -> Self {
        let script = format!(
            "import os, sys, threading, socket, array, ctypes\n{script}\nprint('ready', flush=True)\nsys.stdin.read()"
        );
        let mut child = Command::new("python3")
            .args(["-c", &script])
            .env("STORE", scene.place.path().join(STORE))
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut told = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut told).unwrap();
        assert_eq!(told, "ready\n");
        Self(child)
    }

    fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a test on a thread that ends with it, since it moves to a mount namespace.
fn in_scene(test: impl FnOnce(&Scene) + Send) {
    std::thread::scope(|scope| {
        scope.spawn(|| test(&Scene::new()));
    });
}

use Place::{Below, Exact};
use ReferenceKind::{Descriptor, Executable, Root, WorkingDirectory};

fn expect(script: &str, expected: &[(&'static str, ReferenceKind, Place)]) {
    in_scene(|scene| {
        let helper = Helper::new(scene, script);
        assert_eq!(scene.references(helper.id()), expected, "{script}");
        drop(helper);
    });
}

#[test]
fn host_descriptors_at_and_below_an_entry_are_found() {
    expect("d = os.open(os.environ['STORE'] + '/a', os.O_PATH)", &[("a", Descriptor, Exact)]);
    expect("d = os.open(os.environ['STORE'] + '/a', os.O_RDONLY)", &[("a", Descriptor, Exact)]);
    expect("d = os.open(os.environ['STORE'] + '/b/below/deep', os.O_PATH)", &[("b", Descriptor, Below)]);
    expect("d = os.open(os.environ['STORE'] + '/b/below/file', os.O_RDONLY)", &[("b", Descriptor, Below)]);
    expect("d = os.open(os.environ['STORE'], os.O_PATH)", &[]);
}

#[test]
fn host_working_directories_and_roots_are_found() {
    expect("os.chdir(os.environ['STORE'] + '/a')", &[("a", WorkingDirectory, Exact)]);
    expect("os.chdir(os.environ['STORE'] + '/b/below')", &[("b", WorkingDirectory, Below)]);
    expect(
        "os.chroot(os.environ['STORE'] + '/b'); os.chdir('/')",
        &[("b", WorkingDirectory, Exact), ("b", Root, Exact)],
    );
}

/// CLONE_FS is 0x200, CLONE_FILES 0x400.
#[test]
fn host_a_thread_with_directories_or_files_of_its_own_is_found() {
    let thread = |act: &str| {
        format!(
            "done = threading.Event()\ndef run():\n  ctypes.CDLL(None).unshare(0x600)\n  {act}\n  done.set()\n  \
             threading.Event().wait()\nthreading.Thread(target=run, daemon=True).start()\ndone.wait()"
        )
    };
    expect(&thread("os.chdir(os.environ['STORE'] + '/a')"), &[("a", WorkingDirectory, Exact)]);
    expect(&thread("os.open(os.environ['STORE'] + '/b/below', os.O_PATH)"), &[("b", Descriptor, Below)]);
}

#[test]
fn host_a_program_that_runs_is_found() {
    in_scene(|scene| {
        let program = scene.entry("b/sleep");
        // Not copied here: a child that another thread just makes would have it open to write, and nothing starts that.
        assert!(Command::new("cp").arg("/bin/sleep").arg(&program).status().unwrap().success());
        let child = Command::new(&program).arg("600").current_dir("/").spawn().unwrap();
        let helper = Helper(child);
        assert_eq!(scene.references(helper.id()), [("b", Executable, Below)]);
    });
}

/// The limit that is documented: what no task has open is not seen.
#[test]
fn host_a_descriptor_in_flight_is_not_seen_and_one_that_arrived_is() {
    let send = "a, b = socket.socketpair(socket.AF_UNIX)\nd = os.open(os.environ['STORE'] + '/a', os.O_PATH)\n\
                a.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [d]))])\nos.close(d)\n";
    expect(send, &[]);
    in_scene(|scene| {
        let helper = Helper::new(scene, send);
        assert_eq!(counted(scene, &mut Iterators::load().unwrap()).1, ["a"], "the count sees it");
        drop(helper);
    });
    expect(&format!("{send}b.recvmsg(1, 100)"), &[("a", Descriptor, Exact)]);
}

#[test]
fn host_equal_inode_numbers_elsewhere_do_not_matter() {
    in_scene(|scene| {
        let other = Scene::new();
        assert_eq!(fs::metadata(scene.entry("a")).unwrap().ino(), fs::metadata(other.entry("a")).unwrap().ino());
        let helper = Helper::new(&other, "os.chdir(os.environ['STORE'] + '/a')");
        assert_eq!(scene.references(helper.id()), []);
        assert_eq!(other.references(helper.id()), [("a", WorkingDirectory, Exact)]);
    });
}

#[test]
fn host_the_own_process_does_not_count_and_what_went_is_gone() {
    in_scene(|scene| {
        let own = path_only(&scene.entry("a"));
        assert_eq!(scene.references(std::process::id()), []);
        let helper = Helper::new(scene, "os.chdir(os.environ['STORE'] + '/a')");
        let process = helper.id();
        assert!(!scene.references(process).is_empty());
        drop((helper, own));
        assert_eq!(scene.references(process), []);
    });
}

#[test]
fn host_an_own_thread_counts_where_the_own_process_is_not_left_out() {
    in_scene(|scene| {
        let mut iterators = Iterators::load().unwrap();
        let (end, ended) = mpsc::channel::<()>();
        let (ready, wait) = mpsc::channel();
        let entry = path_only(&scene.entry("b/below"));
        std::thread::scope(|scope| {
            scope.spawn(move || {
                unshare(CloneFlags::CLONE_FS).unwrap();
                fchdir(&entry).unwrap();
                ready.send(()).unwrap();
                let _ = ended.recv();
            });
            wait.recv().unwrap();
            let directory = path_only(&scene.place.path().join(STORE));
            let records = iterators.records(&[directory.as_fd()], false).unwrap();
            let seen = |kind| records.iter().filter(|record| record.kind == kind && record.place == Below).count();
            assert_eq!((seen(WorkingDirectory), seen(Descriptor)), (1, 1));
            assert_eq!(iterators.records(&[directory.as_fd()], true).unwrap(), []);
            drop(end);
        });
    });
}

/// More than there is room for at first, so that more has to be made.
#[test]
fn host_a_long_answer_is_whole() {
    in_scene(|scene| {
        let script = "d = [os.open(os.environ['STORE'] + '/' + 'ab'[i % 2], os.O_PATH) for i in range(900)]";
        let helper = Helper::new(scene, script);
        let directory = path_only(&scene.place.path().join(STORE));
        let mut iterators = Iterators::with(16).unwrap();
        let records = iterators.records(&[directory.as_fd()], true).unwrap();
        assert_eq!(records.iter().filter(|record| record.process == helper.id()).count(), 900);
    });
}

/// Hard links share an inode, and subvolumes an inode number: each entry is told of by itself.
#[test]
fn host_entries_with_one_inode_number_are_told_apart() {
    for order in [["first", "second"], ["second", "first"]] {
        in_scene(|scene| {
            fs::write(scene.entry(order[0]), "").unwrap();
            fs::hard_link(scene.entry(order[0]), scene.entry(order[1])).unwrap();
            let mut iterators = Iterators::load().unwrap();
            let _held = ["first", "second"].map(|name| path_only(&scene.entry(name)));
            let directory = path_only(&scene.place.path().join(STORE));
            let records = iterators.records(&[directory.as_fd()], false).unwrap();
            let exact = records.iter().filter(|record| record.kind == Descriptor && record.place == Exact);
            let mut names: Vec<_> = exact.map(|record| record.name.clone()).collect();
            names.sort();
            assert_eq!(names, [b"first".to_vec(), b"second".to_vec()], "{order:?}");
            let (_, referred) = counted(scene, &mut iterators);
            assert_eq!(referred, ["first", "second"], "{order:?}");
        });
    }
}

/// What the count says of the entries: in doubt, and referred to.
fn counted(scene: &Scene, iterators: &mut Iterators) -> (Vec<String>, Vec<String>) {
    counted_by_holder(scene, iterators, false, &[])
}

/// The same for somebody who holds each entry, or none, but for those that are named.
fn counted_by_holder(
    scene: &Scene,
    iterators: &mut Iterators,
    held: bool,
    unlike: &[&str],
) -> (Vec<String>, Vec<String>) {
    let directory = path_only(&scene.place.path().join(STORE));
    let (held, other) = if held { (Own::Directory, Own::Nothing) } else { (Own::Nothing, Own::Directory) };
    let unlike = unlike.iter().map(|name| (name.as_bytes().to_vec(), other)).collect();
    let condemned = CondemnedIn { directory: directory.as_fd(), path: STORE.into(), held, unlike, seal: None };
    let count::Counted { referred, unsettled, .. } =
        count::count(iterators, &condemned, &mut count::Tried::default()).unwrap();
    let text = |names: Vec<Vec<u8>>| {
        let mut names: Vec<_> = names.into_iter().map(|name| String::from_utf8(name).unwrap()).collect();
        names.sort();
        names
    };
    (text(unsettled), text(referred))
}

#[test]
fn host_the_count_tells_of_every_reference_whoever_has_it() {
    in_scene(|scene| {
        let mut iterators = Iterators::load().unwrap();
        let in_doubt = vec!["b".to_owned()];
        let mut expect = |referred: &[&str], what: &str| {
            let referred = referred.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
            assert_eq!(counted(scene, &mut iterators), (in_doubt.clone(), referred), "{what}");
        };
        expect(&[], "nobody");
        let own = path_only(&scene.entry("a"));
        expect(&["a"], "a descriptor");
        drop(own);
        expect(&[], "nobody again");
        let target = scene.place.path().join("target");
        fs::create_dir(&target).unwrap();
        mount(Some(&scene.entry("a")), &target, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
        expect(&["a"], "a mount");
        let inside = fs::File::create(target.join("file")).unwrap();
        fs::remove_file(target.join("file")).unwrap();
        umount2(&target, MntFlags::MNT_DETACH).unwrap();
        // Its file has no name any more, but is in it all the same: the looks have to tell.
        assert_eq!(counted(scene, &mut iterators), (vec!["a".to_owned(), "b".to_owned()], vec![]));
        drop(inside);
        assert_eq!(counted(scene, &mut iterators), (vec!["b".to_owned()], vec![]));
    });
}

/// On file systems that keep no name in memory, as on a union of directories that nobody has looked into.
#[test]
fn host_an_entry_that_the_kernel_has_not_looked_up_is_not_taken_for_one_without_references() {
    in_scene(|scene| {
        let at = |below: &str| scene.place.path().join(below);
        let [lower, merged] = ["lower", "merged"].map(at);
        for entry in ["lower/.reclaim/batch/a", "lower/.reclaim/batch/b", "upper", "work", "merged"] {
            fs::create_dir_all(at(entry)).unwrap();
        }
        let options =
            format!("lowerdir={},upperdir={},workdir={}", lower.display(), at("upper").display(), at("work").display());
        mount(Some("overlay"), &merged, Some("overlay"), MsFlags::empty(), Some(options.as_str())).unwrap();
        let mut iterators = Iterators::load().unwrap();
        let batch = merged.join(STORE);
        let mut unsettled = || {
            let directory = path_only(&batch);
            let unlike = BTreeMap::new();
            let condemned = CondemnedIn {
                directory: directory.as_fd(),
                path: STORE.into(),
                held: Own::Nothing,
                unlike,
                seal: None,
            };
            let counted = count::count(&mut iterators, &condemned, &mut count::Tried::default()).unwrap();
            assert!(counted.referred.is_empty(), "{counted:?}");
            counted.unsettled.len()
        };
        assert_eq!(unsettled(), 2, "neither was looked up");
        fs::metadata(batch.join("a")).unwrap();
        assert_eq!(unsettled(), 2, "one was not");
        fs::metadata(batch.join("b")).unwrap();
        assert_eq!(unsettled(), 0, "both have a number");
    });
}

#[test]
fn host_a_descriptor_of_the_callers_own_is_told_from_those_of_others() {
    in_scene(|scene| {
        let mut iterators = Iterators::load().unwrap();
        // `b` holds something, so it is in doubt whoever holds it.
        let mut expect = |held: bool, unlike: &[&str], in_doubt: &[&str], referred: &[&str], what: &str| {
            let told = counted_by_holder(scene, &mut iterators, held, unlike);
            let text = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
            assert_eq!(told, (text(in_doubt), text(referred)), "{what}");
        };
        expect(true, &["b"], &["b"], &["a"], "it is said to be held and is not");
        let own = fs::File::open(scene.entry("a")).unwrap();
        expect(true, &["b"], &["b"], &[], "held");
        expect(false, &["a"], &["b"], &[], "the only one that is held");
        expect(true, &["a", "b"], &["b"], &["a"], "it is said not to be held, unlike the rest");
        let other = path_only(&scene.entry("a"));
        expect(true, &["b"], &["b"], &["a"], "held, and somebody has another");
        expect(false, &["a"], &["b"], &["a"], "the only one that is held, and somebody has another");
        drop((own, other));
        expect(false, &["a"], &["b"], &["a"], "the only one that is said to be held, and is not");
    });
}

/// Nothing that is looked at is taken, so that what was closed a moment ago can be unmounted.
#[test]
fn host_a_look_makes_no_mount_of_others_busy() {
    in_scene(|scene| {
        // A child that another test forks has what is open in the process for a moment: here nothing is.
        unshare(CloneFlags::CLONE_FILES).unwrap();
        let mut iterators = Iterators::load().unwrap();
        let directory = path_only(&scene.place.path().join(STORE));
        let target = scene.place.path().join("target");
        fs::create_dir(&target).unwrap();
        let (done, looks) = (AtomicBool::new(false), AtomicU32::new(0));
        let busy = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    iterators.records(&[directory.as_fd()], false).unwrap();
                    looks.fetch_add(1, Ordering::Relaxed);
                }
            });
            let begun = Instant::now();
            let busy = (0..20_000)
                // Emulated processors take their time.
                .take_while(|_| begun.elapsed() < Duration::from_secs(15))
                .filter(|_| {
                    mount(Some(&scene.entry("a")), &target, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
                    drop(fs::File::create(target.join("file")).unwrap());
                    umount2(&target, MntFlags::empty())
                        .inspect_err(|_| umount2(&target, MntFlags::MNT_DETACH).unwrap())
                        .is_err()
                })
                .count();
            done.store(true, Ordering::Relaxed);
            busy
        });
        let looks = looks.into_inner();
        assert!(looks > 20, "{looks} looks met hardly a mount");
        assert_eq!(busy, 0, "mounts were busy for one of {looks} looks");
    });
}

#[test]
#[ignore = "measures"]
fn host_speed() {
    in_scene(|scene| {
        let started = Instant::now();
        let mut iterators = Iterators::load().unwrap();
        println!("loading: {:?}", started.elapsed());
        let started = Instant::now();
        (0..100).for_each(|_| drop(scene.by(1, |condemned| iterators.look(condemned).unwrap())));
        println!("a look by iterators: {:?}", started.elapsed() / 100);
        let started = Instant::now();
        scene.by(1, |condemned| procfs::look_for(condemned, &[]));
        println!("a look by procfs: {:?}", started.elapsed());
    });
}
