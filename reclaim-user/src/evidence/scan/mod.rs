//! Evidence from mount tables: every mount namespace of the host, read from its own root, with an account of what was
//! not seen.
//!
//! Where the kernel lists mount namespaces (6.12), each is read while a descriptor keeps it alive, so that none can go
//! unread between being found and being read, until the list shows no other. Elsewhere they are found through tasks, open descriptors and mounted
//! namespace files. Either way a helper thread enters the namespace and reads its own mountinfo: that is the view from
//! the namespace's root, which a task's own view need not be. Measured, this is quicker than statmount for every mount.
//! Where many are listed, a second one reads beside it.
//!
//! A scan is not a snapshot. A mount that moves, while the scan runs, from a namespace that it has still to read into
//! one that it has read is missed. The mount clock tells whether that can have been.

mod listed;
mod options;
mod reader;
mod second;
mod single;
mod table;
mod unlisted;

pub use options::ScanOptions;
pub use single::{Listing, Reading};

use super::layers::{Layers, View};
use super::procfs::{Procfs, ProcfsError, hides_tasks};
use super::tasks::{self, Tasks, holder};
use crate::model::coverage::{Coverage, GapCause, Identities, Reach};
use crate::model::id::NamespaceId;
use crate::model::mount::MountTable;
use crate::model::mountinfo::{MountinfoError, rows};
use crate::model::pin_set::NamespacePins;
use crate::sys::mount_id::mount_of;
use crate::sys::namespace;
use nix::errno::Errno;
use reader::Reader;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};
use table::Table;
use thiserror::Error;

/// No evidence could be taken.
#[derive(Debug, Error)]
pub enum ScanError {
    /// There is no usable procfs.
    #[error(transparent)]
    Procfs(#[from] ProcfsError),
    /// The own mount table, or what else is known of the caller itself, could not be read.
    #[error("could not read /proc/{file}; check that procfs at /proc is whole")]
    Own {
        /// Path below /proc.
        file: &'static str,
        /// The answer of the kernel.
        #[source]
        source: Errno,
    },
    /// The own mount table makes no sense.
    #[error("could not understand /proc/thread-self/mountinfo")]
    Table(#[from] MountinfoError),
    /// The helper thread could not be started or made ready.
    #[error("could not prepare a thread that enters mount namespaces; check the limit of threads")]
    Helper(#[source] std::io::Error),
}

/// What was counted on the way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accounting {
    /// Processes listed.
    pub tasks: u64,
    /// Threads listed.
    pub threads: u64,
    /// Mount namespaces known to exist.
    pub namespaces: u64,
    /// Mount namespaces read from their own root.
    pub namespaces_read: u64,
    /// Mounts in them.
    pub mounts: u64,
    /// How long it took.
    pub elapsed: Duration,
}

/// Evidence from one scan.
#[derive(Clone, Debug)]
pub struct Scan {
    /// What each namespace holds, each once. [`NamespaceId::UNKNOWN`] among them where tasks would not tell theirs.
    pub namespaces: Vec<(NamespaceId, NamespacePins)>,
    /// The claim that goes with it.
    pub coverage: Coverage,
    /// Counts.
    pub accounting: Accounting,
}

/// Reads mount namespaces. Between calls it holds ids and no descriptor, so it keeps nothing alive.
#[derive(Debug)]
pub struct Scanner {
    options: ScanOptions,
    known: HashMap<NamespaceId, Known>,
    layers: Layers,
}

/// How to get at a namespace again without a look at all of them.
#[derive(Clone, Debug, Default)]
struct Known {
    /// The kernel's own id, which no later namespace gets; the inode number may be used again.
    kernel_id: Option<u64>,
    /// Tasks that were seen in it.
    tasks: Vec<u32>,
}

/// Namespaces remember this many of their tasks.
const TASKS_KNOWN: usize = 4;

/// A scan in the making.
struct Progress<'a> {
    reader: Reader<'a>,
    tables: BTreeMap<NamespaceId, Table>,
    kernel_ids: HashMap<NamespaceId, u64>,
    /// Known to exist and not read.
    unread: HashSet<NamespaceId>,
    tasks: Tasks,
    coverage: Coverage,
    layers: Layers,
}

impl Scanner {
    /// A scanner that has read nothing.
    #[must_use]
    pub fn new(options: ScanOptions) -> Self {
        Self { options, known: HashMap::new(), layers: Layers::default() }
    }

