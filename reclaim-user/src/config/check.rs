//! From what is written to what is meant. The first fault ends it.

use super::error::ConfigError;
use super::overlap::{self, Lineage};
use super::raw::{Field, Root, Service, Source};
use super::{Config, KindRule, RemoveRule, RootConfig, ServiceConfig, claims, duration, pattern, retain};
use super::{own, owned};
use crate::model::purge::Places;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;
use toml::Value;

/// Checks a whole file.
pub(super) fn check(source: &Source<'_>) -> Result<(Config, Vec<String>), ConfigError> {
    let document = source.document()?;
    let mut notes = Vec::new();
    let service = document.service.map_or_else(|| Ok(ServiceConfig::default()), |raw| service(source, &raw))?;
    let mut roots: Vec<(RootConfig, Range<usize>, Lineage)> = Vec::new();
    let files = own::files(&service, source.file);
    for raw in document.root {
        let at = raw.span();
        let raw = raw.into_inner();
        let place = raw.path.as_ref().map_or(at.clone(), toml::Spanned::span);
        let name_at = raw.name.as_ref().map_or(at.clone(), toml::Spanned::span);
        let root = root(source, &at, raw, &mut notes)?;
        let lineage = Lineage::of(&root.path);
        for (other, _, other_lineage) in &roots {
            if other.name == root.name {
                let what = format!("two roots are called `{}`", root.name);
                return Err(source.wrong(name_at, "root.name", what, "give each root a name of its own"));
            }
            let inner = overlap::inside(&root.path, &other.path) || lineage.inside(other_lineage);
            if inner || overlap::inside(&other.path, &root.path) || other_lineage.inside(&lineage) {
                let relation = if inner { "is or lies inside" } else { "holds" };
                let what = format!(
                    "`{}` ({}) {relation} the root `{}` ({})",
                    root.name,
                    root.path.display(),
                    other.name,
                    other.path.display()
                );
                return Err(source.wrong(place, "root.path", what, "roots must not overlap: keep one of the two"));
            }
        }
        own::in_entries(&root, &lineage, &files).map_err(|what| {
            let remedy = "keep what reclaim needs itself elsewhere, or let `match` leave that name out";
            source.wrong(place.clone(), "root.path", what, remedy)
        })?;
        roots.push((root, place, lineage));
    }
    let (roots, lineages): (Vec<_>, Vec<_>) = roots.into_iter().map(|(root, _, lineage)| (root, lineage)).unzip();
    let owned = owned::all(source, document.owned, &roots, &lineages)?;
    Ok((Config { service, roots, owned }, notes))
}

fn service(source: &Source<'_>, raw: &Service) -> Result<ServiceConfig, ConfigError> {
    let Service { every, budget, state_dir, socket, metrics, refuse_binds, holds } = raw;
    let default = ServiceConfig::default();
    let above_zero = |key: &str, field: &Field, default: Duration| match duration_of(source, key, field)? {
        Some((Duration::ZERO, at)) => Err(source.wrong(at, key, "must not be 0", "give it some time, such as \"10s\"")),
        Some((value, _)) => Ok(value),
        None => Ok(default),
    };
    let metrics = match string(source, "service.metrics", metrics)? {
        None => None,
        Some((text, at)) => Some(text.parse().map_err(|_| {
            let what = format!("`{text}` is not an address with a port");
            source.wrong(at, "service.metrics", what, "write it as \"127.0.0.1:9467\" or \"[::1]:9467\"")
        })?),
    };
    Ok(ServiceConfig {
        every: above_zero("service.every", every, default.every)?,
        budget: above_zero("service.budget", budget, default.budget)?,
        state_dir: path(source, "service.state_dir", state_dir)?.map_or(default.state_dir, |(path, _)| path),
        socket: path(source, "service.socket", socket)?.map_or(default.socket, |(path, _)| path),
        metrics,
        refuse_binds: flag(source, "service.refuse_binds", refuse_binds)?.unwrap_or(default.refuse_binds),
        holds: path(source, "service.holds", holds)?.map(|(path, _)| path),
    })
}

