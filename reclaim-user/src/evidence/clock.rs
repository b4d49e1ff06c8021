//! The mount clock: waiting until the calls that may have looked up an old path have left the kernel.
//!
//! The programs count each mount-class call in before it looks up any path and out once its record was sent, under
//! the generation of the moment. Who waits moves the generation on, so that later calls count elsewhere, and watches the
//! others until as many calls have left each as entered it: the way of the kernel's own SRCU. It settles however busy the host is.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use aya::maps::{HashMap, MapData};
use reclaim_ebpf::abi::{
    COUNTER_ENTERED, COUNTER_GENERATION, COUNTER_GENERATION_ENTERED, COUNTER_GENERATION_LEFT, COUNTER_HOOK_ENTERED,
    COUNTER_HOOK_LEFT, COUNTER_LEFT, COUNTER_LOST, COUNTER_MISSED, COUNTER_OUTSIDE, COUNTER_SEQUENCE,
    COUNTER_UNTRACKED, EVERYBODY, GENERATIONS, HOOK_SLOTS, IN_FLIGHT_SIZE,
};

use super::returns::{Misses, Returns};
use super::stragglers::{Left, Stragglers};
use crate::model::event::{Hook, InFlightCall, UncountedCall};
use crate::sys::memory_map::CounterMemory;

/// First and longest pause between looks at the counters.
const PAUSES: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(5));

/// The counters at one moment, or as near to one as reading them one by one comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Mount-class calls that entered the kernel since the probes were attached.
    pub entered: u64,
    /// Those that left. Read before `entered`: if the two are equal, no call was inside at that moment.
    pub left: u64,
    /// Records numbered.
    pub sequence: u64,
    /// Records lost.
    pub lost: u64,
    /// Calls that the clock lost track of.
    pub untracked: u64,
}

/// How a wait ended.
#[derive(Clone, Debug)]
pub enum Waited {
    /// Every call waited for has left. Those that can pin nothing may be inside.
    Done,
    /// There was no time for all of them yet: [`Clock::go_on`] goes on with the same wait.
    Pending,
    /// Some have not.
    Overdue {
        /// Those that were found inside; empty if they left while being listed.
        calls: Vec<InFlightCall>,
        /// Those that are inside and were not counted in, since they entered before the clock ran or lost track of them.
        uncounted: Vec<UncountedCall>,
    },
    /// It cannot be told whether they have left: of none it is known that it is inside.
    Unreliable {
        /// Why.
        why: String,
    },
}

/// The clock. Reading it takes no system call.
pub struct Clock {
    counters: Arc<CounterMemory>,
    in_flight: HashMap<MapData, u32, [u8; IN_FLIGHT_SIZE]>,
    from_before: FromBefore,
    /// One wait at a time: two would move the generation under each other.
    state: Mutex<State>,
}

/// A wait, from one piece of it to the next.
#[derive(Debug)]
pub struct Wait {
    mark: u64,
    /// Generations that have not been seen empty; none before the first look, which moves the clock to the next one. They
    /// are kept from piece to piece: a busy host has calls inside at any time, but not in each generation for ever.
    generations: Option<Vec<u32>>,
    pause: Duration,
    deadline: Instant,
}

/// What becomes of calls that entered before the programs were attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FromBefore {
    /// Their returns are seen and their records sent.
    AreSent,
    /// Nothing sees them return: such a program takes hold of a call when it enters.
    AreLost,
}

struct State {
    stragglers: Stragglers,
    returns: Returns,
    misses: Misses,
    /// Runs of programs that the kernel left out: each may have been a call's enter.
    runs_missed: u64,
    untracked: u64,
    /// Why the wait in which the clock lost track of a call cannot vouch for it. Later ones can.
    unsure: Option<String>,
}

impl fmt::Debug for Clock {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Clock").field("now", &self.now()).finish_non_exhaustive()
    }
}

impl Clock {
    pub(super) fn new(
        counters: Arc<CounterMemory>,
        in_flight: HashMap<MapData, u32, [u8; IN_FLIGHT_SIZE]>,
        stragglers: Stragglers,
        misses: Misses,
        from_before: FromBefore,
    ) -> Self {
        let returns = Returns::default();
        let state = State { stragglers, returns, misses, runs_missed: 0, untracked: 0, unsure: None };
        Self { counters, in_flight, from_before, state: Mutex::new(state) }
    }

    /// The counters.
    #[must_use]
    pub fn now(&self) -> Reading {
        let counter = |slot| self.counters.load(slot);
        // Left first: a call cannot be seen to have left without having been seen to enter.
        let left = counter(COUNTER_LEFT);
        Reading {
            entered: counter(COUNTER_ENTERED),
            left,
            sequence: counter(COUNTER_SEQUENCE),
            lost: counter(COUNTER_LOST),
            untracked: counter(COUNTER_UNTRACKED),
        }
    }

