//! Templates: which path belongs to an id.

use super::id::{Id, NAME_MAX};
use crate::model::pin_set::CONDEMNED_DIRECTORY;
use std::path::{Component, Path, PathBuf};

/// What stands for the id.
const PLACEHOLDER: &str = "{id}";

/// A path with `{id}` in its last component.
///
/// Invariant: the parent is absolute, not `/`, without `.`, `..` and `.reclaim`; a name lies exactly one component below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    parent: PathBuf,
    prefix: String,
    suffix: String,
}

/// What is wrong with a template, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateFault {
    /// What is wrong.
    pub what: String,
    /// What to do.
    pub remedy: &'static str,
}

/// An id that names nothing which could be purged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExpandError {
    /// No file can have the name.
    #[error("the id `{id}` makes a name of {length} bytes in {}, and {NAME_MAX} are the most", parent.display())]
    TooLong {
        /// The id.
        id: String,
        /// The directory.
        parent: PathBuf,
        /// Length of the name.
        length: usize,
    },
    /// The name is reclaim's own or no name at all.
    #[error("the id `{id}` would name {}, which is never an id's", path.display())]
    Reserved {
        /// The id.
        id: String,
        /// The path.
        path: PathBuf,
    },
    /// The path is or holds a directory that ids share.
    #[error("the id `{id}` would name {}, and {} is shared: other ids have their own in it", path.display(), shared.display())]
    Shared {
        /// The id.
        id: String,
        /// The path.
        path: PathBuf,
        /// The root, or the directory of a template.
        shared: PathBuf,
    },
    /// The path is another id's.
    #[error("the id `{id}` would name {}, which {by} tells to be of the id `{other}`", path.display())]
    Sibling {
        /// The id.
        id: String,
        /// The path.
        path: PathBuf,
        /// The template or the root that tells so.
        by: String,
        /// Whose it is.
        other: String,
    },
    /// The command is another id's.
    #[error("the id `{id}` would have `{command}` run, which `{by}` tells to be of the id `{other}`")]
    Command {
        /// The id.
        id: String,
        /// The command, filled.
        command: String,
        /// The command that tells so.
        by: String,
        /// Whose it is.
        other: String,
    },
}

impl Template {
    /// Reads a template.
    ///
    /// # Errors
    /// What is wrong with it. Whether its directory exists is not looked at.
    pub fn parse(text: &str) -> Result<Self, TemplateFault> {
        let fault = |what: String, remedy| Err(TemplateFault { what, remedy });
        let path = Path::new(text);
        if text.contains('\0') {
            return fault("holds a NUL".to_owned(), "no path can hold one: take it out");
        }
        if !path.is_absolute() {
            return fault(format!("`{text}` is not absolute"), "begin it with /");
        }
        if path.components().any(|part| part == Component::ParentDir) {
            return fault(format!("`{text}` holds `..`"), "write the path without `..`");
        }
        let found = text.matches(PLACEHOLDER).count();
        if found != 1 {
            let what = if found == 0 { "holds no {id}" } else { "holds {id} more than once" };
            return fault(
                format!("`{text}` {what}"),
                "put {id} into its last component, once: it stands for the id that is purged",
            );
        }
        let (Some(parent), Some(Component::Normal(last))) = (path.parent(), path.components().next_back()) else {
            return fault(format!("`{text}` names no entry of a directory"), "end it with a component that holds {id}");
        };
        let last = last.to_str().unwrap_or_default();
        let Some((prefix, suffix)) = last.split_once(PLACEHOLDER) else {
            return fault(
                format!("`{text}` has {{id}} before its last component"),
                "let it end with the component that holds {id}; what lies below goes with it",
            );
        };
        if text.replacen(PLACEHOLDER, "", 1).contains(['{', '}']) {
            return fault(format!("`{text}` holds braces that mean nothing"), "only {id} stands for something");
        }
        if parent.parent().is_none() {
            return fault(format!("`{text}` lies directly in `/`"), "let ids have a directory of their own");
        }
        let own = |part: Component<'_>| part.as_os_str().as_encoded_bytes() == CONDEMNED_DIRECTORY;
        if parent.components().any(own) || is_own(last.as_bytes()) {
            return fault(format!("`{text}` names what reclaim keeps for itself"), "leave `.reclaim` to reclaim");
        }
        if prefix.len() + suffix.len() >= NAME_MAX {
            return fault(format!("`{text}` leaves no room for an id"), "no name is longer than 255 bytes: shorten it");
        }
        Ok(Self { parent: parent.components().collect(), prefix: prefix.to_owned(), suffix: suffix.to_owned() })
    }

    /// The name in its directory, with a place for the id.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}{PLACEHOLDER}{}", self.prefix, self.suffix)
    }

    /// The directory that the template lies in, which ids share.
    #[must_use]
    pub fn parent(&self) -> &Path {
        &self.parent
    }

    /// Bytes of a name that are no part of the id. Of several templates that fit a name, the one with the most tells whose it
    /// is.
    #[must_use]
    pub fn literal(&self) -> usize {
        self.prefix.len() + self.suffix.len()
    }

    /// The id that a name in its directory belongs to by this template; none when it fits no id.
    #[must_use]
    pub fn tells(&self, name: &str) -> Option<Id> {
        name.strip_prefix(&self.prefix)?.strip_suffix(&self.suffix).and_then(|id| Id::parse(id.as_bytes()).ok())
    }

    /// The name in that directory which belongs to an id. `shared`: directories that no id may name, or name one above.
    ///
    /// # Errors
    /// When the name is none that could belong to an id alone.
    pub fn expand(&self, id: &Id, shared: &[PathBuf]) -> Result<String, ExpandError> {
        let name = format!("{}{id}{}", self.prefix, self.suffix);
        let told = || id.to_string();
        if name.len() > NAME_MAX {
            return Err(ExpandError::TooLong { id: told(), parent: self.parent.clone(), length: name.len() });
        }
        let path = self.parent.join(&name);
        if is_own(name.as_bytes()) || matches!(name.as_str(), "." | "..") {
            return Err(ExpandError::Reserved { id: told(), path });
        }
        match shared_by(&path, shared) {
            Some(shared) => Err(ExpandError::Shared { id: told(), path, shared: shared.to_owned() }),
            None => Ok(name),
        }
    }
}

impl std::fmt::Display for Template {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}/{}{PLACEHOLDER}{}", self.parent.display(), self.prefix, self.suffix)
    }
}

/// Whose a name is by one of some templates of its directory, where that is not the id that it was made of; with the template.
/// `own`: the one that made it. One with fewer literal bytes has no say: `{id}` fits every name.
pub fn told_otherwise<'t>(
    name: &str,
    id: &Id,
    own: Option<&Template>,
    templates: impl IntoIterator<Item = &'t Template>,
) -> Option<(&'t Template, Id)> {
    let least = own.map_or(1, Template::literal);
    let others = templates.into_iter().filter(|other| Some(*other) != own && other.literal() >= least);
    others.filter_map(|other| Some((other, other.tells(name)?))).find(|(_, told)| told != id)
}

/// The first of some directories that a path is, or holds.
#[must_use]
pub fn shared_by<'a>(path: &Path, shared: &'a [PathBuf]) -> Option<&'a Path> {
    shared.iter().map(PathBuf::as_path).find(|shared| shared.starts_with(path))
}

/// Names that removal uses itself: `.reclaim`, and `.reclaim-…` where there is no room for that.
fn is_own(name: &[u8]) -> bool {
    name.strip_prefix(CONDEMNED_DIRECTORY).is_some_and(|rest| matches!(rest, [] | [b'-', ..]))
}
