//! A decision on the live set, with few tasks and with many.

use super::pins::{entry, live_set};
use super::{line, percentiles};
use anyhow::{Context as _, Result, bail};
use reclaim_user::evidence::ground::ground;
use reclaim_user::model::live::LiveSet;
use reclaim_user::model::verdict::by_evidence;
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

/// Decisions that are timed together, and how often.
const DECISIONS: u64 = 20_000;
const ROUNDS: u32 = 21;

/// Measures and prints.
pub(super) fn run(root: &Path) -> Result<()> {
    let root = ground(root).context("cannot find out where the root lies")?.location;
    println!(
        "\nA decision on the live set, fed through the library, half of the entries pinned     ns median   of medians p99"
    );
    for tasks in [10_u64, 100, 1_000, 10_000] {
        // As many namespaces as tasks, but for the last: half of the tasks share one with another.
        let namespaces = (tasks / 2).max(1);
        let live = live_set(&root, namespaces, 2, 3);
        let names: Vec<Vec<u8>> =
            (0..DECISIONS).map(|number| entry(number * 7 % (2 * namespaces), number % 3)).collect();
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            let began = Instant::now();
            let free = names.iter().filter(|name| black_box(is_free(&live, name))).count();
            times.push(began.elapsed().as_secs_f64() * 1e9 / DECISIONS as f64);
            if free == 0 || free == names.len() {
                bail!("{free} of {DECISIONS} entries are free");
            }
        }
        let (middle, worst) = percentiles(times);
        line(&format!("{tasks} tasks in {namespaces} namespaces"), &format!("{middle:>20.0} {worst:>14.0}"));
    }
    Ok(())
}

/// What a decision asks of evidence.
fn is_free(live: &LiveSet, name: &[u8]) -> bool {
    let (pins, coverage) = (live.pins(), live.coverage());
    let doubt = pins.doubts() > 0 && pins.doubt(name, true, false).is_some();
    !pins.is_pinned(0, name) && by_evidence(doubt, coverage.complete(), coverage.covered(1_000)).is_ok()
}
