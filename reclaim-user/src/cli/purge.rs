//! `reclaim purge`: removal of all that belongs to an id.

use super::complain;
use super::context::{Context, warn_of_capabilities};
use super::stop::Stop;
use crate::config::{ConfigError, duration};
use crate::error::{Error, Outcome, exit};
use crate::evidence::engine::{Engine, EvidenceChoice, Span};
use crate::model::purge::Id;
use crate::render::purge as text;
use crate::service::client::{Client, ClientError};
use crate::service::protocol::Request;
use crate::service::purge;
use crate::service::roots::Roots;
use crate::service::states::States;
use serde_json::Value;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::time::{Duration, Instant};

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(250);

/// Arguments of `purge`.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// What `{id}` in [[owned]] tables and the group `id` of roots stand for. Each id goes as a whole or not at all
    #[arg(required = true, value_name = "ID")]
    ids: Vec<OsString>,
    /// Change nothing, and tell what would go
    #[arg(long)]
    dry_run: bool,
    /// While a target is in use or cannot be proved to be free, or its directory is held by another reclaimer, try again for
    /// this long
    #[arg(long, value_name = "TIME", value_parser = duration::parse, conflicts_with = "dry_run")]
    wait: Option<Duration>,
}

/// Who does the work.
enum Worker {
    Service,
    Alone(Box<Alone>),
}

struct Alone {
    roots: Roots,
    engine: Engine,
    states: States,
}

pub(super) fn run(context: &mut Context, arguments: &Arguments) -> Result<Outcome, Error> {
    context.need_anything()?;
    need_ids(context)?;
    let ids = arguments.ids.iter().map(|id| Id::parse(id.as_bytes())).collect::<Result<Vec<_>, _>>()?;
    // Before anything is touched: one bad id, and none is purged.
    for id in &ids {
        purge::check(&context.loaded.config, id)?;
    }
    let stop = Stop::listen()?;
    let mut worker = Some(choose(context, arguments.dry_run)?);
    let deadline = Instant::now() + arguments.wait.unwrap_or_default();
    let mut outcome = Outcome::Done;
    for (at, id) in ids.iter().enumerate() {
        if stop.is_told() {
            let left: Vec<&str> = ids[at..].iter().map(Id::as_str).collect();
            return Err(Error::Stopped { left: format!("not purged: {}", left.join(", ")) });
        }
        let tried = loop {
            let tried = try_once(context, &mut worker, id, arguments.dry_run, &stop);
            let now = Instant::now();
            if stop.is_told() || now >= deadline || !may_pass(&tried) {
                break tried;
            }
            // Nothing is in hand.
            stop.at_once(|| std::thread::sleep(PAUSE.min(deadline - now)));
        };
        // What keeps one id from being purged may be nothing to the next.
        outcome = outcome.max(match tried {
            Ok(told) => tell(context, &told)?,
            Err(error) => {
                complain(&error);
                Outcome::of_code(error.code())
            }
        });
    }
    Ok(outcome)
}

/// Whether another try may end otherwise.
fn may_pass(tried: &Result<Value, Error>) -> bool {
    match tried {
        Ok(told) => {
            let code = told.get("code").and_then(Value::as_u64);
            // Who ends leaves it to others to go on.
            let is_stopped = told.get("stopped").and_then(Value::as_bool) == Some(true);
            text::may_pass(told) || is_stopped || code == Some(exit::BUSY.into())
        }
        Err(Error::Client(error)) => error.is_gone(),
        Err(error) => error.code() == exit::BUSY,
    }
}

/// Refuses a configuration in which nothing belongs to any id.
fn need_ids(context: &Context) -> Result<(), ConfigError> {
    let config = &context.loaded.config;
    match &context.loaded.file {
        Some(file) if config.owned.is_empty() && !config.roots.iter().any(|root| root.has_id()) => {
            Err(ConfigError::NoIds { file: file.clone() })
        }
        _ => Ok(()),
    }
}

