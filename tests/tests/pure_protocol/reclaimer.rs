//! Steps of reclaimers. Each bears the name of the function that takes it in the code.
//!
//! Pins are shown by the evidence of a listing or not, as it happens: the live set may be as stale as it likes. So every
//! name can be examined and condemned here, and safety rests on what comes after.

use crate::protocol::{Flaw, Locks, Look, Protocol, Step, Swaps, Who};
use crate::world::{Entered, GENERATIONS, Lock, Name, OBJECTS, Object, Phase, Place, Reclaimer, Then, World};

impl Protocol {
    pub(crate) fn reclaimer_steps(&self, world: &World, index: usize, steps: &mut Vec<Step>) {
        let own = world.reclaimers[index];
        let mut turn = Turn { protocol: self, world, index, own, steps };
        match own.phase {
            Phase::Off => turn.run(),
            Phase::Opened(store, then) => turn.lock(store, then),
            Phase::Locked(store, then) => turn.leads_to(store, then),
            Phase::RootLocked(then) => turn.root_locked(then),
            Phase::Leftovers => turn.leftovers(),
            Phase::List => turn.list(),
            Phase::Examined(object, name) => turn.condemn(object, name),
            Phase::Checked(name) => turn.delete(name),
            Phase::Swapped(object, name) => turn.swapped(object, name),
            Phase::Wait { generations } => turn.wait(generations),
            Phase::Look(look) => turn.look(look),
            Phase::Finish => turn.finish(),
            Phase::GiveBack => turn.give_back(),
        }
        turn.other_hand();
        if own.phase != Phase::Off {
            let mut next = *world;
            turn_off(&mut next, index);
            steps.push(Step::wild(Who::Reclaimer(index), "crash", None, next));
        }
    }
}

/// Ends a process: its locks and its probes go with it. Calls under way are stragglers to the next one.
fn turn_off(world: &mut World, index: usize) {
    world.reclaimers[index] = Reclaimer::default();
    for call in world.launchers.iter_mut().filter_map(|launcher| launcher.call.as_mut()) {
        call.entered[index] = Entered::Before;
    }
}

/// Where a reclaimer goes on that has found no store.
fn without_store(then: Then) -> Phase {
    match then {
        Then::Leftovers | Then::List => Phase::List,
        Then::Condemn(object, name) => Phase::Examined(object, name),
    }
}

fn bit(object: Object) -> u8 {
    1 << object
}

/// One reclaimer's turn.
struct Turn<'t> {
    protocol: &'t Protocol,
    world: &'t World,
    index: usize,
    own: Reclaimer,
    steps: &'t mut Vec<Step>,
}

