//! Attaching the BPF programs, and saying what is and what is not listened to.
//!
//! Rungs are asked of the kernel by trying, for each system call by itself. What sees a call enter and what sees it leave
//! are on the same rung, and nothing else listens to it. Dropping [`Probes`] detaches everything; nothing is pinned.

mod attach;
mod error;
pub mod hooks;
mod known_answer;
pub(super) mod privileges;
mod rung;
pub(super) mod tracefs;
mod wrappers;

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aya::Ebpf;
use aya::maps::{HashMap, Map, RingBuf};
use aya::programs::ProgramFd;
use reclaim_ebpf::abi::{
    COUNTER_SLOTS, COUNTERS_MAP, EVENTS_BYTES, EVENTS_MAP, IN_FLIGHT_MAP, IN_FLIGHT_SLOTS, LAYOUT_GLOBAL,
    SYSCALL_BITS_GLOBAL, SYSCALLS_GLOBAL,
};

pub use error::ProbeError;
pub use hooks::{HookState, HookStatus};
pub use rung::{Passed, Rung, Rungs, Why};

use attach::{Kernel, Outcome};
use hooks::{CALLS, SYSCALLS};
use rung::Ladder;

use super::clock::{Clock, FromBefore};
use super::object::{self, Given};
use super::returns::Misses;
use super::ring::{Drained, Ring};
use super::stragglers::Stragglers;
use crate::model::event::Event;
use crate::sys::memory_map::CounterMemory;

/// How long attaching waits for calls that entered the kernel before it. Those still inside afterwards are waited for
/// by the clock.
const SETTLING: Duration = Duration::from_millis(100);

/// How the probes are to listen.
#[derive(Clone, Debug, Default)]
pub struct ProbeOptions {
    /// The rungs for system calls: the first that works is used, for each call by itself.
    pub rungs: Rungs,
    /// Bytes of the event ring, a power of two and at least a page; none takes the size that the programs state.
    pub ring_bytes: Option<u32>,
    /// Calls that the mount clock can follow at one time; none takes the number that the programs state.
    pub in_flight_slots: Option<u32>,
}

/// The attached programs, and what comes from them.
#[derive(Debug)]
pub struct Probes {
    /// Holds the links: the programs are detached when it goes.
    programs: Ebpf,
    hooks: Vec<HookStatus>,
    attached_at: Instant,
    ring: Ring,
    clock: Clock,
}

impl Probes {
    /// Loads and attaches the programs, tries them on calls whose outcome is known, and waits a little for calls that
    /// were inside the kernel before.
    ///
    /// # Errors
    /// The programs cannot be loaded, or none of the rungs can be attached to a call and then reports it. The message
    /// says what stands in the way.
    pub fn attach(options: ProbeOptions) -> Result<Self, ProbeError> {
        let kernel = Kernel::look().map_err(ProbeError::Layout)?;
        let mut ladder = Ladder::new(&options.rungs);
        // Each time around some call has left a rung for good, or it ends.
        loop {
            let Some((programs, hooks)) = attach_all(&kernel, &mut ladder, &options)? else { continue };
            let mut probes = Self::with(programs, hooks)?;
            let untrue = probes.try_out(&ladder, &options.rungs)?;
            if untrue.is_empty() {
                probes.clock.wait_for_stragglers(probes.attached_at + SETTLING);
                return Ok(probes);
            }
            for (call, rung, why) in untrue {
                ladder.pass(call, rung, Why::Untrue(why));
            }
        }
    }

    fn with(mut programs: Ebpf, hooks: Vec<HookStatus>) -> Result<Self, ProbeError> {
        let attached_at = Instant::now();
        let stragglers = Stragglers::look();
        let misses = Misses::new(descriptors(&programs)?);
        let counters = take_map(&mut programs, COUNTERS_MAP)?;
        let counters = match &counters {
            Map::Array(map) => CounterMemory::map(map.fd(), COUNTER_SLOTS as usize),
            _ => Err(io::ErrorKind::InvalidData.into()),
        };
        let counters = Arc::new(counters.map_err(|source| ProbeError::Counters { name: COUNTERS_MAP, source })?);
        let unusable = |name| move |source| ProbeError::Map { name, source: Box::new(source) };
        let events = RingBuf::try_from(take_map(&mut programs, EVENTS_MAP)?).map_err(unusable(EVENTS_MAP))?;
        let in_flight = HashMap::try_from(take_map(&mut programs, IN_FLIGHT_MAP)?).map_err(unusable(IN_FLIGHT_MAP))?;
        let ring = Ring::new(events, Arc::clone(&counters));
        let by_function = |hook: &HookStatus| matches!(hook.rung, Rung::Fentry | Rung::Kprobe);
        let from_before = if hooks.iter().any(by_function) { FromBefore::AreLost } else { FromBefore::AreSent };
        let clock = Clock::new(counters, in_flight, stragglers, misses, from_before);
        Ok(Self { programs, hooks, attached_at, ring, clock })
    }

