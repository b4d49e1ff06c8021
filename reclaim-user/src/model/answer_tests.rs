use super::*;
use crate::model::coverage::{GapCause, Holder, Identities, Reach};
use crate::model::id::{Device, MountId};
use crate::model::mount::{Layer, Mount, MountTable, Trace};
use crate::model::pin_set::NamespacePins;

const DEVICE: Device = Device { major: 0, minor: 9 };

fn set(sources: &[&str], layers: Vec<Layer>, watched: bool) -> PinSet {
    let root = Location::of(DEVICE, *b"/root");
    let mut pins = PinSet::watching(watched.then_some(root));
    let mounts = (1_u64..).zip(sources).map(|(id, source)| Mount {
        id: MountId(id),
        parent: MountId(0),
        device: DEVICE,
        root: source.as_bytes().into(),
        root_deleted: false,
        point: Some((*b"/mnt").into()),
        peer_group: 0,
        master: 0,
    });
    let table = MountTable { mounts: mounts.collect(), layers };
    pins.replace(NamespaceId(7), NamespacePins { table, tasks: vec![1] });
    pins
}

fn subject(path: &str) -> Subject {
    Subject {
        path: Name(path.into()),
        name: Name(path.rsplit('/').next().unwrap_or_default().into()),
        places: vec![Location::of(DEVICE, path.as_bytes())],
        owner: 1000,
        known_empty: true,
    }
}

fn full() -> Coverage {
    Coverage::full(Identities { overflow: Some(65_534), subordinate: Some(BTreeMap::new()) })
}

fn seen<'a>(pins: &'a PinSet, coverage: &'a Coverage, producer: Producer) -> Seen<'a> {
    static NOTHING: References = References::NONE;
    Seen { pins, coverage, tables: coverage, references: &NOTHING, producer, elsewhere: None }
}

fn decide(pins: &PinSet, coverage: &Coverage, path: &str) -> Decision {
    subject(path).query(seen(pins, coverage, Producer::Scan)).verdict
}

#[test]
fn a_pin_at_or_below_decides_with_and_without_an_index() {
    for watched in [false, true] {
        let pins = set(&["/root/a", "/root/b/deep/er"], vec![], watched);
        for (path, decision) in [
            ("/root/a", Decision::Pinned),
            ("/root/b", Decision::Pinned),
            ("/root/b/deep", Decision::Pinned),
            ("/root/b/other", Decision::Free),
            ("/root/ab", Decision::Free),
            ("/root", Decision::Pinned),
        ] {
            assert_eq!(decide(&pins, &full(), path), decision, "{path}, watched {watched}");
        }
    }
}

#[test]
fn weak_evidence_never_says_free_and_a_pin_wins_over_it() {
    let pins = set(&["/root/a"], vec![], true);
    let mut weak = full();
    weak.lower(GapCause::ProcfsFiltered, 1, Reach::Everybody);
    assert_eq!(decide(&pins, &weak, "/root/free"), Decision::Unknown);
    assert_eq!(decide(&pins, &weak, "/root/a"), Decision::Pinned);
    let mut other = full();
    let holder = Holder { uids: vec![1001], user_namespace_owner: Some(0) };
    other.lower(GapCause::TaskUnreadable, 1, Reach::Holder(holder));
    assert_eq!(decide(&pins, &other, "/root/free"), Decision::Free, "covered for the owner is enough");
}

#[test]
fn an_unresolved_layer_makes_the_answer_unknown() {
    let layer = |written: &[u8], places| Layer {
        mount: MountId(9),
        mount_point: None,
        written: written.into(),
        trace: Trace::Nothing,
        places,
    };
    let pins = set(&[], vec![layer(b"lower/free", vec![])], true);
    assert_eq!(decide(&pins, &full(), "/root/free"), Decision::Unknown);
    assert_eq!(decide(&pins, &full(), "/root/other"), Decision::Free);
    let two = vec![Location::of(DEVICE, *b"/elsewhere/x"), Location::of(DEVICE, *b"/root/second")];
    let pins = set(&[], vec![layer(b"x", two)], true);
    assert_eq!(decide(&pins, &full(), "/root/second"), Decision::Pinned, "each place of a layer counts");
}

