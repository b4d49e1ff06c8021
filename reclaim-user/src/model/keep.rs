//! Keep-until: entries that their owner or root wants kept until some time.
//!
//! A keep belongs to one file, not to a name: root, name, inode and birth all have to fit, so that another entry that
//! comes by the same name is not kept by it.

use super::calendar;
use super::fence::Timestamp;
use super::path_text::unhex;
use super::report::Name;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::path::Path;

/// Keeps of one user other than root at most, so that nobody can fill the file.
pub const MOST_OF_ONE: usize = 1_000;
/// Keeps at most.
pub const MOST: usize = 50_000;
/// Longest time that can be asked for, in seconds: ten years.
pub const LONGEST_SECONDS: u64 = 10 * 366 * 86_400;
/// The form of the file.
const VERSION: u32 = 1;

/// Which file of a root.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Kept {
    /// Its name.
    pub name: Vec<u8>,
    /// Its inode number.
    pub inode: u64,
    /// When it was born; none where the file system does not keep that, and then the inode number alone has to do.
    pub birth: Option<Timestamp>,
}

/// One keep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keep {
    /// Path of the root.
    pub root: Vec<u8>,
    /// The entry.
    pub entry: Kept,
    /// Who owned the entry when it was kept.
    pub owner: u32,
    /// Until when, in seconds since 1970.
    pub until: i64,
}

/// All keeps, in the order that they were made in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keeps(Vec<Keep>);

/// Why a keep is not taken on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// The owner has too many.
    Owner,
    /// There are too many.
    All,
}

impl Keeps {
    /// Takes one on, in the place of an earlier one of the same entry, which never makes one too many. `by_root`: root may keep
    /// what belongs to a user who has as many keeps as a user may have.
    ///
    /// # Errors
    /// When there are too many already.
    pub fn add(&mut self, keep: Keep, by_root: bool) -> Result<(), Full> {
        let is_further = !self.remove(&keep.root, &keep.entry);
        if is_further && !by_root && self.0.iter().filter(|other| other.owner == keep.owner).count() >= MOST_OF_ONE {
            return Err(Full::Owner);
        }
        if self.0.len() >= MOST {
            return Err(Full::All);
        }
        self.0.push(keep);
        Ok(())
    }

    /// Takes that of one entry off. Whether there was one.
    pub fn remove(&mut self, root: &[u8], entry: &Kept) -> bool {
        let before = self.0.len();
        self.0.retain(|keep| keep.root != root || keep.entry != *entry);
        self.0.len() < before
    }

    /// Takes those of a name off, whichever entry had it. Whether there were any.
    pub fn remove_name(&mut self, root: &[u8], name: &[u8]) -> bool {
        let before = self.0.len();
        self.0.retain(|keep| keep.root != root || keep.entry.name != name);
        self.0.len() < before
    }

