//! The progress bar of a sweep: on standard error, and only where that is a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::Duration;

/// A bar that counts entries, without a known end.
#[derive(Debug)]
pub struct Progress(ProgressBar);

impl Progress {
    /// A bar, shown only where standard error is a terminal and `wanted`.
    #[must_use]
    pub fn new(wanted: bool) -> Self {
        let target = if wanted { ProgressDrawTarget::stderr_with_hz(10) } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(None, target);
        let style = ProgressStyle::with_template("{spinner} {msg}: {human_pos} entries, {prefix}{per_sec}, {elapsed}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        Self(bar)
    }

    /// Starts counting afresh under a name.
    pub fn begin(&self, name: &str) {
        self.0.reset();
        self.0.set_message(name.to_owned());
        self.0.set_prefix("");
        if !self.0.is_hidden() {
            self.0.enable_steady_tick(Duration::from_millis(200));
        }
    }

    /// Shows how far it is.
    pub fn at(&self, listed: u64, removed: u64) {
        self.0.set_position(listed);
        self.0.set_prefix(format!("{removed} removed, "));
    }

    /// Does something that writes to the terminal, without the bar in its way.
    pub fn aside<T>(&self, work: impl FnOnce() -> T) -> T {
        self.0.suspend(work)
    }

    /// Takes the bar away.
    pub fn end(&self) {
        self.0.finish_and_clear();
    }
}
