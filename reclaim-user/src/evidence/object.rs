//! The BPF programs, as the build script made them.

/// The object, aligned as its reader wants it.
pub(super) static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("RECLAIM_BPF_OBJECT"));
