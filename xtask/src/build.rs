//! `cargo xtask build`: the release binary.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::command::{self, cargo, target_directory};
use crate::setup;

/// Builds the release binary and returns its absolute path.
///
/// # Errors
/// Set-up or the build fails.
pub(crate) fn run() -> Result<PathBuf> {
    setup::run(setup::Verbosity::Quiet)?;
    command::run(cargo().args(["build", "--release", "--package", "reclaim-user", "--bin", "reclaim"]))?;
    Ok(binary(&target_directory()?))
}

/// Builds the program that measures through the library, and returns its absolute path.
///
/// # Errors
/// The build fails.
pub(crate) fn measure() -> Result<PathBuf> {
    command::run(cargo().args(["build", "--release", "--package", "reclaim-user", "--example", "measure"]))?;
    Ok(target_directory()?.join("release/examples/measure"))
}

/// Where the release binary is in cargo's target directory.
fn binary(target: &Path) -> PathBuf {
    target.join("release/reclaim")
}
