//! The control socket: who may hold it, and what one connection may do to the service.

use super::ServiceError;
use super::message::Handle;
use super::protocol::{self, LONGEST, Peer};
use std::collections::HashMap;
use std::fs::{File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

/// Connections at one time.
const MOST: usize = 256;
/// Connections of one user other than root at one time.
const MOST_OF_ONE: usize = 32;
/// A connection that says nothing for this long is closed.
const IDLE: Duration = Duration::from_secs(600);
/// A peer that does not take its answer for this long is dropped.
const PATIENCE: Duration = Duration::from_secs(10);

/// A socket that this process alone listens on. Dropping it takes the socket away.
#[derive(Debug)]
pub(super) struct Claim {
    socket: PathBuf,
    _lock: File,
}

impl Claim {
    /// Claims a socket path: nobody else holds its lock, nobody listens, and what was left of an earlier service is gone.
    pub(super) fn take(socket: &Path) -> Result<(Self, std::os::unix::net::UnixListener), ServiceError> {
        let failed = |what| move |source| ServiceError::Socket { what, socket: socket.to_path_buf(), source };
        let taken = || ServiceError::Taken { socket: socket.to_path_buf() };
        if let Some(directory) = socket.parent() {
            std::fs::create_dir_all(directory).map_err(failed("make the directory of"))?;
        }
        let mut lock_path = socket.as_os_str().to_owned();
        lock_path.push(".lock");
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).write(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
        let lock = options.open(lock_path).map_err(failed("open the lock of"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(taken()),
            Err(TryLockError::Error(source)) => return Err(failed("lock")(source)),
        }
        match std::fs::symlink_metadata(socket) {
            Ok(stat) if stat.file_type().is_socket() => {
                if std::os::unix::net::UnixStream::connect(socket).is_ok() {
                    return Err(taken());
                }
                std::fs::remove_file(socket).map_err(failed("take away what is left of"))?;
            }
            Ok(_) => return Err(ServiceError::NotASocket { socket: socket.to_path_buf() }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(failed("look at")(source)),
        }
        let listener = std::os::unix::net::UnixListener::bind(socket).map_err(failed("listen on"))?;
        // Anyone may connect: the peer's credentials decide what is answered.
        std::fs::set_permissions(socket, Permissions::from_mode(0o666)).map_err(failed("set the mode of"))?;
        listener.set_nonblocking(true).map_err(failed("listen on"))?;
        Ok((Self { socket: socket.to_path_buf(), _lock: lock }, listener))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // The lock is still held, so the socket is ours. One that somebody took away already is gone all the same.
        let _gone = std::fs::remove_file(&self.socket);
    }
}

/// How many connections there are, in all and of each user.
#[derive(Clone, Debug, Default)]
struct Guests(Arc<Mutex<HashMap<u32, usize>>>);

struct Guest {
    guests: Guests,
    uid: u32,
}

impl Guests {
    fn admit(&self, uid: u32) -> Option<Guest> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = counts.values().sum();
        let own = counts.entry(uid).or_default();
        if all >= MOST || (uid != 0 && *own >= MOST_OF_ONE) {
            return None;
        }
        *own += 1;
        Some(Guest { guests: self.clone(), uid })
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let mut counts = self.guests.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = counts.get_mut(&self.uid) {
            *own -= 1;
            if *own == 0 {
                counts.remove(&self.uid);
            }
        }
    }
}

/// Takes connections until it is dropped.
pub(super) async fn listen(listener: UnixListener, handle: Handle) {
    let guests = Guests::default();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let uid = stream.peer_cred().map(|peer| peer.uid());
                let admitted = uid.as_ref().ok().and_then(|uid| guests.admit(*uid));
                let handle = handle.clone();
                tokio::spawn(async move {
                    let ended = match (uid, admitted) {
                        (Ok(uid), Some(guest)) => {
                            let ended = converse(stream, Peer { uid }, &handle).await;
                            drop(guest);
                            ended
                        }
                        (Ok(_), None) => turn_away(stream, "too many connections; try again later").await,
                        (Err(_), _) => turn_away(stream, "the kernel does not tell who you are").await,
                    };
                    if let Err(error) = ended {
                        tracing::debug!("a connection ended: {error}");
                    }
                });
            }
            Err(error) => {
                tracing::warn!("cannot take a connection: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn turn_away(mut stream: UnixStream, message: &str) -> io::Result<()> {
    write(&mut stream, &protocol::error(message)).await
}

/// One connection: a request, its answer, and so on in order.
async fn converse(mut stream: UnixStream, peer: Peer, handle: &Handle) -> io::Result<()> {
    let (reading, mut writing) = stream.split();
    let mut reader = BufReader::new(reading);
    let mut line = Vec::new();
    loop {
        line.clear();
        let limit = LONGEST as u64 + 1;
        match timeout(IDLE, (&mut reader).take(limit).read_until(b'\n', &mut line)).await {
            Ok(Err(error)) => return Err(error),
            Ok(Ok(0)) | Err(_) => return Ok(()),
            Ok(Ok(_)) => {}
        }
        if line.last() != Some(&b'\n') && line.len() > LONGEST {
            write(&mut writing, &protocol::error(&format!("the request is longer than {LONGEST} bytes"))).await?;
            writing.shutdown().await?;
            return swallow(&mut reader).await;
        }
        let answer = match protocol::parse(&line) {
            Err(message) => protocol::error(&message),
            Ok(request) => match handle.ask(peer, request).await {
                Some(answer) => answer,
                None => protocol::error(protocol::ENDING),
            },
        };
        write(&mut writing, &answer).await?;
        if line.capacity() > LONGEST / 8 {
            line = Vec::new();
        }
    }
}

async fn write(stream: &mut (impl tokio::io::AsyncWrite + Unpin), answer: &str) -> io::Result<()> {
    let sent = async {
        stream.write_all(answer.as_bytes()).await?;
        stream.write_all(b"\n").await
    };
    timeout(PATIENCE, sent).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Reads for a moment what nobody wants, so that the peer gets to read its answer before the connection closes.
async fn swallow(reader: &mut (impl tokio::io::AsyncRead + Unpin)) -> io::Result<()> {
    let mut rest = reader.take(64 << 20);
    let mut nowhere = tokio::io::sink();
    let _slow = timeout(Duration::from_secs(2), tokio::io::copy(&mut rest, &mut nowhere)).await;
    Ok(())
}
