use super::*;
use crate::sys::directory::open_path;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

struct Room(tempfile::TempDir);

impl Room {
    fn new() -> Self {
        unshare(CloneFlags::CLONE_NEWNS).expect("this test mounts: run it as root, with `cargo xtask test`");
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SLAVE, None::<&str>).unwrap();
        let place = tempfile::tempdir().unwrap();
        mount(Some("tmpfs"), place.path(), Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
        Self(place)
    }

    fn path(&self, below: &str) -> PathBuf {
        self.0.path().join(below)
    }

    fn remove(&self, name: &CStr) -> Outcome {
        remove(open_path(self.0.path()).unwrap(), name, &mut || true)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let _ = nix::mount::umount2(self.0.path(), nix::mount::MntFlags::MNT_DETACH);
    }
}

fn bind(from: &Path, to: &Path) {
    mount(Some(from), to, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
}

#[test]
fn a_tree_5000_levels_deep_goes_with_few_descriptors() {
    let room = Room::new();
    fs::create_dir(room.path("top")).unwrap();
    let mut at = open_path(&room.path("top")).unwrap();
    for _ in 0..5000 {
        for name in [c"d", c"e"] {
            directory::make(&at, name).unwrap();
        }
        at = directory::open_child(&at, c"d").unwrap();
    }
    drop(at);
    let mut most = 0;
    let outcome = remove(open_path(room.0.path()).unwrap(), c"top", &mut || {
        most = most.max(fs::read_dir("/proc/thread-self/fd").unwrap().count());
        true
    });
    assert_eq!(outcome, Outcome::Gone);
    assert!(!room.path("top").exists());
    // Other tests of this process have descriptors too.
    assert!(most < 1000, "{most} descriptors were open");
}

#[test]
fn a_wide_tree_goes() {
    let room = Room::new();
    for index in 0..5000 {
        fs::create_dir_all(room.path(&format!("top/{index}"))).unwrap();
        fs::write(room.path(&format!("top/{index}/file")), "x").unwrap();
        fs::write(room.path(&format!("top/file-{index}")), "x").unwrap();
    }
    assert_eq!(room.remove(c"top"), Outcome::Gone);
    assert!(!room.path("top").exists());
    assert_eq!(room.remove(c"top"), Outcome::Gone);
}

#[test]
fn links_are_removed_and_not_followed() {
    let room = Room::new();
    fs::create_dir_all(room.path("top/sub")).unwrap();
    fs::create_dir(room.path("outside")).unwrap();
    fs::write(room.path("outside/file"), "x").unwrap();
    symlink(room.path("outside"), room.path("top/link")).unwrap();
    symlink("../../outside/file", room.path("top/sub/link")).unwrap();
    assert_eq!(room.remove(c"top"), Outcome::Gone);
    assert_eq!(fs::read(room.path("outside/file")).unwrap(), b"x");
}

#[test]
fn a_mount_of_the_same_device_is_not_entered() {
    let room = Room::new();
    fs::create_dir_all(room.path("top/sub/mounted")).unwrap();
    fs::create_dir(room.path("outside")).unwrap();
    fs::write(room.path("outside/file"), "x").unwrap();
    fs::write(room.path("top/sub/goes"), "x").unwrap();
    bind(&room.path("outside"), &room.path("top/sub/mounted"));
    let Outcome::Failed(fault) = room.remove(c"top") else { panic!("it went") };
    assert!(fault.contains("EXDEV") && fault.contains("mounted"), "{fault}");
    assert!(!fault.contains("more"), "what holds it is not tried for its sake: {fault}");
    assert_eq!(fs::read(room.path("outside/file")).unwrap(), b"x");
    assert!(!room.path("top/sub/goes").exists());
    bind(&room.path("outside"), &room.path("top"));
    assert!(matches!(room.remove(c"top"), Outcome::Failed(_)));
    assert_eq!(fs::read(room.path("outside/file")).unwrap(), b"x");
}

#[test]
fn a_directory_swapped_for_a_link_meanwhile_is_not_followed() {
    let room = Room::new();
    let outside = room.path("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("file"), "x").unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let swapper = {
        let (stop, top) = (stop.clone(), room.path("top"));
        symlink(&outside, room.path("link")).unwrap();
        let link = room.path("link");
        // The thread shares no mount namespace change with us but begins with ours.
        std::thread::spawn(move || {
            let flags = nix::fcntl::RenameFlags::RENAME_EXCHANGE;
            let mut swaps = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                let at = nix::fcntl::AT_FDCWD;
                swaps += u64::from(nix::fcntl::renameat2(at, &top.join("sub"), at, &link, flags).is_ok());
            }
            swaps
        })
    };
    for _ in 0..2000 {
        let _ = fs::create_dir(room.path("top"));
        let _ = fs::create_dir(room.path("top/sub"));
        for index in 0..4 {
            let _ = fs::write(room.path(&format!("top/sub/file-{index}")), "x");
        }
        let _ = room.remove(c"top");
        if !room.path("link").symlink_metadata().is_ok_and(|file| file.is_symlink()) {
            let _ = fs::remove_dir_all(room.path("link"));
            let _ = symlink(&outside, room.path("link"));
        }
    }
    stop.store(true, Ordering::Relaxed);
    assert!(swapper.join().unwrap() > 0, "nothing was swapped");
    assert_eq!(fs::read(outside.join("file")).unwrap(), b"x");
}

