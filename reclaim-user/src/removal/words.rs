//! What others say of the entries of a root: its claims, and what is to be kept. Read when a pass begins, and once more
//! before anything that was condemned is removed.

use super::claims;
use super::keeps::KeepStore;
use super::pass::{PIECE, Pass};
use crate::config::RootConfig;
use crate::evidence::source::EvidenceSource;
use crate::model::calendar;
use crate::model::claims::{Claims, id};
use crate::model::fence::Timestamp;
use crate::model::keep::KeptIn;
use crate::model::verdict::Spoken;
use crate::model::windows::Windows;
use crate::sys::file_status::FileStatus;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What was heard at one moment.
#[derive(Debug)]
pub(super) struct Words {
    claims: Claims,
    keeps: KeptIn,
    /// The retention windows that were in force in earlier passes.
    pub(super) windows: Windows,
}

impl Words {
    /// Nobody was asked yet, so everything is kept.
    pub(super) fn unheard() -> Self {
        let why = || "nobody asked for them yet".to_owned();
        Self { claims: Claims::Unknown(why()), keeps: KeptIn::Unknown(why()), windows: Windows::default() }
    }

    /// What is to be kept in a root, where there is a place that tells. Claims are not asked for.
    pub(super) fn of_keeps(state_dir: Option<&Path>, root: &Path) -> Self {
        let keeps = state_dir.map_or_else(KeptIn::nothing, |state_dir| KeepStore::of(state_dir).of_root(root));
        Self { claims: Claims::Unasked, keeps, windows: Windows::default() }
    }

    /// Nobody says anything.
    #[cfg(test)]
    pub(super) fn silence() -> Self {
        Self { claims: Claims::Unasked, keeps: KeptIn::nothing(), windows: Windows::default() }
    }

    /// What they say of an entry. `name` is the one that it has in the root.
    pub(super) fn of(&self, rules: &RootConfig, name: &[u8], file: &FileStatus, now: Timestamp) -> Spoken {
        Spoken {
            kept: self.keeps.holds(name, file.identity.inode, file.status.birth, now),
            claimed: self.claims != Claims::Unasked && self.claims.holds(id(rules.pattern.as_ref(), name)),
        }
    }

    /// Whether nobody says anything of any entry, as is known for sure.
    pub(super) fn are_none(&self) -> bool {
        self.claims == Claims::Unasked && self.keeps.is_nothing()
    }

    /// What could not be read, and why, for people.
    pub(super) fn faults(&self) -> (Option<&str>, Option<&str>) {
        (self.claims.fault(), self.keeps.fault())
    }
}

impl<E: EvidenceSource> Pass<'_, E> {
    /// Asks everybody. Whatever is looked at from here on is judged by what they say now. A program that takes longer than
    /// `patience` once somebody waits for the pass is not heard to its end. Whether all were heard to their ends.
    pub(super) fn hear(&mut self, patience: Duration) -> bool {
        let Self { rules, options, evidence, between, report, breathed, .. } = self;
        let (mut is_heard, mut cut_since) = (true, None);
        let claims = rules.claims.as_ref().map_or(Claims::Unasked, |config| {
            let mut go_on = || {
                if breathed.elapsed() >= PIECE {
                    report.progress();
                    between(evidence);
                    *breathed = Instant::now();
                }
                let mut is_cut = || cut_since.get_or_insert_with(Instant::now).elapsed() >= patience;
                is_heard = !(options.is_stopped() || (options.is_cut() && is_cut()));
                is_heard
            };
            claims::read(config, &mut go_on)
        });
        let store = options.state_dir.as_deref().map(KeepStore::of);
        let keeps = store.map_or_else(KeptIn::nothing, |store| store.of_root(&rules.path));
        let words = Arc::new(Words { claims, keeps, windows: self.state.windows.clone() });
        self.examiner.listen(Arc::clone(&words));
        // That it was not waited for says nothing of what a program could tell.
        if is_heard {
            self.tell_of(&words);
        }
        self.words = words;
        is_heard
    }

    /// Remembers since when claims cannot be read, and tells once in a pass what is held back for that.
    fn tell_of(&mut self, words: &Words) {
        let (claims, keeps) = words.faults();
        let told = &mut self.report.remarks;
        if let Some(why) = keeps
            && told.keeps_fault.is_none()
        {
            told.keeps_fault = Some(why.to_owned());
            self.report.note(format!("{why}; everything in this root is kept until then"));
        }
        match claims {
            Some(why) => {
                let since = *self.state.claims_unread_since.get_or_insert_with(super::examine::now);
                let since = calendar::written(since);
                let told = &mut self.report.remarks;
                let first = told.claims_fault.is_none();
                told.claims_unread_since = Some(since.clone());
                told.claims_fault = Some(why.to_owned());
                if first {
                    self.report.note(format!(
                        "the claims cannot be read, since {since}, so everything in this root is kept: {why}"
                    ));
                }
            }
            None => self.state.claims_unread_since = None,
        }
    }
}
