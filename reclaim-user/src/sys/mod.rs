//! The only room with unsafe code: one typed function per raw call.

pub mod memory_map;
