//! The protocol on a real tmpfs in a private mount namespace. Each test names the guard that it watches.
mod crashes;
mod guards;
mod leases;
mod protocol;
mod roots;
mod speed;
mod support;
