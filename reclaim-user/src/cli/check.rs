//! `reclaim check`: what this kernel and this configuration give. Changes nothing.

use super::capability::{self, CAPABILITIES};
use super::kernel;
use super::walk_proof::WalkProofs;
use crate::config::Loaded;
use crate::error::{Error, Outcome, chain};
use crate::evidence::engine::{COMMANDS_FIRST, Engine, EvidenceChoice, Span};
use crate::evidence::features::{self, Answer, Feature};
use crate::evidence::mount_fence;
use crate::evidence::references::Finder;
use crate::model::calendar;
use crate::model::check::{
    CapabilityReport, CheckReport, CommandsReport, FaultReport, FeatureReport, ProbeReport, RootReport, StuckReport,
    Three,
};
use crate::model::pin_set::CONDEMNED_DIRECTORY;
use crate::model::report::Name;
use crate::model::status::EvidenceStatus;
use crate::removal::{self, KeepStore, Memory, RootState};
use crate::render::output::Output;
use crate::render::table::Table;
use crate::render::{pass, text};
use crate::service::evidence_status;
use crate::service::roots::{Placed, Roots};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// Tells everything that can be told; a fault in one thing does not hide the others.
pub(super) fn run(config: Option<&Path>, evidence: EvidenceChoice, mut output: Output) -> Result<Outcome, Error> {
    let mut faults: Vec<FaultReport> = Vec::new();
    let fault = |about: &str, serious, message: String| FaultReport { about: about.to_owned(), serious, message };
    let loaded = config.map_or_else(Loaded::read_default, Loaded::read);
    let refused = loaded.is_err();
    let loaded = loaded.unwrap_or_else(|error| {
        faults.push(fault("configuration", true, chain(&error)));
        Loaded::default()
    });
    faults.extend(loaded.notes.iter().map(|note| fault("configuration", false, note.clone())));
    let references = Finder::default().answer();
    let roots = Roots::place(&loaded.config);
    let walk = WalkProofs::take(roots.everything());
    tell_features(&mut output, walk.worst(), &references, loaded.config.service.refuse_binds)?;
    tell_capabilities(&mut output)?;
    let state_dir = &loaded.config.service.state_dir;
    tell_roots(&mut output, roots.everything(), &walk, state_dir)?;
    for (root, count) in tell_stuck(&mut output, roots.everything(), state_dir)? {
        faults.push(fault(&root, false, format!("{count} more entries than are listed could not be removed")));
    }
    faults.extend(super::holds::tell(&mut output, &loaded.config.service)?);
    if let Err(error) = KeepStore::of(state_dir).read(removal::now()) {
        faults.push(fault("keeps", true, chain(&error)));
    }
    for placed in roots.everything() {
        if let Some(wrong) = &placed.fault {
            faults.push(fault(&placed.config.name, true, chain(wrong)));
        } else if placed.location.is_none() {
            faults.push(fault(&placed.config.name, false, format!("{} does not exist", placed.config.path.display())));
        }
    }
    let status = match roots.engine(evidence, Span::Service) {
        Ok(engine) => Some(tell_evidence(&mut output, &engine, &walk, &references)?),
        Err(error) => {
            faults.push(fault("evidence", true, chain(&error)));
            None
        }
    };
    for report in &faults {
        output.object(report)?;
        let kind = if report.serious { "fault" } else { "note" };
        let message = text::escape(report.message.as_bytes());
        output.line(&format!("{kind}\t{}\t{message}", text::escape(report.about.as_bytes())))?;
    }
    let report = CheckReport {
        config: loaded.file.map(|file| file.display().to_string()),
        evidence: status.as_ref().map(|status| status.evidence),
        clock: status.as_ref().is_some_and(|status| status.clock),
        complete: status.is_some_and(|status| status.complete),
        faults: faults.iter().filter(|fault| fault.serious).count(),
    };
    output.object(&report)?;
    output.flush()?;
    Ok(match (refused, report.faults) {
        (true, _) => Outcome::Usage,
        (false, 0) => Outcome::Done,
        (false, _) => Outcome::Failed,
    })
}

