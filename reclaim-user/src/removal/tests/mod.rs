//! The protocol on a real tmpfs in a private mount namespace. Each test names the guard that it watches.
mod crashes;
mod guards;
mod protocol;
mod roots;
mod speed;
mod support;
