//! A launcher of sandboxes, as a process that is killed at some moment of its work.
//!
//! Each round makes an entry, every second one with a file in it, binds it a moment later in one of four ways, and looks
//! whether what is bound is alive.

use crate::Sequence;
use crate::serve::{OrSay as _, enter_private_namespace};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag, open};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::{Signal, raise};
use nix::sys::stat::{Mode, fstat};
use rustix::fs::CWD;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// How a launcher binds its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Way {
    /// By path. The entry may be gone by then, which is a clean refusal.
    Path,
    /// By a descriptor that was opened with `O_PATH` a while before. Its name may be gone by then; it itself may not.
    Descriptor,
    /// By `open_tree(OPEN_TREE_CLONE)` and, a while later, `move_mount`.
    Tree,
    /// By path after flock(2), and after a look whether the path still leads to what was locked. From that look on the
    /// entry may not even be renamed.
    Lease,
}

impl Way {
    /// Every way.
    pub const ALL: [Self; 4] = [Self::Path, Self::Descriptor, Self::Tree, Self::Lease];
}

/// How a round of a launcher ended: one line of its output.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Round {
    /// It was bound, and seen to be alive.
    Verified(Way),
    /// The entry was gone before it was bound, and the kernel said so.
    Refused(Way),
    /// Something live was harmed.
    Violation(Way, String),
}

/// Why a round ended early.
enum End {
    Refused,
    Violation(String),
}

type Step<T> = Result<T, End>;

/// Makes entries in `root` and binds them on `target`, round after round, until a thread of this process kills it.
pub(crate) fn launch(root: &Path, target: &Path, prefix: &str, seed: u64) -> Result<(), String> {
    let mut sequence = Sequence::new(seed);
    // Most die young, wherever they are then; some live to see many rounds and long pauses.
    let life = if sequence.below(4) == 0 { 2_500 } else { 400 };
    let life = Duration::from_millis(1 + sequence.below(life));
    thread::spawn(move || {
        thread::sleep(life);
        raise(Signal::SIGKILL)
    });
    enter_private_namespace()?;
    let mut output = io::stdout().lock();
    for number in 0_u64.. {
        let way = Way::ALL[usize::try_from(sequence.below(4)).or_say("a number below four")?];
        let entry = root.join(format!("{prefix}{number}"));
        let round = match round(way, &entry, target, &mut sequence) {
            Ok(()) => Round::Verified(way),
            Err(End::Refused) => Round::Refused(way),
            Err(End::Violation(what)) => Round::Violation(way, format!("{}: {what}", entry.display())),
        };
        let line = serde_json::to_string(&round).or_say("write a line")?;
        // One call for a line, so that a death leaves whole lines.
        output.write_all(format!("{line}\n").as_bytes()).or_say("tell of a round")?;
    }
    Ok(())
}

/// An entry that a launcher made, and where it binds it.
struct Made<'a> {
    entry: &'a Path,
    target: &'a Path,
    /// What was written to a file in it.
    text: Option<String>,
}

/// The file in an entry that holds one.
const HELD: &str = "held";

fn round(way: Way, entry: &Path, target: &Path, sequence: &mut Sequence) -> Step<()> {
    fs::create_dir(entry).map_err(|error| violation("mkdir", error))?;
    let text = (sequence.below(2) == 0).then(|| entry.display().to_string());
    if let Some(text) = &text {
        fs::write(entry.join(HELD), text).map_err(|error| refused_or("write")(errno(&error)))?;
    }
    let made = Made { entry, target, text };
    match way {
        Way::Path => by_path(&made, sequence)?,
        Way::Descriptor => by_descriptor(&made, sequence)?,
        Way::Tree => by_tree(&made, sequence)?,
        Way::Lease => return by_lease(&made, sequence),
    }
    unmount_after_use(target)
}

fn by_path(made: &Made<'_>, sequence: &mut Sequence) -> Step<()> {
    thread::sleep(Duration::from_micros(sequence.below(2) * sequence.below(4_000)));
    bind(made.entry, made.target)?;
    expect_alive(made, None, sequence)
}

fn by_descriptor(made: &Made<'_>, sequence: &mut Sequence) -> Step<()> {
    let opened = open(made.entry, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty());
    let opened = opened.map_err(refused_or("open"))?;
    let inode = fstat(&opened).map_err(|error| violation("fstat", error))?.st_ino;
    pause(sequence);
    let source = PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()));
    // Its name may be gone, and still this may not fail.
    mount(Some(&source), made.target, None::<&str>, MsFlags::MS_BIND, None::<&str>)
        .map_err(|error| violation("an open entry was deleted: bind", error))?;
    drop(opened);
    expect_alive(made, Some(inode), sequence)
}

