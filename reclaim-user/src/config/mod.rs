//! The configuration in its checked form. Nothing behind this room ever sees the raw text.

mod belongs;
mod check;
mod claims;
pub mod duration;
pub mod error;
mod overlap;
mod own;
mod owned;
mod pattern;
mod raw;
mod retain;
mod table;

pub use claims::{ClaimsConfig, ClaimsSource};
pub use error::ConfigError;
pub use retain::{RetainFrom, WithoutRecord};

use crate::model::purge::{CommandTemplate, Template};
use regex::bytes::Regex;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where the configuration is looked for when nothing else is said.
pub const DEFAULT_FILE: &str = "/etc/reclaim/reclaim.toml";

/// A configuration that was read, and what is allowed in it but looks like a mistake.
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// The file it came from; none when there is no file.
    pub file: Option<PathBuf>,
    /// Sentences for people, each with file, line and key.
    pub notes: Vec<String>,
}

impl Loaded {
    /// Reads and checks one file.
    ///
    /// # Errors
    /// When the file cannot be read, or anything in it is wrong.
    pub fn read(file: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(file)
            .map_err(|source| ConfigError::Unreadable { file: file.to_path_buf(), source })?;
        let (config, notes) = check::check(&raw::Source { file, text: &text })?;
        Ok(Self { config, file: Some(file.to_path_buf()), notes })
    }

    /// Reads the default file, or gives a configuration without roots when there is none.
    ///
    /// # Errors
    /// As [`Loaded::read`]. A default file that is missing is no error.
    pub fn read_default() -> Result<Self, ConfigError> {
        match Self::read(Path::new(DEFAULT_FILE)) {
            Err(ConfigError::Unreadable { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                Ok(Self { config: Config::default(), file: None, notes: Vec::new() })
            }
            other => other,
        }
    }
}

/// Everything that was configured, checked.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// The service.
    pub service: ServiceConfig,
    /// The roots. No two overlap, no two share a name.
    pub roots: Vec<RootConfig>,
    /// What belongs to an id besides entries of the roots.
    pub owned: Vec<OwnedConfig>,
}

impl Config {
    /// What belongs to an id and lies at a path, in the order of the configuration.
    pub fn owned_paths(&self) -> impl Iterator<Item = &OwnedPath> {
        self.owned.iter().filter_map(|owned| match owned {
            OwnedConfig::Path(path) => Some(&**path),
            OwnedConfig::Managed(_) => None,
        })
    }

    /// What belongs to an id and has no path, in the order of the configuration.
    pub fn managed(&self) -> impl Iterator<Item = &ManagedConfig> {
        self.owned.iter().filter_map(|owned| match owned {
            OwnedConfig::Path(_) => None,
            OwnedConfig::Managed(managed) => Some(managed),
        })
    }
}

/// `[service]`.
#[derive(Clone, Debug)]
pub struct ServiceConfig {
    /// Time between passes.
    pub every: Duration,
    /// Wall clock for one pass over one root.
    pub budget: Duration,
    /// Directory for what must survive a restart.
    pub state_dir: PathBuf,
    /// The control socket.
    pub socket: PathBuf,
    /// Where metrics are served; none means not at all.
    pub metrics: Option<SocketAddr>,
    /// Others are kept from binding condemned entries, where the kernel offers that.
    pub refuse_binds: bool,
    /// Directory for the manifests of holds, one store in it for each user. None means beside `state_dir`, for only root
    /// reaches into that.
    pub holds: Option<PathBuf>,
}

impl ServiceConfig {
    /// Directory for the manifests of holds.
    #[must_use]
    pub fn holds(&self) -> PathBuf {
        self.holds.clone().unwrap_or_else(|| {
            let mut beside = self.state_dir.clone().into_os_string();
            beside.push("-holds");
            beside.into()
        })
    }
}

impl Default for ServiceConfig {
    fn default() -> Self {
        Self {
            every: Duration::from_secs(5 * 60),
            budget: Duration::from_secs(10),
            state_dir: PathBuf::from("/var/lib/reclaim"),
            socket: PathBuf::from("/run/reclaim/control.sock"),
            metrics: None,
            refuse_binds: false,
            holds: None,
        }
    }
}