fn root(source: &Source<'_>, at: &Range<usize>, raw: Root, notes: &mut Vec<String>) -> Result<RootConfig, ConfigError> {
    let Root {
        name,
        path: place,
        owner,
        pattern,
        kind,
        mode,
        min_age,
        backstop,
        retain,
        retain_from,
        remove,
        pile,
        once,
        leases,
        claims,
        command,
        timeout,
    } = raw;
    let missing = |key: &str, remedy: &str| source.wrong(at.clone(), key, "is missing", remedy);
    let (name, name_at) = string(source, "root.name", &name)?
        .ok_or_else(|| missing("root.name", "give the root a name for reports: name = \"...\""))?;
    if name.is_empty() || name.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err(source.wrong(name_at, "root.name", "is empty or holds spaces", "use letters, digits, `-` and `_`"));
    }
    // What is known of the directory of a template is kept under the template's text.
    if name.contains(['/', '{', '}']) {
        let what = format!("`{name}` holds `/`, `{{` or `}}`, by which templates are told from roots");
        return Err(source.wrong(name_at, "root.name", what, "use letters, digits, `-` and `_`"));
    }
    let (path, path_at) = path(source, "root.path", &place)?
        .ok_or_else(|| missing("root.path", "name the directory whose children may go: path = \"/...\""))?;
    usable(source, &path, path_at)?;
    let owner = user(source, "root.owner", &owner)?;
    let pattern_at = pattern.as_ref().map(toml::Spanned::span);
    let pattern = match string(source, "root.match", &pattern)? {
        None => None,
        Some((text, at)) => {
            let (regex, said) = pattern::compile(text)
                .map_err(|pattern::Fault(what, remedy)| source.wrong(at.clone(), "root.match", what, remedy))?;
            let line = source.line(at.start);
            notes
                .extend(said.into_iter().map(|note| format!("{}:{line}: `root.match`: {note}", source.file.display())));
            Some(regex)
        }
    };
    let keyed = pattern.as_ref().is_some_and(|regex| regex.capture_names().flatten().any(|group| group == "pid"));
    let backstop = duration_of(source, "root.backstop", &backstop)?;
    if let Some((_, at)) = &backstop
        && !keyed
    {
        let what = "says when a pid need not be dead, but no group `pid` is in `match`";
        let at = pattern_at.unwrap_or_else(|| at.clone());
        return Err(source.wrong(at, "root.backstop", what, "put (?<pid>\\d+) into `match`, or take `backstop` out"));
    }
    let kind = choice(
        source,
        "root.kind",
        &kind,
        &[("dir", KindRule::Directory), ("file", KindRule::File), ("any", KindRule::Any)],
    )?;
    let has_id = pattern.as_ref().is_some_and(|regex| regex.capture_names().flatten().any(|group| group == "id"));
    let places = if has_id { Places::EntryAndId } else { Places::Entry };
    let (remove, command) = owned::removal(source, "root", at, &remove, &command, &timeout, RemoveRule::Empty, places)?;
    let retain = duration_of(source, "root.retain", &retain)?;
    let retain_from = retain::read(source, &retain_from, retain.is_some(), remove)?;
    let (pile, once) = (count(source, "root.pile", &pile)?, flag(source, "root.once", &once)?.unwrap_or(false));
    let mode = mode_of(source, &mode)?;
    let kind = kind.unwrap_or(KindRule::Directory);
    let min_age = duration_of(source, "root.min_age", &min_age)?.map_or(Duration::ZERO, |(age, _)| age);
    if pile.is_some() || once {
        let wanted = [
            ("`match`", pattern.is_some()),
            ("`owner`", owner.is_some()),
            ("`mode`", mode.is_some()),
            ("`min_age`", !min_age.is_zero()),
            ("kind = \"dir\"", kind == KindRule::Directory),
            ("remove = \"empty\"", remove == RemoveRule::Empty),
        ];
        let missing: Vec<&str> = wanted.into_iter().filter(|(_, is_there)| !is_there).map(|(what, _)| what).collect();
        if !missing.is_empty() {
            let (file, line, key) = (source.file.display(), source.line(at.start), if once { "once" } else { "pile" });
            notes.push(format!(
                "{file}:{line}: `root.{key}` is meant for old empty directories of one shape, owner and mode, for such a name \
                 proves nothing by itself; the root is without {}",
                missing.join(", ")
            ));
        }
    }
    Ok(RootConfig {
        name: name.to_owned(),
        path,
        owner,
        pattern,
        kind,
        mode,
        min_age,
        backstop: backstop.map(|(age, _)| age),
        retain: retain.map(|(age, _)| age),
        retain_from,
        remove,
        pile,
        once,
        leases: flag(source, "root.leases", &leases)?.unwrap_or(true),
        command,
        claims: claims::read(source, &claims)?,
    })
}

