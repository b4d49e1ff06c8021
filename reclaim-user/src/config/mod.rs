//! The configuration in its checked form. Nothing behind this room ever sees the raw text.

use regex::bytes::Regex;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Everything that was configured, checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// The service.
    pub service: ServiceConfig,
    /// The roots. No two overlap, no two share a name.
    pub roots: Vec<RootConfig>,
}

/// `[service]`.
#[derive(Clone, Debug)]
pub struct ServiceConfig {
    /// Time between passes.
    pub every: Duration,
    /// Wall clock for one pass over one root.
    pub budget: Duration,
    /// Directory for what must survive a restart.
    pub state_dir: PathBuf,
    /// The control socket.
    pub socket: PathBuf,
    /// Where metrics are served; none means not at all.
    pub metrics: Option<SocketAddr>,
}

/// `[[root]]`: a directory whose children are entries, and the fences that an entry must pass.
#[derive(Clone, Debug)]
pub struct RootConfig {
    /// Name in reports.
    pub name: String,
    /// The directory: absolute, not `/`, no link in it.
    pub path: PathBuf,
    /// Only entries of this user id.
    pub owner: Option<u32>,
    /// Only names that match. Groups `pid` and `id` are understood.
    pub pattern: Option<Regex>,
    /// Only entries of this kind.
    pub kind: KindRule,
    /// Only entries of exactly this mode (permission bits with set-id and sticky bits).
    pub mode: Option<u32>,
    /// Never younger than this.
    pub min_age: Duration,
    /// Older than this, the process that the name tells need not be dead.
    pub backstop: Option<Duration>,
    /// Retention window from birth.
    pub retain: Option<Duration>,
    /// How an entry is removed.
    pub remove: RemoveRule,
    /// Fewer candidates than this: keep them all.
    pub pile: Option<u64>,
    /// Honour a lock on the entry.
    pub leases: bool,
}

/// Which kinds of file may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KindRule {
    /// Directories.
    Directory,
    /// Regular files.
    File,
    /// Anything.
    Any,
}

/// How an entry is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoveRule {
    /// Only what holds nothing: an empty directory, a file of no bytes.
    Empty,
    /// With all that it holds.
    Tree,
}
