//! Crash points: places where a test makes the process kill itself, as a power cut would, or stop.

use nix::sys::signal::{Signal, raise};
use std::sync::OnceLock;

/// Ends the process with SIGKILL when `RECLAIM_TEST=1` and `RECLAIM_TEST_CRASH` names this step, and stops it with SIGSTOP
/// when `RECLAIM_TEST_STOP` does. Does nothing otherwise.
pub(super) fn step(name: &str) {
    static WANTED: OnceLock<[Option<String>; 2]> = OnceLock::new();
    let [crash, stop] = WANTED.get_or_init(|| {
        let asked = std::env::var_os("RECLAIM_TEST").is_some_and(|value| value == "1");
        ["RECLAIM_TEST_CRASH", "RECLAIM_TEST_STOP"].map(|name| if asked { std::env::var(name).ok() } else { None })
    });
    for (wanted, signal) in [(crash, Signal::SIGKILL), (stop, Signal::SIGSTOP)] {
        if wanted.as_deref() == Some(name) {
            let _ = raise(signal);
        }
    }
}
