//! What becomes of an entry that changes between two looks at it.

use super::*;
use crate::removal::tests::support::Room;
use nix::mount::{MsFlags, mount, umount};
use std::fs;

fn opened(room: &Room) -> (Root, Examiner) {
    let root = Root::open(&room.root()).unwrap().unwrap();
    let examiner = Examiner::new(&root, std::sync::Arc::new(super::Words::silence()));
    (root, examiner)
}

#[test]
fn an_entry_that_vanished_is_no_fault() {
    let room = Room::new();
    let (root, mut examiner) = opened(&room);
    let rules = room.rules();
    let named = || verdict::by_name(&rules, b"absent", false).unwrap();
    let stop = examiner.examine(&rules, named(), &root.directory, c"absent", Look::First).unwrap_err();
    assert!(matches!(stop, Stop::Vanished), "{stop:?}");
    // Between the two calls.
    room.stale("a");
    let file = status_at(&root.directory, c"a").unwrap();
    fs::remove_dir(room.entry("a")).unwrap();
    let stop = examiner.open(&rules, &root.directory, c"a", &file, None, Look::First).unwrap_err();
    assert!(matches!(stop, Stop::Vanished), "{stop:?}");
}

#[test]
fn an_entry_that_is_mounted_on_or_replaced_before_it_is_opened_is_kept() {
    let room = Room::new();
    let (root, mut examiner) = opened(&room);
    let rules = room.rules();
    for name in ["a", "b"] {
        room.stale(name);
    }
    let file = status_at(&root.directory, c"a").unwrap();
    let stop = examiner.open(&rules, &root.directory, c"b", &file, None, Look::First).unwrap_err();
    assert!(matches!(&stop, Stop::Keep(Reason::Failed, Some(why)) if why.contains("replaced")), "{stop:?}");
    let (from, to) = (room.path("outside"), room.entry("a"));
    mount(Some(&from), &to, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    let stop = examiner.open(&rules, &root.directory, c"a", &file, None, Look::First).unwrap_err();
    assert!(matches!(stop, Stop::Keep(Reason::Pinned, None)), "{stop:?}");
    umount(&to).unwrap();
}
