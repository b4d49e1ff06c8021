//! What is known of roots between passes, and kept across runs.

use crate::removal::{Memory, RootState};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// The states of roots and of other directories that things are condemned in, by the name of each.
#[derive(Debug)]
pub struct States {
    directory: PathBuf,
    memory: Memory,
    states: HashMap<String, RootState>,
}

impl States {
    /// As earlier runs left them in a state directory.
    #[must_use]
    pub fn read(state_dir: &Path) -> Self {
        Self { directory: state_dir.to_owned(), memory: Memory::read(state_dir), states: HashMap::new() }
    }

    /// The state of one.
    pub fn of(&mut self, name: &str) -> &mut RootState {
        self.states.entry(name.to_owned()).or_insert_with(|| {
            let mut state = RootState::default();
            self.memory.recall(name, &mut state);
            state
        })
    }

    /// Writes down what the next run has to know of one. That it cannot be is told in the log: it costs a line there that was
    /// there before.
    pub fn keep(&mut self, name: &str) {
        if let Some(state) = self.states.get(name)
            && let Err(error) = self.memory.keep(name, state)
        {
            let directory = self.directory.display();
            tracing::warn!("{name}: what was told of it cannot be kept in {directory}, so it is told again: {error}");
        }
    }

    /// Forgets those that are not configured any more.
    pub fn retain(&mut self, is_known: impl Fn(&str) -> bool) {
        self.states.retain(|name, _| is_known(name));
    }
}
