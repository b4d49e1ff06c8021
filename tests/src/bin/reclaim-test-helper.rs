//! Processes that tests need: sandboxes of every kind, loops that disturb, and programs that die with the test.

use std::process::ExitCode;

fn main() -> ExitCode {
    reclaim_tests::helper_main()
}
