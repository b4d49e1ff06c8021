//! What a scan uses of the kernel, asked by using it on the own mount namespace.

use crate::evidence::features::{Answer, Feature};
use crate::sys::mount_list::{self, From};
use crate::sys::namespace::{self, Direction};
use nix::errno::Errno;
use std::fs::File;

/// The features, each asked for once.
pub(super) fn features() -> Vec<Feature> {
    let own = File::open("/proc/self/ns/mnt");
    let ask = |question: &dyn Fn(&File) -> Result<(), Errno>| match &own {
        Ok(own) => match question(own) {
            Ok(()) => Answer::Yes,
            Err(error @ (Errno::ENOTTY | Errno::ENOSYS)) => Answer::No { why: format!("the kernel answers {error}") },
            Err(error) => Answer::Unknown { why: format!("the kernel answers {error}") },
        },
        Err(error) => Answer::Unknown { why: format!("cannot open /proc/self/ns/mnt: {error}") },
    };
    let list = ask(&|own| match namespace::neighbour(own, Direction::Next) {
        // The last namespace has no next one, and a namespace that may not be seen is there all the same.
        Ok(_) | Err(Errno::ENOENT) => Ok(()),
        Err(error) => Err(error),
    });
    let mounts = ask(&|own| mount_list::list(namespace::info(own)?.id, From::Root).map(|_| ()));
    let feature = |name, used_for, answer| Feature { name, used_for, answer };
    vec![
        feature("namespace list", "scan: namespaces that no task is in", list),
        feature("listmount", "scan: mounts from a namespace's own root", mounts),
    ]
}
