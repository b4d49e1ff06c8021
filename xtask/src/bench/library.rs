//! What is measured through the library, by a program of its own: evidence, decisions, refreshes, delays of others; and memory.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::Size;
use crate::command;
use crate::stage::Stage;

/// Numbers of pins that memory is measured with.
const PINS: [u32; 3] = [0, 30_000, 1_000_000];
/// Times that evidence is taken while somebody mounts.
const TIMES: u32 = 100;

/// Measures and prints, while the sandboxes of the benchmark live, of which one is `process`.
///
/// # Errors
/// A measure fails.
pub(super) fn run(measure: &Path, stage: &Stage, process: u32, size: &Size) -> Result<()> {
    let root = stage.path().join("sources");
    let work = stage.directory("delayed")?;
    let run = |words: &[&str], paths: &[&Path], numbers: &[u32]| start(measure, stage, words, paths, numbers);
    run(&["evidence"], &[&root], &[size.rounds])?;
    run(&["decision"], &[&root], &[])?;
    run(&["refresh"], &[&root], &[process, 25])?;
    run(&["delay"], &[&root, &work], &[TIMES])
}

/// Measures memory and prints, once the sandboxes are gone: else theirs would be counted with each number of pins.
///
/// # Errors
/// A measure fails.
pub(super) fn memory(measure: &Path, stage: &Stage) -> Result<()> {
    let root = stage.path().join("sources");
    println!("\nMemory in use: the evidence of this host, and pins fed through the library");
    PINS.iter().try_for_each(|pins| start(measure, stage, &["memory"], &[&root], &[*pins]))
}

fn start(measure: &Path, stage: &Stage, words: &[&str], paths: &[&Path], numbers: &[u32]) -> Result<()> {
    stage.go_on()?;
    let mut command = Command::new(measure);
    command.args(words).args(paths).args(numbers.iter().map(u32::to_string));
    command::run(&mut command)
}