#[test]
fn a_directory_that_was_moved_away_is_not_gone_up_from() {
    let room = Room::new();
    let deep = "top/".to_owned() + &"d/".repeat(OPEN_LEVELS * 2);
    fs::create_dir_all(room.path(&deep)).unwrap();
    fs::create_dir_all(room.path("elsewhere/stays")).unwrap();
    let (from, to) = (room.path(&("top/".to_owned() + &"d/".repeat(10))), room.path("elsewhere/moved"));
    let mut steps = 0;
    let outcome = remove(open_path(room.0.path()).unwrap(), c"top", &mut || {
        steps += 1;
        if steps == OPEN_LEVELS * 3 {
            fs::rename(&from, &to).unwrap();
        }
        true
    });
    let Outcome::Failed(fault) = outcome else { panic!("{outcome:?}") };
    assert!(fault.contains("moved"), "{fault}");
    assert!(room.path("elsewhere/stays").exists());
}

#[test]
fn it_stops_when_told_and_goes_on_later() {
    let room = Room::new();
    fs::create_dir_all(room.path("top/a/b/c")).unwrap();
    let mut left = 3;
    let outcome = remove(open_path(room.0.path()).unwrap(), c"top", &mut || {
        left -= 1;
        left > 0
    });
    assert_eq!(outcome, Outcome::Interrupted);
    assert!(room.path("top/a").exists());
    assert_eq!(room.remove(c"top"), Outcome::Gone);
}

/// Removes `top`, and lets somebody do something before the given step. Returns whether it came to that step.
fn disturbed(room: &Room, at: usize, act: impl Fn()) -> (Outcome, bool) {
    let mut steps = 0;
    let outcome = remove(open_path(room.0.path()).unwrap(), c"top", &mut || {
        steps += 1;
        if steps == at {
            act();
        }
        true
    });
    (outcome, steps >= at)
}

#[test]
fn what_others_remove_or_put_in_or_exchange_meanwhile_stops_nothing() {
    type Act = fn(&Room);
    let acts: [(&str, Act); 4] = [
        ("removed", |room| fs::remove_dir_all(room.path("top/d")).unwrap_or_default()),
        ("put in", |room| fs::write(room.path("top/d/late"), "x").unwrap_or_default()),
        ("a directory for a file", |room| {
            if fs::remove_file(room.path("top/f")).is_ok() {
                fs::create_dir(room.path("top/f")).unwrap();
            }
        }),
        ("a link for a directory", |room| {
            if fs::remove_dir(room.path("top/e")).is_ok() {
                symlink(room.path("outside"), room.path("top/e")).unwrap();
            }
        }),
    ];
    for (what, act) in acts {
        for at in 1.. {
            let room = Room::new();
            fs::create_dir_all(room.path("top/d/below")).unwrap();
            fs::create_dir(room.path("top/e")).unwrap();
            fs::create_dir(room.path("outside")).unwrap();
            for file in ["top/f", "top/d/g", "outside/file"] {
                fs::write(room.path(file), "x").unwrap();
            }
            let (outcome, reached) = disturbed(&room, at, || act(&room));
            match outcome {
                // Exchanged after it was opened and emptied: the next removal takes the link for what it is.
                Outcome::Failed(fault) if fault.contains("rmdir: ENOTDIR") => {
                    assert_eq!(room.remove(c"top"), Outcome::Gone, "{what} before step {at}");
                }
                outcome => assert_eq!(outcome, Outcome::Gone, "{what} before step {at}"),
            }
            assert!(room.path("outside/file").exists() && !room.path("top").exists(), "{what} before step {at}");
            if !reached {
                assert!(at > 8, "{what}: {at} steps are too few");
                break;
            }
        }
    }
}

#[test]
fn who_puts_in_more_and_more_does_not_keep_it_busy_for_ever() {
    let room = Room::new();
    fs::create_dir(room.path("top")).unwrap();
    let mut steps = 0;
    let outcome = remove(open_path(room.0.path()).unwrap(), c"top", &mut || {
        steps += 1;
        assert!(steps < 1_000, "it goes on and on");
        let _ = fs::write(room.path(&format!("top/{steps}")), "x");
        true
    });
    assert!(matches!(&outcome, Outcome::Failed(fault) if fault.contains("ENOTEMPTY")), "{outcome:?}");
}
