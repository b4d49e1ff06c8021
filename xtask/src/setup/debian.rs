//! The toolchain from Debian's packages.
//!
//! The compiler's packages conflict with rustup and with Debian's other Rust packages, so they are unpacked into the
//! project's own folder and never installed. What they need from the system is installed, and nothing is removed for it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::{Outcome, linker, numbers, say};
use crate::command::{self, find};
use crate::toolchain::Toolchain;

/// Packages that make up one compiler: rustc, cargo, the library's source, the library, clippy.
const FAMILIES: [[&str; 5]; 2] = [
    ["rustc-web", "cargo-web", "rust-web-src", "libstd-rust-web-dev", "rust-web-clippy"],
    ["rustc", "cargo", "rust-src", "libstd-rust-dev", "rust-clippy"],
];

/// Unpacks the compiler, installs what it needs, builds bpf-linker.
pub(super) fn make(folder: &Path) -> Result<Outcome> {
    if find("apt-get").is_none() || find("dpkg-deb").is_none() {
        return Ok(Outcome::NotHere { why: "this is no Debian".to_owned(), commands: vec![] });
    }
    let root = nix::unistd::geteuid().is_root();
    let Some(family) = choose(root)? else {
        let wanted = env!("CARGO_PKG_RUST_VERSION");
        let commands = if root { vec![] } else { vec!["sudo apt-get update".to_owned()] };
        return Ok(Outcome::NotHere { why: format!("apt offers no rustc of release {wanted} or later"), commands });
    };
    let place = folder.join("debian");
    let packages = folder.join("packages");
    let unpacked = works(&place);
    if !unpacked {
        download(&packages, family)?;
    }
    let (mut wanted, llvm) = needs(if unpacked { &place } else { &packages })?;
    wanted.push(format!("llvm-{llvm}-dev"));
    let missing: Vec<String> = wanted.into_iter().filter(|package| !installed(package)).collect();
    if !missing.is_empty() {
        if !root {
            let missing = missing.join(" ");
            return Ok(Outcome::NotHere {
                why: format!("without root these packages cannot be installed: {missing}"),
                commands: vec![format!("sudo apt-get install --no-remove {missing}")],
            });
        }
        install(&missing, "the compiler and bpf-linker load them")?;
    }
    for (program, package) in [("bwrap", "bubblewrap"), ("python3", "python3"), ("chattr", "e2fsprogs")] {
        if root && find(program).is_none() {
            // Only the demonstration and the tests use them.
            if let Err(error) = install(&[package.to_owned()], "the demonstration and the tests make sandboxes with it")
            {
                say(&format!("going on without {package}: {error:#}"));
            }
        }
    }
    if !unpacked {
        unpack(folder, &packages, &place)?;
    }
    let bin = linker::build(folder, llvm)?;
    let compiler = place.join("usr/bin");
    let mut path_prepend = bin.into_os_string();
    path_prepend.push(":");
    path_prepend.push(&compiler);
    Ok(Outcome::Ready(Toolchain {
        cargo: compiler.join("cargo"),
        rustc: compiler.join("rustc"),
        path_prepend,
        ld_library_path: libraries(&place)?.into_os_string(),
        rustc_bootstrap: "1".into(),
    }))
}

/// The first family that apt offers in a recent enough release; asks apt to update its lists where it knows none.
fn choose(root: bool) -> Result<Option<[&'static str; 5]>> {
    let offered = || -> Result<Option<[&'static str; 5]>> {
        for family in FAMILIES {
            let text = command::output(Command::new("apt-cache").args(["policy", family[0]]).env("LC_ALL", "C"))?;
            let candidate = text.lines().find_map(|line| line.trim().strip_prefix("Candidate: "));
            if candidate.is_some_and(|version| numbers(version) >= numbers(env!("CARGO_PKG_RUST_VERSION"))) {
                return Ok(Some(family));
            }
        }
        Ok(None)
    };
    if let Some(family) = offered()? {
        return Ok(Some(family));
    }
    if !root {
        return Ok(None);
    }
    update()?;
    offered()
}

fn update() -> Result<()> {
    say("asking apt for fresh package lists");
    command::run(Command::new("apt-get").args(["update", "-qq"]))
}

/// Downloads the family, and the shared library that its compiler is, into an empty `packages`.
fn download(packages: &Path, family: [&str; 5]) -> Result<()> {
    if packages.exists() {
        fs::remove_dir_all(packages).with_context(|| format!("cannot remove {}", packages.display()))?;
    }
    fs::create_dir_all(packages).with_context(|| format!("cannot create {}", packages.display()))?;
    say(&format!("downloading {} (not installed: they conflict with other Rust packages)", family.join(" ")));
    let fetch = |names: &[&str]| {
        // Without this apt warns that its own user cannot write to the folder.
        let mut apt = Command::new("apt-get");
        command::output(
            apt.args(["download", "-qq", "-o", "APT::Sandbox::User=root"]).args(names).current_dir(packages),
        )
    };
    if fetch(&family).is_err() {
        // A list older than the archive names files that are gone.
        update()?;
        fetch(&family)?;
    }
    let library = needed_by(packages, family[3])?
        .into_iter()
        .find(|name| name.starts_with("libstd-rust-"))
        .with_context(|| format!("{} names no library package", family[3]))?;
    fetch(&[&library]).map(drop)
}

