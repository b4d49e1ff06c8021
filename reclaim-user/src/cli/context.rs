//! What every command starts from: the configuration, the kind of evidence, and where to write.

use super::{Globals, capability};
use crate::config::{Config, ConfigError, DEFAULT_FILE, Loaded};
use crate::error::Error;
use crate::evidence::engine::{Engine, EngineOptions, EvidenceChoice, Span};
use crate::model::id::Location;
use crate::render::output::Output;
use crate::service::roots::Roots;
use std::io::ErrorKind;
use std::path::PathBuf;

/// One command's surroundings.
pub(super) struct Context {
    pub(super) command: &'static str,
    pub(super) loaded: Loaded,
    pub(super) evidence: EvidenceChoice,
    pub(super) verbose: u8,
    pub(super) output: Output,
}

impl Context {
    /// Reads the configuration. With `optional`, a default file that may not be read is told and left out.
    pub(super) fn open(globals: Globals, command: &'static str, optional: bool) -> Result<Self, Error> {
        let output = globals.output();
        let Globals { config, json: _, evidence, verbose, color: _ } = globals;
        let loaded = match &config {
            Some(file) => Loaded::read(file)?,
            None => match Loaded::read_default() {
                Err(error @ ConfigError::Unreadable { .. }) if optional && denied(&error) => {
                    tracing::warn!("{error}; going on without one");
                    Loaded { config: Config::default(), file: None, notes: Vec::new() }
                }
                other => other?,
            },
        };
        for note in &loaded.notes {
            tracing::warn!("{note}");
        }
        Ok(Self { command, loaded, evidence: evidence.into(), verbose, output })
    }

    /// The configured roots and directories of templates, looked at.
    ///
    /// # Errors
    /// When there are none, or two of them are the same place.
    pub(super) fn roots(&self) -> Result<Roots, Error> {
        self.need_places()?;
        let roots = Roots::place(&self.loaded.config);
        roots.check()?;
        Ok(roots)
    }

    /// Refuses to go on without roots and templates.
    pub(super) fn need_anything(&self) -> Result<(), ConfigError> {
        if self.loaded.config.owned.is_empty() { self.need_roots() } else { Ok(()) }
    }

    /// Refuses to go on where nothing that is configured has a path.
    pub(super) fn need_places(&self) -> Result<(), ConfigError> {
        if self.loaded.config.owned_paths().next().is_none() { self.need_roots() } else { Ok(()) }
    }

    /// Refuses to go on without roots.
    pub(super) fn need_roots(&self) -> Result<(), ConfigError> {
        if !self.loaded.config.roots.is_empty() {
            return Ok(());
        }
        let command = self.command;
        Err(match &self.loaded.file {
            Some(file) => ConfigError::NoRoots { command, file: file.clone() },
            None => ConfigError::NoFile { command, file: PathBuf::from(DEFAULT_FILE) },
        })
    }

    /// Evidence about some places for one question. Says first what missing capabilities will do to it.
    pub(super) fn engine(&self, watch: Vec<Location>) -> Result<Engine, Error> {
        warn_of_capabilities();
        Ok(Engine::open(EngineOptions { evidence: self.evidence, watch, span: Span::Question })?)
    }
}

/// Says once what is missing.
pub(super) fn warn_of_capabilities() {
    if let Some(hint) = capability::hint() {
        tracing::warn!("{hint}");
    }
}

fn denied(error: &ConfigError) -> bool {
    matches!(error, ConfigError::Unreadable { source, .. } if source.kind() == ErrorKind::PermissionDenied)
}
