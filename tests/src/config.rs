//! Configuration files.

use crate::{Host, OrFail as _};
use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// One `[[root]]`, without any age fence unless one is asked for.
#[derive(Clone, Debug)]
pub struct Root {
    name: String,
    lines: Vec<(String, String)>,
}

impl Root {
    /// The root of a host, named `root`.
    #[must_use]
    pub fn of(host: &Host) -> Self {
        Self::at("root", &host.root())
    }

    /// A root at a path.
    #[track_caller]
    #[must_use]
    pub fn at(name: &str, path: &Path) -> Self {
        let lines = Vec::new();
        Self { name: name.to_owned(), lines }
            .text("path", path.to_str().or_fail("a root that is UTF-8"))
            .text("min_age", "0s")
    }

    /// Sets a key to a string, in place of an earlier value.
    #[must_use]
    pub fn text(self, key: &str, value: &str) -> Self {
        self.raw(key, &format!("'{value}'"))
    }

    /// Sets a key to a value as it is written in TOML.
    #[must_use]
    pub fn raw(mut self, key: &str, value: &str) -> Self {
        self.lines.retain(|(known, _)| known != key);
        self.lines.push((key.to_owned(), value.to_owned()));
        self
    }
}

/// A configuration file, with a socket and a state directory of its own.
#[derive(Clone, Debug)]
pub struct ConfigFile {
    path: PathBuf,
    socket: PathBuf,
    state: PathBuf,
    every: String,
    budget: String,
    metrics: Option<SocketAddr>,
    refuse_binds: bool,
    roots: Vec<Root>,
    tables: String,
}

impl ConfigFile {
    /// Writes a configuration that starts passes rarely and gives them all the time they need.
    #[track_caller]
    #[must_use]
    pub fn write(host: &Host, roots: impl IntoIterator<Item = Root>) -> Self {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let config = Self {
            path: host.path(format!("config-{number}.toml")),
            socket: host.path(format!("control-{number}.sock")),
            state: host.path(format!("state-{number}")),
            every: "1h".to_owned(),
            budget: "120s".to_owned(),
            metrics: None,
            refuse_binds: false,
            roots: roots.into_iter().collect(),
            tables: String::new(),
        };
        config.write_again();
        config
    }

    /// Changes the time between passes.
    #[track_caller]
    #[must_use]
    pub fn every(mut self, every: &str) -> Self {
        every.clone_into(&mut self.every);
        self.write_again();
        self
    }

    /// Changes the budget of a pass.
    #[track_caller]
    #[must_use]
    pub fn budget(mut self, budget: &str) -> Self {
        budget.clone_into(&mut self.budget);
        self.write_again();
        self
    }

    /// Serves metrics at an address.
    #[track_caller]
    #[must_use]
    pub fn metrics(mut self, address: SocketAddr) -> Self {
        self.metrics = Some(address);
        self.write_again();
        self
    }

    /// Adds further tables, as they are written in TOML.
    #[track_caller]
    #[must_use]
    pub fn tables(mut self, text: &str) -> Self {
        self.tables.push_str(text);
        self.write_again();
        self
    }

    /// Keeps others from binding condemned entries, or does not.
    #[track_caller]
    #[must_use]
    pub fn refuse_binds(mut self, refuse: bool) -> Self {
        self.refuse_binds = refuse;
        self.write_again();
        self
    }

    /// Changes the roots and writes the file again.
    #[track_caller]
    pub fn change_roots(&mut self, roots: impl IntoIterator<Item = Root>) {
        self.roots = roots.into_iter().collect();
        self.write_again();
    }

    /// Replaces the text of the file.
    #[track_caller]
    pub fn write_text(&self, text: &str) {
        fs::write(&self.path, text).or_fail(format_args!("write {}", self.path.display()));
    }

    #[track_caller]
    fn write_again(&self) {
        self.write_text(&self.to_toml());
    }

    /// The text of the file.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let Self { path: _, socket, state, every, budget, metrics, refuse_binds, roots, tables } = self;
        let mut text = format!(
            "[service]\nevery = '{every}'\nbudget = '{budget}'\nstate_dir = '{}'\nsocket = '{}'\nrefuse_binds = {refuse_binds}\n",
            state.display(),
            socket.display()
        );
        if let Some(address) = metrics {
            writeln!(text, "metrics = '{address}'").or_fail("write to a string");
        }
        for Root { name, lines } in roots {
            write!(text, "\n[[root]]\nname = '{name}'\n").or_fail("write to a string");
            for (key, value) in lines {
                writeln!(text, "{key} = {value}").or_fail("write to a string");
            }
        }
        text.push_str(tables);
        text
    }

    /// Where the file is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The state directory.
    #[must_use]
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// The directory of the manifests of holds.
    #[must_use]
    pub fn holds(&self) -> PathBuf {
        let mut beside = self.state.clone().into_os_string();
        beside.push("-holds");
        beside.into()
    }

    /// Where the service listens.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }
}
