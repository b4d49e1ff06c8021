//! `cargo xtask vm`: the tiers on other kernels, in virtual machines.
//!
//! A machine boots a kernel with a first file system made on the spot. Its first process is this program, statically
//! linked, which runs the test programs and `reclaim check` and ends with a verdict. No verdict is a failure.

mod archive;
mod guest;
mod image;
mod machine;
mod matrix;
mod programs;
mod verdict;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::Args;

use crate::command::target_directory;
use crate::programs::{self as workspace, Program};
use crate::setup::machine as parts;
pub(crate) use guest::run as run_guest;
use machine::Machine;
use programs::Extent;

/// The hidden subcommand that the first process of a machine is.
pub(crate) const GUEST: &str = "vm-guest";
/// The share of their full size that tests of endurance have in an emulated machine, in percent.
const SHARE: u32 = 10;

/// Which kernels to boot.
#[derive(Args)]
pub(crate) struct Options {
    /// A release that Debian has (6.1, 6.12), or the path of a kernel image; all of Debian's when none is named
    kernels: Vec<String>,
    /// Only test programs whose name contains this
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// The share of their full size, in percent, that tests of endurance have
    #[arg(long, default_value_t = SHARE, value_parser = clap::value_parser!(u32).range(1..=100))]
    share: u32,
    /// Every test that asks something of the kernel, which takes the better part of an hour; else those of what another
    /// kernel could do otherwise
    #[arg(long)]
    all: bool,
    /// Measure what the probes cost there, by every rung, instead of running tests
    #[arg(long, conflicts_with_all = ["all", "only"])]
    probes: bool,
    /// Write what the kernels give into the table of the README
    #[arg(long)]
    write_matrix: bool,
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
    let Options { kernels, only, share, all, probes, write_matrix } = options;
    let extent = match (all, probes) {
        (_, true) => Extent::Probes,
        (true, false) => Extent::Everything,
        (false, false) => Extent::Kernel,
    };
    eprintln!("vm: building the tests");
    let mut built = workspace::build()?;
    if let Some(part) = only {
        built.retain(|program| !program.test || program.target.contains(part));
    }
    let named = if kernels.is_empty() { parts::kernels().map(str::to_owned).collect() } else { kernels.clone() };
    if extent != Extent::Probes && !built.iter().any(|program| programs::run_of(program, extent).is_some()) {
        bail!("no test that is run in machines is called so; `--all` has more of them");
    }
    let machines = run_in(&named, &built, (extent, *share), &mut io::stderr())?;
    if *write_matrix { matrix::write(&machines) } else { matrix::compare(&machines) }
}

/// Whether machines can be had here at all; else why not.
pub(crate) fn out_of_reach() -> Option<String> {
    parts::out_of_reach()
}

/// Boots Debian's kernels and runs the tests there, telling about it in the given place.
///
/// # Errors
/// As [`run`].
pub(crate) fn run_all(built: &[Program], out: &mut (dyn io::Write + Send)) -> Result<()> {
    let named: Vec<String> = parts::kernels().map(str::to_owned).collect();
    matrix::compare(&run_in(&named, built, (Extent::Evidence, SHARE), out)?)
}

fn run_in(
    named: &[String],
    built: &[Program],
    (extent, share): (Extent, u32),
    out: &mut (dyn io::Write + Send),
) -> Result<Vec<Machine>> {
    let kernels = named.iter().map(|name| kernel(name)).collect::<Result<Vec<_>>>()?;
    let (qemu, busybox) = (parts::qemu()?, parts::busybox()?);
    let target = target_directory()?;
    let mut machines = Vec::new();
    let mut failed = Vec::new();
    for kernel in &kernels {
        let initial = target.join(format!("first-{}-{}.cpio", kernel.name.replace('/', "_"), std::process::id()));
        image::write(&initial, kernel, built, &busybox, (extent, share))?;
        let outcome = machine::boot(&qemu, &kernel.image, &initial, &kernel.name, out);
        fs::remove_file(&initial).with_context(|| format!("cannot remove {}", initial.display()))?;
        let told = match outcome {
            Ok(machine) => {
                if !machine.verdict.is_good() {
                    failed.push(kernel.name.clone());
                }
                let told = format!("{}, in {:.0} s", machine.verdict, machine.took.as_secs_f64());
                machines.push(machine);
                told
            }
            Err(error) => {
                failed.push(kernel.name.clone());
                format!("{error:#}")
            }
        };
        writeln!(out, "vm: {}: {told}", kernel.name).context("cannot tell how a machine went")?;
    }
    if !failed.is_empty() {
        bail!("the tests failed on {}", failed.join(", "));
    }
    Ok(machines)
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

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let wrong = || format!("cannot list {}", folder.display());
    let entries = fs::read_dir(folder).with_context(wrong)?;
    entries.map(|entry| Ok(entry.with_context(wrong)?.path())).collect()
}
