//! `cargo xtask vm`: the same BPF object on other kernels, in virtual machines.
//!
//! A machine boots a kernel with a first file system made on the spot. Its first process is this program, statically
//! linked, which runs the tests of [`programs`] and `reclaim check` and ends with a verdict. No verdict is a failure.

mod archive;
mod guest;
mod machine;
mod programs;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use clap::Args;

use crate::command::{cargo, shown, target_directory};
use crate::setup::{self, machine as parts};
use archive::Archive;
pub(crate) use guest::run as run_guest;
use programs::{COMMANDS, LIBRARY, MODULES, PROGRAMS};

/// The target that is linked statically.
const TARGET: &str = "x86_64-unknown-linux-gnu";
/// The hidden subcommand that the first process of a machine is.
pub(crate) const GUEST: &str = "vm-guest";

/// Which kernels to boot.
#[derive(Args)]
pub(crate) struct Options {
    /// A release that Debian has (6.1, 6.12), or the path of a kernel image; all of Debian's when none is named
    kernels: Vec<String>,
}

/// How the tests of one machine went, as its last line says it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Verdict {
    passed: usize,
    failed: usize,
    skipped: usize,
}

impl fmt::Display for Verdict {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "verdict: {} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

impl Verdict {
    /// Reads what [`fmt::Display`] writes; None for any other line.
    fn read(line: &str) -> Option<Self> {
        let mut counts = line.trim().strip_prefix("verdict: ")?.split(", ");
        let mut count = |word: &str| counts.next()?.strip_suffix(word)?.trim().parse().ok();
        let verdict = Self { passed: count("passed")?, failed: count("failed")?, skipped: count("skipped")? };
        counts.next().is_none().then_some(verdict)
    }

