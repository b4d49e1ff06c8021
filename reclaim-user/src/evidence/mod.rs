//! Taking evidence: producers of pins, and the one interface that decisions and removal ask.

pub mod btf;
pub mod clock;
pub mod features;
pub mod ground;
pub mod layers;
pub mod probes;
pub mod procfs;
pub mod ring;
pub mod scan;
pub mod source;
mod stragglers;
pub mod tasks;
