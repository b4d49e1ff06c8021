//! The BPF programs, as the build script made them, and the loader that all of them go through.

use aya::{Ebpf, EbpfError, EbpfLoader};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::chroot;
use reclaim_ebpf::abi::{EVENTS_MAP, IN_FLIGHT_MAP};
use reclaim_ebpf::inside_abi::INSIDE_OUTPUT_MAP;
use reclaim_ebpf::reference_abi::REFERENCE_OUTPUT_MAP;
use reclaim_ebpf::walk_abi::WALK_OUTPUT_MAP;
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, Builder};

/// Where the kernel shows the type information of itself and its modules.
const TYPES: &str = "/sys/kernel/btf";

/// The object, aligned as its reader wants it.
static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("RECLAIM_BPF_OBJECT"));

/// The maps that take much memory, as small as they can be. Every load makes all maps of the object.
const LEAST: [(&str, u32); 5] =
    [(EVENTS_MAP, 4_096), (IN_FLIGHT_MAP, 1), (WALK_OUTPUT_MAP, 1), (REFERENCE_OUTPUT_MAP, 1), (INSIDE_OUTPUT_MAP, 1)];

/// What one load of the object is given.
#[derive(Debug, Default)]
pub(super) struct Given<'g> {
    /// Contents of globals, by name. Those that are left out keep what the object says, or what was given before.
    pub(super) globals: &'g [(&'static str, &'g [u8])],
    /// Entries of maps, by name, or bytes of a ring. What none of the programs in question uses is made as small as can be.
    pub(super) sizes: &'g [(&'static str, u32)],
}

/// Loads the object: its maps are made, its programs are not yet handed to the kernel.
///
/// # Errors
/// As the loader's.
pub(super) fn load(given: &Given<'_>) -> Result<Ebpf, EbpfError> {
    let mut loader = loader();
    for (name, bytes) in given.globals {
        loader.override_global(name, kept(bytes), true);
    }
    for (name, entries) in LEAST.iter().chain(given.sizes) {
        loader.map_max_entries(name, *entries);
    }
    loader.load(OBJECT)
}

/// The only loader of the process: making one may take longer than all the rest of loading.
fn loader() -> MutexGuard<'static, EbpfLoader<'static>> {
    static LOADER: OnceLock<Mutex<EbpfLoader<'static>>> = OnceLock::new();
    let make = || {
        let mut loader = without_types(EbpfLoader::new);
        loader.btf(None);
        Mutex::new(loader)
    };
    // A load that panicked has left names and numbers behind, which the next one sets again.
    LOADER.get_or_init(make).lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes something where the kernel's type information is not found: a loader reads and parses all of it when it is made,
/// which takes a tenth of a second and some 50 MiB, and the programs have no relocations against it. Where a thread may
/// not have a root directory of its own, it is found.
fn without_types<T: Send>(make: impl Fn() -> T + Send + Sync) -> T {
    let elsewhere = || {
        // Nothing is below it but the files that it lists.
        let _ = unshare(CloneFlags::CLONE_FS).and_then(|()| chroot(TYPES));
        make()
    };
    let made = thread::scope(|scope| {
        let thread = Builder::new().name("loader".into()).spawn_scoped(scope, elsewhere).ok()?;
        Some(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    made.unwrap_or_else(make)
}

/// The same bytes for as long as the process lives, kept once however often they are given: there are a few offsets and
/// numbers, and the loader borrows them.
fn kept(bytes: &[u8]) -> &'static [u8] {
    static KEPT: Mutex<BTreeSet<&'static [u8]>> = Mutex::new(BTreeSet::new());
    let mut all = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = all.get(bytes) {
        return known;
    }
    let added: &'static [u8] = Box::leak(bytes.into());
    all.insert(added);
    added
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_kept_once() {
        let (first, second) = (kept(&[1, 2, 3]), kept(&[1, 2, 3]));
        assert_eq!(first.as_ptr(), second.as_ptr());
        assert_eq!((first, kept(&[1, 2])), (&[1u8, 2, 3][..], &[1u8, 2][..]));
    }
}
