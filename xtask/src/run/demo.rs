//! The demonstration: stale entries, real sandboxes, the service, and what comes of it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::check::{Verdict, identity};
use super::entries::{Kept, Maker};
use super::service::{Pass, Service};
use super::tell::{Teller, grouped};
use super::{Size, kinds};
use crate::sandbox::{Kind, Sandbox};
use crate::stage::Stage;

/// Time between two passes of the demonstrated service.
const EVERY: Duration = Duration::from_secs(4);
/// Entries younger than this stay.
const MINIMUM_AGE: Duration = Duration::from_secs(2);
/// Entries made while the service runs.
const FRESH: u32 = 5;
/// A later pass must have taken what has become free; the service may have been in the middle of one.
const PASSES_AT_MOST: usize = 4;

/// What stands on the stage before the service starts.
struct Scene {
    stage: Stage,
    root: PathBuf,
    config: PathBuf,
    stale: Vec<PathBuf>,
    fenced: Vec<Kept>,
    living: Vec<Sandbox>,
    dying: Vec<Sandbox>,
    identities: BTreeMap<PathBuf, u64>,
    maker: Maker,
}

/// Shows the main job.
///
/// # Errors
/// Something does not start, or the job does not end as it must; the message says what.
pub(super) fn run(binary: &Path, size: &Size) -> Result<()> {
    let mut scene = prepare(size)?;
    introduce(&scene);
    wait(&scene.stage, MINIMUM_AGE)?;
    let fresh = scene.maker.stale(FRESH)?;
    println!("  {FRESH:>6}  entries made this moment, as if a launcher were about to mount them");

    let mut teller = Teller::default();
    let mut passes: Vec<Pass> = Vec::new();
    let mut service = Service::start(binary, &scene.config, &scene.stage.path().join("service.log"))?;
    let first = service.next_pass(&scene.stage)?;
    teller.pass(&first);
    passes.push(first);
    let mut verdict_of_first = Verdict::default();
    println!("\nAfter the first pass:");
    verdict_of_first.gone("every stale entry is gone", &scene.stale);

    if let Some(entry) = scene.living.first().and_then(|sandbox| sandbox.entries.first()) {
        println!("\nWho holds the directory of a sandbox? reclaim who {}", entry.display());
        let mut who = Command::new(binary);
        who.arg("who").arg(entry).arg("--config").arg(&scene.config);
        show(&who.output().context("cannot ask who holds an entry")?);
    }

    // Passes that went by meanwhile are told first: what is killed now is no affair of theirs.
    while let Some(pass) = service.ended_pass()? {
        teller.pass(&pass);
        passes.push(pass);
    }
    let freed: Vec<PathBuf> = scene.dying.iter().flat_map(|sandbox| sandbox.entries.clone()).collect();
    println!("\nNow {} of the sandboxes are killed (SIGKILL):", scene.dying.len());
    for sandbox in scene.dying.drain(..) {
        println!("  process {}, {}", sandbox.pid(), name(&sandbox.entries));
    }
    let free: Vec<PathBuf> = freed.iter().chain(&fresh).cloned().collect();
    for _ in 0..PASSES_AT_MOST {
        let pass = service.next_pass(&scene.stage)?;
        teller.pass(&pass);
        passes.push(pass);
        if free.iter().all(|path| identity(path).is_none()) {
            break;
        }
    }
    scene.stage.go_on()?;

    println!("\nAudit: every producer of evidence that works here, compared");
    let mut audit = Command::new(binary);
    audit.arg("audit").arg("--config").arg(&scene.config);
    let audit = audit.output().context("cannot start the audit")?;
    show(&audit);
    let stopped = service.stop()?;

    println!("\nIn the end:");
    let mut verdict = verdict_of_first;
    verdict.gone("every entry whose sandbox has died is gone", &freed);
    verdict.gone("the entries that were fresh are gone, since nobody mounted them", &fresh);
    let living: Vec<PathBuf> = scene.living.iter().flat_map(|sandbox| sandbox.entries.clone()).collect();
    verdict.there("every entry of a sandbox that lives is there", &living);
    verdict.working(&mut scene.living, &scene.identities);
    let fenced: Vec<PathBuf> = scene.fenced.iter().flat_map(|group| group.paths.clone()).collect();
    verdict.there("every entry that is not the launcher's leftover is there", &fenced);
    verdict.reasons(&scene.fenced, passes.last().map_or(&[], |pass| &pass.entries));
    let summaries: Vec<Value> = passes.iter().map(|pass| pass.summary.clone()).collect();
    verdict.sums(&summaries);
    let differs = if audit.status.success() { vec![] } else { vec![format!("it exited with {}", audit.status)] };
    verdict.state("the audit finds no difference", &differs);
    let unclean = if stopped.success() { vec![] } else { vec![stopped.to_string()] };
    verdict.state("the service ended cleanly when asked to", &unclean);
    if !verdict.failed().is_empty() {
        bail!("the demonstration did not end as it must: {}", verdict.failed().join("; "));
    }
    Ok(())
}

