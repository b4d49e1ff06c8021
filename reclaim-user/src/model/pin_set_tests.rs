use super::*;
use crate::model::id::{Device, MountId};
use crate::model::mount::{Mount, Trace};
use crate::model::pin::{Role, State};

const DEVICE: Device = Device { major: 0, minor: 42 };

fn set() -> PinSet {
    PinSet::watching([Location::of(DEVICE, *b"/run/root")])
}

fn bind(id: u64, root: &[u8]) -> Mount {
    Mount {
        id: MountId(id),
        parent: MountId(1),
        device: DEVICE,
        root: root.into(),
        root_deleted: false,
        point: Some(b"/mnt"[..].into()),
        peer_group: 0,
        master: 0,
    }
}

fn with(mounts: Vec<Mount>) -> NamespacePins {
    NamespacePins { table: MountTable { mounts, layers: vec![] }, tasks: vec![] }
}

fn layer(written: &[u8], places: Vec<Location>) -> NamespacePins {
    let layer = Layer { mount: MountId(9), mount_point: None, written: written.into(), trace: Trace::Nothing, places };
    NamespacePins { table: MountTable { mounts: vec![], layers: vec![layer] }, tasks: vec![] }
}

#[test]
fn keys_are_first_components_and_condemned_names() {
    assert_eq!(entry_key(b"a"), Some(&b"a"[..]));
    assert_eq!(entry_key(b"a/b/c"), Some(&b"a"[..]));
    assert_eq!(entry_key(b""), None);
    assert_eq!(entry_key(b".reclaim"), None);
    assert_eq!(entry_key(b".reclaim/batch"), None);
    assert_eq!(entry_key(b".reclaim/batch/a/deep"), Some(&b".reclaim/batch/a"[..]));
    assert_eq!(entry_key(b".reclaimed/x"), Some(&b".reclaimed"[..]));
}

#[test]
fn a_bind_of_a_child_pins_its_entry_and_no_prefix_of_its_name() {
    let mut pins = set();
    pins.replace(NamespaceId(1), with(vec![bind(2, b"/run/root/ab/deep/er")]));
    assert!(pins.is_pinned(0, b"ab"));
    assert!(!pins.is_pinned(0, b"a"));
    assert_eq!(pins.pins_of(0, b"ab")[0].role, Role::Source);
    let (place, _) = &pins.at_or_below(&Location::of(DEVICE, *b"/run/root/ab"))[0];
    assert_eq!(*place, Place::Below);
}

#[test]
fn many_places_at_once_are_told_what_each_is_told_by_itself() {
    let mut pins = set();
    pins.replace(NamespaceId(1), with(vec![bind(2, b"/run/root/ab/deep/er"), bind(3, b"/run/root/ab"), bind(4, b"/")]));
    pins.replace(NamespaceId(2), with(vec![bind(5, b"/run")]));
    let mut loose = pins.at_or_below(&Location::of(DEVICE, *b"/run/root/ab"))[0].1.clone();
    (loose.mount, loose.mount_point, loose.inside) = (MountId(9), None, true);
    pins.add_loose(loose);
    let paths: [&[u8]; 9] =
        [b"/", b"/run", b"/ru", b"/run/root", b"/run/root/a", b"/run/root/ab", b"/run/root/ab/deep", b"/mnt", b"/run"];
    let mut places: Vec<Location> = paths.iter().map(|path| Location::of(DEVICE, *path)).collect();
    places.push(Location::of(Device { minor: 43, ..DEVICE }, *b"/run"));
    let each: Vec<_> = places.iter().map(|place| pins.at_or_below(place)).collect();
    assert!(each.iter().map(Vec::len).sum::<usize>() > 10, "{each:?}");
    assert_eq!(pins.at_or_below_each(&places), each);
}

#[test]
fn another_device_with_the_same_path_pins_nothing() {
    let mut pins = set();
    let mut foreign = bind(2, b"/run/root/a");
    foreign.device.minor = 43;
    pins.replace(NamespaceId(1), with(vec![foreign]));
    assert!(!pins.is_pinned(0, b"a"));
}