    /// Waits until every mount-class call numbered up to `mark` (an earlier [`Reading::entered`]) has left the kernel that
    /// [may pin something](Hook::may_pin), those that entered before the probes were attached included. Calls that enter between the mark and this call
    /// are waited for too.
    ///
    /// When it is done, whatever those calls mounted is mounted, and its records are numbered: drain, then look.
    pub fn wait_since(&self, mark: u64, deadline: Instant) -> Waited {
        self.go_on(&mut Wait::since(mark, deadline), deadline)
    }

    /// Goes on with a wait until it has ended, or for a piece of it.
    pub fn go_on(&self, wait: &mut Wait, until: Instant) -> Waited {
        let mut state = self.state();
        let unknown = match self.wait(&mut state, wait, until) {
            Ok(()) => return Waited::Done,
            Err(Undone::Unsure(why)) => return Waited::Unreliable { why },
            Err(_) if Instant::now() < wait.deadline => return Waited::Pending,
            Err(Undone::Inside) => None,
            Err(Undone::Unknown(why)) => Some(why),
        };
        // Who is known to be inside may still attach its mount, whether it was counted in or not.
        let uncounted = state.stragglers.inside();
        match unknown {
            Some(why) if uncounted.is_empty() => Waited::Unreliable { why },
            Some(_) => Waited::Overdue { calls: Vec::new(), uncounted },
            None => {
                let mut calls = self.in_flight();
                let is_waited_for = |call: &InFlightCall| call.number <= wait.mark && call.hook.may_pin();
                calls.retain(|call| is_waited_for(call) && !state.returns.has_returned(call.number));
                Waited::Overdue { calls, uncounted }
            }
        }
    }

    /// The calls inside the kernel, as far as they can be listed while they come and go. For people, not for decisions.
    #[must_use]
    pub fn in_flight(&self) -> Vec<InFlightCall> {
        let entries = self.in_flight.iter().filter_map(Result::ok);
        let mut calls: Vec<_> = entries.filter_map(|(thread, call)| InFlightCall::decode(thread, &call).ok()).collect();
        calls.sort_by_key(|call| call.number);
        calls.dedup_by_key(|call| call.number);
        calls
    }

    /// What the clock cannot know about the time before the probes were attached; none if it knows all.
    #[must_use]
    pub fn weakness(&self) -> Option<String> {
        self.state().stragglers.weakness()
    }

    /// Whether there are threads that may not be looked at and that still have time to leave a call.
    #[must_use]
    pub fn is_settling(&self) -> bool {
        self.state().stragglers.is_settling()
    }

    /// Whether calls may be inside that were not counted in.
    pub(super) fn has_uncounted(&self) -> bool {
        !self.state().stragglers.are_all_outside()
    }

    /// Gives threads that were inside a call when the probes were attached until the deadline to be seen outside. Those
    /// that are not, and those that may not be looked at, are left to [`Clock::wait_since`].
    pub(super) fn wait_for_stragglers(&self, deadline: Instant) {
        let mut state = self.state();
        let mut first = PAUSES.0;
        let mut pause = Pause { next: &mut first, until: deadline };
        while !state.stragglers.are_seen_outside() && pause.take().is_some() {}
        // Whoever has left by now is seen by the baseline, which is taken after attaching.
        state.stragglers.take_left();
        self.note_outside(&state);
    }

    /// Tells the programs whose calls from before them need not be looked for.
    fn note_outside(&self, state: &State) {
        if self.counters.load(COUNTER_OUTSIDE) != EVERYBODY
            && let Some(outside) = state.stragglers.outside()
        {
            self.counters.store(COUNTER_OUTSIDE, outside);
        }
    }

    /// Calls by a hook that were seen to enter and to leave.
    pub(super) fn seen(&self, hook: Hook) -> (u64, u64) {
        let slot = hook.tag() & (HOOK_SLOTS - 1);
        (self.counters.load(COUNTER_HOOK_ENTERED + slot), self.counters.load(COUNTER_HOOK_LEFT + slot))
    }

    /// Looks for records that were never sent: for calls that are counted in and have returned, for runs of programs that
    /// the kernel left out, and for calls from before the programs. What is found counts as lost. Costs two loads where no call is inside.
    pub(super) fn note_missed(&self) {
        let mut state = self.state();
        let now = self.now();
        if now.entered != now.left {
            self.look_for_returns(&mut state);
        }
        let runs = state.misses.ask_now_and_then();
        self.note_runs(&mut state, runs);
        if self.from_before == FromBefore::AreLost {
            state.stragglers.look_again();
        }
        self.note_from_before(&mut state);
    }

    fn note_from_before(&self, state: &mut State) {
        let left = state.stragglers.take_left();
        if left > 0 && self.from_before == FromBefore::AreLost {
            self.counters.add(COUNTER_MISSED, left);
        }
    }

    fn look_for_returns(&self, state: &mut State) {
        let missed = state.returns.look(&self.in_flight(), monotonic_ns());
        if missed > 0 {
            self.counters.add(COUNTER_MISSED, missed);
        }
    }

