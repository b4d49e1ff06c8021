//! `cargo xtask lint`: formatting, clippy with warnings denied on both sides, the house rules, cargo-deny.

mod house;
mod tokens;

use anyhow::{Result, bail};

use crate::command::{self, cargo, find, target_directory, workspace};
use crate::setup;
use crate::toolchain::Toolchain;

/// Runs every check, also after one has failed, and names those that did.
///
/// # Errors
/// A check found something, or could not run.
pub(crate) fn run() -> Result<()> {
    let toolchain = setup::run(setup::Verbosity::Quiet)?;
    let checks: [(&str, &dyn Fn() -> Result<()>); 5] = [
        ("rustfmt", &|| command::run(cargo().args(["fmt", "--all", "--check"]))),
        ("house rules", &house_rules),
        ("clippy, host", &|| {
            command::run(cargo().args(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))
        }),
        ("clippy, BPF", &|| clippy_bpf(&toolchain)),
        ("cargo-deny", &deny),
    ];
    let mut failed = Vec::new();
    for (name, check) in checks {
        eprintln!("lint: {name}");
        if let Err(error) = check() {
            eprintln!("lint: {name}: {error:#}");
            failed.push(name);
        }
    }
    if !failed.is_empty() {
        bail!("lint found something: {}", failed.join(", "));
    }
    Ok(())
}

fn house_rules() -> Result<()> {
    let findings = house::check(workspace())?;
    for finding in &findings {
        eprintln!("{finding}");
    }
    if !findings.is_empty() {
        bail!("{} places break a house rule", findings.len());
    }
    Ok(())
}

/// The programs are seen by clippy for their own target only: on the host they are compiled out.
fn clippy_bpf(toolchain: &Toolchain) -> Result<()> {
    let folders = std::env::split_paths(&toolchain.path_prepend);
    let beside = toolchain.cargo.parent().map(std::path::Path::to_owned);
    if !folders.chain(beside).any(|folder| folder.join("cargo-clippy").is_file()) {
        eprintln!("lint: the BPF toolchain has no clippy, so the programs are checked as host code only");
        return Ok(());
    }
    let mut clippy = toolchain.command("clippy", &target_directory()?.join("bpf"));
    clippy.args(["--package", "reclaim-ebpf", "--locked", "--", "-D", "warnings"]);
    command::run(clippy.current_dir(workspace()))
}

fn deny() -> Result<()> {
    if find("cargo-deny").is_none() {
        eprintln!(
            "lint: cargo-deny is not installed, so licences and sources are not checked (cargo install cargo-deny)"
        );
        return Ok(());
    }
    command::run(cargo().args(["deny", "--locked", "check", "licenses", "sources", "bans"]))
}
