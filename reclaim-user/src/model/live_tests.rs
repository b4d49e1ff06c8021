use super::*;
use crate::model::coverage::Identities;
use crate::model::id::{Device, MountId};
use crate::model::mount::MountTable;
use proptest::prelude::*;

const DEVICE: Device = Device { major: 0, minor: 42 };

fn identities() -> Identities {
    Identities { overflow: Some(65_534), subordinate: Some(BTreeMap::new()) }
}

fn event(hook: Hook, namespace: u64) -> Event {
    let namespace = Some(u32::try_from(namespace).expect("the tests use small numbers"));
    Event { sequence: 1, time_ns: 0, result: 0, namespace, hook, process: 1, thread: 1 }
}

/// A small kernel: namespaces, mounts, and the propagation of binds and unmounts between peers and to slaves.
#[derive(Clone, Default)]
struct World {
    namespaces: BTreeMap<u64, Vec<Mount>>,
    next_mount: u64,
    next_group: u64,
}

#[derive(Clone, Debug)]
enum Op {
    Bind { namespace: usize, parent: usize, entry: u8 },
    Umount { namespace: usize, mount: usize },
    Share { namespace: usize, mount: usize },
    Unshare { namespace: usize, slave: bool },
    Exit { namespace: usize },
    Consult,
}

fn op() -> impl Strategy<Value = Op> {
    let any = || 0..64_usize;
    prop_oneof![
        4 => (any(), any(), 0..6_u8).prop_map(|(namespace, parent, entry)| Op::Bind { namespace, parent, entry }),
        3 => (any(), any()).prop_map(|(namespace, mount)| Op::Umount { namespace, mount }),
        2 => (any(), any()).prop_map(|(namespace, mount)| Op::Share { namespace, mount }),
        2 => (any(), prop::bool::ANY).prop_map(|(namespace, slave)| Op::Unshare { namespace, slave }),
        1 => any().prop_map(|namespace| Op::Exit { namespace }),
        2 => Just(Op::Consult),
    ]
}

impl World {
    fn start() -> Self {
        let mut world = Self { next_group: 1, ..Self::default() };
        let top = world.mount(0, b"/", b"/");
        world.namespaces.insert(1, vec![top]);
        world
    }

    fn mount(&mut self, parent: u64, root: &[u8], point: &[u8]) -> Mount {
        self.next_mount += 1;
        Mount {
            id: MountId(self.next_mount),
            parent: MountId(parent),
            device: DEVICE,
            root: root.into(),
            root_deleted: false,
            point: Some(point.into()),
            peer_group: 0,
            master: 0,
        }
    }

    fn pick(&self, at: usize) -> u64 {
        *self.namespaces.keys().nth(at % self.namespaces.len()).expect("the first namespace never exits")
    }

    /// Every mount that receives what happens on a mount of this group, as (namespace, mount id).
    fn receivers(&self, group: u64) -> Vec<(u64, u64)> {
        let (mut seen, mut groups, mut found) = (BTreeSet::new(), vec![group], BTreeSet::new());
        while let Some(group) = groups.pop() {
            if group == 0 || !seen.insert(group) {
                continue;
            }
            for (namespace, mounts) in &self.namespaces {
                for mount in mounts.iter().filter(|mount| mount.peer_group == group || mount.master == group) {
                    found.insert((*namespace, mount.id.0));
                    groups.push(mount.peer_group);
                }
            }
        }
        found.into_iter().collect()
    }

