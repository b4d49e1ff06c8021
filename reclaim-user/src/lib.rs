//! Removes what sandboxes leave behind, and never what a mount still relies on.
#![deny(unsafe_code)]

pub mod config;
pub mod evidence;
pub mod model;
pub mod removal;
pub mod sys;
