//! Helper processes that do one thing over and over until their pipe ends.

use crate::background::LoopCounts;
use crate::serve::{OrSay as _, bind, enter_private_namespace, own_program};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use nix::mount::{MntFlags, umount2};
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Tells when the pipe to this process has ended.
struct Stop(Arc<AtomicBool>);

impl Stop {
    fn watch() -> Self {
        let flag = Arc::new(AtomicBool::new(false));
        let set = Arc::clone(&flag);
        thread::spawn(move || {
            let mut rest = Vec::new();
            if let Err(error) = io::stdin().read_to_end(&mut rest) {
                eprintln!("read the pipe: {error}");
            }
            set.store(true, Ordering::Relaxed);
        });
        Self(flag)
    }

    fn asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

fn tell(counts: &LoopCounts) -> Result<(), String> {
    println!("{}", serde_json::to_string(counts).or_say("write counts")?);
    Ok(())
}

fn ready() {
    println!("ready");
}

/// Binds `source` on `target` and unmounts it, in a namespace of its own, `limit` times or until told to stop.
pub(crate) fn bind_loop(source: &Path, target: &Path, limit: Option<u64>) -> Result<(), String> {
    enter_private_namespace()?;
    let stop = Stop::watch();
    ready();
    let mut counts = LoopCounts::default();
    while !stop.asked() && limit.is_none_or(|limit| counts.rounds < limit) {
        let round = bind(source, target).and_then(|()| umount2(target, MntFlags::empty()).or_say("umount"));
        counts.round(round);
    }
    tell(&counts)
}

/// Swaps `sub` and `link` of every entry, wherever it lies now, so that what was a directory a moment ago is a link.
pub(crate) fn swap_loop(root: &Path) -> Result<(), String> {
    let stop = Stop::watch();
    ready();
    let mut counts = LoopCounts::default();
    while !stop.asked() {
        let own = root.join(".reclaim");
        let mut places = vec![root.to_owned()];
        places.extend(children(&own));
        for entry in places.iter().flat_map(|place| children(place)) {
            let (sub, link) = (entry.join("sub"), entry.join("link"));
            match renameat2(AT_FDCWD, &sub, AT_FDCWD, &link, RenameFlags::RENAME_EXCHANGE) {
                Ok(()) => counts.rounds += 1,
                Err(Errno::ENOENT | Errno::ENOTDIR) => counts.refused += 1,
                Err(error) => counts.round(Err(format!("exchange: {error}"))),
            }
        }
    }
    tell(&counts)
}

fn children(directory: &Path) -> Vec<PathBuf> {
    // What vanishes while it is listed is as good as empty.
    fs::read_dir(directory).map(|list| list.flatten().map(|entry| entry.path()).collect()).unwrap_or_default()
}

/// Starts processes that end at once, as fast as one process can.
pub(crate) fn process_storm() -> Result<(), String> {
    let stop = Stop::watch();
    ready();
    let mut counts = LoopCounts::default();
    while !stop.asked() {
        let ended = Command::new("/bin/true").stdin(Stdio::null()).stdout(Stdio::null()).status();
        counts.round(ended.map(|_status| ()).or_say("run /bin/true"));
    }
    tell(&counts)
}

/// Starts sandboxes that bind one of `count` entries and end at once.
pub(crate) fn sandbox_storm(root: &Path, target: &Path, prefix: &str, count: u64) -> Result<(), String> {
    let stop = Stop::watch();
    ready();
    let mut counts = LoopCounts::default();
    let program = own_program()?;
    while !stop.asked() {
        let entry = root.join(format!("{prefix}{}", counts.rounds % count.max(1)));
        let ended = Command::new(&program)
            .arg("short-life")
            .arg(entry)
            .arg(target)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            // An entry that a sweep has taken cannot be bound, and every sandbox would say so.
            .stderr(Stdio::null())
            .status()
            .or_say("run a sandbox");
        counts.round(ended.map(|_status| ()));
    }
    tell(&counts)
}

/// Binds one path on another in a namespace of its own and ends.
pub(crate) fn short_life(source: &Path, target: &Path) -> Result<(), String> {
    enter_private_namespace()?;
    bind(source, target)
}

/// Starts `count` sandboxes at once; each binds `binds` entries of the root on the mount points `0`, `1`, … of
/// `points`. They end when the pipe does.
pub(crate) fn crowd(root: &Path, points: &Path, prefix: &str, count: usize, binds: usize) -> Result<(), String> {
    let program = own_program()?;
    let members = (0..count)
        .map(|index| {
            Command::new(&program)
                .arg("member")
                .args([root, points])
                .args([prefix, &index.to_string(), &binds.to_string()])
                .spawn()
                .or_say("start a sandbox")
        })
        .collect::<Result<Vec<_>, _>>()?;
    for mut member in members {
        member.wait().or_say("wait for a sandbox")?;
    }
    Ok(())
}

/// Namespaces that are copies of one with many binds: `ready` once all are there, until the input ends.
pub(crate) fn copies(root: &Path, points: &Path, prefix: &str, count: usize, binds: usize) -> Result<(), String> {
    enter_private_namespace()?;
    for index in 0..binds {
        bind(&root.join(format!("{prefix}{index}")), &points.join(index.to_string()))?;
    }
    let program = own_program()?;
    let mut copies = Vec::new();
    for _ in 1..count {
        let mut command = Command::new(&program);
        let mut copy =
            command.arg("copy").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().or_say("start a copy")?;
        let mut line = [0; 6];
        copy.stdout.as_mut().ok_or("no output")?.read_exact(&mut line).or_say("wait for a copy")?;
        copies.push(copy);
    }
    println!("ready");
    io::stdin().read_to_end(&mut Vec::new()).or_say("wait for the end")?;
    for copy in &mut copies {
        drop(copy.stdin.take());
    }
    for mut copy in copies {
        copy.wait().or_say("wait for a copy")?;
    }
    Ok(())
}

/// One of them: it has every mount of whoever started it.
pub(crate) fn copy() -> Result<(), String> {
    enter_private_namespace()?;
    println!("ready");
    io::stdin().read_to_end(&mut Vec::new()).or_say("wait for the end")?;
    Ok(())
}

/// One sandbox of a crowd.
pub(crate) fn member(root: &Path, points: &Path, prefix: &str, index: usize, binds: usize) -> Result<(), String> {
    enter_private_namespace()?;
    for bind_index in 0..binds {
        let entry = root.join(format!("{prefix}{}", index * binds + bind_index));
        bind(&entry, &points.join(bind_index.to_string()))?;
    }
    println!("ready {index} {}", std::process::id());
    io::stdin().read_to_end(&mut Vec::new()).or_say("wait for the end")?;
    Ok(())
}
