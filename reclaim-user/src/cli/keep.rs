//! `reclaim keep`, `unkeep` and `keeps`: keep-until on one entry, by its owner or root.

use super::context::Context;
use crate::error::{Error, Outcome};
use crate::render::table::Table;
use crate::render::text;
use crate::service::client::{Client, ClientError};
use crate::service::keeper::{Keeper, seconds};
use crate::service::protocol::{PathArgument, Peer, Request};
use nix::unistd::geteuid;
use serde_json::Value;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// Arguments of `keep`.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// An entry: a direct child of a configured root
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// For how long from now, such as 12h or 7d. The last word counts, also where it is a shorter time
    #[arg(long = "for", value_name = "TIME")]
    time: String,
}

/// Arguments of `unkeep`.
#[derive(Debug, clap::Args)]
pub(super) struct UnkeepArguments {
    /// The entry
    #[arg(value_name = "PATH")]
    path: PathBuf,
}

pub(super) fn run(context: &mut Context, arguments: &Arguments) -> Result<Outcome, Error> {
    let wrong = |what| Error::Argument { argument: "--for", what, remedy: "see `reclaim keep --help`" };
    let time = seconds(&arguments.time).map_err(wrong)?;
    let path = absolute(&arguments.path)?;
    let report = match service(context)? {
        Some(client) => client.ask(&Request::Keep { path: sent(&path), time: format!("{time}s") })?,
        None => json(&alone(context)?.keep(ROOT, &path, time)?),
    };
    context.output.object(&report)?;
    context.output.line(&format!("{} is kept until {}", shown(&report), string(&report, "until")))?;
    Ok(Outcome::Done)
}

pub(super) fn end(context: &mut Context, arguments: &UnkeepArguments) -> Result<Outcome, Error> {
    let path = absolute(&arguments.path)?;
    let report = match service(context)? {
        Some(client) => client.ask(&Request::Unkeep { path: sent(&path) })?,
        None => json(&alone(context)?.unkeep(ROOT, &path)?),
    };
    context.output.object(&report)?;
    let was_kept = report.get("was_kept").and_then(Value::as_bool).unwrap_or_default();
    let words = if was_kept { "is not kept any more" } else { "was not kept" };
    context.output.line(&format!("{} {words}", shown(&report)))?;
    Ok(Outcome::Done)
}

pub(super) fn list(context: &mut Context) -> Result<Outcome, Error> {
    let reports = match service(context)? {
        Some(client) => {
            let answer = client.ask(&Request::Keeps {})?;
            answer.get("results").and_then(Value::as_array).cloned().unwrap_or_default()
        }
        None => alone(context)?.list(ROOT)?.iter().map(json).collect(),
    };
    let mut table = Table::new(&["PATH", "OWNER", "UNTIL"]);
    for report in &reports {
        context.output.object(report)?;
        let owner = report.get("owner").and_then(Value::as_u64).unwrap_or_default();
        table.row([shown(report), owner.to_string(), string(report, "until").to_owned()]);
    }
    context.output.table(&table)?;
    Ok(Outcome::Done)
}

/// Who a command without a service acts as: only root gets that far.
const ROOT: Peer = Peer { uid: 0 };

/// The running service; none when nobody listens and the caller may do without.
fn service(context: &Context) -> Result<Option<Client>, Error> {
    match Client::connect(&context.loaded.config.service.socket) {
        Ok(client) => Ok(Some(client)),
        Err(ClientError::Nobody { .. }) if geteuid().is_root() => Ok(None),
        Err(error) => Err(Error::NeedsRoot { command: context.command, why: error.to_string() }),
    }
}

fn alone(context: &Context) -> Result<Keeper, Error> {
    context.need_roots()?;
    Ok(Keeper::of(&context.loaded.config))
}

/// The path as roots are written: absolute, with no link in the directory that the entry lies in. What the entry itself is
/// is for whoever keeps it to look at.
fn absolute(path: &Path) -> Result<PathBuf, Error> {
    let absolute = std::path::absolute(path).map_err(|error| Error::Argument {
        argument: "PATH",
        what: error.to_string(),
        remedy: "name an entry by its whole path",
    })?;
    let (Some(above), Some(name)) = (absolute.parent(), absolute.file_name()) else { return Ok(absolute) };
    // A directory that cannot be seen from here may be seen by the service.
    Ok(std::fs::canonicalize(above).map_or_else(|_| absolute.clone(), |above| above.join(name)))
}

fn sent(path: &Path) -> PathArgument {
    use std::fmt::Write as _;
    match path.to_str() {
        Some(text) => PathArgument::Text(text.to_owned()),
        None => {
            let mut hex = String::new();
            for byte in path.as_os_str().as_bytes() {
                write!(hex, "{byte:02x}").expect("writing to a string cannot fail");
            }
            PathArgument::Hex { hex }
        }
    }
}

fn json(report: &impl serde::Serialize) -> Value {
    serde_json::to_value(report).expect("reports have text keys only")
}

fn string<'v>(report: &'v Value, key: &str) -> &'v str {
    report.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn shown(report: &Value) -> String {
    text::escape(string(report, "path").as_bytes())
}
