//! What ends the removal of what is in hand.

use super::options::PassOptions;
use crate::config::{RemoveRule, RootConfig};
use std::time::{Duration, Instant};

/// Least time that trees are removed for once they are proved, and least time beyond the budget.
const LEAST: Duration = Duration::from_secs(1);

/// What ends the removal of entries that were proved to be free. What is not removed by then stays condemned.
#[derive(Clone, Debug)]
pub(super) struct Limits {
    options: PassOptions,
    is_tree: bool,
    until: Option<Instant>,
}

impl Limits {
    /// Of a pass that was begun at a time, for groups of which the first was proved at another one: however long the claims
    /// and the evidence took, every pass gets on.
    pub(super) fn new(rules: &RootConfig, options: &PassOptions, begun: Instant, proved: Instant) -> Self {
        let end = begun.checked_add(options.budget).and_then(|over| over.checked_add(options.budget.max(LEAST)));
        let until = end.map(|end| end.max(proved + LEAST));
        Self { options: options.clone(), is_tree: rules.remove == RemoveRule::Tree, until }
    }

    /// Whether removal goes on. Only trees can be left half-way, and take so long that somebody who waits is to be heard.
    pub(super) fn go_on(&self) -> bool {
        let is_over = || self.options.is_cut() || self.until.is_some_and(|until| Instant::now() >= until);
        !(self.options.is_stopped() || (self.is_tree && is_over()))
    }
}
