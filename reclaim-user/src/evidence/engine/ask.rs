//! Answering questions about any path: what the tables tell, and where the kernel can be walked, what no table shows.

use super::walked::{self, Asked};
use super::{Engine, EngineError, error_chain};
use crate::evidence::scan;
use crate::evidence::source::View;
use crate::model::coverage::Coverage;
use crate::model::reference::References;
use crate::model::report::Producer;
use tracing::debug;

impl Engine {
    /// As [`EvidenceSource::consult`], and where the kernel can be walked, with every mount that relies on a child of one
    /// of the directories, whoever holds it.
    ///
    /// # Errors
    /// As [`EvidenceSource::consult`].
    pub fn ask(&mut self, directories: &[Asked<'_>]) -> Result<View<'_>, EngineError> {
        if self.probes.is_none() && !self.unasked {
            // An answer goes on nothing that was read before the question.
            self.baseline()?;
        } else {
            self.bring_up()?;
        }
        self.unasked = false;
        if self.walker.is_none() || directories.is_empty() {
            return Ok(self.view());
        }
        // Each time: whoever renames an entry makes no mount call, and what the walk tells goes by names.
        if self.walk_each(directories) { Ok(self.walked()) } else { Ok(self.view()) }
    }

    /// Walks for each directory by itself, for they may lie in different file systems. False when one could not be.
    fn walk_each(&mut self, directories: &[Asked<'_>]) -> bool {
        let Some(walker) = &mut self.walker else { return false };
        let mut pins = Vec::new();
        for directory in directories {
            match walked::walk(walker, std::slice::from_ref(directory)) {
                Ok(found) => pins.extend(found),
                Err(error) => {
                    debug!("{} was not walked: {}", directory.location, error_chain(&error));
                    return false;
                }
            }
        }
        self.live.see(pins);
        true
    }

    /// The view right after a walk that came to its end.
    fn walked(&mut self) -> View<'_> {
        let claim = self.walk_coverage.get_or_insert_with(|| Coverage::full(scan::identities()));
        let references = const { &References::NONE };
        let (pins, tables) = (self.live.pins(), self.live.coverage());
        View { pins, coverage: claim, tables, references, producer: Producer::Walk, walks: true }
    }
}
