//! The part of `reclaim check` that tells of holds.

use crate::config::ServiceConfig;
use crate::error::chain;
use crate::model::check::{FaultReport, HoldReport};
use crate::model::hold::Manifest;
use crate::model::report::Name;
use crate::removal::hold::{Seen, Stores};
use crate::render::output::Output;
use crate::render::table::Table;
use crate::render::text;
use std::io;

/// Lists who holds by placeholders, and what holders that have ended left. Gives what is wrong.
pub(super) fn tell(output: &mut Output, service: &ServiceConfig) -> io::Result<Vec<FaultReport>> {
    let stores = Stores::of(&service.holds());
    let mut faults = Vec::new();
    let mut fault = |message: String| faults.push(FaultReport { about: "holds".to_owned(), serious: false, message });
    let mut table = Table::new(&["HOLD OF", "PROCESS", "LIVES", "COMMAND", "PLACEHOLDERS"]);
    let mut any = false;
    match stores.strangers() {
        Ok(0) | Err(_) => {}
        Ok(count) => fault(format!(
            "{count} directories in {} are not the users' that they are named for: take them away",
            service.holds().display()
        )),
    }
    for user in stores.users().unwrap_or_else(|error| {
        fault(chain(&error));
        Vec::new()
    }) {
        let seen = stores.look(user).unwrap_or_else(|error| {
            fault(chain(&error));
            Vec::new()
        });
        for Seen { is_alive, manifest } in seen {
            let manifest = match manifest {
                Ok(manifest) => manifest,
                Err(error) => {
                    fault(chain(&error));
                    continue;
                }
            };
            let report = report(user, is_alive, &manifest);
            output.object(&report)?;
            let names: Vec<String> = report.placeholders.iter().map(text::name).collect();
            table.row([
                user.to_string(),
                report.pid.to_string(),
                if is_alive { "yes" } else { "no" }.to_owned(),
                text::name(&report.command),
                names.join(", "),
            ]);
            any = true;
        }
    }
    if any {
        output.table(&table)?;
    }
    Ok(faults)
}

fn report(user: u32, is_alive: bool, manifest: &Manifest) -> HoldReport {
    let bytes = |path: &crate::model::path_text::PathArgument| path.bytes().unwrap_or_default();
    let path = |directory: Vec<u8>, name: Vec<u8>| Name([directory, name].join(&b'/'));
    let placeholders = manifest.placeholders.iter();
    HoldReport {
        user,
        pid: manifest.holder.pid,
        pid_namespace: manifest.holder.pid_namespace,
        command: Name(bytes(&manifest.holder.command)),
        alive: is_alive,
        placeholders: placeholders.map(|one| path(bytes(&one.directory), bytes(&one.name))).collect(),
    }
}
