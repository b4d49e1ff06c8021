//! Processes that disturb while a test runs.

use crate::OrFail as _;
use crate::process::{finish, helper_program, kill_and_reap};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

/// What a loop did.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LoopCounts {
    /// Rounds that went well.
    pub rounds: u64,
    /// Rounds that were refused in the way that they may be.
    pub refused: u64,
    /// Rounds that failed.
    pub failures: u64,
    /// The first failure.
    pub first_failure: Option<String>,
}

impl LoopCounts {
    pub(crate) fn round(&mut self, round: Result<(), String>) {
        match round {
            Ok(()) => self.rounds += 1,
            Err(error) => {
                self.failures += 1;
                self.first_failure.get_or_insert(error);
            }
        }
    }

    /// Fails the test when a round failed, or when there was none.
    #[track_caller]
    pub fn expect_clean(&self, what: &str) {
        let Self { rounds, refused, failures, first_failure } = self;
        assert_eq!(*failures, 0, "{what}: {rounds} went well, {refused} refused, the first failure: {first_failure:?}");
        assert!(*rounds > 0, "{what} never came to a round ({refused} refused)");
    }
}

/// A loop in a process of its own.
#[derive(Debug)]
pub struct Background {
    child: Option<Child>,
    output: BufReader<ChildStdout>,
}

impl Background {
    #[track_caller]
    fn start(arguments: &[&OsStr]) -> Self {
        let mut child = Command::new(helper_program())
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .or_fail(format_args!("start {arguments:?}"));
        let mut output = BufReader::new(child.stdout.take().or_fail("take the output of a loop"));
        let mut line = String::new();
        output.read_line(&mut line).or_fail("wait for a loop");
        assert_eq!(line.trim_end(), "ready", "a loop did not start: {arguments:?}");
        Self { child: Some(child), output }
    }

    /// Binds and unmounts, in a namespace of its own.
    #[track_caller]
    #[must_use]
    pub fn bind_loop(source: &Path, target: &Path) -> Self {
        Self::start(&["bind-loop".as_ref(), source.as_os_str(), target.as_os_str()])
    }

    /// Binds and unmounts `count` times and ends by itself.
    #[track_caller]
    #[must_use]
    pub fn bind_rounds(source: &Path, target: &Path, count: u64) -> Self {
        Self::start(&["bind-loop".as_ref(), source.as_os_str(), target.as_os_str(), count.to_string().as_ref()])
    }

    /// Swaps `sub` and `link` of every entry of a root.
    #[track_caller]
    #[must_use]
    pub fn swap_loop(root: &Path) -> Self {
        Self::start(&["swap-loop".as_ref(), root.as_os_str()])
    }

    /// Starts processes that end at once.
    #[track_caller]
    #[must_use]
    pub fn process_storm() -> Self {
        Self::start(&["process-storm".as_ref()])
    }

    /// Starts sandboxes that bind one of `count` entries and end at once.
    #[track_caller]
    #[must_use]
    pub fn sandbox_storm(root: &Path, target: &Path, prefix: &str, count: u64) -> Self {
        let count = count.to_string();
        Self::start(&["sandbox-storm".as_ref(), root.as_os_str(), target.as_os_str(), prefix.as_ref(), count.as_ref()])
    }

    /// `count` namespaces that all have the same `binds` entries of a root bound: `<prefix>0` and so on, which exist.
    #[track_caller]
    #[must_use]
    pub fn copies(root: &Path, points: &Path, prefix: &str, count: usize, binds: usize) -> Self {
        for index in 0..binds {
            let point = points.join(index.to_string());
            std::fs::create_dir_all(&point).or_fail(format_args!("make {}", point.display()));
        }
        let [count, binds] = [count, binds].map(|number| number.to_string());
        Self::start(&[
            "copies".as_ref(),
            root.as_os_str(),
            points.as_os_str(),
            prefix.as_ref(),
            count.as_ref(),
            binds.as_ref(),
        ])
    }

