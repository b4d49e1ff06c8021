//! Attaching the BPF programs, and saying what is and what is not listened to.
//!
//! Rungs are asked of the kernel by trying. What listens to a system call listens on the same rung for all of them.
//! Dropping [`Probes`] detaches everything; nothing is pinned.

mod error;
pub mod hooks;
mod known_answer;
pub(super) mod privileges;
pub(super) mod tracefs;

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aya::maps::{HashMap, Map, RingBuf};
use aya::programs::trace_point::TracePointError;
use aya::programs::{ProgramError, RawTracePoint, TracePoint};
use aya::{Ebpf, EbpfLoader};
use reclaim_ebpf::abi::{
    COUNTER_SLOTS, COUNTERS_MAP, EVENTS_BYTES, EVENTS_MAP, IN_FLIGHT_MAP, IN_FLIGHT_SLOTS, LAYOUT_GLOBAL,
    SYSCALLS_GLOBAL,
};

pub use error::ProbeError;
pub use hooks::{HookState, HookStatus, Rung};

use super::btf;
use super::clock::Clock;
use super::object::OBJECT;
use super::ring::{Drained, Ring};
use super::stragglers::Stragglers;
use crate::model::event::Event;
use crate::sys::memory_map::CounterMemory;

/// How long attaching waits for calls that entered the kernel before it. Those still inside afterwards are waited for
/// by the clock.
const SETTLING: Duration = Duration::from_millis(100);

/// How the probes are to listen.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProbeOptions {
    /// The rung for system calls; none takes the cheapest that works.
    pub rung: Option<Rung>,
    /// Bytes of the event ring, a power of two and at least a page; none takes the size that the programs state.
    pub ring_bytes: Option<u32>,
    /// Calls that the mount clock can follow at one time; none takes the number that the programs state.
    pub in_flight_slots: Option<u32>,
}

/// The attached programs, and what comes from them.
#[derive(Debug)]
pub struct Probes {
    // Holds the links: the programs are detached when it goes.
    _programs: Ebpf,
    hooks: Vec<HookStatus>,
    rung: Rung,
    attached_at: Instant,
    ring: Ring,
    clock: Clock,
}

impl Probes {
    /// Loads and attaches the programs, tries them on a call whose outcome is known, and waits a little for calls that
    /// were inside the kernel before.
    ///
    /// # Errors
    /// A program cannot be loaded or attached, or does not report the call. The message says what stands in the way.
    pub fn attach(options: ProbeOptions) -> Result<Self, ProbeError> {
        let layout = btf::running_kernel().map_err(ProbeError::Layout)?.to_bytes();
        let mut ladder = match options.rung {
            Some(rung) => vec![rung],
            None => vec![Rung::SyscallTracepoint, Rung::EverySyscall],
        }
        .into_iter();
        loop {
            // Each rung on an object of its own, so that a rung that half works leaves nothing attached.
            let mut programs = load(&layout, options)?;
            let Some(rung) = ladder.next() else {
                return Err(ProbeError::Refused { hooks: Vec::new(), why: None });
            };
            let hooks = attach_all(&mut programs, rung)?;
            let refused = |hook: &HookStatus| matches!(hook.state, HookState::Refused { .. });
            if !hooks.iter().any(refused) {
                return Self::with(programs, hooks, rung);
            }
            if ladder.len() == 0 {
                return Err(ProbeError::Refused { hooks, why: privileges::cause() });
            }
            for hook in hooks.iter().filter(|hook| refused(hook)) {
                tracing::debug!(hook = hook.hook, %rung, state = %hook.state, "trying the next rung");
            }
        }
    }

    fn with(mut programs: Ebpf, hooks: Vec<HookStatus>, rung: Rung) -> Result<Self, ProbeError> {
        let attached_at = Instant::now();
        let stragglers = Stragglers::look();
        let counters = take_map(&mut programs, COUNTERS_MAP)?;
        let counters = match &counters {
            Map::Array(map) => CounterMemory::map(map.fd(), COUNTER_SLOTS as usize),
            _ => Err(io::ErrorKind::InvalidData.into()),
        };
        let counters = Arc::new(counters.map_err(|source| ProbeError::Counters { name: COUNTERS_MAP, source })?);
        let unusable = |name| move |source| ProbeError::Map { name, source: Box::new(source) };
        let events = RingBuf::try_from(take_map(&mut programs, EVENTS_MAP)?).map_err(unusable(EVENTS_MAP))?;
        let in_flight = HashMap::try_from(take_map(&mut programs, IN_FLIGHT_MAP)?).map_err(unusable(IN_FLIGHT_MAP))?;
        let mut ring = Ring::new(events, Arc::clone(&counters));
        let clock = Clock::new(counters, in_flight, stragglers);
        known_answer::check(&mut ring, &clock)?;
        clock.wait_for_stragglers(attached_at + SETTLING);
        Ok(Self { _programs: programs, hooks, rung, attached_at, ring, clock })
    }

    /// Every hook and its state. All are attached or absent: else there are no probes.
    #[must_use]
    pub fn hooks(&self) -> &[HookStatus] {
        &self.hooks
    }

    /// The rung that listens to system calls.
    #[must_use]
    pub fn rung(&self) -> Rung {
        self.rung
    }