    /// Applies one operation; returns the event that the kernel would send.
    fn apply(&mut self, op: &Op) -> Option<Event> {
        match *op {
            Op::Consult => None,
            Op::Bind { namespace, parent, entry } => {
                let namespace = self.pick(namespace);
                let on = self.namespaces[&namespace][parent % self.namespaces[&namespace].len()].clone();
                let mut places = self.receivers(on.peer_group);
                if on.peer_group == 0 {
                    places.push((namespace, on.id.0));
                }
                for (receiver, parent) in places {
                    let root = format!("/run/root/e{entry}");
                    let copy = self.mount(parent, root.as_bytes(), format!("/m{entry}").as_bytes());
                    self.namespaces.get_mut(&receiver)?.push(copy);
                }
                Some(event(Hook::Mount, namespace))
            }
            Op::Umount { namespace, mount } => {
                let namespace = self.pick(namespace);
                let mounts = &self.namespaces[&namespace];
                let gone = mounts[mount % mounts.len()].clone();
                if gone.parent.0 == 0 || mounts.iter().any(|other| other.parent == gone.id) {
                    return None;
                }
                let parent = mounts.iter().find(|other| other.id == gone.parent)?.clone();
                let receivers = self.receivers(parent.peer_group);
                for (receiver, on) in receivers {
                    let mounts = self.namespaces.get_mut(&receiver)?;
                    let busy: BTreeSet<MountId> = mounts.iter().map(|mount| mount.parent).collect();
                    // The one on top, and only where nothing is mounted on it.
                    let top = mounts.iter().rposition(|mount| mount.parent.0 == on && mount.root == gone.root);
                    if let Some(top) = top.filter(|top| !busy.contains(&mounts[*top].id)) {
                        mounts.remove(top);
                    }
                }
                self.namespaces.get_mut(&namespace)?.retain(|mount| mount.id != gone.id);
                Some(event(Hook::Umount, namespace))
            }
            Op::Share { namespace, mount } => {
                let namespace = self.pick(namespace);
                let group = self.next_group;
                self.next_group += 1;
                let mounts = self.namespaces.get_mut(&namespace)?;
                let at = mount % mounts.len();
                mounts[at].peer_group = if mounts[at].peer_group == 0 { group } else { 0 };
                Some(event(Hook::Mount, namespace))
            }
            Op::Unshare { namespace, slave } => {
                let mut copy = self.namespaces[&self.pick(namespace)].clone();
                let fresh: HashMap<MountId, MountId> =
                    copy.iter().map(|mount| (mount.id, MountId(mount.id.0 + self.next_mount))).collect();
                self.next_mount *= 2;
                for mount in &mut copy {
                    mount.id = fresh[&mount.id];
                    mount.parent = fresh.get(&mount.parent).copied().unwrap_or(MountId(0));
                    if slave {
                        mount.master = std::mem::take(&mut mount.peer_group);
                    }
                }
                let namespace = self.namespaces.keys().last()? + 1;
                self.namespaces.insert(namespace, copy);
                Some(event(Hook::Unshare, namespace))
            }
            Op::Exit { namespace } => {
                let namespace = self.pick(namespace);
                if namespace == 1 {
                    return None;
                }
                self.namespaces.remove(&namespace);
                Some(event(Hook::Exit, namespace))
            }
        }
    }

    fn table(&self, namespace: u64) -> Option<NamespacePins> {
        let mounts = self.namespaces.get(&namespace)?.clone();
        Some(NamespacePins { table: MountTable { mounts, layers: vec![] }, tasks: vec![] })
    }

    fn scan(&self) -> LiveSet {
        let tables = self.namespaces.keys().filter_map(|n| Some((NamespaceId(*n), self.table(*n)?))).collect();
        LiveSet::baseline([Location::of(DEVICE, *b"/run/root")], tables, Coverage::full(identities()))
    }

    fn refresh(&self, live: &mut LiveSet) {
        loop {
            for namespace in live.take_due() {
                live.read(namespace, self.table(namespace.0).map_or(Reading::Gone, Reading::Table));
            }
            if !live.is_due() {
                break;
            }
        }
    }
}

/// Mount ids and roots.
type Mounts = BTreeSet<(u64, Box<[u8]>)>;

fn snapshot(live: &LiveSet) -> BTreeMap<NamespaceId, Mounts> {
    let of = |namespace| {
        let known = live.pins().namespace(namespace).expect("it is known");
        known.table.mounts.into_iter().map(|mount| (mount.id.0, mount.root)).collect()
    };
    live.pins().namespaces().map(|(namespace, _)| (namespace, of(namespace))).collect()
}

