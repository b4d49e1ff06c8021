//! Cold evidence: the walk, the scan, and reading every task's mount table, in turns.

use super::{line, percentiles};
use anyhow::{Context as _, Result, bail};
use reclaim_user::evidence::scan::{ScanOptions, Scanner};
use reclaim_user::evidence::walk::{Base, Walker};
use std::fs::{self, File};
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Instant;

/// Measures and prints.
pub(super) fn run(root: &Path, rounds: u32) -> Result<()> {
    let directory = File::open(root).with_context(|| format!("cannot open {}", root.display()))?;
    let number = directory.metadata().context("cannot look at the root")?.ino();
    let mut walker = Walker::load().context("there is no walk here")?;
    let (mut walks, mut first_walks, mut scans, mut tables) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds.max(1) {
        let began = Instant::now();
        let walked = walker
            .walk(&directory, &[Base { number, directory: directory.as_fd(), only: None }])
            .context("the walk failed")?;
        walks.push(began.elapsed().as_secs_f64() * 1e3);
        let began = Instant::now();
        Walker::load()
            .context("there is no walk here")?
            .walk(&directory, &[Base { number, directory: directory.as_fd(), only: None }])
            .context("the walk failed")?;
        first_walks.push(began.elapsed().as_secs_f64() * 1e3);
        let began = Instant::now();
        // One that knows nothing yet, as at the start of the service.
        let scan = Scanner::new(ScanOptions::default()).scan().context("the scan failed")?;
        scans.push(began.elapsed().as_secs_f64() * 1e3);
        let began = Instant::now();
        let lines = every_table()?;
        tables.push(began.elapsed().as_secs_f64() * 1e3);
        let mounts: usize = scan.namespaces.iter().map(|(_, pins)| pins.table.mounts.len()).sum();
        if lines < mounts || walked.pins.is_empty() {
            bail!("not all was read: {lines} lines, {mounts} mounts, {} pins", walked.pins.len());
        }
    }
    let [walk, first_walk, scan, table] = [walks, first_walks, scans, tables].map(|times| percentiles(times).0);
    println!("\nCold evidence in one process, {rounds} rounds, medians                      ms      ratio");
    for (name, took) in [
        ("the walk", walk),
        ("the walk, with loading its programs", first_walk),
        ("the scan", scan),
        ("mountinfo of every process, read and counted", table),
    ] {
        line(name, &format!("{took:>10.2} {:>10.2}", table / took));
    }
    println!("  ratio: reading every mountinfo takes so many times as long");
    Ok(())
}

/// Lines of the mount tables of all processes.
fn every_table() -> Result<usize> {
    let mut lines = 0;
    for entry in fs::read_dir("/proc").context("cannot list /proc")? {
        let path = entry.context("cannot list /proc")?.path();
        if path.file_name().is_some_and(|name| name.as_encoded_bytes().iter().all(u8::is_ascii_digit)) {
            // A process that is gone by now, or may not be read, has no lines here.
            let table = fs::read(path.join("mountinfo")).unwrap_or_default();
            lines += table.iter().filter(|byte| **byte == b'\n').count();
        }
    }
    Ok(lines)
}
