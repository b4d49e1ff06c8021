//! The inbox of the thread that owns the engine: what can be answered at any time, and what waits for its turn.

use super::desk::{self, Desk};
use super::message::Message;
use super::protocol::Request;
use crate::evidence::engine::Engine;
use std::collections::VecDeque;
use std::io::Read as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

/// How long questions are answered in one go. There may be no end of them, and what is under way has its turn, too.
const TURN: Duration = Duration::from_millis(40);

/// The inbox, and what can be answered from it at any time.
pub(super) struct Post {
    inbox: Receiver<Message>,
    pub(super) waker: UnixStream,
    pub(super) put_off: VecDeque<Message>,
    /// There was no time for all that has come, and nothing will wake anybody for the rest.
    pub(super) is_behind: bool,
    /// When questions are answered again beside work.
    again: Instant,
    pub(super) desk: Desk,
    pub(super) stop: Arc<AtomicBool>,
    /// Somebody waits for work to be done.
    pub(super) cut: Arc<AtomicBool>,
}

impl Post {
    pub(super) fn new(inbox: Receiver<Message>, waker: UnixStream, stop: Arc<AtomicBool>) -> Self {
        let (put_off, desk, cut) = (VecDeque::new(), Desk::new(), Arc::default());
        Self { inbox, waker, put_off, is_behind: false, again: Instant::now(), desk, stop, cut }
    }

    /// Answers questions between two pieces of work, which has as much time as answers take.
    pub(super) fn attend(&mut self, engine: &mut Engine) {
        if Instant::now() >= self.again {
            self.answer(engine);
        }
    }

    /// Answers the questions that have come, for a while. What changes something waits for its turn.
    pub(super) fn answer(&mut self, engine: &mut Engine) {
        let begun = Instant::now();
        // The wake-ups are taken before the messages: one that comes in between is seen at once or wakes again.
        let mut wakes = [0; 256];
        while matches!(self.waker.read(&mut wakes), Ok(count) if count == wakes.len()) {}
        self.is_behind = !self.answer_until(engine, begun + TURN);
        self.again = Instant::now() + begun.elapsed();
    }

    /// Whether all that has come was seen to.
    fn answer_until(&mut self, engine: &mut Engine, until: Instant) -> bool {
        loop {
            match self.inbox.try_recv() {
                Ok(Message::Ask { peer, request, answer }) if !request.is_work() => {
                    // Whoever has hung up needs no answer.
                    let _gone = answer.send(self.desk.answer(engine, peer, &request));
                }
                Ok(Message::Metrics(answer)) => {
                    let _gone = answer.send(desk::metrics(&self.desk.status(engine)));
                }
                Ok(Message::Stop) => self.stop.store(true, Ordering::Relaxed),
                Ok(other) => {
                    if is_urgent(&other) {
                        self.cut.store(true, Ordering::Relaxed);
                    }
                    self.put_off.push_back(other);
                }
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => {
                    self.stop.store(true, Ordering::Relaxed);
                    return true;
                }
            }
            if Instant::now() >= until {
                return false;
            }
        }
    }

    pub(super) fn stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Looks again whether somebody waits for work to be done.
    pub(super) fn look_who_waits(&self) {
        self.cut.store(self.put_off.iter().any(is_urgent), Ordering::Relaxed);
    }

    pub(super) fn is_waited_for(&self) -> bool {
        self.cut.load(Ordering::Relaxed)
    }
}

/// Whether a scheduled pass makes way for it. Whoever may not have it done is only told so, and need not hurry anybody.
fn is_urgent(message: &Message) -> bool {
    match message {
        Message::Ask { request: Request::Settle {}, .. } => true,
        Message::Ask { peer, request, .. } => request.is_work() && peer.is_root(),
        Message::Pass(_) | Message::Metrics(_) | Message::Reload(_) | Message::Stop => false,
    }
}
