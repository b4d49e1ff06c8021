//! The other end of the control socket: what commands ask a running service.

use super::protocol::{ENDING, Request};
use serde_json::Value;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why a service did not answer.
#[derive(Debug, Error)]
pub enum ClientError {
    /// Nobody listens.
    #[error("no service listens on {}: {source}; start one with `reclaim run`", socket.display())]
    Nobody {
        /// The socket.
        socket: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The connection broke.
    #[error("the service on {} did not answer: {source}; see its log", socket.display())]
    Broken {
        /// The socket.
        socket: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The service refused.
    #[error("the service on {} refused: {message}", socket.display())]
    Refused {
        /// The socket.
        socket: PathBuf,
        /// What it said.
        message: String,
    },
}

impl ClientError {
    /// Whether there is no service any more that could have answered.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        match self {
            Self::Nobody { .. } | Self::Broken { .. } => true,
            Self::Refused { message, .. } => message == ENDING,
        }
    }
}

/// A connection.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    socket: PathBuf,
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// When nobody listens, or the socket cannot be reached.
    pub fn connect(socket: &Path) -> Result<Self, ClientError> {
        match UnixStream::connect(socket) {
            Ok(stream) => Ok(Self { stream, socket: socket.to_path_buf() }),
            Err(source) => Err(ClientError::Nobody { socket: socket.to_path_buf(), source }),
        }
    }

    /// Asks once and waits for the answer, however long it takes.
    ///
    /// # Errors
    /// When the connection breaks or the service refuses.
    pub fn ask(mut self, request: &Request) -> Result<Value, ClientError> {
        let broken = |source| ClientError::Broken { socket: self.socket.clone(), source };
        let mut line = serde_json::to_vec(request).map_err(|error| broken(error.into()))?;
        line.push(b'\n');
        self.stream.write_all(&line).map_err(broken)?;
        let mut answer = Vec::new();
        BufReader::new(&self.stream).read_until(b'\n', &mut answer).map_err(broken)?;
        if answer.is_empty() {
            return Err(broken(io::ErrorKind::UnexpectedEof.into()));
        }
        let answer: Value = serde_json::from_slice(&answer).map_err(|error| broken(error.into()))?;
        match answer.get("error").and_then(Value::as_str) {
            Some(message) => Err(ClientError::Refused { socket: self.socket, message: message.to_owned() }),
            None => Ok(answer),
        }
    }
}
