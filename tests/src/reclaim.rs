//! The built binary, run once.

use crate::process::{Finished, helper_program, run_to_end, wait_until};
use crate::report::{EntryLine, Pass, PurgeLine, QueryLine, ScanLine, WhoLine};
use crate::{ConfigFile, OrFail as _};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The binary that is tested: `RECLAIM_BIN`.
///
/// # Panics
/// When that is not set, or names no file by an absolute path: a test without the binary proves nothing.
#[track_caller]
#[must_use]
pub fn reclaim_binary() -> PathBuf {
    let path = env::var_os("RECLAIM_BIN")
        .map(PathBuf::from)
        .or_fail("RECLAIM_BIN names the binary to test; run `cargo xtask test`, which builds it and sets this");
    assert!(path.is_absolute() && path.is_file(), "RECLAIM_BIN must be the absolute path of the binary: {path:?}");
    path
}

/// How to call the binary.
#[derive(Clone, Debug)]
pub struct Reclaim {
    config: PathBuf,
    evidence: Option<&'static str>,
    environment: Vec<(&'static str, String)>,
    wrapper: Vec<OsString>,
    limit: Duration,
}

impl Reclaim {
    /// With a configuration.
    #[must_use]
    pub fn with(config: &ConfigFile) -> Self {
        let wrapper = Vec::new();
        let limit = Duration::from_secs(60);
        Self { config: config.path().into(), evidence: None, environment: Vec::new(), wrapper, limit }
    }

    /// With a given kind of evidence.
    #[must_use]
    pub fn evidence(mut self, evidence: &'static str) -> Self {
        self.evidence = Some(evidence);
        self
    }

    /// With a variable of the environment; those that start with `RECLAIM_TEST_` need `RECLAIM_TEST=1`, which is set too.
    #[must_use]
    pub fn variable(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.environment.push(("RECLAIM_TEST", "1".to_owned()));
        self.environment.push((name, value.into()));
        self
    }

    /// As another user.
    #[must_use]
    pub fn as_user(mut self, id: u32) -> Self {
        self.wrapper.extend(["--uid".into(), id.to_string().into()]);
        self
    }

    /// In a namespace where procfs hides the tasks of others.
    #[must_use]
    pub fn with_filtered_procfs(mut self) -> Self {
        self.wrapper.push("--hidepid".into());
        self
    }

    /// Without the right to look at what other tasks are doing.
    #[must_use]
    pub fn without_ptrace(mut self) -> Self {
        self.wrapper.push("--no-ptrace".into());
        self
    }

