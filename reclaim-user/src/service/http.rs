//! The metrics over HTTP: one request, one answer, and the connection ends.

use super::message::Handle;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Longest head of a request.
const LONGEST: usize = 8 << 10;
/// A request that is not there by then is dropped, and so is a reader that does not take its answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Serves until it is dropped. At most 16 at one time: the others wait.
pub(super) async fn listen(listener: TcpListener, handle: Handle) {
    let seats = Arc::new(Semaphore::new(16));
    loop {
        let Ok(seat) = Arc::clone(&seats).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let handle = handle.clone();
                tokio::spawn(async move {
                    let ended = timeout(PATIENCE, serve(stream, &handle)).await;
                    if let Ok(Err(error)) = ended {
                        tracing::debug!("a reader of metrics ended: {error}");
                    }
                    drop(seat);
                });
            }
            Err(error) => {
                tracing::warn!("cannot take a reader of metrics: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn serve(mut stream: TcpStream, handle: &Handle) -> io::Result<()> {
    let mut head = Vec::new();
    let mut chunk = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let count = stream.read(&mut chunk).await?;
        if count == 0 || head.len() > LONGEST {
            return Ok(());
        }
        head.extend_from_slice(&chunk[..count]);
    }
    let mut words = head.split(|byte| *byte == b' ' || *byte == b'\r');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
    let (status, kind, body) = match (method, path) {
        (b"GET" | b"HEAD", b"/metrics") => match handle.metrics().await {
            Some(text) => ("200 OK", "application/openmetrics-text; version=1.0.0; charset=utf-8", text),
            None => ("503 Service Unavailable", "text/plain", "the service is ending\n".to_owned()),
        },
        (b"GET" | b"HEAD", _) => ("404 Not Found", "text/plain", "only /metrics is here\n".to_owned()),
        _ => ("405 Method Not Allowed", "text/plain", "only GET is understood\n".to_owned()),
    };
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    if method != b"HEAD" {
        stream.write_all(body.as_bytes()).await?;
    }
    stream.shutdown().await
}