/// System packages that the downloaded ones load at run time, and the major release of their LLVM. Remembered in a file
/// beside the unpacked ones, for a repair.
fn needs(folder: &Path) -> Result<(Vec<String>, u32)> {
    let remembered = folder.join("needs");
    let names: Vec<String> = if remembered.is_file() {
        let text = fs::read_to_string(&remembered).context("cannot read the list of needed packages")?;
        text.lines().map(str::to_owned).collect()
    } else {
        let mut names: Vec<String> = needed_by(folder, "")?
            .into_iter()
            .filter(|name| name.starts_with("lib") && !name.starts_with("libstd-rust") && !name.starts_with("libc-dev"))
            .collect();
        names.sort();
        names.dedup();
        fs::write(&remembered, names.join("\n")).context("cannot write the list of needed packages")?;
        names
    };
    let llvm = names
        .iter()
        .find_map(|name| name.strip_prefix("libllvm")?.parse().ok())
        .context("the compiler's packages name no LLVM, so bpf-linker's cannot be chosen")?;
    Ok((names, llvm))
}

/// Names in the Depends field of the downloaded packages whose file begins with `prefix`, first alternative each.
fn needed_by(packages: &Path, prefix: &str) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for file in files(packages)? {
        if !file.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix)) {
            continue;
        }
        let text = command::output(Command::new("dpkg-deb").arg("-f").arg(&file).arg("Depends"))?;
        names.extend(text.split(',').filter_map(|clause| Some(clause.split_whitespace().next()?.to_owned())));
    }
    Ok(names)
}

fn files(packages: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(packages).with_context(|| format!("cannot list {}", packages.display()))? {
        let path = entry.with_context(|| format!("cannot list {}", packages.display()))?.path();
        if path.extension().is_some_and(|extension| extension == "deb") {
            files.push(path);
        }
    }
    Ok(files)
}

fn installed(package: &str) -> bool {
    let mut query = Command::new("dpkg-query");
    query.args(["--show", "--showformat=${db:Status-Status}", package]);
    command::output(&mut query).is_ok_and(|text| text == "installed")
}

/// Installs packages; apt may not remove anything for it.
fn install(packages: &[String], why: &str) -> Result<()> {
    say(&format!("installing {}: {why}", packages.join(" ")));
    let attempt = || {
        let mut apt = Command::new("apt-get");
        apt.args(["install", "-y", "-qq", "--no-remove", "--no-install-recommends"]).args(packages);
        command::output(apt.env("DEBIAN_FRONTEND", "noninteractive"))
    };
    if attempt().is_err() {
        update()?;
        attempt()?;
    }
    Ok(())
}

/// Unpacks all packages into a place beside the final one and renames it.
fn unpack(folder: &Path, packages: &Path, place: &Path) -> Result<()> {
    let partial = folder.join("debian.partial");
    for old in [&partial, &place.to_owned()] {
        if old.exists() {
            fs::remove_dir_all(old).with_context(|| format!("cannot remove {}", old.display()))?;
        }
    }
    say(&format!("unpacking the compiler into {}", place.display()));
    for file in files(packages)? {
        command::run(Command::new("dpkg-deb").arg("-x").arg(&file).arg(&partial))?;
    }
    let source = partial.join("usr/lib/rustlib/src/rust/library/core/Cargo.toml");
    if !source.is_file() {
        repair_source(&partial)?;
    }
    fs::copy(packages.join("needs"), partial.join("needs")).context("cannot copy the list of needed packages")?;
    fs::rename(&partial, place).with_context(|| format!("cannot put the compiler in {}", place.display()))?;
    fs::remove_dir_all(packages).with_context(|| format!("cannot remove {}", packages.display()))
}

/// Points the compiler at the library source that was unpacked with it, where the package's link leads elsewhere.
fn repair_source(unpacked: &Path) -> Result<()> {
    let sources = unpacked.join("usr/src");
    for entry in fs::read_dir(&sources).with_context(|| format!("cannot list {}", sources.display()))? {
        let entry = entry.with_context(|| format!("cannot list {}", sources.display()))?;
        if entry.path().join("library/core/Cargo.toml").is_file() {
            let link = unpacked.join("usr/lib/rustlib/src/rust");
            if link.symlink_metadata().is_ok() {
                fs::remove_file(&link).with_context(|| format!("cannot replace {}", link.display()))?;
            }
            let target = Path::new("../../../src").join(entry.file_name());
            return std::os::unix::fs::symlink(target, &link)
                .with_context(|| format!("cannot make {}", link.display()));
        }
    }
    bail!("the packages hold no library source below {}", sources.display())
}

/// Whether a compiler was unpacked here and starts. Anything less is made again.
fn works(place: &Path) -> bool {
    let Ok(libraries) = libraries(place) else { return false };
    let source = place.join("usr/lib/rustlib/src/rust/library/core/Cargo.toml");
    let mut rustc = Command::new(place.join("usr/bin/rustc"));
    source.is_file() && command::output(rustc.arg("-vV").env("LD_LIBRARY_PATH", libraries)).is_ok()
}

/// The directory that holds the compiler's shared library.
fn libraries(place: &Path) -> Result<PathBuf> {
    let lib = place.join("usr/lib");
    for entry in fs::read_dir(&lib).with_context(|| format!("cannot list {}", lib.display()))? {
        let path = entry.with_context(|| format!("cannot list {}", lib.display()))?.path();
        let Ok(inside) = fs::read_dir(&path) else {
            continue;
        };
        if inside.flatten().any(|file| file.file_name().to_string_lossy().starts_with("librustc_driver")) {
            return Ok(path);
        }
    }
    bail!("no librustc_driver below {}", lib.display())
}
