//! What stands in for the product where a test has to show that it would see a fault.

use crate::OrFail as _;
use std::collections::HashSet;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// Looks for the entries of a root in every mount table, and then deletes by path those that no table shows: what a cleaner
/// without condemning does. The window between the two is its fault. Returns how many it deleted.
///
/// The root is a child of the top of its file system, as that of a [`Host`](crate::Host) is.
#[track_caller]
pub fn check_then_delete(root: &Path) -> u64 {
    let entries = entries(root);
    let top = root.file_name().or_fail("the name of the root").as_bytes();
    let sources = [b"/", top, b"/"].concat();
    let mut shown = HashSet::new();
    for task in fs::read_dir("/proc").or_fail("list /proc").flatten() {
        // What is no task, or has ended, has no table.
        let table = fs::read(task.path().join("mountinfo")).unwrap_or_default();
        // The fourth field is what is mounted, in its own file system.
        let fields = table.split(|byte| *byte == b'\n').filter_map(|line| line.split(|byte| *byte == b' ').nth(3));
        shown.extend(fields.filter_map(|field| field.strip_prefix(&*sources)).map(<[u8]>::to_vec));
    }
    let is_shown = |entry: &PathBuf| entry.file_name().is_none_or(|name| shown.contains(name.as_bytes()));
    let stale = entries.into_iter().filter(|entry| !is_shown(entry));
    stale.map(|entry| u64::from(fs::remove_dir(entry).is_ok())).sum()
}

/// Moves every entry of a root out of it and gives it its name back a moment later, whether somebody holds a lease on it or
/// not: what a cleaner does that asks for leases only when it is about to delete. Returns how many it moved.
#[track_caller]
pub fn rename_whoever_holds_a_lease(root: &Path, aside: &Path) -> u64 {
    let moved: Vec<(PathBuf, PathBuf)> = entries(root)
        .into_iter()
        .filter_map(|entry| {
            let place = aside.join(entry.file_name()?);
            fs::rename(&entry, &place).is_ok().then_some((entry, place))
        })
        .collect();
    thread::sleep(Duration::from_millis(3));
    for (entry, place) in &moved {
        fs::rename(place, entry).or_fail(format_args!("give {} its name back", entry.display()));
    }
    moved.len() as u64
}

#[track_caller]
fn entries(root: &Path) -> Vec<PathBuf> {
    fs::read_dir(root).or_fail("list the root").flatten().map(|entry| entry.path()).collect()
}
