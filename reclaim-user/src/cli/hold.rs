//! `reclaim hold`: leases and placeholders for as long as a sandbox lives.

use super::context::Context;
use crate::config::Config;
use crate::error::{Error, Outcome, chain};
use crate::evidence::engine::EvidenceChoice;
use crate::model::hold::{Holder, Manifest};
use crate::model::path_text::PathArgument;
use crate::removal::hold::{self, Alive, HoldError, Wanted};
use crate::service::client::Client;
use crate::service::holds::{self, Prover};
use crate::service::protocol::Request;
use crate::sys::detach::{Side, detach, watch_process};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{geteuid, getpid, pipe2};
use serde_json::Value;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Longest wait for others that work on the store.
const PATIENCE: Duration = Duration::from_secs(60);
/// Waits between tries to remove what is still mounted on: a namespace goes some time after its last process.
const PAUSES: [Duration; 4] =
    [Duration::from_millis(50), Duration::from_millis(250), Duration::from_secs(1), Duration::from_secs(5)];

/// Arguments of `hold`.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Hold the lock on this directory or file, shared, so that no pass takes it; may be given more than once
    #[arg(long = "source", value_name = "DIR")]
    sources: Vec<PathBuf>,
    /// Make this empty file where it is not there, or, with a slash at its end, this empty directory, and remove it once
    /// nobody needs it; may be given more than once
    #[arg(long = "placeholder", value_name = "PATH")]
    placeholders: Vec<OsString>,
    /// The command, which this process becomes
    #[arg(required = true, last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Takes the hold and becomes the command. Returns only when that cannot be done.
pub(super) fn run(context: &Context, arguments: &Arguments) -> Result<Outcome, Error> {
    let config = &context.loaded.config;
    let wanted = arguments.placeholders.iter().map(|path| Wanted::parse(path)).collect::<Result<Vec<_>, _>>()?;
    let sources = arguments.sources.iter().map(|path| hold::lease(path)).collect::<Result<Vec<_>, _>>()?;
    let process = watch_process(getpid()).map_err(|error| system("pidfd_open", error))?;
    let (name, held, watched) = match wanted.is_empty() {
        // Nothing of it outlives the processes, so nothing has to be written down.
        true => {
            let (watched, held) = pipe2(OFlag::O_CLOEXEC).map_err(|error| system("pipe2", error))?;
            (None, held, watched)
        }
        false => {
            let Alive { name, held, watched } = put_down(context, arguments, &wanted)?;
            (Some(name), held, watched)
        }
    };
    let keep = [watched.as_fd(), process.as_fd()].into_iter().chain(sources.iter().map(|source| source.as_fd()));
    let keep: Vec<_> = keep.collect();
    match detach(&keep) {
        Err(error) => {
            drop(held);
            if let Some(name) = name
                && let Err(left) = end(config, context.evidence, &mut Some(watched), &name)
            {
                tracing::warn!("what was made is left for the next pass: {}", chain(&left));
            }
            Err(system("fork", error))
        }
        Ok(Side::Left) => {
            // It is closed by now, in this process.
            std::mem::forget(held);
            stay(config, context.evidence, watched, process, sources, name)
        }
        Ok(Side::Origin) => become_command(&held, &arguments.command),
    }
}

/// Makes the placeholders, or takes away what was made when one of them cannot be.
fn put_down(context: &Context, arguments: &Arguments, wanted: &[Wanted]) -> Result<Alive, Error> {
    let config = &context.loaded.config;
    let (store, known) = holds::own_store(config, PATIENCE)?;
    let mut manifest = manifest(arguments)?;
    let alive = store.begin()?;
    match hold::make(&store, &alive, &mut manifest, &known, wanted) {
        Ok(()) => Ok(alive),
        Err(error) => {
            drop(alive);
            if let Err(left) = holds::settle_store(config, &store, &mut Prover::Alone(context.evidence), None) {
                tracing::warn!("what was made before is left for the next pass: {}", chain(&left));
            }
            Err(error.into())
        }
    }
}