    /// Reads every mount namespace of the host.
    ///
    /// # Errors
    /// When no evidence at all could be taken. What merely could not be seen lowers the coverage.
    pub fn scan(&mut self) -> Result<Scan, ScanError> {
        let started = Instant::now();
        let procfs = Procfs::open()?;
        let own = own_table(&procfs)?;
        let mut coverage = Coverage::full(identities());
        let filtered = u64::from(filtered(&procfs));
        coverage.lower(GapCause::ProcfsFiltered, filtered, Reach::Everybody);

        let options = self.options;
        let all_listed = options.use_namespace_list && procfs.privileged_over_host() && lists_namespaces(&procfs);
        let mut progress = std::thread::scope(|scope| {
            let run = || {
                let mut progress = Progress {
                    reader: Reader::start(&procfs, options)?,
                    tables: BTreeMap::new(),
                    kernel_ids: HashMap::new(),
                    unread: HashSet::new(),
                    tasks: Tasks::default(),
                    coverage,
                    layers: Layers::default(),
                };
                let walked = all_listed && progress.walk_namespaces().is_ok();
                if !walked {
                    progress.run_unlisted();
                }
                progress.reader.leave();
                Ok::<_, ScanError>((progress, walked))
            };
            let helper = std::thread::Builder::new().name("reclaim-scan".into()).spawn_scoped(scope, run);
            let helper = helper.map_err(ScanError::Helper)?;
            // Where the list has every namespace, tasks are for the account and the reports: that can go on beside it.
            let tasks = all_listed.then(|| listed::list_tasks(&procfs));
            let (mut progress, walked) = helper.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            if let (Some(tasks), true) = (tasks, walked) {
                progress.account_listed(tasks);
            }
            Ok::<_, ScanError>(progress)
        })?;

        let view = View { procfs: &procfs, mounts: &own.mounts, stalling: &own.stalling };
        progress.layers.look_up_all(view);
        Ok(self.finish(progress, started))
    }

    fn finish(&mut self, progress: Progress<'_>, started: Instant) -> Scan {
        let Progress { tables, kernel_ids, unread, tasks, mut coverage, layers, reader: _ } = progress;
        let mut accounting = Accounting {
            tasks: tasks.tasks,
            threads: tasks.threads,
            namespaces: (tables.len() + unread.len()) as u64,
            ..Accounting::default()
        };
        self.known.clear();
        let mut namespaces = Vec::with_capacity(tables.len());
        for (namespace, table) in tables {
            let tasks = tasks.by_namespace.get(&namespace).cloned().unwrap_or_default();
            if !unread.contains(&namespace) && namespace != NamespaceId::UNKNOWN {
                accounting.namespaces_read += 1;
            }
            let some_tasks = tasks.iter().copied().take(TASKS_KNOWN).collect();
            let kernel_id = kernel_ids.get(&namespace).copied();
            self.known.insert(namespace, Known { kernel_id, tasks: some_tasks });
            let pins = NamespacePins { table: mount_table(table, &layers), tasks };
            accounting.mounts += pins.table.mounts.len() as u64;
            coverage.lower(GapCause::TargetHidden, pins.table.blind_targets() as u64, Reach::Everybody);
            namespaces.push((namespace, pins));
        }
        // A namespace that is in both was read in part, through a task that does not see all of it.
        let in_both = unread.iter().filter(|namespace| self.known.contains_key(namespace)).count() as u64;
        let unknown = u64::from(self.known.remove(&NamespaceId::UNKNOWN).is_some());
        accounting.namespaces -= in_both + unknown;
        self.layers = layers;
        accounting.elapsed = started.elapsed();
        Scan { namespaces, coverage, accounting }
    }
}

fn mount_table(table: Table, layers: &Layers) -> MountTable {
    let layers = layers.of(&table.unions, &table.mounts);
    MountTable { mounts: table.mounts, layers }
}

impl Progress<'_> {
    /// Lists tasks, and says so when that is not possible.
    fn list_tasks(&mut self) -> bool {
        match tasks::list(self.reader.procfs()) {
            Ok(tasks) => {
                self.tasks = tasks;
                true
            }
            Err(_) => {
                self.coverage.lower(GapCause::ProcfsUnreadable, 1, Reach::Everybody);
                false
            }
        }
    }

    /// Keeps a table that was read from the namespace's own root, and looks up its layers while the helper is there.
    fn keep(&mut self, namespace: NamespaceId, table: Table) {
        for union in &table.unions {
            self.layers.look_up(&union.key, self.reader.view(&table));
        }
        self.unread.remove(&namespace);
        self.tables.insert(namespace, table);
    }