proptest! {
    #[test]
    fn events_and_readings_equal_a_scan_of_the_final_state(ops in prop::collection::vec(op(), 1..60)) {
        let mut world = World::start();
        let mut live = world.scan();
        let (mut fresh, mut is_exact) = (BTreeSet::new(), true);
        for op in ops.iter().chain([&Op::Consult]) {
            if let Some(event) = world.apply(op) {
                live.note(&event);
                match op {
                    Op::Unshare { .. } => drop(fresh.insert(event.namespace)),
                    // Where it stays on the witness, for something is mounted on it there, and goes elsewhere.
                    Op::Umount { .. } => is_exact &= !fresh.contains(&event.namespace),
                    _ => {}
                }
            }
            if matches!(op, Op::Consult) {
                world.refresh(&mut live);
                fresh.clear();
                let (known, is_there) = (snapshot(&live), snapshot(&world.scan()));
                match is_exact {
                    true => prop_assert_eq!(known, is_there),
                    // It may believe in what is gone, and never the other way.
                    false => {
                        let holds = |(namespace, mounts): (_, &Mounts)| mounts.is_subset(&known[namespace]);
                        prop_assert!(known.keys().eq(is_there.keys()) && is_there.iter().all(holds));
                    }
                }
            }
        }
        let (known, is_there) = (live.pins().entries(0), world.scan().pins().entries(0));
        prop_assert!(is_there.iter().all(|entry| known.contains(entry)));
        prop_assert!(live.coverage().complete());
    }

    #[test]
    fn after_a_loss_nothing_is_freed_until_the_next_baseline(
        before in prop::collection::vec(op(), 1..30),
        after in prop::collection::vec(op(), 1..30),
    ) {
        let mut world = World::start();
        for op in &before {
            world.apply(op);
        }
        let mut live = world.scan();
        let pinned: Vec<Vec<u8>> = live.pins().entries(0).into_iter().map(<[u8]>::into_vec).collect();
        live.lost(1);
        for op in &after {
            if let Some(event) = world.apply(op) {
                live.note(&event);
            }
            world.refresh(&mut live);
            for entry in &pinned {
                prop_assert!(live.pins().is_pinned(0, entry));
            }
        }
        prop_assert!(!live.coverage().covered(1000));
    }
}

#[test]
fn a_bind_in_one_namespace_is_read_in_its_peers_and_in_nobody_else() {
    let mut world = World::start();
    world.apply(&Op::Share { namespace: 0, mount: 0 });
    world.apply(&Op::Unshare { namespace: 0, slave: true });
    world.apply(&Op::Unshare { namespace: 0, slave: false });
    let unrelated = world.mount(0, b"/", b"/");
    world.namespaces.insert(9, vec![unrelated]);
    let mut live = world.scan();
    let event = world.apply(&Op::Bind { namespace: 0, parent: 0, entry: 1 }).expect("a bind sends an event");
    live.note(&event);
    assert_eq!(live.take_due(), [NamespaceId(1)]);
    live.read(NamespaceId(1), Reading::Table(world.table(1).expect("it is alive")));
    assert_eq!(live.take_due(), [NamespaceId(2), NamespaceId(3)]);
}

#[test]
fn an_event_without_a_namespace_is_a_gap() {
    let mut live = World::start().scan();
    live.note(&Event { namespace: None, ..event(Hook::Mount, 1) });
    assert!(live.has_gap() && !live.coverage().covered(0));
}

#[test]
fn a_namespace_that_cannot_be_read_keeps_its_pins_and_lowers_the_claim() {
    let mut world = World::start();
    world.apply(&Op::Bind { namespace: 0, parent: 0, entry: 1 });
    let mut live = world.scan();
    live.read(NamespaceId(1), Reading::Unknown);
    assert!(live.pins().is_pinned(0, b"e1"));
    assert!(!live.coverage().covered(1000));
}

#[test]
fn a_whole_listing_takes_out_what_it_lacks_and_a_partial_one_does_not() {
    let mut world = World::start();
    world.apply(&Op::Unshare { namespace: 0, slave: true });
    let mut live = world.scan();
    live.exist(&BTreeSet::from([NamespaceId(1), NamespaceId(7)]), false);
    assert!(live.pins().knows(NamespaceId(2)));
    assert_eq!(live.take_due(), [NamespaceId(7)]);
    live.exist(&BTreeSet::from([NamespaceId(1)]), true);
    assert!(!live.pins().knows(NamespaceId(2)));
}

#[test]
fn a_suspected_namespace_is_looked_at_until_it_is_gone_or_believed() {
    let mut world = World::start();
    world.apply(&Op::Unshare { namespace: 0, slave: true });
    let mut live = world.scan();
    live.note(&event(Hook::Exit, 2));
    let mut looks = 0;
    while live.take_due() == [NamespaceId(2)] {
        live.read(NamespaceId(2), Reading::Table(world.table(2).expect("a descriptor keeps it")));
        looks += 1;
    }
    assert_eq!(looks, LOOKS);
    assert!(live.pins().knows(NamespaceId(2)));
}

