//! Threads inside mount-class calls, by the kernel's own iterator: of threads, too, that this process has no rights over, for
//! which /proc/PID/syscall tells nothing.

mod kernel;
pub(super) mod layout;

pub(super) use kernel::Kernel;

use super::lacking::lacks;
use super::layouts;
use super::object::{self, Given};
use super::probes::hooks;
use super::procfs::Procfs;
use super::references::layout::iterator_types;
use super::references::{ReferenceError, drive};
use super::stragglers::Call;
use aya::Ebpf;
use aya::maps::{Array, MapData};
use aya::programs::Iter;
use reclaim_ebpf::inside_abi::{
    INSIDE_ARGUMENTS, INSIDE_BITS_GLOBAL, INSIDE_LAYOUT_GLOBAL, INSIDE_OUTPUT_MAP, INSIDE_PROGRAM, INSIDE_RECORDS,
    INSIDE_STATE_MAP, INSIDE_WORDS, InsideRecord, InsideState,
};
use std::collections::BTreeMap;
use std::fmt;
use std::mem::offset_of;

const RECORD: usize = size_of::<InsideRecord>();
const STATE_WORDS: usize = size_of::<InsideState>() / size_of::<u32>();

/// Calls by process and thread.
pub(super) type Calls = BTreeMap<(u32, u32), Call>;

/// The loaded program.
pub(super) struct Inside {
    programs: Ebpf,
    state: Array<MapData, [u32; STATE_WORDS]>,
    output: Array<MapData, [u8; RECORD]>,
}

impl fmt::Debug for Inside {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Inside").finish_non_exhaustive()
    }
}

impl Inside {
    /// Loads the program.
    ///
    /// # Errors
    /// When it cannot be used, with why.
    pub(super) fn load() -> Result<Self, ReferenceError> {
        Self::looking_for(bits(), INSIDE_RECORDS)
    }

    /// For the calls whose numbers have a bit, with room for so many threads.
    fn looking_for(bits: [u64; INSIDE_WORDS], room: u32) -> Result<Self, ReferenceError> {
        // The iterator goes over the tasks of the caller's pid namespace, by numbers of the first one.
        if !Procfs::open()?.shows_initial_pid_namespace() {
            return Err(ReferenceError::Unmet { what: "all tasks, from within a pid namespace".into() });
        }
        if lacks("inside-late") {
            std::thread::sleep(std::time::Duration::from_millis(800));
        }
        let layouts = layouts::of_running_kernel()?;
        let layout = layout::bytes(&layouts.inside.clone()?);
        let number = layouts.references.clone()?.iterator.filter(|_| !lacks("inside"));
        let types = iterator_types(number.ok_or(ReferenceError::NoIterator)?)?;
        let bits: Vec<u8> = bits.into_iter().flat_map(u64::to_ne_bytes).collect();
        let given = Given {
            globals: &[(INSIDE_LAYOUT_GLOBAL, &layout), (INSIDE_BITS_GLOBAL, &bits)],
            sizes: &[(INSIDE_OUTPUT_MAP, room)],
        };
        let mut programs = object::load(&given).map_err(|error| ReferenceError::Load(Box::new(error)))?;
        program(&mut programs)?.load("task", &types).map_err(ReferenceError::refused(INSIDE_PROGRAM))?;
        let mut map = |name| programs.take_map(name).ok_or(ReferenceError::Object { name });
        let (state, output) = (map(INSIDE_STATE_MAP)?, map(INSIDE_OUTPUT_MAP)?);
        let state = Array::try_from(state).map_err(ReferenceError::unusable(INSIDE_STATE_MAP))?;
        let output = Array::try_from(output).map_err(ReferenceError::unusable(INSIDE_OUTPUT_MAP))?;
        Ok(Self { programs, state, output })
    }

    /// The calls that threads are inside. A thread outside the kernel may be told with one that it has left; whoever is not
    /// told is inside none that began before this was called.
    ///
    /// # Errors
    /// When not all threads were looked at, or the look does not meet the call that it is made by.
    pub(super) fn look(&mut self) -> Result<Calls, ReferenceError> {
        let fault = || ReferenceError::unusable(INSIDE_STATE_MAP);
        self.state.set(0, [0; STATE_WORDS], 0).map_err(fault())?;
        let descriptor = drive(program(&mut self.programs)?, INSIDE_PROGRAM)?;
        let [ended, records, unwritten, broken, own_number, own_first] = self.state.get(&0, 0).map_err(fault())?;
        let unmet = |what: &str| Err(ReferenceError::Unmet { what: what.to_owned() });
        if ended != 1 || unwritten != 0 || broken != 0 {
            return unmet("every thread");
        }
        // What is known to be going on has to be seen, before anything else is believed.
        let is_met = (i64::from(own_number), i64::from(own_first)) == (libc::SYS_read, descriptor.into());
        if !is_met || lacks("inside-answer") {
            return unmet("the call that reads them");
        }
        (0..records)
            .map(|index| self.output.get(&index, 0).map_err(ReferenceError::unusable(INSIDE_OUTPUT_MAP)))
            .map(|record| record.map(|bytes| decoded(&bytes)))
            .collect()
    }
}

