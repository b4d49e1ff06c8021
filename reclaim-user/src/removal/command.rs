//! Removal by a command: what another manager owns is removed by that manager.
//!
//! The entry keeps its name, for its manager has to find it. So a path leads to it until the command is through, and what
//! was proved may be a moment old by then: weaker than what is condemned first.

use super::condemn::Batch;
use super::confirm::Confirmed;
use super::program::run;
use super::remove::Removal;
use crate::config::RootConfig;
use crate::sys::file_status::status_at;
use nix::errno::Errno;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

/// Has an entry removed by the command of its root, and looks whether it is gone.
pub(super) fn remove(
    mut confirmed: Confirmed,
    batch: &Batch,
    rules: &RootConfig,
    go_on: &mut dyn FnMut() -> bool,
) -> Removal {
    if !batch.in_place {
        let why = "it was condemned before its root had a command, which has to find it under its own name";
        return Removal::Unsuited(confirmed.into_condemned(), why);
    }
    let Some(command) = &rules.command else {
        return Removal::Unsuited(confirmed.into_condemned(), "its root has no command");
    };
    // The manager may take the lock itself.
    confirmed.release();
    let name = confirmed.condemned().name.clone();
    let path = rules.path.join(OsStr::from_bytes(name.to_bytes()));
    let id = command.id.as_deref().map(str::as_bytes).or_else(|| rules.id_of(name.to_bytes()));
    let ended = match command.words.fill(id, name.to_bytes(), path.as_os_str().as_bytes()) {
        Ok(words) => {
            let words: Vec<OsString> = words.into_iter().map(OsString::from_vec).collect();
            run(&words, command.limit, go_on).and_then(|ended| ended.well())
        }
        Err(fault) => Err(fault.to_string()),
    };
    let identity = confirmed.condemned().identity;
    let condemned = confirmed.into_condemned();
    let is_gone = match status_at(&batch.directory, &name) {
        Ok(found) => found.identity != identity,
        Err(error) => error == Errno::ENOENT,
    };
    match (is_gone, ended) {
        (true, Ok(())) => Removal::Gone(condemned),
        (true, Err(fault)) => {
            tracing::warn!("{} is gone, and yet {fault}", path.display());
            Removal::Gone(condemned)
        }
        (false, Err(fault)) => Removal::Stuck(condemned, fault),
        (false, Ok(())) => {
            let program = command.words.program();
            Removal::Stuck(condemned, format!("`{program}` ended well, and the entry is still there"))
        }
    }
}
