//! What the loop and the connections say to the thread that owns the engine.

use super::protocol::{Peer, Request};
use crate::config::Loaded;
use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;
use tokio::sync::oneshot;

/// One message.
#[derive(Debug)]
pub(super) enum Message {
    /// A request of a connection. The answer is one line of JSON without its end.
    Ask {
        /// Who asks.
        peer: Peer,
        /// What is asked.
        request: Request,
        /// Where the answer goes.
        answer: oneshot::Sender<String>,
    },
    /// The metrics, as text.
    Metrics(oneshot::Sender<String>),
    /// A scheduled pass over all roots; the next one is due after this time.
    Pass(Duration),
    /// A configuration in the place of the one in use.
    Reload(Box<Loaded>),
    /// Finish the step in hand and end.
    Stop,
}

/// What the thread tells the loop.
#[derive(Debug)]
pub(super) enum Event {
    /// Evidence is there, and questions can be answered.
    Ready,
    /// A configuration that was sent is in use.
    Reloaded,
}

/// The other end of the thread: sends messages and wakes it.
#[derive(Clone, Debug)]
pub(super) struct Handle {
    messages: mpsc::Sender<Message>,
    waker: Arc<UnixStream>,
}

impl Handle {
    /// The waker must not block.
    pub(super) fn new(messages: mpsc::Sender<Message>, waker: UnixStream) -> Self {
        Self { messages, waker: Arc::new(waker) }
    }

    /// Sends one message. False when the thread has ended.
    pub(super) fn send(&self, message: Message) -> bool {
        let sent = self.messages.send(message).is_ok();
        // A full pipe means that a wake-up is on its way already.
        let _full = (&*self.waker).write(b"!");
        sent
    }

    /// Asks and waits for the answer; none when the thread has ended.
    pub(super) async fn ask(&self, peer: Peer, request: Request) -> Option<String> {
        let (answer, answered) = oneshot::channel();
        self.send(Message::Ask { peer, request, answer });
        answered.await.ok()
    }

    /// The metrics; none when the thread has ended.
    pub(super) async fn metrics(&self) -> Option<String> {
        let (answer, answered) = oneshot::channel();
        self.send(Message::Metrics(answer));
        answered.await.ok()
    }
}