    /// Keeps what was read through a task; whether that is all of the namespace is the caller's to say.
    fn keep_view(&mut self, namespace: NamespaceId, table: Table) {
        for union in &table.unions {
            self.layers.note(&union.key);
        }
        self.tables.entry(namespace).or_default().merge(table);
    }

    fn holder_of(&self, task: u32) -> Reach {
        Reach::Holder(holder(self.reader.procfs(), task))
    }
}

/// Whether the kernel lists mount namespaces.
fn lists_namespaces(procfs: &Procfs) -> bool {
    procfs.open_file("thread-self/ns/mnt").and_then(namespace::info).is_ok()
}

/// The caller's own mount table, seen from its own root.
fn own_table(procfs: &Procfs) -> Result<Table, ScanError> {
    let file = "thread-self/mountinfo";
    let mut text = Vec::new();
    procfs.read(file, &mut text).map_err(|source| ScanError::Own { file, source })?;
    Ok(Table::parse(&text)?)
}

/// Whether procfs may keep tasks from the caller. Not being able to tell counts as yes.
pub(in crate::evidence) fn filtered(procfs: &Procfs) -> bool {
    if !procfs.shows_initial_pid_namespace() {
        return true;
    }
    let mut text = Vec::new();
    let read = procfs.read("thread-self/mountinfo", &mut text);
    let (Ok(mount), Ok(())) = (mount_of(procfs), read) else { return true };
    let row = rows(&text).filter_map(Result::ok).find(|row| row.id == mount);
    let groups = nix::unistd::getgroups().unwrap_or_default();
    let effective = nix::unistd::getegid();
    let in_group = |group| effective.as_raw() == group || groups.iter().any(|own| own.as_raw() == group);
    row.is_none_or(|row| hides_tasks(row.options, in_group))
}

/// What the host says of user ids: the overflow id, and `/etc/subuid` with owners by name or number.
///
/// A name that nobody has is left out. A file that is there and cannot be read could name anybody. An overflow id that
/// is not told could be any, since whoever set another one than the kernel's own may hide it too.
#[must_use]
pub fn identities() -> Identities {
    let overflow = std::fs::read_to_string("/proc/sys/kernel/overflowuid").ok();
    let overflow = overflow.and_then(|text| overflow_id(&text));
    let text = match std::fs::read_to_string("/etc/subuid") {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Some(String::new()),
        text => text.ok(),
    };
    let uid_of = |name: &str| nix::unistd::User::from_name(name).ok().flatten().map(|user| user.uid.as_raw());
    Identities { overflow, subordinate: text.map(|text| subordinate(&text, uid_of)) }
}

fn overflow_id(text: &str) -> Option<u32> {
    text.trim().parse().ok()
}

fn subordinate(text: &str, uid_of: impl Fn(&str) -> Option<u32>) -> BTreeMap<u32, Vec<RangeInclusive<u32>>> {
    let mut ranges: BTreeMap<u32, Vec<RangeInclusive<u32>>> = BTreeMap::new();
    for line in text.lines() {
        let mut fields = line.split(':').map(str::trim);
        let (Some(owner), Some(first), Some(count)) = (fields.next(), fields.next(), fields.next()) else { continue };
        let owner = uid_of(owner).or_else(|| owner.parse().ok());
        let (Some(owner), Ok(first), Ok(count)) = (owner, first.parse::<u32>(), count.parse::<u32>()) else { continue };
        if let Some(last) = count.checked_sub(1) {
            ranges.entry(owner).or_default().push(first..=first.saturating_add(last));
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overflow_id_that_makes_no_sense_is_none() {
        assert_eq!((overflow_id("65533\n"), overflow_id(""), overflow_id("-1")), (Some(65_533), None, None));
    }

    #[test]
    fn subordinate_ranges_belong_to_names_and_numbers() {
        let text = "alice:100000:65536\n1001:300000:1\nalice:500000:10\nnobody-there:1:2\n#x\nbob:9:0\nbroken:1\n";
        let ranges = subordinate(text, |name| (name == "alice").then_some(1000));
        assert_eq!(ranges[&1000], vec![100_000..=165_535, 500_000..=500_009]);
        assert_eq!(ranges[&1001], vec![300_000..=300_000]);
        assert_eq!(ranges.len(), 2);
    }
}
