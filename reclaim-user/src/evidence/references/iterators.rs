//! References by the kernel's own iterator over threads, whose open files a program goes through by itself.

use super::layout::{self, ReferenceTypes};
use super::{Found, add, known_answer};
use crate::evidence::btf::LayoutError;
use crate::evidence::lacking::lacks;
use crate::evidence::layouts;
use crate::evidence::object::{self, Given};
use crate::evidence::procfs::{Procfs, ProcfsError};
use crate::evidence::source::CondemnedIn;
use crate::model::coverage::{GapCause, Reach};
use crate::model::pin::Place;
use crate::model::reference::{Reference, ReferenceKind};
use aya::maps::{Array, HashMap, MapData, MapError};
use aya::programs::links::LinkError;
use aya::programs::{Iter, ProgramError, RawTracePoint, RawTracePointRunOptions, TestRun as _};
use aya::{BtfError, Ebpf, EbpfError};
use reclaim_ebpf::reference_abi::{
    REFERENCE_BASE_PROGRAM, REFERENCE_BASE_SLOTS, REFERENCE_BASES_MAP, REFERENCE_COUNT_PROGRAM, REFERENCE_COUNTED,
    REFERENCE_EXECUTABLE, REFERENCE_FILE, REFERENCE_FILLED, REFERENCE_LAYOUT_GLOBAL, REFERENCE_OUTPUT_MAP,
    REFERENCE_RECORDS, REFERENCE_ROOT, REFERENCE_STATE_MAP, REFERENCE_TASK_PROGRAM, REFERENCE_WORKING_DIRECTORY,
    ReferenceRecord, ReferenceState,
};
use std::fmt;
use std::io::{self, ErrorKind, Read as _};
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

/// Looks that are tried before tasks are said to change too fast.
const TRIES: u32 = 32;
/// Room for references that one look makes at most: some 70 MiB, for more than any host has of condemned entries.
const RECORDS_MOST: u32 = 1 << 18;
const RECORD: usize = size_of::<ReferenceRecord>();

const STATE_WORDS: usize = size_of::<ReferenceState>() / size_of::<u32>();

