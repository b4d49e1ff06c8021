//! Whether two roots are the same directory or one lies inside the other.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path};

/// Identity of a directory: device and inode.
type Identity = (u64, u64);

/// A root's path and, where it exists, who it and the directories above it are.
pub(super) struct Lineage {
    /// The root first, then its parents upwards. Empty where the root does not exist.
    identities: Vec<Identity>,
}

impl Lineage {
    /// Looks at a directory and all above it. Links are followed: two paths to one directory must be seen as one.
    pub(super) fn of(path: &Path) -> Self {
        let real = std::fs::canonicalize(path);
        let identities = real.map_or_else(
            |_| Vec::new(),
            |real| {
                let stats = real.ancestors().map_while(|directory| std::fs::metadata(directory).ok());
                stats.map(|stat| (stat.dev(), stat.ino())).collect()
            },
        );
        Self { identities }
    }

    /// Whether a directory is this root.
    pub(super) fn is(&self, directory: &Path) -> bool {
        let identity = std::fs::metadata(directory).map(|stat| (stat.dev(), stat.ino()));
        identity.is_ok_and(|identity| self.identities.first() == Some(&identity))
    }

    /// Whether this root is the other one or lies inside it.
    pub(super) fn inside(&self, other: &Self) -> bool {
        other.identities.first().is_some_and(|root| self.identities.contains(root))
    }
}

/// Whether the text of one path says that it is the other or lies inside it.
pub(super) fn inside(path: &Path, other: &Path) -> bool {
    plain(path).starts_with(plain(other))
}

/// The first component of a path that is a symbolic link, where one is.
pub(super) fn link_in(path: &Path) -> Option<&Path> {
    let mut above: Vec<&Path> = path.ancestors().collect();
    above.reverse();
    above.into_iter().find(|part| std::fs::symlink_metadata(part).is_ok_and(|stat| stat.is_symlink()))
}

/// A path without `.` and doubled slashes. `..` is refused before this is called.
fn plain(path: &Path) -> std::path::PathBuf {
    path.components().filter(|part| !matches!(part, Component::CurDir)).collect()
}
