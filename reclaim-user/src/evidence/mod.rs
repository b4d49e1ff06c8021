//! Taking evidence: producers of pins, and the one interface that decisions and removal ask.

pub mod asked;
pub mod btf;
pub mod clock;
pub mod engine;
pub mod features;
pub mod ground;
pub mod holders;
mod inside;
pub(crate) mod lacking;
pub mod layers;
mod layouts;
pub mod mount_fence;
mod object;
pub mod probes;
pub mod procfs;
pub mod references;
mod returns;
pub mod ring;
pub mod scan;
pub mod source;
mod stragglers;
pub mod tasks;
pub mod walk;
