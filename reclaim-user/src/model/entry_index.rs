//! The index from the entries of one root to the pins on them.

use super::id::NamespaceId;
use super::packed::Part;
use std::collections::HashMap;
use std::hash::{BuildHasher as _, BuildHasherDefault, Hasher, RandomState};

/// A pin, where it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PinRef {
    /// In the table of a namespace.
    Table(NamespaceId, Part),
    /// Among those that belong to no table.
    Loose(u32),
}

/// Which pins are on which entry.
///
/// Keys are kept as their hashes, which nobody outside can foresee: of a million pins a key then takes eight bytes each. Two
/// keys with the same hash, once in 2^64, have each other's pins: both are held for as long as one of them is.
#[derive(Clone, Debug, Default)]
pub(super) struct EntryIndex {
    hasher: RandomState,
    /// One pin of each entry that has any: most have but one.
    first: HashMap<u64, PinRef, BuildHasherDefault<Hashed>>,
    /// All others.
    others: HashMap<u64, Vec<PinRef>, BuildHasherDefault<Hashed>>,
}

impl EntryIndex {
    /// Adds a pin on an entry.
    pub(super) fn add(&mut self, key: &[u8], pin: PinRef) {
        let hash = self.hasher.hash_one(key);
        if let Some(other) = self.first.insert(hash, pin) {
            self.others.entry(hash).or_default().push(other);
        }
    }

    /// Takes out those pins on an entry that a test says yes to.
    pub(super) fn remove(&mut self, key: &[u8], goes: impl Fn(PinRef) -> bool) {
        let hash = self.hasher.hash_one(key);
        let Some(first) = self.first.get_mut(&hash) else { return };
        let mut another = None;
        if let Some(others) = self.others.get_mut(&hash) {
            others.retain(|pin| !goes(*pin));
            if goes(*first) {
                another = others.pop();
            }
            if others.is_empty() {
                self.others.remove(&hash);
            }
        }
        match another {
            Some(another) => *first = another,
            None if goes(*first) => drop(self.first.remove(&hash)),
            None => {}
        }
    }

    /// Whether there is any pin on an entry.
    pub(super) fn contains(&self, key: &[u8]) -> bool {
        // Where nothing is pinned, not even the hash is worth its time.
        !self.first.is_empty() && self.first.contains_key(&self.hasher.hash_one(key))
    }

    /// The pins on an entry.
    pub(super) fn of(&self, key: &[u8]) -> impl Iterator<Item = PinRef> {
        let hash = self.hasher.hash_one(key);
        self.first.get(&hash).into_iter().chain(self.others.get(&hash).into_iter().flatten()).copied()
    }
}

/// Takes a number that is a hash for its own hash.
#[derive(Clone, Copy, Debug, Default)]
struct Hashed(u64);

impl Hasher for Hashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pin(namespace: u64, at: u32) -> PinRef {
        PinRef::Table(NamespaceId(namespace), Part::Source(at))
    }

    #[test]
    fn an_entry_is_there_until_the_last_of_its_pins_is_taken_out() {
        let pins = [pin(1, 0), pin(2, 0), pin(1, 1), pin(2, 1), PinRef::Loose(7)];
        // Whichever goes first: one of them is kept apart from the others.
        for gone in 0..pins.len() {
            let mut index = EntryIndex::default();
            pins.iter().for_each(|pin| index.add(b"a", *pin));
            index.add(b"b", PinRef::Loose(8));
            for step in 0..pins.len() {
                let goes = pins[(gone + step) % pins.len()];
                assert!(index.contains(b"a") && index.of(b"a").any(|pin| pin == goes));
                index.remove(b"a", |pin| pin == goes);
                let left: Vec<PinRef> = index.of(b"a").collect();
                assert!(left.len() == pins.len() - step - 1 && !left.contains(&goes), "{left:?}");
            }
            assert!(!index.contains(b"a") && index.contains(b"b") && index.others.is_empty());
        }
    }

    #[test]
    fn all_pins_of_one_namespace_go_at_once() {
        let mut index = EntryIndex::default();
        [pin(2, 0), pin(1, 0), pin(1, 1)].into_iter().for_each(|pin| index.add(b"a", pin));
        index.remove(b"a", |pin| matches!(pin, PinRef::Table(NamespaceId(1), _)));
        assert_eq!(index.of(b"a").collect::<Vec<_>>(), [pin(2, 0)]);
    }
}
