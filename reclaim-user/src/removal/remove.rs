//! Removing what was confirmed, by descriptor.

use super::command;
use super::condemn::{Batch, Condemned};
use super::confirm::Confirmed;
use super::error::failed;
use super::tree;
use crate::config::{RemoveRule, RootConfig};
use crate::model::fence::FileKind;
use crate::sys::directory;
use nix::errno::Errno;

/// How a removal ended.
#[derive(Debug)]
pub(super) enum Removal {
    /// It is gone.
    Gone(Condemned),
    /// It came to hold something after it was confirmed, and only what is empty may go.
    Filled(Condemned),
    /// Something is mounted there in our own namespace.
    Mounted(Condemned),
    /// It could not be removed, or not all of it.
    Stuck(Condemned, String),
    /// It cannot be removed from where it is.
    Unsuited(Condemned, &'static str),
    /// It was told to stop half-way. A later pass goes on.
    Interrupted(Condemned),
}

/// Removes an entry, by the rule of its root. `go_on` is asked now and then; once it says no, a tree is left half-way.
pub(super) fn remove(
    confirmed: Confirmed,
    batch: &Batch,
    rules: &RootConfig,
    go_on: &mut dyn FnMut() -> bool,
) -> Removal {
    if rules.remove == RemoveRule::Command {
        return command::remove(confirmed, batch, rules, go_on);
    }
    let name = confirmed.condemned().stored();
    let (call, result) = match (confirmed.kind(), rules.remove) {
        (FileKind::Directory, RemoveRule::Empty) => ("rmdir", directory::remove_directory(&batch.directory, name)),
        (FileKind::Directory, RemoveRule::Tree) => match tree::remove(&batch.directory, name, go_on) {
            tree::Outcome::Gone => ("rmdir", Ok(())),
            tree::Outcome::Interrupted => return Removal::Interrupted(confirmed.into_condemned()),
            tree::Outcome::Failed(faults) => return Removal::Stuck(confirmed.into_condemned(), faults),
        },
        _ => ("unlinkat", directory::remove_file(&batch.directory, name)),
    };
    match result {
        Ok(()) | Err(Errno::ENOENT) => Removal::Gone(confirmed.into_condemned()),
        Err(Errno::ENOTEMPTY | Errno::EEXIST) => Removal::Filled(confirmed.into_condemned()),
        Err(Errno::EBUSY) => Removal::Mounted(confirmed.into_condemned()),
        Err(error) => Removal::Stuck(confirmed.into_condemned(), failed(call, error)),
    }
}
