//! Real sandboxes, as helper processes: this program again, under a hidden subcommand.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};
use nix::mount::{MsFlags, mount};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;
use nix::sys::signal::Signal;

use crate::command::shown;

/// How long a sandbox may take to start or to answer, in milliseconds.
const PATIENCE_MS: u16 = 5_000;

/// How a sandbox relies on its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// It binds the entry to a mount point
    Source,
    /// It mounts something on the entry
    Target,
    /// bubblewrap binds the entry
    Bubblewrap,
    /// The mounts are there already: only answer
    Inside,
}

/// What a helper process is to mount.
#[derive(Args)]
pub(crate) struct Options {
    /// How it relies on the entries
    #[arg(long)]
    kind: Kind,
    /// Where it writes; for a source the mount point, one directory an entry below it where there are several
    #[arg(long)]
    work: PathBuf,
    /// Processes in its namespace
    #[arg(long, default_value_t = 1)]
    tasks: u32,
    /// The entries
    entries: Vec<PathBuf>,
}

/// Body of the helper: makes the mounts, says so, and writes a file below `work` whenever it is asked to.
///
/// # Errors
/// A mount fails, or the other end of its pipes is gone.
pub(crate) fn serve(options: &Options) -> Result<()> {
    tether()?;
    prctl::set_name(c"sandbox").context("cannot name the sandbox's process")?;
    if options.kind != Kind::Inside {
        make_mounts(options)?;
    }
    let companions = (1..options.tasks).map(|_| Companion::start()).collect::<Result<Vec<_>>>()?;
    let mut output = std::io::stdout().lock();
    writeln!(output, "ready").and_then(|()| output.flush()).context("cannot say that the sandbox is ready")?;
    for line in std::io::stdin().lock().lines() {
        line.context("cannot read what the sandbox is asked")?;
        let answer = match write_and_remove(options) {
            Ok(()) => "ok".to_owned(),
            Err(error) => format!("{error:#}").replace('\n', " "),
        };
        writeln!(output, "{answer}").and_then(|()| output.flush()).context("cannot answer")?;
    }
    drop(companions);
    Ok(())
}

/// Another process in the same namespace, that does nothing. Dropping it ends it.
struct Companion(Child);

impl Companion {
    fn start() -> Result<Self> {
        let mut command = Command::new(this_program()?);
        command.args(["sandbox", "--kind", "inside", "--work", "/"]).stdin(Stdio::piped()).stdout(Stdio::null());
        Ok(Self(command.spawn().with_context(|| format!("cannot start {}", shown(&command)))?))
    }
}

impl Drop for Companion {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Writes through the mount: for a target by the entry's own path, which must lead to what is mounted there.
fn write_and_remove(options: &Options) -> Result<()> {
    let several = options.entries.len() > 1;
    let place = match (options.kind, options.entries.first()) {
        (Kind::Target, Some(entry)) => entry.clone(),
        _ if several => options.work.join("0"),
        _ => options.work.clone(),
    };
    let file = place.join("written");
    fs::write(&file, b"still here").with_context(|| format!("cannot write {}", file.display()))?;
    if options.kind == Kind::Target && !options.work.join("written").exists() {
        bail!("what was mounted on {} is no longer there", place.display());
    }
    fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))
}

fn make_mounts(options: &Options) -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNS).context("cannot unshare the mount namespace")?;
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).context("cannot make / private")?;
    for (number, entry) in options.entries.iter().enumerate() {
        let (source, target) = match (options.kind, options.entries.len()) {
            (Kind::Target, _) => (options.work.clone(), entry.clone()),
            (_, 1) => (entry.clone(), options.work.clone()),
            _ => (entry.clone(), options.work.join(number.to_string())),
        };
        mount(Some(&source), &target, none, MsFlags::MS_BIND, none)
            .with_context(|| format!("cannot bind {} to {}", source.display(), target.display()))?;
    }
    Ok(())
}

/// Ends this process when the one that started it ends, however it ends.
///
/// # Errors
/// The call fails.
fn tether() -> Result<()> {
    prctl::set_pdeathsig(Signal::SIGKILL).context("cannot ask to end with the parent (prctl)")
}

