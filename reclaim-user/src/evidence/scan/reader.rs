//! Reading one namespace after another from inside, by a thread of its own.

use super::ScanOptions;
use super::table::{Table, count};
use crate::evidence::layers::View;
use crate::evidence::procfs::{Procfs, inode};
use crate::model::id::NamespaceId;
use crate::sys::mount_list::Answer;
use crate::sys::namespace::{self, NamespaceInfo};
use nix::errno::Errno;
use nix::sched::{CloneFlags, setns, unshare};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// How often a table is read when it changes under the reader's eyes.
const ATTEMPTS: u32 = 3;

/// A namespace could not be read from its own root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unread;

/// Belongs to a helper thread, which it moves from namespace to namespace. Dropping it does not bring the thread back;
/// the thread is meant to end.
pub(super) struct Reader<'a> {
    procfs: &'a Procfs,
    options: ScanOptions,
    home: OwnedFd,
    /// The thread is, or may be, in another namespace than its home.
    is_away: bool,
    text: Vec<u8>,
    answer: Answer,
}

impl<'a> Reader<'a> {
    /// Makes the calling thread ready to move: its root and working directory become its own.
    pub(super) fn start(procfs: &'a Procfs, options: ScanOptions) -> Result<Self, super::ScanError> {
        let file = "thread-self/ns/mnt";
        let home = procfs.open_file(file).map_err(|source| super::ScanError::Own { file, source })?;
        let reader = Self::at(procfs, options, home);
        unshare(CloneFlags::CLONE_FS).map_err(|errno| super::ScanError::Helper(errno.into()))?;
        Ok(reader)
    }

