//! Identities of kernel objects, and places inside file systems.

use std::fmt;

/// A device number as the kernel prints it in mountinfo (`major:minor`): it names a super block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Device {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

impl fmt::Display for Device {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}", self.major, self.minor)
    }
}

/// Inode number of a mount namespace on nsfs: the number in `/proc/PID/ns/mnt`. Reused after the namespace has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamespaceId(pub u64);

impl NamespaceId {
    /// What stands for namespaces of which it could not be told which they are. No namespace has this number.
    pub const UNKNOWN: Self = Self(0);

    /// The number, where it is known.
    #[must_use]
    pub fn number(self) -> Option<u64> {
        (self != Self::UNKNOWN).then_some(self.0)
    }
}

impl fmt::Display for NamespaceId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

/// Identity of a mount: the unique id (`STATX_MNT_ID_UNIQUE`, never reused) where the kernel gives it, else the one of
/// mountinfo, which is reused. Unique ids start above 2^31, so the two kinds never meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MountId(pub u64);

impl fmt::Display for MountId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

/// A place inside a file system: its super block, and the path from the file system's own root.
///
/// The path is absolute, has no trailing slash except for `/` itself, and holds bytes, not text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Location {
    /// The super block.
    pub device: Device,
    /// Path from the root of the file system.
    pub path: Box<[u8]>,
}

impl Location {
    /// Makes a location from a path as the kernel gives it.
    #[must_use]
    pub fn of(device: Device, path: impl Into<Box<[u8]>>) -> Self {
        Self { device, path: path.into() }
    }

    /// The location of `name` inside this directory.
    #[must_use]
    pub fn join(&self, name: &[u8]) -> Self {
        Self { device: self.device, path: join(&self.path, name) }
    }

    /// What leads from this place to `other`: `None` when `other` is neither this place nor below it, an empty slice
    /// when it is this place, otherwise the components without a leading slash.
    #[must_use]
    pub fn rest<'a>(&self, other: &'a Location) -> Option<&'a [u8]> {
        if self.device == other.device { rest(&self.path, &other.path) } else { None }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}", self.device, String::from_utf8_lossy(&self.path))
    }
}

/// `base` and `name` with one slash between them; `base` alone when `name` is empty.
#[must_use]
pub fn join(base: &[u8], name: &[u8]) -> Box<[u8]> {
    let mut path = Vec::with_capacity(base.len() + 1 + name.len());
    path.extend_from_slice(base);
    if !name.is_empty() {
        if path.last() != Some(&b'/') {
            path.push(b'/');
        }
        path.extend_from_slice(name);
    }
    path.into_boxed_slice()
}

/// What is left of `path` behind `base`, on component boundaries: `/a` is a base of `/a/b` and of `/a`, not of `/ab`.
#[must_use]
pub fn rest<'a>(base: &[u8], path: &'a [u8]) -> Option<&'a [u8]> {
    if base == b"/" {
        return path.strip_prefix(b"/");
    }
    match path.strip_prefix(base)? {
        [] => Some(&[]),
        [b'/', rest @ ..] => Some(rest),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rest_respects_component_boundaries() {
        assert_eq!(rest(b"/a", b"/a"), Some(&b""[..]));
        assert_eq!(rest(b"/a", b"/a/b/c"), Some(&b"b/c"[..]));
        assert_eq!(rest(b"/a", b"/ab"), None);
        assert_eq!(rest(b"/", b"/ab"), Some(&b"ab"[..]));
        assert_eq!(rest(b"/", b"/"), Some(&b""[..]));
        assert_eq!(rest(b"/a/b", b"/a"), None);
    }

    #[test]
    fn join_puts_exactly_one_slash() {
        assert_eq!(&*join(b"/", b"a"), b"/a");
        assert_eq!(&*join(b"/a", b"b"), b"/a/b");
        assert_eq!(&*join(b"/a", b""), b"/a");
    }
}
