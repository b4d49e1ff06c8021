//! The commands: arguments and glue, one file each. Nothing is decided here.

mod audit;
mod capability;
mod check;
mod context;
mod generated;
mod hold;
mod holds;
mod keep;
mod kernel;
mod pins;
mod purge;
mod query;
mod run;
mod scan;
mod status;
mod stop;
mod sweep;
mod walk_proof;
mod who;

use crate::error::{Error, Outcome, chain, exit};
use crate::evidence::engine::EvidenceChoice;
use crate::evidence::lacking;
use crate::render::output::Color;
use clap::{ArgAction, Parser, Subcommand, ValueEnum};
use context::Context;
use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

/// Removes what sandboxes leave behind, and never what a mount still relies on.
#[derive(Debug, Parser)]
#[command(name = "reclaim", version, about, max_term_width = 100)]
#[command(after_help = "Exit codes: 0 done or free; 1 failed; 2 bad usage or configuration; 3 pinned, in use, or \
    evidence differs; 4 evidence too weak; 5 another reclaimer holds the root; 126 and 127 the command of a hold cannot be \
    started, or is not there.")]
pub struct Cli {
    #[command(flatten)]
    globals: Globals,
    #[command(subcommand)]
    command: Command,
}

/// What every command understands.
#[derive(Debug, clap::Args)]
struct Globals {
    /// Configuration file [default: /etc/reclaim/reclaim.toml]
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Write JSON, one object a line, and nothing else, to standard output
    #[arg(long, global = true)]
    json: bool,
    /// Which evidence to take
    #[arg(long, global = true, value_name = "PRODUCER", default_value = "auto")]
    evidence: Evidence,
    /// Tell more: every entry, then the log in detail
    #[arg(short, long, global = true, action = ArgAction::Count)]
    verbose: u8,
    /// When to colour text
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    color: ColorChoice,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Evidence {
    /// The best that works here
    Auto,
    /// The live set that the probes feed
    Live,
    /// The kernel's own list of mounts
    Walk,
    /// Mount tables
    Scan,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ColorChoice {
    /// On a terminal, unless NO_COLOR is set
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the service in the foreground
    Run,
    /// Make one pass now, through the service where one runs
    Sweep(sweep::Arguments),
    /// Remove all that belongs to an id, or nothing of it
    Purge(purge::Arguments),
    /// Compare what every producer of evidence sees; changes nothing
    Audit(audit::Arguments),
    /// Tell who pins a path or anything below it, and what to do about it
    Who(who::Arguments),
    /// List the pins on the entries of the roots
    Pins(pins::Arguments),
    /// Read every mount table once, and account for it
    Scan,
    /// Tell whether mounts leave a path free: free, pinned or unknown
    Query(query::Arguments),
    /// Keep one entry for some time, as its owner or root
    Keep(keep::Arguments),
    /// End the keep of one entry
    Unkeep(keep::UnkeepArguments),
    /// List what is kept
    Keeps,
    /// Lease sources and make placeholders for as long as a sandbox lives, and become its command
    Hold(hold::Arguments),
    /// Tell what this kernel and this configuration give
    Check,
    /// Ask the running service how it is
    Status,
    /// Write a script that completes commands and options
    Completions(generated::Completions),
    /// Write a manual page
    Man(generated::Man),
}

impl Command {
    /// Name for messages, and whether the command goes on without a configuration that it may not read.
    fn name(&self) -> (&'static str, bool) {
        match self {
            Self::Run => ("run", false),
            Self::Sweep(_) => ("sweep", false),
            Self::Purge(_) => ("purge", false),
            Self::Audit(_) => ("audit", false),
            Self::Who(_) => ("who", true),
            Self::Pins(_) => ("pins", true),
            Self::Scan => ("scan", true),
            Self::Query(_) => ("query", true),
            Self::Keep(_) => ("keep", true),
            Self::Unkeep(_) => ("unkeep", true),
            Self::Keeps => ("keeps", true),
            Self::Hold(_) => ("hold", true),
            Self::Check => ("check", true),
            Self::Status => ("status", true),
            Self::Completions(_) => ("completions", true),
            Self::Man(_) => ("man", true),
        }
    }
}

/// Reads the arguments of this process and does what they say.
#[must_use]
pub fn main() -> ExitCode {
    let Cli { globals, command } = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let code = if error.use_stderr() { exit::USAGE } else { exit::DONE };
            // Help that nobody reads is no failure.
            let _unread = error.print();
            return ExitCode::from(code);
        }
    };
    start_log(&globals, matches!(command, Command::Run));
    if let Err(error) = lacking::begin() {
        eprintln!("reclaim: cannot go without what RECLAIM_TEST_DISABLE names: {error}");
        return ExitCode::from(exit::FAILED);
    }
    match dispatch(globals, command) {
        Ok(outcome) => outcome.into(),
        Err(error) => {
            if !error.is_quiet() {
                complain(&error);
            }
            ExitCode::from(error.code())
        }
    }
}

