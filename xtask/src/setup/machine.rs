//! What virtual machines are made of: qemu, Debian's kernels and busybox, unpacked into a folder of the project's. Nothing is
//! installed, so nothing that is installed has to go.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::say;
use crate::command::{self, find};
use crate::toolchain::directory;

/// The folder, beside the toolchain's.
const FOLDER: &str = "kernels";
/// Packages that name the newest kernel of a release.
const KERNELS: [(&str, &str); 2] = [("6.1", "linux-image-cloud-amd64"), ("6.12", "linux-image-6.12-cloud-amd64")];
const QEMU: &str = "qemu-system-x86_64";
const QEMU_PACKAGE: &str = "qemu-system-x86";
/// Where Debian keeps shared libraries.
const LIBRARIES: [&str; 2] = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"];

/// Short names of the kernels that can be had.
pub(crate) fn kernels() -> impl Iterator<Item = &'static str> {
    KERNELS.into_iter().map(|(name, _)| name)
}

/// Why machines cannot be made here; None where they can.
pub(crate) fn out_of_reach() -> Option<String> {
    if cfg!(not(target_arch = "x86_64")) {
        return Some("the kernels are built for x86-64, and this host is something else".to_owned());
    }
    let missing = ["apt-get", "dpkg-deb"].into_iter().find(|program| find(program).is_none())?;
    Some(format!("the kernels are Debian's packages, and this host has no {missing} to get them with"))
}

/// Where an unpacked kernel package lies; None for a name that is none of [`kernels`].
///
/// # Errors
/// The package cannot be downloaded or unpacked.
pub(crate) fn kernel(name: &str) -> Result<Option<PathBuf>> {
    let Some((_, package)) = KERNELS.into_iter().find(|(known, _)| *known == name) else { return Ok(None) };
    let packages = || {
        let text = command::output(Command::new("apt-cache").args(["depends", package]).env("LC_ALL", "C"))?;
        let named = text.lines().find_map(|line| line.trim().strip_prefix("Depends: "));
        let named = named.with_context(|| format!("{package} names no kernel"))?;
        Ok(vec![named.to_owned()])
    };
    unpacked(name, packages).map(Some)
}

/// A statically linked busybox.
///
/// # Errors
/// The package cannot be downloaded or unpacked.
pub(crate) fn busybox() -> Result<PathBuf> {
    let place = unpacked("busybox", || Ok(vec!["busybox-static".to_owned()]))?;
    ["bin/busybox", "usr/bin/busybox"]
        .iter()
        .map(|path| place.join(path))
        .find(|path| path.is_file())
        .context("busybox-static holds no busybox")
}

/// The command that starts qemu: the system's own, else an unpacked one with the libraries that the system lacks.
///
/// # Errors
/// The packages cannot be downloaded or unpacked.
pub(crate) fn qemu() -> Result<(PathBuf, Vec<(&'static str, String)>)> {
    if let Some(path) = find(QEMU) {
        return Ok((path, vec![]));
    }
    let packages = || {
        let mut plan = Command::new("apt-get");
        plan.args(["install", "--simulate", "--no-install-recommends", QEMU_PACKAGE]).env("LC_ALL", "C");
        let text = command::output(&mut plan)?;
        let names = text.lines().filter_map(|line| line.strip_prefix("Inst ")?.split_whitespace().next());
        Ok(names.map(str::to_owned).collect())
    };
    let place = unpacked("qemu", packages)?;
    let libraries = LIBRARIES.map(|path| place.join(path).display().to_string()).join(":");
    Ok((place.join("usr/bin").join(QEMU), vec![("LD_LIBRARY_PATH", libraries)]))
}

/// Where some packages lie unpacked. They are downloaded and unpacked beside that place and renamed into it.
fn unpacked(name: &str, packages: impl Fn() -> Result<Vec<String>>) -> Result<PathBuf> {
    let folder = directory().context("no place for kernels: set RECLAIM_TOOLCHAIN_DIR or HOME")?.with_file_name(FOLDER);
    let place = folder.join(name);
    if place.is_dir() {
        return Ok(place);
    }
    if find("apt-get").is_none() || find("dpkg-deb").is_none() {
        bail!(
            "virtual machines are made from Debian's packages, and this is no Debian: install {QEMU} and name a kernel"
        );
    }
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let lock = File::create(folder.join(".lock")).with_context(|| format!("cannot lock {}", folder.display()))?;
    lock.lock().with_context(|| format!("cannot lock {}", folder.display()))?;
    if place.is_dir() {
        return Ok(place);
    }
    let (download, partial) = (folder.join("packages.partial"), folder.join("unpacked.partial"));
    for old in [&download, &partial] {
        if old.exists() {
            fs::remove_dir_all(old).with_context(|| format!("cannot remove {}", old.display()))?;
        }
    }
    fs::create_dir_all(&download).with_context(|| format!("cannot create {}", download.display()))?;
    if fetch(&packages, &download).is_err() {
        // A list older than the archive names files that are gone.
        if nix::unistd::geteuid().is_root() {
            say("asking apt for fresh package lists");
            command::run(Command::new("apt-get").args(["update", "-qq"]))?;
        }
        fetch(&packages, &download)?;
    }
    for entry in fs::read_dir(&download).with_context(|| format!("cannot list {}", download.display()))? {
        let file = entry.with_context(|| format!("cannot list {}", download.display()))?.path();
        command::run(Command::new("dpkg-deb").arg("-x").arg(&file).arg(&partial))?;
    }
    fs::rename(&partial, &place).with_context(|| format!("cannot put {name} in {}", place.display()))?;
    fs::remove_dir_all(&download).with_context(|| format!("cannot remove {}", download.display()))?;
    Ok(place)
}

fn fetch(packages: impl Fn() -> Result<Vec<String>>, folder: &Path) -> Result<()> {
    let names = packages()?;
    if names.is_empty() {
        bail!("apt names no package to download");
    }
    say(&format!("downloading {} (not installed)", names.join(" ")));
    let mut apt = Command::new("apt-get");
    apt.args(["download", "-qq", "-o", "APT::Sandbox::User=root"]).args(&names).current_dir(folder);
    command::output(&mut apt).map(drop)
}
