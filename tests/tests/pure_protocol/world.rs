//! The state of the model: entries, launchers, reclaimers.

/// Entries that exist at one time, at most.
pub(crate) const OBJECTS: usize = 3;
/// Generations of the mount clock. The code has more of them, which only makes waits shorter.
pub(crate) const GENERATIONS: u8 = 2;

/// A directory, whatever its name. One that is gone and that nobody refers to is made anew.
pub(crate) type Object = u8;
/// A name in the root.
pub(crate) type Name = u8;

/// Where an entry is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    /// Not made, or removed.
    #[default]
    Gone,
    /// In the root, under a name that launchers look up.
    Root(Name),
    /// In a batch of the store. It had this name, and each entry of one name is in a batch of its own.
    Condemned(Name),
    /// In the root, under the long name of a makeshift batch.
    Makeshift(Name),
}

/// How a reclaimer's clock knows of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Entered {
    /// It was inside when the probes were attached: a straggler.
    #[default]
    Before,
    /// It has read the generation and is not counted in yet.
    Reading(u8),
    /// It is counted in.
    Under(u8),
}

/// A mount call inside the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Call {
    /// For each reclaimer, each of which has probes of its own.
    pub(crate) entered: [Entered; 2],
    pub(crate) counted: bool,
    pub(crate) resolved: Option<Object>,
    pub(crate) attached: bool,
}

/// A launcher, with the sandbox that it starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Launcher {
    /// It has seen to it that its directory is there.
    pub(crate) made: bool,
    /// An open call has looked its path up, and the descriptor is not in the table yet.
    pub(crate) opening: Option<Object>,
    pub(crate) descriptor: Option<Object>,
    pub(crate) call: Option<Call>,
    /// The source of its mount.
    pub(crate) pin: Option<Object>,
}

impl Launcher {
    /// Whether it relies on an entry, or is about to.
    pub(crate) fn holds(&self, object: Object) -> bool {
        let resolved = self.call.and_then(|call| call.resolved);
        [self.pin, self.descriptor, self.opening, resolved].contains(&Some(object))
    }
}

/// What a reclaimer does once it has a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Then {
    Leftovers,
    List,
    Condemn(Object, Name),
}

/// Where a reclaimer is in its pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    /// It does not run, or has crashed.
    #[default]
    Off,
    /// It has opened the store.
    Opened(u8, Then),
    /// It has locked what it opened.
    Locked(u8, Then),
    /// It has locked the root, and has not looked for a store yet.
    RootLocked(Then),
    Leftovers,
    List,
    /// The entry that it saw under a name, before it is condemned.
    Examined(Object, Name),
    /// The naive protocol: the name has been checked.
    Checked(Name),
    /// What was moved is not what was examined.
    Swapped(Object, Name),
    /// Generations that have not been seen empty, and launchers that were inside when the probes were attached.
    Wait {
        generations: u8,
    },
    /// Which look at the evidence comes next.
    Look(u8),
    /// It waits for its other hand, which removes the group before.
    Finish,
    /// The group gets its names back.
    GiveBack,
}

/// Whose lock is held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Lock {
    #[default]
    None,
    /// Of the store with this identity.
    Store(u8),
    /// Of the root, for want of room for a store.
    Root,
}

/// A process of reclaim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Reclaimer {
    pub(crate) phase: Phase,
    pub(crate) lock: Lock,
    /// Condemned entries in hand, one bit each.
    pub(crate) group: u8,
    /// Those that are to have their names back.
    pub(crate) denied: u8,
    /// Entries that its other hand, a thread, brings to an end meanwhile.
    pub(crate) hand: u8,
    /// Those of them that are to have their names back.
    pub(crate) refused: u8,
    /// Those that the hand is through with and that are to have their names back.
    pub(crate) back: u8,
    /// Those of all these that took the place of what was examined.
    pub(crate) swapped: u8,
    /// The entry that the hand has leave to remove.
    pub(crate) confirmed: Option<Object>,
    /// The generation of its clock.
    pub(crate) generation: u8,
    /// A mount call was made while it looked at the evidence.
    pub(crate) stirred: bool,
    /// It waited for a time, since its clock could not tell.
    pub(crate) in_doubt: bool,
}

impl Reclaimer {
    /// Every condemned entry that it knows of.
    pub(crate) fn known(&self) -> u8 {
        self.group | self.hand | self.back | self.confirmed.map_or(0, |object| 1 << object)
    }

    /// Whether it may move and remove: it holds a lock and has seen that this is the right one.
    pub(crate) fn is_inside(&self) -> bool {
        self.lock != Lock::None && !matches!(self.phase, Phase::Opened(..) | Phase::Locked(..) | Phase::RootLocked(_))
    }
}

/// All there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) objects: [Place; OBJECTS],
    /// The identity of `.reclaim`, where there is one.
    pub(crate) store: Option<u8>,
    pub(crate) launchers: [Launcher; 2],
    pub(crate) reclaimers: [Reclaimer; 2],
    /// An entry was replaced by another one.
    pub(crate) lost: bool,
}

impl World {
    /// The entry under a name of the root.
    pub(crate) fn at(&self, name: Name) -> Option<Object> {
        (0..OBJECTS as Object).find(|object| self.place(*object) == Place::Root(name))
    }

    pub(crate) fn place(&self, object: Object) -> Place {
        self.objects[usize::from(object)]
    }

    pub(crate) fn put(&mut self, object: Object, place: Place) {
        self.objects[usize::from(object)] = place;
    }

    /// A mount has this entry as its source.
    pub(crate) fn is_pinned(&self, object: Object) -> bool {
        self.launchers.iter().any(|launcher| launcher.pin == Some(object))
    }

    /// A descriptor leads to this entry.
    pub(crate) fn is_referred_to(&self, object: Object) -> bool {
        self.launchers.iter().any(|launcher| launcher.descriptor == Some(object))
    }

    pub(crate) fn is_held(&self, object: Object) -> bool {
        self.launchers.iter().any(|launcher| launcher.holds(object))
    }

    /// Makes a directory. None when there are as many as there is room for.
    pub(crate) fn make(&mut self, name: Name, room: u8) -> Option<()> {
        let in_hand = |object: Object| {
            self.reclaimers.iter().any(|reclaimer| {
                reclaimer.known() & (1 << object) != 0
                    || match reclaimer.phase {
                        Phase::Opened(_, Then::Condemn(examined, _))
                        | Phase::Locked(_, Then::Condemn(examined, _))
                        | Phase::RootLocked(Then::Condemn(examined, _))
                        | Phase::Examined(examined, _) => examined == object,
                        _ => false,
                    }
            })
        };
        let free = |object: &Object| self.place(*object) == Place::Gone && !self.is_held(*object) && !in_hand(*object);
        let object = (0..room).find(free)?;
        self.put(object, Place::Root(name));
        Some(())
    }

    /// An identity for a store that nobody has a descriptor of.
    pub(crate) fn store_identity(&self) -> u8 {
        let known = |identity: u8| {
            self.reclaimers.iter().any(|reclaimer| {
                reclaimer.lock == Lock::Store(identity)
                    || matches!(reclaimer.phase, Phase::Opened(store, _) | Phase::Locked(store, _) if store == identity)
            })
        };
        (0..).find(|identity| !known(*identity)).expect("two reclaimers know two stores at most")
    }
}