/// Refuses directories that must never be a root. A root that does not exist is no fault: it may come.
fn usable(source: &Source<'_>, path: &Path, at: Range<usize>) -> Result<(), ConfigError> {
    let refuse = |what: String, remedy: &str| Err(source.wrong(at, "root.path", what, remedy));
    if path.parent().is_none() {
        return refuse(
            "`/` cannot be a root".to_owned(),
            "name the directory that the sandboxes make their entries in",
        );
    }
    if let Some(link) = overlap::link_in(path) {
        let what = if link == path {
            format!("{} is a symbolic link", path.display())
        } else {
            format!("{} goes through the symbolic link {}", path.display(), link.display())
        };
        let real = std::fs::canonicalize(path);
        let remedy = real.map_or_else(
            |_| "name the directory itself".to_owned(),
            |real| format!("name the directory itself: path = \"{}\"", real.display()),
        );
        return refuse(what, &remedy);
    }
    match std::fs::symlink_metadata(path) {
        Ok(stat) if !stat.is_dir() => refuse(format!("{} is not a directory", path.display()), "name a directory"),
        _ => Ok(()),
    }
}

pub(super) fn user(source: &Source<'_>, key: &str, field: &Field) -> Result<Option<u32>, ConfigError> {
    string(source, key, field)?.map(|(text, at)| user_called(source, key, text, at)).transpose()
}

fn user_called(source: &Source<'_>, key: &str, text: &str, at: Range<usize>) -> Result<u32, ConfigError> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text
            .parse()
            .ok()
            .filter(|uid| *uid != u32::MAX)
            .ok_or_else(|| source.wrong(at, key, format!("`{text}` is no user id"), "user ids go up to 4294967294"));
    }
    match user_id(text) {
        Ok(Some(uid)) => Ok(uid),
        Ok(None) => {
            let what = format!("there is no user `{text}` on this host");
            Err(source.wrong(at, key, what, "name a user that exists, or give the user id as \"1000\""))
        }
        Err(error) => {
            let what = format!("the user `{text}` could not be looked up: {}", error.desc());
            Err(source.wrong(at, key, what, "give the user id as \"1000\""))
        }
    }
}

/// The id of a user of this host.
fn user_id(name: &str) -> Result<Option<u32>, nix::Error> {
    if cfg!(not(target_feature = "crt-static")) {
        return Ok(nix::unistd::User::from_name(name)?.map(|user| user.uid.as_raw()));
    }
    // A statically linked C library loads the modules of the host's one for this, and breaks where they differ.
    let text = std::fs::read_to_string("/etc/passwd")
        .map_err(|error| error.raw_os_error().map_or(nix::Error::EIO, nix::Error::from_raw))?;
    let of = |line: &str| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok()).flatten()
    };
    Ok(text.lines().find_map(of))
}

fn mode_of(source: &Source<'_>, field: &Field) -> Result<Option<u32>, ConfigError> {
    const REMEDY: &str = "write it in octal between quotes, such as \"0700\"";
    if let Some(field) = field
        && field.get_ref().is_integer()
    {
        return Err(source.wrong(field.span(), "root.mode", "must be a string, not a number", REMEDY));
    }
    let Some((text, at)) = string(source, "root.mode", field)? else { return Ok(None) };
    let octal = (3..=5).contains(&text.len()) && text.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
    let mode = if octal { u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o7777) } else { None };
    mode.map(Some).ok_or_else(|| source.wrong(at, "root.mode", format!("`{text}` is not an octal mode"), REMEDY))
}

