//! The only room with unsafe code: one typed function per raw call.

pub mod mount_id;
pub mod mount_list;
pub mod namespace;
