//! What the service's probes cost others: the same system calls without them, and with each rung of the ladder.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getppid};
use serde_json::Value;

use super::Size;
use super::measure::median;
use crate::sandbox::tethered;
use crate::stage::Stage;

/// The rungs, by their names in `reclaim check` and in `RECLAIM_TEST_DISABLE`.
const RUNGS: [(&str, &str); 4] = [
    ("fentry", "fentry"),
    ("kprobe", "kprobe"),
    ("syscall tracepoint", "tracepoint"),
    ("every-syscall tracepoint", "every-syscall"),
];
/// How long the service may take to begin and to end.
const PATIENCE: Duration = Duration::from_secs(60);
/// Columns of the table.
const COLUMNS: [&str; 5] = ["getppid ns", "process us", "bind+umount us", "begin ms", "end ms"];

/// Measures and prints. A rung that this kernel does not give is named with the reason.
pub(super) fn run(binary: &Path, size: &Size) -> Result<()> {
    let stage = Stage::enter("mode=0755")?;
    let root = stage.directory("root")?;
    let (from, to) = (stage.directory("from")?, stage.directory("to")?);
    let config = stage.file(
        "reclaim.toml",
        &format!(
            "[service]\nevery = \"24h\"\nstate_dir = '{0}/state'\nsocket = '{0}/control.sock'\n\n\
             [[root]]\nname = \"bench\"\npath = '{1}'\nowner = \"0\"\nmatch = '^acme_(?<pid>\\d+)$'\n",
            stage.path().display(),
            root.display()
        ),
    )?;
    let work = || -> Result<[f64; 3]> {
        Ok([
            each(size.probes * 1_000, || {
                std::hint::black_box(getppid());
                Ok(())
            })? * 1e9,
            each(size.probes, || {
                let status = Command::new("true").status().context("cannot start true")?;
                if status.success() { Ok(()) } else { bail!("true failed ({status})") }
            })? * 1e6,
            each(size.probes * 10, || {
                mount(Some(&from), &to, None::<&str>, MsFlags::MS_BIND, None::<&str>).context("cannot bind")?;
                umount2(&to, MntFlags::MNT_DETACH).context("cannot unmount")
            })? * 1e6,
        ])
    };
    // Twice, for how far apart the same can lie.
    let mut lines: Vec<(&str, [Vec<f64>; 5])> =
        vec![("no probes", Default::default()), ("no probes, again", Default::default())];
    for round in 0..size.rounds.max(1) {
        note(&mut lines[0].1, work()?, [0.0; 2]);
        for (rung, name) in RUNGS {
            stage.go_on()?;
            let others = RUNGS.map(|(_, other)| other).into_iter().filter(|other| *other != name);
            let disabled = others.collect::<Vec<_>>().join(",");
            let mut service = Service::start(binary, &config, &disabled)?;
            match service.wait_for(rung)? {
                Some(why) if round == 0 => println!("  {rung}: not here: {why}"),
                Some(_) => {}
                None => {
                    let begin = service.began.elapsed().as_secs_f64() * 1e3;
                    let took = work()?;
                    let end = service.stop()?.as_secs_f64() * 1e3;
                    let at = lines.iter().position(|(known, _)| *known == rung).unwrap_or(lines.len());
                    if at == lines.len() {
                        lines.push((rung, Default::default()));
                    }
                    note(&mut lines[at].1, took, [begin, end]);
                }
            }
        }
        note(&mut lines[1].1, work()?, [0.0; 2]);
    }
    println!("\nWhat the service's probes cost, {} rounds, medians", size.rounds.max(1));
    println!("  {:<26}{}", "", COLUMNS.map(|column| format!("{column:>16}")).concat());
    for (rung, values) in lines {
        let cells = values.map(|values| format!("{:>16.1}", median(values)));
        println!("  {rung:<26}{}", cells.concat());
    }
    Ok(())
}

fn note(line: &mut [Vec<f64>; 5], took: [f64; 3], ends: [f64; 2]) {
    for (values, value) in line.iter_mut().zip(took.into_iter().chain(ends)) {
        values.push(value);
    }
}

/// Seconds that one of many takes.
fn each(times: u32, mut work: impl FnMut() -> Result<()>) -> Result<f64> {
    let began = Instant::now();
    for _ in 0..times.max(1) {
        work()?;
    }
    Ok(began.elapsed().as_secs_f64() / f64::from(times.max(1)))
}

/// A running service. Dropping it ends it.
struct Service<'a> {
    child: Child,
    began: Instant,
    binary: &'a Path,
    config: &'a Path,
}

impl<'a> Service<'a> {
    fn start(binary: &'a Path, config: &'a Path, disabled: &str) -> Result<Self> {
        let began = Instant::now();
        let mut command = tethered(binary)?;
        command.arg("run").arg("--config").arg(config).arg("--json");
        command.env("RECLAIM_TEST", "1").env("RECLAIM_TEST_DISABLE", disabled);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Ok(Self { child: child.with_context(|| format!("cannot start {}", binary.display()))?, began, binary, config })
    }

    /// Waits until it answers, and returns why it does not use a rung; none where it does.
    fn wait_for(&mut self, rung: &str) -> Result<Option<String>> {
        while self.began.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait().context("cannot wait for the service")? {
                bail!("the service ended ({status})");
            }
            let mut ask = Command::new(self.binary);
            ask.args(["status", "--json", "--config"]).arg(self.config).stderr(Stdio::null());
            let output = ask.output().with_context(|| format!("cannot start {}", self.binary.display()))?;
            if output.status.success() {
                let status: Value = serde_json::from_slice(&output.stdout).context("the status is not JSON")?;
                let uses = |probe: &Value| probe["hook"] == "mount" && probe["rung"] == rung;
                if status["probes"].as_array().is_some_and(|probes| probes.iter().any(uses)) {
                    return Ok(None);
                }
                return Ok(Some(status["probes_missing"].as_str().unwrap_or("the service does not say").to_owned()));
            }
            thread::sleep(Duration::from_millis(2));
        }
        bail!("the service does not answer within {} seconds", PATIENCE.as_secs())
    }

    /// Asks it to end, and returns how long that took.
    fn stop(mut self) -> Result<Duration> {
        let process = i32::try_from(self.child.id()).context("a process id does not fit")?;
        let asked = Instant::now();
        kill(Pid::from_raw(process), Signal::SIGTERM).context("cannot ask the service to end")?;
        while asked.elapsed() < PATIENCE {
            if self.child.try_wait().context("cannot wait for the service")?.is_some() {
                return Ok(asked.elapsed());
            }
            thread::sleep(Duration::from_millis(1));
        }
        bail!("the service did not end within {} seconds", PATIENCE.as_secs())
    }
}

impl Drop for Service<'_> {
    fn drop(&mut self) {
        // It has ended already where it was asked to.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