#[test]
fn what_may_hold_something_is_free_only_by_the_tables_too() {
    let pins = set(&[], vec![], true);
    let (coverage, mut tables) = (full(), full());
    tables.lower(crate::model::coverage::GapCause::NamespaceUnread, 1, crate::model::coverage::Reach::Everybody);
    let seen = Seen {
        pins: &pins,
        coverage: &coverage,
        tables: &tables,
        references: &References::NONE,
        producer: Producer::Walk,
        elsewhere: None,
    };
    let empty = |known_empty| Subject { known_empty, ..subject("/root/a") };
    assert_eq!(empty(true).query(seen).verdict, Decision::Free);
    assert_eq!(empty(false).query(seen).verdict, Decision::Unknown);
}

#[test]
fn a_reference_pins_and_one_that_nobody_could_tell_of_leaves_it_unknown() {
    let pins = set(&[], vec![], true);
    let coverage = full();
    let mut references = References::NONE;
    let mut add = |path: &str, kind, process| {
        references.add(place_key(&subject(path).places[0]), Reference { kind, process, place: Place::Below });
    };
    add("/root/open", ReferenceKind::Descriptor, Some(7));
    add("/root/dark", ReferenceKind::Unknown, None);
    add("/root/both", ReferenceKind::Unknown, None);
    add("/root/both", ReferenceKind::Root, None);
    let references = &references;
    let (producer, elsewhere) = (Producer::Scan, None);
    let seen = Seen { pins: &pins, coverage: &coverage, tables: &coverage, references, producer, elsewhere };
    let open = subject("/root/open").query(seen);
    assert_eq!(open.verdict, Decision::Pinned);
    assert_eq!(open.why.as_deref(), Some("process 7 has something below it open by a descriptor"));
    assert_eq!(subject("/root/dark").query(seen).verdict, Decision::Unknown);
    assert_eq!(subject("/root/both").query(seen).verdict, Decision::Pinned);
    assert_eq!(subject("/root/ope").query(seen).verdict, Decision::Free);
    let who = |path| subject(path).who(seen, &BTreeMap::new(), &BTreeMap::new());
    assert!(who("/root/open").pinned && who("/root/open").doubt.is_none() && who("/root/both").pinned);
    assert!(!who("/root/dark").pinned && who("/root/dark").references.is_empty() && who("/root/dark").doubt.is_some());
    // A root directory of a file system, and a child of it.
    let keys = ["/", "/a"].map(|path| place_key(&Location::of(DEVICE, path.as_bytes())));
    assert_eq!(keys, [b"0:9".to_vec(), b"0:9/a".to_vec()]);
}

fn keys(value: &serde_json::Value) -> Vec<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

#[test]
fn shapes_are_those_of_the_contract() {
    let pins = set(&["/root/a"], vec![], true);
    let coverage = full();
    let mut references = References::NONE;
    let reference = Reference { kind: ReferenceKind::WorkingDirectory, process: Some(1), place: Place::Exact };
    references.add(place_key(&subject("/root/c").places[0]), reference);
    let references = &references;
    let (producer, elsewhere) = (Producer::Walk, None);
    let seen = Seen { pins: &pins, coverage: &coverage, tables: &coverage, references, producer, elsewhere };
    let task = Task { pid: 1, comm: Name(b"x".into()), cgroup: Name(b"/".into()), unit: None, container: None };
    let (tasks, processes) = (BTreeMap::from([(NamespaceId(7), vec![task.clone()])]), BTreeMap::from([(1, task)]));
    let who = |path| serde_json::to_value(subject(path).who(seen, &tasks, &processes)).expect("json");
    let open = &who("/root/c")["references"][0];
    assert_eq!(keys(open), ["kind", "task", "where"]);
    assert_eq!(
        (&open["kind"], &open["where"], &open["task"]["pid"]),
        (&"working-directory".into(), &"exact".into(), &1.into())
    );
    let who = who("/root/a");
    assert_eq!(keys(&who), ["complete", "covered", "evidence", "path", "pinned", "pins", "type"]);
    let pin = &who["pins"][0];
    assert_eq!(keys(pin), ["mount_id", "mount_point", "namespace", "role", "state", "tasks", "where"]);
    assert_eq!(keys(&pin["tasks"][0]), ["cgroup", "comm", "pid"]);
    assert_eq!((&pin["role"], &pin["where"], &pin["state"]), (&"source".into(), &"exact".into(), &"attached".into()));
    let query = serde_json::to_value(subject("/root/z").query(seen)).expect("json");
    assert_eq!(keys(&query), ["evidence", "path", "type", "verdict"]);
    assert_eq!(
        (&query["type"], &query["verdict"], &query["evidence"]),
        (&"query".into(), &"free".into(), &"walk".into())
    );
    let listed = entry_pins(&pins, 0, "r", &tasks);
    let pin = serde_json::to_value(&listed[0]).expect("json");
    assert_eq!(
        keys(&pin),
        ["entry", "mount_id", "mount_point", "namespace", "role", "root", "state", "tasks", "type", "where"]
    );
    let counted = by_namespace(&pins, &listed, &tasks, false);
    assert_eq!((counted[0].pins["r"], counted[0].mounts, counted[0].tasks.len()), (1, 1, 1));
}

