//! Holds: what a launcher's placeholders are known by, and which of them may go.
//!
//! A manifest is written before any placeholder of its holder has a name, and says which file that will be. Whether its
//! holder lives is no matter of the manifest: a kernel lock tells it.

use super::fence::{FileKind, Status, Timestamp};
use super::id::Device;
use super::path_text::PathArgument;
use super::pin_set::CONDEMNED_DIRECTORY;
use super::purge::TargetVerdict;
use super::report::{Name, Reason};
use serde::{Deserialize, Serialize};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// The form of a manifest.
const VERSION: u32 = 1;

/// What a placeholder is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PlaceholderKind {
    /// An empty regular file.
    File,
    /// An empty directory.
    Dir,
}

impl PlaceholderKind {
    /// The kind of file that it is.
    #[must_use]
    pub fn file_kind(self) -> FileKind {
        match self {
            Self::File => FileKind::File,
            Self::Dir => FileKind::Directory,
        }
    }

    /// For what can be a placeholder.
    #[must_use]
    pub fn of(kind: FileKind) -> Option<Self> {
        match kind {
            FileKind::File => Some(Self::File),
            FileKind::Directory => Some(Self::Dir),
            FileKind::Link | FileKind::Other => None,
        }
    }
}

/// Which file a placeholder is. An inode number alone is given to the next file once this one has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Print {
    /// Device as stat reports it: major, minor. It means nothing after the next boot.
    pub device: (u32, u32),
    /// Inode number.
    pub inode: u64,
    /// When it was born, in nanoseconds since 1970; none where the file system does not keep that.
    pub birth: Option<i64>,
    /// When its contents were last changed, in nanoseconds since 1970.
    pub modified: Option<i64>,
    /// Owner.
    pub owner: u32,
}

impl Print {
    /// Of a file.
    #[must_use]
    pub fn of(device: Device, inode: u64, status: &Status) -> Self {
        let nanoseconds = |time: Option<Timestamp>| time.and_then(|time| i64::try_from(time.0).ok());
        Self {
            device: (device.major, device.minor),
            inode,
            birth: nanoseconds(status.birth),
            modified: nanoseconds(status.modified),
            owner: status.owner,
        }
    }

    /// Whether `found` is the same file, whatever was done to it since. Where birth times are not kept, one whose contents
    /// were changed cannot be told from another file, and is none.
    #[must_use]
    pub fn is_same_file(&self, found: &Self, same_boot: bool) -> bool {
        let told_apart = match (self.birth, found.birth) {
            (Some(one), Some(other)) => one == other,
            (None, None) => self.modified.is_some() && self.modified == found.modified,
            _ => false,
        };
        (self.device == found.device || !same_boot) && self.inode == found.inode && told_apart
    }
}

/// One placeholder of a manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Placeholder {
    /// The directory that it lies in, without a link in its path.
    pub directory: PathArgument,
    /// Inode number of that directory.
    pub directory_inode: u64,
    /// Its name there.
    pub name: PathArgument,
    /// What it is.
    pub kind: PlaceholderKind,
    /// The name that it is made under before it gets its own, where the file system makes none without a name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temporary: Option<String>,
    /// Which file it is; none while it is to be made under its temporary name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub print: Option<Print>,
    /// It was there, and whether a hold had made it could not be read. It is relied on, and this manifest is no ground to
    /// remove it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub untold: bool,
}

/// Who holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Holder {
    /// Its process id, in its own pid namespace.
    pub pid: u32,
    /// The inode number of that namespace.
    pub pid_namespace: u64,
    /// The command that it runs.
    pub command: PathArgument,
}

/// What one holder put down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    version: u32,
    /// The boot that device numbers belong to.
    pub boot: String,
    /// Who holds. For people: whether it lives is told by a lock.
    pub holder: Holder,
    /// Sources that it leases, for people.
    #[serde(default)]
    pub sources: Vec<PathArgument>,
    /// Its placeholders.
    pub placeholders: Vec<Placeholder>,
}

impl Manifest {
    /// One without placeholders.
    #[must_use]
    pub fn new(boot: String, holder: Holder, sources: Vec<PathArgument>) -> Self {
        Self { version: VERSION, boot, holder, sources, placeholders: Vec::new() }
    }

    /// Reads the text of a manifest.
    ///
    /// # Errors
    /// What is wrong with it. Then nobody knows what its holder relies on.
    pub fn read(text: &[u8]) -> Result<Self, String> {
        let manifest: Self = serde_json::from_slice(text).map_err(|error| format!("it is malformed: {error}"))?;
        if manifest.version != VERSION {
            return Err(format!("it is of version {}, and {VERSION} is what is understood", manifest.version));
        }
        for placeholder in &manifest.placeholders {
            let directory = placeholder.directory.path()?;
            if !is_free_of_ours(&directory) {
                return Err(format!("{} is where reclaim works itself", directory.display()));
            }
            let name = placeholder.name.bytes()?;
            let temporary = placeholder.temporary.as_deref().map(str::as_bytes);
            if !is_plain(&name)
                || is_ours(&name)
                || temporary.is_some_and(|name| !is_plain(name) || !name.starts_with(TEMPORARY))
            {
                return Err(format!("`{}` is no name", String::from_utf8_lossy(&name).escape_debug()));
            }
        }
        Ok(manifest)
    }

