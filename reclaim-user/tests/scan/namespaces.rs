//! Scans find every mount namespace and read it from its own root (cases 1 to 4, 13 and 16).

use super::support::{Scene, WAYS, claims, eventually, has, kernel_lists_namespaces, os, pins_on, scan};
use nix::sched::{CpuSet, sched_getcpu, sched_setaffinity};
use nix::unistd::Pid;
use reclaim_user::evidence::scan::{Reading, ScanOptions, Scanner};
use reclaim_user::model::coverage::GapCause;
use reclaim_user::model::id::NamespaceId;
use reclaim_user::model::pin::Role;
use std::fs::File;
use std::os::unix::fs::MetadataExt;

/// The kernel mounts the file of a namespace only in one with a lower id, and each processor has a stock of ids.
fn stay_on_one_processor() {
    let mut one = CpuSet::new();
    one.set(sched_getcpu().unwrap()).unwrap();
    sched_setaffinity(Pid::from_raw(0), &one).unwrap();
}

#[test]
fn a_bound_entry_is_pinned_until_its_sandbox_ends() {
    let scene = Scene::new();
    scene.entry("a");
    scene.entry("ab");
    scene.entry("b");
    let sandbox = scene.sandbox("mount --bind $1/a $2; mount -t tmpfs t $1/b", &[]);
    let namespace = sandbox.namespace();
    for way in WAYS {
        let found = scan(way);
        let pins = scene.pins(&found);
        assert!(has(&pins_on(&pins, "a"), Role::Source, namespace), "{way:?}");
        assert!(has(&pins_on(&pins, "b"), Role::Target, namespace), "{way:?}");
        assert!(pins_on(&pins, "ab").is_empty(), "{way:?}");
        assert!(pins.namespace(namespace).unwrap().tasks.contains(&sandbox.pid()), "{way:?}");
        assert_eq!(found.accounting.namespaces, found.accounting.namespaces_read, "{way:?}");
    }
    drop(sandbox);
    for way in WAYS {
        assert!(eventually(|| scene.pins(&scan(way)).entries(0).is_empty()), "{way:?}");
    }
}

#[test]
fn a_child_that_a_launcher_left_keeps_the_namespace() {
    let scene = Scene::new();
    scene.entry("a");
    let program = "isolate()\nbind(root + '/a', mnt)\n\
        if os.fork() == 0:\n    print('ready', flush=True)\n    os.execlp('sleep', 'sleep', '5')\nos._exit(0)";
    let launcher = scene.python(program);
    for way in WAYS {
        let pins = scene.pins(&scan(way));
        let pin = pins_on(&pins, "a").pop().unwrap_or_else(|| panic!("{way:?}"));
        assert!(!pins.namespace(pin.namespace.unwrap()).unwrap().tasks.contains(&launcher.pid()));
    }
}

#[test]
fn a_thread_that_outlives_its_leader_is_read() {
    let scene = Scene::new();
    scene.entry("a");
    let program = "def run():\n    isolate()\n    bind(root + '/a', mnt)\n    print('ready', flush=True)\n    time.sleep(1000)\n\
        threading.Thread(target=run).start()\ntime.sleep(0.2)\n\
        libc.syscall({'x86_64': 60}.get(platform.machine(), 93), 0)";
    let sandbox = scene.python(program);
    let leader = sandbox.pid();
    while !std::fs::read_to_string(format!("/proc/{leader}/stat")).unwrap().contains(") Z ") {
        std::thread::yield_now();
    }
    assert!(std::fs::read(format!("/proc/{leader}/mountinfo")).is_err());
    for way in WAYS {
        let pins = scene.pins(&scan(way));
        let found = pins_on(&pins, "a");
        assert_eq!(found.len(), 1, "{way:?}");
        let tasks = &pins.namespace(found[0].namespace.unwrap()).unwrap().tasks;
        assert!(!tasks.is_empty() && !tasks.contains(&leader), "{way:?}: {tasks:?}");
    }
}

