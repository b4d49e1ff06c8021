//! Taking evidence: producers of pins, and the one interface that decisions and removal ask.

pub mod source;
