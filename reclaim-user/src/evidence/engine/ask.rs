//! Answering questions about any path: what the tables tell, and what no table shows. The kernel's own list of mounts has
//! that; where it cannot be walked, the descriptors and directories of tasks do, which are what keeps such mounts.

use super::walked::{self, Asked};
use super::{Engine, EngineError, error_chain};
use crate::evidence::asked::Question;
use crate::evidence::references::{Found, Gap};
use crate::evidence::scan;
use crate::evidence::source::{CondemnedIn, Own, View};
use crate::model::coverage::{Coverage, GapCause, Reach};
use crate::model::id::Location;
use crate::model::pin::Pin;
use crate::model::reference::{References, place_key};
use crate::model::report::Producer;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use tracing::debug;

impl Engine {
    /// As [`EvidenceSource::consult`], and with what no mount table shows: every mount that relies on what is asked about,
    /// whoever holds it, where the kernel can be walked; else all that tasks have open there.
    ///
    /// # Errors
    /// As [`EvidenceSource::consult`].
    pub fn ask(&mut self, question: &Question<'_>) -> Result<View<'_>, EngineError> {
        let Question { directories, is_whole, closed } = question;
        let mut walked = Vec::new();
        if self.walker.is_some() && *is_whole && !directories.is_empty() {
            self.bring_up_to_question()?;
            // Each time: whoever renames an entry makes no mount call, and what the walk tells goes by names.
            if self.walk_each(directories, &mut walked) {
                self.live.see(walked);
                return Ok(self.walked());
            }
        }
        // Before mounts and after: a descriptor becomes a mount, or a mount a descriptor, without being neither.
        let Found { references, mut gaps } = self.look(directories);
        self.unasked = false;
        self.bring_up_to_question()?;
        let again = self.look(directories);
        self.live.see(walked);
        self.references = references;
        self.references.extend(again.references);
        add_new(&mut gaps, again.gaps);
        if *closed > 0 {
            gaps.push((GapCause::ReferencesUnread, *closed, Reach::Everybody));
        }
        let producer = self.producer();
        let mut claim = self.live.coverage().clone();
        for (cause, count, reach) in gaps {
            claim.lower(cause, count, reach);
        }
        let (coverage, tables) = self.claims.insert((claim.clone(), claim));
        let (references, unchanged) = (&self.references, const { &BTreeSet::new() });
        Ok(View { pins: self.live.pins(), coverage, tables, references, producer, unchanged, walks: false })
    }

    fn bring_up_to_question(&mut self) -> Result<(), EngineError> {
        // What a walk saw is true of its moment only.
        self.live.see(Vec::new());
        let is_fresh = std::mem::take(&mut self.unasked);
        if self.probes.is_none() && !is_fresh {
            // An answer goes on nothing that was read before the question.
            return self.baseline();
        }
        self.bring_up()
    }

    /// Looks for references to what is asked about, by what [`place_key`] makes of its place.
    fn look(&mut self, directories: &[(Asked<'_>, &[CString])]) -> Found {
        if !are_nested(directories) {
            return self.look_at_once(directories);
        }
        // A look tells what something lies in by the innermost directory that is asked about.
        let mut all = Found::default();
        for directory in directories.chunks(1) {
            let Found { references, gaps } = self.look_at_once(directory);
            all.references.extend(references);
            add_new(&mut all.gaps, gaps);
        }
        all
    }

    fn look_at_once(&mut self, directories: &[(Asked<'_>, &[CString])]) -> Found {
        let (places, names): (Vec<CondemnedIn<'_>>, Vec<&[CString]>) = directories
            .iter()
            .map(|(Asked { directory, location, only: _ }, names)| {
                let path = place_key(location);
                let (held, unlike) = (Own::Nothing, BTreeMap::new());
                (CondemnedIn { directory: *directory, path, held, unlike, seal: None }, *names)
            })
            .unzip();
        self.finder.find_named(&places, &names)
    }

    /// Walks for each directory by itself, for they may lie in different file systems. False when one could not be; what
    /// was found in others is there all the same.
    fn walk_each(&mut self, directories: &[(Asked<'_>, &[CString])], pins: &mut Vec<Pin>) -> bool {
        let Some(walker) = &mut self.walker else { return false };
        for (directory, _) in directories {
            match walked::walk(walker, std::slice::from_ref(directory)) {
                Ok(found) => pins.extend(found),
                Err(error) => {
                    debug!("{} was not walked: {}", directory.location, error_chain(&error));
                    return false;
                }
            }
        }
        true
    }

    /// The view right after a walk that came to its end.
    fn walked(&mut self) -> View<'_> {
        let claim = self.walk_coverage.get_or_insert_with(|| Coverage::full(scan::identities()));
        let (references, unchanged) = const { (&References::NONE, &BTreeSet::new()) };
        let (pins, tables) = (self.live.pins(), self.live.coverage());
        View { pins, coverage: claim, tables, references, producer: Producer::Walk, unchanged, walks: true }
    }
}

/// Whether some directory lies in another one.
fn are_nested(directories: &[(Asked<'_>, &[CString])]) -> bool {
    let is_around = |outer: &Location, inner: &Location| outer.rest(inner).is_some_and(|rest| !rest.is_empty());
    let all = || directories.iter().map(|(Asked { location, .. }, _)| location);
    all().any(|inner| all().any(|outer| is_around(outer, inner)))
}

/// Adds what another look could not see: a task that neither could see is one task.
fn add_new(gaps: &mut Vec<Gap>, others: Vec<Gap>) {
    for gap in others {
        if !gaps.contains(&gap) {
            gaps.push(gap);
        }
    }
}
