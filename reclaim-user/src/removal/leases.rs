//! Locks on condemned entries, held until those come to their ends, as far as there are descriptors for that.
//!
//! Who holds the lock of an entry is not asked for it again before the entry is removed: three calls less. What goes
//! without is locked for condemning and once more for removing, and is as safe.

use crate::model::plan::GROUP_ENTRIES;
use crate::sys::directory::{Leased, let_go};
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::close;
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Descriptors that are left to all else that the process does.
const LEFT_FREE: u64 = 2_048;

/// Groups may grow to this many entries, held or not: fewer may not pay for a wait and a confirmation.
const GROUP_LEAST: usize = 8_192;

/// Locks that the process holds. One group is filled while another one is removed.
static HELD: AtomicUsize = AtomicUsize::new(0);

/// The lock on a condemned entry.
#[derive(Debug)]
pub(super) struct Held(Option<Leased>);

impl Drop for Held {
    fn drop(&mut self) {
        // Else it is let go of with others, and counted with them.
        if self.0.take().is_some() {
            HELD.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Locks whose entries are gone, to be let go of together.
#[derive(Debug, Default)]
pub(super) struct Ended(Vec<Leased>);

impl Ended {
    /// As many as are let go of at a time.
    const MOST: usize = 32;

    /// Takes one more, and lets go of all when there are enough.
    pub(super) fn add(&mut self, held: Option<Held>) {
        self.0.extend(held.and_then(|mut held| held.0.take()));
        if self.0.len() >= Self::MOST {
            self.let_go();
        }
    }

    fn let_go(&mut self) {
        let ended = self.0.len();
        let_go(self.0.drain(..));
        HELD.fetch_sub(ended, Ordering::Relaxed);
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        self.let_go();
    }
}

/// How many locks may be held.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leases {
    most: usize,
}

impl Leases {
    /// As many as the process may have, and no more than `most`.
    pub(super) fn up_to(most: usize) -> Self {
        static ROOM: OnceLock<usize> = OnceLock::new();
        Self { most: most.min(*ROOM.get_or_init(room)) }
    }

    /// Goes on holding a lock where there is room for it, and lets go of it otherwise.
    pub(super) fn hold(self, lease: Leased) -> Option<Held> {
        // Only the thread that lists adds any, so there are never more than it saw here.
        if HELD.load(Ordering::Relaxed) >= self.most {
            return None;
        }
        HELD.fetch_add(1, Ordering::Relaxed);
        Some(Held(Some(lease)))
    }

    /// Entries that a group may grow to. One is filled while the one before it is removed, and where there is no room for all
    /// locks of both, what goes without is looked at once more.
    pub(super) fn largest_group(self) -> usize {
        (self.most / 2).clamp(GROUP_LEAST, GROUP_ENTRIES)
    }
}

/// Makes the table of descriptors as large as two groups may need it. While a process has threads, the kernel waits for a
/// grace period of RCU, some 10 ms, each time that it makes that table larger (`expand_files` in fs/file.c), and it would do
/// so ten times. To be called before the threads of a pass are started; a table that stays small is slow, and no worse.
pub(super) fn make_room(descriptor: impl AsFd) {
    if let Ok(last) = i32::try_from(Leases::up_to(usize::MAX).most) {
        let _ = fcntl(descriptor, FcntlArg::F_DUPFD_CLOEXEC(last)).and_then(close);
    }
}

/// Descriptors that there is room for, once the process may have as many as it can allow itself.
fn room() -> usize {
    let wanted = LEFT_FREE + 2 * GROUP_ENTRIES as u64;
    let Ok((mut soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return 0 };
    let within = wanted.min(hard);
    if soft < within && setrlimit(Resource::RLIMIT_NOFILE, within, hard).is_ok() {
        soft = within;
    }
    usize::try_from(soft.min(wanted).saturating_sub(LEFT_FREE)).unwrap_or_default()
}