    /// Ends what does nothing but wait.
    #[track_caller]
    pub fn end(mut self) {
        let mut child = self.child.take().or_fail("the process");
        drop(child.stdin.take());
        finish(child, Duration::from_secs(120)).or_fail("wait for it to end");
    }

    /// Waits for a loop that ends by itself.
    #[track_caller]
    pub fn wait(mut self, limit: Duration) -> LoopCounts {
        let child = self.child.take().or_fail("the loop");
        self.collect(child, limit)
    }

    /// Ends the loop in order.
    #[track_caller]
    pub fn stop(mut self) -> LoopCounts {
        let mut child = self.child.take().or_fail("the loop");
        drop(child.stdin.take());
        self.collect(child, Duration::from_secs(30))
    }

    #[track_caller]
    fn collect(&mut self, child: Child, limit: Duration) -> LoopCounts {
        finish(child, limit).or_fail("wait for a loop");
        let mut text = String::new();
        self.output.read_to_string(&mut text).or_fail("read the counts of a loop");
        serde_json::from_str(&text).or_fail(format_args!("counts of a loop: {text:?}"))
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            kill_and_reap(child);
        }
    }
}

/// Many sandboxes at once. They end when this is dropped.
#[derive(Debug)]
pub struct Crowd {
    child: Child,
    members: BTreeMap<usize, i32>,
    root: PathBuf,
    points: PathBuf,
    prefix: String,
    binds: usize,
}

impl Crowd {
    /// Starts `count` sandboxes that bind `binds` entries each: `<prefix>0`, `<prefix>1`, … of `root`, which exist.
    ///
    /// # Panics
    /// When one of them does not come up.
    #[track_caller]
    #[must_use]
    pub fn start(root: &Path, points: &Path, prefix: &str, count: usize, binds: usize) -> Self {
        for index in 0..binds {
            let point = points.join(index.to_string());
            std::fs::create_dir_all(&point).or_fail(format_args!("make {}", point.display()));
        }
        let mut child = Command::new(helper_program())
            .arg("crowd")
            .args([root, points])
            .args([prefix, &count.to_string(), &binds.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .or_fail("start a crowd");
        let output = BufReader::new(child.stdout.take().or_fail("take the output of a crowd"));
        let mut members = BTreeMap::new();
        for line in output.lines().take(count) {
            let line = line.or_fail("wait for a sandbox");
            let mut words = line.split(' ').skip(1);
            let mut number = || words.next().or_fail(format_args!("a number in {line:?}"));
            let index = number().parse().or_fail("read an index");
            members.insert(index, number().parse().or_fail("read a pid"));
        }
        assert_eq!(members.len(), count, "sandboxes of the crowd that came up");
        Self { child, members, root: root.into(), points: points.into(), prefix: prefix.into(), binds }
    }

    /// The pids of the sandboxes.
    pub fn pids(&self) -> impl Iterator<Item = i32> {
        self.members.values().copied()
    }

    /// Makes a file through every mount of every sandbox and looks for it in the source.
    ///
    /// # Panics
    /// When a sandbox does not work any more.
    #[track_caller]
    pub fn still_works(&self) {
        for (index, pid) in &self.members {
            for bind_index in 0..self.binds {
                let entry = self.root.join(format!("{}{}", self.prefix, index * self.binds + bind_index));
                let point = self.points.join(bind_index.to_string());
                let inside = format!("/proc/{pid}/root{}/alive", point.display());
                std::fs::write(&inside, "").or_fail(format_args!("sandbox {index} of the crowd: write {inside}"));
                std::fs::remove_file(entry.join("alive"))
                    .or_fail(format_args!("sandbox {index} of the crowd writes elsewhere than {}", entry.display()));
            }
        }
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        // The end of the pipe ends the members, and the starter when it has reaped them all.
        drop(self.child.stdin.take());
        if let Err(error) = self.child.wait() {
            eprintln!("wait for a crowd: {error}");
        }
    }
}
