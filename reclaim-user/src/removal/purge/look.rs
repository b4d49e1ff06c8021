//! The first proof: every target under its own name, before anything is changed.

use super::{Open, Purged, Target};
use crate::evidence::source::EvidenceSource;
use crate::model::fence::FileKind;
use crate::model::purge::TargetVerdict;
use crate::model::report::Reason;
use crate::model::verdict;
use crate::removal::condemn::{Condemned, Group, mark};
use crate::removal::confirm::{Denied, prove};
use crate::removal::error::RemovalError;
use crate::removal::examine::{Examined, Look, Stop};
use crate::removal::leases::Leases;
use crate::removal::pass::chain;
use crate::sys::file_status::status_at;

/// A target that nothing speaks against so far.
pub(super) type Looked = Result<Examined, Purged>;

/// Looks at every target, and asks evidence about those that pass the other fences.
pub(super) fn look<E: EvidenceSource>(
    open: &mut [Option<Open<'_>>],
    targets: &[Target],
    evidence: &mut E,
) -> Result<Vec<Looked>, RemovalError> {
    let mut looked: Vec<Looked> = targets.iter().map(|target| examine(open[target.site].as_mut(), target)).collect();
    for (at, open) in open.iter().enumerate() {
        let of_site = |index: &usize| targets[*index].site == at && looked[*index].is_ok();
        let asked: Vec<usize> = (0..targets.len()).filter(of_site).collect();
        if let Some(open) = open
            && !asked.is_empty()
        {
            for (index, denied) in ask(open, targets, &looked, &asked, evidence)? {
                looked[index] = Err(Purged::refused(denied));
            }
        }
    }
    Ok(looked)
}

/// Every fence but those of evidence. Age, retention and the process of a name are guesses at what a purge is told.
fn examine(open: Option<&mut Open<'_>>, target: &Target) -> Looked {
    let absent = || Err(Purged::of(TargetVerdict::Absent));
    let Some(Open { root, examiner, .. }) = open else { return absent() };
    let refused = |reason, detail| Err(Purged::refused(Denied { reason, pins: Vec::new(), detail }));
    let found = status_at(&root.directory, &target.name);
    if found.is_ok_and(|found| !target.means(&found)) {
        return absent();
    }
    match found.map(|file| file.status.kind) {
        Ok(FileKind::Link) => return refused(Reason::Kind, Some("it is a link, and links are not purged".to_owned())),
        Ok(FileKind::Other) => {
            return refused(Reason::Kind, Some("it is neither a directory nor a regular file".to_owned()));
        }
        // Whatever else it answers is told by the look that follows.
        Ok(FileKind::Directory | FileKind::File) | Err(_) => {}
    }
    let named = match verdict::by_name(&target.rules, target.name.to_bytes(), false) {
        Ok(named) => named,
        Err(reason) => return refused(reason, None),
    };
    match examiner.examine(&target.rules, named, &root.directory, &target.name, Look::First) {
        Ok(examined) => Ok(examined),
        Err(Stop::Vanished) => absent(),
        Err(Stop::Keep(reason, detail)) => refused(reason, detail.or_else(|| examiner.unheard(reason))),
    }
}

/// What evidence says against some targets of a site.
fn ask<E: EvidenceSource>(
    open: &Open<'_>,
    targets: &[Target],
    looked: &[Looked],
    asked: &[usize],
    evidence: &mut E,
) -> Result<Vec<(usize, Denied)>, RemovalError> {
    let Open { index: of_site, location, root, .. } = open;
    let failed = |source| RemovalError::Evidence { path: root.path.clone(), source };
    // Under their own names, as what a command removes is; the locks stay with what was looked at.
    let mut group = Group::new();
    for (index, examined) in asked.iter().filter_map(|index| Some((*index, looked[*index].as_ref().ok()?))) {
        let again = examined.without_lease();
        if let Err((_, error)) = mark(&root.directory, &mut group, targets[index].name.clone(), again, Leases::up_to(0))
        {
            return Err(failed(format!("{error:?}").into()));
        }
    }
    let Group { batches, entries, .. } = group;
    let places: Vec<_> = batches.iter().map(|batch| batch.place(entries.iter())).collect();
    let view = evidence.confirm(*of_site, &places).map_err(|source| failed(Box::new(source)))?;
    root.verify(view.pins.roots().nth(*of_site), location)?;
    let proof = |(index, condemned): (&usize, &Condemned)| {
        let rules = &targets[*index].rules;
        let denied = prove(rules, *of_site, &view, condemned.name.to_bytes(), condemned, true).into_result().err();
        denied.map(|denied| (*index, explained(denied, &view)))
    };
    Ok(asked.iter().zip(&entries).filter_map(proof).collect())
}

/// Adds what is missing where too little was seen.
pub(super) fn explained(mut denied: Denied, view: &crate::evidence::source::View<'_>) -> Denied {
    if denied.reason == Reason::NoEvidence && denied.detail.is_none() {
        let gaps = crate::model::answer::gaps(view.tables);
        denied.detail = Some(format!("what was seen of the host does not cover its owner: {gaps}"));
    }
    denied
}

/// For people, when no evidence could be taken.
pub(super) fn unproved(error: &dyn std::error::Error) -> Denied {
    let detail = Some(format!("no fresh evidence could be taken: {}", chain(error)));
    Denied { reason: Reason::NoEvidence, pins: Vec::new(), detail }
}
