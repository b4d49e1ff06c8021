//! `claims` of a root: who names the entries that are live.

use super::error::ConfigError;
use super::raw::{Field, Source};
use super::table::Inner;
use crate::model::purge::program_fault;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest time that claims are waited for unless another one is configured.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

/// Who names the entries that are live, one id a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimsConfig {
    /// Where the ids come from.
    pub source: ClaimsSource,
    /// Longest time that they are waited for.
    pub timeout: Duration,
}

/// Where the ids come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimsSource {
    /// The output of a program: its path or name and its arguments. No shell has a part in it.
    Command(Vec<String>),
    /// A regular file.
    File(PathBuf),
}

const REMEDY: &str = "write claims = { command = [\"acme\", \"list-live\"] } or claims = { file = \"/run/acme/live\" }";

/// Reads the table.
pub(super) fn read(source: &Source<'_>, field: &Field) -> Result<Option<ClaimsConfig>, ConfigError> {
    let Some(table) = Inner::of(source, "root.claims", field, REMEDY)? else { return Ok(None) };
    table.only(&["command", "file", "timeout"])?;
    let timeout = table.duration("timeout")?.unwrap_or(DEFAULT_TIMEOUT);
    if timeout.is_zero() {
        return Err(table.wrong("timeout", "must not be 0", "give it some time, such as \"10s\""));
    }
    let from = match (table.get("command"), table.string("file")?) {
        (Some(_), Some(_)) => return Err(table.wrong("", "has both `command` and `file`", "keep one of the two")),
        (None, None) => return Err(table.wrong("", "has neither `command` nor `file`", REMEDY)),
        (None, Some(file)) if Path::new(file).is_absolute() && !file.contains('\0') => {
            ClaimsSource::File(PathBuf::from(file))
        }
        (None, Some(file)) => {
            return Err(table.wrong("file", &format!("`{}` is not absolute", file.escape_debug()), "begin it with /"));
        }
        (Some(toml::Value::Array(words)), None) => {
            let words: Option<Vec<String>> = words.iter().map(|word| word.as_str().map(str::to_owned)).collect();
            match words {
                Some(words)
                    if words.first().is_some_and(|program| !program.is_empty())
                        && words.iter().all(|word| !word.contains('\0')) =>
                {
                    if let Some(fault) = program_fault(&words[0]) {
                        return Err(table.wrong("command", &fault.what, fault.remedy));
                    }
                    ClaimsSource::Command(words)
                }
                _ => return Err(table.wrong("command", "must be a list of strings, a program first", REMEDY)),
            }
        }
        (Some(_), None) => {
            return Err(table.wrong("command", "must be a list of strings; no shell splits or expands it", REMEDY));
        }
    };
    Ok(Some(ClaimsConfig { source: from, timeout }))
}