    /// The text of a manifest.
    ///
    /// # Panics
    /// Never: it has text keys only.
    #[must_use]
    pub fn write(&self) -> Vec<u8> {
        serde_json::to_vec_pretty(self).expect("a manifest has text keys only")
    }

    /// Whether it names a file, as a placeholder or as what may be one.
    #[must_use]
    pub fn names(&self, found: &Print, boot: &str) -> bool {
        self.named(found, boot).next().is_some()
    }

    /// What it has written down of a file that it names as a placeholder, as the file was made.
    #[must_use]
    pub fn print_of(&self, found: &Print, boot: &str) -> Option<Print> {
        let print = self.named(found, boot).find(|placeholder| !placeholder.untold)?.print?;
        // Its device is the one thing that may be called otherwise by now.
        Some(Print { device: found.device, ..print })
    }

    fn named(&self, found: &Print, boot: &str) -> impl Iterator<Item = &Placeholder> {
        let same_boot = self.boot == boot;
        let is_found = move |print: Print| print.is_same_file(found, same_boot);
        self.placeholders.iter().filter(move |placeholder| placeholder.print.is_some_and(is_found))
    }
}

/// A manifest, and whose word it is.
#[derive(Clone, Debug)]
pub struct Word {
    /// Whose store it is in.
    pub user: u32,
    /// What it says; none when that cannot be read, and then it could name anything.
    pub manifest: Option<Manifest>,
}

impl Word {
    /// What it has written down of a file, provided that it is `own`, root's, or the word of the file's owner: a user has
    /// nobody else's file taken for a placeholder, and holds none.
    #[must_use]
    pub fn print_of(&self, own: u32, found: &Print, boot: &str) -> Option<Print> {
        self.manifest.as_ref()?.print_of(found, boot).filter(|_| self.counts(own, found))
    }

    /// Whether it relies on a file that could be somebody's placeholder.
    #[must_use]
    pub fn is_unsure_of(&self, own: u32, found: &Print, boot: &str) -> bool {
        let names = |manifest: &Manifest| manifest.names(found, boot) && manifest.print_of(found, boot).is_none();
        self.manifest.as_ref().is_some_and(names) && self.counts(own, found)
    }

    /// Whether it could name a file and nobody can read whether it does.
    #[must_use]
    pub fn is_silent_on(&self, own: u32, found: &Print) -> bool {
        self.manifest.is_none() && self.counts(own, found)
    }

    fn counts(&self, own: u32, found: &Print) -> bool {
        self.user == own || self.user == 0 || self.user == found.owner
    }
}

/// Whether a user can take names out of a directory of this mode, owner and group. `groups`: those that the user is known
/// to be in. Access lists are not looked at: then nobody else may, by what is asked here.
#[must_use]
pub fn may_change(mode: u32, owner: u32, group: u32, user: u32, groups: &[u32]) -> bool {
    let shift = match (owner == user, groups.contains(&group)) {
        (true, _) => 6,
        (false, true) => 3,
        (false, false) => 0,
    };
    user == 0 || (mode >> shift) & 0o3 == 0o3
}

/// What became of a placeholder whose holders have ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename = "placeholder")]
pub struct PlaceholderReport {
    /// Its path.
    pub path: Name,
    /// Its exact bytes where it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_hex: Option<String>,
    /// What became of it.
    pub verdict: TargetVerdict,
    /// Why it stays.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// More, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

impl PlaceholderReport {
    /// Whether there is nothing left of it.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        matches!(self.verdict, TargetVerdict::Removed | TargetVerdict::Absent)
    }
}

/// How temporary names begin. The rest is random, so nobody else's file is taken for one.
pub const TEMPORARY: &[u8] = b".reclaim-hold-";

/// A single component that leads nowhere else.
#[must_use]
pub fn is_plain(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..") && name.len() <= 255 && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
}

/// Whether reclaim gives such names itself, at whatever place it works.
#[must_use]
pub fn is_ours(name: &[u8]) -> bool {
    name.strip_prefix(CONDEMNED_DIRECTORY).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"-"))
}

/// Whether a path leads through no directory in which reclaim keeps what it condemned.
#[must_use]
pub fn is_free_of_ours(path: &Path) -> bool {
    !path.components().any(|part| part.as_os_str().as_bytes() == CONDEMNED_DIRECTORY)
}

/// What stands where a holder that has ended left a placeholder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Left {
    /// The placeholder as it was made: it may go when nothing relies on it.
    Placeholder,
    /// Somebody else's by now, or always; nothing of it is touched.
    Another(&'static str),
}

/// Judges what is found under the name of a placeholder. `store`: whose store the manifest is in.
#[must_use]
pub fn judge(
    expected: &Print,
    kind: PlaceholderKind,
    found: &Print,
    status: &Status,
    same_boot: bool,
    store: u32,
) -> Left {
    if !expected.is_same_file(found, same_boot) || status.kind != kind.file_kind() {
        return Left::Another("another file has its name");
    }
    // A manifest is its owner's word, and nobody gives leave to remove what is another's.
    if expected.owner != found.owner || (store != 0 && found.owner != store) {
        return Left::Another("it belongs to another user than its holder");
    }
    if kind == PlaceholderKind::File && status.size > 0 {
        return Left::Another("somebody wrote to it");
    }
    // Emptied, touched: whoever did that means the file.
    if kind == PlaceholderKind::File && expected.modified != found.modified {
        return Left::Another("somebody changed it");
    }
    Left::Placeholder
}

#[cfg(test)]
#[path = "hold_tests.rs"]
mod tests;
