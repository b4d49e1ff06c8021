//! Running other programs, with errors that say which one and why.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

/// Runs the command with its output on the terminal.
///
/// # Errors
/// It does not start, or exits with anything but 0.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {}", shown(command)))?;
    if !status.success() {
        bail!("{} failed ({status})", shown(command));
    }
    Ok(())
}

/// Runs the command and returns what it wrote to standard output.
///
/// # Errors
/// It does not start, exits with anything but 0 (what it said is in the message), or does not write UTF-8.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot start {}", shown(command)))?;
    if !output.status.success() {
        bail!("{} failed ({}): {}", shown(command), output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    String::from_utf8(output.stdout).with_context(|| format!("{} did not write UTF-8", shown(command)))
}

/// The command as a person would type it.
pub(crate) fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}

/// The program's path, looked up in PATH.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?).map(|folder| folder.join(program)).find(|path| path.is_file())
}

/// The workspace's directory.
pub(crate) fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

/// The cargo that started this program, in the workspace.
pub(crate) fn cargo() -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(workspace());
    cargo
}

/// Where cargo puts what it builds.
///
/// # Errors
/// cargo does not say.
pub(crate) fn target_directory() -> Result<PathBuf> {
    let text = output(cargo().args(["metadata", "--no-deps", "--format-version", "1"]))?;
    let metadata: serde_json::Value = serde_json::from_str(&text).context("cargo metadata is not JSON")?;
    let path = metadata["target_directory"].as_str().context("cargo metadata names no target directory")?;
    Ok(PathBuf::from(path))
}

/// Runs this program again as root through sudo with the given arguments; only its exit status counts.
///
/// # Errors
/// There is no sudo, or the run as root fails.
pub(crate) fn as_root<S: AsRef<OsStr>>(why: &str, arguments: &[S]) -> Result<()> {
    if find("sudo").is_none() {
        bail!("{why} needs root, and there is no sudo here: run the same command as root");
    }
    eprintln!("{why} needs root: asking through sudo");
    let program = env::current_exe().context("cannot find this program's own file")?;
    let status = Command::new("sudo").arg("--").arg(program).args(arguments).status().context("cannot start sudo")?;
    if !status.success() {
        bail!("the part that runs as root failed ({status})");
    }
    Ok(())
}
