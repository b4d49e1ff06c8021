//! The only room with unsafe code: one typed function per raw call.

pub mod bpf;
pub mod caller_32;
pub mod detach;
pub mod directory;
pub mod file_status;
pub mod filter;
pub mod heap;
pub mod kernel_types;
pub mod memory_map;
pub mod mount_id;
pub mod mount_list;
pub mod mount_tree;
pub mod namespace;
pub mod refused;
