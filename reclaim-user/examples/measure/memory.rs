//! Memory in use with so many pins: what the service holds, its pins fed through the library.

use super::line;
use super::pins::live_set;
use anyhow::{Context as _, Result};
use reclaim_user::evidence::engine::{Engine, EngineOptions};
use reclaim_user::evidence::ground::ground;
use reclaim_user::sys::heap;
use std::hint::black_box;
use std::path::Path;

/// Binds in each namespace.
const BINDS: u32 = 30;

/// Measures and prints, in a process for each number of pins: memory is not always given back.
pub(super) fn run(root: &Path, pins: u32) -> Result<()> {
    // As the service does.
    heap::keep_little();
    let location = ground(root).context("cannot find out where the root lies")?.location;
    let options = EngineOptions { watch: vec![location.clone()], ..EngineOptions::default() };
    let mut engine = Engine::open(options).context("no evidence here")?;
    let before = resident()?;
    let live = live_set(&location, (pins / BINDS).into(), 4, BINDS.into());
    // As the service does when it has nothing more to do: what a scan needed while it ran is not counted.
    engine.rest();
    let kib = resident()?;
    let each = if pins == 0 { 0.0 } else { (kib - before) as f64 * 1024.0 / f64::from(pins) };
    line(
        &format!("{pins} pins in {} namespaces", pins / BINDS),
        &format!("{:>10.1} MiB {each:>10.0} bytes a pin", kib as f64 / 1024.0),
    );
    black_box((engine, live));
    Ok(())
}

fn resident() -> Result<i64> {
    let status = std::fs::read_to_string("/proc/self/status").context("cannot read the status of this process")?;
    let value = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    value.trim().trim_end_matches(" kB").trim().parse().context("VmRSS is no number")
}
