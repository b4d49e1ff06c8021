//! What can be wrong with a configuration.

use std::path::PathBuf;
use thiserror::Error;

/// Why a configuration was refused. Nothing was touched.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("{}: cannot read the configuration: {source}; name a readable file with --config", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// Something in the file is wrong.
    #[error("{}:{line}: `{key}`: {what}; {remedy}", file.display())]
    Wrong {
        /// The file.
        file: PathBuf,
        /// Line, counted from 1.
        line: usize,
        /// The key, with the table it stands in.
        key: String,
        /// What is wrong.
        what: String,
        /// What to do about it.
        remedy: String,
    },
    /// The command needs roots and there is no file.
    #[error("`{command}` needs roots, and there is no {}; write one, or name a file with --config", file.display())]
    NoFile {
        /// The command.
        command: &'static str,
        /// Where the file was looked for.
        file: PathBuf,
    },
    /// The command needs roots and the file has none.
    #[error("{}: `root`: no root is configured, so there is nothing that `{command}` could do; add a [[root]] table with name and path", file.display())]
    NoRoots {
        /// The command.
        command: &'static str,
        /// The file.
        file: PathBuf,
    },
    /// The command goes by ids, and nothing is configured that has one.
    #[error("{}: `owned`: nothing belongs to an id; add an [[owned]] table with a path or a command that holds {{id}}, or put (?<id>...) into `match` of a root", file.display())]
    NoIds {
        /// The file.
        file: PathBuf,
    },
    /// A service and who asks it go by configurations in which not the same belongs to ids.
    #[error("this command goes by another configuration than the service, which read {}: `{table}` is configured {whose}; have the service read its file again (`systemctl reload`, or SIGHUP), or name that file with --config", file.display())]
    Differs {
        /// The file of the service.
        file: PathBuf,
        /// The first table that is in one of the two alone.
        table: String,
        /// In which of the two.
        whose: &'static str,
    },
    /// A root was named that is not configured.
    #[error("no root is called `{name}`; configured are: {known}")]
    UnknownRoot {
        /// The name given.
        name: String,
        /// The names there are.
        known: String,
    },
    /// A root cannot be used as one, which shows only once it is looked at.
    #[error("root `{name}` ({}): {what}; {remedy}", path.display())]
    Root {
        /// Name of the root.
        name: String,
        /// Its path.
        path: PathBuf,
        /// What is wrong.
        what: String,
        /// What to do about it.
        remedy: String,
    },
}