impl Turn<'_> {
    /// The world with this reclaimer in another phase.
    fn with(&self, phase: Phase) -> World {
        self.with_own(Reclaimer { phase, ..self.own })
    }

    fn with_own(&self, own: Reclaimer) -> World {
        let mut next = *self.world;
        next.reclaimers[self.index] = own;
        next
    }

    fn off(&self) -> World {
        let mut next = *self.world;
        turn_off(&mut next, self.index);
        next
    }

    fn calm(&mut self, function: &'static str, about: Option<u8>, ending: &'static str, next: World) {
        self.steps.push(Step::calm(Who::Reclaimer(self.index), function, about, next).ending(ending));
    }

    fn wild(&mut self, function: &'static str, about: Option<u8>, ending: &'static str, next: World) {
        self.steps.push(Step::wild(Who::Reclaimer(self.index), function, about, next).ending(ending));
    }

    fn run(&mut self) {
        if self.protocol.has(Flaw::Naive) {
            return self.calm("run", None, "", self.with(Phase::List));
        }
        let phase = match self.world.store {
            Some(store) => Phase::Opened(store, Then::Leftovers),
            None => Phase::List,
        };
        self.calm(
            "Store::open_existing",
            None,
            if self.world.store.is_some() { "" } else { "ENOENT" },
            self.with(phase),
        );
    }

    fn others(&self) -> impl Iterator<Item = &Reclaimer> {
        let others = self.world.reclaimers.iter().enumerate().filter(|(index, _)| *index != self.index);
        others.map(|(_, reclaimer)| reclaimer)
    }

    fn lock(&mut self, store: u8, then: Then) {
        let is_held = self.others().any(|other| other.lock == Lock::Store(store));
        if is_held && !self.protocol.has(Flaw::NoLock) {
            return self.calm("lock", None, "busy", self.off());
        }
        let own = Reclaimer { lock: Lock::Store(store), phase: Phase::Locked(store, then), ..self.own };
        self.calm("lock", None, "", self.with_own(own));
    }

    fn leads_to(&mut self, store: u8, then: Then) {
        if self.world.store == Some(store) || self.protocol.has(Flaw::NoLeadsTo) {
            let root_is_locked = self.others().any(|other| other.lock == Lock::Root);
            if root_is_locked && self.protocol.locks == Locks::Together {
                return self.calm("leads_to", None, "the root is locked", self.off());
            }
            let phase = match then {
                Then::Leftovers => Phase::Leftovers,
                Then::List => Phase::List,
                Then::Condemn(object, name) => Phase::Examined(object, name),
            };
            return self.calm("leads_to", None, "", self.with(phase));
        }
        // It is opened once more, and for condemning it is made where it is not there.
        let phase = self.world.store.map_or(without_store(then), |store| Phase::Opened(store, then));
        let next = self.with_own(Reclaimer { lock: Lock::None, phase, ..self.own });
        self.calm("leads_to", None, "it does not any more", next);
    }

    fn leftovers(&mut self) {
        let group = self.all(|place| matches!(place, Place::Condemned(_)));
        let own = Reclaimer { group, ..self.own };
        let (protocol, next) = (self.protocol, self.with_own(own));
        let next = match () {
            () if group == 0 => self.with(Phase::List),
            () if protocol.has(Flaw::LeftoversUnconfirmed) => self.with_own(hand_over(own)),
            () => conclude(protocol, next, self.index),
        };
        self.calm("leftovers", None, if group == 0 { "none" } else { "" }, next);
    }

    fn all(&self, which: impl Fn(Place) -> bool) -> u8 {
        (0..OBJECTS as Object).filter(|object| which(self.world.place(*object))).map(bit).sum()
    }

    fn list(&mut self) {
        let own = self.own;
        for name in 0..self.protocol.names {
            let Some(object) = self.world.at(name) else { continue };
            if self.protocol.has(Flaw::Naive) {
                if !self.world.is_pinned(object) {
                    self.calm("check", Some(object), "", self.with(Phase::Checked(name)));
                }
                continue;
            }
            self.calm("examine", Some(object), "", self.with(Phase::Examined(object, name)));
        }
        for object in (0..OBJECTS as Object).filter(|object| own.known() & bit(*object) == 0) {
            if !matches!(self.world.place(object), Place::Makeshift(_)) {
                continue;
            }
            match own.lock {
                Lock::None => self.lock_root(Then::List),
                _ => {
                    let next = self.with_own(Reclaimer { group: own.group | bit(object), ..own });
                    self.calm("makeshift_leftover", Some(object), "", next);
                }
            }
        }
        self.take();
        if own.group != 0 {
            let next = conclude(self.protocol, *self.world, self.index);
            return self.calm("conclude", None, "", next);
        }
        if own.known() != 0 {
            return;
        }
        // The store goes with the lock on it still held, and only when it is empty.
        let mut next = self.off();
        let is_empty = self.all(|place| matches!(place, Place::Condemned(_))) == 0;
        if let (Lock::Store(store), true) = (own.lock, is_empty)
            && self.world.store == Some(store)
        {
            next.store = None;
        }
        self.calm("Store::close", None, "", next);
    }

    fn lock_root(&mut self, then: Then) {
        if self.others().any(|other| other.lock == Lock::Root) {
            return self.calm("Store::lock_root", None, "busy", self.off());
        }
        let phase = match self.protocol.locks {
            Locks::Apart => without_store(then),
            Locks::Together => Phase::RootLocked(then),
        };
        let next = self.with_own(Reclaimer { lock: Lock::Root, phase, ..self.own });
        self.calm("Store::lock_root", None, "", next);
    }

    fn root_locked(&mut self, then: Then) {
        let next = match self.world.store {
            None => self.with(without_store(then)),
            // There is one now, so that is what has to be locked.
            Some(store) => self.with_own(Reclaimer { lock: Lock::None, phase: Phase::Opened(store, then), ..self.own }),
        };
        self.calm("Store::lock_root", None, if self.world.store.is_none() { "no store" } else { "a store" }, next);
    }

    fn condemn(&mut self, object: Object, name: Name) {
        if self.own.lock == Lock::None {
            let mut next = *self.world;
            let store = next.store.unwrap_or_else(|| self.world.store_identity());
            next.store = Some(store);
            let phase = Phase::Opened(store, Then::Condemn(object, name));
            next.reclaimers[self.index] = Reclaimer { phase, ..self.own };
            self.calm("Store::open", None, "", next);
            if self.protocol.full && self.world.store.is_none() {
                self.lock_root(Then::Condemn(object, name));
            }
            return;
        }
        let place = match self.own.lock {
            Lock::Root => Place::Makeshift(name),
            _ => Place::Condemned(name),
        };
        let Some(found) = self.world.at(name) else {
            return self.calm("condemn", Some(object), "vanished", self.with(Phase::List));
        };
        let is_swapped = found != object;
        let at_once = self.protocol.swaps == Swaps::AtOnce || self.own.lock == Lock::Root;
        let mut next = if is_swapped && at_once {
            self.with(Phase::Swapped(found, name))
        } else {
            let swapped = self.own.swapped | if is_swapped { bit(found) } else { 0 };
            self.with_own(Reclaimer { phase: Phase::List, group: self.own.group | bit(found), swapped, ..self.own })
        };
        next.put(found, place);
        self.calm("condemn", Some(object), if is_swapped { "another one is there" } else { "" }, next);
    }

    fn swapped(&mut self, object: Object, name: Name) {
        let mut next = self.with(Phase::List);
        let is_free = self.world.at(name).is_none();
        if is_free {
            next.put(object, Place::Root(name));
        }
        let ending =
            if is_free { "it was swapped, and is given back" } else { "it was swapped, and its name is taken" };
        self.calm("condemn", Some(object), ending, next);
    }

    /// Generation by generation, as each is seen empty. Counters are read one after another in the code, left before
    /// entered, which shows a generation as empty only if it was at the moment of the first reading.
    fn wait(&mut self, generations: u8) {
        for generation in (0..GENERATIONS).filter(|generation| generations & (1 << generation) != 0) {
            if is_empty(self.world, self.index, generation) {
                let phase = Phase::Wait { generations: generations & !(1 << generation) };
                self.calm("is_empty", Some(generation), "", self.with(phase));
            }
        }
        let mut calls = self.world.launchers.iter().filter_map(|launcher| launcher.call);
        let none_is_inside = calls.all(|call| call.entered[self.index] != Entered::Before);
        if generations == 0 && (none_is_inside || self.protocol.has(Flaw::NoStragglers)) {
            return self.calm("look_again", None, "", self.with(Phase::Finish));
        }
        if generations == 0 && self.protocol.doubts {
            // Of a thread that runs all the time it cannot be told whether it is inside.
            let own = Reclaimer { phase: Phase::Finish, in_doubt: true, ..self.own };
            self.wild("settle_by_time", None, "", self.with_own(own));
        }
        // Who is known to be inside and does not come back, whether it was counted in or entered before.
        self.give_all_back("go_on", "overdue");
    }

    fn give_all_back(&mut self, function: &'static str, ending: &'static str) {
        let own = Reclaimer { phase: Phase::GiveBack, denied: 0, stirred: false, in_doubt: false, ..self.own };
        let next = self.with_own(own);
        self.wild(function, None, ending, next);
    }

    fn look(&mut self, look: u8) {
        let Some(taken) = self.protocol.looks.get(usize::from(look)) else { return self.prove() };
        let world = self.world;
        let (function, shows): (_, &dyn Fn(Object) -> bool) = match taken {
            Look::Walk => ("walk", &|object| world.is_pinned(object)),
            Look::References => ("refer", &|object| world.is_referred_to(object)),
            Look::Count => ("count", &|object| world.is_held(object)),
        };
        // A pin counts under either name: that of the condemned entry, and the one that it had.
        let denies = |object: &Object| {
            let by_name = match (world.place(*object), taken) {
                (Place::Condemned(name) | Place::Makeshift(name), Look::Walk) => world.at(name),
                _ => None,
            };
            self.own.group & bit(*object) != 0 && (shows(*object) || by_name.is_some_and(shows))
        };
        let denied: u8 = (0..OBJECTS as Object).filter(denies).map(bit).sum();
        let own = Reclaimer { phase: Phase::Look(look + 1), denied: self.own.denied | denied, ..self.own };
        self.calm(function, None, "", self.with_own(own));
        self.give_all_back("prove", "no evidence");
    }

    fn prove(&mut self) {
        let own = Reclaimer { stirred: false, in_doubt: false, ..self.own };
        let is_counted = self.protocol.looks.contains(&Look::Count);
        if self.own.in_doubt && !is_counted && !self.protocol.has(Flaw::BelievesInDoubt) {
            let unsettled = Reclaimer { denied: own.group, ..own };
            return self.calm(
                "prove",
                None,
                "in doubt, so that nothing is settled",
                self.with_own(hand_over(unsettled)),
            );
        }
        if self.own.stirred {
            let next = look_first(self.protocol, *self.world, self.index);
            return self.calm("prove", None, "mount calls were made meanwhile: again", next);
        }
        self.calm("prove", None, "", self.with_own(hand_over(own)));
    }

    /// Every entry of the group gets its name back, for want of evidence.
    fn give_back(&mut self) {
        let own = self.own;
        match (0..OBJECTS as Object).find(|object| own.group & bit(*object) != 0) {
            Some(object) => self.restore(object, Reclaimer { group: own.group & !bit(object), ..own }),
            None => self.calm("conclude", None, "all were given back", self.with(Phase::List)),
        }
    }

    /// Waits until the other hand is through, and takes what it leaves.
    fn finish(&mut self) {
        self.take();
        if self.own.known() == self.own.group {
            self.calm("finish", None, "", look_first(self.protocol, *self.world, self.index));
        }
    }

    fn take(&mut self) {
        let own = self.own;
        if let Some(object) = (0..OBJECTS as Object).find(|object| own.back & bit(*object) != 0) {
            self.restore(object, Reclaimer { back: own.back & !bit(object), ..own });
        }
    }

    fn restore(&mut self, object: Object, own: Reclaimer) {
        // What has its name back is examined under it, and what stays is judged anew by the next pass.
        let mut next = self.with_own(Reclaimer { swapped: own.swapped & !bit(object), ..own });
        let (Place::Condemned(name) | Place::Makeshift(name)) = self.world.place(object) else {
            // Another reclaimer has brought it to its end.
            return self.calm("restore", Some(object), "ENOENT", next);
        };
        let ending = match self.world.at(name) {
            None => "",
            Some(other) if self.protocol.has(Flaw::RestoreReplaces) => {
                next.put(other, Place::Gone);
                next.lost = true;
                "in the place of another"
            }
            Some(_) => "its name is taken, it stays",
        };
        if next.at(name).is_none() {
            next.put(object, Place::Root(name));
        }
        self.calm("restore", Some(object), ending, next);
    }

    /// Steps of the thread that removes one group while the next is being condemned.
    fn other_hand(&mut self) {
        let own = self.own;
        if let Some(object) = own.confirmed {
            let mut next = self.with_own(Reclaimer { confirmed: None, ..own });
            self.wild("remove", Some(object), "stuck", next);
            if matches!(self.world.place(object), Place::Condemned(_) | Place::Makeshift(_)) {
                next.put(object, Place::Gone);
            }
            return self.calm("remove", Some(object), "", next);
        }
        let Some(object) = (0..OBJECTS as Object).find(|object| own.hand & bit(*object) != 0) else { return };
        let rest = Reclaimer { hand: own.hand & !bit(object), refused: own.refused & !bit(object), ..own };
        if own.refused & bit(object) != 0 {
            let next = self.with_own(Reclaimer { back: own.back | bit(object), ..rest });
            return self.calm("end", Some(object), "denied", next);
        }
        if own.swapped & bit(object) != 0 && !self.protocol.has(Flaw::BelievesSwapped) {
            let next = self.with_own(Reclaimer { back: own.back | bit(object), ..rest });
            return self.calm("confirm", Some(object), "it is not what was examined", next);
        }
        self.calm("confirm", Some(object), "", self.with_own(Reclaimer { confirmed: Some(object), ..rest }));
    }

    fn delete(&mut self, name: Name) {
        let mut next = self.with(Phase::List);
        let found = self.world.at(name);
        if let Some(found) = found {
            next.put(found, Place::Gone);
        }
        self.calm("delete", found, "", next);
    }
}

