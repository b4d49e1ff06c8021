//! Who pins a path, for people.

use super::pass;
use super::table::Table;
use super::text;
use crate::model::answer::{PinReport, ReferenceReport, WhoReport};
use crate::model::pin::{Place, Role, State};
use crate::model::reference::ReferenceKind;
use crate::model::task::Task;

/// Tasks shown on one line.
const SHOWN: usize = 3;

/// What comes before the table.
#[must_use]
pub fn heading(report: &WhoReport) -> Vec<String> {
    let WhoReport { path, path_hex: _, pinned, evidence, complete, covered, pins, references, doubt } = report;
    let path = text::name(path);
    let claim = match (complete, covered) {
        (true, _) => "complete",
        (false, true) => "covered for its owner",
        (false, false) => "not complete: there may be more",
    };
    let evidence = pass::producer(*evidence);
    let counts = [(pins.len(), "pin", "pins"), (references.len(), "open reference", "open references")];
    let counts = counts.iter().filter(|(count, ..)| *count > 0);
    let count =
        counts.map(|(count, one, many)| text::counted(*count as u64, one, many)).collect::<Vec<_>>().join(" and ");
    let mut lines = vec![match pinned {
        true => format!("{path}: pinned by {count} (evidence: {evidence}, {claim})"),
        false => format!("{path}: no pins seen (evidence: {evidence}, {claim})"),
    }];
    lines.extend(doubt.as_ref().map(|doubt| format!("{path}: {}", text::escape(doubt.as_bytes()))));
    lines
}

/// What relies on the path without a mount; none where nothing does.
#[must_use]
pub fn references(report: &WhoReport) -> Option<Table> {
    let mut table = Table::new(&["REFERENCE", "WHERE", "TASK"]);
    for ReferenceReport { kind, place, task } in &report.references {
        let kind = match kind {
            ReferenceKind::Descriptor => "descriptor",
            ReferenceKind::WorkingDirectory => "working directory",
            ReferenceKind::Root => "root directory",
            ReferenceKind::Executable => "program",
            ReferenceKind::Counted | ReferenceKind::Unsettled | ReferenceKind::Unknown => "not known",
        };
        table.row([kind.to_owned(), self::place(*place).to_owned(), tasks(task.as_slice())]);
    }
    (!report.references.is_empty()).then_some(table)
}

fn place(place: Place) -> &'static str {
    match place {
        Place::Exact => "exact",
        Place::Below => "below",
    }
}

/// The pins.
#[must_use]
pub fn table(report: &WhoReport) -> Table {
    let mut table = Table::new(&["ROLE", "WHERE", "NAMESPACE", "MOUNT", "STATE", "MOUNT POINT", "TASKS"]);
    for pin in &report.pins {
        let PinReport { role, place, namespace, mount_id, mount_point, mount_point_hex: _, state, tasks: held } = pin;
        table.row([
            pass::role(*role).to_owned(),
            self::place(*place).to_owned(),
            namespace.map_or_else(|| "-".to_owned(), |namespace| namespace.to_string()),
            mount_id.to_string(),
            self::state(*state).to_owned(),
            text::name_or_dash(mount_point.as_ref()),
            tasks(held),
        ]);
    }
    table
}

/// A state as people say it.
#[must_use]
pub fn state(state: State) -> &'static str {
    match state {
        State::Attached => "attached",
        State::Detached => "detached",
        State::Unmounted => "unmounted",
    }
}

/// The first tasks, and how many more there are.
#[must_use]
pub fn tasks(tasks: &[Task]) -> String {
    if tasks.is_empty() {
        return "-".to_owned();
    }
    let mut shown: Vec<String> = tasks.iter().take(SHOWN).map(task).collect();
    if tasks.len() > SHOWN {
        shown.push(format!("and {} more", tasks.len() - SHOWN));
    }
    shown.join(", ")
}

fn task(task: &Task) -> String {
    let Task { pid, comm, cgroup: _, unit, container } = task;
    let comm = text::name(comm);
    let home = match (container, unit) {
        (Some(container), _) => format!(" (container {})", container.get(..12).unwrap_or(container)),
        (None, Some(unit)) => format!(" ({})", text::escape(unit.as_bytes())),
        (None, None) => String::new(),
    };
    format!("{pid} {comm}{home}")
}

/// What to do about it, one line for each kind of pin.
#[must_use]
pub fn advice(report: &WhoReport) -> Vec<String> {
    let mut lines: Vec<&str> = Vec::new();
    for pin in &report.pins {
        let line = match (pin.state, pin.tasks.is_empty(), pin.role) {
            (State::Attached, true, Role::Layer) if pin.namespace.is_none() => {
                "what to do: an overlay has it as a layer, and it could not be told which one; find it by `lsns -t mnt` and \
                 the mount tables of the namespaces, and unmount it"
            }
            (State::Attached, false, Role::Layer) if pin.namespace.is_none() => {
                "what to do: an overlay has it as a layer, by its options that of the tasks shown; unmount it there, or end \
                 them (stop their unit or container)"
            }
            (State::Attached, true, _) if pin.namespace.is_none() => {
                "what to do: it could not be told which namespace the mount is in; ask again as root"
            }
            (State::Detached, ..) => {
                "what to do: a process holds this mount by a descriptor alone; end the process that made it"
            }
            (State::Unmounted, ..) => {
                "what to do: a process still has a file or its working directory inside; end it or let it leave"
            }
            (State::Attached, true, _) => {
                "what to do: no task was seen in the namespace; a bind-mounted namespace file or an open descriptor keeps \
                 it, see `lsns -t mnt` and unmount or close it"
            }
            (State::Attached, false, Role::Target) => {
                "what to do: unmount it inside the namespace, or end the tasks there; removing it now would detach the mount"
            }
            (State::Attached, false, Role::Source | Role::Layer) => {
                "what to do: end the tasks of the namespace (stop their unit or container), or unmount it there"
            }
        };
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    if !report.references.is_empty() {
        lines.push("what to do: a task has it open or is in it; end that task, or let it close what it has and leave");
    }
    lines.into_iter().map(str::to_owned).collect()
}
