//! What a command ends with: outcomes, errors, and the one map from both to an exit code.

use crate::config::ConfigError;
use crate::evidence::asked::AskedError;
use crate::evidence::engine::EngineError;
use crate::evidence::scan::ScanError;
use crate::model::purge::{ExpandError, IdError};
use crate::removal::hold::HoldError;
use crate::removal::{KeepError, RemovalError};
use crate::service::ServiceError;
use crate::service::client::ClientError;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use thiserror::Error;

/// Exit codes of `reclaim`. Other programs rely on them.
pub mod exit {
    /// Done, or free.
    pub const DONE: u8 = 0;
    /// Failed.
    pub const FAILED: u8 = 1;
    /// Bad usage or configuration.
    pub const USAGE: u8 = 2;
    /// The answer is "differs" (audit) or "pinned" (who, query).
    pub const DIFFERS: u8 = 3;
    /// Evidence too weak: entries were kept, or the answer is unknown.
    pub const WEAK: u8 = 4;
    /// Another reclaimer holds the root.
    pub const BUSY: u8 = 5;
    /// The command of a hold cannot be started, as env(1) has it. Otherwise a hold ends as its command does.
    pub const NOT_STARTED: u8 = 126;
    /// The command of a hold is not there, as env(1) has it.
    pub const NOT_FOUND: u8 = 127;
}

/// How a command that did its work ended. Of several, the greatest counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// Done, or free.
    Done,
    /// Evidence too weak.
    Weak,
    /// Pinned, or different.
    Differs,
    /// Another reclaimer holds a root.
    Busy,
    /// Part of the work failed; the errors were told as they came.
    Failed,
    /// The configuration is at fault, which was told with the rest.
    Usage,
}

impl Outcome {
    /// Its exit code.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Done => exit::DONE,
            Self::Weak => exit::WEAK,
            Self::Differs => exit::DIFFERS,
            Self::Busy => exit::BUSY,
            Self::Failed => exit::FAILED,
            Self::Usage => exit::USAGE,
        }
    }

    /// What an error with this exit code comes to among other outcomes.
    #[must_use]
    pub fn of_code(code: u8) -> Self {
        match code {
            exit::WEAK => Self::Weak,
            exit::BUSY => Self::Busy,
            exit::USAGE => Self::Usage,
            _ => Self::Failed,
        }
    }
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        Self::from(outcome.code())
    }
}

/// Why a command could not do its work.
#[derive(Debug, Error)]
pub enum Error {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Evidence.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A scan.
    #[error(transparent)]
    Scan(#[from] ScanError),
    /// An id that is none.
    #[error(transparent)]
    Id(#[from] IdError),
    /// An id that names nothing which could be purged.
    #[error("{0}; check the id, and `[[owned]]` in the configuration")]
    Expand(#[from] ExpandError),
    /// A path that was asked about.
    #[error(transparent)]
    Asked(#[from] AskedError),
    /// A pass over one root.
    #[error("root `{root}`: {source}")]
    Removal {
        /// Name of the root.
        root: String,
        /// Why.
        #[source]
        source: RemovalError,
    },
    /// A purge of one id.
    #[error("id `{id}`: {source}")]
    Purge {
        /// The id.
        id: String,
        /// Why.
        #[source]
        source: RemovalError,
    },
    /// A keep.
    #[error(transparent)]
    Keep(#[from] KeepError),
    /// A hold.
    #[error(transparent)]
    Hold(#[from] HoldError),
    /// The command of a hold cannot be started.
    #[error("cannot start {}: {source}", program.display())]
    Start {
        /// The command.
        program: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A system call that nothing can be done without.
    #[error("{call}: {source}")]
    System {
        /// The call.
        call: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A command that only root can do without a service.
    #[error("`reclaim {command}` needs a running service, or root: {why}")]
    NeedsRoot {
        /// The command.
        command: &'static str,
        /// Why there is no service to ask.
        why: String,
    },
    /// An argument that means nothing.
    #[error("{argument}: {what}; {remedy}")]
    Argument {
        /// The argument.
        argument: &'static str,
        /// What is wrong.
        what: String,
        /// What to do.
        remedy: &'static str,
    },
    /// A signal came before the work was done. What was in hand is in order.
    #[error("told to stop by a signal: {left}; run the command again")]
    Stopped {
        /// What was not done.
        left: String,
    },
    /// The service.
    #[error(transparent)]
    Service(#[from] ServiceError),
    /// A running service that was asked.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Standard output.
    #[error("cannot write to standard output: {0}")]
    Output(#[from] io::Error),
}

impl Error {
    /// Its exit code; none when whoever read the output has gone, which ends a command quietly.
    #[must_use]
    pub fn code(&self) -> u8 {
        match self {
            Self::Config(_)
            | Self::Id(_)
            | Self::Expand(_)
            | Self::Argument { .. }
            | Self::Hold(HoldError::Name { .. })
            | Self::Keep(KeepError::NoEntry { .. }) => exit::USAGE,
            Self::Start { source, .. } if source.kind() == io::ErrorKind::NotFound => exit::NOT_FOUND,
            Self::Start { .. } => exit::NOT_STARTED,
            Self::Engine(EngineError::NoWalk(_) | EngineError::Unavailable { .. }) => exit::WEAK,
            Self::Removal { source, .. } | Self::Purge { source, .. } if source.is_usage() => exit::USAGE,
            Self::Removal { source: RemovalError::Busy { .. }, .. }
            | Self::Purge { source: RemovalError::Busy { .. }, .. } => exit::BUSY,
            Self::Purge { source: RemovalError::Evidence { .. }, .. } => exit::WEAK,
            Self::Service(ServiceError::Taken { .. }) => exit::BUSY,
            Self::Service(source) if source.is_usage() => exit::USAGE,
            Self::Output(source) if source.kind() == io::ErrorKind::BrokenPipe => exit::DONE,
            Self::Engine(_)
            | Self::Scan(_)
            | Self::Asked(_)
            | Self::Removal { .. }
            | Self::Purge { .. }
            | Self::Keep(_)
            | Self::Hold(_)
            | Self::System { .. }
            | Self::NeedsRoot { .. }
            | Self::Stopped { .. }
            | Self::Service(_)
            | Self::Client(_)
            | Self::Output(_) => exit::FAILED,
        }
    }

    /// Whether nobody needs to be told.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        matches!(self, Self::Output(source) if source.kind() == io::ErrorKind::BrokenPipe)
    }
}

/// An error and all that it came from, on one line, without saying anything twice.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let said = cause.to_string();
        if !text.contains(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_the_contract_and_the_worst_wins() {
        let codes = [Outcome::Done, Outcome::Weak, Outcome::Differs, Outcome::Busy, Outcome::Failed].map(Outcome::code);
        assert_eq!(codes, [0, 4, 3, 5, 1]);
        assert_eq!([Outcome::Weak, Outcome::Differs, Outcome::Done].into_iter().max(), Some(Outcome::Differs));
        let file = std::path::PathBuf::from("/x");
        assert_eq!(Error::from(ConfigError::NoFile { command: "run", file }).code(), exit::USAGE);
        let gone = Error::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert!(gone.is_quiet() && gone.code() == exit::DONE);
        assert_eq!(Error::from(io::Error::from(io::ErrorKind::StorageFull)).code(), exit::FAILED);
    }
}