#[test]
fn a_namespace_that_only_a_mounted_file_keeps_is_found() {
    if !kernel_lists_namespaces() {
        return;
    }
    stay_on_one_processor();
    let scene = Scene::new();
    scene.entry("a");
    let file = scene.root().parent().unwrap().join("namespace");
    File::create(&file).unwrap();
    let sandbox = scene.sandbox("mount --bind $1/a $2", &[]);
    let link = format!("/proc/{}/ns/mnt", sandbox.pid());
    nix::mount::mount(Some(link.as_str()), &file, None::<&str>, nix::mount::MsFlags::MS_BIND, None::<&str>).unwrap();
    drop(sandbox);
    let namespace = NamespaceId(std::fs::metadata(&file).unwrap().ino());
    for way in WAYS {
        let found = scan(way);
        assert!(has(&pins_on(&scene.pins(&found), "a"), Role::Source, namespace), "{way:?}");
        let unlisted = found.coverage.gaps().contains_key(&GapCause::NamespacesUnlisted);
        assert_eq!(unlisted, !way.use_namespace_list);
    }
    nix::mount::umount(&file).unwrap();
    for way in WAYS {
        assert!(eventually(|| pins_on(&scene.pins(&scan(way)), "a").is_empty()), "{way:?}");
    }
}

#[test]
fn a_namespace_that_only_a_descriptor_keeps_is_found() {
    if !kernel_lists_namespaces() {
        return;
    }
    let scene = Scene::new();
    scene.entry("a");
    let sandbox = scene.sandbox("mount --bind $1/a $2", &[]);
    let held = File::open(format!("/proc/{}/ns/mnt", sandbox.pid())).unwrap();
    let namespace = sandbox.namespace();
    drop(sandbox);
    for way in WAYS {
        assert!(has(&pins_on(&scene.pins(&scan(way)), "a"), Role::Source, namespace), "{way:?}");
    }
    drop(held);
    for way in WAYS {
        let gone = || scene.pins(&scan(way)).namespace(namespace).is_none();
        assert!(eventually(gone), "{way:?}: a scan must not keep what it reads");
    }
}

#[test]
fn a_chrooted_task_does_not_stand_for_its_namespace() {
    let _claims = claims();
    let scene = Scene::new();
    scene.entry("a");
    let program = "isolate()\nbind(root + '/a', mnt)\njail = root + '/../jail'\nos.mkdir(jail)\n\
        os.chroot(jail)\nprint('ready', flush=True)\ntime.sleep(1000)";
    let sandbox = scene.python(program);
    assert!(std::fs::read(format!("/proc/{}/mountinfo", sandbox.pid())).unwrap().is_empty());
    for way in WAYS {
        let pins = scene.pins(&scan(way));
        assert!(has(&pins_on(&pins, "a"), Role::Source, sandbox.namespace()), "{way:?}");
    }
    // Only the task's own view is left: what it hides lowers both claims, for the task is root's.
    let way = ScanOptions { use_namespace_list: false, use_mount_list: false, use_entering: false };
    let found = scan(way);
    assert!(pins_on(&scene.pins(&found), "a").is_empty());
    assert!(found.coverage.gaps()[&GapCause::ReaderChrooted] >= 1);
    assert!(!found.coverage.covered(1000) && !found.coverage.complete());
}

#[test]
fn a_root_that_covers_another_hides_nothing() {
    let _claims = claims();
    let scene = Scene::new();
    scene.entry("a");
    scene.entry("over");
    // What is bound below the old root cannot be reached from the root that is mounted over it.
    let program = "isolate()\nbind(root + '/a', mnt)\nbind(root + '/over', root + '/over')\nos.chdir(root + '/over')\n\
         must(libc.mount(b'.', b'/', None, 8192, None))\nos.chroot('.')\nprint('ready', flush=True)\ntime.sleep(1000)";
    let sandbox = scene.python(program);
    for way in WAYS.into_iter().filter(|way| way.use_namespace_list) {
        let found = scan(way);
        let pins = scene.pins(&found);
        assert!(has(&pins_on(&pins, "a"), Role::Source, sandbox.namespace()), "{way:?}");
        assert!(has(&pins_on(&pins, "over"), Role::Source, sandbox.namespace()), "{way:?}");
        assert!(found.coverage.covered(1000) && !found.coverage.gaps().contains_key(&GapCause::TargetHidden));
        // The covered root and the one that covers it.
        let table = &pins.namespace(sandbox.namespace()).unwrap().table;
        assert!(table.mounts.iter().filter(|mount| mount.point.as_deref() == Some(b"/")).count() >= 2, "{way:?}");
    }
}

