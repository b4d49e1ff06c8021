//! Where the configured roots are, and a pass over one of them.

use super::states::States;
use crate::config::{Config, ConfigError, RootConfig};
use crate::error::{Error, chain};
use crate::evidence::engine::{Engine, EngineOptions, EngineStatus, EvidenceChoice, Span};
use crate::model::entry::EntryReport;
use crate::model::id::Location;
use crate::model::plan;
use crate::model::report::{Name, PassSummary, Remarks};
use crate::removal::{self, EntryEvent, PassEvent, PassOptions, RemovalError, RootState};
use crate::render::pass as text;
use nix::errno::Errno;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::Path;

/// A root, or a directory of templates, and where it is now.
#[derive(Debug)]
pub struct Placed {
    /// As configured.
    pub config: RootConfig,
    /// Where it is; none when it does not exist.
    pub location: Option<Location>,
    /// Why it cannot be used now.
    pub fault: Option<RemovalError>,
}

impl Placed {
    fn look(config: &RootConfig) -> Self {
        let (location, fault) = match removal::locate(&config.path) {
            Ok(location) => (Some(location), None),
            Err(RemovalError::Call { source: Errno::ENOENT, .. }) => (None, None),
            Err(fault) => (None, Some(fault)),
        };
        Self { config: config.clone(), location, fault }
    }
}

/// The roots in the order of the configuration, and behind them the directories of templates that are none: no pass lists
/// those, but evidence watches them, and what a purge left condemned there is brought to its end.
#[derive(Debug)]
pub struct Roots {
    placed: Vec<Placed>,
    configured: usize,
}

impl Roots {
    /// Looks at every root and every directory of a template.
    #[must_use]
    pub fn place(config: &Config) -> Self {
        let mut rules: Vec<&RootConfig> = config.roots.iter().collect();
        for owned in config.owned_paths() {
            if !rules.iter().any(|known| known.path == owned.rules.path) {
                rules.push(&owned.rules);
            }
        }
        Self { placed: rules.into_iter().map(Placed::look).collect(), configured: config.roots.len() }
    }

    /// Tells of those that cannot be used, for what goes on with the others. Whether there are any.
    #[must_use]
    pub fn tell_faults(&self) -> bool {
        let faults = self.placed.iter().filter_map(|placed| Some((&placed.config.name, placed.fault.as_ref()?)));
        faults.inspect(|(name, fault)| tracing::error!("{name}: {}", chain(fault))).count() > 0
    }

    /// Overlaps that show only in the file systems themselves. One that cannot be used is told by the pass over it.
    ///
    /// # Errors
    /// When two of them are the same place.
    pub fn check(&self) -> Result<(), Error> {
        for (index, inner) in self.all().iter().enumerate() {
            for (_, outer) in self.all().iter().enumerate().filter(|(other, _)| *other != index) {
                if let (Some(inside), Some(around)) = (&inner.location, &outer.location)
                    && around.rest(inside).is_some()
                {
                    return Err(Error::Config(ConfigError::Root {
                        name: inner.config.name.clone(),
                        path: inner.config.path.clone(),
                        what: format!("is or lies inside the root `{}`, through another mount", outer.config.name),
                        remedy: "roots must not overlap: keep one of the two".to_owned(),
                    }));
                }
            }
        }
        Ok(())
    }

    /// The places that evidence watches. What does not exist is not among them.
    #[must_use]
    pub fn watch(&self) -> Vec<Location> {
        self.placed.iter().filter_map(|placed| placed.location.clone()).collect()
    }

    /// Descriptors of what evidence watches, in the order of its index there. They are for looking only.
    ///
    /// # Errors
    /// When a root cannot be opened.
    pub fn open(&self) -> Result<Vec<OwnedFd>, Error> {
        let found = self.placed.iter().filter(|placed| placed.location.is_some());
        let open = |placed: &Placed| {
            let failed = |source| Error::Removal { root: placed.config.name.clone(), source };
            removal::open_root(&placed.config.path).map_err(failed)
        };
        found.map(open).collect()
    }

