//! One purge: from an id to its targets, and from what became of them to the report.

use super::roots::{Placed, Roots};
use super::states::States;
use crate::config::{Config, ManagedConfig, OwnedConfig, RemoveCommand, RootConfig};
use crate::error::{Error, exit};
use crate::evidence::asked::{Looker, path_of};
use crate::evidence::engine::Engine;
use crate::evidence::holders;
use crate::model::answer::PinReport;
use crate::model::pin::{Pin, Place};
use crate::model::purge::{
    CommandTemplate, ExpandError, Id, PurgeReport, TargetName, TargetReport, TargetVerdict, Template, shared_by,
    told_otherwise,
};
use crate::model::report::{Name, Reason};
use crate::removal::{self, EntryTarget, Managed, PassOptions, PurgeOptions, Purged, Site, Target};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Makes sure that an id names only what is its own, as far as the configuration tells. Nothing is looked at.
///
/// # Errors
/// When it would name something that ids share, or no name at all.
pub fn check(config: &Config, id: &Id) -> Result<(), ExpandError> {
    let shared = config.shared();
    let commands: Vec<Vec<CommandTemplate>> = config.owned.iter().map(OwnedConfig::about).collect();
    config.owned.iter().enumerate().try_for_each(|(at, owned)| {
        if let OwnedConfig::Path(owned) = owned {
            let name = owned.template.expand(id, &shared)?;
            no_sibling(config, id, owned.template.parent(), name.as_bytes(), Some(&owned.template))?;
        }
        let others = || commands.iter().enumerate().filter(|(other, _)| *other != at).flat_map(|(_, other)| other);
        commands[at].iter().try_for_each(|own| no_sibling_command(id, own, others()))
    })
}

/// Makes sure that no other command tells what this one is about to be another id's. One with fewer literal bytes has no say.
fn no_sibling_command<'c>(
    id: &Id,
    own: &CommandTemplate,
    others: impl Iterator<Item = &'c CommandTemplate>,
) -> Result<(), ExpandError> {
    let filled = own.fill_id(id);
    let others = others.filter(|other| *other != own && other.literal() >= own.literal());
    let told = others.filter_map(|other| Some((other, other.tells(&filled)?))).find(|(_, told)| told != id);
    told.map_or(Ok(()), |(by, other)| {
        let (id, other) = (id.to_string(), other.to_string());
        Err(ExpandError::Command { id, command: filled.join(" "), by: by.to_string(), other })
    })
}

/// Makes sure that no template and no root of a directory tells a name there to be another id's. `own`: the template that
/// made the name; none where a root found it.
fn no_sibling(config: &Config, id: &Id, parent: &Path, name: &[u8], own: Option<&Template>) -> Result<(), ExpandError> {
    let sibling = |by: String, other: String| {
        let path = parent.join(path_of(name));
        Err(ExpandError::Sibling { id: id.to_string(), path, by, other })
    };
    let templates = config.owned_paths().map(|owned| &owned.template).filter(|template| template.parent() == parent);
    if let Some((by, other)) = str::from_utf8(name).ok().and_then(|name| told_otherwise(name, id, own, templates)) {
        return sibling(format!("`{by}`"), other.to_string());
    }
    let other = config.roots.iter().filter(|root| root.path == parent).find_map(|root| {
        let told = root.id_of(name).filter(|told| *told != id.as_str().as_bytes())?;
        Some((root, String::from_utf8_lossy(told).escape_debug().to_string()))
    });
    other.map_or(Ok(()), |(root, other)| sibling(format!("the root `{}`", root.name), other))
}

/// A target as it is found, before its directory has a site.
enum Found {
    Entry(FoundEntry),
    Managed(Managed),
}

struct FoundEntry {
    place: usize,
    target: Box<EntryTarget>,
    /// It is known not to be there, in a directory that is not asked about.
    is_absent: bool,
}

impl Found {
    /// The entry that it is of a place.
    fn at(&self, place: usize) -> Option<&FoundEntry> {
        match self {
            Self::Entry(entry) if entry.place == place => Some(entry),
            Self::Entry(_) | Self::Managed(_) => None,
        }
    }
}

