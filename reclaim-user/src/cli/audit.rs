//! `reclaim audit`: what every producer sees, compared. Changes nothing.

use super::context::{Context, warn_of_capabilities};
use crate::error::{Error, Outcome};
use crate::evidence::engine::{Audit, Difference, ProducerReport, Span};
use crate::model::audit::{AuditReport, DifferenceReport, ProducerCounts};
use crate::model::report::{Name, Producer};
use crate::render::table::Table;
use crate::render::{pass, text};
use crate::service::roots::Roots;
use std::time::Duration;

/// Time between two audits of a watch.
const PAUSE: Duration = Duration::from_secs(5);

/// Arguments of `audit`.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Go on auditing, every five seconds, until interrupted
    #[arg(long)]
    watch: bool,
}

pub(super) fn run(context: &mut Context, arguments: &Arguments) -> Result<Outcome, Error> {
    let roots = context.roots()?;
    let failed = if roots.tell_faults() { Outcome::Failed } else { Outcome::Done };
    warn_of_capabilities();
    let mut engine = roots.engine(context.evidence, if arguments.watch { Span::Service } else { Span::Command })?;
    loop {
        let outcome = tell(context, &roots, engine.audit(&roots.open()?)?)?;
        context.output.flush()?;
        if !arguments.watch {
            return Ok(outcome.max(failed));
        }
        std::thread::sleep(PAUSE);
    }
}

fn tell(context: &mut Context, roots: &Roots, audit: Audit) -> Result<Outcome, Error> {
    let Audit { differences, producers } = audit;
    let names = roots.watched();
    let mut table = Table::new(&["ROOT", "ENTRY", "SEEN BY", "MISSED BY", "CAUSE"]);
    for Difference { root, entry, seen_by, missed_by, cause } in &differences {
        let entry = Name(entry.clone());
        let report = DifferenceReport {
            root: names.get(*root).cloned().unwrap_or_default(),
            entry_hex: entry.hex(),
            entry,
            seen_by: seen_by.clone(),
            missed_by: missed_by.clone(),
            cause: cause.clone(),
        };
        context.output.object(&report)?;
        table.row([
            report.root.clone(),
            text::name(&report.entry),
            list(seen_by),
            list(missed_by),
            cause.as_ref().map_or_else(|| "-".to_owned(), |cause| text::escape(cause.as_bytes())),
        ]);
    }
    context.output.table(&table)?;
    let report = AuditReport {
        agree: differences.is_empty(),
        differences: differences.len(),
        producers: producers.into_iter().map(counts).collect(),
    };
    context.output.object(&report)?;
    let mut table = Table::new(&["PRODUCER", "NAMESPACES", "MOUNTS", "PINNED", "MILLISECONDS", "COMPLETE", "STATE"]);
    for (producer, counts) in &report.producers {
        table.row([
            pass::producer(*producer).to_owned(),
            counts.namespaces.to_string(),
            counts.mounts.to_string(),
            counts.pinned_entries.to_string(),
            counts.elapsed_ms.to_string(),
            if counts.complete { "yes" } else { "no" }.to_owned(),
            counts.unavailable.as_ref().map_or_else(|| "works".to_owned(), |why| text::escape(why.as_bytes())),
        ]);
    }
    context.output.table(&table)?;
    let sentence = match (report.working(), report.differences) {
        (0 | 1, 0) => "fewer than two producers work here, so there is nothing to compare".to_owned(),
        (_, 0) => "no differences".to_owned(),
        (_, count) => text::counted(count as u64, "difference", "differences"),
    };
    context.output.line(&sentence)?;
    Ok(match (report.working(), report.differences) {
        (_, 1..) => Outcome::Differs,
        (0 | 1, 0) => Outcome::Weak,
        (_, 0) => Outcome::Done,
    })
}

fn counts(report: ProducerReport) -> (Producer, ProducerCounts) {
    let ProducerReport { producer, namespaces, mounts, pinned_entries, elapsed_ms, complete, unavailable } = report;
    (producer, ProducerCounts { namespaces, mounts, pinned_entries, elapsed_ms, complete, unavailable })
}

fn list(producers: &[Producer]) -> String {
    let names: Vec<&str> = producers.iter().map(|producer| pass::producer(*producer)).collect();
    names.join(", ")
}