fn by_tree(made: &Made<'_>, sequence: &mut Sequence) -> Step<()> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = open_tree(CWD, made.entry, flags)
        .map_err(|error| refused_or("open_tree")(Errno::from_raw(error.raw_os_error())))?;
    let inode = fstat(&tree).map_err(|error| violation("fstat", error))?.st_ino;
    pause(sequence);
    move_mount(&tree, "", CWD, made.target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .map_err(|error| violation("a live source was deleted: move_mount", error))?;
    drop(tree);
    expect_alive(made, Some(inode), sequence)
}

fn by_lease(made: &Made<'_>, sequence: &mut Sequence) -> Step<()> {
    let Made { entry, target, .. } = *made;
    let opened = open(entry, OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty());
    let opened = opened.map_err(refused_or("open"))?;
    pause_briefly(sequence);
    let how = if sequence.below(2) == 0 { FlockArg::LockExclusive } else { FlockArg::LockShared };
    let lease = Flock::lock(opened, how).map_err(|(_, error)| violation("flock", error))?;
    let inode = fstat(&*lease).map_err(|error| violation("fstat", error))?.st_ino;
    if !leads_to(entry, inode) {
        return Err(End::Refused);
    }
    let expect_unmoved = || match leads_to(entry, inode) {
        true => Ok(()),
        false => Err(End::Violation("a leased entry was renamed: its path leads elsewhere".to_owned())),
    };
    pause_briefly(sequence);
    expect_unmoved()?;
    mount(Some(entry), target, None::<&str>, MsFlags::MS_BIND, None::<&str>)
        .map_err(|error| violation("a leased entry was renamed: bind", error))?;
    let alive = expect_alive(made, Some(inode), sequence);
    // Who renames it and soon gives the name back is seen as well.
    let unmoved = (0..sequence.below(20)).try_for_each(|_| {
        thread::sleep(Duration::from_millis(1));
        expect_unmoved()
    });
    unmount_after_use(target)?;
    alive.and(unmoved)
}

fn leads_to(path: &Path, inode: u64) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.ino() == inode)
}

/// Long enough for a sweep to condemn an entry and to look whether it may go; now and then for one that has to wait for
/// a fixed time, too.
fn pause(sequence: &mut Sequence) {
    let milliseconds = if sequence.below(16) == 0 { 500 } else { sequence.below(20) };
    thread::sleep(Duration::from_millis(milliseconds));
}

fn pause_briefly(sequence: &mut Sequence) {
    thread::sleep(Duration::from_micros(sequence.below(3) * sequence.below(4_000)));
}

fn bind(source: &Path, target: &Path) -> Step<()> {
    mount(Some(source), target, None::<&str>, MsFlags::MS_BIND, None::<&str>).map_err(refused_or("bind"))
}

/// Looks for what the entry held when it was made, makes a file at the mount, sees it and removes it, a few times with
/// pauses, so that a sweep has the time to come to a wrong decision; now and then one that waits for a fixed time, too.
fn expect_alive(made: &Made<'_>, inode: Option<u64>, sequence: &mut Sequence) -> Step<()> {
    let Made { target, text, .. } = made;
    let file = target.join("alive");
    let longest = if sequence.below(8) == 0 { 1_000 } else { 12 };
    for milliseconds in [0, 1, 3, sequence.below(longest)] {
        thread::sleep(Duration::from_millis(milliseconds));
        let found = fs::metadata(target).map_err(|error| violation("stat", error))?;
        if found.nlink() == 0 {
            return Err(End::Violation("a live source was deleted: its link count is 0".to_owned()));
        }
        if inode.is_some_and(|inode| inode != found.ino()) {
            return Err(End::Violation("what is bound is not what was opened".to_owned()));
        }
        if let Some(text) = text {
            let held = fs::read_to_string(target.join(HELD));
            let held = held.map_err(|error| violation("a live source was deleted: read what it holds", error))?;
            if held != *text {
                return Err(End::Violation(format!("what is bound holds {held:?}")));
            }
        }
        File::create_new(&file).map_err(|error| violation("a live source was deleted: create", error))?;
        fs::symlink_metadata(&file).map_err(|error| violation("a file that was made is not seen: stat", error))?;
        fs::remove_file(&file).map_err(|error| violation("remove a file", error))?;
    }
    Ok(())
}

/// Unmounts what files were opened on a moment ago. A look at open files, reclaim's like lsof's, takes each by a reference
/// for an instant; a file that its owner closes just then keeps the mount busy until the look is over.
fn unmount_after_use(target: &Path) -> Step<()> {
    for _ in 0..200 {
        match umount2(target, MntFlags::empty()) {
            Err(Errno::EBUSY) => thread::sleep(Duration::from_millis(1)),
            result => return result.map_err(|error| violation("umount", error)),
        }
    }
    Err(End::Violation("umount: busy for longer than any look takes".to_owned()))
}

/// The sweep was quicker: a clean refusal, after which a launcher begins again.
fn refused_or(call: &'static str) -> impl Fn(Errno) -> End {
    move |error| if error == Errno::ENOENT { End::Refused } else { violation(call, error) }
}

fn errno(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::UnknownErrno, Errno::from_raw)
}

fn violation(call: &str, error: impl std::fmt::Display) -> End {
    End::Violation(format!("{call}: {error}"))
}