#[test]
fn what_was_a_peer_and_left_before_it_was_first_read_is_followed_to_its_peers() {
    let mut world = World::start();
    world.apply(&Op::Share { namespace: 0, mount: 0 });
    let mut live = world.scan();
    for op in [
        Op::Unshare { namespace: 0, slave: false },
        Op::Bind { namespace: 1, parent: 0, entry: 1 },
        Op::Share { namespace: 1, mount: 0 },
    ] {
        let event = world.apply(&op).expect("each sends an event");
        assert_eq!(event.namespace, Some(2), "nothing is said of the peer: {op:?}");
        live.note(&event);
    }
    world.refresh(&mut live);
    assert_eq!(snapshot(&live), snapshot(&world.scan()));
    assert!(live.pins().namespace(NamespaceId(1)).is_some_and(|known| known.table.mounts.len() == 2));
}

/// Applies each, notes what the kernel says of it, and looks whether what is known then is what is the case.
#[track_caller]
fn is_followed(world: &mut World, ops: &[Op]) {
    let mut live = world.scan();
    for op in ops {
        live.note(&world.apply(op).expect("each sends an event"));
    }
    world.refresh(&mut live);
    assert_eq!(snapshot(&live), snapshot(&world.scan()));
}

#[test]
fn a_number_that_was_used_before_says_nothing_of_who_has_it_now() {
    let mut world = World::start();
    world.apply(&Op::Unshare { namespace: 0, slave: false });
    world.apply(&Op::Share { namespace: 0, mount: 0 });
    let ops = [
        Op::Exit { namespace: 1 },
        // The one of the same number is a peer of the first, and leaves it again.
        Op::Unshare { namespace: 0, slave: false },
        Op::Bind { namespace: 1, parent: 0, entry: 1 },
        Op::Share { namespace: 1, mount: 0 },
    ];
    is_followed(&mut world, &ops);
}

/// The first passes on to the second, which passes on to the third.
fn chain() -> World {
    let mut world = World::start();
    for op in [
        Op::Share { namespace: 0, mount: 0 },
        Op::Unshare { namespace: 0, slave: true },
        Op::Share { namespace: 1, mount: 0 },
        Op::Unshare { namespace: 1, slave: true },
    ] {
        world.apply(&op);
    }
    world
}

#[test]
fn what_is_passed_on_where_nothing_shows_it_is_followed() {
    let mut world = chain();
    world.apply(&Op::Bind { namespace: 0, parent: 0, entry: 1 });
    // It stays in the second, for something is mounted on it there, and goes in the third.
    world.apply(&Op::Bind { namespace: 1, parent: 1, entry: 2 });
    is_followed(&mut world, &[Op::Umount { namespace: 0, mount: 1 }]);
}

#[test]
fn what_one_that_is_gone_passed_on_is_followed() {
    let mut world = chain();
    world.apply(&Op::Unshare { namespace: 0, slave: false });
    // The fourth is read after the second, by which it reached the third.
    is_followed(&mut world, &[Op::Bind { namespace: 3, parent: 0, entry: 1 }, Op::Exit { namespace: 1 }]);
}

/// Two that are gone, each passing on to what the other receives from, are read once each, whatever was lost before.
#[test]
fn what_is_gone_is_read_to_an_end() {
    let mut world = chain();
    world.apply(&Op::Share { namespace: 2, mount: 0 });
    world.apply(&Op::Unshare { namespace: 1, slave: false });
    world.apply(&Op::Unshare { namespace: 2, slave: false });
    let mut live = world.scan();
    live.lost(1);
    for namespace in [4, 3, 2, 1] {
        live.note(&world.apply(&Op::Exit { namespace }).expect("it exits"));
    }
    let mut readings = 0;
    loop {
        for namespace in live.take_due() {
            live.read(namespace, world.table(namespace.0).map_or(Reading::Gone, Reading::Table));
            readings += 1;
            assert!(readings < 100, "it has no end");
        }
        if !live.is_due() {
            break;
        }
    }
    assert!(live.pins().knows(NamespaceId(2)), "kept for the gap");
}
