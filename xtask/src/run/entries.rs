//! What the demonstration puts into its root: entries that may go and entries that each have a reason to stay.

use std::fmt::Display;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::launcher::DeadLaunchers;

/// Entries of each kind that stay for another reason than a pin.
const OF_EACH: u32 = 3;
/// The root's owner is 0; these entries belong to somebody else.
const STRANGER: u32 = 1_000;

/// Entries that stay, with the reason that the report must give.
pub(super) struct Kept {
    /// The reason's name in the report.
    pub(super) reason: &'static str,
    /// Their paths.
    pub(super) paths: Vec<PathBuf>,
}

/// Makes entries, each under a name of its own.
pub(super) struct Maker {
    root: PathBuf,
    launchers: DeadLaunchers,
    count: u32,
}

impl Maker {
    /// For this root.
    ///
    /// # Errors
    /// The kernel does not say how large a process id can be.
    pub(super) fn new(root: &Path) -> Result<Self> {
        Ok(Self { root: root.to_owned(), launchers: DeadLaunchers::new()?, count: 0 })
    }

    /// The next name, as a launcher would give it: its own process id, and a number.
    fn next(&mut self, pid: impl Display) -> PathBuf {
        self.count += 1;
        // Multiplying by an odd number gives each count another value, scattered as a launcher's would be.
        self.root.join(format!("acme_sb_{pid}_{:08x}", self.count.wrapping_mul(0x9e37_79b1)))
    }

    /// A directory like that of a launcher that has died.
    ///
    /// # Errors
    /// A call fails.
    pub(super) fn dead(&mut self) -> Result<PathBuf> {
        let launcher = self.launchers.next()?;
        let path = self.next(launcher);
        directory(&path)?;
        Ok(path)
    }

    /// `count` of them.
    ///
    /// # Errors
    /// A call fails.
    pub(super) fn stale(&mut self, count: u32) -> Result<Vec<PathBuf>> {
        (0..count).map(|_| self.dead()).collect()
    }

    /// Entries that the fences hold back: each kind differs from a stale entry in one thing.
    ///
    /// # Errors
    /// A call fails.
    pub(super) fn fenced(&mut self) -> Result<Vec<Kept>> {
        let mut groups = Vec::new();
        let mut group = |reason, make: &mut dyn FnMut(&mut Self) -> Result<PathBuf>| -> Result<()> {
            let paths = (0..OF_EACH).map(|_| make(self)).collect::<Result<_>>()?;
            groups.push(Kept { reason, paths });
            Ok(())
        };
        group("pid-alive", &mut |maker| {
            let path = maker.next(std::process::id());
            directory(&path)?;
            Ok(path)
        })?;
        group("mode", &mut |maker| {
            let path = maker.dead()?;
            set_mode(&path, 0o755)?;
            Ok(path)
        })?;
        group("owner", &mut |maker| {
            let path = maker.dead()?;
            chown(&path, Some(STRANGER), None).with_context(|| format!("cannot give {} away", path.display()))?;
            Ok(path)
        })?;
        group("kind", &mut |maker| {
            let launcher = maker.launchers.next()?;
            let path = maker.next(launcher);
            File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
            set_mode(&path, 0o700)?;
            Ok(path)
        })?;
        group("name", &mut |maker| {
            maker.count += 1;
            let path = maker.root.join(format!("somebody-elses-{}", maker.count));
            directory(&path)?;
            Ok(path)
        })?;
        group("not-empty", &mut |maker| {
            let path = maker.dead()?;
            fs::write(path.join("result.txt"), "worth keeping\n")
                .with_context(|| format!("cannot write below {}", path.display()))?;
            Ok(path)
        })?;
        Ok(groups)
    }
}

fn directory(path: &Path) -> Result<()> {
    fs::create_dir(path).with_context(|| format!("cannot create {}", path.display()))?;
    set_mode(path, 0o700)
}

fn set_mode(path: &Path, mode: u32) -> Result<()> {
    fs::set_permissions(path, Permissions::from_mode(mode))
        .with_context(|| format!("cannot set the mode of {}", path.display()))
}