/// Why the iterator tells nothing.
#[derive(Debug, thiserror::Error)]
pub enum ReferenceError {
    /// The structures of this kernel cannot be looked into.
    #[error("the kernel's tasks cannot be looked into without its type information")]
    Layout(#[from] LayoutError),
    /// The type information has no iterator over tasks.
    #[error("the kernel has no iterator over tasks; it takes Linux 5.8 with CONFIG_BPF_SYSCALL and BTF")]
    NoIterator,
    /// The number of the iterator's type cannot be handed on.
    #[error("the type of the iterator over tasks cannot be told")]
    Types(#[from] BtfError),
    /// The programs cannot be loaded.
    #[error("the iterators cannot be loaded; they take CAP_BPF, CAP_PERFMON, Linux 5.17 and a mild lockdown")]
    Load(#[source] Box<EbpfError>),
    /// A program is refused or does not run.
    #[error("the program {name} cannot be run; it takes CAP_BPF, CAP_PERFMON, Linux 5.17 and a mild lockdown")]
    Program {
        /// The program.
        name: &'static str,
        /// What stands in the way.
        #[source]
        source: Box<ProgramError>,
    },
    /// An iterator cannot be opened.
    #[error("the iterator {name} cannot be opened")]
    Link {
        /// The program.
        name: &'static str,
        /// What stands in the way.
        #[source]
        source: Box<LinkError>,
    },
    /// An iterator cannot be read.
    #[error("the iterator {name} cannot be read")]
    Read {
        /// The program.
        name: &'static str,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The object lacks something.
    #[error("the object has no {name}; this build is broken")]
    Object {
        /// What it lacks.
        name: &'static str,
    },
    /// A map cannot be used.
    #[error("the map {name} cannot be used")]
    Map {
        /// The map.
        name: &'static str,
        /// What stands in the way.
        #[source]
        source: Box<MapError>,
    },
    /// procfs is needed to tell whether all tasks can be seen.
    #[error(transparent)]
    Procfs(#[from] ProcfsError),
    /// More directories than one look takes.
    #[error("a look takes {} directories at most, not {count}", REFERENCE_BASE_SLOTS / 2)]
    Bases {
        /// How many were asked for.
        count: usize,
    },
    /// Something that has to be met was not.
    #[error("the iterators did not meet {what}")]
    Unmet {
        /// What they did not meet.
        what: String,
    },
    /// A call fails for the references that have to be found, or for the entries that are looked for.
    #[error("{call} failed for what the iterators have to find")]
    Probe {
        /// The call.
        call: &'static str,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// More than there is room for.
    #[error("more than {RECORDS_MOST} references were met")]
    TooMany,
    /// Tasks changed under every try.
    #[error("tasks changed under {TRIES} looks in a row")]
    Restless,
    /// A program wrote what it never writes.
    #[error("the iterators' output makes no sense: {what}")]
    Output {
        /// What is wrong.
        what: &'static str,
    },
}

impl ReferenceError {
    /// For a program that does not do.
    pub(in crate::evidence) fn refused(name: &'static str) -> impl FnOnce(ProgramError) -> Self {
        refused(name)
    }

    /// For a map that does not do.
    pub(in crate::evidence) fn unusable(name: &'static str) -> impl FnOnce(MapError) -> Self {
        unusable(name)
    }

    /// Whether the kernel has not what it takes. A refusal may have other causes.
    pub(super) fn is_absence(&self) -> bool {
        match self {
            Self::NoIterator | Self::Layout(LayoutError::MissingStruct { .. } | LayoutError::MissingMember { .. }) => {
                true
            }
            Self::Layout(LayoutError::Read { source, .. }) => source.kind() == ErrorKind::NotFound,
            _ => false,
        }
    }
}

/// What a count meets in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Met {
    /// Children that the kernel knows.
    pub(super) children: usize,
    /// Those that have other references than were expected. They are of kind [`ReferenceKind::Counted`], or
    /// [`ReferenceKind::Unsettled`] where something in the child may be why; the references are in the place of the process.
    pub(super) records: Vec<Record>,
    /// The seal of all children; 0 where there is no key.
    pub(super) seal: u64,
}

/// One reference as the kernel sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) base: usize,
    pub(super) entry: u64,
    pub(super) name: Vec<u8>,
    pub(super) process: u32,
    pub(super) kind: ReferenceKind,
    pub(super) place: Place,
}

/// The loaded programs.
pub struct Iterators {
    programs: Ebpf,
    bases: HashMap<MapData, u64, u32>,
    state: Array<MapData, [u32; STATE_WORDS]>,
    output: Array<MapData, [u8; RECORD]>,
    room: u32,
}

impl fmt::Debug for Iterators {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Iterators").finish_non_exhaustive()
    }
}

impl Iterators {
    /// Loads the programs and tries them on references that are known.
    ///
    /// # Errors
    /// When they cannot be used, with why.
    pub fn load() -> Result<Self, ReferenceError> {
        Self::with(REFERENCE_RECORDS)
    }

    pub(super) fn with(room: u32) -> Result<Self, ReferenceError> {
        let ReferenceTypes { layout, iterator: number } = layouts::of_running_kernel()?.references.clone()?;
        let layout = layout::bytes(&layout);
        let number = number.filter(|_| !lacks("references"));
        let types = layout::iterator_types(number.ok_or(ReferenceError::NoIterator)?)?;
        let given = Given { globals: &[(REFERENCE_LAYOUT_GLOBAL, &layout)], sizes: &[(REFERENCE_OUTPUT_MAP, room)] };
        let mut programs = object::load(&given).map_err(|error| ReferenceError::Load(Box::new(error)))?;
        iterator(&mut programs)?.load("task", &types).map_err(refused(REFERENCE_TASK_PROGRAM))?;
        for name in [REFERENCE_BASE_PROGRAM, REFERENCE_COUNT_PROGRAM] {
            tracepoint(&mut programs, name)?.load().map_err(refused(name))?;
        }
        let mut map = |name| programs.take_map(name).ok_or(ReferenceError::Object { name });
        let (bases, state, output) = (map(REFERENCE_BASES_MAP)?, map(REFERENCE_STATE_MAP)?, map(REFERENCE_OUTPUT_MAP)?);
        let bases = HashMap::try_from(bases).map_err(unusable(REFERENCE_BASES_MAP))?;
        let state = Array::try_from(state).map_err(unusable(REFERENCE_STATE_MAP))?;
        let output = Array::try_from(output).map_err(unusable(REFERENCE_OUTPUT_MAP))?;
        let mut iterators = Self { programs, bases, state, output, room };
        known_answer::check(&mut iterators)?;
        Ok(iterators)
    }

    /// Everything that refers to an entry in one of the directories, or below it, but for the calling process.
    pub(super) fn look(&mut self, condemned: &[CondemnedIn<'_>]) -> Result<Found, ReferenceError> {
        let directories: Vec<BorrowedFd<'_>> = condemned.iter().map(|condemned| condemned.directory).collect();
        let mut found = Found::default();
        for record in self.records(&directories, true)? {
            let directory =
                condemned.get(record.base).ok_or(ReferenceError::Output { what: "an unknown directory" })?;
            let Record { kind, process, place, .. } = record;
            add(&mut found.references, directory, &record.name, Reference { kind, process: Some(process), place });
        }
        // The iterators go over the tasks of the caller's pid namespace.
        if !Procfs::open()?.shows_initial_pid_namespace() {
            found.gaps.push((GapCause::ProcfsFiltered, 1, Reach::Everybody));
        }
        Ok(found)
    }

    /// The records of one look that came to its end. The own process does not count when `skip_own` is set.
    pub(super) fn records(
        &mut self,
        directories: &[BorrowedFd<'_>],
        skip_own: bool,
    ) -> Result<Vec<Record>, ReferenceError> {
        if directories.len() > REFERENCE_BASE_SLOTS as usize / 2 {
            return Err(ReferenceError::Bases { count: directories.len() });
        }
        // Its own descriptors are looked through until all the directories are met. Those of a caller that holds many lie
        // far apart; what is opened now lies close together.
        let again: Vec<OwnedFd> = directories
            .iter()
            .filter(|_| skip_own)
            .map(BorrowedFd::try_clone_to_owned)
            .collect::<Result<_, _>>()
            .map_err(|source| ReferenceError::Probe { call: "fcntl(F_DUPFD_CLOEXEC)", source })?;
        let again: Vec<BorrowedFd<'_>> = again.iter().map(AsFd::as_fd).collect();
        let directories = if skip_own { &again } else { directories };
        for attempt in 0..TRIES {
            self.look_for(directories, skip_own)?;
            self.run()?;
            let state = self.state()?;
            if state.unwritten != 0 {
                self.make_room()?;
                continue;
            }
            if state.broken != 0 {
                std::thread::sleep(Duration::from_micros(50 << attempt.min(6)));
                continue;
            }
            let unmet = |what: &str| ReferenceError::Unmet { what: what.to_owned() };
            if state.ended != 1 {
                return Err(unmet("the end of all tasks"));
            }
            if skip_own && (state.own_tasks == 0 || (state.own_files as usize) < directories.len()) {
                return Err(unmet("descriptors of reclaim's own that are open"));
            }
            return self.written(state.records);
        }
        Err(ReferenceError::Restless)
    }

    /// Counts the references to the children of a directory, of which `expected` are not told, and seals them by `key`, where
    /// that is not 0.
    pub(super) fn count(&mut self, directory: BorrowedFd<'_>, expected: u32, key: u64) -> Result<Met, ReferenceError> {
        for attempt in 0..TRIES {
            self.state.set(0, [0; STATE_WORDS], 0).map_err(unusable(REFERENCE_STATE_MAP))?;
            let mut options = RawTracePointRunOptions::new();
            options.args[0] = u64::try_from(directory.as_raw_fd()).unwrap_or(u64::MAX);
            options.args[2] = expected.into();
            options.args[3] = key;
            let name = REFERENCE_COUNT_PROGRAM;
            tracepoint(&mut self.programs, name)?.test_run(options).map_err(refused(name))?;
            let state = self.state()?;
            if state.unwritten != 0 {
                self.make_room()?;
            } else if state.broken != 0 {
                std::thread::sleep(Duration::from_micros(50 << attempt.min(6)));
            } else if state.ended == 0 {
                return Err(ReferenceError::Unmet { what: "a directory by its descriptor".into() });
            } else {
                let seal = u64::from(state.seal[0]) | (u64::from(state.seal[1]) << 32);
                return Ok(Met { children: state.met as usize, records: self.written(state.records)?, seal });
            }
        }
        Err(ReferenceError::Restless)
    }

    fn written(&self, records: u32) -> Result<Vec<Record>, ReferenceError> {
        let written = |index| record(&self.output.get(&index, 0).map_err(unusable(REFERENCE_OUTPUT_MAP))?);
        (0..records).map(written).collect()
    }

    fn make_room(&mut self) -> Result<(), ReferenceError> {
        if self.room >= RECORDS_MOST {
            return Err(ReferenceError::TooMany);
        }
        *self = Self::with(self.room.saturating_mul(8).min(RECORDS_MOST))?;
        Ok(())
    }

    fn look_for(&mut self, directories: &[BorrowedFd<'_>], skip_own: bool) -> Result<(), ReferenceError> {
        let known: Vec<u64> = self.bases.keys().collect::<Result<_, _>>().map_err(unusable(REFERENCE_BASES_MAP))?;
        for address in known {
            self.bases.remove(&address).map_err(unusable(REFERENCE_BASES_MAP))?;
        }
        let lowest = directories.iter().map(AsRawFd::as_raw_fd).min().and_then(|lowest| u32::try_from(lowest).ok());
        // Any number but zero asks the program for the real one, which in a pid namespace is another.
        self.state
            .set(0, [u32::from(skip_own), 0, 0, 0, 0, 0, 0, 0, 0, 0, lowest.unwrap_or(0), 0, 0, 0, 0], 0)
            .map_err(unusable(REFERENCE_STATE_MAP))?;
        for (number, directory) in (0..).zip(directories) {
            let mut options = RawTracePointRunOptions::new();
            options.args[0] = u64::try_from(directory.as_raw_fd()).unwrap_or(u64::MAX);
            options.args[1] = number;
            tracepoint(&mut self.programs, REFERENCE_BASE_PROGRAM)?
                .test_run(options)
                .map_err(refused(REFERENCE_BASE_PROGRAM))?;
        }
        let state = self.state()?;
        if state.unfound != 0 || state.bases as usize != directories.len() {
            return Err(ReferenceError::Unmet { what: "the directories by their descriptors".into() });
        }
        Ok(())
    }

    fn state(&self) -> Result<ReferenceState, ReferenceError> {
        let [
            own,
            bases,
            unfound,
            own_tasks,
            own_files,
            broken,
            ended,
            records,
            unwritten,
            met,
            lowest,
            last_low,
            last_high,
            seal_low,
            seal_high,
        ] = self.state.get(&0, 0).map_err(unusable(REFERENCE_STATE_MAP))?;
        let (last, seal) = ([last_low, last_high], [seal_low, seal_high]);
        Ok(ReferenceState {
            own,
            bases,
            unfound,
            own_tasks,
            own_files,
            broken,
            ended,
            records,
            unwritten,
            met,
            lowest,
            last,
            seal,
        })
    }

    /// Lets the iterator go over all threads.
    fn run(&mut self) -> Result<(), ReferenceError> {
        drive(iterator(&mut self.programs)?, REFERENCE_TASK_PROGRAM).map(drop)
    }
}

/// Lets an iterator that writes nothing itself go over all threads. Returns the number of the descriptor that it was read by.
///
/// # Errors
/// When it does not come to its end.
pub(in crate::evidence) fn drive(program: &mut Iter, name: &'static str) -> Result<RawFd, ReferenceError> {
    let link = program.attach().map_err(refused(name))?;
    let link = program.take_link(link).map_err(refused(name))?;
    let mut file = link.into_file().map_err(|source| ReferenceError::Link { name, source: Box::new(source) })?;
    loop {
        match file.read(&mut [0; 8]) {
            Ok(0) => return Ok(file.as_raw_fd()),
            Ok(_) => return Err(ReferenceError::Output { what: "text where there is none" }),
            // A million threads in a row: the kernel wants to be asked again.
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(source) => return Err(ReferenceError::Read { name, source }),
        }
    }
}

fn record(bytes: &[u8]) -> Result<Record, ReferenceError> {
    let absurd = |what| ReferenceError::Output { what };
    let short = || absurd("a record that is too short");
    let word = |at: usize| bytes[at..].first_chunk().map(|word| u32::from_ne_bytes(*word)).ok_or_else(short);
    let entry = bytes[offset_of!(ReferenceRecord, entry)..].first_chunk().ok_or_else(short)?;
    let name = &bytes[offset_of!(ReferenceRecord, name)..];
    let end = name.iter().position(|byte| *byte == 0).ok_or_else(|| absurd("a name without end"))?;
    Ok(Record {
        base: word(offset_of!(ReferenceRecord, base))? as usize,
        entry: u64::from_ne_bytes(*entry),
        name: name[..end].to_vec(),
        process: word(offset_of!(ReferenceRecord, process))?,
        kind: match word(offset_of!(ReferenceRecord, kind))? {
            REFERENCE_FILE => ReferenceKind::Descriptor,
            REFERENCE_WORKING_DIRECTORY => ReferenceKind::WorkingDirectory,
            REFERENCE_ROOT => ReferenceKind::Root,
            REFERENCE_EXECUTABLE => ReferenceKind::Executable,
            REFERENCE_COUNTED => ReferenceKind::Counted,
            REFERENCE_FILLED => ReferenceKind::Unsettled,
            _ => return Err(absurd("a kind that it does not have")),
        },
        place: if word(offset_of!(ReferenceRecord, exact))? == 1 { Place::Exact } else { Place::Below },
    })
}

fn iterator(programs: &mut Ebpf) -> Result<&mut Iter, ReferenceError> {
    let name = REFERENCE_TASK_PROGRAM;
    programs.program_mut(name).ok_or(ReferenceError::Object { name })?.try_into().map_err(refused(name))
}

fn tracepoint<'a>(programs: &'a mut Ebpf, name: &'static str) -> Result<&'a mut RawTracePoint, ReferenceError> {
    programs.program_mut(name).ok_or(ReferenceError::Object { name })?.try_into().map_err(refused(name))
}

fn refused(name: &'static str) -> impl FnOnce(ProgramError) -> ReferenceError {
    move |source| ReferenceError::Program { name, source: Box::new(source) }
}

fn unusable(name: &'static str) -> impl FnOnce(MapError) -> ReferenceError {
    move |source| ReferenceError::Map { name, source: Box::new(source) }
}