    /// Takes off what is over. Whether there was any.
    pub fn prune(&mut self, now: Timestamp) -> bool {
        let before = self.0.len();
        self.0.retain(|keep| lies_ahead(keep.until, now));
        self.0.len() < before
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Keep> {
        self.0.iter()
    }

    /// Those of one root, for looking up.
    #[must_use]
    pub fn of_root(&self, root: &Path) -> KeptIn {
        use std::os::unix::ffi::OsStrExt as _;
        let root = root.as_os_str().as_bytes();
        let of_root = self.0.iter().filter(|keep| keep.root == root);
        KeptIn::Known(of_root.map(|keep| (keep.entry.clone(), keep.until)).collect())
    }

    /// Reads the text of the file.
    ///
    /// # Errors
    /// What is wrong with it. Then nobody knows what is kept.
    pub fn read(text: &[u8]) -> Result<Self, String> {
        let file: File = serde_json::from_slice(text).map_err(|error| format!("it is malformed: {error}"))?;
        if file.version != VERSION {
            return Err(format!("it is of version {}, and {VERSION} is what is understood", file.version));
        }
        let read = |line: Line| {
            let Line { root, root_hex, name, name_hex, inode, birth, owner, until } = line;
            let exact = |text: String, hex: Option<String>| match hex {
                None => Ok(text.into_bytes()),
                Some(hex) => unhex(&hex).ok_or_else(|| format!("it is malformed: `{hex}` is not hexadecimal")),
            };
            let birth = birth.map(|(seconds, nanoseconds)| Timestamp::of(seconds, nanoseconds));
            Ok(Keep {
                root: exact(root, root_hex)?,
                entry: Kept { name: exact(name, name_hex)?, inode, birth },
                owner,
                until,
            })
        };
        file.keeps.into_iter().map(read).collect::<Result<_, String>>().map(Self)
    }

    /// The text of the file.
    #[must_use]
    pub fn write(&self) -> Vec<u8> {
        let line = |keep: &Keep| {
            let (root, name) = (Name(keep.root.clone()), Name(keep.entry.name.clone()));
            let birth = keep.entry.birth.map(|birth| {
                let seconds = i64::try_from(birth.0.div_euclid(1_000_000_000)).unwrap_or_default();
                (seconds, u32::try_from(birth.0.rem_euclid(1_000_000_000)).unwrap_or_default())
            });
            Line {
                root_hex: root.hex(),
                root: root.to_string(),
                name_hex: name.hex(),
                name: name.to_string(),
                inode: keep.entry.inode,
                birth,
                owner: keep.owner,
                until: keep.until,
            }
        };
        let file = File { version: VERSION, keeps: self.0.iter().map(line).collect() };
        serde_json::to_vec(&file).expect("the file has text keys only")
    }
}

/// What is kept in one root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeptIn {
    /// These, each until a time in seconds since 1970.
    Known(HashMap<Kept, i64>),
    /// The keeps could not be read, so everything is kept. Why, for people.
    Unknown(String),
}

impl KeptIn {
    /// Nothing.
    #[must_use]
    pub fn nothing() -> Self {
        Self::Known(HashMap::new())
    }

    /// Whether nothing is kept, as is known for sure.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        matches!(self, Self::Known(kept) if kept.is_empty())
    }

    /// The keep-until fence: whether an entry is kept now.
    #[must_use]
    pub fn holds(&self, name: &[u8], inode: u64, birth: Option<Timestamp>, now: Timestamp) -> bool {
        match self {
            Self::Known(kept) if kept.is_empty() => false,
            Self::Known(kept) => {
                let until = kept.get(&Kept { name: name.to_vec(), inode, birth });
                until.is_some_and(|until| lies_ahead(*until, now))
            }
            Self::Unknown(_) => true,
        }
    }

    /// Why they are not known; none when they are.
    #[must_use]
    pub fn fault(&self) -> Option<&str> {
        match self {
            Self::Unknown(why) => Some(why),
            Self::Known(_) => None,
        }
    }
}

fn lies_ahead(until: i64, now: Timestamp) -> bool {
    Timestamp::of(until, 0) > now
}

/// A keep as reports have it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename = "keep")]
pub struct KeepReport {
    /// The entry.
    pub path: Name,
    /// Its exact bytes where it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_hex: Option<String>,
    /// Who owned it when it was kept.
    pub owner: u32,
    /// Until when, RFC 3339.
    pub until: String,
}

impl From<&Keep> for KeepReport {
    fn from(keep: &Keep) -> Self {
        let path = Name([&keep.root[..], b"/", &keep.entry.name].concat());
        let until = calendar::written(Timestamp::of(keep.until, 0));
        Self { path_hex: path.hex(), path, owner: keep.owner, until }
    }
}

/// What became of a keep that was to end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename = "unkeep")]
pub struct UnkeepReport {
    /// The entry.
    pub path: Name,
    /// Its exact bytes where it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_hex: Option<String>,
    /// It was kept until now.
    pub was_kept: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: u32,
    keeps: Vec<Line>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    root: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    root_hex: Option<String>,
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name_hex: Option<String>,
    inode: u64,
    birth: Option<(i64, u32)>,
    owner: u32,
    until: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp(1_000_000_000_000);

