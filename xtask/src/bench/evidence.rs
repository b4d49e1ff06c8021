//! Taking evidence of many mount namespaces: `reclaim scan` against reading mountinfo.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::measure::{Contender, compare, time};
use super::{Size, library, startup};
use crate::command::shown;
use crate::sandbox::{Kind, Sandbox};
use crate::stage::Stage;

/// Exit status of a scan that says that it could not see everything; it did its work all the same.
const TOO_WEAK: i32 = 4;

/// Measures and prints.
pub(super) fn run(binary: &Path, measure: &Path, size: &Size) -> Result<()> {
    // Each sandbox takes two pipes.
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).context("cannot read the limit of open files")?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).context("cannot raise the limit of open files")?;
    let stage = Stage::enter("mode=0755,nr_inodes=0")?;
    let sandboxes = sandboxes(&stage, size)?;
    let config = stage.file(
        "reclaim.toml",
        &format!(
            "[service]\nstate_dir = '{0}/state'\nsocket = '{0}/control.sock'\n\n\
             [[root]]\nname = \"bench\"\npath = '{0}/sources'\nowner = \"0\"\nmatch = '^acme_[0-9_]+$'\n",
            stage.path().display()
        ),
    )?;
    let scan = || {
        stage.go_on()?;
        let mut scan = Command::new(binary);
        scan.arg("scan").arg("--config").arg(&config).arg("--json").stdout(Stdio::null());
        time(|| {
            let status = scan.status().with_context(|| format!("cannot start {}", shown(&scan)))?;
            if !status.success() && status.code() != Some(TOO_WEAK) {
                bail!("{} failed ({status})", shown(&scan));
            }
            Ok(())
        })
    };
    let wanted = sandboxes.len() * size.binds as usize;
    let every = || time(|| enough(read_tables(false)?, wanted));
    let once = || time(|| enough(read_tables(true)?, wanted));
    compare(
        &format!(
            "Evidence of {} mount namespaces with {} processes and {} binds each",
            size.namespaces, size.tasks, size.binds
        ),
        size.rounds,
        u64::from(size.namespaces),
        vec![
            Contender { name: "reclaim scan (a whole process)", work: Box::new(scan) },
            Contender { name: "mountinfo of every process", work: Box::new(every) },
            Contender { name: "mountinfo of one process a namespace", work: Box::new(once) },
        ],
    )?;
    let process = sandboxes.first().context("no sandbox was made")?.pid();
    library::run(measure, &stage, process, size)?;
    let entry = sandboxes.first().and_then(|sandbox| sandbox.entries.first()).context("no sandbox was made")?.clone();
    startup::run(binary, &stage, &config, &entry, size, "with all of them")?;
    drop(sandboxes);
    startup::run(binary, &stage, &config, &entry, size, "without them")?;
    library::memory(measure, &stage)
}

/// Starts all of them at once, then waits for each.
fn sandboxes(stage: &Stage, size: &Size) -> Result<Vec<Sandbox>> {
    let root = stage.directory("sources")?;
    let work = stage.directory("work")?;
    for number in 0..size.binds {
        stage.directory(&format!("work/{number}"))?;
    }
    let mut sandboxes = Vec::new();
    for namespace in 0..size.namespaces {
        stage.go_on()?;
        let entries: Vec<PathBuf> = (0..size.binds).map(|bind| root.join(format!("acme_{namespace}_{bind}"))).collect();
        for entry in &entries {
            fs::create_dir(entry).with_context(|| format!("cannot create {}", entry.display()))?;
        }
        sandboxes.push(Sandbox::start_with_tasks(Kind::Source, entries, &work, size.tasks)?);
    }
    for sandbox in &mut sandboxes {
        stage.go_on()?;
        sandbox.wait_ready()?;
    }
    Ok(sandboxes)
}

/// Lines read from the processes' mount tables: of every process, or of one for each namespace.
fn read_tables(once: bool) -> Result<usize> {
    let mut seen = HashSet::new();
    let mut lines = 0;
    for entry in fs::read_dir("/proc").context("cannot list /proc")? {
        let path = entry.context("cannot list /proc")?.path();
        if !path.file_name().is_some_and(|name| name.as_encoded_bytes().iter().all(u8::is_ascii_digit)) {
            continue;
        }
        if once && fs::metadata(path.join("ns/mnt")).is_ok_and(|namespace| !seen.insert(namespace.ino())) {
            continue;
        }
        // A process that is gone by now, or may not be read, has no lines here.
        let table = fs::read(path.join("mountinfo")).unwrap_or_default();
        lines += table.iter().filter(|byte| **byte == b'\n').count();
    }
    Ok(lines)
}

fn enough(lines: usize, wanted: usize) -> Result<()> {
    if lines < wanted {
        bail!("only {lines} mounts were read, and {wanted} were made");
    }
    Ok(())
}
