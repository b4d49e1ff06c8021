use super::super::fence::FileKind;
use super::super::windows::Windows;
use super::*;
use crate::config::{KindRule, RemoveRule};
use proptest::prelude::*;
use regex::bytes::Regex;
use std::time::Duration;

const NOW: i64 = 1_000_000;

fn rules() -> RootConfig {
    RootConfig {
        name: "test".into(),
        path: "/test".into(),
        owner: Some(1000),
        pattern: Some(Regex::new(r"^sb_(?<pid>\d+)$").unwrap()),
        kind: KindRule::Directory,
        mode: Some(0o700),
        min_age: Duration::from_secs(60),
        backstop: Some(Duration::from_secs(86_400)),
        retain: Some(Duration::from_secs(120)),
        retain_from: None,
        remove: RemoveRule::Empty,
        pile: None,
        once: false,
        leases: true,
        command: None,
        claims: None,
    }
}

fn free() -> Facts {
    let at = Some(Timestamp::of(NOW - 3600, 0));
    Facts {
        name: b"sb_17".to_vec(),
        pinned: false,
        mounted: false,
        status: Status {
            kind: FileKind::Directory,
            mode: 0o700,
            owner: 1000,
            size: 0,
            birth: at,
            changed: at,
            modified: at,
        },
        spoken: Spoken::default(),
        record: Record::Unasked,
        windows: Windows::default(),
        process: Process::Dead,
        lease: Lease::Free,
        contents: Contents::Empty,
        doubt: false,
        complete: true,
        covered: true,
    }
}

fn verdict(facts: &Facts) -> Result<(), Reason> {
    judge(&rules(), facts, Timestamp::of(NOW, 0))
}

fn born(facts: &mut Facts, seconds_ago: i64) {
    facts.status.birth = Some(Timestamp::of(NOW - seconds_ago, 0));
}

type Fault = fn(&mut Facts);

/// Each fault that a fence catches, in the order in which the reasons win.
fn faults() -> Vec<(Reason, Fault)> {
    vec![
        (Reason::Pinned, |facts| facts.pinned = true),
        (Reason::Name, |facts| facts.name = b"other".to_vec()),
        (Reason::Pinned, |facts| facts.mounted = true),
        (Reason::Kind, |facts| facts.status.kind = FileKind::Link),
        (Reason::Owner, |facts| facts.status.owner = 0),
        (Reason::Mode, |facts| facts.status.mode = 0o755),
        (Reason::Young, |facts| born(facts, 59)),
        (Reason::KeepUntil, |facts| facts.spoken.kept = true),
        (Reason::Claimed, |facts| facts.spoken.claimed = true),
        (Reason::Retained, |facts| {
            if facts.status.birth > Some(Timestamp::of(NOW - 60, 0)) {
                return;
            }
            born(facts, 119);
        }),
        (Reason::PidAlive, |facts| facts.process = Process::Alive { started: None }),
        (Reason::Leased, |facts| facts.lease = Lease::Held),
        (Reason::NotEmpty, |facts| facts.contents = Contents::Something),
        (Reason::Pinned, |facts| facts.doubt = true),
        (Reason::NoEvidence, |facts| (facts.complete, facts.covered) = (false, false)),
    ]
}

#[test]
fn each_fence_alone_keeps_with_its_own_reason() {
    assert_eq!(verdict(&free()), Ok(()));
    for (index, (reason, fault)) in faults().into_iter().enumerate() {
        let mut facts = free();
        fault(&mut facts);
        assert_eq!(verdict(&facts), Err(reason), "fault {index}");
    }
}

#[test]
fn the_backstop_lifts_the_process_and_nothing_else() {
    let mut facts = free();
    facts.process = Process::Alive { started: None };
    born(&mut facts, 86_401);
    assert_eq!(verdict(&facts), Ok(()));
    facts.name = b"sb_0".to_vec();
    assert_eq!(verdict(&facts), Ok(()));
    born(&mut facts, 3600);
    assert_eq!(verdict(&facts), Err(Reason::PidAlive));
    born(&mut facts, 86_401);
    facts.status.owner = 1;
    assert_eq!(verdict(&facts), Err(Reason::Owner));
}

#[test]
fn evidence_that_is_complete_or_covered_is_enough() {
    for (complete, covered, goes) in
        [(true, true, true), (true, false, true), (false, true, true), (false, false, false)]
    {
        assert_eq!(verdict(&Facts { complete, covered, ..free() }).is_ok(), goes);
    }
}

proptest! {
    /// Whatever faults come together, the first in the documented order is told.
    #[test]
    fn the_first_reason_wins(set in proptest::collection::vec(any::<bool>(), 15)) {
        let mut facts = free();
        let mut expected = Ok(());
        for ((reason, fault), set) in faults().into_iter().zip(set) {
            if set {
                fault(&mut facts);
                expected = expected.and(Err(reason));
            }
        }
        prop_assert_eq!(verdict(&facts), expected);
    }

    /// Adding a pin never turns keep into go, and nothing makes a pinned entry go.
    #[test]
    fn a_pin_always_wins(set in proptest::collection::vec(any::<bool>(), 15)) {
        let mut facts = free();
        for ((_, fault), set) in faults().into_iter().zip(set) {
            if set {
                fault(&mut facts);
            }
        }
        facts.pinned = true;
        prop_assert_eq!(verdict(&facts), Err(Reason::Pinned));
    }
}
