//! Bringing the live set up to date after one namespace among many has changed.

use super::{line, percentiles};
use anyhow::{Context as _, Result, bail};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use reclaim_user::evidence::engine::{Engine, EngineOptions};
use reclaim_user::evidence::ground::ground;
use reclaim_user::evidence::source::EvidenceSource as _;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;

/// Measures and prints. `process` lives in the namespace that changes; `root` can be bound there on itself.
pub(super) fn run(root: &Path, process: u32, rounds: u32) -> Result<()> {
    let watch = vec![ground(root).context("cannot find out where the root lies")?.location];
    let mut engine = Engine::open(EngineOptions { watch, ..EngineOptions::default() }).context("no evidence here")?;
    let (mut changed, mut idle) = (Vec::new(), Vec::new());
    let namespaces = engine.status().namespaces;
    for round in 0..rounds.max(1) * 2 {
        engine.consult().context("no evidence")?;
        let before = engine.status();
        let began = Instant::now();
        engine.consult().context("no evidence")?;
        idle.push(began.elapsed().as_secs_f64() * 1e6);
        change(root.to_owned(), process, round % 2 == 0)?;
        let began = Instant::now();
        engine.consult().context("no evidence")?;
        changed.push(began.elapsed().as_secs_f64() * 1e6);
        let after = engine.status();
        if after.baselines == before.baselines && after.rereads == before.rereads {
            bail!("the change was not seen");
        }
    }
    println!("\nA consult after one namespace among {namespaces} has changed            us median         p99");
    for (name, times) in [("nothing changed", idle), ("one namespace has one mount more or less", changed)] {
        let (middle, worst) = percentiles(times);
        line(name, &format!("{middle:>16.1} {worst:>11.1}"));
    }
    Ok(())
}

/// In a thread of its own, which ends in that namespace.
fn change(root: PathBuf, process: u32, add: bool) -> Result<()> {
    let work = move || -> Result<()> {
        let namespace = File::open(format!("/proc/{process}/ns/mnt")).context("cannot open the namespace")?;
        unshare(CloneFlags::CLONE_FS).context("cannot be in a namespace by itself")?;
        setns(&namespace, CloneFlags::CLONE_NEWNS).context("cannot enter the namespace")?;
        match add {
            true => mount(Some(&root), &root, None::<&str>, MsFlags::MS_BIND, None::<&str>).context("cannot bind"),
            false => umount2(&root, MntFlags::MNT_DETACH).context("cannot unmount"),
        }
    };
    thread::spawn(work).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