    /// An engine that watches them.
    ///
    /// # Errors
    /// When no evidence can be taken.
    pub fn engine(&self, evidence: EvidenceChoice, span: Span) -> Result<Engine, Error> {
        Ok(Engine::open(EngineOptions { evidence, watch: self.watch(), span })?)
    }

    /// Names of the roots that can be found, in the order of their index in evidence, and behind them of the templates.
    #[must_use]
    pub fn watched(&self) -> Vec<String> {
        let found = self.placed.iter().filter(|placed| placed.location.is_some());
        found.map(|placed| placed.config.name.clone()).collect()
    }

    /// The roots in the order of the configuration.
    #[must_use]
    pub fn all(&self) -> &[Placed] {
        &self.placed[..self.configured]
    }

    /// The roots and the directories of templates, in the order of [`Roots::at`].
    #[must_use]
    pub fn everything(&self) -> &[Placed] {
        &self.placed
    }

    /// Places of the directories that hold templates and are no roots, for [`Roots::pass`].
    #[must_use]
    pub fn parents(&self) -> std::ops::Range<usize> {
        self.configured..self.placed.len()
    }

    /// What lies at a place: one of a root's in the configuration, or of [`Roots::parents`].
    #[must_use]
    pub fn at(&self, at: usize) -> &Placed {
        &self.placed[at]
    }

    /// Index of a place in the evidence, provided that it can be found.
    #[must_use]
    pub fn index(&self, at: usize) -> usize {
        self.placed[..at].iter().filter(|placed| placed.location.is_some()).count()
    }

    /// Adds a directory behind all others, and gives its place. It is no root: no pass lists it.
    pub fn add(&mut self, config: RootConfig) -> usize {
        self.placed.push(Placed::look(&config));
        self.placed.len() - 1
    }

    /// Place of a directory among those that were added, else wherever it is.
    #[must_use]
    pub fn find_last(&self, path: &Path) -> Option<usize> {
        self.placed.iter().rposition(|placed| placed.config.path == path)
    }

    /// Place of a directory.
    #[must_use]
    pub fn find(&self, path: &Path) -> Option<usize> {
        self.placed.iter().position(|placed| placed.config.path == path)
    }

    /// Place of the first directory that is the same as the one at a path: a root of the configuration comes before what
    /// was added, whatever mount the path leads through.
    #[must_use]
    pub fn find_same(&self, path: &Path) -> Option<usize> {
        let at = self.find_last(path)?;
        let Some(location) = &self.placed[at].location else { return Some(at) };
        self.placed.iter().position(|placed| placed.location.as_ref() == Some(location))
    }

    /// One pass over the root at this place of the configuration. A root that does not exist is an empty one.
    ///
    /// # Errors
    /// When the pass could not be made.
    pub fn pass(
        &self,
        at: usize,
        engine: &mut Engine,
        state: &mut RootState,
        options: &PassOptions,
        on: &mut dyn FnMut(PassEvent),
        between: &mut dyn FnMut(&mut Engine),
    ) -> Result<PassSummary, Error> {
        let index = self.index(at);
        let Placed { config, location, fault } = &self.placed[at];
        let failed = |source| Error::Removal { root: config.name.clone(), source };
        if fault.is_some() {
            // It could not be used when evidence began to watch, whatever it is like by now.
            let moved =
                || RemovalError::Moved { path: config.path.clone(), found: None, watched: "nothing yet".into() };
            return Err(failed(Placed::look(config).fault.unwrap_or_else(moved)));
        }
        let Some(location) = location else {
            on(PassEvent::Note(format!("{} does not exist, so there is nothing to do", config.path.display())));
            return Ok(nothing(&config.name, options.dry_run, engine.status()));
        };
        // What lies condemned is brought to its end in a retired root too, and who looks at nothing else has not seen
        // whether the root is done with.
        let once = options.state_dir.as_deref().filter(|_| config.once && !options.leftovers_only);
        if let Some(state_dir) = once {
            let retired = removal::retired_since(state_dir, config).unwrap_or_else(|error| {
                on(PassEvent::Note(format!("whether the root is retired cannot be told, so it is skipped: {error}")));
                Some("an unknown time".to_owned())
            });
            if retired.is_some() {
                let nothing = nothing(&config.name, options.dry_run, engine.status());
                return Ok(PassSummary { remarks: Remarks { retired_since: retired, ..nothing.remarks }, ..nothing });
            }
        }
        let summary = removal::pass(config, index, location, engine, options, state, on, between).map_err(failed)?;
        if let Some(state_dir) = once.filter(|_| plan::retires(&summary, config.backstop.is_some())) {
            on(PassEvent::Note(match removal::retire(state_dir, config) {
                Ok(()) => {
                    let marker = removal::retired_marker(state_dir, config);
                    format!("the root is done with and retired; remove {} to have it looked at again", marker.display())
                }
                Err(error) => {
                    format!("the root is done with, but cannot be retired in {}: {error}", state_dir.display())
                }
            }));
        }
        Ok(summary)
    }
}

