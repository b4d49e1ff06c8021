use super::*;
use proptest::prelude::*;

fn status() -> Status {
    let at = Some(Timestamp::of(5, 7));
    Status { kind: FileKind::File, mode: 0o644, owner: 1000, size: 0, birth: at, changed: at, modified: at }
}

fn print(status: &Status) -> Print {
    Print::of(Device { major: 8, minor: 1 }, 42, status)
}

#[test]
fn only_the_file_that_was_made_is_a_placeholder() {
    let made = print(&status());
    let judged = |status: Status, inode: u64, same_boot| {
        let found = Print { inode, ..print(&status) };
        judge(&made, PlaceholderKind::File, &found, &status, same_boot, 1000)
    };
    assert_eq!(judged(status(), 42, true), Left::Placeholder);
    let later = Some(Timestamp::of(6, 0));
    for (other, inode) in [
        (status(), 43),
        (Status { birth: later, ..status() }, 42),
        (Status { birth: None, ..status() }, 42),
        (Status { modified: later, ..status() }, 42),
        (Status { size: 1, ..status() }, 42),
        (Status { owner: 1001, ..status() }, 42),
        (Status { kind: FileKind::Directory, ..status() }, 42),
        (Status { kind: FileKind::Link, ..status() }, 42),
    ] {
        assert!(matches!(judged(other, inode, true), Left::Another(_)), "{other:?} {inode}");
    }
}

#[test]
fn the_word_of_a_store_holds_for_its_owner_alone() {
    let status = status();
    let made = print(&status);
    let judged = |store| judge(&made, PlaceholderKind::File, &made, &status, true, store);
    assert_eq!((judged(1000), judged(0)), (Left::Placeholder, Left::Placeholder));
    assert!(matches!(judged(1001), Left::Another(_)), "somebody else's manifest names it");
}

#[test]
fn device_numbers_count_within_one_boot_only() {
    let made = print(&status());
    let elsewhere = Print { device: (8, 2), ..made };
    assert!(!made.is_same_file(&elsewhere, true) && made.is_same_file(&elsewhere, false));
}

#[test]
fn without_birth_times_a_change_makes_it_another_file() {
    let made = Print { birth: None, ..print(&status()) };
    assert!(made.is_same_file(&made, true));
    assert!(!made.is_same_file(&Print { modified: Some(1), ..made }, true));
    let unknown = Print { modified: None, ..made };
    assert!(!unknown.is_same_file(&unknown, true), "nothing tells it from the next file with its number");
}

#[test]
fn a_directory_may_have_been_worked_in() {
    let made = print(&status());
    let later = Status { kind: FileKind::Directory, modified: Some(Timestamp::of(9, 0)), size: 40, ..status() };
    assert_eq!(judge(&made, PlaceholderKind::Dir, &print(&later), &later, true, 1000), Left::Placeholder);
}

fn manifest() -> Manifest {
    let holder = Holder { pid: 7, pid_namespace: 4_026_531_836, command: PathArgument::of(b"bwrap") };
    let mut manifest = Manifest::new("boot".into(), holder, vec![PathArgument::of(b"/s\xff")]);
    manifest.placeholders.push(Placeholder {
        directory: PathArgument::of(b"/home/a b"),
        directory_inode: 3,
        name: PathArgument::of(b".env\xff"),
        kind: PlaceholderKind::File,
        temporary: None,
        print: Some(print(&status())),
        untold: false,
    });
    manifest
}

#[test]
fn a_manifest_is_read_as_it_was_written_and_names_its_files() {
    let manifest = manifest();
    let read = Manifest::read(&manifest.write()).expect("a manifest");
    assert_eq!(read, manifest);
    assert!(read.names(&print(&status()), "boot"));
    assert!(!read.names(&Print { inode: 1, ..print(&status()) }, "boot"));
}

