//! The look at threads, from being loaded to being given up.

use super::{Calls, Inside};
use crate::evidence::references::{ReferenceError, chain};
use std::thread::{Builder, JoinHandle};
use tracing::debug;

/// Looks of the kernel's that fail in a row before it is not asked any more.
const MOST_FAILURES: u32 = 3;

/// What tells of threads that /proc does not tell of.
#[derive(Debug)]
pub(in crate::evidence) enum Kernel {
    /// Nothing needs it so far.
    Unasked,
    /// It is being loaded, beside all else that has to be done by then.
    Loading(JoinHandle<Result<Inside, ReferenceError>>),
    /// It is loaded, and its last looks failed so many times in a row.
    Loaded(Box<Inside>, u32),
    /// It was tried, and is not to be had.
    Refused,
}

impl Kernel {
    /// Begins to load it, on a thread.
    pub(in crate::evidence) fn load() -> Self {
        let loading = Builder::new().name("inside".into()).spawn(Inside::load);
        loading.map_or(Self::Refused, Self::Loading)
    }

    /// The calls that threads are inside; none where that is not told, or not yet.
    pub(in crate::evidence) fn look(&mut self) -> Option<Calls> {
        if matches!(self, Self::Loading(thread) if thread.is_finished()) {
            self.wait();
        }
        let Self::Loaded(inside, failed) = self else { return None };
        match inside.look() {
            Ok(calls) => {
                *failed = 0;
                Some(calls)
            }
            Err(error) => {
                debug!("the kernel does not tell of threads: {}", chain(&error));
                *failed += 1;
                if *failed >= MOST_FAILURES {
                    *self = Self::Refused;
                }
                None
            }
        }
    }

    /// Whether it may tell before long of what it has not told yet.
    pub(in crate::evidence) fn may_tell(&self) -> bool {
        matches!(self, Self::Loading(_) | Self::Loaded(..))
    }

    /// Waits until it is loaded, where it is being loaded.
    pub(in crate::evidence) fn wait(&mut self) {
        if !matches!(self, Self::Loading(_)) {
            return;
        }
        if let Self::Loading(thread) = std::mem::replace(self, Self::Refused) {
            match thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)) {
                Ok(inside) => *self = Self::Loaded(Box::new(inside), 0),
                Err(error) => debug!("the kernel does not tell of threads: {}", chain(&error)),
            }
        }
    }
}
