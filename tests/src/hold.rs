//! `reclaim hold`, around real sandboxes.

use crate::process::wait_until;
use crate::{Actor, ConfigFile, OrFail as _, Reclaim, helper_program, program_on_path, set_mode};
use nix::sys::stat::Mode;
use nix::unistd::{Uid, chown, mkfifo};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A hold that is to be taken.
#[derive(Clone, Debug)]
pub struct Hold {
    reclaim: Reclaim,
    options: Vec<OsString>,
    denied: Vec<(PathBuf, bool)>,
}

impl Hold {
    /// One without sources and placeholders.
    #[must_use]
    pub fn by(reclaim: &Reclaim) -> Self {
        Self { reclaim: reclaim.clone(), options: Vec::new(), denied: Vec::new() }
    }

    /// Leases a directory.
    #[must_use]
    pub fn source(mut self, path: &Path) -> Self {
        self.options.extend(["--source".into(), path.into()]);
        self
    }

    /// Wants an empty file.
    #[must_use]
    pub fn file(mut self, path: &Path) -> Self {
        self.options.extend(["--placeholder".into(), path.into()]);
        self.denied.push((path.into(), false));
        self
    }

    /// Wants an empty directory.
    #[must_use]
    pub fn directory(mut self, path: &Path) -> Self {
        let mut text = path.as_os_str().to_owned();
        text.push("/");
        self.options.extend(["--placeholder".into(), text]);
        self.denied.push((path.into(), true));
        self
    }

    /// With a variable of the environment; see [`Reclaim::variable`].
    #[must_use]
    pub fn variable(mut self, name: &'static str, value: &str) -> Self {
        self.reclaim = self.reclaim.variable(name, value);
        self
    }

    /// `reclaim hold` around a command, by way of another program where `outer` names one.
    #[track_caller]
    #[must_use]
    pub fn command_through(&self, outer: &[&str], inner: &[OsString]) -> Command {
        let mut arguments: Vec<OsString> = vec!["hold".into()];
        arguments.extend(self.options.iter().cloned());
        arguments.push("--".into());
        arguments.extend(inner.iter().cloned());
        self.reclaim.command_through(outer, &arguments)
    }

    /// `reclaim hold` around a command.
    #[track_caller]
    #[must_use]
    pub fn command(&self, inner: &[&str]) -> Command {
        let inner: Vec<OsString> = inner.iter().map(|word| OsString::from(*word)).collect();
        self.command_through(&[], &inner)
    }

    /// Bubblewrap with the whole host below, in which nothing can be written to the placeholders, up to the command.
    #[must_use]
    pub fn bubblewrap(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> = vec![program_on_path("bwrap").into()];
        words.extend(["--die-with-parent", "--dev-bind", "/", "/"].map(OsString::from));
        for (path, is_directory) in &self.denied {
            if *is_directory {
                words.extend(["--tmpfs".into(), path.into(), "--remount-ro".into(), path.into()]);
            } else {
                words.extend(["--ro-bind".into(), "/dev/null".into(), path.into()]);
            }
        }
        words.push("--".into());
        words
    }

    /// A helper in a sandbox of bubblewrap that is held.
    #[track_caller]
    #[must_use]
    pub fn sandbox(&self) -> Actor {
        self.sandbox_through(&[])
    }

    /// The same, started by another program.
    #[track_caller]
    #[must_use]
    pub fn sandbox_through(&self, outer: &[&str]) -> Actor {
        let mut inner = self.bubblewrap();
        inner.extend([helper_program().into(), "serve".into()]);
        Actor::start_command(&mut self.command_through(outer, &inner))
    }
}

/// What is written down of holds that were not brought to their end.
#[track_caller]
#[must_use]
pub fn manifests(config: &ConfigFile) -> Vec<PathBuf> {
    let stores = fs::read_dir(config.holds()).into_iter().flatten().flatten();
    let files = stores.flat_map(|store| fs::read_dir(store.path()).or_fail("list a store"));
    let paths = files.map(|file| file.or_fail("list a store").path());
    paths.filter(|path| path.extension().is_some_and(|end| end == "json")).collect()
}

/// Waits until nothing is written down any more, and nothing else is left in the stores.
#[track_caller]
pub fn wait_for_no_manifest(config: &ConfigFile) {
    wait_until("every hold to be brought to its end", Duration::from_secs(60), || {
        let stores = fs::read_dir(config.holds()).into_iter().flatten().flatten();
        let left = stores.flat_map(|store| fs::read_dir(store.path()).into_iter().flatten());
        (left.count() == 0).then_some(())
    });
}

/// A manifest in the store of the user, written by hand, whose holder has ended.
#[track_caller]
pub fn forge(config: &ConfigFile, owner: u32, name: &str, text: &str) -> PathBuf {
    let store = config.holds().join(owner.to_string());
    fs::create_dir_all(&store).or_fail("make a store");
    set_mode(&store, 0o700);
    set_mode(&config.holds(), 0o1777);
    chown(&store, Some(Uid::from_raw(owner)), None).or_fail("chown a store");
    let file = store.join(format!("{name}.json"));
    fs::write(&file, text).or_fail("write a manifest");
    chown(&file, Some(Uid::from_raw(owner)), None).or_fail("chown a manifest");
    // Nobody has it locked, so its holder has ended.
    let pipe = file.with_extension("alive");
    if !pipe.exists() {
        mkfifo(&pipe, Mode::S_IRUSR | Mode::S_IWUSR).or_fail("mkfifo");
        chown(&pipe, Some(Uid::from_raw(owner)), None).or_fail("chown a pipe");
    }
    file
}

/// The text of a manifest that names a file as it is now.
#[track_caller]
#[must_use]
pub fn manifest_of(path: &Path) -> String {
    use nix::sys::stat::{major, minor};
    use std::os::unix::fs::MetadataExt as _;
    let directory = path.parent().or_fail("a directory");
    let stat = fs::metadata(path).or_fail("look");
    let nanoseconds = |time: std::time::SystemTime| {
        time.duration_since(std::time::UNIX_EPOCH).or_fail("a time after 1970").as_nanos()
    };
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").or_fail("read the boot id");
    serde_json::json!({
        "version": 1,
        "boot": boot.trim(),
        "holder": { "pid": 1, "pid_namespace": 1, "command": "x" },
        "placeholders": [{
            "directory": directory,
            "directory_inode": fs::metadata(directory).or_fail("look").ino(),
            "name": path.file_name().or_fail("a name").to_str(),
            "kind": if stat.is_dir() { "dir" } else { "file" },
            "print": {
                "device": [major(stat.dev()), minor(stat.dev())],
                "inode": stat.ino(),
                "birth": stat.created().ok().map(|time| nanoseconds(time) as i64),
                "modified": nanoseconds(stat.modified().or_fail("mtime")) as i64,
                "owner": stat.uid(),
            },
        }],
    })
    .to_string()
}
