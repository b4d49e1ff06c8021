//! What `cargo xtask bench` measures through the library. Each measure is one command, and prints lines of a table.
//!
//! Needs root. It leaves nothing behind: what it mounts is in the caller's namespace, which is the benchmark's own.

mod decision;
mod delay;
mod evidence;
mod memory;
mod pins;
mod refresh;

use anyhow::{Context as _, Result, bail};
use std::env;
use std::path::PathBuf;

fn main() -> Result<()> {
    let words: Vec<String> = env::args().skip(1).collect();
    let number = |at: usize| -> Result<u32> {
        let word = words.get(at).with_context(|| format!("argument {at} is missing"))?;
        word.parse().with_context(|| format!("{word} is no number"))
    };
    let path = |at: usize| words.get(at).map(PathBuf::from).with_context(|| format!("argument {at} is missing"));
    match words.first().map(String::as_str) {
        Some("evidence") => evidence::run(&path(1)?, number(2)?),
        Some("decision") => decision::run(&path(1)?),
        Some("refresh") => refresh::run(&path(1)?, number(2)?, number(3)?),
        Some("delay") => delay::run(&path(1)?, &path(2)?, number(3)?),
        Some("delayed") => delay::delayed(&path(1)?),
        Some("memory") => memory::run(&path(1)?, number(2)?),
        _ => bail!("which measure? evidence, decision, refresh, delay or memory"),
    }
}

/// The middle value and the one that a hundredth lies above.
fn percentiles(mut values: Vec<f64>) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    let at = |share: usize| values.get(values.len() * share / 100).copied().unwrap_or_default();
    (at(50), at(99))
}

fn line(name: &str, cells: &str) {
    println!("  {name:<60} {cells}");
}
