//! Why a hold could not be taken or ended.

use nix::errno::Errno;
use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// What stands in the way of a hold.
#[derive(Debug, Error)]
pub enum HoldError {
    /// The path names no file.
    #[error("{} cannot be a placeholder: {why}; name one file or, with a slash at its end, one directory", path.display())]
    Name {
        /// The path.
        path: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A placeholder cannot be made.
    #[error("cannot make the placeholder {}: {call}: {source}; {remedy}", path.display())]
    Make {
        /// The placeholder.
        path: PathBuf,
        /// The call that failed.
        call: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
        /// What to do.
        remedy: &'static str,
    },
    /// A source cannot be leased.
    #[error("cannot lease {}: {call}: {source}", path.display())]
    Source {
        /// The source.
        path: PathBuf,
        /// The call that failed.
        call: &'static str,
        /// What the system said.
        #[source]
        source: Errno,
    },
    /// A source went while its lock was waited for, or somebody never let go of it.
    #[error("cannot lease {}: {why}", path.display())]
    Lost {
        /// The source.
        path: PathBuf,
        /// What happened, and what to do.
        why: &'static str,
    },
    /// The place for manifests cannot be used.
    #[error("holds cannot be recorded in {}: {why}; {remedy}", path.display())]
    Place {
        /// The directory.
        path: PathBuf,
        /// Why.
        why: String,
        /// What to do.
        remedy: &'static str,
    },
    /// Others hold the lock on the store for long.
    #[error("the holds in {} are being worked on by others for long; see `reclaim check`", path.display())]
    Busy {
        /// The store.
        path: PathBuf,
    },
    /// A manifest or its pipe cannot be made, read or taken away.
    #[error("{call} {}: {source}; check the room and the rights there", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// The call that failed.
        call: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A manifest cannot be understood.
    #[error("the manifest {} cannot be used: {why}; take it away once nobody holds by it", path.display())]
    Manifest {
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
    },
}
