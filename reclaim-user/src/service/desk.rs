//! Answers to the questions of connections. Changes nothing but what is kept.

use super::keeper::Keeper;
use super::protocol::{self, PathArgument, Peer, Request};
use crate::error::chain;
use crate::evidence::asked::Looker;
use crate::evidence::engine::{Engine, EngineError, EngineStatus};
use crate::evidence::holders;
use crate::evidence::source::EvidenceSource as _;
use crate::model::answer::{self, Elsewhere, Seen, Subject};
use crate::model::report::{PassSummary, Reason};
use crate::model::status::{EvidenceStatus, PassedRung, Probe, StatusReport, Totals};
use serde::Serialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// What the service remembers of its own doings.
#[derive(Debug)]
pub(super) struct Desk {
    pub(super) started: Instant,
    pub(super) next_pass: Option<Instant>,
    pub(super) sweeping: Option<String>,
    pub(super) totals: Totals,
    pub(super) passes: BTreeMap<String, PassSummary>,
    pub(super) faults: BTreeMap<String, String>,
    /// Names of the watched roots, by their index in evidence.
    pub(super) watched: Vec<String>,
    /// Names of all configured roots.
    pub(super) roots: Vec<String>,
    /// Who writes down what is kept.
    pub(super) keeper: Keeper,
}

impl Desk {
    pub(super) fn new() -> Self {
        Self {
            started: Instant::now(),
            next_pass: None,
            sweeping: None,
            totals: Totals::default(),
            passes: BTreeMap::new(),
            faults: BTreeMap::new(),
            watched: Vec::new(),
            roots: Vec::new(),
            keeper: Keeper::default(),
        }
    }

    /// Takes note of a pass that ended.
    pub(super) fn note(&mut self, root: &str, pass: Result<&PassSummary, &str>) {
        match pass {
            Ok(pass) => {
                self.totals.add(pass);
                self.faults.remove(root);
                if !pass.dry_run {
                    self.passes.insert(root.to_owned(), pass.clone());
                }
            }
            Err(fault) => {
                self.totals.passes_failed += 1;
                self.faults.insert(root.to_owned(), fault.to_owned());
            }
        }
    }

    /// The answer to any request that is no work.
    pub(super) fn answer(&self, engine: &mut Engine, peer: Peer, request: &Request) -> String {
        let answer = match request {
            Request::Query { paths } => query(engine, peer, paths),
            Request::Who { paths } => who(engine, peer, paths),
            Request::Keep { .. } | Request::Unkeep { .. } | Request::Keeps {} => {
                return self.keeper.answer(peer, request).unwrap_or_else(|refusal| protocol::error(&refusal));
            }
            _ if !peer.is_root() => return protocol::error("only root may ask this of the service"),
            Request::Pins { root } => match root {
                Some(root) if !self.roots.contains(root) => {
                    return protocol::error(&format!("no root is called `{}`", root.escape_debug()));
                }
                root => self.pins(engine, root.as_deref()),
            },
            Request::Status {} => Ok(vec![json(&self.status(engine))]),
            Request::Sweep { .. } | Request::Settle {} | Request::Purge { .. } => {
                return protocol::error("this is not a question");
            }
        };
        match (answer, request) {
            (Ok(mut results), Request::Status {}) => results.remove(0).to_string(),
            (Ok(results), _) => protocol::results(&results),
            (Err(error), _) => protocol::error(&format!("no evidence could be taken: {}", chain(&error))),
        }
    }

    fn pins(&self, engine: &mut Engine, root: Option<&str>) -> Result<Vec<Value>, EngineError> {
        let view = engine.consult()?;
        let wanted = |name: &String| root.is_none_or(|root| root == name);
        let mut results = Vec::new();
        for (index, name) in self.watched.iter().enumerate().filter(|(_, name)| wanted(name)) {
            let bare = answer::entry_pins(view.pins, index, name, &BTreeMap::new());
            results.extend(bare.iter().map(json));
        }
        Ok(results)
    }

    pub(super) fn status(&self, engine: &Engine) -> StatusReport {
        let now = Instant::now();
        let milliseconds = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        StatusReport {
            pid: std::process::id(),
            uptime_ms: milliseconds(now - self.started),
            sweeping: self.sweeping.clone(),
            next_pass_ms: self.next_pass.map(|next| milliseconds(next.saturating_duration_since(now))),
            evidence: evidence_status(engine.status()),
            totals: self.totals.clone(),
            passes: self.passes.values().cloned().collect(),
            faults: self.faults.clone(),
        }
    }
}

/// The engine's own words as a report.
pub(crate) fn evidence_status(status: EngineStatus) -> EvidenceStatus {
    let probes = status.probes.into_iter().map(|line| Probe {
        hook: line.hook,
        rung: line.rung,
        state: line.state,
        cost: line.cost,
        blind_to: line.blind_to,
        passed: line.passed.into_iter().map(|(rung, why)| PassedRung { rung, why }).collect(),
    });
    EvidenceStatus {
        evidence: status.producer,
        complete: status.complete,
        gaps: status.gaps,
        age_ms: status.age_ms,
        clock: status.clock,
        clock_missing: status.clock_missing,
        clock_weakness: status.clock_weakness,
        events: status.events,
        lost: status.lost,
        rereads: status.rereads,
        baselines: status.baselines,
        namespaces: status.namespaces,
        mounts: status.mounts,
        probes: probes.collect(),
        probes_missing: status.probes_missing,
        walk_missing: status.walk_missing,
    }
}

