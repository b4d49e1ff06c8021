//! Every test program of the workspace and what they call, statically linked: the same files run on this host and inside
//! virtual machines.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use crate::command::{cargo, shown};
use crate::setup;

/// Package of the tests against the built binary. Its test files are the tiers.
pub(crate) const TESTS: &str = "tests";
/// The target that is linked statically, and how cargo's variable for its compiler flags is named.
#[cfg(target_arch = "x86_64")]
const TARGET: (&str, &str) = ("x86_64-unknown-linux-gnu", "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS");
#[cfg(target_arch = "aarch64")]
const TARGET: (&str, &str) = ("aarch64-unknown-linux-gnu", "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS");

/// One built program.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Program {
    /// Directory name of its package.
    pub(crate) package: String,
    /// Name of the target that it is built from.
    pub(crate) target: String,
    /// Whether it is a test program.
    pub(crate) test: bool,
    /// Where it is.
    pub(crate) path: PathBuf,
    /// The directory of its package.
    pub(crate) directory: PathBuf,
}

impl Program {
    /// Package and target, as people read it.
    pub(crate) fn name(&self) -> String {
        format!("{}/{}", self.package, self.target)
    }

    /// Whether it is a test file of the tests package.
    pub(crate) fn is_tier(&self) -> bool {
        self.test && self.package == TESTS
    }
}

/// Compiles everything and asks cargo where it put it. What is quick and small comes first: the packages' own tests,
/// then the tiers.
///
/// # Errors
/// Set-up or the build fails.
pub(crate) fn build() -> Result<Vec<Program>> {
    setup::run(setup::Verbosity::Quiet)?;
    let mut programs = Vec::new();
    for arguments in [&["build", "--workspace", "--bins"][..], &["test", "--no-run", "--workspace"]] {
        let mut build = cargo();
        build
            .args(arguments)
            .args(["--message-format=json-render-diagnostics", "--target", TARGET.0])
            .env(TARGET.1, "-C target-feature=+crt-static")
            // Small enough for a first file system, and quick enough for an emulated processor.
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            .env("CARGO_PROFILE_DEV_OPT_LEVEL", "1")
            .env("CARGO_PROFILE_DEV_STRIP", "debuginfo")
            .stderr(Stdio::inherit());
        let output = build.output().with_context(|| format!("cannot start {}", shown(&build)))?;
        if !output.status.success() {
            bail!("the tests do not build");
        }
        let text = String::from_utf8(output.stdout).context("cargo's messages are not UTF-8")?;
        for line in text.lines() {
            programs.extend(read(line)?);
        }
    }
    programs.sort_by_key(|program| (program.is_tier(), program.name(), program.test));
    programs.dedup_by(|left, right| left.path == right.path);
    Ok(programs)
}

/// What one of cargo's messages says was built; None where it speaks of something else.
fn read(line: &str) -> Result<Option<Program>> {
    let message: serde_json::Value = serde_json::from_str(line).context("cargo's message is not JSON")?;
    let (Some(path), Some(test)) = (message["executable"].as_str(), message["profile"]["test"].as_bool()) else {
        return Ok(None);
    };
    let manifest = Path::new(message["manifest_path"].as_str().context("cargo names no manifest")?);
    let directory = manifest.parent().context("a manifest has no directory")?;
    Ok(Some(Program {
        package: directory.file_name().context("a package has no directory")?.to_string_lossy().into_owned(),
        target: message["target"]["name"].as_str().context("cargo names no target")?.to_owned(),
        test,
        path: path.into(),
        directory: directory.to_owned(),
    }))
}
