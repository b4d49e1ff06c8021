//! The helper program: what it was called for decides what it does.

use crate::launcher;
use crate::loops;
use crate::serve::{self, OrSay as _};
use nix::mount::{MsFlags, mount};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};
use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};

/// The whole of the helper program.
#[must_use]
pub fn helper_main() -> ExitCode {
    let arguments: Vec<OsString> = env::args_os().skip(1).collect();
    match dispatch(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("reclaim-test-helper: {error}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(arguments: &[OsString]) -> Result<(), String> {
    let (role, rest) = arguments.split_first().ok_or("no role was given")?;
    let text = |index: usize| rest.get(index).and_then(|argument| argument.to_str()).ok_or(too_few(role));
    let path = |index: usize| rest.get(index).map(Path::new).ok_or(too_few(role));
    let number = |index: usize| text(index)?.parse::<usize>().or_say("read a number");
    match role.to_str() {
        Some("serve") => serve::serve(),
        Some("bind-loop") => {
            let limit = rest.get(2).map(|_| number(2)).transpose()?;
            loops::bind_loop(path(0)?, path(1)?, limit.map(|limit| limit as u64))
        }
        Some("swap-loop") => loops::swap_loop(path(0)?),
        Some("launcher") => launcher::launch(path(0)?, path(1)?, text(2)?, text(3)?.parse().or_say("read a seed")?),
        Some("process-storm") => loops::process_storm(),
        Some("sandbox-storm") => loops::sandbox_storm(path(0)?, path(1)?, text(2)?, number(3)? as u64),
        Some("short-life") => loops::short_life(path(0)?, path(1)?),
        Some("crowd") => loops::crowd(path(0)?, path(1)?, text(2)?, number(3)?, number(4)?),
        Some("member") => loops::member(path(0)?, path(1)?, text(2)?, number(3)?, number(4)?),
        Some("copies") => loops::copies(path(0)?, path(1)?, text(2)?, number(3)?, number(4)?),
        Some("copy") => loops::copy(),
        Some("exec") => execute(rest),
        _ => Err(format!("no such role: {}", role.display())),
    }
}

fn too_few(role: &OsStr) -> String {
    format!("{}: too few arguments", role.display())
}

/// `exec [--hidepid] [--no-ptrace] [--uid N] -- PROGRAM ARGUMENT...`: becomes a program that dies with whoever started this.
fn execute(arguments: &[OsString]) -> Result<(), String> {
    let mut user = None;
    let mut rest = arguments.iter();
    let program = loop {
        let word = rest.next().ok_or("exec: no program was given")?;
        match word.to_str() {
            Some("--hidepid") => {
                serve::enter_private_namespace()?;
                // Some other group than that of root, which sees all tasks otherwise.
                mount(Some("proc"), "/proc", Some("proc"), MsFlags::empty(), Some("hidepid=2,gid=4242"))
                    .or_say("mount a filtered procfs")?;
            }
            // Whoever has this right is one whom it has no rights over from then on.
            Some("--no-ptrace") => remove_capability_from_bounding_set(CapabilitySet::SYS_PTRACE)
                .or_say("give up the right to look at others")?,
            Some("--uid") => {
                let id = rest.next().and_then(|id| id.to_str()).ok_or("exec: --uid needs a number")?;
                user = Some(id.parse().or_say("read a user id")?);
            }
            Some("--") => break rest.next().ok_or("exec: no program was given")?,
            _ => return Err(format!("exec: what is {}", word.display())),
        }
    };
    if let Some(user) = user {
        serve::become_user(user)?;
    }
    // After the change of user, which clears it.
    set_pdeathsig(Signal::SIGKILL).or_say("set the signal for the death of the parent")?;
    Err(format!("exec {}: {}", program.display(), Command::new(program).args(rest).exec()))
}
