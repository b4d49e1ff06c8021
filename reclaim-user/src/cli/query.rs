//! `reclaim query`: the decision that other reclaimers ask for.

use super::context::Context;
use crate::error::{Error, Outcome, chain};
use crate::evidence::asked::Looker;
use crate::model::answer::{Decision, QueryReport, Seen};
use crate::model::report::Name;
use crate::render::table::Table;
use crate::render::{pass, text};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

/// Arguments of `query`.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Any path, configured or not. A link at its end is not followed
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
}

pub(super) fn run(context: &mut Context, arguments: &Arguments) -> Result<Outcome, Error> {
    let mut looker = Looker::default();
    let subjects: Vec<_> = arguments.paths.iter().map(|path| (path, looker.look(path))).collect();
    let watch = subjects.iter().filter_map(|(_, subject)| subject.as_ref().ok()).flat_map(|found| found.places.clone());
    let mut engine = context.engine(watch.collect())?;
    let view = engine.ask(&looker.question())?;
    let seen = Seen::from(view);
    let mut table = Table::new(&["VERDICT", "PATH", "EVIDENCE", "WHY"]);
    let mut outcome = Outcome::Done;
    for (path, subject) in subjects {
        let report = match subject {
            Ok(subject) => subject.query(seen),
            Err(error) => {
                let path = Name(path.as_os_str().as_bytes().to_vec());
                let (verdict, why) = (Decision::Unknown, Some(chain(&error)));
                QueryReport { path_hex: path.hex(), path, verdict, evidence: view.producer, why }
            }
        };
        context.output.object(&report)?;
        let (verdict, worst) = match report.verdict {
            Decision::Free => ("free", Outcome::Done),
            Decision::Pinned => ("pinned", Outcome::Differs),
            Decision::Unknown => ("unknown", Outcome::Weak),
        };
        outcome = outcome.max(worst);
        let why = report.why.as_deref().unwrap_or("-");
        table.row([
            verdict.to_owned(),
            text::name(&report.path),
            pass::producer(report.evidence).to_owned(),
            text::escape(why.as_bytes()),
        ]);
    }
    context.output.table(&table)?;
    Ok(outcome)
}
