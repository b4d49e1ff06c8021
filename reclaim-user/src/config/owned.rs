//! `[[owned]]` tables, and the command that removes what another manager owns.

use super::check::{choice, duration_of, flag, string, user, wrong_type};
use super::error::ConfigError;
use super::overlap::{self, Lineage};
use super::raw::{Field, Owned, Source};
use super::{KindRule, OwnedConfig, RemoveCommand, RemoveRule, RootConfig};
use crate::model::fence;
use crate::model::purge::{CommandTemplate, Template};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Duration;
use toml::{Spanned, Value};

/// How long a command may take where nothing else is said.
const LIMIT: Duration = Duration::from_secs(60);

/// Reads every `[[owned]]` table.
pub(super) fn all(
    source: &Source<'_>,
    raw: Vec<Spanned<Owned>>,
    roots: &[RootConfig],
    lineages: &[Lineage],
) -> Result<Vec<OwnedConfig>, ConfigError> {
    let mut all: Vec<(OwnedConfig, Lineage)> = Vec::new();
    for raw in raw {
        let at = raw.span();
        let raw = raw.into_inner();
        let path_at = raw.path.as_ref().map_or(at.clone(), Spanned::span);
        let owned = one(source, &at, raw)?;
        let wrong = |what: String, remedy: &str| source.wrong(path_at.clone(), "owned.path", what, remedy);
        if all.iter().any(|(other, _)| other.template == owned.template) {
            return Err(wrong(format!("`{}` is there twice", owned.template), "take one of the two out"));
        }
        let parent = &owned.rules.path;
        let lineage = Lineage::of(parent);
        for (root, root_lineage) in roots.iter().zip(lineages) {
            apart(parent, &lineage, &root.path, root_lineage)
                .and_then(|()| below(parent, &lineage, root, root_lineage))
                .map_err(|what| wrong(what, "give ids a directory of their own, outside of what passes remove"))?;
        }
        for (other, other_lineage) in &all {
            apart(parent, &lineage, &other.rules.path, other_lineage)
                .map_err(|what| wrong(what, "write both templates with the same directory"))?;
        }
        all.push((owned, lineage));
    }
    Ok(all.into_iter().map(|(owned, _)| owned).collect())
}

fn one(source: &Source<'_>, at: &Range<usize>, raw: Owned) -> Result<OwnedConfig, ConfigError> {
    let Owned { path, owner, kind, remove, leases, command, timeout } = raw;
    let Some((text, path_at)) = string(source, "owned.path", &path)? else {
        let remedy = "name what belongs to an id: path = \"/.../{id}\"";
        return Err(source.wrong(at.clone(), "owned.path", "is missing", remedy));
    };
    let wrong = |what: String, remedy: &str| source.wrong(path_at.clone(), "owned.path", what, remedy);
    let template = Template::parse(text).map_err(|fault| wrong(fault.what, fault.remedy))?;
    let parent = template.parent();
    if let Some(link) = overlap::link_in(parent) {
        let what = format!("{} is or goes through the symbolic link {}", parent.display(), link.display());
        return Err(wrong(what, "name the directory itself"));
    }
    if std::fs::symlink_metadata(parent).is_ok_and(|stat| !stat.is_dir()) {
        return Err(wrong(format!("{} is not a directory", parent.display()), "put {id} below a directory"));
    }
    let kinds = [("dir", KindRule::Directory), ("file", KindRule::File), ("any", KindRule::Any)];
    let kind = choice(source, "owned.kind", &kind, &kinds)?.unwrap_or(KindRule::Any);
    let (remove, command) = removal(source, "owned", at, &remove, &command, &timeout, RemoveRule::Tree, true)?;
    let rules = RootConfig {
        owner: user(source, "owned.owner", &owner)?,
        kind,
        remove,
        leases: flag(source, "owned.leases", &leases)?.unwrap_or(true),
        command,
        ..RootConfig::without_fences(template.to_string(), parent.to_owned())
    };
    Ok(OwnedConfig { template, rules })
}

