//! The walk: which entries of some directories any mount in the kernel relies on, from the super block's own list.
//!
//! It sees mounts of every namespace and of none: detached trees, lazily unmounted ones, the private clones that overlay
//! makes of its layers, namespaces that only a file or a descriptor holds, and what a chroot hides. It takes no lock, so it
//! delays nobody's mounts.

pub(super) mod layout;

use super::btf::LayoutError;
use super::lacking::{self, lacks};
use super::layouts;
use super::object::{self, Given};
use crate::model::id::{MountId, NamespaceId};
use crate::model::pin::{Place, Role, State};
use crate::sys::memory_map::CounterMemory;
use aya::maps::{HashMap, Map, MapData, MapError};
use aya::programs::{ProgramError, RawTracePoint, RawTracePointRunOptions, TestRun as _};
use aya::{Ebpf, EbpfError};
use nix::errno::Errno;
use nix::sys::stat::fstat;
use reclaim_ebpf::walk_abi::{
    WALK_ALL, WALK_ATTACHED, WALK_BASE_SLOTS, WALK_BASE_WORDS, WALK_BASES_MAP, WALK_BROKEN, WALK_COUNTED,
    WALK_DETACHED, WALK_DONE, WALK_FULL, WALK_INTERNAL, WALK_LAYOUT_GLOBAL, WALK_NAME, WALK_NO_FILE, WALK_OUTPUT_MAP,
    WALK_PROGRAM, WALK_RECORDS, WALK_SOURCE, WALK_STATE_MAP, WALK_TARGET, WALK_TOO_LONG, WALK_UNMOUNTED, WalkLayout,
    WalkRecord, WalkState,
};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

/// Walks that are tried before the list is said to change too fast.
const TRIES: u32 = 32;
/// Most records that room is made for: a million and more pins, 350 MB of kernel memory while the walk runs.
const RECORDS_MOST: u32 = 1 << 20;
/// 64-bit words in the shared structures.
const STATE_WORDS: usize = size_of::<WalkState>() / 8;
const RECORD_WORDS: usize = size_of::<WalkRecord>() / 8;

/// One pinned entry, and the mount that pins it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WalkPin {
    /// Inode number of the directory that the entry is in: one of the bases.
    pub base: u64,
    /// Inode number of the entry.
    pub entry: u64,
    /// Name of the entry.
    pub name: Vec<u8>,
    /// The mount.
    pub mount: MountId,
    /// The mount namespace; none for a mount that is in none.
    pub namespace: Option<NamespaceId>,
    /// How the mount relies on the entry. A mount that the kernel made for itself is a layer.
    pub role: Role,
    /// What holds the mount.
    pub state: State,
    /// At the entry or below it.
    pub place: Place,
}

/// What a walk that came to its end saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Walked {
    /// The pins, in the order of the kernel's list.
    pub pins: Vec<WalkPin>,
    /// Mounts of the file system.
    pub mounts: u64,
}

