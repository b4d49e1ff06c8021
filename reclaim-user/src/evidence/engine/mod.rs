//! The engine: owns the producers and the live set, and answers what decisions and removal ask.
//!
//! ```text
//! probes -> ring -> events -> live set <- tables <- scanner
//!                                |
//!                          consult, confirm, audit
//! ```
//!
//! It keeps no descriptor of a mount namespace or of a mount between two calls.

mod ask;
mod audit;
mod confirm;
mod settle;
mod status;
mod walked;

pub use super::walk::WalkError;
pub use audit::{Audit, Difference, ProducerReport};
pub use status::{EngineStatus, HookLine};
pub use walked::{Asked, Proof};

use super::clock::Clock;
use super::lacking::lacks;
use super::layouts;
use super::mount_fence::MountFence;
use super::probes::{ProbeError, ProbeOptions, Probes, Rung, Rungs};
use super::references::Finder;
use super::references::layout::forget_iterator_types;
use super::scan::{self, ScanError, ScanOptions, Scanner};
use super::source::{CondemnedIn, EvidenceSource, Settled, View};
use super::walk::Walker;
use crate::model::coverage::Coverage;
use crate::model::event::{Event, Hook};
use crate::model::id::{Location, NamespaceId};
use crate::model::live::{self, LiveSet};
use crate::model::reference::References;
use crate::model::report::Producer;
use crate::sys::heap;
use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};
use tracing::{debug, info, warn};

/// How old the list of living namespaces may be when the live set is asked.
const LISTING_AGE: Duration = Duration::from_millis(250);
/// Readings of due namespaces in one refresh, in rounds: each round reads what the one before it marked.
const ROUNDS: usize = 16;
/// Baselines tried in a row when records get lost during each.
const BASELINES: usize = 3;

/// Which producers may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum EvidenceChoice {
    /// The best that works.
    #[default]
    Auto,
    /// The live set, or an error.
    Live,
    /// The kernel's own list of mounts, or an error.
    Walk,
    /// Mount tables alone: no probe is attached.
    Scan,
}

/// How long an engine is to be used, which decides what is worth attaching.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Span {
    /// For a single question: no probe is attached unless the live set is asked for. Attaching takes longer than a scan.
    Question,
    /// For one command: by the rung that is attached and detached at once, though it costs others more meanwhile. The
    /// kernel waits for grace periods whenever it takes a program off a function or a tracepoint of its own. Measured in
    /// an emulated machine with Linux 6.12, all hooks together, to attach and try and to detach: fentry 4.1 and 4.6 s,
    /// kprobes 2.7 and 4.3 s, tracepoints of single calls 0.5 and 1.2 s, the tracepoints of every call 0.5 and 0.01 s.
    Command,
    /// For good: by the rung that costs others least.
    #[default]
    Service,
}

/// The rung that commands try first.
pub const COMMANDS_FIRST: Rung = Rung::EverySyscall;

/// How to open an [`Engine`].
#[derive(Clone, Debug, Default)]
pub struct EngineOptions {
    /// Which producers may be used.
    pub evidence: EvidenceChoice,
    /// The roots to index, in the order that decisions name them by.
    pub watch: Vec<Location>,
    /// How long it is to be used.
    pub span: Span,
}

