//! Contenders that take turns, and the table of their medians.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::run::grouped;

/// One way to do the work; given the round's number, it returns what it took.
pub(super) struct Contender<'a> {
    /// Its name in the table.
    pub(super) name: &'a str,
    /// Does the work once.
    pub(super) work: Box<dyn FnMut() -> Result<Duration> + 'a>,
}

/// How long the work took.
///
/// # Errors
/// The work fails.
pub(super) fn time(work: impl FnOnce() -> Result<()>) -> Result<Duration> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed())
}

/// Lets the contenders take turns, another one first in each round so that none gains from its place, and prints their
/// medians and the median of each round's ratio to the first contender.
///
/// # Errors
/// A contender fails.
pub(super) fn compare(title: &str, rounds: u32, units: u64, mut contenders: Vec<Contender<'_>>) -> Result<()> {
    let mut times = vec![Vec::new(); contenders.len()];
    for round in 0..rounds.max(1) as usize {
        for turn in 0..contenders.len() {
            let at = (round + turn) % contenders.len();
            let contender = contenders.get_mut(at).context("no such contender")?;
            let took = (contender.work)().with_context(|| format!("{} failed", contender.name))?;
            times.get_mut(at).context("no such contender")?.push(took.as_secs_f64());
        }
    }
    println!("\n{title}, {} rounds, medians", rounds.max(1));
    println!("  {:<44} {:>10} {:>12} {:>10}", "", "ms", "ns a piece", "ratio");
    let first = times.first().cloned().unwrap_or_default();
    for (contender, own) in contenders.iter().zip(&times) {
        let ratios = first.iter().zip(own).map(|(first, own)| first / own).collect();
        let seconds = median(own.clone());
        println!(
            "  {:<44} {:>10.1} {:>12.0} {:>10.2}",
            contender.name,
            seconds * 1e3,
            seconds * 1e9 / units as f64,
            median(ratios)
        );
    }
    println!("  ratio: the first line takes so many times as long as this one ({} pieces)", grouped(units));
    Ok(())
}

/// The middle value; the mean of the two in the middle where there are two. 0 of nothing.
pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let at = |index: usize| values.get(index).copied().unwrap_or_default();
    if values.len().is_multiple_of(2) { f64::midpoint(at(middle.saturating_sub(1)), at(middle)) } else { at(middle) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::float_cmp, reason = "these values are exact")]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(vec![]), 0.0);
    }
}