fn choose(context: &Context, dry_run: bool) -> Result<Worker, Error> {
    // Who asks for one kind of evidence does not get whatever kind the service has.
    if context.evidence == EvidenceChoice::Auto {
        match Client::connect(&context.loaded.config.service.socket) {
            Ok(_) => return Ok(through_service(context)),
            Err(ClientError::Nobody { source, .. }) if source.kind() == std::io::ErrorKind::PermissionDenied => {
                tracing::warn!("a service may run, but its socket cannot be reached; purging without it");
            }
            Err(_) => {}
        }
    }
    let roots = Roots::place(&context.loaded.config);
    roots.check()?;
    let mut engine = match roots.everything().is_empty() {
        // Managers alone know what could go, and evidence is asked nothing: no probe is attached for that.
        true => roots.engine(EvidenceChoice::Scan, Span::Question)?,
        false => {
            warn_of_capabilities();
            roots.engine(context.evidence, Span::Command)?
        }
    };
    let states = States::read(&context.loaded.config.service.state_dir);
    engine.refuse_binds(context.loaded.config.service.refuse_binds && !dry_run);
    Ok(Worker::Alone(Box::new(Alone { roots, engine, states })))
}

fn through_service(context: &Context) -> Worker {
    tracing::info!("through the service on {}", context.loaded.config.service.socket.display());
    Worker::Service
}

/// One try: the report, or the error that the service gave in its place. Who does the work is chosen again where nobody is
/// left to do it, and where a service has come that may be at the same work.
fn try_once(
    context: &Context,
    worker: &mut Option<Worker>,
    id: &Id,
    dry_run: bool,
    stop: &Stop,
) -> Result<Value, Error> {
    let config = &context.loaded.config;
    let chosen = match worker.take() {
        Some(Worker::Alone(_))
            if context.evidence == EvidenceChoice::Auto && Client::connect(&config.service.socket).is_ok() =>
        {
            through_service(context)
        }
        Some(chosen) => chosen,
        None => choose(context, dry_run)?,
    };
    let chosen = worker.insert(chosen);
    let tried = purge_by(context, chosen, id, dry_run, stop);
    if matches!(&tried, Err(Error::Client(error)) if error.is_gone()) {
        *worker = None;
    }
    tried
}

fn purge_by(context: &Context, worker: &mut Worker, id: &Id, dry_run: bool, stop: &Stop) -> Result<Value, Error> {
    let config = &context.loaded.config;
    match worker {
        Worker::Service => {
            let client = Client::connect(&config.service.socket)?;
            let request = Request::Purge { id: id.to_string(), dry_run, belongs: Some(config.belongs()) };
            // The service goes on with it, whatever becomes of who asked.
            let mut answer = stop.at_once(|| client.ask(&request))?;
            Ok(answer.pointer_mut("/results/0").map(Value::take).unwrap_or_default())
        }
        Worker::Alone(alone) => {
            let Alone { roots, engine, states } = &mut **alone;
            // A directory may have come, gone or moved since the last try.
            *roots = Roots::place(config);
            engine.watch(roots.watch());
            let report = purge::purge(roots, config, engine, states, id, dry_run, Some(stop.flag()), &mut |_| {})?;
            Ok(serde_json::to_value(report).unwrap_or_default())
        }
    }
}

fn tell(context: &mut Context, told: &Value) -> Result<Outcome, Error> {
    match told.get("type").and_then(Value::as_str) {
        Some("purge") => {
            context.output.object(told)?;
            context.output.table(&text::table(told))?;
            context.output.line(&text::line(told))?;
            context.output.flush()?;
            Ok(text::outcome(told))
        }
        _ => {
            let message = told.get("error").and_then(Value::as_str).unwrap_or("the service gave no answer");
            tracing::error!("{message}");
            let code = told.get("code").and_then(Value::as_u64).and_then(|code| u8::try_from(code).ok());
            Ok(code.map_or(Outcome::Failed, Outcome::of_code))
        }
    }
}
