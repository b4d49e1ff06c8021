//! What decisions and the removal protocol ask of evidence, whoever takes it.

use crate::model::answer::Seen;
use crate::model::coverage::Coverage;
use crate::model::pin_set::PinSet;
use crate::model::reference::References;
use crate::model::report::Producer;
use reclaim_ebpf::reference_abi::{SEAL_NAME, SEAL_WORDS, sealed};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher as _, RandomState};
use std::os::fd::BorrowedFd;
use std::sync::LazyLock;
use std::time::Duration;

/// Pins and the claim that goes with them.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// Pins of every namespace seen, indexed by the entries of the watched roots.
    pub pins: &'a PinSet,
    /// How much was seen of mounts.
    pub coverage: &'a Coverage,
    /// How much was seen of mount tables, which alone tell of the work directory of an overlay. That is never empty, so
    /// this is the claim for entries that hold something. Never wider than `coverage`.
    pub tables: &'a Coverage,
    /// What refers to condemned entries besides mounts, which a confirmation looks for; or to places that somebody asks
    /// about, where the kernel cannot be walked.
    pub references: &'a References,
    /// Who saw it.
    pub producer: Producer,
    /// Directories of condemned entries, by what leads to them from the root, all of whose entries were found to have the
    /// names, the inodes, the modes and the owners that they are sealed with. Whoever could change one since is a reference
    /// to it.
    pub unchanged: &'a BTreeSet<Vec<u8>>,
    /// The kernel's own list of mounts was walked, or will be for the confirmation.
    pub walks: bool,
}

impl<'a> View<'a> {
    /// The claim for entries that hold nothing, or for those that may hold something.
    #[must_use]
    pub fn claim(&self, may_hold: bool) -> &'a Coverage {
        if may_hold { self.tables } else { self.coverage }
    }
}

impl<'a> From<View<'a>> for Seen<'a> {
    fn from(view: View<'a>) -> Self {
        let View { pins, coverage, tables, references, producer, unchanged: _, walks: _ } = view;
        Self { pins, coverage, tables, references, producer, elsewhere: None }
    }
}

/// How the wait for calls in flight ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// The mount clock shows that every call that could have resolved an old path has left the kernel.
    Clock,
    /// The mount clock does not show it: a fixed time was waited, which is a weaker guarantee.
    Fixed {
        /// How long.
        waited: Duration,
        /// What is the matter with the clock, for people.
        why: String,
    },
    /// A call did not come back in time. The batch must be restored.
    Overdue {
        /// The calls, for people.
        calls: Vec<String>,
    },
}

/// What the caller has of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Own {
    /// Nothing.
    Nothing,
    /// A descriptor of it, and it is a directory.
    Directory,
    /// A descriptor of it, and it is something else.
    File,
}

/// What the entries of a directory were when they were looked at, as one sum that the kernel's own structures can be
/// compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    /// Never 0, and nobody outside of this process knows it.
    pub key: u64,
    /// Over all entries.
    pub sum: u64,
}

impl Seal {
    /// Of no entry.
    #[must_use]
    pub fn begin() -> Self {
        static KEY: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one("seal") | 1);
        Self { key: *KEY, sum: 0 }
    }

    /// One entry more, by the name that it has in the directory. `mode` is its mode with the bits of its kind, `owner` its
    /// owner by user id. None when the name is too long for a seal.
    #[must_use]
    pub fn and(self, name: &[u8], inode: u64, mode: u32, owner: u32) -> Option<Self> {
        let mut words = [0; SEAL_WORDS];
        if name.len() > SEAL_NAME - 2 {
            return None;
        }
        for (word, bytes) in words.iter_mut().zip(name.chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_ne_bytes(whole);
        }
        Some(Self { sum: self.sum.wrapping_add(sealed(self.key, &words, inode, mode, owner)), ..self })
    }
}

/// A directory of condemned entries, for evidence that goes by identity instead of by name.
#[derive(Clone, Debug)]
pub struct CondemnedIn<'a> {
    /// The directory.
    pub directory: BorrowedFd<'a>,
    /// What leads from the root to it: empty for the root itself. With an entry's name, its key in the pin set.
    pub path: Vec<u8>,
    /// What the caller itself has of most entries, which is no reliance.
    pub held: Own,
    /// Entries, by their names in the directory, of which it has something else.
    pub unlike: BTreeMap<Vec<u8>, Own>,
    /// What it knows of all entries; none where it has not looked at each.
    pub seal: Option<Seal>,
}

/// A source of evidence about the watched roots. Roots are named by their index in the configuration.
pub trait EvidenceSource {
    /// Why evidence could not be taken.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Brings in all that the kernel had sent by the time of the call, and shows the state then.
    ///
    /// Cheap when nothing happened. Good for choosing candidates; never enough to remove anything.
    ///
    /// # Errors
    /// When no evidence at all could be taken; evidence that is merely weak is told by its coverage.
    fn consult(&mut self) -> Result<View<'_>, Self::Error>;

    /// Says where entries are condemned from now on, for evidence that can keep others from binding them; None when that
    /// is over. The directory stays open that long. Nothing rests on it.
    fn guard(&mut self, _store: Option<BorrowedFd<'_>>) {}

    /// Whether a wait that begins now lasts for a time that is set anyway: more may as well be condemned meanwhile.
    fn is_settling(&self) -> bool {
        false
    }

    /// Says that something will be condemned before long: what a confirmation needs once may be made meanwhile.
    fn prepare(&mut self) {}

    /// Waits until every mount-class call that had entered the kernel when this was called has left it. Meanwhile
    /// `between` is called at least every 50 ms or so, for others to have their turn; once it says no, the wait ends as at
    /// its limit.
    fn settle(&mut self, limit: Duration, between: &mut dyn FnMut(&mut Self) -> bool) -> Settled;

    /// Evidence that was taken wholly after this was called, about the entries of a watched root that are condemned in
    /// these directories.
    ///
    /// # Errors
    /// As [`EvidenceSource::consult`].
    fn confirm(&mut self, root: usize, condemned: &[CondemnedIn<'_>]) -> Result<View<'_>, Self::Error>;
}
