//! Loading programs and attaching them, one rung at a time.

use std::cell::OnceCell;
use std::io;
use std::path::Path;

use aya::programs::trace_point::TracePointError;
use aya::programs::{FEntry, FExit, KProbe, ProgramError, RawTracePoint, TracePoint};
use aya::{Btf, Ebpf, Endianness};

use super::hooks::{CALLS, SYSCALLS};
use super::rung::{Rung, Why};
use super::wrappers::{Target, Targets, Wrappers};
use super::{ProbeError, error, tracefs};
use crate::evidence::btf::{self, LayoutError};
use crate::sys::bpf;
use crate::sys::kernel_types::KernelTypes;

/// Where the kernel tells perf about its kprobes.
const KPROBES: &str = "/sys/bus/event_source/devices/kprobe";

/// What the running kernel says of itself, asked once however often programs are attached.
pub(super) struct Kernel {
    /// Its type information: several megabytes, which only the rungs on functions look into.
    bytes: OnceCell<Result<KernelTypes, Why>>,
    pub(super) layout: Vec<u8>,
    wrappers: OnceCell<Result<Wrappers, Why>>,
    /// The kernel's types for aya, where it permits fentry. Reading them takes a tenth of a second.
    types: OnceCell<Result<Btf, Why>>,
}

/// How attaching a call's programs went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// All are attached.
    Attached,
    /// There is nothing to listen to.
    NoSuchCall(String),
    /// None is attached.
    Not(Why),
}

/// What aya says of one program; the outer error is an object without it.
type Attaching = Result<Result<(), ProgramError>, ProbeError>;

impl Kernel {
    /// # Errors
    /// The kernel's structures are not known.
    pub(super) fn look() -> Result<Self, LayoutError> {
        let layout = btf::running_kernel()?.to_bytes().to_vec();
        Ok(Self { bytes: OnceCell::new(), layout, wrappers: OnceCell::new(), types: OnceCell::new() })
    }

    fn bytes(&self) -> Result<&[u8], Why> {
        let read = || btf::vmlinux().map_err(|error| Why::Refused(error.to_string()));
        self.bytes.get_or_init(read).as_deref().map_err(Clone::clone)
    }

    fn wrappers(&self) -> Result<&Wrappers, Why> {
        let look = || Wrappers::look(self.bytes()?).map_err(|error| Why::Refused(error.to_string()));
        self.wrappers.get_or_init(look).as_ref().map_err(Clone::clone)
    }

    fn types(&self) -> Result<&Btf, Why> {
        let read = || {
            let any = self.wrappers()?.any();
            let any = any.ok_or_else(|| Why::Absent("the kernel has none of the functions".to_owned()))?;
            bpf::try_fentry(any).map_err(|error| match error.raw_os_error() {
                Some(libc::EINVAL) => Why::Absent(format!("the kernel does not know such programs: {error}")),
                _ => Why::Refused(format!("bpf(BPF_PROG_LOAD): {error}")),
            })?;
            Btf::parse(self.bytes()?, Endianness::default()).map_err(|error| Why::Refused(error.to_string()))
        };
        self.types.get_or_init(read).as_ref().map_err(Clone::clone)
    }
}

/// Attaches the programs of some calls on a rung. A call's programs are all attached, or none of them is.
///
/// # Errors
/// The object lacks a program.
pub(super) fn attach(
    object: &mut Ebpf,
    kernel: &Kernel,
    rung: Rung,
    calls: &[usize],
) -> Result<Vec<(usize, Outcome)>, ProbeError> {
    let all = |why: Why| calls.iter().map(|&call| (call, Outcome::Not(why.clone()))).collect();
    match rung {
        Rung::Fentry => match kernel.types() {
            Err(why) => Ok(all(why)),
            Ok(types) => on_functions(object, kernel, calls, |object, program, function| match program {
                End::Enter(name) => attach_fentry(object, &format!("fentry_{name}"), function, types),
                End::Leave(name) => attach_fexit(object, &format!("fexit_{name}"), function, types),
            }),
        },
        Rung::Kprobe => {
            if !Path::new(KPROBES).exists() {
                return Ok(all(Why::Absent(format!("the kernel has no {KPROBES}"))));
            }
            on_functions(object, kernel, calls, |object, program, function| match program {
                End::Enter(name) => attach_kprobe(object, &format!("kprobe_{name}"), function),
                // It needs no argument, so that one program serves all callers.
                End::Leave(name) => {
                    let name = name.trim_start_matches("32_").trim_start_matches("old");
                    attach_kprobe(object, &format!("kretprobe_{name}"), function)
                }
            })
        }
        Rung::SyscallTracepoint => {
            let each = |&call: &usize| Ok((call, on_tracepoints(object, call)?));
            match tracefs::with_tracefs(|| calls.iter().map(each).collect()) {
                Ok(outcomes) => outcomes,
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {
                    Ok(all(Why::Absent("the kernel has no tracefs".to_owned())))
                }
                Err(error) => Ok(all(Why::Refused(format!("tracefs is not mounted and cannot be: {error}")))),
            }
        }
        Rung::EverySyscall => {
            let result = match attach_raw(object, "leave_any", "sys_exit")? {
                Ok(()) => attach_raw(object, "enter_any", "sys_enter")?,
                refused => refused,
            };
            match result {
                Ok(()) => Ok(calls.iter().map(|&call| (call, Outcome::Attached)).collect()),
                Err(error) => {
                    unload(object, ["leave_any".to_owned(), "enter_any".to_owned()]);
                    Ok(all(refused(&error)))
                }
            }
        }
        Rung::SchedulerTracepoint => Ok(all(Why::Absent("no system call is an event of the scheduler".to_owned()))),
    }
}

