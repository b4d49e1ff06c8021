//! `reclaim completions` and `reclaim man`: made from the definitions that the arguments are read by.

use super::Cli;
use crate::error::{Error, Outcome};
use clap::CommandFactory as _;
use clap_complete::Shell;
use std::io::{self, Write};

/// Arguments of `completions`.
#[derive(Debug, clap::Args)]
pub(super) struct Completions {
    /// The shell that the script is for
    shell: Shell,
}

/// Arguments of `man`.
#[derive(Debug, clap::Args)]
pub(super) struct Man {
    /// The command whose page it is; without one, the page of `reclaim` itself
    #[arg(value_name = "COMMAND")]
    command: Option<String>,
}

/// Writes a script for a shell to read.
pub(super) fn completions(arguments: &Completions) -> Result<Outcome, Error> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Cli::command(), "reclaim", &mut script);
    put(&script)
}

/// Writes a page for `man -l -`.
pub(super) fn man(arguments: &Man) -> Result<Outcome, Error> {
    let mut whole = Cli::command();
    // Puts the global options and the full names into every command.
    whole.build();
    let command = match &arguments.command {
        None => whole,
        Some(name) => match whole.find_subcommand(name) {
            Some(command) => command.clone(),
            None => {
                let what = format!("there is no command `{name}`");
                return Err(Error::Argument { argument: "COMMAND", what, remedy: "see `reclaim --help`" });
            }
        },
    };
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page)?;
    put(&page)
}

fn put(text: &[u8]) -> Result<Outcome, Error> {
    let mut out = io::stdout().lock();
    out.write_all(text)?;
    out.flush()?;
    Ok(Outcome::Done)
}
