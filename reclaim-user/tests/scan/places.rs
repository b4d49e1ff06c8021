//! Scans give the right places: targets, layers, odd names, the same name elsewhere (cases 6, 7, 11 and 12).

use super::support::{Scene, WAYS, has, kernel_lists_namespaces, pins_on, scan};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use reclaim_user::evidence::ground::{GroundError, ground, ground_of};
use reclaim_user::evidence::scan::{Reading, ScanOptions, Scanner};
use reclaim_user::model::id::NamespaceId;
use reclaim_user::model::pin::Role;
use reclaim_user::model::pin_set::PinSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::sync::mpsc::channel;
use std::sync::{Mutex, MutexGuard, PoisonError};

#[test]
fn something_mounted_inside_an_entry_pins_it_as_a_target() {
    let scene = Scene::new();
    std::fs::create_dir_all(scene.root().join("a/deep/er")).unwrap();
    scene.entry("other");
    let sandbox = scene.sandbox("mount --bind $1/other $1/a/deep/er", &[]);
    for way in WAYS {
        let pins = scene.pins(&scan(way));
        assert!(has(&pins_on(&pins, "a"), Role::Target, sandbox.namespace()), "{way:?}");
        assert!(!has(&pins_on(&pins, "other"), Role::Target, sandbox.namespace()), "{way:?}");
    }
}

#[test]
fn a_target_is_found_through_a_bind_of_the_root() {
    let scene = Scene::new();
    scene.entry("a");
    let sandbox = scene.sandbox("mount --bind $1 $2; mount -t tmpfs t $2/a", &[]);
    for way in WAYS {
        let pins = scene.pins(&scan(way));
        assert!(has(&pins_on(&pins, "a"), Role::Target, sandbox.namespace()), "{way:?}");
    }
}

/// A layer that cannot be resolved may mean any entry of the host, so these take turns.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Layers of one namespace that could not be resolved.
fn doubts(pins: &PinSet, namespace: NamespaceId) -> usize {
    let known = pins.namespace(namespace).expect("it was read");
    known.table.layers.iter().filter(|layer| layer.places.is_empty()).count()
}

#[test]
fn every_layer_of_an_overlay_is_pinned() {
    if !kernel_lists_namespaces() {
        return;
    }
    let _alone = alone();
    let scene = Scene::new();
    for name in ["l1", "l:2", "c,d", "rel", "linked", "upper", "work"] {
        scene.entry(name);
    }
    std::fs::create_dir(scene.root().join("upper/u")).unwrap();
    std::fs::create_dir(scene.root().join("work/w")).unwrap();
    std::os::unix::fs::symlink(scene.root().join("linked"), scene.root().join("link")).unwrap();
    let script = r#"cd $1; mount -t overlay o -o "lowerdir=$1/l1:$1/l\:2:$1/c\,d:$1/link,upperdir=$1/upper/u,workdir=$1/work/w" $2"#;
    let sandbox = scene.sandbox(script, &[]);
    for way in WAYS {
        let mut scanner = Scanner::new(way);
        let pins = scene.pins(&scanner.scan().unwrap());
        for name in ["l1", "l:2", "c,d", "link", "linked", "upper", "work"] {
            assert!(has(&pins_on(&pins, name), Role::Layer, sandbox.namespace()), "{way:?}: {name}");
        }
        assert!(pins_on(&pins, "rel").is_empty());
        assert_eq!(doubts(&pins, sandbox.namespace()), 0, "{way:?}");
        let Reading::Table(again) = scanner.read_namespace(sandbox.namespace()).unwrap() else { panic!("{way:?}") };
        assert_eq!(Some(again), pins.namespace(sandbox.namespace()), "{way:?}");
        // The layer of an overlay follows its directory, and so does the kernel.
        std::fs::rename(scene.root().join("l1"), scene.root().join("moved")).unwrap();
        let pins = scene.pins(&scan(way));
        assert!(!pins_on(&pins, "l1").is_empty(), "{way:?}: the name that was written still counts");
        assert!(pins.doubt(b"moved", false, false).is_some(), "{way:?}: where it is now is not known");
        std::fs::rename(scene.root().join("moved"), scene.root().join("l1")).unwrap();
    }
}