    /// When the last program was attached. What happened before is not among the events.
    #[must_use]
    pub fn attached_at(&self) -> Instant {
        self.attached_at
    }

    /// The mount clock.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Hands out every event that the kernel had numbered by the time of the call. See [`Ring::drain`].
    pub fn drain(&mut self, out: &mut Vec<Event>) -> Drained {
        self.ring.drain(out)
    }

    /// Becomes readable when there is something to drain.
    #[must_use]
    pub fn poll_fd(&self) -> BorrowedFd<'_> {
        self.ring.poll_fd()
    }
}

fn load(layout: &[u8], options: ProbeOptions) -> Result<Ebpf, ProbeError> {
    let numbers = hooks::numbers();
    let mut loader = EbpfLoader::new();
    loader
        // The programs have no relocations against the kernel's types, and reading all of them takes a while.
        .btf(None)
        .map_max_entries(EVENTS_MAP, options.ring_bytes.unwrap_or(EVENTS_BYTES))
        .map_max_entries(IN_FLIGHT_MAP, options.in_flight_slots.unwrap_or(IN_FLIGHT_SLOTS))
        .override_global(LAYOUT_GLOBAL, layout, true)
        .override_global(SYSCALLS_GLOBAL, &numbers[..], true);
    loader.load(OBJECT).map_err(ProbeError::load)
}

fn take_map(programs: &mut Ebpf, name: &'static str) -> Result<Map, ProbeError> {
    programs.take_map(name).ok_or(ProbeError::Object { kind: "map", name })
}

/// Attaches every hook, those that end calls first: a call seen to enter is then seen to leave.
fn attach_all(programs: &mut Ebpf, rung: Rung) -> Result<Vec<HookStatus>, ProbeError> {
    let mut statuses = Vec::new();
    for (hook, program, tracepoint) in hooks::SCHEDULER {
        let state = state_of(attach_raw(programs, program, tracepoint)?);
        statuses.push(HookStatus::new(hook, Rung::SchedulerTracepoint, state));
    }
    let calls = match rung {
        Rung::EverySyscall => {
            let result = match attach_raw(programs, "leave_any", "sys_exit")? {
                Ok(()) => attach_raw(programs, "enter_any", "sys_enter")?,
                refused => refused,
            };
            let state = state_of(result);
            hooks::SYSCALLS.map(|call| HookStatus::new(call.name, rung, state.clone())).to_vec()
        }
        Rung::SyscallTracepoint | Rung::SchedulerTracepoint => {
            match tracefs::with_tracefs(|| attach_each(programs, Rung::SyscallTracepoint)) {
                Ok(statuses) => statuses?,
                Err(error) => {
                    let state = HookState::Refused { why: format!("tracefs is not mounted and cannot be: {error}") };
                    hooks::SYSCALLS.map(|call| HookStatus::new(call.name, rung, state.clone())).to_vec()
                }
            }
        }
    };
    statuses.splice(0..0, calls);
    Ok(statuses)
}

fn attach_each(programs: &mut Ebpf, rung: Rung) -> Result<Vec<HookStatus>, ProbeError> {
    let mut statuses = Vec::new();
    for call in hooks::SYSCALLS {
        let result = attach_tracepoint(programs, format!("leave_{}", call.name), format!("sys_exit_{}", call.name))?;
        let state = match result {
            Err(error) if call.may_be_absent && is_absent(&error) => {
                HookState::Absent { why: "this kernel has no such system call".to_owned() }
            }
            result => state_of(result),
        };
        statuses.push(HookStatus::new(call.name, rung, state));
    }
    for status in statuses.iter_mut().filter(|status| status.state == HookState::Attached) {
        let result =
            attach_tracepoint(programs, format!("enter_{}", status.hook), format!("sys_enter_{}", status.hook))?;
        status.state = state_of(result);
    }
    Ok(statuses)
}

/// What aya says of one program; the outer error is an object without it.
type Attaching = Result<Result<(), ProgramError>, ProbeError>;

fn attach_tracepoint(programs: &mut Ebpf, program: String, tracepoint: String) -> Attaching {
    let absent = ProbeError::Object { kind: "program", name: "for a system call" };
    let program: Result<&mut TracePoint, _> = programs.program_mut(&program).ok_or(absent)?.try_into();
    Ok(program.and_then(|program| {
        program.load()?;
        program.attach("syscalls", &tracepoint).map(drop)
    }))
}

fn attach_raw(programs: &mut Ebpf, name: &'static str, tracepoint: &str) -> Attaching {
    let absent = ProbeError::Object { kind: "program", name };
    let program: Result<&mut RawTracePoint, _> = programs.program_mut(name).ok_or(absent)?.try_into();
    Ok(program.and_then(|program| {
        program.load()?;
        program.attach(tracepoint).map(drop)
    }))
}

fn state_of(result: Result<(), ProgramError>) -> HookState {
    match result {
        Ok(()) => HookState::Attached,
        Err(error) => HookState::Refused { why: error::explain(&error) },
    }
}

/// Whether tracefs lists no such tracepoint.
fn is_absent(error: &ProgramError) -> bool {
    matches!(error, ProgramError::TracePointError(TracePointError::FileError { io_error, .. })
        if io_error.kind() == io::ErrorKind::NotFound)
}
