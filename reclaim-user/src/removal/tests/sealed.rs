//! Condemned entries that evidence compares with what they were when they were looked at, instead of another look at each.

use super::support::{Evidence, Room, held, options, pattern, run, run_with};
use crate::config::{ClaimsConfig, ClaimsSource, KindRule, RemoveRule, RetainFrom, RootConfig, WithoutRecord};
use crate::evidence::references::Finder;
use crate::evidence::source::EvidenceSource as _;
use crate::model::fence::Timestamp;
use crate::model::report::{Reason, Verdict};
use crate::model::verdict;
use crate::removal::condemn::{Batch, Condemned, Group, condemn, key};
use crate::removal::confirm::{Denied, confirm, prove};
use crate::removal::examine::{Examined, Examiner, Look, now};
use crate::removal::leases::Leases;
use crate::removal::lock::Store;
use crate::removal::place::Root;
use crate::removal::restore::restore;
use crate::removal::tests::support::condemned as condemned_path;
use crate::removal::words::Words;
use crate::removal::{KeepStore, KeptEntry, PassOptions, RootState};
use nix::fcntl::{AT_FDCWD, Flock, FlockArg, RenameFlags, renameat2};
use nix::mount::{MsFlags, mount};
use std::ffi::CString;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const RESTORED: fn(Reason) -> (Verdict, Option<Reason>) = |reason| (Verdict::Restored, Some(reason));
const REMOVED: (Verdict, Option<Reason>) = (Verdict::Removed, None);

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// A pass in which something is done to the condemned `a`; `b` goes in any case.
fn becomes(
    rules: impl FnOnce(&mut RootConfig),
    options: &PassOptions,
    says_unchanged: bool,
    act: fn(&Path),
) -> (Verdict, Option<Reason>) {
    let room = Room::new();
    for name in ["a", "b"] {
        room.stale(name);
    }
    let (mut evidence, root) = (Evidence::of(&room), room.root());
    evidence.says_unchanged = says_unchanged;
    evidence.finder = (!says_unchanged).then(Finder::default);
    evidence.while_condemned = Some(Box::new(move || act(&condemned_path(&root, "a"))));
    let mut of_room = room.rules();
    rules(&mut of_room);
    let told = run_with(&of_room, &mut evidence, options, &mut RootState::default()).unwrap();
    assert_eq!(told.of("b"), REMOVED, "{told:#?}");
    assert_eq!(room.names().contains(&"a".to_owned()), told.of("a").0 == Verdict::Restored, "{told:#?}");
    told.of("a")
}

#[test]
fn host_an_entry_whose_mode_or_owner_changed_while_it_was_condemned_is_given_back() {
    // With and without the locks on entries.
    for options in [options(), held(0)] {
        for leases in [true, false] {
            let with = move |mode, owner| {
                move |rules: &mut RootConfig| (rules.mode, rules.owner, rules.leases) = (mode, owner, leases)
            };
            let becomes = |rules: &dyn Fn(&mut RootConfig), act| becomes(rules, &options, false, act);
            assert_eq!(becomes(&with(Some(0o700), None), |a| set_mode(a, 0o750)), RESTORED(Reason::Mode));
            assert_eq!(becomes(&with(None, Some(0)), |a| chown(a, Some(1000), None).unwrap()), RESTORED(Reason::Owner));
            assert_eq!(becomes(&with(Some(0o700), Some(0)), |_| {}), REMOVED);
            assert_eq!(becomes(&with(None, None), |a| set_mode(a, 0o750)), REMOVED, "nobody asks for its mode");
        }
    }
}

/// Pins down that it is the comparison that is relied on: no look would let it go.
#[test]
fn what_evidence_says_is_unchanged_is_not_looked_at_again() {
    let mode = |leases| move |rules: &mut RootConfig| (rules.mode, rules.leases) = (Some(0o700), leases);
    let act: fn(&Path) = |a| set_mode(a, 0o750);
    assert_eq!(becomes(mode(true), &options(), true, act), REMOVED);
    assert_eq!(becomes(mode(false), &options(), true, act), REMOVED);
    // Somebody may have locked it since: it has to be looked at.
    assert_eq!(becomes(mode(true), &held(0), true, act), RESTORED(Reason::Mode));
}

