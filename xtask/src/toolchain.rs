//! Where the BPF toolchain is, and how cargo is called with it.
//!
//! The build script of reclaim-user includes this file, so that set-up and build agree: standard library only.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Name of the file that describes a finished toolchain, in [`directory`]. Set-up writes it last.
pub(crate) const DESCRIPTION: &str = "toolchain.env";

/// The target triple of the programs.
pub(crate) const BPF_TARGET: &str = "bpfel-unknown-none";

/// How to call the BPF toolchain, as written in [`DESCRIPTION`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Toolchain {
    /// cargo that belongs to `rustc`.
    pub(crate) cargo: PathBuf,
    /// Compiler with the source of its own library beside it.
    pub(crate) rustc: PathBuf,
    /// Directory that holds bpf-linker (and clippy where there is one), put before PATH.
    pub(crate) path_prepend: OsString,
    /// Where the compiler's shared libraries are; empty where it finds them by itself.
    pub(crate) ld_library_path: OsString,
    /// Value of RUSTC_BOOTSTRAP, which lets a stable compiler build the library; empty for a nightly.
    pub(crate) rustc_bootstrap: OsString,
}

/// The toolchain's own folder: `$RECLAIM_TOOLCHAIN_DIR`, else `reclaim/toolchain` in the user's cache directory.
/// None where the environment names neither that, a cache directory nor a home.
pub(crate) fn directory() -> Option<PathBuf> {
    let named = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    named("RECLAIM_TOOLCHAIN_DIR").or_else(|| {
        let cache = named("XDG_CACHE_HOME").or_else(|| named("HOME").map(|home| home.join(".cache")))?;
        Some(cache.join("reclaim/toolchain"))
    })
}

impl Toolchain {
    /// Reads the description in `directory`. None where set-up has not finished there, or where what it describes has
    /// gone since.
    ///
    /// # Errors
    /// The description exists and cannot be read.
    pub(crate) fn read(directory: &Path) -> io::Result<Option<Self>> {
        let text = match fs::read_to_string(directory.join(DESCRIPTION)) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        Ok(Self::parse(&text).filter(|toolchain| toolchain.cargo.is_file() && toolchain.rustc.is_file()))
    }

    /// Reads `KEY=VALUE` lines; None where one of the two programs is not named. Unknown keys are passed over.
    fn parse(text: &str) -> Option<Self> {
        let value = |key: &str| {
            text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=')).filter(|value| !value.is_empty())
        };
        let optional = |key: &str| OsString::from(value(key).unwrap_or_default());
        Some(Self {
            cargo: value("CARGO")?.into(),
            rustc: value("RUSTC")?.into(),
            path_prepend: optional("PATH_PREPEND"),
            ld_library_path: optional("LD_LIBRARY_PATH"),
            rustc_bootstrap: optional("RUSTC_BOOTSTRAP"),
        })
    }

    /// A cargo command for the BPF target. Nothing of an outer cargo's environment reaches it (its flags, its wrapper
    /// such as clippy-driver, its toolchain), save where cargo keeps its files and how it gets at the network.
    pub(crate) fn command(&self, subcommand: &str, target_directory: &Path) -> Command {
        let mut command = Command::new(&self.cargo);
        for (name, _) in env::vars_os() {
            let text = name.to_string_lossy();
            let kept = ["CARGO_HOME", "CARGO_HTTP", "CARGO_NET", "CARGO_REGISTR"]
                .iter()
                .any(|prefix| text.starts_with(prefix));
            if !kept
                && ["CARGO", "RUSTC", "RUSTFLAGS", "RUSTDOC", "RUSTUP_TOOLCHAIN", "LD_"]
                    .iter()
                    .any(|prefix| text.starts_with(prefix))
            {
                command.env_remove(&name);
            }
        }
        let mut path = self.path_prepend.clone();
        if let Some(rest) = env::var_os("PATH") {
            path.push(":");
            path.push(rest);
        }
        command.env("PATH", path).env("RUSTC", &self.rustc).env("RUSTFLAGS", "-C debuginfo=2 -C link-arg=--btf");
        for (name, value) in [("LD_LIBRARY_PATH", &self.ld_library_path), ("RUSTC_BOOTSTRAP", &self.rustc_bootstrap)] {
            if !value.is_empty() {
                command.env(name, value);
            }
        }
        command.arg(subcommand).args(["--release", "--target", BPF_TARGET, "-Z", "build-std=core"]);
        command.arg("--target-dir").arg(target_directory);
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outer_cargo_does_not_leak_in() {
        let toolchain =
            Toolchain::parse("CARGO=/a/cargo\nRUSTC=/a/rustc\nPATH_PREPEND=/a\nOTHER=1\n").expect("complete");
        let command = toolchain.command("build", Path::new("/target"));
        let set = |name: &str| command.get_envs().find(|(key, _)| *key == name).and_then(|(_, value)| value);
        // cargo sets this for the tests that it runs, and so does `cargo xtask test`.
        assert!(env::var_os("CARGO_MANIFEST_DIR").is_some());
        assert!(command.get_envs().any(|(key, value)| key == "CARGO_MANIFEST_DIR" && value.is_none()));
        assert_eq!(set("RUSTC"), Some("/a/rustc".as_ref()));
        assert!(set("PATH").is_some_and(|path| path.to_string_lossy().starts_with("/a:")));
        assert_eq!(set("RUSTC_BOOTSTRAP"), None);
    }

    #[test]
    fn a_description_without_a_compiler_is_none() {
        assert_eq!(Toolchain::parse("CARGO=/a/cargo\nRUSTC=\n"), None);
    }
}
