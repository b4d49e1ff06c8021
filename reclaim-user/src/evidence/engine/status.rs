//! What the engine says of itself.

use super::{Clock, Engine};
use crate::evidence::lacking;
use crate::model::report::Producer;
use serde::Serialize;
use std::collections::BTreeMap;

/// One hook of the probes.
#[derive(Clone, Debug, Serialize)]
pub struct HookLine {
    /// The call or event.
    pub hook: String,
    /// How it is attached.
    pub rung: String,
    /// Whether it is, and why not.
    pub state: String,
    /// What it costs others.
    pub cost: String,
    /// What it cannot see.
    pub blind_to: String,
    /// The rungs that were to be tried before, and why each is not used.
    pub passed: Vec<(String, String)>,
}

/// State of the engine at one time.
#[derive(Clone, Debug, Serialize)]
pub struct EngineStatus {
    /// Who speaks for the live set.
    pub producer: Producer,
    /// The hooks of the probes.
    pub probes: Vec<HookLine>,
    /// Why there are no probes; none when there are.
    pub probes_missing: Option<String>,
    /// Why the kernel's own list of mounts is not walked; none when it is.
    pub walk_missing: Option<String>,
    /// Whether the mount clock runs.
    pub clock: bool,
    /// Why it does not; none when it does.
    pub clock_missing: Option<String>,
    /// What the mount clock cannot know of the time before the probes were attached; none if it knows all.
    pub clock_weakness: Option<String>,
    /// Milliseconds since the last baseline.
    pub age_ms: u64,
    /// Events received.
    pub events: u64,
    /// Events lost.
    pub lost: u64,
    /// Single namespaces read again.
    pub rereads: u64,
    /// Baselines taken.
    pub baselines: u64,
    /// Namespaces known.
    pub namespaces: usize,
    /// Mounts known.
    pub mounts: usize,
    /// Every task and namespace was accounted for, and nothing was lost since.
    pub complete: bool,
    /// Gaps by cause.
    pub gaps: BTreeMap<&'static str, u64>,
}

impl Engine {
    /// What is in use, how old it is and what it missed.
    #[must_use]
    pub fn status(&self) -> EngineStatus {
        let coverage = self.live.coverage();
        let hooks = self.probes.iter().flat_map(|probes| probes.hooks());
        EngineStatus {
            producer: self.producer(),
            probes: hooks
                .map(|hook| HookLine {
                    hook: hook.hook.to_string(),
                    rung: hook.rung.to_string(),
                    state: hook.state.to_string(),
                    cost: hook.cost.to_owned(),
                    blind_to: hook.blind_to.to_owned(),
                    passed: hook.passed.iter().map(|it| (it.rung.to_string(), it.why.to_string())).collect(),
                })
                .collect(),
            probes_missing: self.probes_missing.clone(),
            walk_missing: self.walk_missing.clone(),
            clock: self.clock().is_some(),
            clock_missing: match (self.clock(), &self.probes_missing) {
                (Some(_), _) => None,
                (None, Some(_)) => Some("the probes that keep it are not attached".to_owned()),
                (None, None) => Some(lacking::WHY.to_owned()),
            },
            clock_weakness: self.clock().and_then(Clock::weakness),
            age_ms: u64::try_from(self.taken.elapsed().as_millis()).unwrap_or(u64::MAX),
            events: self.counts.events,
            lost: self.counts.lost,
            rereads: self.counts.rereads,
            baselines: self.counts.baselines,
            namespaces: self.live.pins().namespaces().count(),
            mounts: self.live.pins().mounts(),
            complete: coverage.complete(),
            gaps: coverage.gaps().iter().map(|(cause, count)| (cause.name(), *count)).collect(),
        }
    }
}
