//! Launchers that are killed over and over, while something sweeps their root.

use crate::launcher::{Round, Way};
use crate::process::{helper_program, kill_and_reap};
use crate::{Host, OrFail as _};
use nix::sys::signal::Signal;
use std::collections::BTreeMap;
use std::fmt;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

/// What launchers came to.
#[derive(Clone, Debug, Default)]
pub struct TortureCounts {
    /// Binds whose source was seen to be alive, by the way that it was bound.
    pub verified: BTreeMap<Way, u64>,
    /// Entries that were gone before they were bound.
    pub refused: BTreeMap<Way, u64>,
    /// Launchers that were killed.
    pub deaths: u64,
    /// What should never happen.
    pub violations: Vec<String>,
}

impl fmt::Display for TortureCounts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { verified, refused, deaths, violations } = self;
        write!(
            formatter,
            "verified {verified:?}, refused {refused:?}, {deaths} deaths, {} violations",
            violations.len()
        )?;
        violations.iter().take(5).try_for_each(|violation| write!(formatter, "\n  {violation}"))
    }
}

/// Running launchers. Each of them is killed with SIGKILL at some moment, and another one takes its place.
#[derive(Debug)]
pub struct Torture {
    stop: Arc<AtomicBool>,
    counts: Arc<Mutex<TortureCounts>>,
    places: Vec<JoinHandle<()>>,
}

impl Torture {
    /// Starts launchers in the root of a host.
    #[track_caller]
    #[must_use]
    pub fn start(host: &Host, launchers: u64) -> Self {
        let (stop, counts) = (Arc::default(), Arc::default());
        let places = (0..launchers)
            .map(|index| {
                let place = Place {
                    index,
                    root: host.root(),
                    target: host.mount_point(),
                    stop: Arc::clone(&stop),
                    counts: Arc::clone(&counts),
                };
                // Begins in this thread's mount namespace, and so do its children.
                thread::Builder::new()
                    .name(format!("launcher {index}"))
                    .spawn(move || place.fill())
                    .or_fail("start a thread")
            })
            .collect();
        Self { stop, counts, places }
    }

    /// What they came to so far.
    #[must_use]
    pub fn counts(&self) -> TortureCounts {
        lock(&self.counts).clone()
    }

    /// The first of what should never happen and did, among that which a text is part of.
    #[must_use]
    pub fn first_violation(&self, part: &str) -> Option<String> {
        lock(&self.counts).violations.iter().find(|violation| violation.contains(part)).cloned()
    }

    /// Lets the last launchers die, and says what all came to.
    #[must_use]
    pub fn stop(mut self) -> TortureCounts {
        self.end();
        self.counts()
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for place in self.places.drain(..) {
            if place.join().is_err() {
                lock(&self.counts).violations.push("the thread of a launcher panicked".to_owned());
            }
        }
    }
}

impl Drop for Torture {
    fn drop(&mut self) {
        self.end();
    }
}

fn lock(counts: &Mutex<TortureCounts>) -> MutexGuard<'_, TortureCounts> {
    counts.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where one launcher after another works.
struct Place {
    index: u64,
    root: PathBuf,
    target: PathBuf,
    stop: Arc<AtomicBool>,
    counts: Arc<Mutex<TortureCounts>>,
}

impl Place {
    fn fill(self) {
        let Self { index, root, target, stop, counts } = self;
        for generation in 0_u64.. {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            let prefix = format!("launched-{index}-{generation}-");
            // Seeds that lie far apart, for neighbours begin alike.
            let seed = (index << 32 | generation).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mut child = start(&root, &target, &prefix, seed);
            let output = BufReader::new(child.stdout.take().or_fail("take the output of a launcher"));
            for line in output.lines() {
                let line = line.or_fail("read the output of a launcher");
                let round = serde_json::from_str(&line).or_fail(format_args!("a line of a launcher: {line:?}"));
                let mut counts = lock(&counts);
                match round {
                    Round::Verified(way) => *counts.verified.entry(way).or_default() += 1,
                    Round::Refused(way) => *counts.refused.entry(way).or_default() += 1,
                    Round::Violation(way, what) => counts.violations.push(format!("{way:?}: {what}")),
                }
            }
            let status = child.wait().or_fail("reap a launcher");
            let mut counts = lock(&counts);
            match status.signal() {
                Some(signal) if signal == Signal::SIGKILL as i32 => counts.deaths += 1,
                _ => counts.violations.push(format!("a launcher ended by itself: {status}")),
            }
        }
    }
}

#[track_caller]
fn start(root: &Path, target: &Path, prefix: &str, seed: u64) -> Reaped {
    let mut command = Command::new(helper_program());
    command.arg("launcher").args([root, target]).args([prefix, &seed.to_string()]);
    Reaped(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().or_fail("start a launcher"))
}

/// A child that is taken off the process table however its thread ends.
struct Reaped(Child);

impl std::ops::Deref for Reaped {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl std::ops::DerefMut for Reaped {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Reaped {
    fn drop(&mut self) {
        kill_and_reap(&mut self.0);
    }
}