#[test]
fn what_is_kept_or_claimed_meanwhile_is_kept_though_it_is_unchanged() {
    let room = Room::new();
    for name in ["a", "b"] {
        room.stale(name);
    }
    let (state, root) = (room.path("state"), room.root());
    fs::create_dir(&state).unwrap();
    let mut evidence = Evidence::of(&room);
    evidence.says_unchanged = true;
    let (keeps, entry) = (KeepStore::of(&state), KeptEntry::open(&room.entry("a"), [&*root].into_iter(), 0).unwrap());
    // It is told that the entry is gone, and it is kept for all that.
    evidence.while_condemned = Some(Box::new(move || drop(keeps.keep(&entry, i64::MAX, true, now()).unwrap_err())));
    let keeping = PassOptions { state_dir: Some(state), ..options() };
    let told = run_with(&room.rules(), &mut evidence, &keeping, &mut RootState::default()).unwrap();
    assert_eq!((told.of("a"), told.of("b")), (RESTORED(Reason::KeepUntil), REMOVED), "{told:#?}");

    room.stale("b");
    let live = room.path("live");
    fs::write(&live, "\n").unwrap();
    let claims = ClaimsConfig { source: ClaimsSource::File(live.clone()), timeout: Duration::from_secs(60) };
    evidence.while_condemned = Some(Box::new(move || fs::write(&live, "a\n").unwrap()));
    let told = run(&RootConfig { claims: Some(claims), ..room.rules() }, &mut evidence);
    assert_eq!((told.of("a"), told.of("b")), (RESTORED(Reason::Claimed), REMOVED), "{told:#?}");
}

#[test]
fn a_file_is_looked_at_again_though_it_is_unchanged() {
    let room = Room::new();
    fs::write(room.entry("a"), "").unwrap();
    let (mut evidence, root) = (Evidence::of(&room), room.root());
    evidence.says_unchanged = true;
    // Nothing else tells that it holds something: unlink(2) asks for nothing.
    evidence.while_condemned = Some(Box::new(move || fs::write(condemned_path(&root, "a"), "work").unwrap()));
    let told = run(&RootConfig { kind: KindRule::Any, ..room.rules() }, &mut evidence);
    assert_eq!(told.of("a"), RESTORED(Reason::NotEmpty), "{told:#?}");
}

/// A pass that is made one step at a time.
struct Steps {
    room: Room,
    rules: RootConfig,
    root: Root,
    examiner: Examiner,
    store: Option<Store>,
    group: Group,
}

impl Steps {
    /// `names` are in the root. With a store, or without room for one.
    fn begin(names: &[&str], with_store: bool) -> Self {
        let room = Room::new();
        for name in names {
            room.stale(name);
        }
        let rules = RootConfig { mode: Some(0o700), leases: false, ..room.rules() };
        let root = Root::open(&room.root()).unwrap().unwrap();
        let examiner = Examiner::new(&root, Arc::new(Words::silence()));
        let store = with_store.then(|| Store::open(&root, false).ok().unwrap());
        Self { room, rules, root, examiner, store, group: Group::new() }
    }

    fn look(&mut self, name: &str) -> (CString, Examined) {
        let name = CString::new(name).unwrap();
        self.examiner.refresh();
        let named = verdict::by_name(&self.rules, name.to_bytes(), false).unwrap();
        let examined = self.examiner.examine(&self.rules, named, &self.root.directory, &name, Look::First).unwrap();
        (name, examined)
    }

    fn condemn(&mut self, (name, examined): (CString, Examined)) {
        let (store, leases) = (self.store.as_ref(), Leases::up_to(0));
        condemn(store, &self.root.directory, &mut self.group, name, examined, leases).unwrap();
    }

