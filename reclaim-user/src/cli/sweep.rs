//! `reclaim sweep`: one pass now.

use super::context::{Context, warn_of_capabilities};
use super::stop::Stop;
use crate::error::{Error, Outcome, chain, exit};
use crate::evidence::engine::{EvidenceChoice, Span};
use crate::model::report::{PassSummary, Verdict};
use crate::removal::{Cursors, PassEvent, PassOptions};
use crate::render::pass as text;
use crate::render::progress::Progress;
use crate::service::client::{Client, ClientError};
use crate::service::holds::{self, Prover, Scope};
use crate::service::protocol::Request;
use crate::service::roots;
use crate::service::states::States;
use serde_json::Value;
use std::io::IsTerminal as _;
use std::time::Duration;

/// How long somebody may work on the holds of one user before a pass goes on without them.
const HOLDS_PATIENCE: Duration = Duration::from_secs(10);

/// Arguments of `sweep`.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Only this root; may be given more than once
    #[arg(long = "root", value_name = "NAME")]
    roots: Vec<String>,
    /// Change nothing, and tell what would go
    #[arg(long)]
    dry_run: bool,
}

pub(super) fn run(context: &mut Context, arguments: &Arguments) -> Result<Outcome, Error> {
    context.need_places()?;
    roots::known(&context.loaded.config.roots, &arguments.roots)?;
    // Who asks for one kind of evidence does not get whatever kind the service has.
    if context.evidence == EvidenceChoice::Auto {
        match Client::connect(&context.loaded.config.service.socket) {
            Ok(client) => return through_service(context, arguments, client),
            Err(ClientError::Nobody { source, .. }) if source.kind() == std::io::ErrorKind::PermissionDenied => {
                tracing::warn!("a service may run, but its socket cannot be reached; sweeping without it");
            }
            Err(_) => {}
        }
    }
    alone(context, arguments)
}

