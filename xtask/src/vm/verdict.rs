//! How the tests of a machine went, as its last line says it.

use std::collections::BTreeSet;
use std::fmt;

/// Counts of tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    /// Did what they are for.
    pub(super) passed: usize,
    /// Did not.
    pub(super) failed: usize,
    /// Ended early, with the reason why this kernel cannot do it.
    pub(super) skipped: usize,
}

impl fmt::Display for Verdict {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { passed, failed, skipped } = self;
        write!(formatter, "verdict: {passed} passed, {failed} failed, {skipped} skipped")
    }
}

impl Verdict {
    /// Reads what [`fmt::Display`] writes; None for any other line.
    pub(super) fn read(line: &str) -> Option<Self> {
        let mut counts = line.trim().strip_prefix("verdict: ")?.split(", ");
        let mut count = |word: &str| counts.next()?.strip_suffix(word)?.trim().parse().ok();
        let verdict = Self { passed: count("passed")?, failed: count("failed")?, skipped: count("skipped")? };
        counts.next().is_none().then_some(verdict)
    }

    /// Reads the whole output of one test program, run with `--show-output`. One that ends without its summary, or ran
    /// no test, counts as a failure.
    pub(super) fn of_program(output: &str) -> Self {
        let summary = output.lines().rev().find_map(|line| line.strip_prefix("test result: "));
        let count = |word: &str| {
            let counts = summary?.split_once(". ")?.1;
            counts.split("; ").find_map(|part| part.strip_suffix(word)?.trim().parse::<usize>().ok())
        };
        // One that does a part of what it is for has said so more than once, perhaps.
        let skipped = skips(output).map(test_of).collect::<BTreeSet<_>>().len();
        match (count("passed"), count("failed")) {
            (Some(passed), Some(failed)) if passed + failed > 0 => {
                Self { passed: passed.saturating_sub(skipped), failed, skipped }
            }
            _ => Self { failed: 1, ..Self::default() },
        }
    }

    pub(super) fn add(&mut self, other: Self) {
        let Self { passed, failed, skipped } = other;
        self.passed += passed;
        self.failed += failed;
        self.skipped += skipped;
    }

    /// Whether nothing failed, and most did what they are for.
    pub(super) fn is_good(self) -> bool {
        self.failed == 0 && self.passed > self.skipped
    }
}

/// The lines by which tests say that they were skipped, and why.
pub(super) fn skips(output: &str) -> impl Iterator<Item = &str> {
    output.lines().filter(|line| line.starts_with("SKIP "))
}

/// The test that says so in a line of [`skips`].
fn test_of(line: &str) -> &str {
    let name = line.strip_prefix("SKIP ").unwrap_or(line);
    name.split_once(": ").map_or(name, |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_reads_back_and_nothing_else_is_one() {
        let verdict = Verdict { passed: 7, failed: 0, skipped: 2 };
        assert_eq!(Verdict::read(&format!("{verdict}\r")), Some(verdict));
        assert_eq!(Verdict::read("verdict: 7 passed, 0 failed"), None);
        assert_eq!(Verdict::read("verdict: 7 passed, 0 failed, 2 skipped, 1 odd"), None);
    }

    #[test]
    fn a_program_is_judged_by_its_summary_and_its_skips() {
        let output = "test a ... ok\n\n---- b stdout ----\nSKIP b: no such call\n\n\
            test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out; finished in 0.42s\n";
        assert_eq!(Verdict::of_program(output), Verdict { passed: 11, failed: 0, skipped: 1 });
        let failed = "test result: FAILED. 2 passed; 3 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1s\n";
        assert_eq!(Verdict::of_program(failed), Verdict { passed: 2, failed: 3, skipped: 0 });
    }

    #[test]
    fn a_test_counts_once_however_many_parts_of_it_are_skipped() {
        let output = "---- rungs::a stdout ----\nSKIP rungs::a: no kprobe: Ok(false)\nSKIP rungs::a: no fentry: Ok(false)\n\
            SKIP rungs::ab: no fentry: Ok(false)\n\
            test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.42s\n";
        assert_eq!(Verdict::of_program(output), Verdict { passed: 1, failed: 0, skipped: 2 });
    }

    #[test]
    fn a_program_that_ran_nothing_or_did_not_end_has_failed() {
        let nothing = "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out; finished in 0.00s\n";
        assert!(!Verdict::of_program(nothing).is_good());
        assert!(!Verdict::of_program("test a ... ok\nKilled\n").is_good());
        assert!(!Verdict::default().is_good());
    }
}