/// Makes the root, its entries and the sandboxes.
fn prepare(size: &Size) -> Result<Scene> {
    let stage = Stage::enter("mode=0755,nr_inodes=0")?;
    let root = stage.directory("sources")?;
    let work = stage.directory("work")?;
    let mut maker = Maker::new(&root)?;
    let stale = maker.stale(size.stale)?;
    let fenced = maker.fenced()?;
    let mut groups = [Vec::new(), Vec::new()];
    for kind in kinds() {
        for group in &mut groups {
            for _ in 0..size.sandboxes {
                stage.go_on()?;
                group.push(Sandbox::start(kind, vec![maker.dead()?], &work)?);
            }
        }
    }
    let mut identities = BTreeMap::new();
    for sandbox in groups.iter_mut().flatten() {
        sandbox.wait_ready()?;
        sandbox.write().context("a sandbox cannot write before anything has happened")?;
        for entry in &sandbox.entries {
            identities.insert(entry.clone(), identity(entry).context("a sandbox's entry is not there")?);
        }
    }
    let [living, dying] = groups;
    let config = stage.file("reclaim.toml", &configuration(&stage, &root))?;
    Ok(Scene { stage, root, config, stale, fenced, living, dying, identities, maker })
}

fn configuration(stage: &Stage, root: &Path) -> String {
    let stage = stage.path().display();
    format!(
        "[service]\nevery = \"{}s\"\nbudget = \"30s\"\nstate_dir = '{stage}/state'\nsocket = '{stage}/control.sock'\n\n\
         [[root]]\nname = \"sandbox-sources\"\npath = '{}'\nowner = \"0\"\n\
         match = '^acme_sb_(?<pid>\\d+)_[0-9a-f]{{8}}$'\nmode = \"0700\"\nmin_age = \"{}s\"\n",
        EVERY.as_secs(),
        root.display(),
        MINIMUM_AGE.as_secs(),
    )
}

/// Says what is about to be seen.
fn introduce(scene: &Scene) {
    println!(
        "reclaim at work, on a root made for this: {}\n\
         (a tmpfs in a private mount namespace; nothing else on this host can see it, and it is gone afterwards)\n\n\
         In the root:",
        scene.root.display()
    );
    println!("  {:>6}  directories left behind by launchers that have died", grouped(scene.stale.len() as u64));
    let all = || scene.living.iter().chain(&scene.dying);
    for (kind, what) in [
        (Kind::Source, "that a sandbox has bound into a mount namespace of its own (unshare)"),
        (Kind::Target, "that a sandbox has mounted something on, in a mount namespace of its own"),
        (Kind::Bubblewrap, "that a bubblewrap sandbox has bound"),
    ] {
        let number = all().filter(|sandbox| sandbox.kind == kind).count();
        if number > 0 {
            println!("  {number:>6}  {what}; the launcher in its name is dead too");
        } else if kind == Kind::Bubblewrap {
            println!("          (no bubblewrap here: install it to see it too)");
        }
    }
    for group in &scene.fenced {
        let what = match group.reason {
            "pid-alive" => "whose launcher is alive",
            "mode" => "with another mode than the launcher gives",
            "owner" => "of another user",
            "kind" => "that are files, not directories",
            "name" => "named by somebody else",
            _ => "with a file in them",
        };
        println!("  {:>6}  {what}", group.paths.len());
    }
}

/// What a command said, set in.
fn show(output: &Output) {
    for text in [&output.stdout, &output.stderr] {
        for line in String::from_utf8_lossy(text).lines() {
            println!("  {line}");
        }
    }
}

/// Waits, and stops waiting when the user interrupts.
fn wait(stage: &Stage, time: Duration) -> Result<()> {
    let start = Instant::now();
    while start.elapsed() < time {
        stage.go_on()?;
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn name(entries: &[PathBuf]) -> String {
    entries.first().and_then(|entry| entry.file_name()).unwrap_or_default().to_string_lossy().into_owned()
}