/// Removes all that belongs to an id, or nothing of it.
///
/// # Errors
/// When the id is none of the configuration's, a directory cannot be used, one that has a target is held by another
/// reclaimer, or no evidence can be taken. Nothing is removed then.
#[expect(
    clippy::too_many_arguments,
    reason = "each is another owner's, and a struct of borrows would only rename them"
)]
pub fn purge(
    roots: &mut Roots,
    config: &Config,
    engine: &mut Engine,
    states: &mut States,
    id: &Id,
    dry_run: bool,
    stop: Option<Arc<AtomicBool>>,
    between: &mut dyn FnMut(&mut Engine),
) -> Result<PurgeReport, Error> {
    check(config, id)?;
    let (mut left, mut busy) = (BTreeMap::new(), BTreeMap::new());
    let places = if dry_run { Vec::new() } else { places(roots, config) };
    for at in &places {
        // With the state directory, for what is kept comes back.
        let state_dir = Some(config.service.state_dir.clone());
        // It may be of this id, and who purges waits until all of that is gone.
        let budget = Duration::MAX;
        let options = PassOptions { budget, stop: stop.clone(), state_dir, ..PassOptions::default() };
        match roots.bring_to_end(*at, engine, states, &options, between) {
            Ok(()) => drop(left.insert(*at, lying(roots.at(*at))?)),
            Err(error) if error.code() == exit::BUSY => drop(busy.insert(*at, error)),
            Err(error) => return Err(error),
        }
    }
    let found = targets(roots, config, id)?;
    let found = unless_busy(roots, config, id, busy, found)?;
    let mut sites: Vec<usize> = Vec::new();
    let mut targets = Vec::new();
    let mut ends = Vec::new();
    for found in found {
        let FoundEntry { place, mut target, is_absent } = match found {
            Found::Entry(entry) => entry,
            Found::Managed(managed) => {
                let of = Of::Command(managed.command.clone());
                ends.push(End { of, is_asked: true, purged: absent(), weaker: false });
                targets.push(Target::Managed(managed));
                continue;
            }
        };
        let of = Of::Entry { place, name: target.name.to_bytes().to_vec() };
        ends.push(End { of, is_asked: !is_absent, purged: absent(), weaker: false });
        if is_absent {
            continue;
        }
        target.site = sites.iter().position(|site| *site == place).unwrap_or_else(|| {
            sites.push(place);
            sites.len() - 1
        });
        targets.push(Target::Entry(target));
    }
    let sites: Vec<Site<'_>> = sites
        .iter()
        .map(|at| {
            let placed = roots.at(*at);
            Site { path: &placed.config.path, index: roots.index(*at), location: placed.location.as_ref() }
        })
        .collect();
    let state_dir = Some(config.service.state_dir.clone());
    let options = PurgeOptions { dry_run, state_dir, settle_limit: Duration::from_secs(5), stop: stop.clone() };
    let failed = |source| Error::Purge { id: id.to_string(), source };
    let purged = removal::purge(&sites, &targets, engine, &options, between).map_err(failed)?;
    for (end, (target, purged)) in ends.iter_mut().filter(|end| end.is_asked).zip(targets.iter().zip(purged)) {
        let has_command = match target {
            Target::Entry(entry) => entry.rules.command.is_some(),
            Target::Managed(_) => true,
        };
        end.weaker = has_command && matches!(purged.verdict, TargetVerdict::Removed | TargetVerdict::WouldRemove);
        end.purged = purged;
    }
    for (place, names) in left {
        tell_left(config, id, place, names, &mut ends);
    }
    if dry_run {
        tell_lying(roots, config, &mut ends);
    }
    remember(roots, states, &ends);
    let told = ends.into_iter().map(|End { of, purged, weaker, .. }| match of {
        Of::Entry { place, name } => report(engine, &roots.at(place).config.path.join(path_of(&name)), purged, weaker),
        Of::Command(command) => {
            let Purged { verdict, reason, detail, .. } = purged;
            let (name, pins) = (TargetName::Command { command }, Vec::new());
            TargetReport { name, verdict, reason, pins, detail, weaker_proof: weaker }
        }
    });
    let report = PurgeReport::of(id, told.collect(), dry_run);
    let is_told = stop.is_some_and(|stop| stop.load(Ordering::Relaxed));
    Ok(PurgeReport { stopped: is_told && report.refused + report.failed > 0, ..report })
}

/// What became of something of the id.
struct End {
    of: Of,
    /// It was a target of the removal.
    is_asked: bool,
    purged: Purged,
    weaker: bool,
}

/// What an end is of.
enum Of {
    /// A name in a place.
    Entry { place: usize, name: Vec<u8> },
    /// What this command is about, which has no path.
    Command(Vec<String>),
}