fn tell_features(output: &mut Output, walk: Answer, references: &Answer, refuse_binds: bool) -> io::Result<()> {
    let mut table = Table::new(&["FEATURE", "HERE", "USED FOR", "WHY"]);
    let references =
        Feature { name: "task iterator", used_for: "who has a condemned entry open", answer: references.clone() };
    let walk = Feature {
        name: "walk of mounts",
        used_for: "confirming: every mount of a file system, whoever holds it",
        answer: walk,
    };
    let used_for = match refuse_binds {
        true => "refusing to bind condemned entries",
        false => "refusing to bind condemned entries; not asked for (refuse_binds)",
    };
    let fence = Feature { name: "mount fence", used_for, answer: mount_fence::answer() };
    for Feature { name, used_for, answer } in
        features::probe().into_iter().chain(kernel::features()).chain([walk, references, fence])
    {
        let (answer, why) = three(answer);
        let report = FeatureReport { name: name.to_owned(), used_for: used_for.to_owned(), answer, why };
        output.object(&report)?;
        let why = report.why.as_deref().unwrap_or("-");
        table.row([report.name, answer.words().to_owned(), report.used_for, text::escape(why.as_bytes())]);
    }
    output.table(&table)
}

/// An answer as reports have it, and why it is not yes.
fn three(answer: Answer) -> (Three, Option<String>) {
    match answer {
        Answer::Yes => (Three::Yes, None),
        Answer::No { why } => (Three::No, Some(why)),
        Answer::Unknown { why } => (Three::CouldNotTell, Some(why)),
    }
}

fn tell_capabilities(output: &mut Output) -> io::Result<()> {
    let effective = capability::effective();
    let mut table = Table::new(&["CAPABILITY", "HELD", "WITHOUT IT", "WHAT STILL WORKS"]);
    for capability in CAPABILITIES {
        let answer = capability.held(effective);
        let (name, without, still) = (capability.name, capability.without, capability.still);
        output.object(&CapabilityReport { name, answer, without, still })?;
        table.row([name.to_owned(), answer.words().to_owned(), without.to_owned(), still.to_owned()]);
    }
    output.table(&table)
}

fn tell_roots(output: &mut Output, roots: &[Placed], walk: &WalkProofs, state_dir: &Path) -> io::Result<()> {
    let mut table = Table::new(&["ROOT", "PATH", "EXISTS", "BATCHES", "CONDEMNED", "RETIRED", "CLAIMS UNREAD"]);
    let memory = Memory::read(state_dir);
    for placed in roots {
        let (batches, condemned, unread) = match leftovers(&placed.config.path) {
            Ok((batches, condemned)) => (batches, condemned, None),
            Err(error) => (0, 0, Some(error.to_string())),
        };
        let walk = placed.location.as_ref().and_then(|_| walk.of(&placed.config.name)).cloned().map(three);
        let (walk, walk_why) = walk.unzip();
        let report = RootReport {
            name: placed.config.name.clone(),
            path: placed.config.path.display().to_string(),
            exists: placed.location.is_some(),
            batches,
            condemned,
            unread,
            walk,
            walk_why: walk_why.flatten(),
            retired_since: removal::retired_since(state_dir, &placed.config)
                .unwrap_or_else(|error| Some(format!("unknown: {error}"))),
            claims_unread_since: recalled(&memory, placed).claims_unread_since.map(calendar::written),
        };
        output.object(&report)?;
        let count = |count: u64| if report.unread.is_some() { "?".to_owned() } else { count.to_string() };
        let exists = if report.exists { "yes" } else { "no" }.to_owned();
        let path = text::escape(report.path.as_bytes());
        let since =
            |time: &Option<String>| time.as_ref().map_or_else(|| "-".to_owned(), |time| text::escape(time.as_bytes()));
        let (retired, unread) = (since(&report.retired_since), since(&report.claims_unread_since));
        table.row([report.name.clone(), path, exists, count(batches), count(condemned), retired, unread]);
    }
    output.table(&table)
}

/// What passes have written down of a root.
fn recalled(memory: &Memory, placed: &Placed) -> RootState {
    let mut state = RootState::default();
    memory.recall(&placed.config.name, &mut state);
    if placed.config.claims.is_none() {
        state.claims_unread_since = None;
    }
    state
}

/// Every entry that the last passes could not remove. Gives how many there are of a root that are not remembered one by one.
fn tell_stuck(output: &mut Output, roots: &[Placed], state_dir: &Path) -> io::Result<Vec<(String, u64)>> {
    let mut beyond = Vec::new();
    let memory = Memory::read(state_dir);
    let mut table = Table::new(&["STUCK", "SINCE", "WHY"]);
    let mut any = false;
    for placed in roots {
        let state = recalled(&memory, placed);
        let root = &placed.config.name;
        for (name, trouble) in state.troubles.iter() {
            let (root, name) = (root.clone(), Name(name.to_vec()));
            let since = calendar::written(trouble.first);
            let report = StuckReport { root, name_hex: name.hex(), name, since, why: trouble.why.clone() };
            output.object(&report)?;
            let why = text::escape(report.why.as_bytes());
            table.row([format!("{}/{}", report.root, text::name(&report.name)), report.since, why]);
            any = true;
        }
        beyond.extend(
            Some(state.troubles.beyond().count()).filter(|count| *count > 0).map(|count| (root.clone(), count)),
        );
    }
    if any {
        output.table(&table)?;
    }
    Ok(beyond)
}