fn path(source: &Source<'_>, key: &str, field: &Field) -> Result<Option<(PathBuf, Range<usize>)>, ConfigError> {
    let Some((text, at)) = string(source, key, field)? else { return Ok(None) };
    let path = Path::new(text);
    if !path.is_absolute() {
        return Err(source.wrong(at, key, format!("`{text}` is not absolute"), "begin it with /"));
    }
    if path.components().any(|part| part == Component::ParentDir) {
        return Err(source.wrong(at, key, format!("`{text}` holds `..`"), "write the path without `..`"));
    }
    if text.contains('\0') {
        return Err(source.wrong(at, key, "holds a NUL", "no path can hold one: take it out"));
    }
    Ok(Some((path.components().collect(), at)))
}

pub(super) fn duration_of(
    source: &Source<'_>,
    key: &str,
    field: &Field,
) -> Result<Option<(Duration, Range<usize>)>, ConfigError> {
    if let Some(field) = field
        && !field.get_ref().is_str()
    {
        return Err(wrong_type(source, key, field, "a duration in quotes", duration::REMEDY));
    }
    let Some((text, at)) = string(source, key, field)? else { return Ok(None) };
    match duration::parse(text) {
        Ok(value) => Ok(Some((value, at))),
        Err(what) => Err(source.wrong(at, key, what, duration::REMEDY)),
    }
}

pub(super) fn choice<T: Copy>(
    source: &Source<'_>,
    key: &str,
    field: &Field,
    choices: &[(&str, T)],
) -> Result<Option<T>, ConfigError> {
    let Some((text, at)) = string(source, key, field)? else { return Ok(None) };
    let found = choices.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
    found.map(Some).ok_or_else(|| {
        let names: Vec<String> = choices.iter().map(|(name, _)| format!("\"{name}\"")).collect();
        source.wrong(at, key, format!("`{text}` is not a choice"), format!("use {}", names.join(" or ")))
    })
}

pub(super) fn string<'a>(
    source: &Source<'_>,
    key: &str,
    field: &'a Field,
) -> Result<Option<(&'a str, Range<usize>)>, ConfigError> {
    let Some(field) = field else { return Ok(None) };
    match field.get_ref() {
        Value::String(text) => Ok(Some((text, field.span()))),
        _ => Err(wrong_type(source, key, field, "a string", "put the value between quotes")),
    }
}

fn count(source: &Source<'_>, key: &str, field: &Field) -> Result<Option<u64>, ConfigError> {
    const REMEDY: &str = "write a whole number without quotes, such as 64";
    let Some(field) = field else { return Ok(None) };
    let Value::Integer(number) = field.get_ref() else {
        return Err(wrong_type(source, key, field, "a number", REMEDY));
    };
    u64::try_from(*number).map(Some).map_err(|_| source.wrong(field.span(), key, "must not be below 0", REMEDY))
}

pub(super) fn flag(source: &Source<'_>, key: &str, field: &Field) -> Result<Option<bool>, ConfigError> {
    let Some(field) = field else { return Ok(None) };
    let Value::Boolean(value) = field.get_ref() else {
        return Err(wrong_type(source, key, field, "true or false", "write true or false without quotes"));
    };
    Ok(Some(*value))
}

pub(super) fn wrong_type(
    source: &Source<'_>,
    key: &str,
    field: &toml::Spanned<Value>,
    wanted: &str,
    remedy: &str,
) -> ConfigError {
    source.wrong(field.span(), key, format!("must be {wanted}, not {}", article(field.get_ref())), remedy)
}

pub(super) fn article(value: &Value) -> &'static str {
    match value {
        Value::String(_) => "a string",
        Value::Integer(_) | Value::Float(_) => "a number",
        Value::Boolean(_) => "true or false",
        Value::Datetime(_) => "a date",
        Value::Array(_) => "a list",
        Value::Table(_) => "a table",
    }
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
