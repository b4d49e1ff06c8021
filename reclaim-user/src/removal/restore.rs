//! Restoring: giving a condemned entry its name back.

use super::condemn::{Batch, Condemned};
use super::confirm::Denied;
use super::crash;
use super::error::failed;
use crate::model::tally::Outcome;
use crate::sys::directory;
use nix::errno::Errno;
use std::os::fd::AsFd;

/// Moves an entry back into the root. What has taken its name meanwhile is never replaced: then it stays condemned.
pub(super) fn restore(root: impl AsFd, batch: &Batch, condemned: &Condemned, denied: &mut Denied) -> Outcome {
    if batch.in_place {
        return Outcome::Kept(denied.reason);
    }
    let why_not = match directory::move_entry(&batch.directory, condemned.stored(), root, &condemned.name) {
        Ok(()) => {
            crash::step("mid-restore");
            return Outcome::Restored(denied.reason);
        }
        Err(Errno::EEXIST) => "its name was taken meanwhile, so it stays condemned until that is free".into(),
        Err(error) => format!("it cannot have its name back ({}), so it stays condemned", failed("renameat2", error)),
    };
    denied.detail = Some(match denied.detail.take() {
        Some(detail) => format!("{detail}; {why_not}"),
        None => why_not,
    });
    Outcome::Condemned
}
