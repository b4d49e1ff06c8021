//! The engine.
#![expect(missing_docs, reason = "replaced as a whole by the real engine")]
use super::source::{EvidenceSource, Settled, View};
use crate::model::id::Location;
use crate::model::report::Producer;
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Debug, thiserror::Error)]
#[error("there is no engine")]
pub struct EngineError;
#[derive(Debug)]
pub struct Engine(());
#[derive(Clone, Debug)]
pub struct EngineOptions {
    pub evidence: EvidenceChoice,
    pub watch: Vec<Location>,
}
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvidenceChoice {
    Auto,
    Live,
    Walk,
    Scan,
}
#[derive(Clone, Debug)]
pub struct HookLine {
    pub hook: String,
    pub rung: String,
    pub state: String,
    pub cost: String,
    pub blind_to: String,
}
#[derive(Clone, Debug)]
pub struct EngineStatus {
    pub producer: Producer,
    pub probes: Vec<HookLine>,
    pub probes_missing: Option<String>,
    pub clock: bool,
    pub age_ms: u64,
    pub events: u64,
    pub lost: u64,
    pub rereads: u64,
    pub baselines: u64,
    pub namespaces: usize,
    pub mounts: usize,
    pub complete: bool,
    pub gaps: BTreeMap<&'static str, u64>,
}
#[derive(Clone, Debug)]
pub struct Difference {
    pub root: usize,
    pub entry: Vec<u8>,
    pub seen_by: Vec<Producer>,
    pub missed_by: Vec<Producer>,
    pub cause: Option<String>,
}
#[derive(Clone, Debug)]
pub struct ProducerReport {
    pub producer: Producer,
    pub namespaces: usize,
    pub mounts: usize,
    pub pinned_entries: usize,
    pub elapsed_ms: u64,
    pub complete: bool,
    pub unavailable: Option<String>,
}
#[derive(Clone, Debug)]
pub struct Audit {
    pub differences: Vec<Difference>,
    pub producers: Vec<ProducerReport>,
}
impl Engine {
    pub fn open(_options: EngineOptions) -> Result<Self, EngineError> {
        Err(EngineError)
    }
    #[must_use]
    pub fn status(&self) -> EngineStatus {
        unreachable!("never opened")
    }
    #[must_use]
    pub fn poll_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }
    pub fn drain(&mut self) -> Result<(), EngineError> {
        Err(EngineError)
    }
    pub fn audit(&mut self) -> Result<Audit, EngineError> {
        Err(EngineError)
    }
}
impl EvidenceSource for Engine {
    type Error = EngineError;
    fn consult(&mut self) -> Result<View<'_>, EngineError> {
        Err(EngineError)
    }
    fn settle(&mut self, limit: Duration) -> Settled {
        Settled::Fixed(limit)
    }
    fn confirm(&mut self) -> Result<View<'_>, EngineError> {
        Err(EngineError)
    }
}
