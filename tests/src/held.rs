//! Mounts that no mount table shows, because a process alone keeps them.

use crate::{Actor, Host, OrFail as _, Request};
use std::path::{Path, PathBuf};

/// A mount of an entry that is in no namespace, kept by a process.
#[derive(Debug)]
pub struct Held {
    keeper: Actor,
    /// What leads into the mount, for the process that keeps it.
    inside: PathBuf,
}

impl Held {
    /// A tree that was never mounted anywhere (`open_tree` with `OPEN_TREE_CLONE`), kept by its descriptor.
    #[track_caller]
    #[must_use]
    pub fn tree(host: &Host, entry: &Path) -> Self {
        let mut keeper = host.sandbox();
        let descriptor = keeper.ask(&Request::HoldTree(entry.into()));
        Self { keeper, inside: inside(&descriptor) }
    }

    /// Unmounted while busy, kept by a descriptor of a directory in it.
    #[track_caller]
    #[must_use]
    pub fn by_descriptor(host: &Host, entry: &Path) -> Self {
        let (mut keeper, point) = host.sandbox_with(entry);
        let descriptor = keeper.ask(&Request::Hold(point.clone().into()));
        keeper.ask(&Request::UnmountLazily(point.into()));
        Self { keeper, inside: inside(&descriptor) }
    }

    /// Unmounted while busy, kept by a working directory in it.
    #[track_caller]
    #[must_use]
    pub fn by_working_directory(host: &Host, entry: &Path) -> Self {
        let (mut keeper, point) = host.sandbox_with(entry);
        keeper.ask(&Request::ChangeDir(point.clone().into()));
        keeper.ask(&Request::UnmountLazily(point.into()));
        Self { keeper, inside: PathBuf::from(".") }
    }

    /// The process that keeps it.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.keeper.pid()
    }

    /// Fails the test when the mount does not work any more.
    #[track_caller]
    pub fn still_works(&mut self, entry: &Path) {
        self.keeper.still_works(&self.inside, entry);
    }

    /// Lets it go; the process lives on.
    #[track_caller]
    #[must_use]
    pub fn release(self) -> Actor {
        let Self { mut keeper, inside: _ } = self;
        keeper.ask(&Request::Release);
        keeper.attempt(&Request::ChangeDir("/".into())).or_fail("leave the mount");
        keeper
    }
}

fn inside(descriptor: &str) -> PathBuf {
    Path::new("/proc/self/fd").join(descriptor)
}
