//! What the seal of a directory tells of its entries. Needs root.

use super::{STORE, Scene, in_scene, path_only};
use crate::evidence::references::{Iterators, count};
use crate::evidence::source::{CondemnedIn, Own, Seal};
use crate::sys::file_status::status_at;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::{self, File, Permissions};
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, chown};

/// The seal of all that is there.
fn seal(scene: &Scene) -> Seal {
    let directory = path_only(&scene.place.path().join(STORE));
    let entries = fs::read_dir(scene.place.path().join(STORE)).unwrap().map(|entry| entry.unwrap().file_name());
    entries.fold(Seal::begin(), |seal, name| {
        let file = status_at(&directory, &CString::new(name.as_bytes()).unwrap()).unwrap();
        let (inode, mode, owner) = (file.identity.inode, file.whole_mode().unwrap(), file.status.owner);
        seal.and(name.as_bytes(), inode, mode, owner).unwrap()
    })
}

fn counted(scene: &Scene, iterators: &mut Iterators, seal: Option<Seal>) -> count::Counted {
    let directory = path_only(&scene.place.path().join(STORE));
    let (held, unlike) = (Own::Nothing, BTreeMap::new());
    let condemned = CondemnedIn { directory: directory.as_fd(), path: STORE.into(), held, unlike, seal };
    count::count(iterators, &condemned, &mut count::Tried::default()).unwrap()
}

/// A scene of entries that hold nothing.
fn in_sealed_scene(test: impl FnOnce(&Scene, &mut dyn FnMut(Option<Seal>) -> bool) + Send) {
    in_scene(|scene| {
        fs::remove_dir_all(scene.entry("b")).unwrap();
        fs::create_dir(scene.entry("b")).unwrap();
        fs::write(scene.entry("file"), "").unwrap();
        let mut iterators = Iterators::load().unwrap();
        test(scene, &mut |seal| {
            let unchanged = counted(scene, &mut iterators, seal).unchanged;
            assert!(unchanged.iter().all(|directory| directory == STORE.as_bytes()), "{unchanged:?}");
            !unchanged.is_empty()
        });
    });
}

#[test]
fn host_entries_are_unchanged_until_what_they_are_sealed_with_changes() {
    in_sealed_scene(|scene, is_unchanged| {
        let [a, b, new] = ["a", "b", "new"].map(|name| scene.entry(name));
        let sealed = seal(scene);
        let mut expect = |unchanged: bool, what: &str| assert_eq!(is_unchanged(Some(sealed)), unchanged, "{what}");
        expect(true, "untouched");
        let before = fs::metadata(&a).unwrap().permissions();
        for mode in [0o700, 0o1755, 0o4755] {
            fs::set_permissions(&a, Permissions::from_mode(mode)).unwrap();
            expect(false, "chmod");
        }
        fs::set_permissions(&a, before).unwrap();
        expect(true, "the mode that it had");
        chown(&a, Some(1000), None).unwrap();
        expect(false, "chown");
        chown(&a, Some(0), Some(1000)).unwrap();
        expect(true, "the owner that it had; no fence goes by the group");
        renameat2(AT_FDCWD, &a, AT_FDCWD, &b, RenameFlags::RENAME_EXCHANGE).unwrap();
        expect(false, "two that have each other's names");
        renameat2(AT_FDCWD, &a, AT_FDCWD, &b, RenameFlags::RENAME_EXCHANGE).unwrap();
        expect(true, "their own names again");
        fs::create_dir(&new).unwrap();
        expect(false, "one more");
        fs::remove_dir(&b).unwrap();
        expect(false, "as many, and one of them another");
        fs::rename(&new, &b).unwrap();
        expect(false, "another of the same name");
        fs::remove_dir(&b).unwrap();
        expect(false, "one less");
    });
}

#[test]
fn host_what_is_not_sealed_or_not_settled_is_not_said_to_be_unchanged() {
    in_sealed_scene(|scene, is_unchanged| {
        let sealed = seal(scene);
        assert!(!is_unchanged(None), "no seal");
        assert!(!is_unchanged(Some(Seal { key: sealed.key ^ 2, ..sealed })), "the seal of somebody else");
        let opened = File::open(scene.entry("a")).unwrap();
        assert!(is_unchanged(Some(sealed)), "who refers to one is told of otherwise");
        // It holds what is known of, so that its number tells nothing.
        fs::write(scene.entry("a/inside"), "").unwrap();
        assert!(!is_unchanged(Some(sealed)), "one is not settled");
        fs::remove_file(scene.entry("a/inside")).unwrap();
        drop(opened);
        assert!(is_unchanged(Some(sealed)), "all are again");
    });
}

#[test]
fn host_a_name_is_sealed_whole_or_not_at_all() {
    in_sealed_scene(|scene, is_unchanged| {
        for length in [1, 7, 8, 9, 15, 16, 63, 64, 65, 69, 70] {
            let name = "n".repeat(length);
            fs::create_dir(scene.entry(&name)).unwrap();
            let sealed = seal(scene);
            assert!(is_unchanged(Some(sealed)), "{length}");
            // The last byte alone, and one more.
            for other in [format!("{}m", &name[1..]), format!("{name}n"), format!("{name}nn")] {
                fs::rename(scene.entry(&name), scene.entry(&other)).unwrap();
                assert!(!is_unchanged(Some(sealed)), "{other} in the place of {name}");
                fs::rename(scene.entry(&other), scene.entry(&name)).unwrap();
            }
        }
        let status = status_at(path_only(&scene.entry("a")), c".").unwrap();
        let (inode, mode) = (status.identity.inode, status.whole_mode().unwrap());
        assert_eq!(Seal::begin().and(&[b'n'; 71], inode, mode, 0), None);
    });
}
