//! A pin: one way in which a mount relies on a place in a file system.

use super::id::{Location, MountId, NamespaceId};
use serde::Serialize;

/// How a mount relies on a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// The mount's root is there: a bind source.
    Source,
    /// A union file system has a layer there.
    Layer,
    /// The mount is mounted there.
    Target,
}

/// What holds the mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It is in the tree of a mount namespace.
    Attached,
    /// It is a tree of its own that a descriptor holds, in no namespace.
    Detached,
    /// It was unmounted while busy.
    Unmounted,
}

/// Where the pin lies, seen from the place that was asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// At the place itself.
    Exact,
    /// Somewhere below it.
    Below,
}

/// One pin, as a producer saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// How the mount relies on the place.
    pub role: Role,
    /// The place.
    pub location: Location,
    /// The mount namespace that holds the mount; none for a mount that is in no namespace.
    pub namespace: Option<NamespaceId>,
    /// The mount: of a target, the mount that is mounted there.
    pub mount: MountId,
    /// Where the mount is mounted, seen from the root of its namespace; none where it cannot be reached from there.
    pub mount_point: Option<Box<[u8]>>,
    /// What holds the mount.
    pub state: State,
    /// The place lies somewhere below `location`, and more is not known.
    pub inside: bool,
}
