//! Namespaces in which no task is.

use crate::{Actor, Host, OrFail as _, Request};
use std::fs;
use std::path::{Path, PathBuf};

/// A sandbox that has no process any more: its namespace is kept by something else in a process of another namespace.
#[derive(Debug)]
pub struct Kept {
    keeper: Actor,
    file: Option<PathBuf>,
    point: PathBuf,
    number: u64,
}

impl Kept {
    /// Kept by a namespace file that is bound in another namespace.
    #[track_caller]
    #[must_use]
    pub fn by_file(host: &Host, entry: &Path) -> Self {
        let mut kept = Self::prepare(host);
        let directory = host.mount_point();
        // The kernel refuses a namespace file on a mount that propagates to that namespace.
        kept.keeper.ask(&Request::Tmpfs(directory.clone().into()));
        let file = directory.join("kept");
        kept.keeper.ask(&Request::Touch(file.clone().into()));
        kept.keep(host, entry, |keeper, namespace| keeper.bind(namespace, &file));
        kept.file = Some(file);
        kept
    }

    /// Kept by an open descriptor alone.
    #[track_caller]
    #[must_use]
    pub fn by_descriptor(host: &Host, entry: &Path) -> Self {
        let mut kept = Self::prepare(host);
        kept.keep(host, entry, |keeper, namespace| {
            keeper.ask(&Request::Hold(namespace.into()));
        });
        kept
    }

    #[track_caller]
    fn prepare(host: &Host) -> Self {
        Self { keeper: host.sandbox(), file: None, point: host.mount_point(), number: 0 }
    }

    #[track_caller]
    fn keep(&mut self, host: &Host, entry: &Path, how: impl FnOnce(&mut Actor, &str)) {
        let mut sandbox = host.sandbox();
        sandbox.bind(entry, &self.point);
        self.number = sandbox.namespace();
        how(&mut self.keeper, &format!("/proc/{}/ns/mnt", sandbox.pid()));
        sandbox.kill();
    }

    /// The number of the namespace.
    #[must_use]
    pub fn namespace(&self) -> u64 {
        self.number
    }

    /// Enters the namespace for a moment and fails the test when the bind there does not work.
    #[track_caller]
    pub fn still_works(&self, entry: &Path) {
        let inside = match &self.file {
            Some(file) => PathBuf::from(format!("/proc/{}/root{}", self.keeper.pid(), file.display())),
            None => self.held_descriptor(),
        };
        let mut visitor = Actor::start();
        visitor.ask(&Request::JoinFile(inside.into()));
        visitor.still_works(&self.point, entry);
    }

    #[track_caller]
    fn held_descriptor(&self) -> PathBuf {
        fs::read_dir(format!("/proc/{}/fd", self.keeper.pid()))
            .or_fail("list descriptors")
            .flatten()
            .map(|entry| entry.path())
            .find(|path| fs::read_link(path).is_ok_and(|target| target.to_string_lossy().starts_with("mnt:")))
            .or_fail("the descriptor of a namespace")
    }

    /// Lets the namespace go.
    #[track_caller]
    pub fn release(mut self) {
        match &self.file {
            Some(file) => self.keeper.unmount(file),
            None => {
                self.keeper.ask(&Request::Release);
            }
        }
    }
}