    /// Confirms all entries, and gives those back that have to be. What was denied, by name.
    fn confirm(&mut self, evidence: &mut Evidence) -> Vec<(String, Denied)> {
        let Self { root, rules, examiner, group: Group { batches, entries, .. }, .. } = self;
        let [batch] = batches.as_slice() else { panic!("{batches:?}") };
        let batch: &Batch = batch;
        let view = evidence.confirm(0, &[batch.place(entries.iter())]).unwrap();
        let unchanged = batch.is_unchanged(&view, entries.iter());
        let mut denied = Vec::new();
        for condemned in std::mem::take(entries) {
            let proof = prove(rules, 0, &view, &key(batch, &condemned), &condemned, unchanged, false);
            if let Err((condemned, told)) = confirm(rules, examiner, batch, condemned, proof) {
                let mut told = told.unwrap();
                restore(&root.directory, batch, &condemned, &mut told);
                denied.push((condemned.name.into_string().unwrap(), told));
            }
        }
        denied.sort_by(|(one, _), (other, _)| one.cmp(other));
        denied
    }

    /// The same with evidence that says that all is unchanged. The reason, where the only entry is denied.
    fn confirm_unchanged(&mut self) -> Option<Reason> {
        let mut evidence = Evidence::of(&self.room);
        evidence.says_unchanged = true;
        self.confirm(&mut evidence).pop().map(|(_, denied)| denied.reason)
    }
}

/// Which names are another's then, and what does that.
type Swap = (&'static [&'static str], fn(&Room));

#[test]
fn host_what_took_an_entrys_place_before_it_was_condemned_is_given_back_by_the_confirmation() {
    let acts: [Swap; 3] = [
        // Made anew: it has the same mode and the same owner.
        (&["a"], |room| {
            fs::create_dir(room.path("other")).unwrap();
            set_mode(&room.path("other"), 0o700);
            fs::remove_dir(room.entry("a")).unwrap();
            fs::rename(room.path("other"), room.entry("a")).unwrap();
        }),
        // A file.
        (&["a"], |room| {
            fs::remove_dir(room.entry("a")).unwrap();
            fs::write(room.entry("a"), "").unwrap();
            set_mode(&room.entry("a"), 0o700);
        }),
        // Each of the two was looked at, and each by the name of the other: the one may be the other's process's.
        (&["a", "b"], |room| {
            let [a, b] = ["a", "b"].map(|name| room.entry(name));
            renameat2(AT_FDCWD, &a, AT_FDCWD, &b, RenameFlags::RENAME_EXCHANGE).unwrap();
        }),
    ];
    for (swapped, act) in acts {
        let mut steps = Steps::begin(&["a", "b", "c"], true);
        let looked = ["a", "b", "c"].map(|name| steps.look(name));
        act(&steps.room);
        let inodes = || ["a", "b"].map(|name| fs::symlink_metadata(steps.room.entry(name)).unwrap().ino());
        let before = inodes();
        looked.into_iter().for_each(|looked| steps.condemn(looked));
        assert_eq!(steps.room.names(), [".reclaim"], "whatever it is lies condemned");
        let mut evidence = Evidence::of(&steps.room);
        evidence.finder = Some(Finder::default());
        let denied = steps.confirm(&mut evidence);
        let names: Vec<&str> = denied.iter().map(|(name, _)| &**name).collect();
        assert_eq!(names, swapped, "{denied:?}");
        for (name, told) in &denied {
            let why = told.detail.as_deref().unwrap_or_default();
            assert!(told.reason == Reason::Failed && why == "it is not what was condemned any more", "{told:?}");
            let at = usize::from(name == "b");
            assert_eq!(fs::symlink_metadata(steps.room.entry(name)).unwrap().ino(), before[at], "{name}");
        }
    }
}

#[test]
fn host_entries_that_nobody_touched_are_found_unchanged() {
    let mut steps = Steps::begin(&["a", "b", "c"], true);
    for name in ["a", "b", "c"] {
        let looked = steps.look(name);
        steps.condemn(looked);
    }
    let Group { batches, entries, .. } = &steps.group;
    let (mut evidence, [batch]) = (Evidence::of(&steps.room), batches.as_slice()) else { panic!("{batches:?}") };
    evidence.finder = Some(Finder::default());
    let view = evidence.confirm(0, &[batch.place(entries.iter())]).unwrap();
    assert!(batch.is_unchanged(&view, entries.iter()));
    // A mount shows other owners than the file system has.
    let shown_otherwise = |owner| Condemned { owner, ..Condemned::leftover(c"b".into(), None, 0, &steps.root.status) };
    assert!(batch.is_unchanged(&view, [&shown_otherwise(0)].into_iter()));
    assert!(!batch.is_unchanged(&view, [&shown_otherwise(1000)].into_iter()));
}

