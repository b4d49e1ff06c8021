//! `reclaim who`: who pins a path, and what to do about it.

use super::context::Context;
use crate::error::{Error, Outcome, chain};
use crate::evidence::asked::Looker;
use crate::evidence::holders;
use crate::model::answer::{Seen, Subject};
use crate::render::who as text;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Arguments of `who`.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Any path, configured or not. A link at its end is not followed
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
}

pub(super) fn run(context: &mut Context, arguments: &Arguments) -> Result<Outcome, Error> {
    let mut looker = Looker::default();
    let (subjects, errors): (Vec<_>, Vec<_>) =
        arguments.paths.iter().map(|path| looker.look(path)).partition(Result::is_ok);
    let subjects: Vec<Subject> = subjects.into_iter().flatten().collect();
    let mut errors = errors.into_iter().filter_map(Result::err);
    let mut outcome = Outcome::Done;
    if !subjects.is_empty() {
        let watch = subjects.iter().flat_map(|subject| subject.places.clone()).collect();
        let mut engine = context.engine(watch)?;
        let view = engine.ask(&looker.question())?;
        let seen = Seen::from(view);
        let namespaces: BTreeSet<_> = subjects.iter().flat_map(|subject| subject.namespaces(seen)).collect();
        let tasks = holders::tasks(&namespaces, view.pins);
        let processes = subjects.iter().flat_map(|subject| subject.processes(seen)).collect();
        let processes = holders::processes(&processes);
        for subject in &subjects {
            let report = subject.who(seen, &tasks, &processes);
            context.output.object(&report)?;
            for line in text::heading(&report) {
                context.output.line(&line)?;
            }
            context.output.table(&text::table(&report))?;
            if let Some(table) = text::references(&report) {
                context.output.table(&table)?;
            }
            for line in text::advice(&report) {
                context.output.line(&line)?;
            }
            outcome = outcome.max(match () {
                () if report.pinned => Outcome::Differs,
                () if report.doubt.is_some() || !report.covered => Outcome::Weak,
                () => Outcome::Done,
            });
        }
    }
    // Every path is answered before a missing one ends it.
    context.output.flush()?;
    match errors.next() {
        None => Ok(outcome),
        Some(first) => {
            for error in errors {
                tracing::error!("{}", chain(&error));
            }
            Err(first.into())
        }
    }
}