/// Why there is no evidence.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The producer that was asked for does not work here.
    #[error("evidence from {producer} is not to be had here; use --evidence auto to go on with the best that is")]
    Unavailable {
        /// What was asked for.
        producer: &'static str,
        /// Why it does not work.
        #[source]
        source: ProbeError,
    },
    /// The walk was asked for and does not work here.
    #[error("evidence from walk is not to be had here; use --evidence auto to go on with the best that is")]
    NoWalk(#[source] WalkError),
    /// Mount tables could not be read.
    #[error(transparent)]
    Scan(#[from] ScanError),
}

/// Owner of the producers and of the live set.
#[derive(Debug)]
pub struct Engine {
    watch: Vec<Location>,
    scanner: Scanner,
    probes: Option<Probes>,
    probes_missing: Option<String>,
    walker: Option<Walker>,
    walk_missing: Option<String>,
    walk_coverage: Option<Coverage>,
    /// Nobody has asked anything yet: the first baseline is as fresh as the question that this was opened for.
    unasked: bool,
    finder: Finder,
    /// Keeps others from binding condemned entries; None where that is not wanted or not to be had.
    mount_fence: Option<MountFence>,
    references: References,
    /// Directories whose entries the last count found to be what the pass knows of them.
    unchanged: BTreeSet<Vec<u8>>,
    /// The claims of the last confirmation: of mounts, and of mount tables.
    claims: Option<(Coverage, Coverage)>,
    /// When the last wait ended, a call may have been inside that the mount clock did not count in.
    in_doubt: bool,
    live: LiveSet,
    taken: Instant,
    listed: Instant,
    counts: Counts,
    events: Vec<Event>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    events: u64,
    lost: u64,
    rereads: u64,
    baselines: u64,
}

impl Engine {
    /// Attaches the probes where they may be used, and takes the baseline.
    ///
    /// # Errors
    /// When the producer asked for does not work here, or no mount table can be read at all.
    pub fn open(options: EngineOptions) -> Result<Self, EngineError> {
        let EngineOptions { evidence, watch, span } = options;
        // Beside the probes or the scan: it takes longer than either.
        let loading = match evidence {
            EvidenceChoice::Scan | EvidenceChoice::Live => None,
            EvidenceChoice::Auto | EvidenceChoice::Walk => Builder::new().name("walk".into()).spawn(Walker::load).ok(),
        };
        let (probes, probes_missing) = match (evidence, span) {
            (EvidenceChoice::Scan, _) => (None, Some("not asked for: --evidence scan".to_owned())),
            (EvidenceChoice::Auto | EvidenceChoice::Walk, Span::Question) => {
                // The walk tells what is wrong with it.
                let _ = layouts::of_running_kernel();
                (None, Some("not attached for a single question".to_owned()))
            }
            (EvidenceChoice::Auto | EvidenceChoice::Live | EvidenceChoice::Walk, _) => match attach(span) {
                Ok(probes) => (Some(probes), None),
                Err(source) if evidence == EvidenceChoice::Live => {
                    return Err(EngineError::Unavailable { producer: "live", source });
                }
                Err(error) => {
                    let why = error_chain(&error);
                    info!("probes are not used: {why}");
                    (None, Some(why))
                }
            },
        };
        let mut scanner = Scanner::new(ScanOptions::from_environment());
        let live = scanned(&mut scanner, &watch);
        let taken = Instant::now();
        let (walker, walk_missing) = match evidence {
            EvidenceChoice::Scan | EvidenceChoice::Live => (None, Some("not asked for".to_owned())),
            EvidenceChoice::Auto | EvidenceChoice::Walk => match loading.map_or_else(Walker::load, joined) {
                Ok(walker) => (Some(walker), None),
                Err(source) if evidence == EvidenceChoice::Walk => return Err(EngineError::NoWalk(source)),
                Err(error) => {
                    let why = error_chain(&error);
                    info!("the kernel's own list of mounts is not used: {why}");
                    (None, Some(why))
                }
            },
        };
        let live = live?;
        let counts = Counts { baselines: 1, ..Counts::default() };
        let mut engine = Self {
            watch,
            scanner,
            probes,
            probes_missing,
            walker,
            walk_missing,
            walk_coverage: None,
            unasked: true,
            finder: Finder::default(),
            mount_fence: None,
            references: References::NONE,
            unchanged: BTreeSet::new(),
            claims: None,
            in_doubt: false,
            live,
            taken,
            listed: taken,
            counts,
            events: Vec::new(),
        };
        engine.take_events();
        if engine.live.has_gap() {
            engine.baseline()?
        } else {
            engine.refresh()?
        }
        if span == Span::Service {
            // The kernel's type information alone was many times what stays.
            forget_iterator_types();
            heap::give_back();
        }
        Ok(engine)
    }

    /// Indexes other roots from here on; what is known of namespaces stays.
    pub fn watch(&mut self, roots: Vec<Location>) {
        if roots != self.watch {
            self.live.watch(roots.iter().cloned());
            self.watch = roots;
        }
    }

    /// Keeps others from binding condemned entries from here on, where the kernel offers that; or no longer.
    pub fn refuse_binds(&mut self, wanted: bool) {
        if !wanted {
            self.mount_fence = None;
        } else if self.mount_fence.is_none() {
            self.mount_fence = MountFence::attach()
                .inspect_err(|error| {
                    warn!("binds of condemned entries cannot be refused, only found: {}", error_chain(error));
                })
                .ok();
        }
    }

    /// Gives back the memory that only work needs: to be called when there is none for a while.
    pub fn rest(&mut self) {
        self.live.see(Vec::new());
        self.events = Vec::new();
        if let Some(Err(error)) = self.walker.as_mut().map(Walker::shrink) {
            debug!("the walk keeps the room that it has: {}", error_chain(&error));
        }
        forget_iterator_types();
        heap::give_back();
    }

    /// Takes the kernel's records off the ring, so that it does not fill. Reads no namespace.
    ///
    /// # Errors
    /// None at present; loss is told by the coverage.
    pub fn drain(&mut self) -> Result<(), EngineError> {
        self.take_events();
        Ok(())
    }

    /// Becomes readable when the kernel has sent something. None without probes.
    #[must_use]
    pub fn poll_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.probes.as_ref().map(Probes::poll_fd)
    }

    /// The mount clock, which the probes keep.
    fn clock(&self) -> Option<&Clock> {
        self.probes.as_ref().filter(|_| !lacks("clock")).map(Probes::clock)
    }

    /// Who speaks for the live set: the probes, or the last scan alone.
    #[must_use]
    pub fn producer(&self) -> Producer {
        if self.probes.is_some() { Producer::Live } else { Producer::Scan }
    }

    /// Brings the live set up to all that the kernel had sent by now; without probes, to a scan that is recent.
    fn bring_up(&mut self) -> Result<(), EngineError> {
        if self.probes.is_none() {
            // Nothing tells of changes: only what is read now is worth anything, and one reading serves for a while.
            if self.taken.elapsed() > LISTING_AGE {
                self.baseline()?;
            }
            return Ok(());
        }
        self.take_events();
        if self.live.has_gap() {
            self.baseline()?;
            return Ok(());
        }
        if self.listed.elapsed() > LISTING_AGE {
            let listing = self.scanner.list_namespaces()?;
            self.listed = Instant::now();
            self.live.exist(&listing.namespaces.iter().copied().collect::<BTreeSet<_>>(), listing.complete);
        }
        self.refresh()
    }

    fn view(&self) -> View<'_> {
        let references = const { &References::NONE };
        let (pins, coverage) = (self.live.pins(), self.live.coverage());
        let unchanged = const { &BTreeSet::new() };
        View { pins, coverage, tables: coverage, references, producer: self.producer(), unchanged, walks: false }
    }

    /// Takes the kernel's records off the ring and notes what they say.
    fn take_events(&mut self) {
        let Some(probes) = &mut self.probes else { return };
        self.events.clear();
        let drained = probes.drain(&mut self.events);
        let lost = drained.lost + drained.malformed;
        self.counts.events += self.events.len() as u64;
        self.counts.lost += lost;
        let own = std::process::id();
        for event in &self.events {
            // Reading a namespace enters and leaves it, which changes nothing in it.
            if event.process == own && matches!(event.hook, Hook::Setns | Hook::Depart) {
                continue;
            }
            if let (Some(inode), Hook::Unshare | Hook::Clone | Hook::Setns) = (event.namespace, event.hook) {
                self.scanner.hint(NamespaceId(inode.into()), event.thread);
            }
            self.live.note(event);
        }
        if lost > 0 {
            debug!(lost, "records were lost: the live set frees nothing until the next baseline");
            self.live.lost(lost);
        }
    }

    /// Reads again what is due, and what that makes due.
    fn refresh(&mut self) -> Result<(), EngineError> {
        if !self.read_due()? {
            // Namespaces mark each other faster than they are read one by one.
            debug!("mount namespaces change faster than they can be read; taking a whole scan");
            self.baseline()?;
        }
        Ok(())
    }

    /// Reads every namespace, and brings in what happened meanwhile.
    fn baseline(&mut self) -> Result<(), EngineError> {
        for _ in 0..BASELINES {
            // What was sent before the scan is void; what is sent while it runs is noted on what it finds.
            self.take_events();
            self.live = scanned(&mut self.scanner, &self.watch)?;
            self.counts.baselines += 1;
            self.taken = Instant::now();
            self.listed = self.taken;
            self.take_events();
            if !self.live.has_gap() {
                break;
            }
        }
        // What is due after the last round changed while this ran, and is read by the next consult.
        self.read_due()?;
        Ok(())
    }

    /// Returns whether nothing is due any more.
    fn read_due(&mut self) -> Result<bool, EngineError> {
        for _ in 0..ROUNDS {
            for namespace in self.live.take_due() {
                self.counts.rereads += 1;
                let reading = match self.scanner.read_namespace(namespace)? {
                    scan::Reading::Table(pins) => live::Reading::Table(pins),
                    scan::Reading::Gone => live::Reading::Gone,
                    scan::Reading::Unknown { why } => {
                        debug!(%namespace, "a mount namespace cannot be read: {why}");
                        live::Reading::Unknown
                    }
                };
                self.live.read(namespace, reading);
            }
            if !self.live.is_due() {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn attach(span: Span) -> Result<Probes, ProbeError> {
    let rungs = Rungs::from_environment();
    let rungs = match span {
        Span::Service => rungs,
        Span::Command | Span::Question => rungs.first(COMMANDS_FIRST),
    };
    Probes::attach(ProbeOptions { rungs, ..ProbeOptions::default() })
}

/// What a thread came to. A panic on it goes on here.
fn joined<T>(thread: JoinHandle<T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn scanned(scanner: &mut Scanner, watch: &[Location]) -> Result<LiveSet, ScanError> {
    let scan = scanner.scan()?;
    Ok(LiveSet::baseline(watch.iter().cloned(), scan.namespaces, scan.coverage))
}

impl EvidenceSource for Engine {
    type Error = EngineError;

    fn consult(&mut self) -> Result<View<'_>, EngineError> {
        // What a walk saw is true of its moment only.
        self.live.see(Vec::new());
        self.bring_up()?;
        Ok(View { walks: self.walker.is_some(), ..self.view() })
    }

    fn guard(&mut self, store: Option<BorrowedFd<'_>>) {
        if let Some(Err(error)) = self.mount_fence.as_mut().map(|fence| fence.guard(store)) {
            warn!("binds of condemned entries are not refused, only found: {}", error_chain(&error));
            self.mount_fence = None;
        }
    }

    fn is_settling(&self) -> bool {
        self.clock().is_some_and(Clock::is_settling) || self.finder.is_loading()
    }

    fn prepare(&mut self) {
        self.finder.prepare();
    }

    fn settle(&mut self, limit: Duration, between: &mut dyn FnMut(&mut Self) -> bool) -> Settled {
        self.settle_by_clock(limit, between)
    }

    fn confirm(&mut self, root: usize, condemned: &[CondemnedIn<'_>]) -> Result<View<'_>, EngineError> {
        // Before mounts: whoever binds an entry and lets go of what it was bound by is seen by the one or the other.
        let gaps = self.refer(condemned, References::NONE);
        self.confirm_tables()?;
        let (producer, gaps) = self.confirm_by_looks(root, condemned, gaps)?;
        let mut claim = match producer {
            Producer::Walk => self.walk_coverage.get_or_insert_with(|| Coverage::full(scan::identities())).clone(),
            Producer::Live | Producer::Scan => self.live.coverage().clone(),
        };
        let mut tables = self.live.coverage().clone();
        for (cause, count, reach) in gaps {
            tables.lower(cause, count, reach.clone());
            claim.lower(cause, count, reach);
        }
        let (coverage, tables) = self.claims.insert((claim, tables));
        let Self { live, references, unchanged, .. } = self;
        let walks = producer == Producer::Walk;
        Ok(View { pins: live.pins(), coverage, tables, references, producer, unchanged, walks })
    }
}

fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}
