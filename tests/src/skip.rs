//! Skips that are earned: only where the kernel provably lacks what a test needs.

use crate::OrFail as _;
use std::env;
use std::fs;
use std::path::PathBuf;

/// Ends a test body early, and says so, when a probe shows that the kernel lacks a feature.
///
/// The first argument must be a probe that answers `false` only when it is certain.
#[macro_export]
macro_rules! earned_skip {
    ($has_feature:expr, $reason:expr) => {
        if !$has_feature {
            let name = ::std::thread::current().name().unwrap_or("test").to_owned();
            ::std::eprintln!("SKIP {name}: {}", $reason);
            return;
        }
    };
}

/// Whether the kernel can list mount namespaces (`NS_MNT_GET_NEXT`, 6.12): its type information knows the structure
/// that the call fills in.
///
/// # Panics
/// When the type information cannot be read, for then nothing is certain.
#[track_caller]
#[must_use]
pub fn kernel_lists_namespaces() -> bool {
    let path = "/sys/kernel/btf/vmlinux";
    let types = fs::read(path).or_fail(format_args!("read {path}, to see what the kernel has"));
    let name = b"\0mnt_ns_info\0";
    types.windows(name.len()).any(|part| part == name)
}

/// A program on the search path.
///
/// # Panics
/// When it is not there: set-up installs all that tests need.
#[track_caller]
#[must_use]
pub fn program_on_path(name: &str) -> PathBuf {
    let path = env::var_os("PATH").or_fail("PATH");
    env::split_paths(&path)
        .map(|directory| directory.join(name))
        .find(|candidate| candidate.is_file())
        .or_fail(format_args!("{name} on PATH; run `cargo xtask setup`, which installs it"))
}