    /// With another limit than a minute.
    #[must_use]
    pub fn within(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// The command, which dies with this thread.
    #[track_caller]
    #[must_use]
    pub fn command<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Command {
        self.command_through(&[], arguments)
    }

    /// The command, run by another program that is given it as its last arguments.
    #[track_caller]
    #[must_use]
    pub fn command_through<S: AsRef<OsStr>>(&self, outer: &[&str], arguments: &[S]) -> Command {
        let mut command = Command::new(helper_program());
        command.arg("exec").args(&self.wrapper).arg("--").args(outer).arg(reclaim_binary());
        command.arg("--config").arg(&self.config).args(["--color", "never"]);
        if let Some(evidence) = self.evidence {
            command.args(["--evidence", evidence]);
        }
        command.args(arguments);
        command.env_remove("RECLAIM_TEST").env_remove("RUST_LOG");
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Runs a command as it is.
    #[track_caller]
    pub fn run<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Finished {
        run_to_end(&mut self.command(arguments), self.limit)
    }

    /// Runs a command with `--json`, expects one of the exit codes, and returns the objects that it printed.
    #[track_caller]
    pub fn objects<S: AsRef<OsStr>>(&self, arguments: &[S], codes: &[i32]) -> (Vec<Value>, i32) {
        let mut all: Vec<&OsStr> = vec!["--json".as_ref()];
        all.extend(arguments.iter().map(AsRef::as_ref));
        let finished = self.run(&all);
        let code = finished.code();
        let Finished { stdout, stderr, .. } = &finished;
        assert!(codes.contains(&code), "{all:?} ended with {code}, not {codes:?}\nstdout: {stdout}\nstderr: {stderr}");
        (parse_lines(stdout), code)
    }

    /// One pass; ends with 0, or with 4 when entries were kept for want of evidence.
    #[track_caller]
    pub fn sweep(&self) -> Vec<Pass> {
        self.sweep_with(&[])
    }

    /// One pass with further arguments.
    #[track_caller]
    pub fn sweep_with(&self, arguments: &[&str]) -> Vec<Pass> {
        let mut all = vec!["sweep"];
        all.extend(arguments);
        let (objects, _) = self.objects(&all, &[0, 4]);
        passes(&objects)
    }

    /// One pass that tells every entry.
    #[track_caller]
    pub fn sweep_verbosely(&self, arguments: &[&str]) -> (Vec<Pass>, Vec<EntryLine>) {
        let mut all = vec!["-v", "sweep"];
        all.extend(arguments);
        let (objects, _) = self.objects(&all, &[0, 4]);
        (passes(&objects), typed(&objects, "entry"))
    }

    /// The decision for one path, and the exit code, which must fit it.
    #[track_caller]
    pub fn query(&self, path: &Path) -> QueryLine {
        let (objects, code) = self.objects(&["query".as_ref(), path.as_os_str()], &[0, 3, 4]);
        let line: QueryLine = only(&objects, "query");
        let expected = match line.verdict.as_str() {
            "free" => 0,
            "pinned" => 3,
            "unknown" => 4,
            other => panic!("a verdict that nobody knows: {other}"),
        };
        assert_eq!(code, expected, "the exit code of {line:?}");
        line
    }

    /// A purge of one id that must end with a code, once the host lets it be proved one way or the other.
    #[track_caller]
    pub fn purge(&self, id: &str, arguments: &[&str], code: i32) -> PurgeLine {
        let all: Vec<&str> = ["purge", id].into_iter().chain(arguments.iter().copied()).collect();
        wait_until("a purge without a doubt", Duration::from_secs(90), || {
            let (objects, ended) = self.objects(&all, &[0, 1, 3, 4]);
            let line: PurgeLine = only(&objects, "purge");
            line.check();
            if !line.is_certain() {
                return None;
            }
            assert_eq!(ended, code, "the exit code of {line:?}");
            Some(line)
        })
    }

    /// Who pins a path, and the exit code, which must fit it.
    #[track_caller]
    pub fn who(&self, path: &Path) -> WhoLine {
        let (objects, code) = self.objects(&["who".as_ref(), path.as_os_str()], &[0, 3, 4]);
        let line: WhoLine = only(&objects, "who");
        assert_eq!(code == 3, line.pinned, "the exit code {code} of {line:?}");
        let relied_on = !line.pins.is_empty() || !line.references.is_empty();
        assert_eq!(line.pinned, relied_on, "pinned means that something pins or refers: {line:?}");
        line
    }

    /// One full scan: ends with 0, or with 4 when it is not complete.
    #[track_caller]
    pub fn scan(&self) -> ScanLine {
        let (objects, code) = self.objects(&["scan"], &[0, 4]);
        let line: ScanLine = only(&objects, "scan");
        assert_eq!(line.complete, line.gaps.is_empty(), "complete means that there are no gaps: {line:?}");
        assert!(line.complete || code == 4 || line.covered.values().any(|covered| *covered), "exit code 0 of {line:?}");
        line
    }
}

/// Every line of `--json` output as an object; anything else there fails the test.
#[track_caller]
pub(crate) fn parse_lines(stdout: &str) -> Vec<Value> {
    stdout
        .lines()
        .map(|line| {
            let value: Value = serde_json::from_str(line).or_fail(format_args!("a line of JSON: {line:?}"));
            assert!(value.get("type").is_some_and(Value::is_string), "a line without a type: {line}");
            value
        })
        .collect()
}

#[track_caller]
pub(crate) fn typed<T: DeserializeOwned>(objects: &[Value], kind: &str) -> Vec<T> {
    objects
        .iter()
        .filter(|object| object["type"] == kind)
        .map(|object| serde_json::from_value(object.clone()).or_fail(format_args!("read {object}")))
        .collect()
}

#[track_caller]
fn only<T: DeserializeOwned>(objects: &[Value], kind: &str) -> T {
    let mut found = typed(objects, kind);
    assert_eq!(found.len(), 1, "one object of type {kind} in {objects:?}");
    found.remove(0)
}

/// The summaries among objects, each checked.
#[track_caller]
pub(crate) fn passes(objects: &[Value]) -> Vec<Pass> {
    let passes: Vec<Pass> = typed(objects, "pass");
    assert!(!passes.is_empty(), "no summary in {objects:?}");
    for pass in &passes {
        pass.check();
    }
    passes
}
