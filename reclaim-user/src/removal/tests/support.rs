//! A tmpfs of its own for each test, evidence from a small scanner of /proc, and sandboxes as child processes.

use crate::config::RootConfig;
use crate::evidence::references::Finder;
use crate::evidence::source::{CondemnedIn, EvidenceSource, Settled, View};
use crate::model::coverage::{Coverage, Identities};
use crate::model::id::{Device, Location, MountId, NamespaceId};
use crate::model::mount::{Layer, Mount, MountTable};
use crate::model::pin::Pin;
use crate::model::pin_set::{NamespacePins, PinSet};
use crate::model::reference::References;
use crate::model::report::{PassSummary, Producer, Reason, Verdict};
use crate::removal::{EntryEvent, PassEvent, PassOptions, RemovalError, RootState, locate, pass};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use regex::bytes::Regex;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A private mount namespace with a tmpfs; the thread stays in it.
pub(in crate::removal) struct Room {
    place: tempfile::TempDir,
}

impl Room {
    pub(in crate::removal) fn new() -> Self {
        Self::with("size=512m")
    }

    pub(super) fn with(options: &str) -> Self {
        assert!(nix::unistd::geteuid().is_root(), "this test mounts: run it as root, with `cargo xtask test`");
        unshare(CloneFlags::CLONE_NEWNS).unwrap();
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SLAVE, None::<&str>).unwrap();
        let place = tempfile::tempdir().unwrap();
        mount(Some("tmpfs"), place.path(), Some("tmpfs"), MsFlags::empty(), Some(options)).unwrap();
        fs::create_dir(place.path().join("root")).unwrap();
        fs::create_dir(place.path().join("outside")).unwrap();
        Self { place }
    }

    pub(in crate::removal) fn path(&self, below: impl AsRef<Path>) -> PathBuf {
        self.place.path().join(below)
    }

    /// The root directory.
    pub(in crate::removal) fn root(&self) -> PathBuf {
        self.path("root")
    }

    pub(in crate::removal) fn entry(&self, name: impl AsRef<Path>) -> PathBuf {
        self.root().join(name)
    }

    /// Makes an empty directory as an entry.
    pub(in crate::removal) fn stale(&self, name: impl AsRef<Path>) -> PathBuf {
        let path = self.entry(name);
        fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
        path
    }

    pub(in crate::removal) fn rules(&self) -> RootConfig {
        RootConfig::without_fences("test".into(), self.root())
    }

    /// Names of the root, sorted.
    pub(super) fn names(&self) -> Vec<String> {
        names(&self.root())
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let _ = nix::mount::umount2(self.place.path(), nix::mount::MntFlags::MNT_DETACH);
    }
}

