//! What a confirmation goes on: references to condemned entries, and the mounts that rely on them.

use super::walked::{self, Asked};
use super::{Engine, EngineError, error_chain};
use crate::evidence::references::Gap;
use crate::evidence::source::CondemnedIn;
use crate::model::reference::References;
use crate::model::report::Producer;
use tracing::warn;

impl Engine {
    /// Looks for references to condemned entries and adds them to those that are known already.
    pub(super) fn refer(&mut self, condemned: &[CondemnedIn<'_>], known: References) -> Vec<Gap> {
        let found = self.finder.find(condemned);
        self.references = known;
        self.references.extend(found.references);
        found.gaps
    }

    /// Brings the live set up to the moment for condemned entries. Returns who speaks for it.
    pub(super) fn confirm_mounts(
        &mut self,
        root: usize,
        condemned: &[CondemnedIn<'_>],
    ) -> Result<Producer, EngineError> {
        // What tables show is brought up to the moment first: a pin that anyone sees wins, and the work directory of an
        // overlay is a layer that no mount shows.
        if self.walker.is_none() || self.probes.is_none() || self.live.has_gap() {
            self.baseline()?;
        } else {
            self.take_events();
            self.refresh()?;
        }
        let place = |condemned: &CondemnedIn<'_>| match &*condemned.path {
            [] => self.watch[root].clone(),
            path => self.watch[root].join(path),
        };
        let asked: Vec<Asked<'_>> = condemned.iter().map(|condemned| (condemned.directory, place(condemned))).collect();
        match self.walker.as_mut().map(|walker| walked::walk(walker, &asked)) {
            None => Ok(self.producer()),
            Some(Ok(pins)) => {
                self.live.see(pins);
                self.asked = None;
                Ok(Producer::Walk)
            }
            Some(Err(error)) => {
                warn!("the kernel's own list of mounts cannot be relied on: {}", error_chain(&error));
                self.baseline()?;
                Ok(self.producer())
            }
        }
    }
}