    /// What makes a thread ready that the calling one starts, to be called on that: it begins where this one is, and its
    /// home is the same. None when there is no descriptor left.
    pub(super) fn another(&self) -> Option<impl FnOnce() -> nix::Result<Self> + Send + use<'a>> {
        let (procfs, options, home) = (self.procfs, self.options, self.home.try_clone().ok()?);
        Some(move || {
            unshare(CloneFlags::CLONE_FS)?;
            let mut reader = Self::at(procfs, options, home);
            reader.is_away = true;
            Ok(reader)
        })
    }

    fn at(procfs: &'a Procfs, options: ScanOptions, home: OwnedFd) -> Self {
        Self { procfs, options, home, is_away: false, text: Vec::new(), answer: Answer::default() }
    }

    pub(super) fn procfs(&self) -> &'a Procfs {
        self.procfs
    }

    /// The namespace that the thread came from.
    pub(super) fn home(&self) -> &OwnedFd {
        &self.home
    }

    /// Lets go of the namespace that was read last. Joining a thread does not wait until the kernel has done that.
    pub(super) fn leave(&mut self) {
        match setns(&self.home, CloneFlags::CLONE_NEWNS) {
            Ok(()) => self.is_away = false,
            Err(errno) => tracing::debug!(%errno, "the scanning thread could not return before its end"),
        }
    }

    /// Opens the mount namespace of a task, given that it is the one expected.
    pub(super) fn open_of_task(&self, task: u32, expected: NamespaceId) -> nix::Result<OwnedFd> {
        let namespace = self.procfs.open_file(&format!("{task}/ns/mnt"))?;
        if inode(&namespace)? == expected.0 { Ok(namespace) } else { Err(Errno::ESRCH) }
    }

    /// The view from the namespace that was read last.
    pub(super) fn view<'b>(&'b self, table: &'b Table) -> View<'b> {
        View { procfs: self.procfs, mounts: &table.mounts, stalling: &table.stalling }
    }

    /// Reads a namespace from its own root, and leaves the thread in it; from home where it cannot be entered.
    pub(super) fn read(&mut self, namespace: impl AsFd) -> Result<Table, Unread> {
        let namespace = namespace.as_fd();
        if !self.options.use_entering || setns(namespace, CloneFlags::CLONE_NEWNS).is_err() {
            return self.read_from_outside(namespace::info(namespace).ok());
        }
        self.is_away = true;
        for _ in 0..ATTEMPTS {
            let before = namespace::info(namespace).ok();
            let table = self.read_text("thread-self").ok_or(Unread)?;
            let Some(before) = before else {
                // Nothing tells whether the root covers other mounts.
                return Ok(table);
            };
            let after = namespace::info(namespace).map_err(|_| Unread)?;
            let shown = table.below_top();
            // Some kernels count the top of a namespace and some do not, so one more than shown may be all there is.
            if shown >= before.mounts.max(after.mounts) as usize {
                return Ok(table);
            }
            if !self.options.use_mount_list {
                continue;
            }
            match count(before.id, &mut self.answer) {
                Ok(exact) if exact == shown => return Ok(table),
                Ok(exact) if exact < shown => {}
                // Mounts that the root covers, or one that came meanwhile: the list has them all.
                Ok(_) => return self.list_all(namespace, before.id),
                Err(_) => {}
            }
        }
        Err(Unread)
    }

    /// Lists a namespace whose root covers other mounts. From outside the kernel looks from below what covers, and can
    /// mostly tell where everything is mounted; where it cannot, what is seen from inside counts.
    fn list_all(&mut self, namespace: BorrowedFd<'_>, id: u64) -> Result<Table, Unread> {
        self.leave();
        let outside = Table::list(id, false, &mut self.answer);
        setns(namespace, CloneFlags::CLONE_NEWNS).map_err(|_| Unread)?;
        self.is_away = true;
        match outside {
            Ok(table) if table.sees_all_points() => Ok(table),
            _ => Table::list(id, true, &mut self.answer).map_err(|_| Unread),
        }
    }

    /// Reads the mountinfo of a task or thread: what can be reached from its root.
    pub(super) fn read_text(&mut self, task: &str) -> Option<Table> {
        self.procfs.read(&format!("{task}/mountinfo"), &mut self.text).ok()?;
        match Table::parse(&self.text) {
            Ok(table) => Some(table),
            Err(error) => {
                tracing::warn!(task, %error, "a mount table was not understood");
                None
            }
        }
    }

    fn read_from_outside(&mut self, info: Option<NamespaceInfo>) -> Result<Table, Unread> {
        let info = info.filter(|_| self.options.use_mount_list).ok_or(Unread)?;
        // Layers are looked up where the thread is, and what they find in a third namespace means nothing.
        if self.is_away {
            self.leave();
        }
        if self.is_away {
            return Err(Unread);
        }
        Table::list(info.id, false, &mut self.answer).map_err(|_| Unread)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    /// Ends with the test, however that ends.
    struct Sandbox(Child);

    impl Drop for Sandbox {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn a_reader_comes_home_and_only_its_own_thread_moves() {
        let procfs = Procfs::open().expect("procfs is mounted");
        let sandbox = Command::new("unshare").args(["-m", "sleep", "1000"]).stdin(Stdio::null()).spawn().expect("root");
        let sandbox = Sandbox(sandbox);
        let link = |task: &str| procfs.namespace_link(&format!("{task}/ns/mnt"), "mnt");
        let own = link("thread-self").expect("own namespace");
        let task = sandbox.0.id().to_string();
        while link(&task) == Ok(own) {
            std::thread::yield_now();
        }
        let theirs = NamespaceId(link(&task).expect("it lives"));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut reader = Reader::start(&procfs, ScanOptions::default()).expect("root");
                let open = reader.open_of_task(sandbox.0.id(), theirs).expect("root");
                assert_eq!(reader.open_of_task(sandbox.0.id(), NamespaceId(own)).err(), Some(Errno::ESRCH));
                assert!(reader.read(&open).is_ok_and(|table| !table.mounts.is_empty()));
                assert_eq!(link("thread-self"), Ok(theirs.0));
                if namespace::info(&open).is_ok() {
                    // What cannot be entered is read from home, where layers mean what they say.
                    reader.options.use_entering = false;
                    assert!(reader.read(&open).is_ok_and(|table| !table.mounts.is_empty()));
                    assert_eq!(link("thread-self"), Ok(own));
                } else {
                    eprintln!("skip: before 6.8 nothing is read from outside");
                }
                reader.options.use_entering = true;
                assert!(reader.read(&open).is_ok());
                let another = reader.another().expect("a descriptor");
                let other_thread = scope.spawn(|| {
                    let mut reader = another().expect("root");
                    assert_eq!(link("thread-self"), Ok(theirs.0));
                    reader.leave();
                    assert_eq!(link("thread-self"), Ok(own));
                });
                assert!(other_thread.join().is_ok());
                reader.leave();
                assert_eq!(link("thread-self"), Ok(own));
            });
        });
        assert_eq!(link("thread-self"), Ok(own));
    }
}
