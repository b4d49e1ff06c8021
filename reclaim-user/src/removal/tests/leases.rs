//! Locks on entries: who has one keeps the entry, and nobody gets one on what is condemned and about to go.

use super::support::{Evidence, Room, held, options, run, run_with};
use crate::config::RootConfig;
use crate::model::report::{Reason, Verdict};
use crate::removal::{PassOptions, RootState};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What a launcher does to use an entry that is there: lock it, then see that its path still leads to it.
fn take(path: &Path, how: FlockArg) -> Option<Flock<File>> {
    let lock = Flock::lock(File::open(path).ok()?, how).ok()?;
    leads_to(path, &lock).then_some(lock)
}

fn leads_to(path: &Path, lock: &Flock<File>) -> bool {
    fs::metadata(path).is_ok_and(|now| now.ino() == lock.metadata().unwrap().ino())
}

#[test]
fn nobody_gets_a_lock_on_what_is_condemned_and_held() {
    let room = Room::new();
    room.stale("a");
    let (path, opened) = (room.entry("a"), File::open(room.entry("a")).unwrap());
    let waiting = opened.try_clone().unwrap();
    let mut slot = Some((opened, waiting));
    let (tell, told_of) = std::sync::mpsc::channel();
    let mut evidence = Evidence::of(&room);
    evidence.while_condemned = Some(Box::new(move || {
        let (opened, waiting) = slot.take().unwrap();
        for how in [FlockArg::LockExclusiveNonblock, FlockArg::LockSharedNonblock] {
            let refused = Flock::lock(opened.try_clone().unwrap(), how).map(drop).map_err(|(_, error)| error);
            assert_eq!(refused, Err(Errno::EWOULDBLOCK));
        }
        let path = path.clone();
        let waiter = std::thread::spawn(move || {
            let lock = Flock::lock(waiting, FlockArg::LockExclusive).unwrap();
            leads_to(&path, &lock)
        });
        tell.send(waiter).unwrap();
    }));
    let told = run(&room.rules(), &mut evidence);
    assert_eq!(told.of("a"), (Verdict::Removed, None), "{told:#?}");
    let waiter = told_of.recv().unwrap();
    assert!(!waiter.join().unwrap(), "who waits for the lock gets it once the entry is gone, and sees that");
}

#[test]
fn who_waits_for_the_lock_of_an_entry_that_is_restored_finds_it_under_its_name() {
    let room = Room::new();
    room.stale("a");
    let path = room.entry("a");
    let waiting = File::open(&path).unwrap();
    let mut slot = Some(waiting);
    let (tell, told_of) = std::sync::mpsc::channel();
    let mut evidence = Evidence::of(&room);
    evidence.late_pins = vec![evidence.pin("a")];
    evidence.while_condemned = Some(Box::new(move || {
        let (waiting, path) = (slot.take().unwrap(), path.clone());
        let wait = move || leads_to(&path, &Flock::lock(waiting, FlockArg::LockExclusive).unwrap());
        tell.send(std::thread::spawn(wait)).unwrap();
    }));
    let told = run(&room.rules(), &mut evidence);
    assert_eq!(told.of("a"), (Verdict::Restored, Some(Reason::Pinned)), "{told:#?}");
    assert!(told_of.recv().unwrap().join().unwrap());
}

/// A launcher takes entries all through a pass, and keeps its locks. None that it took may be moved or removed.
fn taken_entries_stay(options: &PassOptions) {
    const ENTRIES: usize = 12_000;
    let room = Room::new();
    for index in 0..ENTRIES {
        room.stale(format!("entry-{index}"));
    }
    let rules: RootConfig = room.rules();
    let over = AtomicBool::new(false);
    let (told, taken) = std::thread::scope(|scope| {
        let launcher = scope.spawn(|| {
            let mut taken = Vec::new();
            let mut at = 0;
            while !over.load(Ordering::Relaxed) && taken.len() < 400 {
                at = (at + 4_999) % ENTRIES;
                let path = room.entry(format!("entry-{at}"));
                if let Some(lock) = take(&path, FlockArg::LockSharedNonblock) {
                    assert!(leads_to(&path, &lock));
                    taken.push((path, lock));
                }
                std::thread::sleep(Duration::from_micros(200));
            }
            taken
        });
        let mut evidence = Evidence::of(&room);
        evidence.blind = true;
        let told = run_with(&rules, &mut evidence, options, &mut RootState::default()).unwrap();
        over.store(true, Ordering::Relaxed);
        (told, launcher.join().unwrap())
    });
    assert!(!taken.is_empty(), "nothing was taken, so nothing was at risk");
    for (path, lock) in &taken {
        assert!(leads_to(path, lock), "{} was taken and is gone", path.display());
    }
    let distinct: std::collections::BTreeSet<_> = taken.iter().map(|(path, _)| path).collect();
    assert_eq!(told.summary.removed as usize, ENTRIES - distinct.len(), "{:?}", told.summary);
}

#[test]
fn an_entry_that_a_launcher_locked_and_then_found_stays() {
    taken_entries_stay(&options());
}

#[test]
fn it_stays_too_where_few_locks_are_held_on() {
    taken_entries_stay(&held(50));
    taken_entries_stay(&held(0));
}

#[test]
fn no_lock_outlives_a_pass() {
    let room = Room::new();
    for index in 0..3_000 {
        room.stale(format!("entry-{index}"));
    }
    let mut evidence = Evidence::of(&room);
    let pins: Vec<_> = (0..100).map(|index| evidence.pin(&format!("entry-{index}"))).collect();
    evidence.late_pins = pins;
    let begun = Instant::now();
    let told = run(&room.rules(), &mut evidence);
    assert_eq!(told.summary.restored, 100, "{:?} {:?}", told.summary, begun.elapsed());
    for name in room.names() {
        let lock = Flock::lock(File::open(room.entry(&name)).unwrap(), FlockArg::LockExclusiveNonblock);
        assert!(lock.is_ok(), "{name} is still locked");
    }
}
