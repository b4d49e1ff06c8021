//! The first proof, before anything is changed: every target under its own name, and by its manager's word what has no path.

use super::{EntryTarget, Open, PurgeOptions, Purged, Target};
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
use crate::removal::managed::{Managed, Presence};
use crate::removal::pass::chain;
use crate::sys::file_status::status_at;

/// A target that nothing speaks against so far.
pub(super) enum Passed {
    /// It lies in a site, and was looked at.
    Entry(Box<Examined>),
    /// It has no path.
    Managed,
}

/// What the look at a target came to.
pub(super) type Looked = Result<Passed, Purged>;

/// Looks at every target, and asks evidence about those that pass the other fences.
pub(super) fn look<E: EvidenceSource>(
    open: &mut [Option<Open<'_>>],
    targets: &[Target],
    evidence: &mut E,
    options: &PurgeOptions,
    between: &mut dyn FnMut(&mut E),
) -> Result<Vec<Looked>, RemovalError> {
    // Each target stays open until all are condemned. A pass may have been made before, which asks for as much, or not.
    let _room = Leases::up_to(usize::MAX);
    // Managers first: their answers can take long, and no lock on an entry is held meanwhile.
    let asked = ask_managers(targets, &mut options.turns(evidence, between));
    let look = |(target, asked): (&Target, Option<Looked>)| match (target, asked) {
        (_, Some(asked)) => asked,
        (Target::Entry(target), None) => examine(open[target.site].as_mut(), target),
        (Target::Managed(_), None) => Ok(Passed::Managed),
    };
    let mut looked: Vec<Looked> = targets.iter().zip(asked).map(look).collect();
    for (at, open) in open.iter().enumerate() {
        let is_here = |target: &EntryTarget| target.site == at;
        let of_site = |index: &usize| targets[*index].entry().is_some_and(is_here) && looked[*index].is_ok();
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

/// What managers say, by target.
fn ask_managers(targets: &[Target], go_on: &mut dyn FnMut() -> bool) -> Vec<Option<Looked>> {
    let ask = |target: &Target| match target {
        Target::Managed(managed) => Some(ask_manager(managed, go_on)),
        Target::Entry(_) => None,
    };
    targets.iter().map(ask).collect()
}

/// Whether a manager knows of it. Not knowing is refusing.
fn ask_manager(managed: &Managed, go_on: &mut dyn FnMut() -> bool) -> Looked {
    match managed.presence(go_on) {
        Presence::There => Ok(Passed::Managed),
        Presence::Absent => Err(Purged::of(TargetVerdict::Absent)),
        Presence::Unknown(why) => {
            let detail = Some(format!("whether it is there cannot be told: {why}"));
            Err(Purged::refused(Denied { detail, ..Denied::of(Reason::Failed) }))
        }
    }
}

/// Every fence but those of evidence. Age, retention and the process of a name are guesses at what a purge is told.
fn examine(open: Option<&mut Open<'_>>, target: &EntryTarget) -> Looked {
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
        // A purge tells at once what took a target's place, and looks at each once more itself.
        Ok(examined) => Ok(Passed::Entry(Box::new(Examined { mode: None, ..examined }))),
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
    let mut proved: Vec<(usize, &EntryTarget)> = Vec::new();
    for index in asked {
        let (Some(target), Ok(Passed::Entry(examined))) = (targets[*index].entry(), &looked[*index]) else { continue };
        let again = examined.without_lease();
        if let Err((_, error)) = mark(&root.directory, &mut group, target.name.clone(), again, Leases::up_to(0)) {
            return Err(failed(format!("{error:?}").into()));
        }
        proved.push((*index, target));
    }
    let Group { batches, entries, .. } = group;
    let places: Vec<_> = batches.iter().map(|batch| batch.place(entries.iter())).collect();
    let view = evidence.confirm(*of_site, &places).map_err(|source| failed(Box::new(source)))?;
    root.verify(view.pins.roots().nth(*of_site), location)?;
    let proof = |((index, target), condemned): ((usize, &EntryTarget), &Condemned)| {
        let proof = prove(&target.rules, *of_site, &view, condemned.name.to_bytes(), condemned, false, true);
        proof.into_result().err().map(|denied| (index, explained(denied, &view)))
    };
    Ok(proved.into_iter().zip(&entries).filter_map(proof).collect())
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