/// Two paths to one directory would be locked and counted as two.
fn apart(parent: &Path, lineage: &Lineage, other: &Path, other_lineage: &Lineage) -> Result<(), String> {
    let same = lineage.inside(other_lineage) && other_lineage.inside(lineage);
    if same && parent != other {
        return Err(format!("{} is {} by another path", parent.display(), other.display()));
    }
    Ok(())
}

/// A template may share its directory with a root, or lie in a directory of the root that is no entry. Inside an entry
/// it would go with that.
fn below(parent: &Path, lineage: &Lineage, root: &RootConfig, root_lineage: &Lineage) -> Result<(), String> {
    let inside = |entry: &str| {
        Err(format!("{} lies inside {entry} of the root `{}`, which a pass may remove", parent.display(), root.name))
    };
    match parent.strip_prefix(&root.path).map(|rest| rest.components().next()) {
        Ok(None) => Ok(()),
        Ok(Some(entry)) => {
            let name = entry.as_os_str();
            match fence::name(root.pattern.as_ref(), name.as_bytes()) {
                Some(_) => inside(&format!("the entry `{}`", name.display())),
                None => Ok(()),
            }
        }
        Err(_) if lineage.inside(root_lineage) && !root_lineage.inside(lineage) => inside("an entry"),
        Err(_) => Ok(()),
    }
}

/// `remove`, `command` and `timeout` of one table.
#[expect(clippy::too_many_arguments, reason = "three keys of either of two tables, and what each table adds to them")]
pub(super) fn removal(
    source: &Source<'_>,
    table: &str,
    at: &Range<usize>,
    remove: &Field,
    command: &Field,
    timeout: &Field,
    default: RemoveRule,
    has_id: bool,
) -> Result<(RemoveRule, Option<RemoveCommand>), ConfigError> {
    let key = |key: &str| format!("{table}.{key}");
    let rules = [("empty", RemoveRule::Empty), ("tree", RemoveRule::Tree), ("command", RemoveRule::Command)];
    let rule = choice(source, &key("remove"), remove, &rules)?.unwrap_or(default);
    let is_command = rule == RemoveRule::Command;
    for (name, field) in [("command", command), ("timeout", timeout)] {
        if let Some(field) = field
            && !is_command
        {
            let remedy = "add remove = \"command\", or take the key out";
            return Err(source.wrong(field.span(), &key(name), "has no use without remove = \"command\"", remedy));
        }
    }
    if !is_command {
        return Ok((rule, None));
    }
    let example = "name the program and its arguments: command = [\"acme\", \"rm\", \"{id}\"]";
    let Some(field) = command else {
        let at = remove.as_ref().map_or(at.clone(), Spanned::span);
        return Err(source.wrong(at, &key("command"), "is missing", example));
    };
    let words = match field.get_ref() {
        Value::Array(words) => words.iter().map(|word| word.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>(),
        _ => return Err(wrong_type(source, &key("command"), field, "a list of strings", example)),
    };
    let wrong = |what: String, remedy: &str| source.wrong(field.span(), &key("command"), what, remedy);
    let words = words.ok_or_else(|| wrong("must be a list of strings".to_owned(), example))?;
    let words = CommandTemplate::parse(words, has_id).map_err(|fault| wrong(fault.what, fault.remedy))?;
    let limit = match duration_of(source, &key("timeout"), timeout)? {
        Some((Duration::ZERO, at)) => {
            let remedy = "give it some time, such as \"60s\"";
            return Err(source.wrong(at, &key("timeout"), "must not be 0", remedy));
        }
        Some((limit, _)) => limit,
        None => LIMIT,
    };
    Ok((rule, Some(RemoveCommand { words, limit, id: None })))
}

#[cfg(test)]
#[path = "owned_tests.rs"]
mod tests;
