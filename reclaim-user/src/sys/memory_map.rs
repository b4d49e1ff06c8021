#![expect(unsafe_code, reason = "the memory of a BPF map is reached through a raw pointer")]
//! The counters of the BPF programs, mapped into this process.

use std::io;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

/// A BPF array of `u64` made with `BPF_F_MMAPABLE`, mapped for reading and writing.
///
/// The mapping keeps the map's memory alive by itself; no descriptor is kept.
#[derive(Debug)]
pub struct CounterMemory {
    base: NonNull<AtomicU64>,
    slots: usize,
    bytes: NonZeroUsize,
}

impl CounterMemory {
    /// Maps the array behind a descriptor, which has at least `slots` values.
    ///
    /// # Errors
    /// What `mmap(2)` says, such as EPERM for an array that may not be mapped.
    pub fn map(array: impl AsFd, slots: usize) -> io::Result<Self> {
        let bytes =
            slots.checked_mul(size_of::<AtomicU64>()).and_then(NonZeroUsize::new).ok_or(io::ErrorKind::InvalidInput)?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a fresh shared mapping at an address of the kernel's choice replaces nothing.
        let base = unsafe { mmap(None, bytes, protection, MapFlags::MAP_SHARED, array, 0) }?;
        Ok(Self { base: base.cast(), slots, bytes })
    }

    /// The value of a slot. No system call. Everything that the kernel side did before it raised the counter to this
    /// value has happened.
    ///
    /// # Panics
    /// For a slot outside the array.
    #[must_use]
    pub fn load(&self, slot: u32) -> u64 {
        self.at(slot).load(Ordering::SeqCst)
    }

    /// Sets a slot.
    ///
    /// # Panics
    /// For a slot outside the array.
    pub fn store(&self, slot: u32, value: u64) {
        self.at(slot).store(value, Ordering::SeqCst);
    }

    /// Adds to a slot that both sides add to.
    ///
    /// # Panics
    /// For a slot outside the array.
    pub fn add(&self, slot: u32, value: u64) {
        self.at(slot).fetch_add(value, Ordering::SeqCst);
    }

    fn at(&self, slot: u32) -> &AtomicU64 {
        let slot = slot as usize;
        assert!(slot < self.slots, "slot {slot} is outside an array of {}", self.slots);
        // SAFETY: inside the mapping, by the check above.
        let place = unsafe { self.base.add(slot) };
        // SAFETY: the mapping lives as long as self, is aligned to a page, and both sides change it atomically only.
        unsafe { place.as_ref() }
    }
}

// SAFETY: the memory is reached through atomics only, and belongs to no thread.
unsafe impl Send for CounterMemory {}
// SAFETY: as for Send.
unsafe impl Sync for CounterMemory {}

impl Drop for CounterMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map` with this length, and nothing borrows from it any more.
        let unmapped = unsafe { munmap(self.base.cast(), self.bytes.get()) };
        debug_assert!(unmapped.is_ok(), "munmap of a mapping of our own failed");
    }
}