impl End {
    /// Whether it is of a name in a place.
    fn is_of(&self, at: usize, called: &[u8]) -> bool {
        matches!(&self.of, Of::Entry { place, name } if *place == at && name == called)
    }
}

fn absent() -> Purged {
    Purged { verdict: TargetVerdict::Absent, reason: None, pins: Vec::new(), detail: None }
}

/// Names of what lies condemned at a place.
fn lying(place: &Placed) -> Result<Vec<Vec<u8>>, Error> {
    let mut names = Vec::new();
    let each = |name: &[u8]| {
        names.push(name.to_vec());
        false
    };
    let failed = |source| Error::Removal { root: place.config.name.clone(), source };
    removal::lies_condemned(&place.config.path, each).map_err(failed)?;
    Ok(names)
}

/// Tells that what earlier runs condemned of the id could still not be removed. `names`: of all that lay condemned at a place
/// after that was tried.
fn tell_left(config: &Config, id: &Id, place: usize, names: Vec<Vec<u8>>, ends: &mut Vec<End>) {
    let of_root = config.roots.get(place).filter(|root| root.has_id());
    for name in names {
        let purged = Purged::undone("it lies condemned in `.reclaim`, and could not be removed yet".to_owned());
        let known = ends.iter_mut().find(|end| end.is_of(place, &name));
        let is_own = known.is_some() || of_root.is_some_and(|root| root.id_of(&name) == Some(id.as_str().as_bytes()));
        match known {
            Some(end) if end.purged.verdict == TargetVerdict::Absent => end.purged = purged,
            // Another one has come to have its name meanwhile.
            _ if is_own => ends.push(End { of: Of::Entry { place, name }, is_asked: false, purged, weaker: false }),
            _ => {}
        }
    }
}

/// Tells in a dry run of what is absent under its own name and lies condemned: a purge brings that to its end first.
fn tell_lying(roots: &Roots, config: &Config, ends: &mut [End]) {
    for place in places(roots, config) {
        // What cannot be looked at is told by the purge.
        for name in lying(roots.at(place)).unwrap_or_default() {
            let absent = |end: &&mut End| end.is_of(place, &name) && end.purged.verdict == TargetVerdict::Absent;
            if let Some(end) = ends.iter_mut().find(absent) {
                let detail =
                    "an earlier run condemned it, and it lies in `.reclaim`: a purge brings that to its end first";
                end.purged.detail = Some(detail.to_owned());
            }
        }
    }
}

/// Takes note of what this purge condemned and could not remove, as passes do.
fn remember(roots: &Roots, states: &mut States, ends: &[End]) {
    for End { of, purged, .. } in ends.iter().filter(|end| end.purged.verdict == TargetVerdict::Failed) {
        let Of::Entry { place, name } = of else { continue };
        let root = &roots.at(*place).config;
        // What cannot be looked at is told by the next pass.
        if let Ok(true) = removal::lies_condemned(&root.path, |condemned| condemned == name) {
            states.of(&root.name).was_told(name, purged.detail.as_deref());
            states.keep(&root.name);
        }
    }
}

/// The directories that targets of any id can lie in.
fn places(roots: &Roots, config: &Config) -> Vec<usize> {
    let of_roots = config.roots.iter().enumerate().filter(|(_, root)| root.has_id()).map(|(at, _)| at);
    let mut places: Vec<usize> = of_roots.collect();
    for at in config.owned_paths().filter_map(|owned| roots.find(&owned.rules.path)) {
        if !places.contains(&at) {
            places.push(at);
        }
    }
    places
}

/// What was found, where nothing of it lies in a directory that another reclaimer works on. What is not there is not asked
/// about.
///
/// # Errors
/// The error of such a directory, where something of the id does lie in it or the other one may have condemned it.
fn unless_busy(
    roots: &Roots,
    config: &Config,
    id: &Id,
    busy: BTreeMap<usize, Error>,
    mut found: Vec<Found>,
) -> Result<Vec<Found>, Error> {
    for (at, error) in busy {
        let Placed { config: root, .. } = roots.at(at);
        let own_id = config.roots.get(at).filter(|root| root.has_id());
        let is_listed = |found: &[Found]| {
            found.iter().filter_map(|found| found.at(at)).any(|found| {
                let path = root.path.join(path_of(found.target.name.to_bytes()));
                // What cannot be looked at may be there.
                !path.symlink_metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound)
            })
        };
        let is_condemned = removal::lies_condemned(&root.path, |name| {
            own_id.is_some_and(|root| root.id_of(name) == Some(id.as_str().as_bytes()))
                || found.iter().filter_map(|found| found.at(at)).any(|found| found.target.name.to_bytes() == name)
        });
        // Once more at the end, for what was condemned may have had its name back meanwhile. Not knowing is being there.
        if is_listed(&found) || is_condemned.unwrap_or(true) || is_listed(&targets(roots, config, id)?) {
            return Err(error);
        }
        for found in &mut found {
            if let Found::Entry(entry) = found
                && entry.place == at
            {
                entry.is_absent = true;
            }
        }
    }
    Ok(found)
}