pub(super) fn names(path: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

pub(super) fn pattern(text: &str) -> Option<Regex> {
    Some(Regex::new(text).unwrap())
}

/// What the evidence does at some moment of the protocol.
type Act = Box<dyn FnMut()>;

/// Evidence that reads every mount namespace through /proc each time, and does what a test asks at certain moments.
pub(super) struct Evidence {
    pub(super) location: Location,
    pins: PinSet,
    coverage: Coverage,
    references: References,
    unchanged: BTreeSet<Vec<u8>>,
    /// Whether confirm looks for references too, and compares entries with what they are sealed with.
    pub(super) finder: Option<Finder>,
    /// Confirm says of every directory that its entries are unchanged, whatever became of them.
    pub(super) says_unchanged: bool,
    /// Ends of the next waits; [`Settled::Clock`] after the last.
    pub(super) settled: Vec<Settled>,
    /// Done once, while everything condemned waits for confirmation.
    pub(super) while_condemned: Option<Act>,
    /// Done once, before anything is confirmed.
    pub(super) while_asked: Option<Act>,
    /// Where pins are looked for in place of the root.
    pub(super) watches: Option<PathBuf>,
    /// Pins that confirm sees besides, and consult does not.
    pub(super) late_pins: Vec<Pin>,
    /// Pins that consult and confirm see besides.
    pub(super) early_pins: Vec<Pin>,
    /// A layer that cannot be resolved: seen by consult too, or by confirm alone.
    pub(super) layer: Option<(Vec<u8>, bool)>,
    /// What lowers the claim: of consult too, or of confirm alone.
    pub(super) gap: Option<(crate::model::coverage::Reach, bool)>,
    /// Consult fails after so many more calls; none: never.
    pub(super) consults_left: Option<usize>,
    pub(super) confirm_fails: bool,
    /// A wait lasts for a time that is set anyway.
    pub(super) settling: bool,
    /// Sees no real mounts at all.
    pub(super) blind: bool,
    /// Mount tables show less than all.
    pub(super) tables_gap: bool,
    pub(super) tables: Coverage,
    pub(super) consulted: usize,
    pub(super) confirmed: usize,
    /// Directories that one confirmation was asked about at most.
    pub(super) directories: usize,
}

#[derive(Debug, thiserror::Error)]
#[error("no evidence")]
pub(super) struct NoEvidence;

impl Evidence {
    pub(super) fn of(room: &Room) -> Self {
        Self::at(&room.root())
    }

    pub(super) fn at(root: &Path) -> Self {
        let location = locate(root).unwrap();
        Self {
            pins: PinSet::watching([location.clone()]),
            location,
            coverage: full(),
            references: References::NONE,
            unchanged: BTreeSet::new(),
            finder: None,
            says_unchanged: false,
            settled: Vec::new(),
            while_condemned: None,
            while_asked: None,
            watches: None,
            late_pins: Vec::new(),
            early_pins: Vec::new(),
            layer: None,
            gap: None,
            consults_left: None,
            confirm_fails: false,
            settling: false,
            blind: false,
            tables_gap: false,
            tables: full(),
            consulted: 0,
            confirmed: 0,
            directories: 0,
        }
    }

    fn take(&mut self, fresh: bool) {
        let watched = self.watches.as_deref().map(|path| locate(path).unwrap());
        self.pins = PinSet::watching([watched.unwrap_or_else(|| self.location.clone())]);
        self.coverage = full();
        if !self.blind {
            for (namespace, table) in scan() {
                self.pins.replace(namespace, NamespacePins { table, tasks: vec![] });
            }
        }
        if let Some((written, early)) = &self.layer
            && (fresh || *early)
        {
            let layer = Layer {
                mount: MountId(1),
                mount_point: None,
                written: written.clone().into(),
                trace: crate::model::mount::Trace::Nothing,
                places: vec![],
            };
            let table = MountTable { mounts: vec![], layers: vec![layer] };
            self.pins.replace(NamespaceId(1), NamespacePins { table, tasks: vec![] });
        }
        if let Some((reach, early)) = &self.gap
            && (fresh || *early)
        {
            self.coverage.lower(crate::model::coverage::GapCause::TaskUnreadable, 1, reach.clone());
        }
        self.early_pins.iter().cloned().for_each(|pin| self.pins.add_loose(pin));
        self.tables = self.coverage.clone();
        if self.tables_gap {
            self.tables.lower(
                crate::model::coverage::GapCause::NamespaceUnread,
                1,
                crate::model::coverage::Reach::Everybody,
            );
        }
        if fresh {
            self.late_pins.iter().cloned().for_each(|pin| self.pins.add_loose(pin));
        }
    }

    fn view(&self) -> View<'_> {
        let (pins, coverage, references) = (&self.pins, &self.coverage, &self.references);
        let tables = &self.tables;
        let unchanged = &self.unchanged;
        View { pins, coverage, tables, references, producer: Producer::Scan, unchanged, walks: false }
    }

    /// A pin on a place below the root.
    pub(super) fn pin(&self, below: &str) -> Pin {
        Pin {
            role: crate::model::pin::Role::Layer,
            location: self.location.join(below.as_bytes()),
            namespace: None,
            mount: MountId(7),
            mount_point: None,
            state: crate::model::pin::State::Detached,
            inside: false,
        }
    }
}