    fn note_runs(&self, state: &mut State, runs: u64) {
        if runs > 0 {
            state.runs_missed += runs;
            self.counters.add(COUNTER_MISSED, runs);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic while waiting leaves nothing half done: the generation may be any.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self, state: &mut State, wait: &mut Wait, until: Instant) -> Result<(), Undone> {
        let Wait { generations, pause, deadline, .. } = wait;
        let generations = generations.get_or_insert_with(|| self.generations_to_watch());
        let mut pause = Pause { next: pause, until: until.min(*deadline) };
        loop {
            // Everybody out at one moment is as good as every generation empty.
            let now = self.now();
            if now.entered == now.left {
                generations.clear();
            }
            let look = pause.is_longest();
            generations.retain(|&generation| !self.is_empty_but_for(generation, &state.returns, look));
            if generations.is_empty() {
                break;
            }
            if look {
                self.look_for_returns(state);
            }
            pause.take().ok_or(Undone::Inside)?;
        }
        let runs = state.misses.ask();
        self.note_runs(state, runs);
        let untracked = self.counters.load(COUNTER_UNTRACKED) + state.runs_missed;
        if untracked != state.untracked {
            // Who has left since the last look is not forgotten with it.
            state.stragglers.look_again();
            self.note_from_before(state);
            // The clock lost track of somebody: ask the kernel about each thread, as for the time before attaching.
            state.stragglers = Stragglers::look();
            state.untracked = untracked;
            state.unsure = state.stragglers.weakness();
        }
        loop {
            match state.stragglers.look_again() {
                Left::All => break,
                Left::Some(why) => pause.take().ok_or(Undone::Unknown(why))?,
            }
        }
        self.note_outside(state);
        self.note_from_before(state);
        state.unsure.take().map_or(Ok(()), |why| Err(Undone::Unsure(why)))
    }

    /// Moves the generation on to an empty one, and returns all others that are not empty. If no other is empty the
    /// generation stays, and all are returned.
    fn generations_to_watch(&self) -> Vec<u32> {
        let current = self.counters.load(COUNTER_GENERATION) as u32 & (GENERATIONS - 1);
        let all = || 0..GENERATIONS;
        let next = all().find(|&generation| generation != current && self.is_empty(generation));
        if let Some(next) = next {
            self.counters.store(COUNTER_GENERATION, next.into());
        }
        all().filter(|&generation| Some(generation) != next).collect()
    }

    /// Whether no call is inside that entered under a generation. A call that reads the generation now and counts
    /// itself in later looks up its paths later still.
    fn is_empty(&self, generation: u32) -> bool {
        let left = self.counters.load(COUNTER_GENERATION_LEFT + generation);
        left == self.counters.load(COUNTER_GENERATION_ENTERED + generation)
    }

    /// Whether no call is inside that entered under a generation, those left out that have returned unseen or that can pin
    /// nothing. They are looked for where there is any that has returned unseen, or on request.
    ///
    /// Such a call is counted out in the end, and is off the map by then. So the count of those that left is read first:
    /// whoever is found on the map after that was not among them.
    fn is_empty_but_for(&self, generation: u32, returns: &Returns, look: bool) -> bool {
        let left = self.counters.load(COUNTER_GENERATION_LEFT + generation);
        let idle = if returns.is_empty() && !look {
            0
        } else {
            let is_idle = |call: &InFlightCall| returns.has_returned(call.number) || !call.hook.may_pin();
            let calls = self.in_flight();
            calls.iter().filter(|call| call.generation == generation && is_idle(call)).count() as u64
        };
        left + idle == self.counters.load(COUNTER_GENERATION_ENTERED + generation)
    }
}

/// The clock that calls are timed by, in nanoseconds: CLOCK_MONOTONIC.
fn monotonic_ns() -> u64 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).map(Duration::from);
    now.map_or(0, |now| u64::try_from(now.as_nanos()).unwrap_or(u64::MAX))
}

enum Undone {
    /// Calls that were counted in are inside.
    Inside,
    /// Threads may be inside that were not counted in.
    Unknown(String),
    /// All are outside that may be looked at, and that is not everybody.
    Unsure(String),
}

impl Wait {
    /// For calls numbered up to a mark, which have until the deadline.
    #[must_use]
    pub fn since(mark: u64, deadline: Instant) -> Self {
        Self { mark, generations: None, pause: PAUSES.0, deadline }
    }

    /// Lets it end with the next look.
    pub fn end(&mut self) {
        self.deadline = Instant::now();
    }
}

/// Pauses that grow, until some time.
struct Pause<'p> {
    next: &'p mut Duration,
    until: Instant,
}

impl Pause<'_> {
    /// Whether it has grown as long as it gets.
    fn is_longest(&self) -> bool {
        *self.next == PAUSES.1
    }

    /// Sleeps; none once it is time.
    fn take(&mut self) -> Option<()> {
        let rest = self.until.checked_duration_since(Instant::now()).filter(|rest| !rest.is_zero())?;
        std::thread::sleep(rest.min(*self.next));
        *self.next = (*self.next * 2).min(PAUSES.1);
        Some(())
    }
}
