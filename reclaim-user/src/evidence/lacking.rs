//! What tests of the built program take away from it, so that they reach every fallback on one kernel.
//!
//! With `RECLAIM_TEST=1` in the environment, `RECLAIM_TEST_DISABLE` lists what the process is to go without, separated
//! by commas. Each word is asked for at the edge that it takes away, so that all behind it behaves as on a kernel without
//! it; taking something away can only lower what is claimed.
//!
//! - `bpf`: bpf(2) is refused, by a filter on the process itself;
//! - `btf`: the kernel's type information cannot be read;
//! - `walk`, `references`: the programs for them are refused;
//! - `walk-answer`: the walk does not find the mount that is made for it;
//! - `clock`: nothing tells of mount calls in flight;
//! - `inside`: the kernel does not tell of threads that /proc does not tell of;
//! - `inside-late`: it does so late;
//! - `inside-answer`: the look at them does not meet the call that it is made by;
//! - `nslist`, `listmount`, `setns`: see [`ScanOptions`](super::scan::ScanOptions);
//! - `fentry`, `kprobe`, `tracepoint`, `every-syscall`: see [`Rungs`](super::probes::Rungs);
//! - `references-answer`: what is made for the programs for references to find is hidden from them;
//! - `references-idle`: an entry that nobody uses has more references than is known of its file system.

use crate::sys::filter;
use std::io;
use std::sync::OnceLock;

/// What stands in place of the kernel's reason.
pub(super) const WHY: &str = "RECLAIM_TEST_DISABLE names it";

/// The list; empty where nothing is to be taken away.
pub(super) fn list() -> &'static str {
    static LIST: OnceLock<String> = OnceLock::new();
    LIST.get_or_init(|| {
        let asked = std::env::var_os("RECLAIM_TEST").is_some_and(|value| value == "1");
        if asked { std::env::var("RECLAIM_TEST_DISABLE").unwrap_or_default() } else { String::new() }
    })
}

/// Whether the process is to go without something.
pub(super) fn lacks(name: &str) -> bool {
    names(list(), name)
}

/// Whether a list names something.
pub(super) fn names(list: &str, name: &str) -> bool {
    list.split(',').any(|word| word.trim() == name)
}

/// What a call answers that was taken away.
pub(super) fn answer(kind: io::ErrorKind) -> io::Error {
    io::Error::new(kind, WHY)
}

/// Takes away what the whole process is to go without. To be called before it has a second thread.
///
/// # Errors
/// It cannot be taken away: a test would prove nothing.
pub(crate) fn begin() -> io::Result<()> {
    if lacks("bpf") { filter::refuse_bpf() } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_words_name_something() {
        assert!(names("btf, walk", "walk") && names("btf", "btf"));
        assert!(!names("", "btf") && !names("walks,btf-answer", "walk") && !names("walks,btf-answer", "btf"));
    }

    #[test]
    fn nothing_is_taken_away_unasked() {
        assert_eq!(list(), "");
    }
}
