//! `retain_from` of a root: a manifest in each entry that says when the entry began.

use super::RemoveRule;
use super::error::ConfigError;
use super::raw::{Field, Source};
use super::table::Inner;
use std::ffi::CString;

/// A JSON manifest in each entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetainFrom {
    /// Its name in the entry: one component.
    pub file: CString,
    /// The field that says when the entry began: RFC 3339 text, or seconds since 1970.
    pub field: String,
    /// The field with the deadline that was recorded when the entry was taken in.
    pub deadline: Option<String>,
    /// What holds for an entry without one.
    pub absent: WithoutRecord,
    /// What holds for an entry whose manifest makes no sense.
    pub broken: WithoutRecord,
}

/// What holds where a manifest says nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WithoutRecord {
    /// The window counts from birth.
    Birth,
    /// The entry is kept.
    Keep,
}

const REMEDY: &str = "write retain_from = { file = \"manifest.json\", field = \"created_at\" }";

/// Reads the table. `window`: there is a retention window.
pub(super) fn read(
    source: &Source<'_>,
    field: &Field,
    window: bool,
    remove: RemoveRule,
) -> Result<Option<RetainFrom>, ConfigError> {
    let Some(table) = Inner::of(source, "root.retain_from", field, REMEDY)? else { return Ok(None) };
    table.only(&["file", "field", "deadline", "absent", "broken"])?;
    if !window {
        return Err(table.wrong("", "says what a window counts from, but there is none", "add retain = \"72h\""));
    }
    if remove == RemoveRule::Empty {
        let what = "needs entries that hold a manifest, and remove = \"empty\" takes only what holds nothing";
        return Err(table.wrong("", what, "set remove = \"tree\", or take `retain_from` out"));
    }
    let given = |key: &str| {
        table.string(key)?.filter(|text| !text.is_empty()).ok_or_else(|| table.wrong(key, "is missing", REMEDY))
    };
    let file = given("file")?;
    let one_component = !file.contains('/') && file != "." && file != "..";
    let file = CString::new(file).ok().filter(|_| one_component).ok_or_else(|| {
        table.wrong("file", "is not the name of one file in the entry", "write it without `/`, as \"manifest.json\"")
    })?;
    let rule = |key: &str| match table.string(key)? {
        None | Some("keep") => Ok(WithoutRecord::Keep),
        Some("birth") => Ok(WithoutRecord::Birth),
        Some(other) => Err(table.wrong(key, &format!("`{other}` is not a choice"), "use \"birth\" or \"keep\"")),
    };
    Ok(Some(RetainFrom {
        file,
        field: given("field")?.to_owned(),
        deadline: table.string("deadline")?.map(str::to_owned),
        absent: rule("absent")?,
        broken: rule("broken")?,
    }))
}