fn full() -> Coverage {
    Coverage::full(Identities { overflow: Some(65_534), subordinate: Some(BTreeMap::new()) })
}

impl EvidenceSource for Evidence {
    type Error = NoEvidence;

    fn consult(&mut self) -> Result<View<'_>, NoEvidence> {
        self.consulted += 1;
        if let Some(left) = &mut self.consults_left {
            *left = left.checked_sub(1).ok_or(NoEvidence)?;
        }
        self.take(false);
        Ok(self.view())
    }

    fn is_settling(&self) -> bool {
        self.settling
    }

    fn settle(&mut self, _limit: Duration, _between: &mut dyn FnMut(&mut Self) -> bool) -> Settled {
        if let Some(mut act) = self.while_condemned.take() {
            act();
        }
        if self.settled.is_empty() { Settled::Clock } else { self.settled.remove(0) }
    }

    fn confirm(&mut self, _root: usize, condemned: &[CondemnedIn<'_>]) -> Result<View<'_>, NoEvidence> {
        self.confirmed += 1;
        self.directories = self.directories.max(condemned.len());
        if let Some(mut act) = self.while_asked.take() {
            act();
        }
        if self.confirm_fails {
            return Err(NoEvidence);
        }
        let mut gaps = Vec::new();
        if let Some(finder) = &mut self.finder {
            let found = finder.find(condemned);
            self.references = found.references;
            gaps = found.gaps;
            if finder.is_quick() {
                self.unchanged = finder.count(condemned).unwrap().unchanged;
            }
        }
        if self.says_unchanged {
            self.unchanged = condemned.iter().map(|condemned| condemned.path.clone()).collect();
        }
        self.take(true);
        gaps.into_iter().for_each(|(cause, count, reach)| self.coverage.lower(cause, count, reach));
        Ok(self.view())
    }
}

/// Every mount namespace that some thread is in.
fn scan() -> Vec<(NamespaceId, MountTable)> {
    let mut seen = BTreeSet::new();
    let mut tables = Vec::new();
    let tasks = |pid: PathBuf| fs::read_dir(pid.join("task")).into_iter().flatten().flatten().map(|task| task.path());
    let processes = fs::read_dir("/proc").unwrap().flatten().map(|process| process.path());
    for task in processes.filter(|path| path.join("task").exists()).flat_map(tasks) {
        let Ok(namespace) = fs::metadata(task.join("ns/mnt")) else { continue };
        if !seen.insert(namespace.ino()) {
            continue;
        }
        let Ok(text) = fs::read(task.join("mountinfo")) else { continue };
        let mounts = text.split(|byte| *byte == b'\n').filter_map(line).collect();
        tables.push((NamespaceId(namespace.ino()), MountTable { mounts, layers: vec![] }));
    }
    tables
}

fn line(line: &[u8]) -> Option<Mount> {
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let [id, parent, device, root, point, ..] = *fields.as_slice() else { return None };
    let text = |field| std::str::from_utf8(field).ok();
    let (major, minor) = text(device)?.split_once(':')?;
    let bare = root.strip_suffix(b"//deleted");
    Some(Mount {
        id: MountId(text(id)?.parse().ok()?),
        parent: MountId(text(parent)?.parse().ok()?),
        device: Device { major: major.parse().ok()?, minor: minor.parse().ok()? },
        root: crate::model::mountinfo::unescape(bare.unwrap_or(root)),
        root_deleted: bare.is_some(),
        point: Some(crate::model::mountinfo::unescape(point)),
        peer_group: 0,
        master: 0,
    })
}

/// A child in a mount namespace of its own, which begins with this thread's.
pub(super) struct Sandbox(Child);

impl Sandbox {
    /// Runs a script in it and waits until it is done; then it only lives.
    pub(super) fn new(script: &str) -> Self {
        let script = format!("set -e; {script}; echo ready; exec sleep 600");
        let mut child = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", &script])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut told = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut told).unwrap();
        assert_eq!(told, "ready\n");
        Self(child)
    }

    pub(super) fn bind(source: &Path, target: &Path) -> Self {
        Self::new(&format!("mount --bind '{}' '{}'", source.display(), target.display()))
    }

    /// Whether a path can be written to in the sandbox.
    pub(super) fn can_write(&self, path: &Path) -> bool {
        let file = path.join("probe");
        let script = format!("touch '{0}' && rm '{0}'", file.display());
        let process = self.0.id().to_string();
        Command::new("nsenter").args(["--mount", "--target", &process, "sh", "-c", &script]).status().unwrap().success()
    }
}

/// A child that only lives, until it is dropped.
pub(super) struct Sleeper(Child);

impl Sleeper {
    pub(super) fn new() -> Self {
        Self(Command::new("sleep").arg("600").spawn().unwrap())
    }

    pub(super) fn of(child: Child) -> Self {
        Self(child)
    }

    pub(super) fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A pass and what it told.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) summary: PassSummary,
    pub(super) entries: Vec<EntryEvent>,
    pub(super) notes: Vec<String>,
}