/// So many that two threads read them. Each layer is one that only a look-up in the namespace itself finds.
#[test]
fn each_of_many_namespaces_is_read_with_its_layers() {
    const MANY: usize = 150;
    if !kernel_lists_namespaces() {
        return;
    }
    let _alone = alone();
    let scene = Scene::new();
    std::thread::scope(|scope| {
        let sandbox = |number: usize| {
            let ((ready, is_ready), (end, ended)) = (channel(), channel::<()>());
            let (scene, low) = (&scene, [format!("low{number}"), format!("lower{number}")]);
            let entry = scene.entry(format!("e{number}"));
            low.iter().for_each(|low| std::fs::create_dir(entry.join(low)).unwrap());
            scope.spawn(move || {
                unshare(CloneFlags::CLONE_NEWNS).unwrap();
                let none = None::<&str>;
                mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
                mount(Some(&entry), &scene.mnt(), none, MsFlags::MS_BIND, none).unwrap();
                let [upper, lower] = low.map(|low| scene.mnt().join(low));
                let options = format!("lowerdir={}:{}", upper.display(), lower.display());
                mount(Some("o"), &upper, Some("overlay"), MsFlags::empty(), Some(&*options)).unwrap();
                ready.send(NamespaceId(std::fs::metadata("/proc/thread-self/ns/mnt").unwrap().ino())).unwrap();
                // Until the test is over, in whatever way.
                let _ = ended.recv();
            });
            (is_ready, end)
        };
        let sandboxes: Vec<_> = (0..MANY).map(sandbox).collect();
        let namespaces: Vec<NamespaceId> = sandboxes.iter().map(|(is_ready, _)| is_ready.recv().unwrap()).collect();
        let found = scan(ScanOptions::default());
        let pins = scene.pins(&found);
        for (number, namespace) in namespaces.into_iter().enumerate() {
            let name = format!("e{number}");
            let on_it = pins_on(&pins, &name);
            assert!(has(&on_it, Role::Source, namespace) && has(&on_it, Role::Layer, namespace), "{name}: {on_it:?}");
            assert!(on_it.iter().all(|pin| pin.namespace == Some(namespace)), "{name}: {on_it:?}");
            assert_eq!(doubts(&pins, namespace), 0, "{name}");
        }
        assert_eq!(found.accounting.namespaces, found.accounting.namespaces_read);
    });
}

#[test]
fn a_relative_layer_is_doubt() {
    let _alone = alone();
    let scene = Scene::new();
    scene.entry("rel");
    scene.entry("rel2");
    scene.entry("free");
    let sandbox = scene.sandbox("cd $1; mount -t overlay o -o lowerdir=rel:rel2 $2", &[]);
    for way in WAYS {
        let pins = scene.pins(&scan(way));
        assert_eq!(doubts(&pins, sandbox.namespace()), 2, "{way:?}");
        assert!(pins.doubt(b"rel", true, false).is_some() && pins.doubt(b"free", true, false).is_none(), "{way:?}");
    }
    let by_task = ScanOptions { use_namespace_list: false, use_mount_list: false, use_entering: false };
    assert_eq!(doubts(&scene.pins(&scan(by_task)), sandbox.namespace()), 2);
}

#[test]
fn names_are_bytes() {
    let scene = Scene::new();
    let long = [b'x'; 255];
    let names: [&[u8]; 9] =
        [b"a b", b"tab\there", b"line\nbreak", b"back\\slash", b"\\040", b"#hash", b"x (deleted)", b"\xff\xfe", &long];
    let mut sandboxes = Vec::new();
    for name in names {
        scene.entry(OsStr::from_bytes(name));
        sandboxes.push(scene.sandbox("mount --bind \"$1/$3\" $2", &[OsStr::from_bytes(name)]));
        let place = ground(&scene.root().join(OsStr::from_bytes(name))).unwrap().location;
        assert!(place.path.ends_with(name));
    }
    for way in WAYS {
        let mut scanner = Scanner::new(way);
        let pins = scene.pins(&scanner.scan().unwrap());
        for (name, sandbox) in names.iter().zip(&sandboxes) {
            let found = pins_on(&pins, OsStr::from_bytes(name));
            assert!(has(&found, Role::Source, sandbox.namespace()), "{way:?}: {name:?}");
            let Reading::Table(again) = scanner.read_namespace(sandbox.namespace()).unwrap() else { panic!("{way:?}") };
            assert_eq!(Some(again), pins.namespace(sandbox.namespace()), "{way:?}: {name:?}");
        }
        assert_eq!(pins.entries(0).len(), names.len(), "{way:?}");
    }
}

