//! Values of a table that is itself the value of a key. Their places are not known, so errors name the line of the key.

use super::check::article;
use super::duration;
use super::error::ConfigError;
use super::raw::{Field, Source};
use std::ops::Range;
use std::time::Duration;
use toml::{Table, Value};

/// The table of one key.
pub(super) struct Inner<'a> {
    source: &'a Source<'a>,
    key: &'static str,
    at: Range<usize>,
    table: &'a Table,
}

impl<'a> Inner<'a> {
    /// The table of a key; none when the key is not there.
    pub(super) fn of(
        source: &'a Source<'a>,
        key: &'static str,
        field: &'a Field,
        remedy: &str,
    ) -> Result<Option<Self>, ConfigError> {
        let Some(field) = field else { return Ok(None) };
        match field.get_ref() {
            Value::Table(table) => Ok(Some(Self { source, key, at: field.span(), table })),
            other => {
                let what = format!("must be a table, not {}", article(other));
                Err(source.wrong(field.span(), key, what, remedy))
            }
        }
    }

    /// An error about one of its keys, or about the table with an empty key.
    pub(super) fn wrong(&self, key: &str, what: &str, remedy: &str) -> ConfigError {
        let key = if key.is_empty() { self.key.to_owned() } else { format!("{}.{key}", self.key) };
        self.source.wrong(self.at.clone(), &key, what, remedy)
    }

    /// Refuses every other key.
    pub(super) fn only(&self, known: &[&str]) -> Result<(), ConfigError> {
        match self.table.keys().find(|key| !known.contains(&key.as_str())) {
            None => Ok(()),
            Some(key) => Err(self.wrong(key, "unknown key", &format!("known here are {}", known.join(", ")))),
        }
    }

    /// A value as it is.
    pub(super) fn get(&self, key: &str) -> Option<&'a Value> {
        self.table.get(key)
    }

    /// A string.
    pub(super) fn string(&self, key: &str) -> Result<Option<&'a str>, ConfigError> {
        match self.table.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => {
                let what = format!("must be a string, not {}", article(other));
                Err(self.wrong(key, &what, "put the value between quotes"))
            }
        }
    }

    /// A duration.
    pub(super) fn duration(&self, key: &str) -> Result<Option<Duration>, ConfigError> {
        let Some(text) = self.string(key)? else { return Ok(None) };
        duration::parse(text).map(Some).map_err(|what| self.wrong(key, &what, duration::REMEDY))
    }
}
