//! The only room with unsafe code: one typed function per raw call.

pub mod directory;
pub mod file_status;