/// The end of a program's name, and which end of a call it is for.
#[derive(Clone, Copy)]
enum End<'a> {
    Enter(&'a str),
    Leave(&'a str),
}

/// Puts programs on the functions of each call, those that end calls first: a call seen to enter is then seen to leave.
fn on_functions(
    object: &mut Ebpf,
    kernel: &Kernel,
    calls: &[usize],
    attach: impl Fn(&mut Ebpf, End<'_>, &str) -> Attaching,
) -> Result<Vec<(usize, Outcome)>, ProbeError> {
    let mut outcomes = Vec::new();
    for &call in calls {
        let targets = kernel.wrappers().and_then(|wrappers| wrappers.of(&SYSCALLS[call]));
        let outcome = match targets {
            Err(why) => Outcome::Not(why),
            Ok(Targets::NoSuchCall(why)) => Outcome::NoSuchCall(why),
            Ok(Targets::Functions(targets)) => {
                let leave = targets.iter().map(|target| (target, End::Leave(target.program.as_str())));
                let enter = targets.iter().map(|target| (target, End::Enter(target.program.as_str())));
                let mut outcome = Outcome::Attached;
                for (Target { function, .. }, program) in leave.chain(enter) {
                    if let Err(error) = attach(object, program, function)? {
                        let why = error::explain(&error);
                        outcome = Outcome::Not(Why::Refused(format!("{function}: {why}")));
                        break;
                    }
                }
                if outcome != Outcome::Attached {
                    let names = |Target { program, .. }: &Target| {
                        ["fentry_", "fexit_", "kprobe_", "kretprobe_"].map(|kind| format!("{kind}{program}"))
                    };
                    unload(object, targets.iter().flat_map(names));
                }
                outcome
            }
        };
        outcomes.push((call, outcome));
    }
    Ok(outcomes)
}

fn on_tracepoints(object: &mut Ebpf, call: usize) -> Result<Outcome, ProbeError> {
    debug_assert!(call < CALLS, "an index into the calls");
    let call = &SYSCALLS[call];
    let ends = [("leave_", "sys_exit_"), ("enter_", "sys_enter_")];
    for (program, tracepoint) in ends {
        let (program, tracepoint) = (format!("{program}{}", call.name), format!("{tracepoint}{}", call.name));
        match attach_tracepoint(object, &program, &tracepoint)? {
            Ok(()) => {}
            Err(error) if call.may_be_absent && is_absent(&error) => {
                return Ok(Outcome::NoSuchCall("this kernel has no such system call".to_owned()));
            }
            Err(error) => {
                unload(object, ends.map(|(program, _)| format!("{program}{}", call.name)));
                return Ok(Outcome::Not(refused(&error)));
            }
        }
    }
    Ok(Outcome::Attached)
}

fn refused(error: &ProgramError) -> Why {
    Why::Refused(error::explain(error))
}

/// Takes programs off all that they were put on.
fn unload(object: &mut Ebpf, names: impl IntoIterator<Item = String>) {
    for name in names {
        use aya::programs::Program;
        // Fails for one that was never loaded.
        let _ = match object.program_mut(&name) {
            Some(Program::FEntry(program)) => program.unload(),
            Some(Program::FExit(program)) => program.unload(),
            Some(Program::KProbe(program)) => program.unload(),
            Some(Program::TracePoint(program)) => program.unload(),
            Some(Program::RawTracePoint(program)) => program.unload(),
            _ => Ok(()),
        };
    }
}

/// A program of the object, as its kind.
fn program<'o, P>(object: &'o mut Ebpf, name: &str) -> Result<Result<P, ProgramError>, ProbeError>
where
    P: TryFrom<&'o mut aya::programs::Program, Error = ProgramError>,
{
    let program = object.program_mut(name);
    Ok(program.ok_or_else(|| ProbeError::Object { kind: "program", name: name.to_owned() })?.try_into())
}

fn attach_fentry(object: &mut Ebpf, name: &str, function: &str, types: &Btf) -> Attaching {
    Ok(program::<&mut FEntry>(object, name)?.and_then(|program| {
        program.load(function, types)?;
        program.attach().map(drop)
    }))
}

fn attach_fexit(object: &mut Ebpf, name: &str, function: &str, types: &Btf) -> Attaching {
    Ok(program::<&mut FExit>(object, name)?.and_then(|program| {
        program.load(function, types)?;
        program.attach().map(drop)
    }))
}

fn attach_kprobe(object: &mut Ebpf, name: &str, function: &str) -> Attaching {
    Ok(program::<&mut KProbe>(object, name)?.and_then(|program| {
        if program.fd().is_err() {
            program.load()?;
        }
        program.attach(function, 0).map(drop)
    }))
}

fn attach_tracepoint(object: &mut Ebpf, name: &str, tracepoint: &str) -> Attaching {
    Ok(program::<&mut TracePoint>(object, name)?.and_then(|program| {
        program.load()?;
        program.attach("syscalls", tracepoint).map(drop)
    }))
}

pub(super) fn attach_raw(object: &mut Ebpf, name: &str, tracepoint: &str) -> Attaching {
    Ok(program::<&mut RawTracePoint>(object, name)?.and_then(|program| {
        program.load()?;
        program.attach(tracepoint).map(drop)
    }))
}

/// Whether tracefs lists no such tracepoint.
fn is_absent(error: &ProgramError) -> bool {
    matches!(error, ProgramError::TracePointError(TracePointError::FileError { io_error, .. })
        if io_error.kind() == io::ErrorKind::NotFound)
}
