//! A second thread that reads namespaces, beside the one that goes over the list of them.

use super::reader::{Reader, Unread};
use super::table::Table;
use crate::evidence::layers::Layers;
use crate::model::id::NamespaceId;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, channel, sync_channel};
use std::thread::{Builder, Scope, ScopedJoinHandle};

/// Namespaces that wait for the thread. Each is held open, which keeps it and its mounts alive.
const WAITING: usize = 4;

/// A namespace to read, held open until it was read.
pub(super) struct Asked {
    pub(super) id: NamespaceId,
    /// The kernel's own id, which no later namespace gets.
    pub(super) kernel_id: u64,
    pub(super) namespace: OwnedFd,
}

/// A namespace that the thread was given.
pub(super) struct Done {
    pub(super) id: NamespaceId,
    pub(super) kernel_id: u64,
    pub(super) table: Result<Table, Unread>,
}

/// What the thread read.
#[derive(Default)]
pub(super) struct Part {
    /// In the order in which they were given.
    pub(super) namespaces: Vec<Done>,
    /// The layers of what they show, looked up in them.
    pub(super) layers: Layers,
}

/// The thread, and the way to it.
pub(super) struct Second<'scope> {
    ask: SyncSender<Asked>,
    thread: ScopedJoinHandle<'scope, Part>,
}

impl<'scope> Second<'scope> {
    /// Starts the thread from the one that a reader belongs to. None when there is none to be had.
    pub(super) fn begin<'env>(scope: &'scope Scope<'scope, 'env>, reader: &Reader<'scope>) -> Option<Self> {
        let prepare = reader.another()?;
        let (ask, asked) = sync_channel(WAITING);
        let (ready, is_ready) = channel();
        let work = move || {
            let reader = prepare().ok();
            // Whoever started this waits for it.
            let _ = ready.send(reader.is_some());
            reader.map_or_else(Part::default, |reader| read_all(reader, &asked))
        };
        let thread = Builder::new().name("reclaim-scan".into()).spawn_scoped(scope, work).ok()?;
        // Until then both share one root and working directory, and none of them can enter a namespace (mntns_install in
        // fs/namespace.c).
        is_ready.recv().unwrap_or(false).then_some(Self { ask, thread })
    }

    /// Has a namespace read, unless others wait already: then it comes back.
    pub(super) fn offer(&self, asked: Asked) -> Option<Asked> {
        self.ask.try_send(asked).err().map(|(TrySendError::Full(asked) | TrySendError::Disconnected(asked))| asked)
    }

    /// Waits until all is read. A panic on the thread goes on here.
    pub(super) fn close(self) -> Part {
        let Self { ask, thread } = self;
        drop(ask);
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

fn read_all(mut reader: Reader<'_>, asked: &Receiver<Asked>) -> Part {
    let mut part = Part::default();
    for Asked { id, kernel_id, namespace } in asked {
        let table = reader.read(&namespace);
        if let Ok(table) = &table {
            table.unions.iter().for_each(|union| part.layers.look_up(&union.key, reader.view(table)));
        }
        part.namespaces.push(Done { id, kernel_id, table });
    }
    reader.leave();
    part
}
