//! Helper processes that do one thing over and over until their pipe ends.

use crate::background::LoopCounts;
use crate::serve::{OrSay as _, bind, enter_private_namespace, own_program};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, RenameFlags, open, renameat2};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::Mode;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

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

/// Makes an entry, binds it a moment later, and sees whether it is alive, as a launcher does.
pub(crate) fn launcher_loop(root: &Path, target: &Path, prefix: &str) -> Result<(), String> {
    enter_private_namespace()?;
    let stop = Stop::watch();
    ready();
    let mut counts = LoopCounts::default();
    while !stop.asked() {
        let entry = root.join(format!("{prefix}{}", counts.rounds + counts.refused + counts.failures));
        if let Err(error) = fs::create_dir(&entry) {
            counts.round(Err(format!("mkdir: {error}")));
            continue;
        }
        match mount(Some(&entry), target, None::<&str>, MsFlags::MS_BIND, None::<&str>) {
            Ok(()) => {}
            // The sweep was quicker: a clean refusal, after which a launcher begins again.
            Err(Errno::ENOENT) => {
                counts.refused += 1;
                continue;
            }
            Err(error) => {
                counts.round(Err(format!("bind: {error}")));
                continue;
            }
        }
        let alive = still_alive(target);
        umount2(target, MntFlags::empty()).or_say("umount")?;
        counts.round(alive);
    }
    tell(&counts)
}

/// Makes an entry, opens it with `O_PATH`, binds by that descriptor a moment later, closes it, and sees whether the
/// entry is alive. Its name may be gone for a while when it binds; it itself may not be.
pub(crate) fn descriptor_loop(root: &Path, target: &Path, prefix: &str) -> Result<(), String> {
    enter_private_namespace()?;
    let stop = Stop::watch();
    ready();
    let mut counts = LoopCounts::default();
    while !stop.asked() {
        let number = counts.rounds + counts.refused + counts.failures;
        let entry = root.join(format!("{prefix}{number}"));
        if let Err(error) = fs::create_dir(&entry) {
            counts.round(Err(format!("mkdir: {error}")));
            continue;
        }
        let opened = match open(&entry, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty()) {
            Ok(opened) => opened,
            // The sweep was quicker: a clean refusal, after which a launcher begins again.
            Err(Errno::ENOENT) => {
                counts.refused += 1;
                continue;
            }
            Err(error) => {
                counts.round(Err(format!("open: {error}")));
                continue;
            }
        };
        // Long enough for a sweep to condemn it and to look whether it may go; now and then for one that has to wait
        // for a fixed time, too.
        thread::sleep(Duration::from_millis(if number % 32 == 31 { 1_500 } else { number % 7 * 3 }));
        let source = format!("/proc/self/fd/{}", opened.as_raw_fd());
        let bound = mount(Some(&*source), target, None::<&str>, MsFlags::MS_BIND, None::<&str>);
        drop(opened);
        let alive = match bound {
            Ok(()) => {
                let alive = still_alive(target);
                umount2(target, MntFlags::empty()).or_say("umount")?;
                alive
            }
            Err(error) => Err(format!("an open entry was deleted: bind: {error}")),
        };
        counts.round(alive);
    }
    tell(&counts)
}

/// Makes a file twice with a pause, so that the sweep has time to come to a wrong decision.
fn still_alive(target: &Path) -> Result<(), String> {
    let file = target.join("alive");
    for pause in [0, 2] {
        thread::sleep(Duration::from_millis(pause));
        File::create(&file).or_say("a live source was deleted: create")?;
        fs::remove_file(&file).or_say("remove a file")?;
    }
    Ok(())
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
