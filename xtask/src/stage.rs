//! A place that leaves nothing behind: a tmpfs in a private mount namespace, on a temporary directory.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, bail};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use tempfile::TempDir;

/// The place. Dropping it unmounts the tmpfs and removes the directory; the namespace ends with this process.
pub(crate) struct Stage {
    directory: TempDir,
    interrupted: Arc<AtomicBool>,
}

impl Stage {
    /// Moves this process into a private mount namespace and mounts a tmpfs with these options there. From here on
    /// an interrupt is noted and no longer ends the process, so that what was begun is taken down.
    ///
    /// # Errors
    /// The caller is not root, or a call fails.
    pub(crate) fn enter(options: &str) -> Result<Self> {
        let interrupted = Arc::new(AtomicBool::new(false));
        for signal in [SIGHUP, SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&interrupted)).context("cannot watch for an interrupt")?;
        }
        let directory = tempfile::Builder::new().prefix("reclaim-").tempdir().context("cannot make a directory")?;
        unshare(CloneFlags::CLONE_NEWNS).context("cannot enter a mount namespace of its own (unshare)")?;
        // Slave, not private: what the host mounts is still seen, and nothing gets out.
        let none = None::<&str>;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_SLAVE, none).context("cannot make / a slave mount")?;
        mount(Some("reclaim"), directory.path(), Some("tmpfs"), MsFlags::empty(), Some(options))
            .with_context(|| format!("cannot mount a tmpfs on {}", directory.path().display()))?;
        Ok(Self { directory, interrupted })
    }

    /// The mounted directory.
    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Makes a directory in it.
    ///
    /// # Errors
    /// The call fails.
    pub(crate) fn directory(&self, name: &str) -> Result<PathBuf> {
        let path = self.path().join(name);
        fs::create_dir(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(path)
    }

    /// Writes a file in it.
    ///
    /// # Errors
    /// The call fails.
    pub(crate) fn file(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.path().join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    /// Fails once the user has asked to stop.
    ///
    /// # Errors
    /// A signal has arrived.
    pub(crate) fn go_on(&self) -> Result<()> {
        if self.interrupted.load(Ordering::Relaxed) {
            bail!("interrupted; everything is taken down again");
        }
        Ok(())
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // Lazily: a sandbox that was just killed may take a moment to let go. The directory below it is empty by then.
        if let Err(error) = umount2(self.path(), MntFlags::MNT_DETACH) {
            let _ = writeln!(std::io::stderr(), "cannot unmount {}: {error}", self.path().display());
        }
    }
}