/// Moves the generation of the clock on, and begins to wait for the others.
fn conclude(protocol: &Protocol, mut world: World, index: usize) -> World {
    let own = world.reclaimers[index];
    let next = (0..GENERATIONS).find(|next| *next != own.generation && is_empty(&world, index, *next));
    let others = (0..GENERATIONS).filter(|generation| Some(*generation) != next);
    let phase = Phase::Wait { generations: others.map(|generation| 1 << generation).sum() };
    world.reclaimers[index] = Reclaimer { phase, generation: next.unwrap_or(own.generation), ..own };
    if protocol.has(Flaw::NoWait) {
        world.reclaimers[index].phase = Phase::Finish;
    }
    world
}

fn is_empty(world: &World, index: usize, generation: u8) -> bool {
    let mut calls = world.launchers.iter().filter_map(|launcher| launcher.call);
    calls.all(|call| call.entered[index] != Entered::Under(generation))
}

/// Begins to look. A call that is inside already may attach its mount between two looks.
fn look_first(protocol: &Protocol, mut world: World, index: usize) -> World {
    // The clock knows of none that it did not count in.
    let mut calls = world.launchers.iter().filter_map(|launcher| launcher.call);
    let is_inside = calls.any(|call| call.counted && call.entered[index] != Entered::Before);
    let stirred = protocol.until_still && is_inside;
    let own = Reclaimer { phase: Phase::Look(0), denied: 0, stirred, ..world.reclaimers[index] };
    world.reclaimers[index] = if protocol.has(Flaw::NoConfirm) { hand_over(own) } else { own };
    world
}

/// Hands the group over to the thread that removes, and goes on with the listing.
fn hand_over(own: Reclaimer) -> Reclaimer {
    Reclaimer { phase: Phase::List, hand: own.group, refused: own.denied, group: 0, denied: 0, ..own }
}
