//! References to condemned entries that are no mounts, but let whoever has them make one.

use super::id::Location;
use super::pin::Place;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// How a process refers to a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReferenceKind {
    /// By an open descriptor, `O_PATH` or not.
    Descriptor,
    /// As the working directory of a thread.
    WorkingDirectory,
    /// As the root directory of a thread.
    Root,
    /// As the program that it runs.
    Executable,
    /// The kernel counts one that no look shows, such as a descriptor on its way through a socket.
    Counted,
    /// It is not known: mounts were made in each of the moments that it was looked at.
    Unsettled,
    /// It is not known: the entry could not be looked at whole.
    Unknown,
}

/// One reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reference {
    /// How.
    pub kind: ReferenceKind,
    /// The process, by its number in reclaim's pid namespace; none where that is not known.
    pub process: Option<u32>,
    /// At the entry or below it.
    pub place: Place,
}

impl Reference {
    /// Whether somebody is known to have it. Otherwise it only says that nobody could tell.
    #[must_use]
    pub fn is_certain(&self) -> bool {
        !matches!(self.kind, ReferenceKind::Unsettled | ReferenceKind::Unknown)
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, process, place } = self;
        match kind {
            ReferenceKind::Unknown => {
                return f.write_str("it could not be looked at whole for descriptors and directories of processes");
            }
            ReferenceKind::Unsettled => {
                return f.write_str(
                    "mounts were made or could have been made whenever it was looked at, and one could be of it",
                );
            }
            ReferenceKind::Counted => return f.write_str("the kernel counts a reference to it that no process shows"),
            _ => {}
        }
        match process {
            Some(process) => write!(f, "process {process} has ")?,
            None => f.write_str("a process has ")?,
        }
        f.write_str(match place {
            Place::Exact => "it",
            Place::Below => "something below it",
        })?;
        f.write_str(match kind {
            ReferenceKind::Descriptor => " open by a descriptor",
            ReferenceKind::WorkingDirectory => " as its working directory",
            ReferenceKind::Root => " as its root directory",
            ReferenceKind::Executable | ReferenceKind::Counted | ReferenceKind::Unsettled | ReferenceKind::Unknown => {
                " as the program that it runs"
            }
        })
    }
}

/// What references to a place that somebody asks about are kept by.
#[must_use]
pub fn place_key(place: &Location) -> Vec<u8> {
    // Without the slash of `/`, so that a name and a slash before it lead on from any place.
    [place.device.to_string().as_bytes(), place.path.strip_suffix(b"/").unwrap_or(&place.path)].concat()
}

/// References to the condemned entries of one root, by what the pin set calls an entry (`.reclaim/BATCH/NAME`), or to
/// places that somebody asks about (see [`place_key`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct References {
    by_entry: BTreeMap<Vec<u8>, Vec<Reference>>,
}

impl References {
    /// None at all.
    pub const NONE: Self = Self { by_entry: BTreeMap::new() };

    /// Adds one, once.
    pub fn add(&mut self, entry: Vec<u8>, reference: Reference) {
        let known = self.by_entry.entry(entry).or_default();
        if !known.contains(&reference) {
            known.push(reference);
        }
    }

    /// Adds all of another set.
    pub fn extend(&mut self, others: Self) {
        for (entry, references) in others.by_entry {
            for reference in references {
                self.add(entry.clone(), reference);
            }
        }
    }

    /// The references to an entry.
    #[must_use]
    pub fn of(&self, entry: &[u8]) -> &[Reference] {
        self.by_entry.get(entry).map_or(&[], Vec::as_slice)
    }

    /// References in words; none where there are none.
    #[must_use]
    pub fn words(&self, entry: &[u8]) -> Option<String> {
        /// Told one by one.
        const SHOWN: usize = 3;
        let of = self.of(entry);
        let mut words: Vec<String> = of.iter().take(SHOWN).map(Reference::to_string).collect();
        if of.len() > SHOWN {
            words.push(format!("and {} more", of.len() - SHOWN));
        }
        (!words.is_empty()).then(|| words.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_kept_once_and_told_in_words() {
        let mut references = References::NONE;
        assert_eq!(references.words(b"a"), None);
        let reference = Reference { kind: ReferenceKind::WorkingDirectory, process: Some(7), place: Place::Below };
        references.add(b"a".to_vec(), reference);
        references.add(b"a".to_vec(), reference);
        assert_eq!(references.of(b"a"), [reference]);
        assert_eq!(references.of(b"ab"), []);
        let words = references.words(b"a").expect("there is one");
        assert_eq!(words, "process 7 has something below it as its working directory");
        for process in 8..12 {
            references.add(b"a".to_vec(), Reference { process: Some(process), ..reference });
        }
        assert!(references.words(b"a").is_some_and(|words| words.ends_with("and 2 more")));
    }
}
