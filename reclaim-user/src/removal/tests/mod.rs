//! The protocol on a real tmpfs in a private mount namespace. Each test names the guard that it watches.
mod bounds;
mod crashes;
mod guards;
mod leases;
mod manifests;
mod moments;
mod protocol;
mod purge;
mod roots;
mod sealed;
mod speed;
pub(super) mod support;
