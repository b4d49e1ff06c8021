//! The model: which steps can be taken in a world, and what must never be.

use crate::world::{OBJECTS, Object, Place, Reclaimer, World};
use stateright::{Model, Property};
use std::fmt;

/// How a launcher comes by the source of its mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// mount(2) by path.
    Path,
    /// By a descriptor opened before.
    Descriptor,
}

/// How a descriptor comes to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    /// Looking up and entering into the table are one step.
    AtOnce,
    /// They are two, as in the kernel.
    InTwoSteps,
}

/// One look of a confirmation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    Walk,
    References,
    /// The number of references to each entry, whoever has them and however: at one moment.
    Count,
}

/// Whether the lock of the store and that of the root, taken for want of a store, keep each other out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Locks {
    /// Each keeps out only its own kind.
    Apart,
    /// As in the code: who has locked the store lets go where somebody has locked the root; who has locked the root, where there is a store.
    Together,
}

/// When it is told that something else has taken the place of an entry between the look at it and the rename.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Swaps {
    /// Right after the rename, as for trees, files and targets of a purge.
    AtOnce,
    /// By the confirmation, as for directories that only go while they are empty. Not in a makeshift batch.
    Confirmed,
}

/// A way to break the protocol, to show that the model sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// Check, then delete: no condemning at all.
    Naive,
    /// Evidence is taken without waiting for calls under way.
    NoWait,
    /// Calls that were under way when the probes were attached are not waited for.
    NoStragglers,
    /// Where the clock could not tell, looks at evidence are believed all the same.
    BelievesInDoubt,
    /// Nothing is looked at once more.
    NoConfirm,
    /// What took the place of an entry is taken for it.
    BelievesSwapped,
    /// Whatever has taken the name is replaced.
    RestoreReplaces,
    /// What an earlier pass left is removed as it is.
    LeftoversUnconfirmed,
    /// The store is locked, and nobody looks whether it is still the store.
    NoLeadsTo,
    /// A lock that somebody else holds keeps nobody out.
    NoLock,
}

/// One variant of the model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Protocol {
    pub(crate) names: u8,
    /// Entries that exist at one time, at most.
    pub(crate) entries: u8,
    pub(crate) launchers: &'static [Way],
    pub(crate) reclaimers: usize,
    /// Somebody takes the name of a condemned entry.
    pub(crate) stranger: bool,
    /// Somebody renames entries.
    pub(crate) owner: bool,
    /// The file system may be too full for a store.
    pub(crate) full: bool,
    pub(crate) locks: Locks,
    pub(crate) swaps: Swaps,
    pub(crate) opening: Opening,
    /// Launchers open descriptors through their mounts.
    pub(crate) reopening: bool,
    /// What a confirmation looks at, in this order.
    pub(crate) looks: &'static [Look],
    /// All looks are taken again until no mount call was made meanwhile.
    pub(crate) until_still: bool,
    /// The clock cannot always tell of calls from before the probes.
    pub(crate) doubts: bool,
    /// Mounts end without a call that is counted, as when their namespace ends.
    pub(crate) silent_ends: bool,
    pub(crate) flaw: Option<Flaw>,
}

impl Protocol {
    /// One launcher by path, one reclaimer, one name.
    pub(crate) const PLAIN: Self = Self {
        names: 1,
        entries: 3,
        launchers: &[Way::Path],
        reclaimers: 1,
        stranger: true,
        owner: false,
        full: false,
        locks: Locks::Together,
        swaps: Swaps::Confirmed,
        opening: Opening::AtOnce,
        reopening: false,
        looks: &[Look::Walk],
        until_still: false,
        doubts: false,
        silent_ends: false,
        flaw: None,
    };

    pub(crate) fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    /// Every step that can be taken.
    pub(crate) fn steps(&self, world: &World) -> Vec<Step> {
        let mut steps = Vec::with_capacity(16);
        self.launcher_steps(world, &mut steps);
        self.stranger_steps(world, &mut steps);
        for index in 0..self.reclaimers {
            self.reclaimer_steps(world, index, &mut steps);
        }
        steps
    }

    fn stranger_steps(&self, world: &World, steps: &mut Vec<Step>) {
        for name in 0..self.names {
            let condemned = |place: &Place| matches!(place, Place::Condemned(of) | Place::Makeshift(of) if *of == name);
            if self.stranger && world.at(name).is_none() && world.objects.iter().any(condemned) {
                let mut next = *world;
                if next.make(name, self.entries).is_some() {
                    steps.push(Step::wild(Who::Stranger, "mkdir", Some(name), next));
                }
            }
            let (Some(object), true) = (world.at(name), self.owner) else { continue };
            for (other, place) in (name + 1..self.names).filter_map(|place| Some((world.at(place)?, place))) {
                let mut next = *world;
                next.put(object, Place::Root(place));
                next.put(other, Place::Root(name));
                steps.push(Step::wild(Who::Owner, "exchange", Some(object), next));
            }
            for free in (0..self.names).filter(|free| world.at(*free).is_none()) {
                let mut next = *world;
                next.put(object, Place::Root(free));
                steps.push(Step::wild(Who::Owner, "rename", Some(object), next));
            }
        }
    }
}

