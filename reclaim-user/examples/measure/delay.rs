//! What taking evidence does to others who mount: a loop of binding and unmounting in a process of its own meanwhile.

use super::{line, percentiles};
use anyhow::{Context as _, Result};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use reclaim_user::evidence::scan::{ScanOptions, Scanner};
use reclaim_user::evidence::walk::{Base, Walker};
use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Between two times that evidence is taken.
const PAUSE: Duration = Duration::from_millis(10);
/// Turns that each way takes.
const ROUNDS: usize = 5;

/// Measures and prints. `work` is a directory that can be bound on itself.
pub(super) fn run(root: &Path, work: &Path, times: u32) -> Result<()> {
    let directory = File::open(root).with_context(|| format!("cannot open {}", root.display()))?;
    let number = directory.metadata().context("cannot look at the root")?.ino();
    let mut walker = Walker::load().context("there is no walk here")?;
    let mut walk = || {
        walker
            .walk(&directory, &[Base { number, directory: directory.as_fd(), only: None }])
            .map(drop)
            .context("the walk failed")
    };
    let mut scan = || Scanner::new(ScanOptions::default()).scan().map(drop).context("the scan failed");
    let (mut nothing, mut nothing_again) = (|| Ok(()), || Ok(()));
    let mut contenders: [(&str, &mut dyn FnMut() -> Result<()>); 4] =
        [("idle", &mut nothing), ("the walk", &mut walk), ("the scan", &mut scan), ("idle again", &mut nothing_again)];
    let mut figures: [(Vec<f64>, Vec<f64>); 4] = Default::default();
    // In turns, another one first in each round: what the machine does meanwhile falls on all of them.
    for round in 0..ROUNDS {
        for turn in 0..contenders.len() {
            let at = (round + turn) % contenders.len();
            let (_, evidence) = &mut contenders[at];
            let (middle, worst) = meanwhile(work, times.div_ceil(ROUNDS as u32), evidence)?;
            figures[at].0.push(middle);
            figures[at].1.push(worst);
        }
    }
    println!(
        "\nbind+umount of another process while evidence is taken {times} times, medians of {ROUNDS} rounds\n{:<62} {:>16} {:>11} {:>16}",
        "", "us median", "p99", "p99 to idle"
    );
    let idle = figures[0].1.clone();
    for ((name, _), (middle, worst)) in contenders.iter().zip(figures) {
        let ratios = worst.iter().zip(&idle).map(|(worst, idle)| worst / idle).collect();
        let [middle, worst, ratio] = [middle, worst, ratios].map(|values| percentiles(values).0);
        line(name, &format!("{middle:>16.1} {worst:>11.1} {ratio:>16.2}"));
    }
    Ok(())
}

/// Takes evidence so many times while the other process binds and unmounts; that one's median and p99 in microseconds.
fn meanwhile(work: &Path, times: u32, evidence: &mut dyn FnMut() -> Result<()>) -> Result<(f64, f64)> {
    let mut child = Command::new(std::env::current_exe().context("cannot find this program")?)
        .args(["delayed".as_ref(), work.as_os_str()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start the other process")?;
    let mut output = BufReader::new(child.stdout.take().context("it has no output")?);
    let mut text = String::new();
    output.read_line(&mut text).context("it does not begin")?;
    let taken = (0..times).try_for_each(|_| {
        evidence()?;
        thread::sleep(PAUSE);
        Ok(())
    });
    // What ends it.
    drop(child.stdin.take());
    text.clear();
    let answer = output.read_line(&mut text);
    child.wait().context("cannot wait for the other process")?;
    taken.and_then(|()| answer.map(drop).context("it does not answer"))?;
    let numbers: Vec<f64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    match numbers[..] {
        [middle, worst] => Ok((middle, worst)),
        _ => anyhow::bail!("the other process said {text:?}"),
    }
}

/// The other process: binds and unmounts until its input ends, and prints the median and the p99 in microseconds.
pub(super) fn delayed(work: &Path) -> Result<()> {
    static IS_OVER: AtomicBool = AtomicBool::new(false);
    thread::spawn(|| {
        let _ = std::io::stdin().lines().count();
        IS_OVER.store(true, Ordering::Relaxed);
    });
    println!("ready");
    std::io::stdout().flush().context("cannot say that it is ready")?;
    let mut times = Vec::new();
    while !IS_OVER.load(Ordering::Relaxed) {
        let began = Instant::now();
        mount(Some(work), work, None::<&str>, MsFlags::MS_BIND, None::<&str>).context("cannot bind")?;
        umount2(work, MntFlags::MNT_DETACH).context("cannot unmount")?;
        times.push(began.elapsed().as_secs_f64() * 1e6);
    }
    let (middle, worst) = percentiles(times);
    println!("{middle} {worst}");
    Ok(())
}