    /// Makes calls whose outcome is known, and returns those that were not reported, with why.
    fn try_out(&mut self, ladder: &Ladder, rungs: &Rungs) -> Result<Vec<(usize, Rung, String)>, ProbeError> {
        let listens = |call: &usize| self.hooks[*call].state == HookState::Attached;
        let calls: Vec<usize> = (0..CALLS).filter(listens).collect();
        let mut untrue = known_answer::check(&mut self.ring, &self.clock, &calls)?;
        for call in calls {
            if ladder.rung(call).is_some_and(|rung| rungs.distrusts(rung)) {
                untrue.insert(call, "RECLAIM_TEST_DISABLE says so".to_owned());
            }
        }
        Ok(untrue.into_iter().filter_map(|(call, why)| Some((call, ladder.rung(call)?, why))).collect())
    }

    /// Every hook and its state. All are attached or absent: else there are no probes.
    #[must_use]
    pub fn hooks(&self) -> &[HookStatus] {
        &self.hooks
    }

    /// The kernel's numbers of the programs in use, as bpftool shows them.
    #[must_use]
    pub fn programs(&self) -> Vec<u32> {
        let loaded = self.programs.programs().filter_map(|(_, program)| program.info().ok());
        loaded.map(|program| program.id()).collect()
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
        self.clock.note_missed();
        self.ring.drain(out)
    }

    /// Becomes readable when there is something to drain.
    #[must_use]
    pub fn poll_fd(&self) -> BorrowedFd<'_> {
        self.ring.poll_fd()
    }
}

/// Loads an object of its own and attaches everything, each call by its rung. None when a call has come down to a rung
/// that this object was not made for.
fn attach_all(
    kernel: &Kernel,
    ladder: &mut Ladder,
    options: &ProbeOptions,
) -> Result<Option<(Ebpf, Vec<HookStatus>)>, ProbeError> {
    let by_number = ladder.calls_on(Rung::EverySyscall);
    let mut programs = load(kernel, options, |call| by_number.contains(&call))?;
    let mut scheduler = Vec::new();
    for (hook, program, tracepoint) in hooks::SCHEDULER {
        let state = match attach::attach_raw(&mut programs, program, tracepoint)? {
            Ok(()) => HookState::Attached,
            Err(error) => HookState::Refused { why: error::explain(&error) },
        };
        scheduler.push(HookStatus::new(hook, Rung::SchedulerTracepoint, state, Vec::new()));
    }
    let mut states: [Option<HookState>; CALLS] = Default::default();
    for rung in ladder.order() {
        let calls = ladder.calls_on(rung);
        if rung == Rung::EverySyscall && calls != by_number {
            return Ok(None);
        }
        if calls.is_empty() {
            continue;
        }
        for (call, outcome) in attach::attach(&mut programs, kernel, rung, &calls)? {
            match outcome {
                Outcome::Attached => states[call] = Some(HookState::Attached),
                Outcome::NoSuchCall(why) => states[call] = Some(HookState::Absent { why }),
                Outcome::Not(why) => ladder.pass(call, rung, why),
            }
        }
    }
    let mut statuses = Vec::new();
    for (call, state) in states.into_iter().enumerate() {
        let passed = ladder.passed(call);
        let last = || passed.last().map_or_else(String::new, |passed| passed.why.to_string());
        let state = state.unwrap_or_else(|| HookState::Refused { why: last() });
        let rung = ladder.rung(call).or_else(|| passed.last().map(|passed| passed.rung));
        statuses.push(HookStatus::new(SYSCALLS[call].name, rung.unwrap_or(Rung::EverySyscall), state, passed));
    }
    statuses.extend(scheduler);
    if statuses.iter().any(|status| matches!(status.state, HookState::Refused { .. })) {
        return Err(ProbeError::Refused { hooks: statuses, why: privileges::cause() });
    }
    Ok(Some((programs, statuses)))
}

fn load(kernel: &Kernel, options: &ProbeOptions, by_number: impl Fn(usize) -> bool) -> Result<Ebpf, ProbeError> {
    let numbers = hooks::numbers(by_number);
    let bits = hooks::bits(&numbers).map(u64::to_ne_bytes);
    let numbers = numbers.map(i32::to_ne_bytes);
    let given = Given {
        globals: &[
            (LAYOUT_GLOBAL, &kernel.layout),
            (SYSCALLS_GLOBAL, numbers.as_flattened()),
            (SYSCALL_BITS_GLOBAL, bits.as_flattened()),
        ],
        sizes: &[
            (EVENTS_MAP, options.ring_bytes.unwrap_or(EVENTS_BYTES)),
            (IN_FLIGHT_MAP, options.in_flight_slots.unwrap_or(IN_FLIGHT_SLOTS)),
        ],
    };
    object::load(&given).map_err(ProbeError::load)
}

/// Descriptors of the programs that are loaded, by which the kernel tells of runs that it left out.
fn descriptors(programs: &Ebpf) -> Result<Vec<ProgramFd>, ProbeError> {
    let loaded = programs.programs().filter_map(|(_, program)| program.fd().ok());
    let copies = loaded.map(|descriptor| descriptor.try_clone());
    copies.collect::<Result<_, _>>().map_err(|source| ProbeError::Descriptor { source })
}

fn take_map(programs: &mut Ebpf, name: &'static str) -> Result<Map, ProbeError> {
    programs.take_map(name).ok_or_else(|| ProbeError::Object { kind: "map", name: name.to_owned() })
}