/// `[[root]]`: a directory whose children are entries, and the fences that an entry must pass.
#[derive(Clone, Debug)]
pub struct RootConfig {
    /// Name in reports.
    pub name: String,
    /// The directory: absolute, not `/`, no link in it.
    pub path: PathBuf,
    /// Only entries of this user id.
    pub owner: Option<u32>,
    /// Only names that match. Groups `pid` and `id` are understood.
    pub pattern: Option<Regex>,
    /// Only entries of this kind.
    pub kind: KindRule,
    /// Only entries of exactly this mode (permission bits with set-id and sticky bits).
    pub mode: Option<u32>,
    /// Never younger than this.
    pub min_age: Duration,
    /// Older than this, the process that the name tells need not be dead.
    pub backstop: Option<Duration>,
    /// Retention window, from birth or from what a manifest says.
    pub retain: Option<Duration>,
    /// The manifest that the retention window counts from.
    pub retain_from: Option<RetainFrom>,
    /// How an entry is removed.
    pub remove: RemoveRule,
    /// Fewer candidates than this: keep them all.
    pub pile: Option<u64>,
    /// Retire the root after a pass that came to its end and left nothing for age alone.
    pub once: bool,
    /// Honour a lock on the entry.
    pub leases: bool,
    /// The command that removes an entry; there is one exactly where `remove` is [`RemoveRule::Command`].
    pub command: Option<RemoveCommand>,
    /// Who names the entries that are live.
    pub claims: Option<ClaimsConfig>,
}

impl RootConfig {
    /// One in which nothing holds an entry back but its lock, contents and pins.
    #[must_use]
    pub fn without_fences(name: String, path: PathBuf) -> Self {
        Self {
            name,
            path,
            owner: None,
            pattern: None,
            kind: KindRule::Any,
            mode: None,
            min_age: Duration::ZERO,
            backstop: None,
            retain: None,
            retain_from: None,
            remove: RemoveRule::Empty,
            pile: None,
            once: false,
            leases: true,
            command: None,
            claims: None,
        }
    }

    /// Whether names tell an id.
    #[must_use]
    pub fn has_id(&self) -> bool {
        self.pattern.as_ref().is_some_and(|pattern| pattern.capture_names().flatten().any(|group| group == "id"))
    }

    /// The id that a name tells, where it matches and tells one.
    #[must_use]
    pub fn id_of<'n>(&self, name: &'n [u8]) -> Option<&'n [u8]> {
        Some(self.pattern.as_ref()?.captures(name)?.name("id")?.as_bytes())
    }
}

/// `[[owned]]`: one thing that belongs to an id.
#[derive(Clone, Debug)]
pub enum OwnedConfig {
    /// It lies at a path.
    Path(Box<OwnedPath>),
    /// It has no path: its manager alone knows it.
    Managed(ManagedConfig),
}

impl OwnedConfig {
    /// What its commands are about, by the id alone.
    #[must_use]
    pub fn about(&self) -> Vec<CommandTemplate> {
        match self {
            Self::Path(path) => {
                let (whole, name) = (path.template.to_string(), path.template.name());
                path.rules.command.iter().map(|command| command.words.about(&name, &whole)).collect()
            }
            Self::Managed(managed) => {
                let commands = [Some(&managed.command), managed.present.as_ref()];
                commands.into_iter().flatten().map(|command| command.about("", "")).collect()
            }
        }
    }

    /// The command that removes it, where one does.
    #[must_use]
    pub fn command(&self) -> Option<&CommandTemplate> {
        match self {
            Self::Path(path) => path.rules.command.as_ref().map(|command| &command.words),
            Self::Managed(managed) => Some(&managed.command),
        }
    }
}

/// What has no path, such as a network: commands that tell of it and remove it, with nothing to be filled in but the id.
#[derive(Clone, Debug)]
pub struct ManagedConfig {
    /// The program that removes it, and its arguments.
    pub command: CommandTemplate,
    /// What tells whether it is there, by its exit code; none when that is not asked.
    pub present: Option<CommandTemplate>,
    /// Either is killed after this time.
    pub limit: Duration,
}

/// One path that belongs to an id.
#[derive(Clone, Debug)]
pub struct OwnedPath {
    /// The path.
    pub template: Template,
    /// The directory that it lies in, as a root whose entries no pass ever looks for, and the fences for what is purged.
    pub rules: RootConfig,
}

/// How another manager removes what it owns.
#[derive(Clone, Debug)]
pub struct RemoveCommand {
    /// The program and its arguments.
    pub words: CommandTemplate,
    /// It is killed after this time.
    pub limit: Duration,
    /// The id, where a purge tells it and not the entry's name.
    pub id: Option<String>,
}

/// Which kinds of file may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KindRule {
    /// Directories.
    Directory,
    /// Regular files.
    File,
    /// Anything.
    Any,
}

/// How an entry is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoveRule {
    /// Only what holds nothing: an empty directory, a file of no bytes.
    Empty,
    /// With all that it holds.
    Tree,
    /// By a command of the manager that owns it, under its own name: the entry is never condemned, so what is known of
    /// it when the command is run may be a moment old.
    Command,
}