#[test]
fn the_same_name_elsewhere_is_another_entry() {
    let scene = Scene::new();
    scene.entry("a");
    scene.entry("gone");
    let deleted = scene.sandbox("mount --bind $1/gone $2", &[]);
    std::fs::remove_dir(scene.root().join("gone")).unwrap();
    scene.entry("gone");
    let elsewhere = scene.sandbox("mount -t tmpfs t $2; mkdir -p $2/root/a $2/x; mount --bind $2/root/a $2/x", &[]);
    for way in WAYS {
        let pins = scene.pins(&scan(way));
        assert!(pins.entries(0).is_empty(), "{way:?}: {:?}", pins.entries(0));
        let table = &pins.namespace(deleted.namespace()).unwrap().table;
        assert!(table.mounts.iter().any(|mount| mount.root_deleted && mount.root.ends_with(b"/gone")), "{way:?}");
        assert!(pins.namespace(elsewhere.namespace()).is_some());
    }
}

#[test]
fn a_path_lies_where_its_mount_shows_it() {
    let scene = Scene::new();
    let a = scene.entry("a");
    let of_entry = ground(&a).unwrap().location;
    assert!(of_entry.path.ends_with(b"/root/a"));
    nix::mount::mount(Some(&a), &scene.mnt(), None::<&str>, nix::mount::MsFlags::MS_BIND, None::<&str>).unwrap();
    assert_eq!(ground(&scene.mnt()).unwrap().location, of_entry);
    assert_ne!(ground(&scene.mnt()).unwrap().mount, ground(&a).unwrap().mount);
    let handle = std::fs::File::open(&a).unwrap();
    assert_eq!(ground_of(&handle).unwrap().location, of_entry);
    std::os::unix::fs::symlink(&a, scene.root().join("link")).unwrap();
    assert_eq!(ground(&scene.root().join("link")).unwrap().location, of_entry);

    assert!(matches!(ground(&a.join("no/such")), Err(GroundError::Missing { .. })));
    std::fs::write(a.join("file"), "").unwrap();
    assert!(matches!(ground(&a.join("file/below")), Err(GroundError::Missing { .. })));
    let file = std::fs::File::open(a.join("file")).unwrap();
    std::fs::remove_file(a.join("file")).unwrap();
    assert!(matches!(ground_of(&file), Err(GroundError::Deleted { .. })));
    // The name of something that exists may look like the kernel's mark.
    let look_alike = scene.entry("x (deleted)");
    assert!(ground(&look_alike).unwrap().location.path.ends_with(b"/x (deleted)"));
    nix::mount::mount(Some("t"), &look_alike, Some("tmpfs"), nix::mount::MsFlags::empty(), None::<&str>).unwrap();
    assert_eq!(&*ground(&look_alike).unwrap().location.path, b"/");
    assert_ne!(ground(&look_alike).unwrap().location.device, of_entry.device);
}

#[test]
fn the_ground_of_an_overlay_is_its_own_device() {
    let scene = Scene::new();
    for name in ["l", "u", "w"] {
        scene.entry(name);
    }
    let root = scene.root();
    let options = format!("lowerdir={0}/l,upperdir={0}/u,workdir={0}/w", root.display());
    let none = nix::mount::MsFlags::empty();
    nix::mount::mount(Some("o"), &scene.mnt(), Some("overlay"), none, Some(options.as_str())).unwrap();
    std::fs::create_dir(scene.mnt().join("inside")).unwrap();
    let inside = ground(&scene.mnt().join("inside")).unwrap().location;
    assert_eq!(&*inside.path, b"/inside");
    assert_ne!(inside.device, ground(&root).unwrap().location.device);
}
