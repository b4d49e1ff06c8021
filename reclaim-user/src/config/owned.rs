//! `[[owned]]` tables, and the command that removes what another manager owns.

use super::check::{choice, duration_of, flag, string, user, wrong_type};
use super::error::ConfigError;
use super::overlap::{self, Lineage};
use super::raw::{Field, Owned, Source};
use super::{KindRule, ManagedConfig, OwnedConfig, OwnedPath, RemoveCommand, RemoveRule, RootConfig};
use crate::model::fence;
use crate::model::purge::{CommandTemplate, Places, Template};
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
    let mut all: Vec<OwnedConfig> = Vec::new();
    let mut paths: Vec<(OwnedPath, Lineage)> = Vec::new();
    for raw in raw {
        let at = raw.span();
        let raw = raw.into_inner();
        let command_at = raw.command.as_ref().map_or(at.clone(), Spanned::span);
        let owned = match raw.path.as_ref().map(Spanned::span) {
            None => OwnedConfig::Managed(managed(source, &at, raw)?),
            Some(path_at) => {
                let owned = path(source, &at, raw)?;
                let lineage = Lineage::of(&owned.rules.path);
                beside(&owned, &lineage, &paths, roots, lineages)
                    .map_err(|(what, remedy)| source.wrong(path_at, "owned.path", what, remedy))?;
                paths.push((owned.clone(), lineage));
                OwnedConfig::Path(Box::new(owned))
            }
        };
        // The same for two paths is two things that one command is told of by their paths.
        let is_managed = |owned: &OwnedConfig| matches!(owned, OwnedConfig::Managed(_));
        let twice = |other: &OwnedConfig| {
            (is_managed(other) || is_managed(&owned)) && other.command().is_some() && other.command() == owned.command()
        };
        if all.iter().any(twice) {
            let remedy = "take one of the two out: it would be run twice for each id";
            return Err(source.wrong(command_at, "owned.command", "is there twice", remedy));
        }
        all.push(owned);
    }
    Ok(all)
}

/// What speaks against a path beside the others and the roots, and what to do about it.
fn beside(
    owned: &OwnedPath,
    lineage: &Lineage,
    others: &[(OwnedPath, Lineage)],
    roots: &[RootConfig],
    lineages: &[Lineage],
) -> Result<(), (String, &'static str)> {
    if others.iter().any(|(other, _)| other.template == owned.template) {
        return Err((format!("`{}` is there twice", owned.template), "take one of the two out"));
    }
    let parent = &owned.rules.path;
    for (root, root_lineage) in roots.iter().zip(lineages) {
        apart(parent, lineage, &root.path, root_lineage)
            .and_then(|()| below(parent, lineage, root, root_lineage))
            .map_err(|what| (what, "give ids a directory of their own, outside of what passes remove"))?;
    }
    for (other, other_lineage) in others {
        apart(parent, lineage, &other.rules.path, other_lineage)
            .map_err(|what| (what, "write both templates with the same directory"))?;
    }
    Ok(())
}

/// A table with a path.
fn path(source: &Source<'_>, at: &Range<usize>, raw: Owned) -> Result<OwnedPath, ConfigError> {
    let Owned { path, owner, kind, remove, leases, command, present, timeout } = raw;
    let Some((text, path_at)) = string(source, "owned.path", &path)? else {
        return Err(no_path(source, at));
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
    if let Some(field) = &present {
        let (what, remedy) = ("has no use with `path`, which tells whether it is there", "take the key out");
        return Err(source.wrong(field.span(), "owned.present", what, remedy));
    }
    let kinds = [("dir", KindRule::Directory), ("file", KindRule::File), ("any", KindRule::Any)];
    let kind = choice(source, "owned.kind", &kind, &kinds)?.unwrap_or(KindRule::Any);
    let places = Places::EntryAndId;
    let (remove, command) = removal(source, "owned", at, &remove, &command, &timeout, RemoveRule::Tree, places)?;
    let rules = RootConfig {
        owner: user(source, "owned.owner", &owner)?,
        kind,
        remove,
        leases: flag(source, "owned.leases", &leases)?.unwrap_or(true),
        command,
        ..RootConfig::without_fences(template.to_string(), parent.to_owned())
    };
    Ok(OwnedPath { template, rules })
}

/// A table without a path: a command has to remove what it is about.
fn managed(source: &Source<'_>, at: &Range<usize>, raw: Owned) -> Result<ManagedConfig, ConfigError> {
    let Owned { path: _, owner, kind, remove, leases, command, present, timeout } = raw;
    let places = Places::Id;
    // Whatever else is wrong, without a path and a command there is nothing that the table could be about.
    if remove.as_ref().is_none_or(|remove| remove.get_ref().as_str() != Some("command")) {
        return Err(no_path(source, at));
    }
    for (key, field) in [("owned.owner", &owner), ("owned.kind", &kind), ("owned.leases", &leases)] {
        if let Some(field) = field {
            let remedy = "take the key out, or name the `path`";
            return Err(source.wrong(field.span(), key, "has no use without `path`", remedy));
        }
    }
    let (_, command) = removal(source, "owned", at, &remove, &command, &timeout, RemoveRule::Command, places)?;
    let Some(RemoveCommand { words: command, limit, id: _ }) = command else { return Err(no_path(source, at)) };
    let example = "name a program and its arguments: present = [\"acme\", \"exists\", \"{id}\"]";
    let present_at = present.as_ref().map(Spanned::span);
    let present = present.map(|field| words(source, "owned.present", &field, example, places)).transpose()?;
    if let Some(at) = present_at.filter(|_| present.as_ref() == Some(&command)) {
        let (what, remedy) = ("is `command` once more: to ask would be to remove", "name what only tells of it");
        return Err(source.wrong(at, "owned.present", what, remedy));
    }
    Ok(ManagedConfig { command, present, limit })
}

fn no_path(source: &Source<'_>, at: &Range<usize>) -> ConfigError {
    let remedy = "name what belongs to an id: path = \"/.../{id}\"; or, for what has no path, remove = \"command\" and `command`";
    source.wrong(at.clone(), "owned.path", "is missing", remedy)
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
    places: Places,
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
    let words = words(source, &key("command"), field, example, places)?;
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

/// A program and its arguments.
fn words(
    source: &Source<'_>,
    key: &str,
    field: &Spanned<Value>,
    example: &str,
    places: Places,
) -> Result<CommandTemplate, ConfigError> {
    let words = match field.get_ref() {
        Value::Array(words) => words.iter().map(|word| word.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>(),
        _ => return Err(wrong_type(source, key, field, "a list of strings", example)),
    };
    let wrong = |what: String, remedy: &str| source.wrong(field.span(), key, what, remedy);
    let words = words.ok_or_else(|| wrong("must be a list of strings".to_owned(), example))?;
    CommandTemplate::parse(words, places).map_err(|fault| wrong(fault.what, fault.remedy))
}

#[cfg(test)]
#[path = "owned_tests.rs"]
mod tests;
