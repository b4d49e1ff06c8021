//! Removing stale empty directories on a tmpfs: the whole protocol against a bare deletion.

use std::cell::Cell;
use std::ffi::CString;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nix::dir::Dir;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::Size;
use super::measure::{Contender, compare, time};
use crate::command;
use crate::launcher::DeadLaunchers;
use crate::stage::Stage;

/// The age fence is on, as it is in service, and short so that a round does not wait long.
const MINIMUM_AGE: Duration = Duration::from_secs(1);

/// Measures and prints.
pub(super) fn run(binary: &Path, size: &Size) -> Result<()> {
    let stage = Stage::enter("mode=0755,nr_inodes=0,size=90%")?;
    let made = Cell::new(0_u32);
    let fresh = || -> Result<PathBuf> {
        stage.go_on()?;
        made.set(made.get() + 1);
        let root = stage.directory(&format!("root-{}", made.get()))?;
        fill(&root, size.entries)?;
        thread::sleep(MINIMUM_AGE + Duration::from_millis(100));
        Ok(root)
    };
    let sweep = |leases: bool| {
        let root = fresh()?;
        let config = stage.file("reclaim.toml", &configuration(&stage, &root, leases))?;
        let mut sweep = Command::new(binary);
        sweep.arg("sweep").arg("--config").arg(&config).arg("--json").stdout(Stdio::null());
        finish(&root, time(|| command::run(&mut sweep))?)
    };
    let find = || {
        let root = fresh()?;
        let mut find = Command::new("find");
        find.arg(&root).args(["-mindepth", "1", "-maxdepth", "1", "-type", "d", "-empty", "-delete"]);
        finish(&root, time(|| command::run(&mut find))?)
    };
    let bare = || {
        let root = fresh()?;
        finish(&root, time(|| remove_all(&root))?)
    };
    compare(
        &format!("Removing {} stale empty directories on a tmpfs", size.entries),
        size.rounds,
        u64::from(size.entries),
        vec![
            Contender { name: "reclaim sweep (all fences, whole protocol)", work: Box::new(|| sweep(true)) },
            Contender { name: "the same with leases = false", work: Box::new(|| sweep(false)) },
            Contender { name: "find -mindepth 1 ... -empty -delete", work: Box::new(find) },
            Contender { name: "list, then unlinkat each (one thread)", work: Box::new(bare) },
        ],
    )
}

fn fill(root: &Path, entries: u32) -> Result<()> {
    let mut builder = DirBuilder::new();
    builder.mode(0o700);
    let mut launchers = DeadLaunchers::new()?;
    for number in 0..entries {
        let name = format!("acme_sb_{}_{:08x}", launchers.next()?, number.wrapping_mul(0x9e37_79b1));
        builder.create(root.join(&name)).with_context(|| format!("cannot create {name}"))?;
    }
    Ok(())
}

/// The loop that nothing can be faster than with one thread: names first, then each by descriptor.
fn remove_all(root: &Path) -> Result<()> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let mut directory =
        Dir::open(root, flags, Mode::empty()).with_context(|| format!("cannot open {}", root.display()))?;
    let mut names: Vec<CString> = Vec::new();
    for entry in directory.iter() {
        let entry = entry.with_context(|| format!("cannot list {}", root.display()))?;
        if ![c".", c".."].contains(&entry.file_name()) {
            names.push(entry.file_name().to_owned());
        }
    }
    for name in &names {
        unlinkat(&directory, name.as_c_str(), UnlinkatFlags::RemoveDir)
            .with_context(|| format!("cannot remove {}", name.to_string_lossy()))?;
    }
    Ok(())
}

/// Makes sure that the work was done, and clears away what the contender keeps for itself.
fn finish(root: &Path, took: Duration) -> Result<Duration> {
    let entries = fs::read_dir(root).with_context(|| format!("cannot list {}", root.display()))?;
    let left = entries.flatten().filter(|entry| entry.file_name() != ".reclaim").count();
    if left > 0 {
        bail!("{left} directories are left");
    }
    fs::remove_dir_all(root).with_context(|| format!("cannot remove {}", root.display()))?;
    Ok(took)
}

fn configuration(stage: &Stage, root: &Path, leases: bool) -> String {
    let stage = stage.path().display();
    format!(
        "[service]\nbudget = \"10m\"\nstate_dir = '{stage}/state'\nsocket = '{stage}/control.sock'\n\n\
         [[root]]\nname = \"bench\"\npath = '{}'\nowner = \"0\"\nmatch = '^acme_sb_(?<pid>\\d+)_[0-9a-f]{{8}}$'\n\
         mode = \"0700\"\nleases = {leases}\nmin_age = \"{}s\"\n",
        root.display(),
        MINIMUM_AGE.as_secs(),
    )
}