impl Told {
    pub(super) fn kept(&self, reason: Reason) -> u64 {
        self.summary.kept.get(&reason).copied().unwrap_or(0)
    }

    /// Verdict and reason of an entry; panics unless exactly one was told.
    pub(super) fn of(&self, name: &str) -> (Verdict, Option<Reason>) {
        let told: Vec<&EntryEvent> = self.entries.iter().filter(|entry| entry.name == name.as_bytes()).collect();
        let [entry] = *told.as_slice() else { panic!("`{name}` was told {} times: {self:#?}", told.len()) };
        (entry.verdict, entry.reason)
    }

    pub(super) fn detail(&self, name: &str) -> String {
        let entry = self.entries.iter().find(|entry| entry.name == name.as_bytes()).unwrap();
        entry.detail.clone().unwrap_or_default()
    }
}

pub(super) fn options() -> PassOptions {
    PassOptions { per_entry: true, budget: Duration::from_secs(60), ..PassOptions::default() }
}

/// With as many locks held at a time.
pub(super) fn held(held_leases: usize) -> PassOptions {
    PassOptions { held_leases, ..options() }
}

pub(super) fn run_with(
    rules: &RootConfig,
    evidence: &mut Evidence,
    options: &PassOptions,
    state: &mut RootState,
) -> Result<Told, RemovalError> {
    let (mut entries, mut notes) = (Vec::new(), Vec::new());
    let mut listen = |event| match event {
        PassEvent::Entry(entry) => entries.push(entry),
        PassEvent::Note(note) => notes.push(note),
        PassEvent::Progress { .. } => {}
    };
    let location = evidence.location.clone();
    let summary = pass(rules, 0, &location, evidence, options, state, &mut listen, &mut |_| {})?;
    let kept: u64 = summary.kept.values().sum();
    let would = if summary.dry_run { summary.candidates } else { 0 };
    assert_eq!(summary.listed, summary.removed + summary.condemned + kept + would, "{summary:?}");
    Ok(Told { summary, entries, notes })
}

/// One whole pass without a history.
pub(super) fn run(rules: &RootConfig, evidence: &mut Evidence) -> Told {
    run_with(rules, evidence, &options(), &mut RootState::default()).unwrap()
}

/// The condemned entry's path while the pass is in its wait.
pub(super) fn condemned(root: &Path, name: &str) -> PathBuf {
    let store = root.join(".reclaim");
    let batch = names(&store).into_iter().find(|batch| store.join(batch).join(name).exists());
    store.join(batch.unwrap()).join(name)
}
