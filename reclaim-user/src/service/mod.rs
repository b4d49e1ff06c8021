//! The service: one thread owns the engine and the passes, one loop owns the socket, the timers and the signals. They
//! talk by messages, and no state is shared.

pub mod client;
mod desk;
pub mod holds;
mod http;
pub mod keeper;
mod message;
mod notify;
mod post;
pub mod protocol;
pub mod purge;
pub mod roots;
mod serve;
mod socket;
pub mod states;
mod worker;

pub(crate) use desk::evidence_status;
pub use serve::{ServiceOptions, run};

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use thiserror::Error;

/// Why the service cannot run.
#[derive(Debug, Error)]
pub enum ServiceError {
    /// Another service listens on the socket.
    #[error("another service holds {}; stop it first, or set another service.socket", socket.display())]
    Taken {
        /// The socket.
        socket: PathBuf,
    },
    /// Something else lies where the socket should be.
    #[error("{} is there and is no socket; take it away, or set another service.socket", socket.display())]
    NotASocket {
        /// The path.
        socket: PathBuf,
    },
    /// A call on the socket failed.
    #[error("cannot {what} the socket {}: {source}; check service.socket and who may write there", socket.display())]
    Socket {
        /// What was tried.
        what: &'static str,
        /// The socket.
        socket: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The address for metrics cannot be had.
    #[error("cannot serve metrics on {address}: {source}; set another service.metrics, or take it out")]
    Metrics {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The system refused something that every service needs.
    #[error("cannot {what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

impl ServiceError {
    /// Whether the configuration is at fault.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::NotASocket { .. })
    }
}

/// Shorthand for [`ServiceError::System`].
fn system(what: &'static str) -> impl FnOnce(io::Error) -> ServiceError {
    move |source| ServiceError::System { what, source }
}
