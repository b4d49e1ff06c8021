//! Taking evidence: producers of pins, and the one interface that decisions and removal ask.

pub mod asked;
pub mod engine;
pub mod ground;
pub mod holders;
pub mod source;
