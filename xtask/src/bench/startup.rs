//! From starting the program to its first verdict, and the memory of the service.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::Size;
use super::measure::median;
use crate::sandbox::tethered;
use crate::stage::Stage;

/// How long the service may take to begin.
const PATIENCE: Duration = Duration::from_secs(60);
/// Exit states of a question that was answered: free, pinned, not known.
const ANSWERED: [i32; 3] = [0, 3, 4];

/// Measures and prints. Two questions: about an entry, which the walk answers, and about the mount point that all the
/// roots lie on, with every mount of every namespace on it or below it.
///
/// # Errors
/// A program does not do its work.
pub(super) fn run(binary: &Path, stage: &Stage, config: &Path, entry: &Path, size: &Size, when: &str) -> Result<()> {
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..size.rounds.max(1) {
        for (path, times) in [entry, stage.path()].into_iter().zip(&mut times) {
            stage.go_on()?;
            let began = Instant::now();
            ask(binary, config, &["query", &path.display().to_string()], &ANSWERED)?;
            times.push(began.elapsed().as_secs_f64() * 1e3);
        }
    }
    let [of_entry, of_mount_point] = times.map(median);
    println!("\nStart-up, {when}: from starting `reclaim query` to the end of its answer");
    println!(
        "  {of_entry:.1} ms about an entry, {of_mount_point:.1} ms about the mount point of the whole file system"
    );
    let mut command = tethered(binary)?;
    command.arg("run").arg("--config").arg(config).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let began = Instant::now();
    let mut service = command.spawn().with_context(|| format!("cannot start {}", binary.display()))?;
    let memory = first_answer(binary, config, began).and_then(|()| resident(service.id()));
    // By its own way out where it can: what it attached goes with it either way.
    let _ = service.kill();
    service.wait().context("cannot wait for the service")?;
    println!("  the service, {when}: {:.1} MiB resident", memory? as f64 / 1024.0);
    Ok(())
}

fn first_answer(binary: &Path, config: &Path, began: Instant) -> Result<()> {
    while ask(binary, config, &["status"], &[0]).is_err() {
        if began.elapsed() > PATIENCE {
            bail!("the service does not answer within {} seconds", PATIENCE.as_secs());
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn ask(binary: &Path, config: &Path, words: &[&str], expected: &[i32]) -> Result<()> {
    let mut command = Command::new(binary);
    command.args(words).arg("--config").arg(config).stdout(Stdio::null()).stderr(Stdio::null());
    let status = command.status().with_context(|| format!("cannot start {}", binary.display()))?;
    if !status.code().is_some_and(|code| expected.contains(&code)) {
        bail!("{} failed ({status})", words.join(" "));
    }
    Ok(())
}

/// KiB of memory that a process has in use.
fn resident(process: u32) -> Result<u64> {
    let path = format!("/proc/{process}/status");
    let status = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let value = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    value.trim().trim_end_matches(" kB").trim().parse().context("VmRSS is no number")
}
