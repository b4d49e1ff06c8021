//! Every task and thread of the host, once, and the mount namespace of each.

use super::procfs::Procfs;
use crate::model::coverage::Holder;
use crate::model::id::NamespaceId;
use crate::sys::namespace;
use nix::errno::Errno;
use std::collections::HashMap;

/// What one listing of procfs found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tasks {
    /// Threads by mount namespace: leaders, and those threads that are elsewhere than their leader.
    pub by_namespace: HashMap<NamespaceId, Vec<u32>>,
    /// Tasks whose namespace may not be asked for.
    pub unreadable: Vec<u32>,
    /// For each process one thread that is alive.
    pub processes: Vec<u32>,
    /// Processes listed.
    pub tasks: u64,
    /// Threads listed.
    pub threads: u64,
    /// Tasks that went between being listed and being read.
    pub departed: u64,
}

enum Link {
    In(NamespaceId),
    /// It has ended and waits for its parent: it is in no namespace any more.
    Zombie,
    Gone,
    Refused,
}

/// Lists every task. Threads are told apart from their leader only where a process has several.
///
/// # Errors
/// When procfs cannot be listed.
pub fn list(procfs: &Procfs) -> nix::Result<Tasks> {
    let mut found = Tasks::default();
    for process in procfs.numbers(".")? {
        list_process(procfs, process, &mut found);
    }
    Ok(found)
}

fn list_process(procfs: &Procfs, process: u32, found: &mut Tasks) {
    let leader = link(procfs, process);
    if matches!(leader, Link::Gone) {
        found.departed += 1;
        return;
    }
    found.tasks += 1;
    found.threads += 1;
    let own = match leader {
        Link::In(namespace) => {
            found.by_namespace.entry(namespace).or_default().push(process);
            Some(namespace)
        }
        Link::Refused => {
            found.unreadable.push(process);
            None
        }
        Link::Zombie | Link::Gone => None,
    };
    let alive = !matches!(leader, Link::Zombie);
    if alive {
        found.processes.push(process);
    }
    // The link count of the directory is two more than the number of threads: one call instead of a listing.
    match procfs.status(&format!("{process}/task")) {
        Ok(status) if status.st_nlink <= 3 => return,
        Ok(_) => {}
        Err(_) => return found.departed += 1,
    }
    let Ok(threads) = procfs.numbers(&format!("{process}/task")) else {
        return found.departed += 1;
    };
    let mut living_thread = None;
    for thread in threads.into_iter().filter(|thread| *thread != process) {
        found.threads += 1;
        match link(procfs, thread) {
            Link::In(namespace) => {
                living_thread.get_or_insert(thread);
                if Some(namespace) != own {
                    found.by_namespace.entry(namespace).or_default().push(thread);
                }
            }
            // Threads share their leader's permissions, so an unreadable process counts once.
            Link::Refused if own.is_none() && alive => {}
            Link::Refused => found.unreadable.push(thread),
            Link::Zombie => {}
            Link::Gone => found.departed += 1,
        }
    }
    if !alive {
        found.processes.extend(living_thread);
    }
}

fn link(procfs: &Procfs, task: u32) -> Link {
    match procfs.namespace_link(&format!("{task}/ns/mnt"), "mnt") {
        Ok(namespace) => Link::In(NamespaceId(namespace)),
        Err(Errno::ESRCH) => Link::Gone,
        // A task that has ended has no namespaces. The link answers so, and the task's state tells which it is.
        Err(Errno::ENOENT) => match procfs.status_field(&task.to_string(), "State") {
            Ok(state) if state.starts_with(['Z', 'X']) => Link::Zombie,
            _ => Link::Gone,
        },
        Err(_) => Link::Refused,
    }
}

/// What is known of a task, for the claim about entries that it could hold.
#[must_use]
pub fn holder(procfs: &Procfs, task: u32) -> Holder {
    let uids = procfs.status_field(&task.to_string(), "Uid").unwrap_or_default();
    let uids = uids.split_whitespace().map_while(|uid| uid.parse().ok()).collect();
    let user_namespace = procfs.open_file(&format!("{task}/ns/user"));
    let owner = user_namespace.and_then(namespace::owner).ok().or_else(|| {
        // Only the initial user namespace, or one that root made to be like it, maps every id to itself.
        let mut map = Vec::new();
        procfs.read(&format!("{task}/uid_map"), &mut map).ok()?;
        let text = String::from_utf8_lossy(&map);
        text.split_whitespace().eq(["0", "0", "4294967295"]).then_some(0)
    });
    Holder { uids, user_namespace_owner: owner }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn every_thread_is_counted_and_one_that_moved_is_told_apart() {
        let procfs = Procfs::open().expect("procfs is mounted");
        let (ready, wait) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).expect("tests of namespaces need root");
            let own = Procfs::open().expect("procfs").namespace_link("thread-self/ns/mnt", "mnt").expect("own");
            ready.send((nix::unistd::gettid(), own)).expect("the test waits");
            let _ = ended.recv();
        });
        let (moved, namespace) = wait.recv().expect("the thread came so far");
        let found = list(&procfs).expect("procfs can be listed");
        let moved = u32::try_from(moved.as_raw()).expect("ids are positive");
        assert_eq!(found.by_namespace.get(&NamespaceId(namespace)), Some(&vec![moved]));
        assert!(found.threads > found.tasks);
        drop(end);
        thread.join().expect("it ended");
    }

    #[test]
    fn a_plain_zombie_is_neither_unreadable_nor_departed() {
        let mut child = Command::new("true").stdin(Stdio::null()).spawn().expect("true exists");
        let procfs = Procfs::open().expect("procfs is mounted");
        while !procfs.status_field(&child.id().to_string(), "State").is_ok_and(|state| state.starts_with('Z')) {}
        assert!(matches!(link(&procfs, child.id()), Link::Zombie));
        let mut found = Tasks::default();
        list_process(&procfs, child.id(), &mut found);
        assert_eq!((found.tasks, found.departed, found.unreadable.len()), (1, 0, 0));
        child.wait().expect("it is ours");
        list_process(&procfs, child.id(), &mut found);
        assert_eq!(found.departed, 1);
    }

    #[test]
    fn a_holder_is_known_by_its_uids_and_its_user_namespace() {
        let procfs = Procfs::open().expect("procfs is mounted");
        let own = holder(&procfs, std::process::id());
        assert_eq!(own, Holder { uids: vec![0; 4], user_namespace_owner: Some(0) });
        // Its links are refused on some hosts; the map tells it all the same.
        assert_eq!(holder(&procfs, 1).user_namespace_owner, Some(0));
        assert_eq!(holder(&procfs, u32::MAX), Holder { uids: vec![], user_namespace_owner: None });
    }
}