    fn keep(name: &[u8], inode: u64, until: i64) -> Keep {
        let birth = Some(Timestamp::of(-3, 7));
        Keep { root: b"/r\xff".to_vec(), entry: Kept { name: name.to_vec(), inode, birth }, owner: 1000, until }
    }

    #[test]
    fn a_keep_is_of_one_file_and_ends() {
        let mut keeps = Keeps::default();
        keeps.add(keep(b"a", 7, 1_001), false).unwrap();
        keeps.add(keep(b"b", 8, 1_000), false).unwrap();
        let root = <std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(b"/r\xff");
        let kept = keeps.of_root(Path::new(root));
        let birth = Some(Timestamp::of(-3, 7));
        assert!(kept.holds(b"a", 7, birth, NOW));
        assert!(!kept.holds(b"a", 8, birth, NOW), "another file of the same name");
        assert!(!kept.holds(b"a", 7, None, NOW), "another birth, with an inode number that came round again");
        assert!(!kept.holds(b"c", 7, birth, NOW));
        assert!(!kept.holds(b"b", 8, birth, NOW), "it is over");
        assert!(!keeps.of_root(Path::new("/r")).holds(b"a", 7, birth, NOW));
        assert!(KeptIn::Unknown(String::new()).holds(b"x", 1, None, NOW));
        assert!(keeps.prune(NOW) && !keeps.prune(NOW));
        assert_eq!(keeps.iter().count(), 1);
    }

    #[test]
    fn the_file_is_read_as_it_was_written_or_not_at_all() {
        let mut keeps = Keeps::default();
        keeps.add(keep(b"a\xff\n", 7, 1_001), false).unwrap();
        keeps.add(keep(b"plain", u64::MAX, i64::MAX), false).unwrap();
        let text = keeps.write();
        assert_eq!(Keeps::read(&text), Ok(keeps));
        for cut in [0, 1, text.len() / 2, text.len() - 1] {
            assert!(Keeps::read(&text[..cut]).is_err(), "cut at {cut}");
        }
        for bad in [
            &br#"{"version":2,"keeps":[]}"#[..],
            br#"{"version":1,"keeps":[],"more":1}"#,
            br#"{"version":1,"keeps":[{"root":"/r","name":"","name_hex":"zz","inode":1,"birth":null,"owner":1,"until":1}]}"#,
        ] {
            assert!(Keeps::read(bad).is_err(), "{}", String::from_utf8_lossy(bad));
        }
    }

    #[test]
    fn one_user_cannot_fill_the_file() {
        let mut keeps = Keeps::default();
        for inode in 0..MOST_OF_ONE as u64 {
            keeps.add(keep(b"a", inode, 2_000), false).unwrap();
        }
        assert_eq!(keeps.add(keep(b"a", 1 << 40, 2_000), false), Err(Full::Owner));
        assert_eq!(keeps.add(keep(b"a", 3, 3_000), false), Ok(()), "in the place of its own");
        assert_eq!(keeps.add(keep(b"a", 1 << 40, 2_000), true), Ok(()), "but root may");
        assert_eq!(keeps.add(Keep { owner: 8, ..keep(b"a", 1 << 41, 2_000) }, false), Ok(()), "and another user");
    }

    #[test]
    fn whoever_has_more_than_the_most_by_root_may_still_keep_one_of_them_for_longer() {
        let mut keeps = Keeps::default();
        for number in 0..=MOST_OF_ONE as u64 {
            keeps.add(keep(b"a", number, 2_000), true).unwrap();
        }
        assert_eq!(keeps.add(keep(b"a", 5, 3_000), false), Ok(()));
        assert_eq!(keeps.add(keep(b"a", 5_000, 3_000), false), Err(Full::Owner));
    }
}