/// Who takes a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Launcher(usize),
    Stranger,
    Owner,
    Reclaimer(usize),
}

/// A step, and the world after it.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Step {
    pub(crate) who: Who,
    /// What is done: see the table in `mapping.rs`.
    pub(crate) function: &'static str,
    /// How the function ends, where it can end in more than one way.
    pub(crate) ending: &'static str,
    pub(crate) about: Option<u8>,
    /// It belongs to the quiet course of things: nobody begins anything, crashes, or fails.
    pub(crate) calm: bool,
    pub(crate) next: World,
}

impl Step {
    pub(crate) fn calm(who: Who, function: &'static str, about: Option<u8>, next: World) -> Self {
        Self { who, function, ending: "", about, calm: true, next }
    }

    pub(crate) fn wild(who: Who, function: &'static str, about: Option<u8>, next: World) -> Self {
        Self { calm: false, ..Self::calm(who, function, about, next) }
    }

    pub(crate) fn ending(self, ending: &'static str) -> Self {
        Self { ending, ..self }
    }
}

impl fmt::Debug for Step {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}: {}", self.who, self.function)?;
        if let Some(about) = self.about {
            write!(formatter, " {about}")?;
        }
        if self.ending.is_empty() { Ok(()) } else { write!(formatter, " ({})", self.ending) }
    }
}

pub(crate) const NO_DEAD_PIN: &str = "no live pin on a removed entry";
pub(crate) const NOTHING_LOST: &str = "nothing is replaced";
pub(crate) const ONE_INSIDE: &str = "at most one reclaimer inside a root";
pub(crate) const ONLY_EXAMINED: &str = "leave is given only for what was examined";

fn no_dead_pin(_: &Protocol, world: &World) -> bool {
    (0..OBJECTS as Object).all(|object| world.place(object) != Place::Gone || !world.is_pinned(object))
}

fn nothing_lost(_: &Protocol, world: &World) -> bool {
    !world.lost
}

fn one_inside(_: &Protocol, world: &World) -> bool {
    world.reclaimers.iter().filter(|reclaimer| reclaimer.is_inside()).count() <= 1
}

fn only_examined(_: &Protocol, world: &World) -> bool {
    let is_examined = |reclaimer: &Reclaimer, object: Object| reclaimer.swapped & (1 << object) == 0;
    world.reclaimers.iter().all(|reclaimer| reclaimer.confirmed.is_none_or(|object| is_examined(reclaimer, object)))
}

impl Model for Protocol {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        // An entry that somebody left behind, under every name.
        let mut world = World::default();
        for name in 0..self.names {
            world.put(name, Place::Root(name));
        }
        vec![world]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Step>) {
        // Nothing of interest comes after a violation, and a counterexample is to end with it.
        let holds = [no_dead_pin, nothing_lost, one_inside, only_examined].iter().all(|holds| holds(self, world));
        if holds {
            actions.extend(self.steps(world));
        }
    }

    fn next_state(&self, _: &World, step: Step) -> Option<World> {
        Some(step.next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(NO_DEAD_PIN, no_dead_pin),
            Property::always(NOTHING_LOST, nothing_lost),
            Property::always(ONE_INSIDE, one_inside),
            Property::always(ONLY_EXAMINED, only_examined),
        ]
    }
}

/// Whether nothing is left to do: what is in use has its name, what is not is gone. Only an entry whose name is taken by
/// one that is in use waits for that.
pub(crate) fn is_settled(world: &World) -> bool {
    (0..OBJECTS as Object).all(|object| match world.place(object) {
        Place::Gone => true,
        Place::Root(_) => world.is_held(object),
        Place::Condemned(name) | Place::Makeshift(name) => world.at(name).is_some_and(|other| world.is_held(other)),
    })
}

/// Whether a step that ends an entry is one with leave to do so.
pub(crate) fn removes_with_leave(before: &World, step: &Step) -> bool {
    (0..OBJECTS as Object).all(|object| {
        let ended = before.place(object) != Place::Gone && step.next.place(object) == Place::Gone;
        let leave = matches!(step.who, Who::Reclaimer(index) if before.reclaimers[index].confirmed == Some(object));
        !ended || (leave && step.function == "remove")
    })
}