/// A path that the peer may ask about. Whoever is not root learns nothing about what is not theirs, not even whether it
/// exists. The owner is that of the file that was opened, without following a link.
fn subject(looker: &mut Looker, peer: Peer, path: &PathArgument) -> Result<Subject, Value> {
    let refuse = |message: &str| protocol::path_error(path, message);
    let place = path.path().map_err(|message| refuse(&message))?;
    match looker.look(&place) {
        Ok(subject) if peer.is_root() || subject.owner == peer.uid => Ok(subject),
        Err(error) if peer.is_root() => Err(refuse(&chain(&error))),
        _ => Err(refuse("not there, or not yours")),
    }
}

fn query(engine: &mut Engine, peer: Peer, paths: &[PathArgument]) -> Result<Vec<Value>, EngineError> {
    let mut looker = Looker::default();
    let subjects: Vec<_> = paths.iter().map(|path| subject(&mut looker, peer, path)).collect();
    let view = engine.ask(&looker.question())?;
    let elsewhere = Elsewhere::of(view.pins, subjects.iter().flatten());
    let seen = Seen { elsewhere: Some(&elsewhere), ..view.into() };
    Ok(subjects
        .into_iter()
        .map(|subject| subject.map_or_else(|error| error, |subject| json(&subject.query(seen))))
        .collect())
}

fn who(engine: &mut Engine, peer: Peer, paths: &[PathArgument]) -> Result<Vec<Value>, EngineError> {
    let mut looker = Looker::default();
    let subjects: Vec<_> = paths.iter().map(|path| subject(&mut looker, peer, path)).collect();
    let view = engine.ask(&looker.question())?;
    let elsewhere = Elsewhere::of(view.pins, subjects.iter().flatten());
    let seen = Seen { elsewhere: Some(&elsewhere), ..view.into() };
    let namespaces: BTreeSet<_> = subjects.iter().flatten().flat_map(|subject| subject.namespaces(seen)).collect();
    let tasks = holders::tasks(&namespaces, view.pins);
    let processes = subjects.iter().flatten().flat_map(|subject| subject.processes(seen)).collect();
    let processes = holders::processes(&processes);
    Ok(subjects
        .into_iter()
        .map(|subject| subject.map_or_else(|error| error, |subject| json(&subject.who(seen, &tasks, &processes))))
        .collect())
}

/// A report as JSON.
pub(super) fn json(report: &impl Serialize) -> Value {
    serde_json::to_value(report).expect("reports have text keys only")
}

/// The metrics in the text form of OpenMetrics.
pub(super) fn metrics(status: &StatusReport) -> String {
    let StatusReport { totals, evidence, passes, uptime_ms, .. } = status;
    let mut text = String::with_capacity(2048);
    let mut family = |name: &str, kind: &str, help: &str, samples: &[(String, u64)]| {
        use std::fmt::Write as _;
        let suffix = if kind == "counter" { "_total" } else { "" };
        let mut put = |line: std::fmt::Arguments<'_>| text.write_fmt(line).expect("writing to a string cannot fail");
        put(format_args!("# TYPE reclaim_{name} {kind}\n# HELP reclaim_{name} {help}\n"));
        for (labels, value) in samples {
            put(format_args!("reclaim_{name}{suffix}{labels} {value}\n"));
        }
    };
    let one = |value: u64| vec![(String::new(), value)];
    let kept = totals.kept.iter().map(|(reason, count)| (format!("{{reason=\"{}\"}}", reason_name(*reason)), *count));
    let kept: Vec<_> = kept.collect();
    let times: Vec<_> =
        passes.iter().map(|pass| (format!("{{root=\"{}\"}}", label(&pass.root)), pass.elapsed_ms)).collect();
    family("passes", "counter", "Passes that ended, one for each root.", &one(totals.passes));
    family("passes_failed", "counter", "Passes that could not be made.", &one(totals.passes_failed));
    family("removed", "counter", "Entries that are gone.", &one(totals.removed));
    family("restored", "counter", "Condemned entries that got their name back.", &one(totals.restored));
    family("kept", "counter", "Entries kept, each time they were.", &kept);
    family("events", "counter", "Records of mount events that arrived.", &one(evidence.events));
    family("lost", "counter", "Records of mount events that were lost.", &one(evidence.lost));
    family("rereads", "counter", "Namespaces read again.", &one(evidence.rereads));
    family("baselines", "counter", "Full baselines taken.", &one(evidence.baselines));
    family("namespaces", "gauge", "Mount namespaces known.", &one(evidence.namespaces as u64));
    family("mounts", "gauge", "Mounts known.", &one(evidence.mounts as u64));
    family("evidence_complete", "gauge", "Every task and namespace is accounted for.", &one(evidence.complete.into()));
    family("evidence_age_milliseconds", "gauge", "Since evidence was brought up to date.", &one(evidence.age_ms));
    family("last_pass_milliseconds", "gauge", "How long the last pass took.", &times);
    family("uptime_milliseconds", "gauge", "Since the service started.", &one(*uptime_ms));
    text.push_str("# EOF\n");
    text
}

fn reason_name(reason: Reason) -> String {
    json(&reason).as_str().unwrap_or_default().to_owned()
}

fn label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
