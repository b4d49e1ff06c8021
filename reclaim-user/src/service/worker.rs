//! The thread that owns the engine, the live set and the passes. Everything that changes state happens here, one thing
//! at a time; questions are answered between the steps of a pass.

use super::desk;
use super::holds::{self, Prover, Scope};
use super::keeper::Keeper;
use super::message::{Event, Message};
use super::post::Post;
use super::protocol::{self, Peer, Request};
use super::purge::purge;
use super::roots::{self, Roots};
use super::states::States;
use crate::config::{Loaded, RootConfig};
use crate::error::{Error, chain};
use crate::evidence::engine::{Engine, EvidenceChoice, Span};
use crate::model::purge::Id;
use crate::model::report::{PassSummary, Reason, Verdict};
use crate::removal::{self, KeepStore, PassEvent, PassOptions};
use crate::render::output::Output;
use crate::render::pass as text;
use crate::render::purge as purge_text;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::Value;
use std::collections::VecDeque;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::UnboundedSender;

/// After the ring was drained it is left alone for this long, in milliseconds: a storm of events then costs one wake-up
/// for many. The ring holds far more than can arrive in that time.
const BREATH: u16 = 5;
/// After a drain that failed, in milliseconds.
const LONG_BREATH: u16 = 1_000;
/// How long somebody may work on the holds of one user before a pass goes on without them.
const SETTLE_PATIENCE: Duration = Duration::from_secs(1);
/// Entries that one answer to a sweep holds at most. A peer that reads them slowly must not fill the memory.
const MOST_ENTRIES: usize = 100_000;

/// What the thread is given.
pub(super) struct Setup {
    pub(super) loaded: Loaded,
    pub(super) evidence: EvidenceChoice,
    pub(super) per_entry: bool,
    pub(super) output: Output,
    pub(super) inbox: Receiver<Message>,
    pub(super) waker: UnixStream,
    pub(super) events: UnboundedSender<Event>,
    pub(super) stop: Arc<AtomicBool>,
}

/// Runs until it is told to stop.
///
/// # Errors
/// When no evidence can be taken at the start, or standard output is gone.
pub(super) fn run(setup: Setup) -> Result<(), Error> {
    let Setup { loaded, evidence, per_entry, output, inbox, waker, events, stop } = setup;
    let roots = Roots::place(&loaded.config);
    roots.check()?;
    let mut engine = roots.engine(evidence, Span::Service)?;
    engine.refuse_binds(loaded.config.service.refuse_binds);
    let states = States::read(&loaded.config.service.state_dir);
    let mut worker =
        Worker { engine, post: Post::new(inbox, waker, stop), roots, loaded, states, per_entry, output, events };
    worker.know_roots();
    worker.tell(Event::Ready);
    worker.serve()
}

struct Worker {
    engine: Engine,
    post: Post,
    roots: Roots,
    loaded: Loaded,
    states: States,
    per_entry: bool,
    output: Output,
    events: UnboundedSender<Event>,
}

/// How a sweep is made.
#[derive(Default)]
struct Sweep<'t> {
    dry_run: bool,
    /// Where it is told to who asked for it, with each entry or without.
    told: Option<(&'t mut Told, bool)>,
    /// Makes it end early.
    cut: Option<Arc<AtomicBool>>,
}

/// What a sweep leaves to tell.
#[derive(Default)]
struct Told {
    results: Vec<Value>,
    entries: usize,
}

impl Worker {
    fn serve(&mut self) -> Result<(), Error> {
        let mut ring_rests = 0;
        loop {
            self.post.answer(&mut self.engine);
            if self.post.stopping() {
                return Ok(());
            }
            match self.post.put_off.pop_front() {
                Some(message) => {
                    self.act(message)?;
                    self.engine.rest();
                }
                None => ring_rests = self.wait(ring_rests),
            }
        }
    }

    /// Waits for a message or for the ring, and drains the ring. Gives for how long the ring is to be left alone then.
    fn wait(&mut self, ring_rests: u16) -> u16 {
        let ring = self.engine.poll_fd();
        let mut waits = vec![PollFd::new(self.post.waker.as_fd(), PollFlags::POLLIN)];
        let timeout = match (ring, ring_rests) {
            (Some(_), rest @ 1..) => PollTimeout::from(rest),
            (Some(ring), 0) => {
                waits.push(PollFd::new(ring, PollFlags::POLLIN));
                PollTimeout::NONE
            }
            (None, _) => PollTimeout::NONE,
        };
        let timeout = if self.post.is_behind { PollTimeout::ZERO } else { timeout };
        // A failed wait is an interrupted one: the inbox is looked at again in any case.
        let _interrupted = poll(&mut waits, timeout);
        let ready = waits.get(1).and_then(PollFd::any).unwrap_or(false);
        drop(waits);
        if !ready {
            return 0;
        }
        match self.engine.drain() {
            Ok(()) => BREATH,
            Err(error) => {
                tracing::warn!("cannot read events: {}", chain(&error));
                LONG_BREATH
            }
        }
    }

