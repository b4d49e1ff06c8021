//! Confirming by the walk: pins on condemned entries by identity, from the kernel's own list of mounts.

use crate::evidence::source::CondemnedIn;
use crate::evidence::walk::{WalkError, WalkPin, Walker};
use crate::model::id::Location;
use crate::model::pin::{Pin, Place, Role, State};
use crate::sys::mount_tree::clone_tree;
use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::stat::{fstat, fstatat};
use std::os::fd::AsFd;

/// Every mount that relies on an entry in one of the directories, which lie in the watched root `root`.
///
/// Each walk proves itself on the very file system: a detached mount of the first directory is made, and has to be found
/// in the directory's parent. A file system whose inode numbers are not those of its directories fails that.
pub(super) fn walk(walker: &mut Walker, root: &Location, condemned: &[CondemnedIn<'_>]) -> Result<Vec<Pin>, WalkError> {
    let Some(first) = condemned.first() else { return Ok(Vec::new()) };
    let call = |call| move |source: Errno| WalkError::Probe { call, source };
    let mut directories = Vec::with_capacity(condemned.len() + 1);
    for place in condemned {
        directories.push(fstat(place.directory).map_err(call("fstat"))?.st_ino);
    }
    let parent = fstatat(first.directory, "..", AtFlags::AT_SYMLINK_NOFOLLOW).map_err(call("fstatat"))?.st_ino;
    let known = directories[0];
    directories.push(parent);
    let mount = clone_tree(first.directory).map_err(call("open_tree"))?;
    let mark = walker.mount_id(mount.as_fd()).map_err(call("statx"))?;
    let walked = walker.walk(first.directory, &directories)?;
    let is_mark = |pin: &&WalkPin| {
        (pin.mount, pin.base, pin.entry) == (mark, parent, known)
            && (pin.role, pin.state, pin.place) == (Role::Source, State::Detached, Place::Exact)
    };
    if walked.pins.iter().filter(is_mark).count() != 1 {
        return Err(WalkError::KnownAnswer { why: format!("mount {mark} of inode {known} in inode {parent}") });
    }
    drop(mount);
    let pins = walked.pins.into_iter().filter(|pin| pin.mount != mark).filter_map(|pin| {
        let place = condemned.iter().zip(&directories).find(|(_, inode)| **inode == pin.base)?.0;
        let location = root.join(&crate::model::id::join(&place.path, &pin.name));
        Some(Pin {
            role: pin.role,
            location,
            namespace: pin.namespace,
            mount: pin.mount,
            mount_point: None,
            state: pin.state,
        })
    });
    Ok(pins.collect())
}
