use super::*;

const NAMESPACE: NamespaceId = NamespaceId(7);

fn attached(mount: u64) -> Sight {
    Sight { mount: MountId(mount), namespace: Some(NAMESPACE), state: State::Attached }
}

fn loose(mount: u64, state: State) -> Sight {
    Sight { mount: MountId(mount), namespace: None, state }
}

fn entries(pinned: &[(&str, Sight)]) -> Entries {
    let mut entries = BTreeMap::<Vec<u8>, BTreeSet<Sight>>::new();
    for (entry, sight) in pinned {
        entries.entry(entry.as_bytes().to_vec()).or_default().insert(*sight);
    }
    vec![BTreeMap::new(), entries]
}

fn taken(producer: Producer, first: &[(&str, Sight)], last: &[(&str, Sight)], namespaces: &[NamespaceId]) -> Taken {
    let namespaces = namespaces.iter().copied().collect();
    Taken { producer, entries: [entries(first), entries(last)], namespaces }
}

/// What each producer saw all the time.
fn differences(scan: &[(&str, Sight)], live: &[(&str, Sight)], walk: &[(&str, Sight)]) -> Vec<Difference> {
    let sets = [
        taken(Producer::Scan, scan, scan, &[NAMESPACE]),
        taken(Producer::Live, live, live, &[NAMESPACE]),
        taken(Producer::Walk, walk, walk, &[]),
    ];
    assert_eq!(compare(0, &sets), [], "the other root has no entries");
    compare(1, &sets)
}

#[track_caller]
fn only(differences: Vec<Difference>) -> (Vec<Producer>, Vec<Producer>, String) {
    let [Difference { root, entry, seen_by, missed_by, cause }] = &*differences else {
        panic!("one difference: {differences:?}")
    };
    assert_eq!((*root, entry.as_slice()), (1, b"a".as_slice()));
    (seen_by.clone(), missed_by.clone(), cause.clone().unwrap_or_default())
}

#[test]
fn producers_that_show_the_same_entries_agree() {
    let seen = [("a", attached(1)), ("b", attached(2))];
    assert_eq!(differences(&seen, &seen, &seen), []);
    assert_eq!(differences(&[], &[], &[]), []);
    // By other mounts, such as those of a peer: the entry is pinned all the same.
    assert_eq!(differences(&[("a", attached(1))], &[("a", attached(2))], &[("a", loose(3, State::Detached))]), []);
}

#[test]
fn what_the_walk_alone_sees_is_told_with_why_no_table_shows_it() {
    for (state, word) in [(State::Detached, "detached tree"), (State::Unmounted, "unmounted while busy")] {
        let (seen_by, missed_by, cause) = only(differences(&[], &[], &[("a", loose(1, state))]));
        assert_eq!((seen_by, missed_by), (vec![Producer::Walk], vec![Producer::Live, Producer::Scan]));
        assert!(cause.contains(word), "{cause}");
    }
}

#[test]
fn a_namespace_that_was_not_read_is_told_from_one_that_was_not_read_whole() {
    let walk = taken(Producer::Walk, &[("a", attached(1))], &[("a", attached(1))], &[]);
    let of = |namespaces: &[NamespaceId]| taken(Producer::Scan, &[], &[], namespaces);
    let (_, _, unread) = only(compare(1, &[of(&[]), walk]));
    assert!(unread.contains("namespace 7 was not read"), "{unread}");
    let (_, _, hidden) = only(differences(&[], &[], &[("a", attached(1))]));
    assert!(hidden.contains("root directory hides"), "{hidden}");
}

#[test]
fn what_the_walk_alone_misses_is_a_layer() {
    let (seen_by, missed_by, cause) = only(differences(&[("a", attached(1))], &[("a", attached(1))], &[]));
    assert_eq!((seen_by, missed_by), (vec![Producer::Live, Producer::Scan], vec![Producer::Walk]));
    assert!(cause.contains("overlay"), "{cause}");
}

#[test]
fn one_table_against_another_has_no_known_cause() {
    let seen = [("a", attached(1))];
    let (seen_by, missed_by, cause) = only(differences(&seen, &[], &seen));
    assert_eq!((seen_by, missed_by), (vec![Producer::Walk, Producer::Scan], vec![Producer::Live]));
    assert_eq!(cause, "");
}

#[test]
fn a_renamed_entry_is_told_as_such() {
    let (now, before) = ([("a", attached(1))], [("old", attached(1))]);
    let found = differences(&now, &before, &now);
    assert_eq!(found.len(), 2, "under either name: {found:?}");
    for (difference, other) in found.iter().zip(["old", "a"]) {
        let cause = difference.cause.as_deref().unwrap_or_default();
        assert_eq!(cause, format!("renamed while in use: the same mount shows on {other}"));
    }
}

#[test]
fn what_changed_between_the_two_times_is_no_difference() {
    let (none, some) = (&[][..], &[("a", attached(1))][..]);
    let walk = taken(Producer::Walk, some, some, &[]);
    // Seen too late, or gone meanwhile: neither seen nor missed.
    for (first, last) in [(none, some), (some, none)] {
        let scan = taken(Producer::Scan, first, last, &[NAMESPACE]);
        assert_eq!(compare(1, &[scan, taken(Producer::Walk, some, some, &[])]), []);
    }
    let walk_again = taken(Producer::Walk, some, none, &[]);
    assert_eq!(compare(1, &[taken(Producer::Scan, none, none, &[]), walk_again]), []);
    assert_eq!(compare(1, &[taken(Producer::Scan, none, none, &[]), walk]).len(), 1);
}
