//! How fast a pass is. Run by hand: `cargo test --release -p reclaim-user --lib speed -- --ignored --nocapture`.

use super::support::{Evidence, Room, run_with};
use crate::removal::{PassOptions, RootState};
use nix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

/// What this process has used, which says more than wall time on a busy machine.
fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).unwrap().into()
}

#[test]
#[ignore = "a measurement, not a test"]
fn speed_of_a_pass_over_200_000_empty_directories() {
    let room = Room::with("size=2g,nr_inodes=1000000");
    for leases in [true, false] {
        for index in 0..200_000 {
            room.stale(format!("acme_sb_{index}_0123abcd"));
        }
        let mut evidence = Evidence::of(&room);
        // What evidence costs is measured elsewhere.
        evidence.blind = true;
        let mut rules = room.rules();
        rules.leases = leases;
        let options = PassOptions { budget: Duration::from_secs(60), ..PassOptions::default() };
        let (begun, worked) = (Instant::now(), processor_time());
        let told = run_with(&rules, &mut evidence, &options, &mut RootState::default()).unwrap();
        let (elapsed, worked) = (begun.elapsed(), processor_time() - worked);
        assert_eq!(told.summary.removed, 200_000);
        println!(
            "leases {leases}: {elapsed:?}, {:.1} us of processor an entry, {} consults, {} confirmations",
            worked.as_secs_f64() * 1e6 / 200_000.0,
            evidence.consulted,
            evidence.confirmed,
        );
    }
}