    fn act(&mut self, message: Message) -> Result<(), Error> {
        match message {
            Message::Pass(every) => {
                self.post.desk.next_pass = Some(Instant::now() + every);
                self.sweep_on_schedule()
            }
            Message::Ask { peer, request: Request::Sweep { roots, dry_run, entries }, answer } => {
                let mut told = Told::default();
                let line = match self.may_sweep(peer, &roots) {
                    Err(refusal) => protocol::error(&refusal),
                    Ok(()) => {
                        self.prepare();
                        let names = self.names(&roots);
                        self.sweep(&names, Sweep { dry_run, told: Some((&mut told, entries)), cut: None })?;
                        if roots.is_empty() && !dry_run {
                            self.roots.parents().for_each(|at| self.bring_to_end(at, None));
                            self.settle(None);
                        }
                        protocol::results(&told.results)
                    }
                };
                let _gone = answer.send(line);
                Ok(())
            }
            Message::Ask { peer, request: Request::Purge { id, dry_run, belongs }, answer } => {
                let line = match peer.is_root() {
                    false => protocol::error("only root may purge"),
                    true => self.purge(&id, dry_run, belongs.as_deref())?,
                };
                let _gone = answer.send(line);
                Ok(())
            }
            Message::Ask { peer, request: Request::Settle {}, answer } => {
                let settled = self.settle(if peer.is_root() { None } else { Some(peer.uid) });
                let _gone = answer.send(protocol::results(&settled));
                Ok(())
            }
            Message::Reload(loaded) => {
                self.reload(*loaded);
                Ok(())
            }
            Message::Ask { .. } | Message::Metrics(_) | Message::Stop => Ok(()),
        }
    }

    /// Removes all that belongs to an id, and gives the answer. `belongs`: what does by the configuration of who asks.
    fn purge(&mut self, id: &str, dry_run: bool, belongs: Option<&[String]>) -> Result<String, Error> {
        let id = match Id::parse(id.as_bytes()) {
            Ok(id) => id,
            Err(error) => return Ok(protocol::error(&error.to_string())),
        };
        self.prepare();
        let Self { engine, post, roots, loaded, states, output, .. } = self;
        let stop = Some(Arc::clone(&post.stop));
        let mut between = |engine: &mut Engine| post.attend(engine);
        let agreed = belongs.map_or(Ok(()), |belongs| loaded.agrees(belongs).map_err(Error::from));
        let purged =
            agreed.and_then(|()| purge(roots, &loaded.config, engine, states, &id, dry_run, stop, &mut between));
        Ok(match purged {
            Ok(report) => {
                output.object(&report)?;
                output.line(&purge_text::line(&desk::json(&report)))?;
                output.flush()?;
                protocol::results(&[desk::json(&report)])
            }
            Err(error) => {
                let said = chain(&error);
                tracing::error!("{said}");
                let id = id.as_str();
                let object = serde_json::json!({ "type": "error", "id": id, "error": said, "code": error.code() });
                protocol::results(&[object])
            }
        })
    }

    /// Passes over all roots, and brings what purges and holders left to its end. Nobody who asks for something meanwhile
    /// waits for all of that: the pass under way is cut short, who waits is served, and the other roots have their turns. The
    /// one that was cut short has another one behind them, and is not cut then. So who asks waits for one pass over one root
    /// at most, and who asks all the time keeps no root from its pass.
    fn sweep_on_schedule(&mut self) -> Result<(), Error> {
        self.prepare();
        let all = self.roots.everything().iter();
        let mut turns: VecDeque<(String, bool)> = all.map(|placed| (placed.config.name.clone(), true)).collect();
        while let Some((name, may_be_cut)) = turns.pop_front() {
            self.serve_who_waits()?;
            if self.post.stopping() {
                return Ok(());
            }
            // What was served may have been another configuration.
            let Some(at) = self.roots.everything().iter().position(|placed| placed.config.name == name) else {
                continue;
            };
            let cut = may_be_cut.then(|| Arc::clone(&self.post.cut));
            let is_cut_short = if self.roots.parents().contains(&at) {
                self.bring_to_end(at, cut);
                self.post.is_waited_for()
            } else {
                self.sweep(&[at], Sweep { cut, ..Sweep::default() })? && self.post.is_waited_for()
            };
            if may_be_cut && is_cut_short {
                turns.push_back((name, false));
            }
        }
        self.serve_who_waits()?;
        self.settle(None);
        Ok(())
    }

