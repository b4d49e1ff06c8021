//! What another reclaimer has condemned in a directory at the moment: looked at without its lock, so that one may say
//! whether it matters.

use super::condemn::makeshift;
use super::error::RemovalError;
use super::lock::STORE;
use super::place::Root;
use crate::sys::directory::{self, Names, Reader};
use nix::errno::Errno;
use std::ffi::{CStr, CString};
use std::os::fd::AsFd;
use std::path::Path;

/// Whether something lies condemned in a directory, whoever did that, whose own name is meant. Nothing is locked, so this is
/// as it was at some moment of the call.
///
/// # Errors
/// When the directory cannot be opened or listed. In one that does not exist nothing lies.
pub fn lies_condemned(path: &Path, mut is_meant: impl FnMut(&[u8]) -> bool) -> Result<bool, RemovalError> {
    let Some(root) = Root::open(path)? else { return Ok(false) };
    let fault = |call| move |source| RemovalError::Call { call, path: path.join(".reclaim"), source };
    // For want of room, entries are condemned in the directory itself.
    let own = names(&root.directory).map_err(fault("getdents64"))?;
    if own.iter().filter_map(|name| makeshift(name)).any(|(_, name)| is_meant(name.to_bytes())) {
        return Ok(true);
    }
    let Some(store) = open(&root.directory, STORE).map_err(fault("openat2"))? else { return Ok(false) };
    for batch in names(&store).map_err(fault("getdents64"))? {
        let Some(batch) = open(&store, &batch).map_err(fault("openat2"))? else { continue };
        if names(&batch).map_err(fault("getdents64"))?.iter().any(|name| is_meant(name.to_bytes())) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A directory; none when it has gone, or is something else.
fn open(parent: impl AsFd, name: &CStr) -> Result<Option<std::os::fd::OwnedFd>, Errno> {
    match directory::open_child(parent, name) {
        Ok(directory) => Ok(Some(directory)),
        Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => Ok(None),
        Err(error) => Err(error),
    }
}

fn names(directory: impl AsFd) -> Result<Vec<CString>, Errno> {
    let (mut reader, mut names) = (Reader::default(), Names::default());
    while reader.read(&directory, &mut names)? {}
    Ok((0..names.len()).filter_map(|index| names.get(index).map(|(name, _, _)| name.to_owned())).collect())
}
