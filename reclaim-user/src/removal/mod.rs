//! The only code that changes a disk: list, condemn, wait, confirm, remove.
#![expect(missing_docs, reason = "replaced as a whole")]
use crate::config::RootConfig;
use crate::evidence::source::EvidenceSource;
use crate::model::id::Location;
use crate::model::pin::Pin;
use crate::model::report::{PassSummary, Reason, Verdict};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
#[derive(Debug, thiserror::Error)]
pub enum RemovalError {
    #[error("config")]
    Configuration { path: PathBuf, fault: &'static str, remedy: &'static str },
    #[error("busy")]
    Busy { path: PathBuf, process: Option<u32> },
    #[error("call")]
    Call { call: &'static str, path: PathBuf, source: nix::errno::Errno },
}
#[derive(Clone, Debug)]
pub struct PassOptions {
    pub budget: Duration,
    pub dry_run: bool,
    pub per_entry: bool,
    pub settle_limit: Duration,
    pub stop: Option<Arc<AtomicBool>>,
}
impl Default for PassOptions {
    fn default() -> Self {
        Self {
            budget: Duration::from_secs(10),
            dry_run: false,
            per_entry: false,
            settle_limit: Duration::from_secs(5),
            stop: None,
        }
    }
}
#[derive(Debug, Default)]
pub struct RootState(());
#[derive(Clone, Debug)]
pub enum PassEvent {
    Entry(EntryEvent),
    Note(String),
    Progress { listed: u64, removed: u64 },
}
#[derive(Clone, Debug)]
pub struct EntryEvent {
    pub name: Vec<u8>,
    pub verdict: Verdict,
    pub reason: Option<Reason>,
    pub pins: Vec<Pin>,
    pub detail: Option<String>,
}
pub fn locate(_path: &Path) -> Result<Location, RemovalError> {
    Err(RemovalError::Call { call: "x", path: PathBuf::new(), source: nix::errno::Errno::ENOSYS })
}
#[expect(clippy::too_many_arguments, reason = "replaced as a whole")]
pub fn pass<S: EvidenceSource>(
    _root: &RootConfig,
    _index: usize,
    _location: &Location,
    _state: &mut RootState,
    _source: &mut S,
    _options: &PassOptions,
    _on: &mut dyn FnMut(PassEvent),
    _between: &mut dyn FnMut(&mut S),
) -> Result<PassSummary, RemovalError> {
    Err(RemovalError::Busy { path: PathBuf::new(), process: None })
}
