//! References to condemned entries that are no mounts: descriptors, working directories, roots, programs that are run.
//!
//! After an entry was renamed no path leads to it, but whoever has one of these can bind it still. Not seen by looks:
//! descriptors on their way through a socket, those that only an io_uring or a mapping keeps, one that moves to a number
//! or a task that a look has passed in that very moment, and a call of open(2) that has resolved the old path and not yet
//! given its descriptor. The count of references (`count`) sees these too, where it can tell.

mod count;
mod iterators;
mod known_answer;
pub(super) mod layout;
mod procfs;

pub use count::Counted;
pub(super) use iterators::drive;
pub use iterators::{Iterators, ReferenceError};

use super::features::Answer;
use super::source::CondemnedIn;
use crate::model::coverage::{GapCause, Reach};
use crate::model::reference::{Reference, References};
use std::error::Error;
use std::ffi::CString;
use std::iter::successors;
use std::thread::{Builder, JoinHandle};
use std::time::Instant;
use tracing::{debug, info, warn};

/// What lowers a claim.
pub type Gap = (GapCause, u64, Reach);

/// What a look found, and what it could not see.
#[derive(Debug, Default)]
pub struct Found {
    /// References by entry.
    pub references: References,
    /// What was not seen.
    pub gaps: Vec<Gap>,
}

/// Looks for references, by the best means that works. Nothing is loaded before the first look.
#[derive(Debug, Default)]
pub struct Finder {
    means: Means,
    tried: count::Tried,
}

#[derive(Debug, Default)]
enum Means {
    #[default]
    Unasked,
    /// They are being loaded on a thread.
    Loading(JoinHandle<Result<Iterators, ReferenceError>>),
    Iterators(Box<Iterators>),
    /// With why the kernel is not asked; None where that is not wanted.
    Procfs(Option<ReferenceError>),
}

impl Finder {
    /// One that reads procfs only.
    #[must_use]
    pub fn by_procfs() -> Self {
        Self { means: Means::Procfs(None), tried: count::Tried::default() }
    }

    /// A look takes no longer than a moment. To be asked after one.
    #[must_use]
    pub fn is_quick(&self) -> bool {
        matches!(self.means, Means::Iterators(_))
    }

    /// Everything that refers to an entry in one of the directories, or below it. The calling process does not count.
    pub fn find(&mut self, condemned: &[CondemnedIn<'_>]) -> Found {
        self.find_named(condemned, &[])
    }

    /// As [`Finder::find`], for the children of each directory that are named; where there are no names for it, for all.
    /// What is found of others may be told, too.
    pub fn find_named(&mut self, condemned: &[CondemnedIn<'_>], names: &[&[CString]]) -> Found {
        if condemned.is_empty() {
            return Found::default();
        }
        self.choose();
        if let Means::Iterators(iterators) = &mut self.means {
            match iterators.look(condemned) {
                Ok(found) => return found,
                Err(error) => warn!("/proc is read for references to entries: {}", chain(&error)),
            }
        }
        procfs::look_for(condemned, names)
    }

    /// Counts the references to each entry of the directories. Entries are told by what the pin set calls them.
    ///
    /// # Errors
    /// When the entries cannot even be listed.
    pub fn count(&mut self, condemned: &[CondemnedIn<'_>]) -> Result<Counted, ReferenceError> {
        let mut all = Counted::default();
        for directory in condemned {
            let counted = match &mut self.means {
                Means::Iterators(iterators) => count::count(iterators, directory, &mut self.tried).or_else(|error| {
                    warn!("references to entries cannot be counted: {}", chain(&error));
                    count::none(directory)
                }),
                Means::Unasked | Means::Loading(_) | Means::Procfs(_) => count::none(directory),
            }?;
            all.unchanged.extend(counted.unchanged);
            all.referred.extend(counted.referred.iter().map(|name| key(directory, name)));
            all.unsettled.extend(counted.unsettled.iter().map(|name| key(directory, name)));
        }
        Ok(all)
    }

    /// Loads on a thread what the first look would load otherwise.
    pub fn prepare(&mut self) {
        if matches!(self.means, Means::Unasked)
            && let Ok(thread) = Builder::new().name("references".into()).spawn(Iterators::load)
        {
            self.means = Means::Loading(thread);
        }
    }

    /// Whether the first look would have to wait for what is being loaded.
    #[must_use]
    pub fn is_loading(&self) -> bool {
        matches!(&self.means, Means::Loading(thread) if !thread.is_finished())
    }

    /// Whether the kernel tells of references itself; where it does not, /proc is read.
    pub fn answer(&mut self) -> Answer {
        self.choose();
        match &self.means {
            Means::Iterators(_) => Answer::Yes,
            Means::Unasked | Means::Loading(_) | Means::Procfs(None) => {
                Answer::No { why: "it is not asked for".to_owned() }
            }
            Means::Procfs(Some(error @ ReferenceError::Unmet { .. })) => Answer::No { why: chain(error) },
            Means::Procfs(Some(error)) if error.is_absence() => Answer::No { why: chain(error) },
            Means::Procfs(Some(error)) => Answer::Unknown { why: chain(error) },
        }
    }

    fn choose(&mut self) {
        let started = Instant::now();
        let loaded = match std::mem::take(&mut self.means) {
            Means::Unasked => Iterators::load(),
            Means::Loading(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            known => {
                self.means = known;
                return;
            }
        };
        self.means = match loaded {
            Ok(iterators) => {
                debug!(waited = ?started.elapsed(), "the iterator over tasks is used");
                Means::Iterators(Box::new(iterators))
            }
            Err(error) => {
                info!("/proc is read for references to entries: {}", chain(&error));
                Means::Procfs(Some(error))
            }
        };
    }
}

/// An error with its causes, for people.
pub(super) fn chain(error: &dyn Error) -> String {
    let causes = successors(error.source(), |&cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// Adds a reference to an entry by its name.
fn add(references: &mut References, directory: &CondemnedIn<'_>, name: &[u8], reference: Reference) {
    references.add(key(directory, name), reference);
}

/// What the pin set calls an entry.
fn key(directory: &CondemnedIn<'_>, name: &[u8]) -> Vec<u8> {
    match &*directory.path {
        [] => name.to_vec(),
        path => [path, name].join(&b'/'),
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
