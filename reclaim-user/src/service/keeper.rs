//! Writes down what is kept, for a peer of the service or for a command that runs alone.

use super::protocol::{self, Peer, Request};
use crate::config::{Config, duration};
use crate::error::chain;
use crate::model::fence::Timestamp;
use crate::model::keep::{KeepReport, LONGEST_SECONDS, UnkeepReport};
use crate::model::report::Name;
use crate::removal::{self, KeepError, KeepStore, KeptEntry};
use nix::errno::Errno;
use serde_json::Value;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// The keeps of a state directory, and the roots that they may be about.
#[derive(Clone, Debug, Default)]
pub struct Keeper {
    store: KeepStore,
    roots: Vec<PathBuf>,
}

impl Keeper {
    /// That of a configuration.
    #[must_use]
    pub fn of(config: &Config) -> Self {
        let roots = config.roots.iter().map(|root| root.path.clone()).collect();
        Self { store: KeepStore::of(&config.service.state_dir), roots }
    }

    /// Keeps an entry from now on.
    ///
    /// # Errors
    /// When the caller may not, or it cannot be done.
    pub fn keep(&self, peer: Peer, path: &Path, seconds: u64) -> Result<KeepReport, KeepError> {
        let now = removal::now();
        let entry = KeptEntry::open(path, self.roots(), peer.uid)?;
        self.store.keep(&entry, until(now, seconds), peer.is_root(), now).map(|keep| KeepReport::from(&keep))
    }

    /// Ends the keep of an entry. Root may do so for a name whose entry is gone.
    ///
    /// # Errors
    /// When the caller may not, or it cannot be done.
    pub fn unkeep(&self, peer: Peer, path: &Path) -> Result<UnkeepReport, KeepError> {
        let now = removal::now();
        let was_kept = match KeptEntry::open(path, self.roots(), peer.uid) {
            Ok(entry) => self.store.unkeep(&entry, now)?,
            Err(KeepError::Look { source: Errno::ENOENT, .. }) if peer.is_root() => {
                let (root, name) = removal::kept_place(path, self.roots())?;
                self.store.unkeep_name(root, name.to_bytes(), now)?
            }
            Err(error) => return Err(error),
        };
        let path = Name(path.as_os_str().as_bytes().to_vec());
        Ok(UnkeepReport { path_hex: path.hex(), path, was_kept })
    }

    /// What is kept: everything for root, else the caller's own.
    ///
    /// # Errors
    /// When the keeps cannot be read.
    pub fn list(&self, peer: Peer) -> Result<Vec<KeepReport>, KeepError> {
        let keeps = self.store.read(removal::now())?;
        Ok(keeps.iter().filter(|keep| peer.is_root() || keep.owner == peer.uid).map(KeepReport::from).collect())
    }

    /// The answer to one of these requests.
    pub(super) fn answer(&self, peer: Peer, request: &Request) -> Result<String, String> {
        let one = |report: Value| Ok(report.to_string());
        match request {
            Request::Keep { path, time } => {
                let seconds = seconds(time)?;
                let report = self.keep(peer, &path.path()?, seconds).map_err(|error| refusal(peer, &error))?;
                one(super::desk::json(&report))
            }
            Request::Unkeep { path } => {
                let report = self.unkeep(peer, &path.path()?).map_err(|error| refusal(peer, &error))?;
                one(super::desk::json(&report))
            }
            Request::Keeps {} => {
                let keeps = self.list(peer).map_err(|error| refusal(peer, &error))?;
                Ok(protocol::results(&keeps.iter().map(super::desk::json).collect::<Vec<_>>()))
            }
            _ => Err("this is not about keeps".to_owned()),
        }
    }

    fn roots(&self) -> impl Iterator<Item = &Path> {
        self.roots.iter().map(PathBuf::as_path)
    }
}

/// A time to keep something for, in whole seconds, rounded up.
///
/// # Errors
/// A sentence when it is none, is nothing, or is too long.
pub fn seconds(text: &str) -> Result<u64, String> {
    let time = duration::parse(text).map_err(|what| format!("{what}; {}", duration::REMEDY))?;
    let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
    match seconds {
        0 => Err("an entry cannot be kept for no time; `reclaim unkeep` ends a keep".to_owned()),
        1..=LONGEST_SECONDS => Ok(seconds),
        _ => Err(format!("`{text}` is too long a time; ten years are the most")),
    }
}

/// The end of a keep that begins now, rounded up to a whole second.
fn until(now: Timestamp, seconds: u64) -> i64 {
    let begun = i64::try_from(now.0.div_euclid(1_000_000_000)).unwrap_or(i64::MAX).saturating_add(1);
    begun.saturating_add(i64::try_from(seconds).unwrap_or(i64::MAX))
}

/// What a peer is told. Whoever is not root learns nothing about what is not theirs, not even whether it exists, and
/// nothing of where the service keeps its files.
fn refusal(peer: Peer, error: &KeepError) -> String {
    match error {
        _ if peer.is_root() => chain(error),
        KeepError::NoEntry { .. } | KeepError::Full(_) | KeepError::Gone { .. } => error.to_string(),
        KeepError::Look { .. } | KeepError::Stranger { .. } => "not there, or not yours".to_owned(),
        KeepError::Unreadable { .. } | KeepError::Unwritable { .. } => {
            "the service cannot write down what is kept; its log and root know more".to_owned()
        }
    }
}
