//! Confirming: fresh evidence about condemned entries, and the only place where leave to remove is made.

use super::condemn::{Batch, Condemned, key};
use super::examine::{Examiner, Look, Stop};
use crate::config::{RemoveRule, RootConfig};
use crate::evidence::source::View;
use crate::model::fence::FileKind;
use crate::model::pin::Pin;
use crate::model::report::Reason;
use crate::model::verdict::{self, Named};
use crate::sys::directory::Leased;

/// Leave to remove one condemned entry: nothing relies on it, and every fence still lets it pass.
///
/// Invariant: only [`confirm`] makes one, and removing takes it by value.
#[derive(Debug)]
#[must_use]
pub(super) struct Confirmed {
    condemned: Condemned,
    /// The lock that the last look took, where reclaim had none before.
    lease: Option<Leased>,
}

impl Confirmed {
    /// The entry.
    pub(super) fn condemned(&self) -> &Condemned {
        &self.condemned
    }

    /// Ends the leave.
    pub(super) fn into_condemned(self) -> Condemned {
        self.condemned
    }

    /// What it is.
    pub(super) fn kind(&self) -> FileKind {
        self.condemned.kind
    }

    /// Lets go of the locks on the entry. Whoever removes it by other means may want them.
    pub(super) fn release(&mut self) {
        (self.condemned.lease, self.lease) = (None, None);
    }
}

/// What fresh evidence says of a condemned entry.
#[derive(Debug)]
pub(super) struct Proof {
    /// Kept small: an entry that goes has nothing more to tell, and most go.
    passed: Result<Named, Box<Denied>>,
    /// It was found to be what it was when it was looked at.
    unchanged: bool,
}

impl Proof {
    /// Whether it lets the entry pass.
    pub(super) fn passes(&self) -> bool {
        self.passed.is_ok()
    }

    /// A proof that lets the entry pass, or why it may not go.
    pub(super) fn into_result(self) -> Result<Self, Denied> {
        let Self { passed, unchanged } = self;
        passed.map(|named| Self { passed: Ok(named), unchanged }).map_err(|denied| *denied)
    }
}

/// Why an entry has to have its name back.
#[derive(Debug)]
pub(super) struct Denied {
    pub(super) reason: Reason,
    pub(super) pins: Vec<Pin>,
    pub(super) detail: Option<String>,
}

impl Denied {
    /// For a reason that needs no more words.
    pub(super) fn of(reason: Reason) -> Self {
        Self { reason, pins: Vec::new(), detail: None }
    }
}

/// Pins of an entry under either of its names, `key` being the one that it is condemned under. Mounts follow the entry to
/// where it is condemned; the layers of a union file system, and tables that were read before, still tell the name that
/// it had.
pub(super) fn prove(
    rules: &RootConfig,
    root: usize,
    view: &View<'_>,
    key: &[u8],
    condemned: &Condemned,
    unchanged: bool,
    with_pins: bool,
) -> Proof {
    let name = condemned.name.to_bytes();
    let pinned = view.pins.is_pinned(root, key) || view.pins.is_pinned(root, name);
    let pins = || match with_pins {
        true => [view.pins.pins_of(root, key), view.pins.pins_of(root, name)].concat(),
        false => Vec::new(),
    };
    let doubt = doubt(view, name, condemned.empty);
    let referred = view.references.words(key);
    let named = match condemned.named {
        Some(named) if !pinned && referred.is_none() => Ok(named),
        _ => verdict::by_name(rules, name, pinned || referred.is_some()),
    };
    let passed = named.and_then(|named| {
        let claim = view.claim(rules.remove != RemoveRule::Empty);
        verdict::by_evidence(doubt.is_some(), claim.complete(), claim.covered(condemned.owner)).map(|()| named)
    });
    let denied = |reason| match reason {
        Reason::Pinned if pinned => Denied { reason, pins: pins(), detail: referred },
        Reason::Pinned if referred.is_some() => Denied { reason, pins: Vec::new(), detail: referred },
        Reason::Pinned => Denied { reason, pins: Vec::new(), detail: doubt },
        _ => Denied::of(reason),
    };
    Proof { passed: passed.map_err(|reason| Box::new(denied(reason))), unchanged }
}

/// Whether there is a pin on a condemned entry, under either of its names.
pub(super) fn is_pinned(root: usize, view: &View<'_>, batch: &Batch, condemned: &Condemned) -> bool {
    view.pins.is_pinned(root, &key(batch, condemned)) || view.pins.is_pinned(root, condemned.name.to_bytes())
}

/// A layer that could not be resolved and could be this entry or in it, for people.
pub(super) fn doubt(view: &View<'_>, name: &[u8], empty: bool) -> Option<String> {
    let (namespace, layer) = view.pins.doubt(name, empty, view.walks)?;
    Some(format!(
        "the layer `{}` of a union file system in namespace {namespace} cannot be resolved and could be this entry",
        String::from_utf8_lossy(&layer.written)
    ))
}

/// Looks at the entry once more: every fence that can change is asked again. Not where evidence has compared it with what
/// it was when it was looked at: what is the same and nobody refers to stays the same.
#[expect(clippy::result_large_err, reason = "an entry is moved from step to step; boxing each would cost more")]
pub(super) fn confirm(
    rules: &RootConfig,
    examiner: &mut Examiner,
    batch: &Batch,
    condemned: Condemned,
    proof: Proof,
) -> Result<Confirmed, (Condemned, Option<Denied>)> {
    let named = match proof.passed {
        Ok(named) => named,
        Err(denied) => return Err((condemned, Some(*denied))),
    };
    if proof.unchanged && examiner.would_find_the_same(rules, batch, &condemned) {
        return Ok(Confirmed { condemned, lease: None });
    }
    let look = Look::Again(condemned.settled());
    match examiner.examine(rules, named, &batch.directory, condemned.stored(), look) {
        Ok(examined)
            if (examined.identity, examined.kind, examined.owner)
                == (condemned.identity, condemned.kind, condemned.owner) =>
        {
            Ok(Confirmed { condemned, lease: examined.lease })
        }
        Ok(_) => {
            let detail = Some("it is not what was condemned any more".into());
            Err((condemned, Some(Denied { reason: Reason::Failed, pins: Vec::new(), detail })))
        }
        Err(Stop::Vanished) => Err((condemned, None)),
        Err(Stop::Keep(reason, detail)) => Err((condemned, Some(Denied { reason, pins: Vec::new(), detail }))),
    }
}