    /// Whether everything of the table ran or was skipped with a reason, and nothing failed.
    fn is_good(self) -> bool {
        let all = PROGRAMS.iter().map(|program| program.tests.len()).sum::<usize>() + 1;
        self.failed == 0 && self.passed > self.skipped && self.passed + self.skipped == all
    }
}

/// A kernel to boot, and where its modules are.
struct Kernel {
    name: String,
    image: PathBuf,
    modules: Option<PathBuf>,
}

/// Builds, boots one kernel after the other and tells how each went.
///
/// # Errors
/// A step fails, or a machine gives no verdict or a bad one.
pub(crate) fn run(options: &Options) -> Result<()> {
    let named = if options.kernels.is_empty() {
        parts::kernels().map(str::to_owned).collect()
    } else {
        options.kernels.clone()
    };
    let kernels = named.iter().map(|name| kernel(name)).collect::<Result<Vec<_>>>()?;
    let (qemu, busybox) = (parts::qemu()?, parts::busybox()?);
    let target = target_directory()?.join("vm");
    let programs = build(&target)?;
    let mut failed = Vec::new();
    for kernel in &kernels {
        let initial = target.join(format!("first-{}.cpio", kernel.name.replace('/', "_")));
        write_initial(&initial, kernel, &programs, &busybox)?;
        let outcome = machine::boot(&qemu, &kernel.image, &initial, &kernel.name);
        fs::remove_file(&initial).with_context(|| format!("cannot remove {}", initial.display()))?;
        match outcome {
            Ok((verdict, time)) => {
                eprintln!("vm: {}: {verdict}, in {:.0} s", kernel.name, time.as_secs_f64());
                if !verdict.is_good() {
                    failed.push(kernel.name.clone());
                }
            }
            Err(error) => {
                eprintln!("vm: {}: {error:#}", kernel.name);
                failed.push(kernel.name.clone());
            }
        }
    }
    if !failed.is_empty() {
        bail!("the tests failed on {}", failed.join(", "));
    }
    Ok(())
}

/// Finds a kernel by its release or path.
fn kernel(name: &str) -> Result<Kernel> {
    if let Some(place) = parts::kernel(name)? {
        let boot = place.join("boot");
        let image = files(&boot)?
            .into_iter()
            .find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz")))
            .with_context(|| format!("no kernel in {}", boot.display()))?;
        return Ok(Kernel { name: name.to_owned(), image, modules: Some(place) });
    }
    let image = PathBuf::from(name);
    if !image.is_file() {
        let known: Vec<_> = parts::kernels().collect();
        bail!("{name} is no kernel image, and none of {}", known.join(", "));
    }
    Ok(Kernel { name: name.to_owned(), image, modules: None })
}

/// Builds everything that runs inside a machine. The files, by the name of the target and whether it is a test.
fn build(target: &Path) -> Result<BTreeMap<(String, bool), PathBuf>> {
    setup::run(setup::Verbosity::Quiet)?;
    eprintln!("vm: building statically linked tests");
    let mut programs = BTreeMap::new();
    let tests =
        PROGRAMS.iter().filter(|program| program.target != LIBRARY).flat_map(|program| ["--test", program.target]);
    let tests: Vec<&str> =
        ["test", "--no-run", "--package", "reclaim-user", "--lib"].into_iter().chain(tests).collect();
    let binaries = ["build", "--package", "reclaim-user", "--package", "xtask", "--bins"];
    for arguments in [&binaries[..], &tests] {
        let mut build = cargo();
        build
            .args(arguments)
            .args(["--message-format=json-render-diagnostics", "--target", TARGET, "--target-dir"])
            .arg(target)
            .env("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS", "-C target-feature=+crt-static")
            // Small enough for a first file system, and quick enough for an emulated processor.
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            .env("CARGO_PROFILE_DEV_OPT_LEVEL", "1")
            .env("CARGO_PROFILE_DEV_STRIP", "debuginfo")
            .stderr(Stdio::inherit());
        let output = build.output().with_context(|| format!("cannot start {}", shown(&build)))?;
        if !output.status.success() {
            bail!("what is to run in the machine does not build");
        }
        let text = String::from_utf8(output.stdout).context("cargo's messages are not UTF-8")?;
        for line in text.lines() {
            let message: serde_json::Value = serde_json::from_str(line).context("cargo's message is not JSON")?;
            let (Some(path), Some(test)) = (message["executable"].as_str(), message["profile"]["test"].as_bool())
            else {
                continue;
            };
            let name = message["target"]["name"].as_str().context("cargo names no target")?;
            programs.insert((name.to_owned(), test), PathBuf::from(path));
        }
    }
    Ok(programs)
}

/// Writes the first file system of a machine.
fn write_initial(
    path: &Path,
    kernel: &Kernel,
    programs: &BTreeMap<(String, bool), PathBuf>,
    busybox: &Path,
) -> Result<()> {
    let read = |path: &Path| fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    let built = |name: &str, test: bool| {
        let path = programs.get(&(name.to_owned(), test));
        read(path.with_context(|| format!("cargo built no {name}"))?)
    };
    let wrong = || format!("cannot write {}", path.display());
    let output = fs::File::create(path).with_context(wrong)?;
    let mut archive = Archive::new(std::io::BufWriter::new(output));
    for place in guest::PLACES {
        archive.directory(place).with_context(wrong)?;
    }
    archive.program("init", &built("xtask", false)?).with_context(wrong)?;
    archive.program("bin/busybox", &read(busybox)?).with_context(wrong)?;
    for name in COMMANDS {
        archive.link(&format!("bin/{name}"), "busybox").with_context(wrong)?;
    }
    let inside = |name: &str| format!("{}/{name}", guest::PROGRAMS_PLACE);
    archive.program(&inside("reclaim"), &built("reclaim", false)?).with_context(wrong)?;
    for program in &PROGRAMS {
        archive.program(&inside(program.name), &built(program.target, true)?).with_context(wrong)?;
    }
    if let Some(place) = &kernel.modules {
        for name in MODULES {
            if let Some(module) = module(place, name)? {
                archive.program(&inside(&format!("{name}.ko")), &module).with_context(wrong)?;
            }
        }
    }
    archive.finish().with_context(wrong)?;
    Ok(())
}

/// A file system's module, unpacked; None where the kernel has it built in or not at all.
fn module(kernel: &Path, name: &str) -> Result<Option<Vec<u8>>> {
    for modules in [kernel.join("lib/modules"), kernel.join("usr/lib/modules")] {
        if !modules.is_dir() {
            continue;
        }
        for release in files(&modules)? {
            for folder in ["fuse", "overlayfs"] {
                let plain = release.join("kernel/fs").join(folder).join(format!("{name}.ko"));
                if plain.is_file() {
                    return fs::read(&plain).map(Some).with_context(|| format!("cannot read {}", plain.display()));
                }
                let packed = plain.with_extension("ko.xz");
                if packed.is_file() {
                    let mut xz = Command::new("xz");
                    let output = xz.arg("-dc").arg(&packed).output().context("cannot start xz: install xz-utils")?;
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

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let wrong = || format!("cannot list {}", folder.display());
    let entries = fs::read_dir(folder).with_context(wrong)?;
    entries.map(|entry| Ok(entry.with_context(wrong)?.path())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_reads_back_and_nothing_else_is_one() {
        let verdict = Verdict { passed: 7, failed: 0, skipped: 2 };
        assert_eq!(Verdict::read(&format!("{verdict}\r")), Some(verdict));
        assert_eq!(Verdict::read("verdict: 7 passed, 0 failed"), None);
        assert_eq!(Verdict::read("verdict: 7 passed, 0 failed, 2 skipped, 1 odd"), None);
    }

    #[test]
    fn a_test_that_did_not_run_is_no_success() {
        let all = PROGRAMS.iter().map(|program| program.tests.len()).sum::<usize>() + 1;
        assert!(Verdict { passed: all, failed: 0, skipped: 0 }.is_good());
        assert!(!Verdict { passed: all - 1, failed: 0, skipped: 0 }.is_good());
        assert!(!Verdict { passed: all, failed: 1, skipped: 0 }.is_good());
        assert!(!Verdict::default().is_good());
    }
}
