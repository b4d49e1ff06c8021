//! The wait for calls in flight, piece by piece: whoever asks something meanwhile does not wait with it.

use super::Engine;
use crate::evidence::clock::{Clock, Wait, Waited};
use crate::evidence::source::Settled;
use std::time::{Duration, Instant};
use tracing::debug;

/// Where the mount clock does not tell, how long a call that resolved an old path is given to attach its mount.
const SETTLING: Duration = Duration::from_millis(300);
/// Longest piece of the wait between two turns of others.
const PIECE: Duration = Duration::from_millis(40);

impl Engine {
    /// Waits by the mount clock; by time where that does not tell.
    pub(super) fn settle_by_clock(&mut self, limit: Duration, between: &mut dyn FnMut(&mut Self) -> bool) -> Settled {
        self.in_doubt = false;
        let Some(mark) = self.clock().map(|clock| clock.now().entered) else {
            return self.settle_by_time("there is no mount clock".to_owned(), between);
        };
        let mut wait = Wait::since(mark, Instant::now() + limit);
        // The first look only tells whether there is something to wait for.
        let mut piece = Duration::ZERO;
        loop {
            let waited = self.clock().map(|clock| clock.go_on(&mut wait, Instant::now() + piece));
            piece = PIECE;
            match waited {
                Some(Waited::Done) => {
                    // What the clock counts shows nothing of those that it did not count in, though they pin nothing.
                    self.in_doubt = self.clock().is_some_and(Clock::has_uncounted);
                    return Settled::Clock;
                }
                // There is time for what has to be done once before anything is confirmed.
                Some(Waited::Pending) => self.finder.prepare(),
                Some(Waited::Overdue { calls, uncounted }) => {
                    let counted = calls.iter().map(ToString::to_string);
                    let uncounted = uncounted.iter().map(ToString::to_string);
                    return Settled::Overdue { calls: counted.chain(uncounted).collect() };
                }
                Some(Waited::Unreliable { why }) => {
                    // What a confirmation would conclude from the clock is void as well.
                    self.in_doubt = true;
                    return self.settle_by_time(format!("the mount clock cannot vouch for this: {why}"), between);
                }
                None => {
                    // It counted calls in that nobody sees leave now.
                    self.in_doubt = true;
                    return self.settle_by_time("there is no mount clock any more".to_owned(), between);
                }
            }
            self.take_events();
            if !between(self) {
                wait.end();
            }
        }
    }

    fn settle_by_time(&mut self, why: String, between: &mut dyn FnMut(&mut Self) -> bool) -> Settled {
        debug!("{why}");
        let begun = Instant::now();
        while let Some(left) = SETTLING.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) {
            std::thread::sleep(left.min(PIECE));
            self.take_events();
            // There is no less than this to wait, whoever is in a hurry.
            between(self);
        }
        Settled::Fixed { waited: SETTLING, why }
    }
}