    /// Serves those who wait, for as long as one pass may take.
    fn serve_who_waits(&mut self) -> Result<(), Error> {
        let (begun, budget) = (Instant::now(), self.loaded.config.service.budget);
        loop {
            self.serve_who_waits_now()?;
            self.post.look_who_waits();
            if !self.post.is_waited_for() || self.post.stopping() || begun.elapsed() >= budget {
                return Ok(());
            }
        }
    }

    /// Serves those who wait by now, in their order; further sweeps on schedule have their turn later.
    fn serve_who_waits_now(&mut self) -> Result<(), Error> {
        self.post.answer(&mut self.engine);
        let mut sweeps = VecDeque::new();
        for message in std::mem::take(&mut self.post.put_off) {
            match message {
                Message::Pass(_) => sweeps.push_back(message),
                _ if self.post.stopping() => {}
                message => self.act(message)?,
            }
        }
        // Before those that have come meanwhile.
        sweeps.append(&mut self.post.put_off);
        self.post.put_off = sweeps;
        Ok(())
    }

    /// Brings what purges left condemned at a place where no pass looks for entries to its end.
    fn bring_to_end(&mut self, at: usize, cut: Option<Arc<AtomicBool>>) {
        let Self { engine, post, roots, loaded, states, .. } = self;
        let options = PassOptions {
            budget: loaded.config.service.budget,
            stop: Some(Arc::clone(&post.stop)),
            cut,
            state_dir: Some(loaded.config.service.state_dir.clone()),
            ..PassOptions::default()
        };
        let mut between = |engine: &mut Engine| post.attend(engine);
        if let Err(error) = roots.bring_to_end(at, engine, states, &options, &mut between) {
            tracing::error!("{}", chain(&error));
        }
    }

    /// Removes what holders that have ended left, of one user or of all.
    fn settle(&mut self, user: Option<u32>) -> Vec<Value> {
        let scope = Scope { user, patience: SETTLE_PATIENCE };
        let stop = Arc::clone(&self.post.stop);
        // Questions are answered meanwhile, by the names of what is watched then.
        self.prepare();
        let Self { engine, post, loaded, .. } = self;
        let mut between = |engine: &mut Engine| post.attend(engine);
        let mut prover = Prover::Service(engine, &mut between);
        let settled = holds::settle(&loaded.config, scope, &mut prover, Some(&stop));
        // It watched the places of placeholders meanwhile.
        self.engine.watch(self.roots.watch());
        match settled {
            Ok(reports) => reports.iter().map(desk::json).collect(),
            Err(error) => {
                tracing::warn!("{}", chain(&error));
                Vec::new()
            }
        }
    }

    fn may_sweep(&self, peer: Peer, names: &[String]) -> Result<(), String> {
        if !peer.is_root() {
            return Err("only root may sweep".to_owned());
        }
        roots::known(&self.loaded.config.roots, names).map_err(|error| error.to_string())
    }

    /// The places of the named roots in the configuration; all when none is named.
    fn names(&self, names: &[String]) -> Vec<usize> {
        let all = self.roots.all().iter().enumerate();
        all.filter(|(_, placed)| names.is_empty() || names.contains(&placed.config.name)).map(|(at, _)| at).collect()
    }

    /// Looks again where the roots are: one may have come, gone or moved.
    fn prepare(&mut self) {
        let roots = Roots::place(&self.loaded.config);
        self.engine.watch(roots.watch());
        self.roots = roots;
        self.know_roots();
    }

    fn know_roots(&mut self) {
        self.post.desk.watched = self.roots.watched();
        self.post.desk.roots = self.loaded.config.roots.iter().map(|root| root.name.clone()).collect();
        self.post.desk.keeper = Keeper::of(&self.loaded.config);
    }

    fn reload(&mut self, loaded: Loaded) {
        let roots = Roots::place(&loaded.config);
        match roots.check() {
            Ok(()) => {
                let config = &loaded.config.roots;
                let known = |name: &str| config.iter().any(|root: &RootConfig| root.name == *name);
                let is_owned = |name: &str| loaded.config.owned_paths().any(|owned| owned.rules.name == *name);
                self.states.retain(|name| known(name) || is_owned(name));
                self.post.desk.passes.retain(|name, _| known(name));
                self.post.desk.faults.retain(|name, _| known(name));
                self.engine.watch(roots.watch());
                self.engine.refuse_binds(loaded.config.service.refuse_binds);
                if loaded.config.service.state_dir != self.loaded.config.service.state_dir {
                    self.states = States::read(&loaded.config.service.state_dir);
                }
                (self.roots, self.loaded) = (roots, loaded);
                self.know_roots();
                self.tell(Event::Reloaded);
            }
            Err(error) => {
                tracing::error!("the configuration is refused and the old one stays in use: {}", chain(&error))
            }
        }
    }