#[test]
fn an_entry_bound_by_two_namespaces_stays_until_both_are_gone() {
    let mut pins = set();
    pins.replace(NamespaceId(1), with(vec![bind(2, b"/run/root/a"), bind(3, b"/run/root/a")]));
    pins.replace(NamespaceId(2), with(vec![bind(4, b"/run/root/a")]));
    assert!(pins.remove(NamespaceId(1)));
    assert!(pins.is_pinned(0, b"a"));
    assert!(pins.replace(NamespaceId(2), with(vec![])));
    assert!(!pins.is_pinned(0, b"a"));
    assert!(pins.entries(0).is_empty());
}

#[test]
fn a_target_pins_the_entry_it_is_mounted_on() {
    let mut pins = set();
    let mut top = bind(1, b"/");
    top.parent = MountId(0);
    top.point = Some(b"/"[..].into());
    let mut on_entry = bind(2, b"/");
    on_entry.device.minor = 7;
    on_entry.point = Some(b"/run/root/a/sub"[..].into());
    pins.replace(NamespaceId(1), with(vec![top, on_entry]));
    let found = pins.pins_of(0, b"a");
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].role, found[0].mount), (Role::Target, MountId(2)));
}

#[test]
fn a_loose_pin_outlives_every_namespace() {
    let mut pins = set();
    pins.add_loose(Pin {
        role: Role::Source,
        location: Location::of(DEVICE, *b"/run/root/a"),
        namespace: None,
        mount: MountId(5),
        mount_point: None,
        state: State::Detached,
        inside: false,
    });
    assert!(!pins.remove(NamespaceId(1)));
    assert!(pins.is_pinned(0, b"a"));
}

#[test]
fn an_unresolved_layer_is_doubt_about_all_that_it_could_mean() {
    let mut pins = set();
    pins.replace(NamespaceId(1), layer(b"a/lower", vec![]));
    assert!(pins.doubt(b"a", true, false).is_some());
    assert!(pins.doubt(b"b", true, false).is_none());
    assert!(pins.doubt(b"b", false, false).is_some());
    pins.replace(NamespaceId(1), layer(b"../x", vec![]));
    assert!(pins.doubt(b"b", true, false).is_some());
    pins.replace(NamespaceId(1), layer(b"/gone/link", vec![]));
    assert!(pins.doubt(b"b", true, false).is_some());
    assert_eq!(pins.doubts(), 1);
    pins.replace(NamespaceId(1), layer(b"/gone/link", vec![Location::of(DEVICE, *b"/run/root/c/l")]));
    assert!(pins.doubt(b"b", true, false).is_none());
    assert!(pins.is_pinned(0, b"c"));
    assert_eq!(pins.pins_of(0, b"c")[0].role, Role::Layer);
}

#[test]
fn a_mount_seen_with_and_without_a_table_is_told_once() {
    let mut pins = set();
    pins.replace(NamespaceId(1), with(vec![bind(2, b"/run/root/a")]));
    let mut loose = pins.pins_of(0, b"a").remove(0);
    loose.mount_point = None;
    pins.add_loose(loose.clone());
    loose.mount = MountId(7);
    pins.add_loose(loose);
    assert_eq!(pins.pins_of(0, b"a").len(), 2);
    assert_eq!(pins.at_or_below(&Location::of(DEVICE, *b"/run/root/a")).len(), 2);
    pins.clear_loose();
    assert_eq!(pins.pins_of(0, b"a").len(), 1);
    pins.remove(NamespaceId(1));
    assert!(!pins.is_pinned(0, b"a"));
}

#[test]
fn a_walk_settles_doubt_about_layers_that_the_kernel_mounts() {
    let mut pins = set();
    for (trace, known_empty, walked, held) in [
        (Trace::Mounted, false, false, true),
        (Trace::Mounted, true, false, true),
        (Trace::Mounted, false, true, false),
        (Trace::Filled, false, true, true),
        (Trace::Filled, true, true, false),
        (Trace::Filled, true, false, false),
        (Trace::Nothing, true, true, true),
    ] {
        let mut table = layer(b"/gone/link", vec![]);
        table.table.layers[0].trace = trace;
        pins.replace(NamespaceId(1), table);
        assert_eq!(pins.doubt(b"b", known_empty, walked).is_some(), held, "{trace:?} {known_empty} {walked}");
    }
}