/// What belongs to an id: what the templates say first, then the entries of roots that are not among it.
fn targets(roots: &Roots, config: &Config, id: &Id) -> Result<Vec<Found>, Error> {
    let shared: Vec<PathBuf> = config.shared();
    let mut found: Vec<Found> = Vec::new();
    for owned in &config.owned {
        let owned = match owned {
            OwnedConfig::Path(owned) => owned,
            OwnedConfig::Managed(ManagedConfig { command, present, limit }) => {
                let present = present.as_ref().map(|present| present.fill_id(id));
                found.push(Found::Managed(Managed { command: command.fill_id(id), present, limit: *limit }));
                continue;
            }
        };
        let name = owned.template.expand(id, &shared)?;
        let Some(place) = roots.find(&owned.rules.path) else { continue };
        let Ok(name) = CString::new(name) else { continue };
        let mut rules = owned.rules.clone();
        if let Some(command) = &mut rules.command {
            command.id = Some(id.to_string());
        }
        found.push(entry(place, name, rules));
    }
    for (place, root) in config.roots.iter().enumerate().filter(|(_, root)| root.has_id()) {
        let failed = |source| Error::Removal { root: root.name.clone(), source };
        for name in removal::entries_of(root, id).map_err(failed)? {
            let path = root.path.join(path_of(name.to_bytes()));
            if let Some(shared) = shared_by(&path, &shared) {
                let (id, shared) = (id.to_string(), shared.to_owned());
                return Err(ExpandError::Shared { id, path, shared }.into());
            }
            if found.iter().filter_map(|known| known.at(place)).any(|known| known.target.name == name) {
                continue;
            }
            no_sibling(config, id, &root.path, name.to_bytes(), None)?;
            // What guesses at whether an entry is still wanted has no say: that it is not is told.
            let rules = RootConfig {
                pattern: None,
                min_age: Duration::ZERO,
                backstop: None,
                retain: None,
                pile: None,
                command: root.command.clone().map(|command| RemoveCommand { id: Some(id.to_string()), ..command }),
                ..root.clone()
            };
            found.push(entry(place, name, rules));
        }
    }
    Ok(found)
}

fn entry(place: usize, name: CString, rules: RootConfig) -> Found {
    let target = Box::new(EntryTarget { site: 0, name, rules, only: None });
    Found::Entry(FoundEntry { place, target, is_absent: false })
}

fn report(engine: &mut Engine, path: &Path, purged: Purged, weaker_proof: bool) -> TargetReport {
    let Purged { verdict, reason, pins, detail } = purged;
    let pins = if reason == Some(Reason::Pinned) { held(engine, path, &pins) } else { Vec::new() };
    let path = Name(path.as_os_str().as_bytes().to_vec());
    let name = TargetName::Path { path_hex: path.hex(), path };
    TargetReport { name, verdict, reason, pins, detail, weaker_proof }
}

/// The answer of `who` about a target; what was seen when it was refused, where nobody holds it by now.
fn held(engine: &mut Engine, path: &Path, seen: &[Pin]) -> Vec<PinReport> {
    let mut looker = Looker::default();
    let subject = looker.look(path);
    let asked = looker.question();
    let pins = match (subject, engine.ask(&asked)) {
        (Ok(subject), Ok(view)) => {
            let tasks = holders::tasks(&subject.namespaces(view.into()), view.pins);
            subject.who(view.into(), &tasks, &BTreeMap::new()).pins
        }
        _ => Vec::new(),
    };
    if !pins.is_empty() {
        return pins;
    }
    let place = |pin: &Pin| if pin.inside { Place::Below } else { Place::Exact };
    seen.iter().map(|pin| PinReport::of(place(pin), pin, &BTreeMap::new())).collect()
}
