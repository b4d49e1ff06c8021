//! The toolchain by rustup: its nightly with rust-src, and a released bpf-linker.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::{LINKER_VERSION, Outcome, linker, say};
use crate::command::{self, find};
use crate::toolchain::Toolchain;

/// Uses or installs a nightly with the library's source.
pub(super) fn make(folder: &Path) -> Result<Outcome> {
    if find("rustup").is_none() {
        return Ok(Outcome::NotHere("rustup is not installed".to_owned()));
    }
    if !sysroot().is_some_and(|sysroot| has_source(&sysroot)) {
        say("installing rustup's nightly with rust-src: the BPF target's core library is built from source");
        let mut install = Command::new("rustup");
        install.args(["toolchain", "install", "nightly", "--profile", "minimal", "--component", "rust-src"]);
        if let Err(error) = command::run(&mut install) {
            return Ok(Outcome::NotHere(format!("rustup cannot install a nightly with rust-src here: {error:#}")));
        }
    }
    let Some(sysroot) = sysroot().filter(|sysroot| has_source(sysroot)) else {
        return Ok(Outcome::NotHere("rustup's nightly has no rust-src".to_owned()));
    };
    let Some(bin) = linker::released(folder)? else {
        return Ok(Outcome::NotHere(format!(
            "bpf-linker {LINKER_VERSION} is not in PATH, and cargo-binstall, which installs the released one, is not either"
        )));
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
