//! The protocol of removal, as a model that is checked in every state that it can come to.
//!
//! Testing on a real kernel shows races that happen; this shows those that could. The world of the model is small: one
//! or two names in a root, at most three entries at a time, one or two launchers, one or two reclaimers. Within it
//! everything is tried: each step of anybody between any two steps of anybody else. [`stateright`] explores the states and
//! checks what must hold in each of them; `leads_on.rs` adds what stateright has no word for.
//!
//! # Who does what
//!
//! - **Launchers** (`launcher.rs`) make their directory, bind it by path or by a descriptor that they opened before, and
//!   unmount. A mount call is five steps: enter, be counted in, look the source up, attach, leave. SIGKILL comes at any
//!   time, inside a call too. That a launcher verifies its mount needs no step: what it would see has to hold in each state.
//! - **Reclaimers** (`reclaimer.rs`) make passes, crash at any step, and begin anew with what was left over. Each step
//!   has the name of the function that takes it in the code; `mapping.rs` has the table, and looks the functions up.
//! - A **stranger** takes the name of an entry while that is condemned; an **owner** renames entries in the root, or has two
//!   of them exchange their names.
//!
//! # Where the model is coarser than the code, and why it may be
//!
//! - `list` consults a live set that may be as stale as it likes: every entry is let through to `examine` and `condemn`,
//!   used or not. Nothing may rest on it. For the same reason there are no other fences.
//! - The clock has two generations, the code more. That a call reads the generation and counts itself in later are two
//!   steps here. A generation is seen as empty in one step, though two counters are read: the code reads "left" before
//!   "entered", so they are equal only if it was empty at the first reading.
//! - Comparing entries with what they are sealed with, and the look at those that are not the same, are one step: `confirm`
//!   tells what took the place of an entry. One entry is examined at a time; the code looks ahead at many.
//! - A batch has no name here. In the code `begin_batch` makes another one whenever two entries would meet.
//! - The thread that removes a group while the next is condemned is one for every group, however small.
//! - Looking at all mounts is one step. So is looking at all references, and counting those to each entry.
//! - Evidence that cannot be taken, a call that hangs and a removal that fails can happen at any time. A call that hangs,
//!   whether the clock counted it in or it is from before, gives everything its name back.
//!
//! # What has to hold
//!
//! In every state: no mount has a source that was removed; no entry was replaced by another; at most one reclaimer is
//! inside a root; leave to remove is given only for what was examined. In every step: an entry ends only by `remove`, with
//! the leave that `confirm` gave for it.
//!
//! From every state, a crash or not, a way leads on: if nobody begins anything else and nothing fails, what is in use
//! gets its name back and what is not is removed. The only thing that may wait is an entry whose name is in use by
//! another one. And no entry stays condemned for ever while it is in use.
//!
//! # That the model can see
//!
//! Each precaution of the protocol is left out once, and a violation has to be found. The way to it is printed
//! (`--nocapture`).

mod launcher;
mod leads_on;
mod mapping;
mod protocol;
mod reclaimer;
mod world;

use leads_on::Graph;
use protocol::{
    Flaw, Locks, Look, NO_DEAD_PIN, NOTHING_LOST, ONE_INSIDE, ONLY_EXAMINED, Opening, Protocol, Swaps, Way, is_settled,
    removes_with_leave,
};
use stateright::{Checker as _, HasDiscoveries, Model as _};
use std::time::Instant;
use world::{Object, Place};

/// A launcher that binds by path: then a look at mounts is enough.
const PLAIN: Protocol = Protocol::PLAIN;
/// Two reclaimers.
const TWO: Protocol = Protocol { reclaimers: 2, entries: 2, stranger: false, ..PLAIN };
/// A launcher that binds by a descriptor, where nothing can be counted. The code looks for descriptors before it looks at
/// mounts, and once more.
const REFERENCES: Protocol =
    Protocol { launchers: &[Way::Descriptor], looks: &[Look::References, Look::Walk, Look::References], ..PLAIN };
/// The same where references can be counted, as in the code: the count comes last.
const COUNTED: Protocol = Protocol {
    looks: &[Look::References, Look::Walk, Look::References, Look::Count],
    reopening: true,
    silent_ends: true,
    opening: Opening::InTwoSteps,
    ..REFERENCES
};

/// Makes sure that nothing that must never be can be. Returns the number of states.
fn is_safe(what: &str, protocol: Protocol) -> usize {
    let begun = Instant::now();
    let checker = protocol.checker().threads(1).finish_when(HasDiscoveries::Any).spawn_bfs().join();
    let (states, steps) = (checker.unique_state_count(), checker.state_count());
    println!("{what}: {states} states, {steps} steps, {:.1?}", begun.elapsed());
    checker.assert_properties();
    states
}

