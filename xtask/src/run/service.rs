//! The service under demonstration: the built binary, and the lines it writes.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::sandbox::tethered;
use crate::stage::Stage;

/// How long a pass may keep us waiting.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long the service may take to end when asked to.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// One pass as the service told it.
pub(super) struct Pass {
    /// The summary object.
    pub(super) summary: Value,
    /// One object per entry.
    pub(super) entries: Vec<Value>,
}

/// The running service. Dropping it ends it.
pub(super) struct Service {
    child: Child,
    lines: Receiver<String>,
    /// Entries told since the last summary.
    entries: Vec<Value>,
    log: PathBuf,
}

impl Service {
    /// Starts it in the foreground with this configuration.
    ///
    /// # Errors
    /// It does not start.
    pub(super) fn start(binary: &Path, config: &Path, log: &Path) -> Result<Self> {
        let errors = File::create(log).with_context(|| format!("cannot create {}", log.display()))?;
        let mut command = tethered(binary)?;
        command.arg("run").arg("--config").arg(config).args(["--json", "-v"]);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .with_context(|| format!("cannot start {}", binary.display()))?;
        let output = BufReader::new(child.stdout.take().context("the service has no output")?);
        let (sender, lines) = mpsc::channel();
        // Ends with the service's output, or with the receiver.
        thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Ok(Self { child, lines, entries: Vec::new(), log: log.to_owned() })
    }

    /// Waits for the next pass to end.
    ///
    /// # Errors
    /// The service ends, writes something that is not JSON, or takes too long; or the user interrupts.
    pub(super) fn next_pass(&mut self, stage: &Stage) -> Result<Pass> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            stage.go_on()?;
            if let Some(pass) = self.read(Duration::from_millis(50))? {
                return Ok(pass);
            }
        }
        bail!("no pass within {} seconds. The service said:\n{}", PATIENCE.as_secs(), self.last_log())
    }

    /// A pass that has ended already, where there is one.
    ///
    /// # Errors
    /// As [`Service::next_pass`].
    pub(super) fn ended_pass(&mut self) -> Result<Option<Pass>> {
        self.read(Duration::ZERO)
    }

    /// Reads lines up to the end of a pass, or until none has come for this long.
    fn read(&mut self, patience: Duration) -> Result<Option<Pass>> {
        loop {
            match self.lines.recv_timeout(patience) {
                Ok(line) => {
                    let value: Value =
                        serde_json::from_str(&line).with_context(|| format!("the service wrote no JSON: {line}"))?;
                    match value["type"].as_str() {
                        Some("entry") => self.entries.push(value),
                        Some("pass") => {
                            return Ok(Some(Pass { summary: value, entries: std::mem::take(&mut self.entries) }));
                        }
                        _ => {}
                    }
                }
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                Err(RecvTimeoutError::Disconnected) => bail!("the service has ended. It said:\n{}", self.last_log()),
            }
        }
    }

    /// Asks it to end, as a service manager would, and waits.
    ///
    /// # Errors
    /// It does not end in time.
    pub(super) fn stop(mut self) -> Result<ExitStatus> {
        let pid = i32::try_from(self.child.id()).context("a process id does not fit")?;
        kill(Pid::from_raw(pid), Signal::SIGTERM).context("cannot ask the service to end")?;
        let start = Instant::now();
        while start.elapsed() < LAST_WORDS {
            if let Some(status) = self.child.try_wait().context("cannot wait for the service")? {
                return Ok(status);
            }
            thread::sleep(Duration::from_millis(10));
        }
        bail!("the service did not end within {} seconds of SIGTERM", LAST_WORDS.as_secs())
    }

    /// The end of what it logged.
    fn last_log(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        lines.get(lines.len().saturating_sub(20)..).unwrap_or_default().join("\n")
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // It has ended already where all went well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