fn manifest(arguments: &Arguments) -> Result<Manifest, Error> {
    let read = |path: &str, source| HoldError::Record { path: path.into(), call: "read", source };
    let boot = hold::boot().map_err(|error| read("/proc/sys/kernel/random/boot_id", error))?;
    let namespace = std::fs::metadata("/proc/self/ns/pid").map_err(|error| read("/proc/self/ns/pid", error))?;
    let command = arguments.command.first().map(|command| PathArgument::of(command.as_bytes()));
    let holder = Holder {
        pid: std::process::id(),
        pid_namespace: namespace.ino(),
        command: command.unwrap_or_else(|| PathArgument::of(b"")),
    };
    let sources = arguments.sources.iter().map(|source| PathArgument::of(source.as_os_str().as_bytes())).collect();
    Ok(Manifest::new(boot, holder, sources))
}

/// Becomes the command, which inherits the lock that says that the holder lives.
fn become_command(held: &OwnedFd, command: &[OsString]) -> Result<Outcome, Error> {
    fcntl(held, FcntlArg::F_SETFD(FdFlag::empty())).map_err(|error| system("fcntl", error))?;
    let Some((program, rest)) = command.split_first() else { return Ok(Outcome::Usage) };
    let source = Command::new(program).args(rest).exec();
    Err(Error::Start { program: PathBuf::from(program), source })
}

/// Waits until the sandbox has ended, and removes what nobody needs any more.
fn stay(
    config: &Config,
    evidence: EvidenceChoice,
    watched: OwnedFd,
    process: OwnedFd,
    sources: Vec<OwnedFd>,
    name: Option<String>,
) -> Result<Outcome, Error> {
    // Where it was started may be unmounted meanwhile.
    let _stays = std::env::set_current_dir("/");
    wait(&process, PollFlags::POLLIN);
    wait(&watched, PollFlags::empty());
    drop(sources);
    drop(process);
    let Some(name) = name else { return Ok(Outcome::Done) };
    let mut pauses = PAUSES.iter();
    let mut alive = Some(watched);
    loop {
        let done = end(config, evidence, &mut alive, &name).unwrap_or_else(|error| {
            tracing::warn!("{}", chain(&error));
            false
        });
        match pauses.next() {
            Some(pause) if !done => std::thread::sleep(*pause),
            // The next pass of anybody finds it.
            _ => return Ok(if done { Outcome::Done } else { Outcome::Weak }),
        }
    }
}

/// One try to bring the hold with the manifest `name` to its end. Whether nothing is left that could be removed later.
fn end(config: &Config, evidence: EvidenceChoice, alive: &mut Option<OwnedFd>, name: &str) -> Result<bool, Error> {
    let user = geteuid().as_raw();
    let stores = hold::Stores::of(&config.service.holds());
    if evidence == EvidenceChoice::Auto
        && let Ok(client) = Client::connect(&config.service.socket)
    {
        // The service has to see a holder that has ended.
        *alive = None;
        // A service that ends meanwhile, or knows nothing of holds, has done nothing.
        if let Ok(answer) = client.ask(&Request::Settle {}) {
            let results = answer.get("results").and_then(Value::as_array);
            let is_gone = |told: &Value| {
                let verdict = told.get("verdict").and_then(Value::as_str);
                verdict.is_some_and(|verdict| verdict == "removed" || verdict == "absent")
            };
            return Ok(results.is_some_and(|told| told.iter().all(is_gone)) && !stores.is_recorded(user, name));
        }
    }
    let Some(store) = stores.of_user(user, PATIENCE)? else { return Ok(true) };
    // Under the lock of the store, so that nobody else begins with the same.
    *alive = None;
    let told = holds::settle_store(config, &store, &mut Prover::Alone(evidence), None)?;
    // What could not be told is in no report.
    Ok(told.iter().all(|report| report.is_gone()) && !stores.is_recorded(user, name))
}

/// Waits for what a descriptor tells. What cannot be asked has not happened.
fn wait(descriptor: &OwnedFd, what: PollFlags) {
    let mut waits = [PollFd::new(descriptor.as_fd(), what)];
    loop {
        // A hang-up is told whether it is asked for or not.
        match poll(&mut waits, PollTimeout::NONE) {
            Ok(_) => return,
            Err(Errno::EINTR) => {}
            Err(_) => std::thread::sleep(PAUSES[2]),
        }
    }
}

fn system(call: &'static str, source: impl Into<io::Error>) -> Error {
    Error::System { call, source: source.into() }
}