/// Makes sure of that, and that a way leads on from every state.
fn holds(what: &str, protocol: Protocol) {
    let states = is_safe(what, protocol);
    let begun = Instant::now();
    let graph = Graph::explore(&protocol, |before, step| {
        assert!(removes_with_leave(before, step), "{what}: {step:?} ends an entry without leave in {before:#?}");
    });
    assert_eq!(graph.worlds.len(), states, "{what}: two explorations of one model differ");
    let unsettled = graph.stranded(true, |_| true, is_settled);
    assert!(unsettled.is_empty(), "{what}: no way leads on from {} states, as {:#?}", unsettled.len(), unsettled[0]);
    for object in 0..protocol.entries as Object {
        let in_use = |world: &world::World| world.is_pinned(object);
        let stuck = graph.stranded(false, in_use, |world| matches!(world.place(object), Place::Root(_)));
        assert!(
            stuck.is_empty(),
            "{what}: an entry in use stays condemned in {} states, as {:#?}",
            stuck.len(),
            stuck[0]
        );
    }
    println!("{what}: a way leads on from each of {states} states, {:.1?}", begun.elapsed());
}

/// Makes sure that a violation is found, and shows it.
fn breaks(what: &str, protocol: Protocol, property: &'static str) {
    let found = HasDiscoveries::AnyOf([property].into());
    let checker = protocol.checker().threads(1).finish_when(found).spawn_bfs().join();
    let path = checker.discovery(property).unwrap_or_else(|| panic!("{what}: nothing is found to violate: {property}"));
    println!("{what} violates: {property}");
    for step in path.into_actions() {
        println!("    {step:?}");
    }
}

#[test]
fn every_step_stands_for_a_function_of_the_code() {
    let variants = [
        Protocol { names: 2, entries: 2, owner: true, ..PLAIN },
        Protocol { swaps: Swaps::AtOnce, names: 2, entries: 2, owner: true, ..PLAIN },
        Protocol { full: true, entries: 2, ..PLAIN },
        Protocol { entries: 2, doubts: true, ..COUNTED },
    ];
    let graphs = variants.map(|protocol| Graph::explore(&protocol, |_, _| {}));
    mapping::check(&graphs.into_iter().flat_map(|graph| graph.functions).collect());
}

#[test]
fn binds_by_path_are_safe_and_every_crash_leads_on() {
    holds("one launcher", PLAIN);
    holds("a file system that is full at times", Protocol { full: true, entries: 2, ..PLAIN });
    is_safe("two launchers", Protocol { launchers: &[Way::Path, Way::Path], entries: 2, ..PLAIN });
}

/// Between the look at an entry and its rename the owner may put another one in its place, which is in use or not.
#[test]
fn what_took_an_entrys_place_is_told_at_once_or_by_the_confirmation() {
    let owner = Protocol { names: 2, entries: 2, owner: true, ..PLAIN };
    holds("an owner who renames, told at once", Protocol { swaps: Swaps::AtOnce, ..owner });
    holds("an owner who renames, told by the confirmation", owner);
    holds("an owner who renames, three entries and no launcher", Protocol { entries: 3, launchers: &[], ..owner });
    is_safe("an owner who renames, three entries", Protocol { entries: 3, ..owner });
    holds("an owner who renames, counted", Protocol { names: 2, owner: true, entries: 2, ..COUNTED });
    breaks("what is believed", Protocol { flaw: Some(Flaw::BelievesSwapped), ..owner }, ONLY_EXAMINED);
}

#[test]
fn two_reclaimers_keep_out_of_each_others_way() {
    is_safe("two reclaimers", TWO);
    holds("two reclaimers and no launcher", Protocol { launchers: &[], ..TWO });
    breaks("a lock that keeps nobody out", Protocol { flaw: Some(Flaw::NoLock), ..TWO }, ONE_INSIDE);
    breaks("a lock on a store that is gone", Protocol { flaw: Some(Flaw::NoLeadsTo), ..TWO }, ONE_INSIDE);
}

/// Where there is no room for a store the root is locked instead, and whoever makes a store later has to heed that.
#[test]
fn the_lock_of_the_root_keeps_out_who_finds_room_for_a_store() {
    // Whom they let in does not depend on launchers.
    let full = Protocol { full: true, launchers: &[], ..TWO };
    breaks("two kinds of locks that do not heed each other", Protocol { locks: Locks::Apart, ..full }, ONE_INSIDE);
    is_safe("two kinds of locks", full);
}

#[test]
fn binds_by_descriptor_are_safe_where_references_are_looked_for() {
    is_safe("by descriptor", REFERENCES);
    holds("by descriptor, with less room", Protocol { entries: 2, ..REFERENCES });
    let launchers = &[Way::Path, Way::Descriptor];
    is_safe("by path and by descriptor", Protocol { launchers, entries: 2, ..REFERENCES });
    is_safe("references once, before mounts", Protocol { looks: &[Look::References, Look::Walk], ..REFERENCES });
}