/// Why a walk tells nothing.
#[derive(Debug, thiserror::Error)]
pub enum WalkError {
    /// The structures of this kernel cannot be looked into.
    #[error("the kernel's mounts cannot be walked without its type information")]
    Layout(#[from] LayoutError),
    /// The program cannot be loaded.
    #[error(
        "the walk cannot be loaded; it takes CAP_BPF, CAP_PERFMON, Linux 5.17 and a lockdown below confidentiality"
    )]
    Load(#[source] Box<EbpfError>),
    /// The program is refused or does not run.
    #[error("the walk cannot be run; it takes CAP_BPF, CAP_PERFMON, Linux 5.17 and a lockdown below confidentiality")]
    Program(#[source] Box<ProgramError>),
    /// The object lacks something.
    #[error("the walk's object has no {name}; this build is broken")]
    Object {
        /// What it lacks.
        name: &'static str,
    },
    /// A map cannot be used.
    #[error("the walk's map {name} cannot be used")]
    Map {
        /// The map.
        name: &'static str,
        /// What stands in the way.
        #[source]
        source: Box<MapError>,
    },
    /// A map cannot be mapped.
    #[error("the walk's map {name} cannot be mapped into memory")]
    Memory {
        /// The map.
        name: &'static str,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// More directories than one walk looks for.
    #[error("a walk looks for the entries of {WALK_BASE_SLOTS} directories at most, not of {count}")]
    Bases {
        /// How many were asked for.
        count: usize,
    },
    /// Two of the directories cannot be told apart.
    #[error("directories of different subvolumes have the same inode number, so one walk cannot look for both")]
    Alike,
    /// The mount that the walk has to find cannot be made.
    #[error("{call} failed for the mount that the walk has to find")]
    Probe {
        /// The call.
        call: &'static str,
        /// What the kernel said.
        #[source]
        source: Errno,
    },
    /// There is nothing that a mount for the walk to find could be made of.
    #[error("there is no directory that the walk could prove itself on")]
    NothingToFind,
    /// The mounts changed under every try.
    #[error("the mounts of the file system changed under {TRIES} walks in a row")]
    Restless,
    /// The walk did not come to its end for another reason.
    #[error("the walk ended early: {why}")]
    Incomplete {
        /// The reason.
        why: &'static str,
    },
    /// The program wrote what it never writes.
    #[error("the walk's output makes no sense: {what}")]
    Output {
        /// What is wrong.
        what: &'static str,
    },
    /// It did not find a mount that is there.
    #[error("the walk did not find a mount that was made for it to find: {why}")]
    KnownAnswer {
        /// What was expected and what was found.
        why: String,
    },
}

/// A directory whose children are entries.
#[derive(Clone, Copy, Debug)]
pub struct Base<'a> {
    /// Its inode number.
    pub number: u64,
    /// A descriptor of it, for on some file systems the number is that of one subvolume only.
    pub directory: BorrowedFd<'a>,
    /// The one entry that is asked about; none for all of them.
    pub only: Option<BorrowedFd<'a>>,
}

/// The loaded program.
#[derive(Debug)]
pub struct Walker {
    programs: Ebpf,
    bases: HashMap<MapData, u64, [u64; WALK_BASE_WORDS]>,
    state: CounterMemory,
    output: CounterMemory,
    room: u32,
    layout: WalkLayout,
}

impl Walker {
    /// Loads the program.
    ///
    /// # Errors
    /// When the kernel cannot be walked, with why.
    pub fn load() -> Result<Self, WalkError> {
        Self::with(layouts::of_running_kernel()?.walk.clone()?, WALK_RECORDS)
    }

    fn with(layout: WalkLayout, room: u32) -> Result<Self, WalkError> {
        let layout_bytes = layout::bytes(&layout);
        let given = Given { globals: &[(WALK_LAYOUT_GLOBAL, &layout_bytes)], sizes: &[(WALK_OUTPUT_MAP, room)] };
        let mut programs = object::load(&given).map_err(|error| WalkError::Load(Box::new(error)))?;
        if lacks("walk") {
            return Err(WalkError::Program(Box::new(lacking::answer(ErrorKind::InvalidInput).into())));
        }
        // Before any map is taken out: the program refers to them by descriptor.
        program(&mut programs)?.load().map_err(|error| WalkError::Program(Box::new(error)))?;
        let state = memory(&mut programs, WALK_STATE_MAP, STATE_WORDS)?;
        let output = memory(&mut programs, WALK_OUTPUT_MAP, room as usize * RECORD_WORDS)?;
        let bases = programs.take_map(WALK_BASES_MAP).ok_or(WalkError::Object { name: WALK_BASES_MAP })?;
        let bases = HashMap::try_from(bases)
            .map_err(|source| WalkError::Map { name: WALK_BASES_MAP, source: Box::new(source) })?;
        Ok(Self { programs, bases, state, output, room, layout })
    }

    /// Every mount that relies on an entry of one of the directories, in the file system that `file` lies in. An `O_PATH` descriptor will do.
    ///
    /// # Errors
    /// When the walk does not come to its end. There is no partial answer.
    pub fn walk(&mut self, file: impl AsFd, directories: &[Base<'_>]) -> Result<Walked, WalkError> {
        self.look_for(directories)?;
        for attempt in 0..TRIES {
            match self.run(&file)? {
                WALK_DONE => return self.read(),
                WALK_FULL if self.room < RECORDS_MOST => {
                    let records = high(self.state.load(2));
                    let room = match records / WALK_COUNTED >= self.room {
                        // Not counted to the end.
                        true => records.saturating_mul(WALK_COUNTED),
                        // Somewhat more: there may be more by the next try.
                        false => records.saturating_add(records / 8).saturating_add(self.room),
                    };
                    let room = room.min(RECORDS_MOST);
                    *self = Self::with(self.layout, room)?;
                    self.look_for(directories)?;
                }
                WALK_FULL => return Err(WalkError::Incomplete { why: "there are more pins than there is room for" }),
                WALK_BROKEN => std::thread::sleep(Duration::from_micros(50 << attempt.min(6))),
                WALK_NO_FILE => return Err(WalkError::Incomplete { why: "the descriptor leads to no file" }),
                WALK_TOO_LONG => {
                    return Err(WalkError::Incomplete { why: "more mounts or deeper places than it follows" });
                }
                _ => return Err(WalkError::Output { what: "an outcome that it does not have" }),
            }
        }
        Err(WalkError::Restless)
    }

    /// Lets go of the room for records that the walks so far were given, which counts as memory of this process.
    ///
    /// # Errors
    /// When the program cannot be loaded again. Then it stays as it is.
    pub fn shrink(&mut self) -> Result<(), WalkError> {
        if self.room > WALK_RECORDS {
            *self = Self::with(self.layout, WALK_RECORDS)?;
        }
        Ok(())
    }

    fn look_for(&mut self, directories: &[Base<'_>]) -> Result<(), WalkError> {
        if directories.len() > WALK_BASE_SLOTS as usize {
            return Err(WalkError::Bases { count: directories.len() });
        }
        let unusable = |source| WalkError::Map { name: WALK_BASES_MAP, source: Box::new(source) };
        let known: Vec<u64> = self.bases.keys().collect::<Result<_, _>>().map_err(unusable)?;
        for number in known.iter().filter(|known| !directories.iter().any(|base| base.number == **known)) {
            self.bases.remove(number).map_err(unusable)?;
        }
        let mut devices = BTreeMap::new();
        for Base { number, directory, only } in directories {
            let status = fstat(directory).map_err(|source| WalkError::Probe { call: "fstat", source })?;
            if devices.insert(*number, status.st_dev).is_some_and(|other| other != status.st_dev) {
                return Err(WalkError::Alike);
            }
            let of = |descriptor: &BorrowedFd<'_>| u64::try_from(descriptor.as_raw_fd()).map_err(|_| WalkError::Alike);
            let only = only.as_ref().map(of).transpose()?.unwrap_or(WALK_ALL);
            self.bases.insert(number, [of(directory)?, only, 0], 0).map_err(unusable)?;
        }
        Ok(())
    }

    /// One run of the program, in this thread, so that the descriptor is its own.
    fn run(&mut self, file: impl AsFd) -> Result<u32, WalkError> {
        let mut options = RawTracePointRunOptions::new();
        options.args[0] = u64::try_from(file.as_fd().as_raw_fd()).unwrap_or(u64::MAX);
        self.state.store(2, u64::from(self.room));
        self.state.store(3, 0);
        program(&mut self.programs)?.test_run(options).map_err(|error| WalkError::Program(Box::new(error)))?;
        Ok(low(self.state.load(3)))
    }

    fn read(&self) -> Result<Walked, WalkError> {
        let records = high(self.state.load(2));
        if records > self.room {
            return Err(WalkError::Output { what: "more records than there is room for" });
        }
        let pins = (0..records).map(|record| self.pin(record)).collect::<Result<_, _>>()?;
        Ok(Walked { pins, mounts: self.state.load(0) })
    }

    fn pin(&self, record: u32) -> Result<WalkPin, WalkError> {
        let first = record * RECORD_WORDS as u32;
        let word = |index: u32| self.output.load(first + index);
        let (namespace, role) = (low(word(3)), high(word(3)));
        let (state, exact) = (low(word(4)), high(word(4)));
        let internal = state == WALK_INTERNAL;
        let mut name = Vec::with_capacity(64);
        let mut has_ended = false;
        for index in 0..WALK_NAME as u32 / 8 {
            let bytes = word(5 + index).to_ne_bytes();
            let end = bytes.iter().position(|byte| *byte == 0);
            name.extend(&bytes[..end.unwrap_or(bytes.len())]);
            has_ended = end.is_some();
            if has_ended {
                break;
            }
        }
        if !has_ended {
            return Err(WalkError::Output { what: "a name without end" });
        }
        Ok(WalkPin {
            base: word(0),
            entry: word(1),
            name,
            mount: MountId(word(2)),
            namespace: (namespace != 0).then_some(NamespaceId(namespace.into())),
            role: match role {
                WALK_SOURCE if internal => Role::Layer,
                WALK_SOURCE => Role::Source,
                WALK_TARGET => Role::Target,
                _ => return Err(WalkError::Output { what: "a role that it does not have" }),
            },
            state: match state {
                WALK_ATTACHED | WALK_INTERNAL => State::Attached,
                WALK_DETACHED => State::Detached,
                WALK_UNMOUNTED => State::Unmounted,
                _ => return Err(WalkError::Output { what: "a state that it does not have" }),
            },
            place: if exact == 1 { Place::Exact } else { Place::Below },
        })
    }
}

fn program(programs: &mut Ebpf) -> Result<&mut RawTracePoint, WalkError> {
    let program = programs.program_mut(WALK_PROGRAM).ok_or(WalkError::Object { name: WALK_PROGRAM })?;
    program.try_into().map_err(|error| WalkError::Program(Box::new(error)))
}

fn memory(programs: &mut Ebpf, name: &'static str, words: usize) -> Result<CounterMemory, WalkError> {
    let memory = match programs.take_map(name).ok_or(WalkError::Object { name })? {
        Map::Array(map) => CounterMemory::map(map.fd(), words),
        _ => Err(io::ErrorKind::InvalidData.into()),
    };
    memory.map_err(|source| WalkError::Memory { name, source })
}

fn low(word: u64) -> u32 {
    let [a, b, c, d, ..] = word.to_ne_bytes();
    u32::from_ne_bytes([a, b, c, d])
}

fn high(word: u64) -> u32 {
    let [.., a, b, c, d] = word.to_ne_bytes();
    u32::from_ne_bytes([a, b, c, d])
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