#[test]
fn a_clock_that_was_set_back_and_a_batch_without_a_directory_of_its_own_are_reasons_to_look_again() {
    let changed = |with_store: bool, set_back: bool| {
        let mut steps = Steps::begin(&["a"], with_store);
        let mut looked = steps.look("a");
        if set_back {
            looked.1.at = Timestamp(now().0 + 3_600_000_000_000);
        }
        steps.condemn(looked);
        let entry = steps.group.entries.first().unwrap();
        let lies = match with_store {
            true => condemned_path(&steps.room.root(), "a"),
            false => steps.room.entry(entry.stored().to_str().unwrap()),
        };
        set_mode(&lies, 0o750);
        steps.confirm_unchanged()
    };
    assert_eq!(changed(true, false), None);
    assert_eq!(changed(true, true), Some(Reason::Mode), "its age may be too low by what the clock says");
    assert_eq!(changed(false, false), Some(Reason::Mode), "whoever may look into the root has a path to it");
}

/// What a number alone does not tell is looked at: ext4 gives the next directory that of the last one removed, and each
/// subvolume of btrfs has the same.
#[test]
fn an_entry_is_compared_only_where_its_status_is_all_that_it_is_judged_by() {
    let mut steps = Steps::begin(&["a"], true);
    assert_eq!(steps.look("a").1.mode, Some(0o40700));
    steps.rules.remove = RemoveRule::Tree;
    assert_eq!(steps.look("a").1.mode, None, "what it holds");
    steps.rules.remove = RemoveRule::Empty;
    let (field, absent) = ("begun".to_owned(), WithoutRecord::Birth);
    steps.rules.retain_from =
        Some(RetainFrom { file: c"manifest".into(), field, deadline: None, absent, broken: absent });
    assert_eq!(steps.look("a").1.mode, None, "what its manifest says");

    let room = Room::new();
    for name in ["lower", "upper", "work", "merged"] {
        fs::create_dir(room.path(name)).unwrap();
    }
    let at = |name: &str| room.path(name).display().to_string();
    let options = format!("lowerdir={},upperdir={},workdir={}", at("lower"), at("upper"), at("work"));
    mount(Some("overlay"), &room.path("merged"), Some("overlay"), MsFlags::empty(), Some(&*options)).unwrap();
    fs::create_dir(room.path("merged/a")).unwrap();
    let root = Root::open(&room.path("merged")).unwrap().unwrap();
    let mut examiner = Examiner::new(&root, Arc::new(Words::silence()));
    let rules = RootConfig { pattern: pattern("a"), ..room.rules() };
    let named = verdict::by_name(&rules, b"a", false).unwrap();
    let examined = examiner.examine(&rules, named, &root.directory, c"a", Look::First).unwrap();
    assert_eq!(examined.mode, None, "another file system");
}

/// Who locks an entry that is condemned had it open before.
#[test]
fn a_lock_that_somebody_took_meanwhile_is_seen_though_the_entry_is_unchanged() {
    let room = Room::new();
    room.stale("a");
    let mut opened = Some(File::open(room.entry("a")).unwrap());
    let (tell, told_of) = std::sync::mpsc::channel();
    let mut evidence = Evidence::of(&room);
    evidence.says_unchanged = true;
    evidence.while_condemned = Some(Box::new(move || {
        let lock = Flock::lock(opened.take().unwrap(), FlockArg::LockExclusiveNonblock);
        tell.send(lock.map_err(|(_, error)| error).unwrap()).unwrap();
    }));
    let told = run_with(&room.rules(), &mut evidence, &held(0), &mut RootState::default()).unwrap();
    assert_eq!(told.of("a"), RESTORED(Reason::Leased), "{told:#?}");
    drop(told_of.recv().unwrap());
}
