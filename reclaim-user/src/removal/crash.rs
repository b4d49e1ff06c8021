//! Crash points: places where a test makes the process kill itself, as a power cut would.

use std::sync::OnceLock;

/// Ends the process with SIGKILL when `RECLAIM_TEST=1` and `RECLAIM_TEST_CRASH` names this step. Does nothing otherwise.
pub(super) fn step(name: &str) {
    static WANTED: OnceLock<Option<String>> = OnceLock::new();
    let wanted = WANTED.get_or_init(|| {
        let asked = std::env::var_os("RECLAIM_TEST").is_some_and(|value| value == "1");
        if asked { std::env::var("RECLAIM_TEST_CRASH").ok() } else { None }
    });
    if wanted.as_deref() == Some(name) {
        let _ = nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL);
    }
}
