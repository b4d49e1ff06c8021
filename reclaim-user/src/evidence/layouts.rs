//! Where the running kernel's structures keep their members, looked up once in the life of the process.
//!
//! Reading the type information takes longer than looking into it, and the programs of all producers need some of it. Only
//! the offsets are kept: the text has several megabytes.

use super::btf::{self, LayoutError, Types};
use super::inside::layout as inside;
use super::mount_fence::layout::{self as mount_fence, FenceTypes};
use super::references::layout::{self as references, ReferenceTypes};
use super::walk::layout as walk;
use reclaim_ebpf::abi::Layout;
use reclaim_ebpf::inside_abi::InsideLayout;
use reclaim_ebpf::walk_abi::WalkLayout;
use std::collections::BTreeSet;
use std::sync::{Mutex, OnceLock, PoisonError};

/// What each kind of program needs. What one lacks is nothing to the others.
#[derive(Debug)]
pub(super) struct Layouts {
    /// For the probes.
    pub(super) probes: Result<Layout, LayoutError>,
    /// For the walk.
    pub(super) walk: Result<WalkLayout, LayoutError>,
    /// For the look at threads inside mount-class calls.
    pub(super) inside: Result<InsideLayout, LayoutError>,
    /// For references.
    pub(super) references: Result<ReferenceTypes, LayoutError>,
    /// For the mount fence.
    pub(super) mount_fence: Result<FenceTypes, LayoutError>,
}

/// Those of the running kernel.
///
/// # Errors
/// The type information cannot be read; the next call tries again.
pub(super) fn of_running_kernel() -> Result<&'static Layouts, LayoutError> {
    static LAYOUTS: OnceLock<Layouts> = OnceLock::new();
    static READING: Mutex<()> = Mutex::new(());
    let _reading = READING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(layouts) = LAYOUTS.get() {
        return Ok(layouts);
    }
    let bytes = btf::vmlinux()?;
    let wanted: BTreeSet<&str> =
        [&btf::WANTED[..], &inside::WANTED, &walk::WANTED, &references::WANTED, &mount_fence::WANTED]
            .concat()
            .into_iter()
            .collect();
    let types = Types::index(&bytes, &wanted.into_iter().collect::<Vec<_>>())?;
    Ok(LAYOUTS.get_or_init(|| Layouts {
        probes: btf::of_types(&types),
        walk: walk::layout(&types),
        inside: inside::layout(&types),
        references: references::layout(&types),
        mount_fence: mount_fence::layout(&types),
    }))
}