/// Batches and condemned entries that lie in a root now. A root or a `.reclaim` that is not there holds none.
fn leftovers(root: &Path) -> io::Result<(u64, u64)> {
    let absent = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    let own = root.join(OsStr::from_bytes(CONDEMNED_DIRECTORY));
    match std::fs::symlink_metadata(&own) {
        Ok(stat) if stat.is_dir() => {}
        Ok(_) => return Err(io::Error::other(".reclaim is no directory")),
        Err(error) if absent(&error) => return Ok((0, 0)),
        Err(error) => return Err(error),
    }
    let (mut batches, mut condemned) = (0, 0);
    for batch in std::fs::read_dir(&own)? {
        let batch = batch?;
        if !batch.file_type()?.is_dir() {
            continue;
        }
        batches += 1;
        match std::fs::read_dir(batch.path()) {
            Ok(entries) => condemned += entries.count() as u64,
            // A pass that is under way has just finished with it.
            Err(error) if absent(&error) => batches -= 1,
            Err(error) => return Err(error),
        }
    }
    Ok((batches, condemned))
}

fn tell_evidence(
    output: &mut Output,
    engine: &Engine,
    walk: &WalkProofs,
    references: &Answer,
) -> io::Result<EvidenceStatus> {
    let status = evidence_status(engine.status());
    let mut table = Table::new(&["PROBE", "RUNG", "STATE", "COST", "BLIND TO"]);
    for probe in &status.probes {
        output.object(&ProbeReport { probe: probe.clone() })?;
        let cells = [&probe.hook, &probe.rung, &probe.state, &probe.cost, &probe.blind_to];
        table.row(cells.map(|cell| text::escape(cell.as_bytes())));
    }
    output.table(&table)?;
    // Most calls fare alike: told once for all of them.
    let mut ladders: Vec<(String, Vec<&str>)> = Vec::new();
    for probe in status.probes.iter().filter(|probe| !probe.passed.is_empty()) {
        let ladder = probe.ladder();
        match ladders.iter_mut().find(|(other, _)| *other == ladder) {
            Some((_, hooks)) => hooks.push(&probe.hook),
            None => ladders.push((ladder, vec![&probe.hook])),
        }
    }
    for (ladder, hooks) in ladders {
        output.line(&format!("ladder\t{}\t{}", hooks.join(", "), text::escape(ladder.as_bytes())))?;
    }
    if status.probes_missing.is_none() {
        let rung = COMMANDS_FIRST;
        let report = CommandsReport { rung: rung.to_string(), cost: rung.cost(), blind_to: rung.blind_to() };
        output.object(&report)?;
        let CommandsReport { rung, cost, blind_to } = report;
        output.line(&format!("commands\t{rung}, first\t{cost}\t{blind_to}"))?;
    }
    if let Some(why) = &status.probes_missing {
        output.line(&format!("probes\tnone\t{}", text::escape(why.as_bytes())))?;
    }
    if let Some(why) = &status.clock_missing {
        output.line(&format!("clock\tno\t{}", text::escape(why.as_bytes())))?;
    }
    if let Some(why) = &status.clock_weakness {
        output.line(&format!("clock\tweaker\t{}", text::escape(why.as_bytes())))?;
    }
    match &status.walk_missing {
        Some(why) => output.line(&format!("walk\tno\t{}", text::escape(why.as_bytes())))?,
        // That it was loaded is no proof.
        None => walk.lines().iter().try_for_each(|line| output.line(line))?,
    }
    let by_procfs = "/proc is read for who has a condemned entry open, which takes longer";
    output.line(&match references {
        Answer::Yes => {
            "references\tyes\tthe kernel's iterator over tasks tells who has a condemned entry open".to_owned()
        }
        Answer::No { why } => format!("references\tno\t{by_procfs}: {}", text::escape(why.as_bytes())),
        Answer::Unknown { why } => format!("references\tcould not tell\t{by_procfs}: {}", text::escape(why.as_bytes())),
    })?;
    let gaps: Vec<String> = status.gaps.iter().map(|(cause, count)| format!("{cause} {count}")).collect();
    let claim = if status.complete { "complete".to_owned() } else { format!("not complete: {}", gaps.join(", ")) };
    let clock = if status.clock {
        "mount clock runs"
    } else {
        "no mount clock, so a pass waits a fixed time before it confirms, which is a weaker guarantee"
    };
    output.line(&format!("evidence\t{}\t{claim}; {clock}", pass::producer(status.evidence)))?;
    Ok(status)
}