#[test]
fn a_namespace_that_could_not_be_told_has_no_number() {
    let mut pins = PinSet::watching([Location::of(DEVICE, *b"/root")]);
    let of_another = set(&["/root/a"], vec![], true).namespace(NamespaceId(7)).unwrap();
    pins.replace(NamespaceId::UNKNOWN, of_another);
    let coverage = full();
    let seen = seen(&pins, &coverage, Producer::Scan);
    let told = subject("/root/a").who(seen, &BTreeMap::new(), &BTreeMap::new());
    assert_eq!(told.pins.iter().map(|pin| pin.namespace).collect::<Vec<_>>(), [None]);
    let why = subject("/root/a").query(seen).why.unwrap();
    assert!(why.ends_with("in a namespace that could not be told"), "{why}");
    let counted = by_namespace(&pins, &entry_pins(&pins, 0, "root", &BTreeMap::new()), &BTreeMap::new(), true);
    assert_eq!(counted.iter().map(|report| (report.namespace, report.mounts)).collect::<Vec<_>>(), [(None, 1)]);
}

#[test]
fn a_layer_of_the_kernels_own_names_the_one_overlay_that_may_have_it() {
    let layer = |written: &[u8], trace| Layer {
        mount: MountId(9),
        mount_point: None,
        written: written.into(),
        trace,
        places: vec![],
    };
    let told = |first: Vec<Layer>, second: Vec<Layer>, resolved: bool| {
        let mut pins = set(&[], first, true);
        let other = set(&[], second, true).namespace(NamespaceId(7)).unwrap();
        pins.replace(NamespaceId(8), other);
        let pin = |namespace, mount| Pin {
            role: Role::Layer,
            location: Location::of(DEVICE, *b"/root/a"),
            namespace,
            mount: MountId(mount),
            mount_point: None,
            state: State::Attached,
            inside: false,
        };
        pins.add_loose(pin(None, 20));
        if resolved {
            pins.add_loose(pin(Some(NamespaceId(9)), 21));
        }
        let coverage = full();
        let seen = seen(&pins, &coverage, Producer::Walk);
        subject("/root/a").namespaces(seen).into_iter().map(|namespace| namespace.0).collect::<Vec<_>>()
    };
    let mounted = |written: &[u8]| vec![layer(written, Trace::Mounted)];
    assert_eq!(told(mounted(b"a"), vec![], false), [7]);
    assert_eq!(told(vec![], mounted(b"../root/a"), false), [8]);
    assert_eq!(told(mounted(b"a"), mounted(b"b"), false), [7]);
    assert_eq!(told(mounted(b"a"), mounted(b"a"), false), [] as [u64; 0], "it may be either");
    assert_eq!(told(mounted(b"b"), vec![], false), [] as [u64; 0]);
    assert_eq!(told(vec![layer(b"a", Trace::Filled)], vec![], false), [] as [u64; 0], "that one has no mount");
    assert_eq!(told(mounted(b"a"), vec![], true), [9], "the options of another one tell");
}
