//! Taking evidence: producers of pins, and the one interface that decisions and removal ask.

pub mod ground;
pub mod layers;
pub mod procfs;
pub mod scan;
pub mod source;
pub mod tasks;
