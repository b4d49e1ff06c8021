//! Being told to stop by SIGTERM or SIGINT, for commands that have to put in order what they have in hand.

use crate::error::Error;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag::{register, register_conditional_default};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The signals of this process, from [`Stop::listen`] on.
pub(super) struct Stop {
    told: Arc<AtomicBool>,
    /// A signal ends the process as if nobody listened.
    at_once: Arc<AtomicBool>,
}

impl Stop {
    /// Notes the first signal. A second one ends the process at once: a crash loses nothing.
    pub(super) fn listen() -> Result<Self, Error> {
        let (told, at_once) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        for signal in [SIGTERM, SIGINT] {
            // In this order: what ends the process must not see what the same signal sets.
            register_conditional_default(signal, Arc::clone(&at_once))
                .and_then(|_| register(signal, Arc::clone(&at_once)))
                .and_then(|_| register(signal, Arc::clone(&told)))
                .map_err(|source| Error::System { call: "sigaction", source })?;
        }
        Ok(Self { told, at_once })
    }

    /// What is true once a signal has come.
    pub(super) fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.told)
    }

    pub(super) fn is_told(&self) -> bool {
        self.told.load(Ordering::Relaxed)
    }

    /// Does what hears of no flag and leaves nothing to put in order: a signal ends the process meanwhile.
    pub(super) fn at_once<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.at_once.store(true, Ordering::Relaxed);
        let end = wait();
        self.at_once.store(self.is_told(), Ordering::Relaxed);
        end
    }
}