/// Body of the hidden `tethered` subcommand: becomes the command, and is ended with its parent.
///
/// # Errors
/// The command does not start.
pub(crate) fn become_tethered(words: &[OsString]) -> Result<()> {
    tether()?;
    let (program, arguments) = words.split_first().context("no command was given")?;
    Err(Command::new(program).args(arguments).exec()).with_context(|| format!("cannot start {}", program.display()))
}

/// A command that ends with this process.
///
/// # Errors
/// This program's own file is not to be found.
pub(crate) fn tethered(program: impl AsRef<OsStr>) -> Result<Command> {
    let mut command = Command::new(this_program()?);
    command.arg("tethered").arg("--").arg(program);
    Ok(command)
}

/// This program's file.
///
/// # Errors
/// The system does not say.
pub(crate) fn this_program() -> Result<PathBuf> {
    std::env::current_exe().context("cannot find this program's own file")
}

/// A running sandbox. Dropping it ends it.
pub(crate) struct Sandbox {
    /// How it relies on its entries.
    pub(crate) kind: Kind,
    /// The entries it was made with.
    pub(crate) entries: Vec<PathBuf>,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Sandbox {
    /// Starts a sandbox without waiting for its mounts: [`Sandbox::wait_ready`] does. Its mount point (for a target:
    /// what it mounts) is `work`; with more than one entry they go to `work/0`, `work/1` and so on.
    ///
    /// # Errors
    /// The helper process does not start.
    pub(crate) fn start(kind: Kind, entries: Vec<PathBuf>, work: &Path) -> Result<Self> {
        Self::start_with_tasks(kind, entries, work, 1)
    }

    /// As [`Sandbox::start`], with this many processes in the namespace (bubblewrap's own number stays).
    ///
    /// # Errors
    /// The helper process does not start.
    pub(crate) fn start_with_tasks(kind: Kind, entries: Vec<PathBuf>, work: &Path, tasks: u32) -> Result<Self> {
        let program = this_program()?;
        let mut command = if kind == Kind::Bubblewrap {
            let entry = entries.first().context("a bubblewrap sandbox has one entry")?;
            let mut command = tethered("bwrap")?;
            command.args(["--die-with-parent", "--ro-bind", "/", "/", "--tmpfs", "/mnt", "--ro-bind"]).arg(program);
            command.args(["/mnt/program", "--bind"]).arg(entry);
            command.args(["/mnt/work", "--", "/mnt/program", "sandbox", "--kind", "inside", "--work", "/mnt/work"]);
            command
        } else {
            let word = if kind == Kind::Target { "target" } else { "source" };
            let mut command = Command::new(program);
            command.args(["sandbox", "--kind", word, "--work"]).arg(work);
            command.args(["--tasks", &tasks.to_string()]).args(&entries);
            command
        };
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", shown(&command)))?;
        let input = child.stdin.take().context("the sandbox has no input")?;
        let output = BufReader::new(child.stdout.take().context("the sandbox has no output")?);
        Ok(Self { kind, entries, child, input, output })
    }

    /// Waits until its mounts are made.
    ///
    /// # Errors
    /// It could not make them.
    pub(crate) fn wait_ready(&mut self) -> Result<()> {
        match self.answer()?.as_str() {
            "ready" => Ok(()),
            other => bail!("the sandbox said {other:?} and not that it is ready"),
        }
    }

    /// Asks it to create and remove a file through its mount.
    ///
    /// # Errors
    /// It cannot, or does not answer.
    pub(crate) fn write(&mut self) -> Result<()> {
        writeln!(self.input, "write").context("the sandbox takes no more questions")?;
        match self.answer()?.as_str() {
            "ok" => Ok(()),
            other => bail!("{other}"),
        }
    }

    fn answer(&mut self) -> Result<String> {
        let mut wait = [PollFd::new(self.output.get_ref().as_fd(), PollFlags::POLLIN)];
        if poll(&mut wait, PollTimeout::from(PATIENCE_MS)).context("cannot wait for the sandbox")? == 0 {
            bail!("the sandbox does not answer");
        }
        let mut line = String::new();
        self.output.read_line(&mut line).context("cannot read the sandbox's answer")?;
        if line.is_empty() {
            bail!("the sandbox has ended");
        }
        Ok(line.trim_end().to_owned())
    }

    /// Process id of the helper.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // It may have ended by itself; what counts is that it is gone and reaped afterwards.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
