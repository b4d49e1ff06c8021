//! Scans of the real kernel, through every combination of its means. Needs root; each test makes a mount namespace of
//! its own and leaves nothing behind.
#![expect(clippy::unwrap_used, reason = "a test that cannot set up its scene has failed")]

mod accounting;
mod namespaces;
mod places;
mod scale;
mod support;
