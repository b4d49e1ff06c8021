//! The protocol on a real tmpfs in a private mount namespace. Each test names the guard that it watches.
#![expect(clippy::unwrap_used, reason = "a test that cannot set up its scene has failed")]

mod crashes;
mod guards;
mod protocol;
mod roots;
mod speed;
mod support;
