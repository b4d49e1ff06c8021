//! Reclaim's own files: no pass and no purge may come by them.

use super::overlap::Lineage;
use super::{Config, RootConfig, ServiceConfig};
use crate::model::fence;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// What reclaim needs to be there, with what it is called.
pub(super) fn files(service: &ServiceConfig, config: &Path) -> [(&'static str, PathBuf); 4] {
    [
        ("state_dir", service.state_dir.clone()),
        ("the holds", service.holds()),
        ("the control socket", service.socket.clone()),
        ("this file", config.to_owned()),
    ]
}

/// What a pass over a root could remove of these files, in words.
pub(super) fn in_entries(
    root: &RootConfig,
    lineage: &Lineage,
    files: &[(&'static str, PathBuf)],
) -> Result<(), String> {
    for (what, file) in files {
        let is_entry = |name: &OsString| fence::name(root.pattern.as_ref(), name.as_bytes()).is_some();
        let name = match below(file, &root.path, lineage) {
            // What is in it would be its entries.
            Some(None) => Some(root.path.clone()),
            Some(Some(name)) => Some(root.path.join(&name)).filter(|_| is_entry(&name)),
            // A root within them: its entries are what reclaim has written there.
            None => Some(root.path.clone()).filter(|path| path.starts_with(file) || lineage.inside(&Lineage::of(file))),
        };
        if let Some(entry) = name {
            return Err(format!(
                "{what} ({}) is or lies in {}, which a pass may remove",
                file.display(),
                entry.display()
            ));
        }
    }
    Ok(())
}

/// The name in a directory that leads to a file; none within where it is that directory. None where it leads elsewhere.
fn below(file: &Path, directory: &Path, lineage: &Lineage) -> Option<Option<OsString>> {
    if let Ok(rest) = file.strip_prefix(directory) {
        return Some(rest.components().next().map(|name| name.as_os_str().to_owned()));
    }
    // By another path to it: from what is there of the file's upwards.
    let mut missing = None;
    let mut there = file;
    let real = loop {
        match std::fs::canonicalize(there) {
            Ok(real) => break real,
            Err(_) => missing = there.file_name(),
        }
        there = there.parent()?;
    };
    let mut name = missing.map(ToOwned::to_owned);
    for above in real.ancestors() {
        if lineage.is(above) {
            return Some(name);
        }
        name = above.file_name().map(ToOwned::to_owned);
    }
    None
}

impl Config {
    /// Directories that ids share: the roots, those that templates lie in, and what reclaim keeps for itself. No id may name
    /// one of them.
    #[must_use]
    pub fn shared(&self) -> Vec<PathBuf> {
        let parents = self.owned_paths().map(|owned| owned.rules.path.clone());
        let ServiceConfig { state_dir, socket, .. } = &self.service;
        let own = [state_dir.clone(), self.service.holds(), socket.clone()];
        self.roots.iter().map(|root| root.path.clone()).chain(parents).chain(own).collect()
    }
}
