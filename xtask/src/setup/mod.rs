//! `cargo xtask setup`: finds or makes the toolchain that builds the BPF programs, and says what it does.
//!
//! Safe to interrupt and to repeat: each part is made beside its place and renamed into it, and the description that
//! makes the whole count as ready is written last.

mod debian;
mod linker;
pub(crate) mod machine;
mod rustup;

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::command;
use crate::toolchain::{DESCRIPTION, Toolchain, directory};

/// Changes when a toolchain made before must be made again.
const FINGERPRINT: &str = concat!("SETUP=1 bpf-linker ", "0.13.0");
/// The release of bpf-linker that is installed.
const LINKER_VERSION: &str = "0.13.0";

/// How much is said where everything is there already.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verbosity {
    /// One line that it is ready.
    Full,
    /// Nothing.
    Quiet,
}

/// Outcome of one way to get a toolchain.
enum Outcome {
    /// It is there.
    Ready(Toolchain),
    /// This way is not open here.
    NotHere {
        /// Why, as part of a sentence.
        why: String,
        /// What a person could type to open it.
        commands: Vec<String>,
    },
}

/// Makes sure that the toolchain is there and returns it.
///
/// # Errors
/// No way to it is open, and the message lists what to type; or a step failed.
pub(crate) fn run(verbosity: Verbosity) -> Result<Toolchain> {
    let folder = directory().context("no place for the BPF toolchain: set RECLAIM_TOOLCHAIN_DIR or HOME")?;
    if let Some(toolchain) = ready(&folder, &mut |_| ())? {
        if verbosity == Verbosity::Full {
            say(&format!("the BPF toolchain is ready in {} ({})", folder.display(), version(&toolchain)?));
        }
        return Ok(toolchain);
    }
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    // Two set-ups at once would unpack into the same place: the second one waits and then finds it done.
    let lock = File::create(folder.join(".lock"))
        .with_context(|| format!("cannot create the lock file in {}", folder.display()))?;
    lock.lock().with_context(|| format!("cannot lock {}", folder.display()))?;
    if let Some(toolchain) = ready(&folder, &mut say)? {
        return Ok(toolchain);
    }
    say(&format!("making the toolchain that builds the BPF programs in {} (once; a few minutes)", folder.display()));
    let mut closed = Vec::new();
    let mut by_hand = Vec::new();
    for way in [debian::make, rustup::make] {
        match way(&folder)? {
            Outcome::Ready(toolchain) => {
                version(&toolchain)?;
                describe(&folder, &toolchain)?;
                say(&format!("ready: {}", folder.join(DESCRIPTION).display()));
                return Ok(toolchain);
            }
            Outcome::NotHere { why, commands } => {
                say(&why);
                closed.push(why);
                by_hand.push(commands);
            }
        }
    }
    let lists: Vec<String> = by_hand.iter().filter(|list| !list.is_empty()).map(|list| list.join("\n    ")).collect();
    bail!(
        "the BPF toolchain cannot be made here without you ({}). Type this, then `cargo xtask setup` again:\n    {}",
        closed.join("; "),
        lists.join("\nor\n    ")
    );
}

/// The toolchain, where a set-up of the present kind has finished and its compiler still runs; else says why not.
fn ready(folder: &Path, say: &mut dyn FnMut(&str)) -> Result<Option<Toolchain>> {
    let Some(toolchain) =
        Toolchain::read(folder).with_context(|| format!("cannot read {DESCRIPTION} in {}", folder.display()))?
    else {
        return Ok(None);
    };
    let text = fs::read_to_string(folder.join(DESCRIPTION)).context("cannot read the toolchain's description")?;
    if !text.lines().any(|line| line == FINGERPRINT) {
        say("the toolchain was made by another release of the set-up: making it again");
        return Ok(None);
    }
    if let Err(error) = version(&toolchain).and_then(|_| linker::check_in(&toolchain.path_prepend)) {
        say(&format!("the toolchain no longer works ({error:#}): repairing it"));
        return Ok(None);
    }
    Ok(Some(toolchain))
}

/// What the compiler says it is; fails where it does not start or is too old for this workspace.
fn version(toolchain: &Toolchain) -> Result<String> {
    let mut rustc = Command::new(&toolchain.rustc);
    if !toolchain.ld_library_path.is_empty() {
        rustc.env("LD_LIBRARY_PATH", &toolchain.ld_library_path);
    }
    let text = command::output(rustc.arg("-vV"))?;
    let release = text.lines().find_map(|line| line.strip_prefix("release: ")).context("rustc -vV names no release")?;
    let wanted = env!("CARGO_PKG_RUST_VERSION");
    if numbers(release) < numbers(wanted) {
        bail!("{} is release {release}, and {wanted} or later is needed", toolchain.rustc.display());
    }
    Ok(text.lines().next().unwrap_or(release).to_owned())
}

/// The leading numbers of a version: `1.96.0+dfsg1` is 1, 96, 0.
fn numbers(version: &str) -> Vec<u64> {
    version.split('.').map_while(|part| part.split(|byte: char| !byte.is_ascii_digit()).next()?.parse().ok()).collect()
}

/// Writes the description beside its place and renames it: a half-written one is never read.
fn describe(folder: &Path, toolchain: &Toolchain) -> Result<()> {
    let mut text = format!("{FINGERPRINT}\n");
    for (key, value) in [
        ("CARGO", toolchain.cargo.as_os_str()),
        ("RUSTC", toolchain.rustc.as_os_str()),
        ("PATH_PREPEND", toolchain.path_prepend.as_os_str()),
        ("LD_LIBRARY_PATH", toolchain.ld_library_path.as_os_str()),
        ("RUSTC_BOOTSTRAP", toolchain.rustc_bootstrap.as_os_str()),
    ] {
        let value = value
            .to_str()
            .with_context(|| format!("{} is not UTF-8: set RECLAIM_TOOLCHAIN_DIR to a plain path", value.display()))?;
        text.push_str(&format!("{key}={value}\n"));
    }
    let partial = folder.join(format!("{DESCRIPTION}.partial"));
    fs::write(&partial, text).with_context(|| format!("cannot write {}", partial.display()))?;
    fs::rename(&partial, folder.join(DESCRIPTION)).context("cannot put the toolchain's description in place")
}

/// One line about what is being done and why.
fn say(line: &str) {
    eprintln!("setup: {line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_by_number() {
        assert!(numbers("1.96.0+dfsg1-1~deb12u2") > numbers("1.95"));
        assert!(numbers("1.100.0") > numbers("1.95"));
        assert!(numbers("1.85.0") < numbers("1.95"));
    }

    #[test]
    fn a_description_reads_back_and_a_missing_compiler_means_not_ready() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let program = folder.path().join("program");
        let toolchain = Toolchain {
            cargo: program.clone(),
            rustc: program.clone(),
            path_prepend: folder.path().join("bin").into(),
            ld_library_path: "".into(),
            rustc_bootstrap: "1".into(),
        };
        describe(folder.path(), &toolchain)?;
        assert_eq!(Toolchain::read(folder.path())?, None);
        fs::write(&program, "")?;
        assert_eq!(Toolchain::read(folder.path())?, Some(toolchain));
        Ok(())
    }
}
