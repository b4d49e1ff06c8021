//! Why a pass over a root could not be made.

use crate::evidence::ground::GroundError;
use crate::model::id::Location;
use nix::errno::Errno;
use std::path::PathBuf;

/// A pass that could not be made or had to end. Entries that fail are not errors: they are counted and told.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemovalError {
    /// The root is nothing to be configured as a root. A fault of the configuration.
    #[error("root `{}` {fault}; {remedy}", .path.display())]
    Configuration {
        /// The root.
        path: PathBuf,
        /// What is wrong.
        fault: &'static str,
        /// What to do.
        remedy: &'static str,
    },
    /// `.reclaim` in the root cannot be trusted.
    #[error("`{}` {fault}; {remedy}", .path.display())]
    Refused {
        /// The directory.
        path: PathBuf,
        /// What is wrong.
        fault: String,
        /// What to do.
        remedy: &'static str,
    },
    /// Another reclaimer works on the root.
    #[error("root `{}` is held by {}; let it end, or stop it first", .path.display(), holder(*.process))]
    Busy {
        /// The root.
        path: PathBuf,
        /// Who holds it, where the kernel tells.
        process: Option<u32>,
    },
    /// The root is not where evidence looks for pins, so that pins would be missed.
    #[error("root `{}` lies at {}, and evidence watches {watched}; reload the configuration", .path.display(), told(.found))]
    Moved {
        /// The root.
        path: PathBuf,
        /// Where it lies; none when that could not be told.
        found: Option<Location>,
        /// Where evidence looks.
        watched: String,
    },
    /// It could not be told where in its file system the root lies.
    #[error("it cannot be told where in its file system `{}` lies, so its pins cannot be looked for", .path.display())]
    Ground {
        /// The root.
        path: PathBuf,
        /// Why.
        #[source]
        source: GroundError,
    },
    /// A call on the root failed.
    #[error("{call} on `{}` failed", .path.display())]
    Call {
        /// The call.
        call: &'static str,
        /// What it was about.
        path: PathBuf,
        /// Why.
        #[source]
        source: Errno,
    },
    /// No evidence could be taken, so everything was kept.
    #[error("no evidence about root `{}` could be taken, everything in it is kept", .path.display())]
    Evidence {
        /// The root.
        path: PathBuf,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl RemovalError {
    /// Whether the configuration is at fault.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Configuration { .. })
    }
}

fn holder(process: Option<u32>) -> String {
    process.map_or_else(|| "another reclaimer".into(), |process| format!("another reclaimer, process {process}"))
}

fn told(location: &Option<Location>) -> String {
    location.as_ref().map_or_else(|| "a place that cannot be told".into(), ToString::to_string)
}

/// A failed call on one entry, for people: `renameat2: EPERM: Operation not permitted`.
pub(super) fn failed(call: &str, error: Errno) -> String {
    format!("{call}: {error}")
}