fn dispatch(globals: Globals, command: Command) -> Result<Outcome, Error> {
    let (name, optional) = command.name();
    match &command {
        Command::Check => return check::run(globals.config.as_deref(), globals.evidence.into(), globals.output()),
        // They need no configuration, not even one that can be read.
        Command::Completions(arguments) => return generated::completions(arguments),
        Command::Man(arguments) => return generated::man(arguments),
        _ => {}
    }
    let mut context = Context::open(globals, name, optional)?;
    let outcome = match command {
        Command::Run => return run::run(context),
        Command::Sweep(arguments) => sweep::run(&mut context, &arguments),
        Command::Purge(arguments) => purge::run(&mut context, &arguments),
        Command::Audit(arguments) => audit::run(&mut context, &arguments),
        Command::Who(arguments) => who::run(&mut context, &arguments),
        Command::Pins(arguments) => pins::run(&mut context, &arguments),
        Command::Scan => scan::run(&mut context),
        Command::Query(arguments) => query::run(&mut context, &arguments),
        Command::Keep(arguments) => keep::run(&mut context, &arguments),
        Command::Unkeep(arguments) => keep::end(&mut context, &arguments),
        Command::Keeps => keep::list(&mut context),
        Command::Hold(arguments) => hold::run(&context, &arguments),
        Command::Check | Command::Completions(_) | Command::Man(_) => Ok(Outcome::Done),
        Command::Status => status::run(&mut context),
    }?;
    context.output.flush()?;
    Ok(outcome)
}

/// Logs go to standard error; RECLAIM_LOG overrules what `-v` says.
fn start_log(globals: &Globals, service: bool) {
    let level = match globals.verbose {
        0 if !service => "warn",
        0 | 1 => "info",
        2 => "debug",
        _ => "trace",
    };
    let filter = std::env::var("RECLAIM_LOG").ok().and_then(|text| EnvFilter::try_new(text).ok());
    tracing_subscriber::fmt()
        .with_env_filter(filter.unwrap_or_else(|| EnvFilter::new(format!("reclaim_user={level}"))))
        .with_writer(std::io::stderr)
        .with_ansi(Color::from(globals.color).on(std::io::stderr().is_terminal()))
        .with_target(false)
        .without_time()
        .init();
}

/// The error, and where capabilities are missing what that means: a bare "permission denied" helps nobody.
fn complain(error: &Error) {
    eprintln!("reclaim: {}", chain(error));
    if error.code() != exit::FAILED || matches!(error, Error::Client(_) | Error::Hold(_) | Error::Stopped { .. }) {
        return;
    }
    if let Some(hint) = capability::hint() {
        eprintln!("reclaim: {hint}");
    }
}

impl Globals {
    fn output(&self) -> crate::render::output::Output {
        crate::render::output::Output::standard(self.json, self.color.into())
    }
}

impl From<Evidence> for EvidenceChoice {
    fn from(evidence: Evidence) -> Self {
        match evidence {
            Evidence::Auto => Self::Auto,
            Evidence::Live => Self::Live,
            Evidence::Walk => Self::Walk,
            Evidence::Scan => Self::Scan,
        }
    }
}

impl From<ColorChoice> for Color {
    fn from(choice: ColorChoice) -> Self {
        match choice {
            ColorChoice::Auto => Self::Auto,
            ColorChoice::Always => Self::Always,
            ColorChoice::Never => Self::Never,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_definitions_hold_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn global_options_may_stand_behind_the_command() {
        let cli = Cli::try_parse_from(["reclaim", "query", "--json", "-vv", "--evidence", "scan", "/a", "b"]);
        let cli = cli.expect("good usage");
        assert!(cli.globals.json && cli.globals.verbose == 2);
        assert!(Cli::try_parse_from(["reclaim", "query"]).is_err(), "a path is needed");
        assert!(Cli::try_parse_from(["reclaim", "scan", "--evidence", "guess"]).is_err());
    }
}
