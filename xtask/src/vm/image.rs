//! The first file system of a machine.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::archive::Archive;
use super::guest::{PLACES, PLAN, PROGRAMS_PLACE, Plan};
use super::programs::{BORROWED, COMMANDS, Extent, MODULES, run_of};
use super::{Kernel, files};
use crate::command::{find, output};
use crate::programs::Program;

/// Writes it: what was built, what is borrowed from this host, and the kernel's modules.
///
/// # Errors
/// Something that belongs there is not to be had, or the file cannot be written.
pub(super) fn write(
    path: &Path,
    kernel: &Kernel,
    programs: &[Program],
    busybox: &Path,
    (extent, share): (Extent, u32),
) -> Result<()> {
    let wrong = || format!("cannot write {}", path.display());
    let output = fs::File::create(path).with_context(wrong)?;
    let mut archive = Archive::new(io::BufWriter::new(output));
    for place in PLACES {
        archive.directory(place).with_context(wrong)?;
    }
    archive.program("init", &read(built(programs, "xtask")?)?).with_context(wrong)?;
    archive.program("bin/busybox", &read(busybox)?).with_context(wrong)?;
    for name in COMMANDS {
        archive.link(&format!("bin/{name}"), "busybox").with_context(wrong)?;
    }
    borrow(&mut archive)?;
    for name in ["reclaim", "reclaim-test-helper"] {
        archive.program(&inside(name), &read(built(programs, name)?)?).with_context(wrong)?;
    }
    let mut plan = Plan {
        binary: built(programs, "reclaim")?.to_owned(),
        share,
        runs: Vec::new(),
        probes: extent == Extent::Probes,
    };
    for program in programs {
        if let Some(run) = run_of(program, extent) {
            archive.program(&inside(&run.name), &read(&program.path)?).with_context(wrong)?;
            plan.runs.push(run);
        }
    }
    let plan = serde_json::to_vec(&plan).context("cannot write the plan of a machine")?;
    archive.program(&inside(PLAN), &plan).with_context(wrong)?;
    if let Some(place) = &kernel.modules {
        for name in MODULES {
            if let Some(module) = module(place, name, busybox)? {
                archive.program(&inside(&format!("{name}.ko")), &module).with_context(wrong)?;
            }
        }
    }
    archive.finish().with_context(wrong)?;
    Ok(())
}

fn inside(name: &str) -> String {
    format!("{PROGRAMS_PLACE}/{name}")
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// The program, not the test, that was built from a target.
fn built<'programs>(programs: &'programs [Program], target: &str) -> Result<&'programs Path> {
    let program = programs.iter().find(|program| !program.test && program.target == target);
    program.map(|program| &*program.path).with_context(|| format!("cargo built no {target}"))
}

/// Takes programs of this host along, with the libraries that their loader would load, where it looks by itself.
fn borrow<W: Write>(archive: &mut Archive<W>) -> Result<()> {
    let mut libraries = BTreeSet::new();
    for name in BORROWED {
        let path =
            find(name).with_context(|| format!("no {name} on PATH: run `cargo xtask setup`, which installs it"))?;
        archive.program(&format!("bin/{name}"), &read(&path)?).with_context(|| format!("cannot take {name} along"))?;
        // "libcap.so.2 => /lib/x86_64-linux-gnu/libcap.so.2 (0x…)", and the loader by its full path alone.
        let listed = output(Command::new("ldd").arg(&path))?;
        libraries.extend(listed.split_ascii_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from));
    }
    for library in libraries {
        let wrong = || format!("cannot take {} along", library.display());
        let file = library.file_name().with_context(wrong)?.to_string_lossy();
        let place = if library.starts_with("/lib64") { "lib64" } else { "lib" };
        archive.program(&format!("{place}/{file}"), &read(&library)?).with_context(wrong)?;
    }
    Ok(())
}

/// A file system's module, unpacked; None where the kernel has it built in or not at all.
fn module(kernel: &Path, name: &str, busybox: &Path) -> Result<Option<Vec<u8>>> {
    for modules in [kernel.join("lib/modules"), kernel.join("usr/lib/modules")] {
        if !modules.is_dir() {
            continue;
        }
        for release in files(&modules)? {
            for folder in ["fuse", "overlayfs"] {
                let plain = release.join("kernel/fs").join(folder).join(format!("{name}.ko"));
                if plain.is_file() {
                    return read(&plain).map(Some);
                }
                let packed: PathBuf = plain.with_extension("ko.xz");
                if packed.is_file() {
                    let mut unpack = Command::new(busybox);
                    let output = unpack.arg("xzcat").arg(&packed).output().context("cannot start busybox")?;
                    if !output.status.success() {
                        bail!("{} cannot be unpacked ({})", packed.display(), output.status);
                    }
                    return Ok(Some(output.stdout));
                }
            }
        }
    }
    Ok(None)
}