#[test]
fn a_manifest_whose_names_lead_elsewhere_is_refused() {
    for name in ["", ".", "..", "a/b", "/etc", "a\0b", ".reclaim", ".reclaim-x"] {
        let mut bad = manifest();
        bad.placeholders[0].name = PathArgument::of(name.as_bytes());
        assert!(Manifest::read(&bad.write()).is_err(), "{name:?}");
        let mut bad = manifest();
        bad.placeholders[0].temporary = Some(name.to_owned());
        assert!(Manifest::read(&bad.write()).is_err(), "temporary {name:?}");
    }
    let mut bad = manifest();
    bad.placeholders[0].directory = PathArgument::of(b"relative");
    assert!(Manifest::read(&bad.write()).is_err());
    let mut bad = manifest();
    bad.placeholders[0].directory = PathArgument::of(b"/home/.reclaim/batch");
    assert!(Manifest::read(&bad.write()).is_err(), "what lies condemned is nobody's placeholder");
    let mut bad = manifest();
    bad.placeholders[0].temporary = Some("own".to_owned());
    assert!(Manifest::read(&bad.write()).is_err(), "a temporary name that could be anybody's");
    for text in [&b""[..], b"{}", b"[]", b"{\"version\":1}"] {
        assert!(Manifest::read(text).is_err());
    }
    let later = String::from_utf8(manifest().write()).expect("text").replace("\"version\": 1", "\"version\": 2");
    assert!(Manifest::read(later.as_bytes()).is_err_and(|why| why.contains("version 2")));
}

#[test]
fn a_word_counts_for_its_own_users_files() {
    let print = print(&status());
    let word = |user| Word { user, manifest: Some(manifest()) };
    for (user, own, counts) in [(1000, 0, true), (0, 1000, true), (7, 7, true), (7, 1000, false), (7, 0, false)] {
        assert_eq!(word(user).print_of(own, &print, "boot").is_some(), counts, "{user} {own}");
    }
    let silent = |user| Word { user, manifest: None };
    for (user, own, counts) in [(1000, 0, true), (0, 1000, true), (7, 7, true), (7, 1000, false), (7, 0, false)] {
        assert_eq!(silent(user).is_silent_on(own, &print), counts, "{user} {own}");
        assert!(silent(user).print_of(own, &print, "boot").is_none() && !word(user).is_silent_on(own, &print));
    }
    let touched = Print { modified: Some(9), ..print };
    assert_eq!(word(1000).print_of(0, &touched, "boot"), Some(print), "it tells the file as it was made");
    let later = Print { device: (9, 9), ..print };
    assert_eq!(word(1000).print_of(0, &later, "later boot"), Some(later));
}

#[test]
fn what_may_be_a_placeholder_is_relied_on_and_is_none() {
    let print = print(&status());
    let mut unsure = manifest();
    unsure.placeholders[0].untold = true;
    assert_eq!(Manifest::read(&unsure.write()), Ok(unsure.clone()));
    let word = |user, manifest: &Manifest| Word { user, manifest: Some(manifest.clone()) };
    assert!(unsure.names(&print, "boot") && word(1000, &unsure).print_of(0, &print, "boot").is_none());
    assert!(word(1000, &unsure).is_unsure_of(0, &print, "boot") && !word(7, &unsure).is_unsure_of(0, &print, "boot"));
    assert!(!word(1000, &manifest()).is_unsure_of(0, &print, "boot"), "one is sure");
    unsure.placeholders.push(manifest().placeholders.remove(0));
    assert!(!word(1000, &unsure).is_unsure_of(0, &print, "boot") && unsure.print_of(&print, "boot").is_some());
}

#[test]
fn a_directory_is_changed_by_whom_its_mode_lets() {
    for (mode, owner, group, may) in [
        (0o755, 5, 6, true),
        (0o555, 5, 6, false),
        (0o077, 5, 6, false),
        (0o775, 1, 6, true),
        (0o755, 1, 6, false),
        (0o707, 1, 6, false),
        (0o777, 1, 1, true),
        (0o775, 1, 1, false),
        (0o772, 1, 1, false),
    ] {
        assert_eq!(may_change(mode, owner, group, 5, &[6]), may, "{mode:o} {owner} {group}");
    }
    assert!(may_change(0, 1, 1, 0, &[]), "root may always");
}

proptest! {
    #[test]
    fn no_bytes_break_the_reader(text in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _either = Manifest::read(&text);
    }
}
