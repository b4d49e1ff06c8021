//! The configuration as it is written: shape and unknown keys only. Values stay as they are, each with its place.

use super::error::ConfigError;
use serde::Deserialize;
use std::ops::Range;
use std::path::Path;
use toml::{Spanned, Value};

/// A value with its place in the file, or nothing.
pub(super) type Field = Option<Spanned<Value>>;

/// Keys at the top of the file.
pub(super) const DOCUMENT_KEYS: &[&str] = &["service", "root", "owned"];
/// Keys of `[service]`.
pub(super) const SERVICE_KEYS: &[&str] =
    &["every", "budget", "state_dir", "socket", "metrics", "refuse_binds", "holds"];
/// Keys of `[[root]]`.
pub(super) const ROOT_KEYS: &[&str] = &[
    "name",
    "path",
    "owner",
    "match",
    "kind",
    "mode",
    "min_age",
    "backstop",
    "retain",
    "retain_from",
    "remove",
    "pile",
    "once",
    "leases",
    "claims",
    "command",
    "timeout",
];
/// Keys of `[[owned]]`.
pub(super) const OWNED_KEYS: &[&str] = &["path", "owner", "kind", "remove", "leases", "command", "present", "timeout"];

/// The whole file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Document {
    pub(super) service: Option<Service>,
    #[serde(default)]
    pub(super) root: Vec<Spanned<Root>>,
    #[serde(default)]
    pub(super) owned: Vec<Spanned<Owned>>,
}

/// `[service]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Service {
    pub(super) every: Field,
    pub(super) budget: Field,
    pub(super) state_dir: Field,
    pub(super) socket: Field,
    pub(super) metrics: Field,
    pub(super) refuse_binds: Field,
    pub(super) holds: Field,
}

/// `[[root]]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Root {
    pub(super) name: Field,
    pub(super) path: Field,
    pub(super) owner: Field,
    #[serde(rename = "match")]
    pub(super) pattern: Field,
    pub(super) kind: Field,
    pub(super) mode: Field,
    pub(super) min_age: Field,
    pub(super) backstop: Field,
    pub(super) retain: Field,
    pub(super) retain_from: Field,
    pub(super) remove: Field,
    pub(super) pile: Field,
    pub(super) once: Field,
    pub(super) leases: Field,
    pub(super) claims: Field,
    pub(super) command: Field,
    pub(super) timeout: Field,
}

/// `[[owned]]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Owned {
    pub(super) path: Field,
    pub(super) owner: Field,
    pub(super) kind: Field,
    pub(super) remove: Field,
    pub(super) leases: Field,
    pub(super) command: Field,
    pub(super) present: Field,
    pub(super) timeout: Field,
}

/// The text and where it came from: makes errors that name file, line and key.
pub(super) struct Source<'a> {
    pub(super) file: &'a Path,
    pub(super) text: &'a str,
}

impl Source<'_> {
    /// Line of a place in the text, counted from 1.
    pub(super) fn line(&self, at: usize) -> usize {
        let at = at.min(self.text.len());
        1 + self.text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count()
    }

    /// An error at a place in the text.
    pub(super) fn wrong(
        &self,
        at: Range<usize>,
        key: &str,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) -> ConfigError {
        ConfigError::Wrong {
            file: self.file.to_path_buf(),
            line: self.line(at.start),
            key: key.to_owned(),
            what: what.into(),
            remedy: remedy.into(),
        }
    }

    /// Reads the shape of the file.
    pub(super) fn document(&self) -> Result<Document, ConfigError> {
        toml::from_str(self.text).map_err(|error| self.shape(&error))
    }

    fn shape(&self, error: &toml::de::Error) -> ConfigError {
        let at = error.span().unwrap_or(0..0);
        let table = self.table_of(at.start);
        let message = error.message();
        if message.starts_with("unknown field") {
            let key = self.text.get(at.clone()).unwrap_or_default().trim_matches(['"', '\'']).to_owned();
            let (known, key) = match table {
                "service" => (SERVICE_KEYS, format!("service.{key}")),
                "root" => (ROOT_KEYS, format!("root.{key}")),
                "owned" => (OWNED_KEYS, format!("owned.{key}")),
                _ => (DOCUMENT_KEYS, key),
            };
            let bare = key.rsplit('.').next().unwrap_or(&key);
            return self.wrong(at, &key, "unknown key", nearest(bare, known));
        }
        let line = self.text.lines().nth(self.line(at.start) - 1).unwrap_or_default();
        let left = line.split('=').next().unwrap_or_default().trim().trim_matches(['[', ']']);
        let key = match (table, left) {
            ("service" | "root" | "owned", left) if line.contains('=') => format!("{table}.{left}"),
            _ => left.to_owned(),
        };
        let what = message.trim_end_matches('\n').replace('\n', ", ");
        let remedy = if what.contains("invalid type") {
            "write [service] once as a table, and every root and template as a table of its own under [[root]] and [[owned]]"
        } else {
            "mend the TOML syntax in this line"
        };
        self.wrong(at, &key, what, remedy)
    }

    /// Name of the table that a place lies in, read from the headers above it.
    fn table_of(&self, at: usize) -> &str {
        let above = self.text.get(..at).unwrap_or_default();
        let header = above.lines().rev().map(str::trim_start).find(|line| line.starts_with('['));
        header.map_or("", |header| header.trim_start_matches('[')).split([']', '.']).next().map_or("", str::trim)
    }
}

/// What to do about an unknown key.
fn nearest(key: &str, known: &[&str]) -> String {
    let best = known.iter().map(|candidate| (strsim::damerau_levenshtein(key, candidate), candidate)).min();
    match best {
        Some((distance, candidate)) if distance <= 2.max(candidate.len() / 3) => format!("did you mean `{candidate}`?"),
        _ => format!("known here are {}", known.join(", ")),
    }
}
