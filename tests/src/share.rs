//! How much of its full size a test of endurance has.

use crate::OrFail as _;
use std::env;

/// The share of a full size that `RECLAIM_TEST_SHARE` tells in percent, and at least one; all of it when that is not
/// set. For machines that are emulated.
///
/// # Panics
/// When the variable is no number from 1 to 100.
#[track_caller]
#[must_use]
pub fn share_of(full: usize) -> usize {
    let Some(share) = env::var_os("RECLAIM_TEST_SHARE") else { return full };
    let percent: usize =
        share.to_str().and_then(|text| text.parse().ok()).or_fail("RECLAIM_TEST_SHARE as a number of percent");
    assert!((1..=100).contains(&percent), "RECLAIM_TEST_SHARE is from 1 to 100, not {percent}");
    (full * percent / 100).max(1)
}