impl Roots {
    /// Brings what lies condemned at a place to its end, and looks for nothing else there. Tells of it in the log, of what
    /// cannot be removed at first and then once a day.
    ///
    /// # Errors
    /// As [`Roots::pass`].
    pub fn bring_to_end(
        &self,
        at: usize,
        engine: &mut Engine,
        states: &mut States,
        options: &PassOptions,
        between: &mut dyn FnMut(&mut Engine),
    ) -> Result<(), Error> {
        if self.placed[at].location.is_none() && self.placed[at].fault.is_none() {
            return Ok(());
        }
        let options = PassOptions { leftovers_only: true, per_entry: false, ..options.clone() };
        let name = self.placed[at].config.name.clone();
        let mut on = |event| match event {
            PassEvent::Entry(entry) => {
                tracing::warn!("left behind by an earlier run: {}", text::line(&report(&name, entry)));
            }
            PassEvent::Note(note) => tracing::warn!("{name}: {note}"),
            PassEvent::Progress { .. } => {}
        };
        let pass = self.pass(at, engine, states.of(&name), &options, &mut on, between);
        states.keep(&name);
        let removed = pass?.removed;
        if removed > 0 {
            tracing::warn!("{name}: removed {removed} that an earlier run had condemned");
        }
        Ok(())
    }
}

/// Checks the names of roots that somebody asked for.
///
/// # Errors
/// When one of them is not configured.
pub fn known(roots: &[RootConfig], names: &[String]) -> Result<(), ConfigError> {
    match names.iter().find(|name| !roots.iter().any(|root| root.name == **name)) {
        None => Ok(()),
        Some(name) => {
            let known: Vec<&str> = roots.iter().map(|root| root.name.as_str()).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            Err(ConfigError::UnknownRoot { name: name.clone(), known })
        }
    }
}

fn nothing(root: &str, dry_run: bool, status: EngineStatus) -> PassSummary {
    PassSummary {
        root: root.to_owned(),
        evidence: status.producer,
        complete: status.complete,
        covered: status.complete,
        gaps: status.gaps,
        listed: 0,
        candidates: 0,
        kept: BTreeMap::new(),
        removed: 0,
        restored: 0,
        condemned: 0,
        truncated: false,
        dry_run,
        remarks: Remarks::default(),
        elapsed_ms: 0,
    }
}

/// An entry as reports have it.
#[must_use]
pub fn report(root: &str, event: EntryEvent) -> EntryReport {
    let EntryEvent { name, verdict, reason, pins, detail } = event;
    let name = Name(name);
    EntryReport {
        root: root.to_owned(),
        name_hex: name.hex(),
        name,
        verdict,
        reason,
        pins: pins.iter().map(Into::into).collect(),
        detail,
    }
}
