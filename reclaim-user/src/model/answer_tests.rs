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

fn decide(pins: &PinSet, coverage: &Coverage, path: &str) -> Decision {
    subject(path).query(Seen { pins, coverage, tables: coverage, producer: Producer::Scan }).verdict
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
    let seen = Seen { pins: &pins, coverage: &coverage, tables: &tables, producer: Producer::Walk };
    let empty = |known_empty| Subject { known_empty, ..subject("/root/a") };
    assert_eq!(empty(true).query(seen).verdict, Decision::Free);
    assert_eq!(empty(false).query(seen).verdict, Decision::Unknown);
}

fn keys(value: &serde_json::Value) -> Vec<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

#[test]
fn shapes_are_those_of_the_contract() {
    let pins = set(&["/root/a"], vec![], true);
    let coverage = full();
    let seen = Seen { pins: &pins, coverage: &coverage, tables: &coverage, producer: Producer::Walk };
    let task = Task { pid: 1, comm: Name(b"x".into()), cgroup: Name(b"/".into()), unit: None, container: None };
    let tasks = BTreeMap::from([(NamespaceId(7), vec![task])]);
    let who = serde_json::to_value(subject("/root/a").who(seen, &tasks)).expect("json");
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
