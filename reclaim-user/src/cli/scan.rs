//! `reclaim scan`: every mount table once, with its accounting.

use super::context::{Context, warn_of_capabilities};
use crate::error::{Error, Outcome};
use crate::evidence::scan::{Accounting, Scan, ScanOptions, Scanner};
use crate::model::scan_report::{self, ScanReport};
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;

pub(super) fn run(context: &mut Context) -> Result<Outcome, Error> {
    warn_of_capabilities();
    let Scan { namespaces: _, coverage, accounting } = Scanner::new(ScanOptions::from_environment()).scan()?;
    let Accounting { tasks, threads, namespaces, namespaces_read, mounts, elapsed } = accounting;
    let report = ScanReport {
        tasks,
        threads,
        namespaces,
        namespaces_read,
        mounts,
        complete: coverage.complete(),
        covered: scan_report::covered(&coverage, &users(context)),
        gaps: scan_report::gaps(&coverage),
        elapsed_ms: u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
    };
    context.output.object(&report)?;
    let list = |covered: bool| {
        let users: Vec<String> = report
            .covered
            .iter()
            .filter(|(_, is_covered)| **is_covered == covered)
            .map(|(user, _)| user.to_string())
            .collect();
        if users.is_empty() { "-".to_owned() } else { users.join(", ") }
    };
    let mut lines = vec![
        format!("tasks        {tasks}"),
        format!("threads      {threads}"),
        format!("namespaces   {namespaces}, {namespaces_read} of them read from their own root"),
        format!("mounts       {mounts}"),
        format!("complete     {}", if report.complete { "yes" } else { "no" }),
        format!("covered      {}", list(true)),
        format!("not covered  {}", list(false)),
    ];
    lines.extend(report.gaps.iter().map(|(cause, count)| format!("gap          {cause} {count}")));
    lines.push(format!("elapsed      {elapsed:.1?}"));
    for line in lines {
        context.output.line(&line)?;
    }
    Ok(if report.complete { Outcome::Done } else { Outcome::Weak })
}

/// Root, the caller, the owners that are configured, and whoever owns a process now.
fn users(context: &Context) -> BTreeSet<u32> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let owners = processes
        .filter(|entry| entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit))
        .filter_map(|entry| entry.metadata().ok())
        .map(|stat| stat.uid());
    let configured = context.loaded.config.roots.iter().filter_map(|root| root.owner);
    owners.chain(configured).chain([0, nix::unistd::geteuid().as_raw()]).collect()
}