/// A bit for each number of a mount-class call, whoever makes it.
fn bits() -> [u64; INSIDE_WORDS] {
    let mut bits = [0; INSIDE_WORDS];
    for number in 0..INSIDE_WORDS * 64 {
        let of = i64::try_from(number).unwrap_or(-1);
        if hooks::hook_of(of).or_else(|| hooks::hook_of_32(of)).is_some() {
            bits[number / 64] |= 1 << (number % 64);
        }
    }
    bits
}

fn decoded(bytes: &[u8; RECORD]) -> ((u32, u32), Call) {
    let half = |at: usize| u32::from_ne_bytes(*bytes[at..].first_chunk().expect("a member of the record"));
    let word = |at: usize| u64::from_ne_bytes(*bytes[at..].first_chunk().expect("a member of the record"));
    let mut arguments = [0; INSIDE_ARGUMENTS];
    for (index, argument) in arguments.iter_mut().enumerate() {
        *argument = word(offset_of!(InsideRecord, arguments) + index * size_of::<u64>());
    }
    let number = word(offset_of!(InsideRecord, number)).cast_signed();
    let whose = (half(offset_of!(InsideRecord, process)), half(offset_of!(InsideRecord, thread)));
    let is_32 = Some(word(offset_of!(InsideRecord, is_32)) != 0);
    (whose, Call { number, arguments, stack: word(offset_of!(InsideRecord, stack)), is_32 })
}

fn program(programs: &mut Ebpf) -> Result<&mut Iter, ReferenceError> {
    let name = INSIDE_PROGRAM;
    let program = programs.program_mut(name).ok_or(ReferenceError::Object { name })?;
    program.try_into().map_err(ReferenceError::refused(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mount_class_call_has_its_bit_by_either_number() {
        let bits = bits();
        let is_set = |number: i64| usize::try_from(number).is_ok_and(|at| bits[at / 64] >> (at % 64) & 1 != 0);
        for number in 0..512 {
            let wanted = hooks::hook_of(number).or_else(|| hooks::hook_of_32(number)).is_some();
            assert_eq!(is_set(number), wanted, "{number}");
        }
        assert!(is_set(libc::SYS_mount) && is_set(libc::SYS_unshare) && !is_set(libc::SYS_read));
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let mut bytes = [0; RECORD];
        bytes[..4].copy_from_slice(&7_u32.to_ne_bytes());
        bytes[4..8].copy_from_slice(&8_u32.to_ne_bytes());
        for (index, word) in [165_u64, 1, 2, 3, 4, 5, 6, 9, 2].into_iter().enumerate() {
            bytes[8 + index * 8..][..8].copy_from_slice(&word.to_ne_bytes());
        }
        let call = Call { number: 165, arguments: [1, 2, 3, 4, 5, 6], stack: 9, is_32: Some(true) };
        assert_eq!(decoded(&bytes), ((7, 8), call));
    }

    /// Any call does for the trial: here one that a thread of this process sleeps in.
    #[test]
    fn host_a_thread_is_told_with_its_call_and_more_than_there_is_room_for_are_not_told_at_all() {
        let (reader, writer) = std::io::pipe().unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(&reader);
        let (say, hear) = std::sync::mpsc::channel();
        let sleeping = std::thread::spawn(move || {
            say.send(nix::unistd::gettid().as_raw().unsigned_abs()).unwrap();
            std::io::Read::read(&mut &reader, &mut [0]).unwrap()
        });
        let whose = (std::process::id(), hear.recv().unwrap());
        let mut read = [0; INSIDE_WORDS];
        read[0] = 1 << libc::SYS_read;
        let mut inside = Inside::looking_for(read, 1 << 16).unwrap();
        let call = loop {
            match inside.look().unwrap().get(&whose) {
                Some(call) if call.number == libc::SYS_read => break *call,
                _ => std::thread::yield_now(),
            }
        };
        assert_eq!((call.arguments[0], call.arguments[2]), (u64::from(number.unsigned_abs()), 1));
        assert_eq!(call.is_32, Some(false));
        // The thread that looks is one, and this one is another.
        assert!(Inside::looking_for(read, 1).unwrap().look().is_err());
        drop(writer);
        assert_eq!(sleeping.join().unwrap(), 0);
        assert!(!inside.look().unwrap().contains_key(&whose));
    }

    #[test]
    fn host_every_thread_is_looked_at_and_the_look_meets_itself() {
        let mut inside = Inside::load().unwrap();
        for _ in 0..20 {
            inside.look().unwrap();
        }
    }
}
