//! What the kernel side and userspace agree on: records, counters, map names and the layout of the running kernel.
//!
//! No dependencies and no allocation, so that both sides can link it.
#![no_std]

pub mod abi;
pub mod fence_abi;
pub mod inside_abi;
pub mod reference_abi;
pub mod walk_abi;