    /// Passes over some roots, one after another. A pass that fails is told and does not stop the next. Whether one did not
    /// come to its end.
    fn sweep(&mut self, places: &[usize], sweep: Sweep<'_>) -> Result<bool, Error> {
        let Sweep { dry_run, mut told, cut } = sweep;
        let mut is_cut_short = false;
        for at in places {
            if self.post.stopping() {
                break;
            }
            let name = self.roots.all()[*at].config.name.clone();
            self.post.desk.sweeping = Some(name.clone());
            let told_of = told.as_mut().map(|(told, entries)| (&mut **told, *entries));
            let pass = self.pass(*at, &name, Sweep { dry_run, told: told_of, cut: cut.clone() });
            self.post.desk.sweeping = None;
            if !dry_run {
                self.remember(&name);
            }
            if let Some(held) =
                pass.as_ref().map_or_else(|error| Some(text::nothing_went(&name, error)), text::held_back)
            {
                tracing::warn!("{held}");
            }
            match pass {
                Ok(summary) => {
                    is_cut_short |= summary.truncated;
                    self.post.desk.note(&name, Ok(&summary));
                    self.output.object(&summary)?;
                    self.output.line(&text::line(&summary))?;
                    if let Some((told, _)) = &mut told {
                        told.results.push(desk::json(&summary));
                    }
                }
                Err(error @ Error::Output(_)) => return Err(error),
                Err(error) => {
                    let said = chain(&error);
                    self.post.desk.note(&name, Err(&said));
                    tracing::error!("{said}");
                    if let Some((told, _)) = &mut told {
                        let object = serde_json::json!({
                            "type": "error", "root": name, "error": said, "code": error.code()
                        });
                        told.results.push(object);
                    }
                }
            }
            self.output.flush()?;
        }
        Ok(is_cut_short)
    }

    fn pass(&mut self, at: usize, name: &str, sweep: Sweep<'_>) -> Result<PassSummary, Error> {
        let Sweep { dry_run, mut told, cut } = sweep;
        let Self { engine, post, roots, loaded, states, per_entry, output, .. } = self;
        let wants_entries = told.as_ref().is_some_and(|(_, entries)| *entries);
        let options = PassOptions {
            budget: loaded.config.service.budget,
            dry_run,
            per_entry: *per_entry || wants_entries,
            stop: Some(Arc::clone(&post.stop)),
            cut,
            state_dir: Some(loaded.config.service.state_dir.clone()),
            ..PassOptions::default()
        };
        let mut written = Ok(());
        let mut on = |event| match event {
            PassEvent::Entry(entry) => {
                let entry = roots::report(name, entry);
                let is_fault = entry.verdict == Verdict::Condemned
                    || entry.reason == Some(Reason::Failed)
                    || (entry.reason == Some(Reason::Retained) && entry.detail.is_some())
                    || (entry.verdict == Verdict::Restored && entry.detail.is_some());
                if *per_entry && written.is_ok() {
                    written = output.object(&entry).and_then(|()| output.line(&text::line(&entry)));
                } else if is_fault {
                    tracing::warn!("{}", text::line(&entry));
                }
                if let Some((told, true)) = &mut told {
                    told.entries += 1;
                    if told.entries <= MOST_ENTRIES {
                        told.results.push(desk::json(&entry));
                    }
                }
            }
            PassEvent::Note(note) => tracing::warn!("{name}: {note}"),
            PassEvent::Progress { .. } => {}
        };
        let mut between = |engine: &mut Engine| post.attend(engine);
        let summary = roots.pass(at, engine, states.of(name), &options, &mut on, &mut between);
        if let Some((told, true)) = &mut told
            && told.entries > MOST_ENTRIES
        {
            let left = told.entries - MOST_ENTRIES;
            told.results.push(serde_json::json!({ "type": "left-off", "root": name, "entries": left }));
        }
        written?;
        summary
    }

    /// Keeps what the next start has to know of a root, and takes off keeps that are over.
    fn remember(&mut self, name: &str) {
        self.states.keep(name);
        // Keeps that cannot be read were told of by the pass, which kept everything for that.
        let _unread = KeepStore::of(&self.loaded.config.service.state_dir).prune(removal::now());
    }

    fn tell(&self, event: Event) {
        // The loop has ended only where this thread is about to.
        let _gone = self.events.send(event);
    }
}