fn alone(context: &mut Context, arguments: &Arguments) -> Result<Outcome, Error> {
    let stop = Stop::listen()?;
    let roots = context.roots()?;
    warn_of_capabilities();
    let mut engine = roots.engine(context.evidence, Span::Command)?;
    engine.refuse_binds(context.loaded.config.service.refuse_binds && !arguments.dry_run);
    let options = PassOptions {
        budget: context.loaded.config.service.budget,
        dry_run: arguments.dry_run,
        per_entry: context.verbose > 0,
        state_dir: Some(context.loaded.config.service.state_dir.clone()),
        stop: Some(stop.flag()),
        ..PassOptions::default()
    };
    let progress = Progress::new(std::io::stderr().is_terminal() && !context.output.json());
    let names: Vec<String> = roots.all().iter().map(|placed| placed.config.name.clone()).collect();
    let mut cursors = Cursors::read(&context.loaded.config.service.state_dir);
    let mut states = States::read(&context.loaded.config.service.state_dir);
    let mut outcome = Outcome::Done;
    let mut first = None;
    for (at, name) in names.iter().enumerate() {
        if !arguments.roots.is_empty() && !arguments.roots.contains(name) {
            continue;
        }
        if stop.is_told() {
            break;
        }
        progress.begin(name);
        let output = &mut context.output;
        let mut written = Ok(());
        let mut on = |event| match event {
            PassEvent::Entry(entry) => {
                if written.is_ok() && options.per_entry {
                    let entry = roots::report(name, entry);
                    written = progress.aside(|| output.object(&entry).and_then(|()| output.line(&text::line(&entry))));
                } else if entry.verdict == Verdict::Condemned || entry.detail.is_some() {
                    let line = text::line(&roots::report(name, entry));
                    progress.aside(|| tracing::warn!("{line}"));
                }
            }
            PassEvent::Note(note) => progress.aside(|| tracing::warn!("{name}: {note}")),
            PassEvent::Progress { listed, removed } => progress.at(listed, removed),
        };
        let state = states.of(name);
        state.cursor = cursors.of(name);
        let pass = roots.pass(at, &mut engine, state, &options, &mut on, &mut |_| {});
        let cursor = state.cursor;
        progress.end();
        if !arguments.dry_run
            && pass.is_ok()
            && let Err(error) = cursors.keep(name, cursor)
        {
            let directory = context.loaded.config.service.state_dir.display();
            tracing::warn!(
                "{name}: where this pass ended cannot be kept in {directory}, so the next begins where this one did: {error}"
            );
        }
        if !arguments.dry_run {
            states.keep(name);
        }
        written?;
        if let Some(held) = pass.as_ref().map_or_else(|error| Some(text::nothing_went(name, error)), text::held_back) {
            tracing::warn!("{held}");
        }
        match pass {
            Ok(summary) => {
                outcome = outcome.max(outcome_of(&summary));
                context.output.object(&summary)?;
                context.output.line(&text::line(&summary))?;
                context.output.flush()?;
            }
            Err(error) if error.code() == exit::BUSY => {
                tracing::error!("{}", chain(&error));
                outcome = outcome.max(Outcome::Busy);
            }
            Err(error) => match &first {
                None => first = Some(error),
                Some(_) => tracing::error!("{}", chain(&error)),
            },
        }
    }
    if arguments.roots.is_empty() && !arguments.dry_run {
        for at in roots.parents() {
            // What purges left behind where no pass looks for entries.
            let name = roots.at(at).config.name.clone();
            if let Err(error) = roots.bring_to_end(at, &mut engine, &mut states, &options, &mut |_| {}) {
                tracing::error!("{name}: {}", chain(&error));
                outcome = outcome.max(if error.code() == exit::BUSY { Outcome::Busy } else { Outcome::Failed });
            }
        }
    }
    if arguments.roots.is_empty() && !arguments.dry_run {
        drop(engine);
        let scope = Scope { user: None, patience: HOLDS_PATIENCE };
        let mut prover = Prover::Alone(context.evidence);
        if let Err(error) = holds::settle(&context.loaded.config, scope, &mut prover, Some(&stop.flag())) {
            tracing::error!("{}", chain(&error));
            outcome = outcome.max(Outcome::Failed);
        }
    }
    if stop.is_told() {
        first.get_or_insert(Error::Stopped { left: "not all of the roots were swept to their ends".to_owned() });
    }
    first.map_or(Ok(outcome), Err)
}

fn outcome_of(summary: &PassSummary) -> Outcome {
    if text::is_weak(summary) { Outcome::Weak } else { Outcome::Done }
}

fn through_service(context: &mut Context, arguments: &Arguments, client: Client) -> Result<Outcome, Error> {
    tracing::info!("through the service on {}", context.loaded.config.service.socket.display());
    let progress = Progress::new(std::io::stderr().is_terminal() && !context.output.json());
    progress.begin("the service sweeps");
    let (roots, dry_run) = (arguments.roots.clone(), arguments.dry_run);
    let answer = client.ask(&Request::Sweep { roots, dry_run, entries: context.verbose > 0 });
    progress.end();
    let mut outcome = Outcome::Done;
    for result in answer?.get("results").and_then(Value::as_array).into_iter().flatten() {
        outcome = outcome.max(tell(context, result)?);
    }
    Ok(outcome)
}

/// One object of the service's answer.
fn tell(context: &mut Context, result: &Value) -> Result<Outcome, Error> {
    let string = |key: &str| result.get(key).and_then(Value::as_str).unwrap_or_default();
    if string("type") == "error" {
        tracing::error!("{}", string("error"));
        let busy = result.get("code").and_then(Value::as_u64) == Some(exit::BUSY.into());
        return Ok(if busy { Outcome::Busy } else { Outcome::Failed });
    }
    context.output.object(result)?;
    context.output.line(&text::line(result))?;
    let weak = result.pointer("/kept/no-evidence").and_then(Value::as_u64).is_some_and(|count| count > 0);
    Ok(if weak { Outcome::Weak } else { Outcome::Done })
}