#[test]
fn binds_by_descriptor_are_not_safe_where_references_are_not_looked_for() {
    breaks("mounts alone", Protocol { looks: PLAIN.looks, ..REFERENCES }, NO_DEAD_PIN);
    let looks = &[Look::Walk, Look::References];
    breaks("references after mounts", Protocol { looks, ..REFERENCES }, NO_DEAD_PIN);
}

/// No table shows a descriptor that open(2) has not handed out yet, and the clock does not count that call.
#[test]
fn an_open_call_under_way_is_not_seen() {
    breaks("open in two steps", Protocol { opening: Opening::InTwoSteps, ..REFERENCES }, NO_DEAD_PIN);
}

/// Who opens a descriptor through a mount, unmounts, and binds by the descriptor again, is seen by neither look if each
/// comes at the wrong time, however many there are.
#[test]
fn a_mount_that_turns_into_a_descriptor_and_back_can_escape_any_number_of_looks() {
    let reopening = Protocol { reopening: true, entries: 2, stranger: false, ..REFERENCES };
    use Look::{References, Walk};
    let orders: [&[Look]; 5] = [
        &[References, Walk, References],
        &[Walk, References, Walk],
        &[References, Walk, References, Walk],
        &[References, Walk, References, Walk, References],
        &[References, Walk, References, Walk, References, Walk, References],
    ];
    for looks in orders {
        breaks("a mount becomes a descriptor", Protocol { looks, ..reopening }, NO_DEAD_PIN);
    }
}

/// What makes a reference a mount is a call that the clock counts, so that a look at mounts and then one at references
/// is enough if no such call was made from the one to the other. The other order is not: mounts end without a call.
#[test]
fn looking_until_no_mount_call_is_made_meanwhile_leaves_no_way_to_escape() {
    let still = Protocol { reopening: true, until_still: true, silent_ends: true, entries: 2, ..REFERENCES };
    let (right, wrong) = (&[Look::Walk, Look::References], &[Look::References, Look::Walk]);
    holds("mounts, then references", Protocol { looks: right, ..still });
    breaks("references, then mounts", Protocol { looks: wrong, ..still }, NO_DEAD_PIN);
    let launchers = &[Way::Path, Way::Descriptor];
    is_safe("by path and by descriptor", Protocol { looks: right, launchers, ..still });
    // A call that nothing counts is what is left.
    breaks("open in two steps", Protocol { looks: right, opening: Opening::InTwoSteps, ..still }, NO_DEAD_PIN);
}

/// Whoever relies on an entry, in whatever way, refers to it at that moment: one count is enough, with calls of open(2)
/// under way too, and even without the wait.
#[test]
fn counting_references_leaves_no_way_to_escape() {
    holds("counted", Protocol { entries: 2, ..COUNTED });
    let launchers = &[Way::Path, Way::Descriptor];
    let alone = Protocol { looks: &[Look::Count], launchers, entries: 2, ..COUNTED };
    is_safe("the count alone", alone);
    is_safe("the count alone, without the wait", Protocol { flaw: Some(Flaw::NoWait), stranger: false, ..alone });
}

/// A thread may be inside a call from before of which nothing tells. The count finds what it is about to mount; where there
/// is none, nothing is settled.
#[test]
fn what_a_clock_in_doubt_does_not_settle_is_given_back() {
    holds("in doubt, counted", Protocol { doubts: true, entries: 2, ..COUNTED });
    let looks = &[Look::Walk, Look::References];
    let still = Protocol { reopening: true, until_still: true, silent_ends: true, entries: 2, looks, ..REFERENCES };
    holds("in doubt, by looks", Protocol { doubts: true, ..still });
    let believed = Some(Flaw::BelievesInDoubt);
    breaks("in doubt, and believed", Protocol { doubts: true, flaw: believed, ..still }, NO_DEAD_PIN);
    breaks("in doubt, by path, and believed", Protocol { doubts: true, flaw: believed, ..PLAIN }, NO_DEAD_PIN);
}

#[test]
fn the_naive_protocol_and_every_precaution_left_out_is_found_unsafe() {
    let without = |flaw| Protocol { flaw: Some(flaw), ..PLAIN };
    breaks("check, then delete", without(Flaw::Naive), NO_DEAD_PIN);
    breaks("no wait", without(Flaw::NoWait), NO_DEAD_PIN);
    breaks("no wait for calls from before the probes", without(Flaw::NoStragglers), NO_DEAD_PIN);
    breaks("no second look", without(Flaw::NoConfirm), NO_DEAD_PIN);
    breaks("leftovers without a second look", without(Flaw::LeftoversUnconfirmed), NO_DEAD_PIN);
    breaks("restoring over what has the name", without(Flaw::RestoreReplaces), NOTHING_LOST);
    breaks("restoring over what is mounted", without(Flaw::RestoreReplaces), NO_DEAD_PIN);
}