#[test]
fn an_entry_bound_twice_and_renamed_stays_pinned_under_its_name() {
    let scene = Scene::new();
    let a = scene.entry("a");
    let first = scene.sandbox("mount --bind $1/a $2", &[]);
    let second = scene.sandbox("mount --bind $1/a $2", &[]);
    std::fs::rename(a, scene.root().join("b")).unwrap();
    for way in WAYS {
        let pins = scene.pins(&scan(way));
        assert!(pins_on(&pins, "a").is_empty());
        assert!(has(&pins_on(&pins, "b"), Role::Source, first.namespace()));
    }
    drop(first);
    for way in WAYS {
        assert!(has(&pins_on(&scene.pins(&scan(way)), "b"), Role::Source, second.namespace()));
    }
}

#[test]
fn peers_get_pins_by_propagation_without_a_call_of_their_own() {
    let scene = Scene::new();
    let a = scene.entry("a");
    let parent = scene.root().parent().unwrap().to_owned();
    let shared = nix::mount::MsFlags::MS_SHARED;
    nix::mount::mount(None::<&str>, &parent, None::<&str>, shared, None::<&str>).unwrap();
    let peers = [(); 2].map(|()| scene.sandbox_with("unchanged", "", &[]));
    let bind = nix::mount::MsFlags::MS_BIND;
    nix::mount::mount(Some(&a), &scene.mnt(), None::<&str>, bind, None::<&str>).unwrap();
    for way in WAYS {
        let mut scanner = Scanner::new(way);
        let pins = scene.pins(&scanner.scan().unwrap());
        for peer in &peers {
            assert!(has(&pins_on(&pins, "a"), Role::Source, peer.namespace()), "{way:?}");
        }
        let table = &pins.namespace(peers[0].namespace()).unwrap().table;
        let bound =
            table.mounts.iter().find(|mount| mount.point.as_deref() == Some(os(&scene.mnt()).as_encoded_bytes()));
        assert!(bound.unwrap().peer_group != 0);
    }
    nix::mount::umount(&scene.mnt()).unwrap();
    for way in WAYS {
        assert!(eventually(|| pins_on(&scene.pins(&scan(way)), "a").is_empty()), "{way:?}");
    }
}

#[test]
fn one_namespace_by_itself_reads_as_in_a_scan() {
    if !kernel_lists_namespaces() {
        return;
    }
    let scene = Scene::new();
    scene.entry("a");
    let sandbox = scene.sandbox("mount --bind $1/a $2", &[]);
    let namespace = sandbox.namespace();
    for way in WAYS {
        let mut scanner = Scanner::new(way);
        let fresh = scanner.read_namespace(namespace).unwrap();
        let found = scanner.scan().unwrap();
        let scanned = found.namespaces.iter().find(|(id, _)| *id == namespace).unwrap().1.clone();
        let Reading::Table(fresh) = fresh else { panic!("{way:?}: {fresh:?}") };
        assert_eq!(fresh.table, scanned.table, "{way:?}");
        assert_eq!(scanner.read_namespace(namespace).unwrap(), Reading::Table(scanned), "{way:?}");
        let listing = scanner.list_namespaces().unwrap();
        assert!(listing.namespaces.contains(&namespace));
        assert_eq!(listing.complete, way.use_namespace_list);
    }
    let mut scanners = WAYS.map(Scanner::new);
    scanners.iter_mut().for_each(|scanner| drop(scanner.scan().unwrap()));
    drop(sandbox);
    for (way, scanner) in WAYS.iter().zip(&mut scanners) {
        let reading = |scanner: &mut Scanner| scanner.read_namespace(namespace).unwrap();
        assert!(eventually(|| !matches!(reading(scanner), Reading::Table(_))), "{way:?}");
        assert_eq!(reading(scanner) == Reading::Gone, way.use_namespace_list, "{way:?}");
    }
}
