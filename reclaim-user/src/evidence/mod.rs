//! Taking evidence: producers of pins, and the one interface that decisions and removal ask.

pub mod asked;
pub mod btf;
pub mod clock;
pub mod engine;
pub mod features;
pub mod holders;
pub mod probes;
pub mod ring;
pub mod source;
mod stragglers;
