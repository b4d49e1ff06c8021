//! bpf-linker: the linker of the BPF target.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::{LINKER_VERSION, say};
use crate::command;

/// Major releases of LLVM that bpf-linker can be built with.
const LLVM_SUPPORTED: [u32; 3] = [21, 22, 23];

/// Fails where the bpf-linker in `bin` does not start.
pub(super) fn check(bin: &Path) -> Result<()> {
    command::output(Command::new(bin.join("bpf-linker")).arg("--version")).map(drop)
}

/// Fails where the directories of a PATH-like list hold no bpf-linker that starts.
pub(super) fn check_in(folders: &OsStr) -> Result<()> {
    let bin = std::env::split_paths(folders).find(|folder| folder.join("bpf-linker").is_file());
    check(&bin.with_context(|| format!("no bpf-linker in {}", folders.display()))?)
}

/// Builds bpf-linker against the system's LLVM into `<folder>/linker/bin` and returns that directory.
pub(super) fn build(folder: &Path, llvm: u32) -> Result<PathBuf> {
    let root = folder.join("linker");
    let bin = root.join("bin");
    if check(&bin).is_ok() && installed(&root) {
        return Ok(bin);
    }
    if !LLVM_SUPPORTED.contains(&llvm) {
        bail!("bpf-linker {LINKER_VERSION} has no support for LLVM {llvm}, which this compiler uses");
    }
    say(&format!("building bpf-linker {LINKER_VERSION} with LLVM {llvm}: the BPF target links with it"));
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .args(["install", "bpf-linker", "--version", LINKER_VERSION, "--locked", "--force", "--quiet"])
        .args(["--no-default-features", "--features", &format!("llvm-{llvm}"), "--root"])
        .arg(&root)
        .env("LLVM_PREFIX", format!("/usr/lib/llvm-{llvm}"))
        .env("CARGO_TARGET_DIR", folder.join("linker-build"))
        .current_dir(folder);
    for name in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER"] {
        cargo.env_remove(name);
    }
    command::run(&mut cargo)?;
    check(&bin)?;
    // Only what was built counts; the objects are some hundred megabytes.
    fs::remove_dir_all(folder.join("linker-build")).context("cannot remove bpf-linker's build directory")?;
    Ok(bin)
}

/// Installs a released bpf-linker with cargo-binstall where that is there, else finds one in PATH.
pub(super) fn released(folder: &Path) -> Result<Option<PathBuf>> {
    let root = folder.join("linker");
    let bin = root.join("bin");
    if check(&bin).is_ok() && installed(&root) {
        return Ok(Some(bin));
    }
    if let Some(found) = command::find("bpf-linker") {
        say(&format!("using {}", found.display()));
        return Ok(found.parent().map(Path::to_owned));
    }
    if command::find("cargo-binstall").is_none() {
        return Ok(None);
    }
    say(&format!("installing the released bpf-linker {LINKER_VERSION}: the BPF target links with it"));
    let mut binstall = Command::new("cargo");
    binstall.args(["binstall", "--no-confirm", "--root"]).arg(&root).arg(format!("bpf-linker@{LINKER_VERSION}"));
    command::run(&mut binstall)?;
    check(&bin)?;
    Ok(Some(bin))
}

/// Whether cargo's own record in `root` names the wanted release.
fn installed(root: &Path) -> bool {
    let wanted = format!("\"bpf-linker {LINKER_VERSION} ");
    fs::read_to_string(root.join(".crates.toml")).is_ok_and(|text| text.contains(&wanted))
}
