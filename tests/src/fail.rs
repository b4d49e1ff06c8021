//! Failing a test with what was being done.

use std::fmt::Display;

/// Ends the test when something that the test itself needs went wrong.
pub trait OrFail<T> {
    /// The value, or a panic that says what was attempted and at which line of the test.
    fn or_fail(self, attempted: impl Display) -> T;
}

impl<T, E: Display> OrFail<T> for Result<T, E> {
    #[track_caller]
    fn or_fail(self, attempted: impl Display) -> T {
        match self {
            Ok(value) => value,
            Err(error) => panic!("{attempted}: {error}"),
        }
    }
}

impl<T> OrFail<T> for Option<T> {
    #[track_caller]
    fn or_fail(self, attempted: impl Display) -> T {
        match self {
            Some(value) => value,
            None => panic!("{attempted}: nothing there"),
        }
    }
}
