//! Manifests that cannot be read at the moment.

use super::support::*;
use crate::config::{RemoveRule, RetainFrom, RootConfig, WithoutRecord};
use crate::model::report::{Reason, Verdict};
use crate::sys::directory::lease_against_opening;
use std::fs;
use std::time::Duration;

/// Neither absent nor broken: the entry stays for this pass, though both rules would let it go.
#[test]
fn a_manifest_that_cannot_be_read_now_holds_its_entry() {
    let room = Room::new();
    let rule = WithoutRecord::Birth;
    let from = RetainFrom { file: c"m".into(), field: "at".into(), deadline: None, absent: rule, broken: rule };
    let retain = Some(Duration::from_nanos(1));
    let rules = RootConfig { remove: RemoveRule::Tree, retain, retain_from: Some(from), ..room.rules() };
    for name in ["held", "free"] {
        fs::create_dir(room.entry(name)).unwrap();
        fs::write(room.entry(name).join("m"), "{\"at\": 1}").unwrap();
    }
    // Opened outside of the root, for a descriptor on an entry holds it by itself.
    fs::hard_link(room.entry("held/m"), room.path("outside/m")).unwrap();
    let file = fs::File::options().read(true).write(true).open(room.path("outside/m")).unwrap();
    lease_against_opening(&file).unwrap();
    let told = run(&rules, &mut Evidence::of(&room));
    assert_eq!(told.of("held"), (Verdict::Kept, Some(Reason::Retained)));
    assert!(told.detail("held").contains("at the moment"), "{}", told.detail("held"));
    assert_eq!(told.summary.removed, 1);
    drop(file);
    assert_eq!(run(&rules, &mut Evidence::of(&room)).summary.removed, 1);
}
