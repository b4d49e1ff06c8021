//! Removes what sandboxes leave behind, and never what a mount still relies on.
#![deny(unsafe_code)]

pub mod cli;
pub mod config;
pub mod error;
pub mod evidence;
pub mod model;
pub mod removal;
pub mod render;
pub mod service;
pub mod sys;
