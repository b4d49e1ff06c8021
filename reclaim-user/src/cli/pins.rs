//! `reclaim pins`: the pin set.

use super::context::Context;
use crate::error::{Error, Outcome};
use crate::evidence::holders;
use crate::evidence::source::EvidenceSource as _;
use crate::model::answer::{self, EntryPin, NamespaceReport};
use crate::model::pin::Place;
use crate::render::table::Table;
use crate::render::{pass, text, who};
use crate::service::roots::{self, Roots};
use clap::ValueEnum;

/// Arguments of `pins`.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Only this root
    #[arg(long, value_name = "NAME")]
    root: Option<String>,
    /// How to group; without roots always by namespace
    #[arg(long, value_name = "WHAT", default_value = "entry")]
    by: By,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum By {
    /// By root and entry
    Entry,
    /// By mount namespace
    Namespace,
}

pub(super) fn run(context: &mut Context, arguments: &Arguments) -> Result<Outcome, Error> {
    let configured = &context.loaded.config.roots;
    roots::known(configured, arguments.root.as_slice())?;
    let roots = Roots::place(&context.loaded.config);
    roots.check()?;
    let failed = roots.tell_faults();
    let mut engine = context.engine(roots.watch())?;
    let view = engine.consult()?;
    let by = if configured.is_empty() { By::Namespace } else { arguments.by };
    let namespaces = view.pins.namespaces().map(|(namespace, _)| namespace).collect();
    let tasks = holders::tasks(&namespaces, view.pins);
    let watched = roots.watched();
    let wanted =
        watched.iter().enumerate().filter(|(_, name)| arguments.root.as_ref().is_none_or(|root| root == *name));
    let pins: Vec<EntryPin> =
        wanted.flat_map(|(index, name)| answer::entry_pins(view.pins, index, name, &tasks)).collect();
    match by {
        By::Entry => by_entry(context, &pins)?,
        By::Namespace => {
            let all = arguments.root.is_none();
            by_namespace(context, &answer::by_namespace(view.pins, &pins, &tasks, all))?;
        }
    }
    Ok(if failed { Outcome::Failed } else { Outcome::Done })
}

fn by_entry(context: &mut Context, pins: &[EntryPin]) -> Result<(), Error> {
    let mut table = Table::new(&["ROOT", "ENTRY", "ROLE", "WHERE", "NAMESPACE", "MOUNT", "MOUNT POINT", "TASKS"]);
    for report in pins {
        context.output.object(report)?;
        let EntryPin { root, entry, entry_hex: _, pin } = report;
        let place = match pin.place {
            Place::Exact => "exact",
            Place::Below => "below",
        };
        table.row([
            root.clone(),
            text::name(entry),
            pass::role(pin.role).to_owned(),
            place.to_owned(),
            pin.namespace.map_or_else(|| "-".to_owned(), |namespace| namespace.to_string()),
            pin.mount_id.to_string(),
            text::name_or_dash(pin.mount_point.as_ref()),
            who::tasks(&pin.tasks),
        ]);
    }
    context.output.table(&table)?;
    Ok(())
}

fn by_namespace(context: &mut Context, reports: &[NamespaceReport]) -> Result<(), Error> {
    let mut table = Table::new(&["NAMESPACE", "MOUNTS", "PINS", "TASKS"]);
    for report in reports {
        context.output.object(report)?;
        let NamespaceReport { namespace, mounts, pins, tasks } = report;
        let pins: Vec<String> = pins.iter().map(|(root, count)| format!("{root} {count}")).collect();
        table.row([
            namespace.map_or_else(|| "-".to_owned(), |namespace| namespace.to_string()),
            mounts.to_string(),
            if pins.is_empty() { "-".to_owned() } else { pins.join(", ") },
            who::tasks(tasks),
        ]);
    }
    context.output.table(&table)?;
    Ok(())
}
