//! The toolchain by rustup: its nightly with rust-src, and a released bpf-linker.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::{LINKER_VERSION, Outcome, linker, say};
use crate::command::{self, find};
use crate::toolchain::Toolchain;

/// What a person types to get the nightly.
const NIGHTLY: &str = "rustup toolchain install nightly --profile minimal --component rust-src --component clippy";

/// Uses or installs a nightly with the library's source.
pub(super) fn make(folder: &Path) -> Result<Outcome> {
    let closed = |why: &str, commands: &[&str]| {
        let commands = commands.iter().copied().map(str::to_owned).collect();
        Ok(Outcome::NotHere { why: why.to_owned(), commands })
    };
    let binstall = format!("cargo binstall bpf-linker@{LINKER_VERSION}");
    let linker = ["cargo install cargo-binstall", &binstall];
    if find("rustup").is_none() {
        let rustup = "curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh";
        return closed("rustup is not installed", &[rustup, NIGHTLY, linker[0], linker[1]]);
    }
    if !sysroot().is_some_and(|sysroot| has_source(&sysroot)) {
        say("installing rustup's nightly with rust-src: the BPF target's core library is built from source");
        let mut words = NIGHTLY.split(' ');
        let mut install = Command::new(words.next().unwrap_or("rustup"));
        if let Err(error) = command::run(install.args(words)) {
            return closed(&format!("rustup cannot install its nightly with rust-src: {error:#}"), &[NIGHTLY]);
        }
    }
    let Some(sysroot) = sysroot().filter(|sysroot| has_source(sysroot)) else {
        return closed("rustup's nightly has no rust-src", &[NIGHTLY]);
    };
    let Some(bin) = linker::released(folder)? else {
        return closed("neither bpf-linker nor cargo-binstall, which installs a released one, is in PATH", &linker);
    };
    Ok(Outcome::Ready(Toolchain {
        cargo: sysroot.join("bin/cargo"),
        rustc: sysroot.join("bin/rustc"),
        path_prepend: bin.into_os_string(),
        ld_library_path: "".into(),
        rustc_bootstrap: "".into(),
    }))
}

/// Where rustup keeps its nightly, if it has one.
fn sysroot() -> Option<PathBuf> {
    let mut rustc = Command::new("rustup");
    rustc.args(["run", "nightly", "rustc", "--print", "sysroot"]);
    command::output(&mut rustc).ok().map(|text| PathBuf::from(text.trim_end()))
}

fn has_source(sysroot: &Path) -> bool {
    sysroot.join("lib/rustlib/src/rust/library/core/Cargo.toml").is_file()
}
