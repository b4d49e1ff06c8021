//! References by the kernel's own iterators over tasks and their open files.

use super::{Found, add, known_answer, layout};
use crate::evidence::btf::{self, LayoutError};
use crate::evidence::object::OBJECT;
use crate::evidence::procfs::{Procfs, ProcfsError};
use crate::evidence::source::CondemnedIn;
use crate::model::coverage::{GapCause, Reach};
use crate::model::pin::Place;
use crate::model::reference::{Reference, ReferenceKind};
use aya::maps::{Array, HashMap, MapData, MapError};
use aya::programs::links::LinkError;
use aya::programs::{Iter, ProgramError, RawTracePoint, RawTracePointRunOptions, TestRun as _};
use aya::{Btf, BtfError, Ebpf, EbpfError, EbpfLoader};
use reclaim_ebpf::reference_abi::{
    REFERENCE_BASE_PROGRAM, REFERENCE_BASE_SLOTS, REFERENCE_BASES_MAP, REFERENCE_EXECUTABLE, REFERENCE_FILE,
    REFERENCE_FILE_PROGRAM, REFERENCE_LAYOUT_GLOBAL, REFERENCE_ROOT, REFERENCE_STATE_MAP, REFERENCE_TASK_PROGRAM,
    REFERENCE_WORKING_DIRECTORY, ReferenceRecord, ReferenceState,
};
use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind, Read as _};
use std::mem::offset_of;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// Looks that are tried before tasks are said to change too fast.
const TRIES: u32 = 32;
const RECORD: usize = size_of::<ReferenceRecord>();

/// Why the iterators tell nothing.
#[derive(Debug, thiserror::Error)]
pub enum ReferenceError {
    /// The structures of this kernel cannot be looked into.
    #[error("the kernel's tasks cannot be looked into without its type information")]
    Layout(#[from] LayoutError),
    /// The iterators cannot be found in the type information.
    #[error("the kernel has no iterator over tasks and files; it takes Linux 5.8")]
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
    /// The references that have to be found cannot be made.
    #[error("{call} failed for the references that the iterators have to find")]
    Probe {
        /// The call.
        call: &'static str,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
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
    state: Array<MapData, [u32; 8]>,
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
        let bytes = btf::vmlinux()?;
        let words = layout::words(&layout::layout(&bytes)?);
        let types = Btf::parse(&bytes, aya::Endianness::default())?;
        let mut loader = EbpfLoader::new();
        loader.btf(None).override_global(REFERENCE_LAYOUT_GLOBAL, &words[..], true);
        let mut programs = loader.load(OBJECT).map_err(|error| ReferenceError::Load(Box::new(error)))?;
        for (name, kind) in [(REFERENCE_FILE_PROGRAM, "task_file"), (REFERENCE_TASK_PROGRAM, "task")] {
            iterator(&mut programs, name)?.load(kind, &types).map_err(refused(name))?;
        }
        tracepoint(&mut programs)?.load().map_err(refused(REFERENCE_BASE_PROGRAM))?;
        let mut map = |name| programs.take_map(name).ok_or(ReferenceError::Object { name });
        let (bases, state) = (map(REFERENCE_BASES_MAP)?, map(REFERENCE_STATE_MAP)?);
        let bases = HashMap::try_from(bases).map_err(unusable(REFERENCE_BASES_MAP))?;
        let state = Array::try_from(state).map_err(unusable(REFERENCE_STATE_MAP))?;
        let mut iterators = Self { programs, bases, state };
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
        for attempt in 0..TRIES {
            self.look_for(directories, skip_own)?;
            let mut records = self.run(REFERENCE_TASK_PROGRAM)?;
            records.extend(self.run(REFERENCE_FILE_PROGRAM)?);
            let state = self.state()?;
            if state.broken != 0 {
                std::thread::sleep(Duration::from_micros(50 << attempt.min(6)));
                continue;
            }
            let unmet = |what: &str| ReferenceError::Unmet { what: what.to_owned() };
            if state.files_ended == 0 || state.tasks_ended == 0 {
                return Err(unmet("the end of all tasks"));
            }
            if skip_own && (state.own_tasks == 0 || (state.own_files as usize) < directories.len()) {
                return Err(unmet("descriptors of reclaim's own that are open"));
            }
            return Ok(records);
        }
        Err(ReferenceError::Restless)
    }

    fn look_for(&mut self, directories: &[BorrowedFd<'_>], skip_own: bool) -> Result<(), ReferenceError> {
        let known: Vec<u64> = self.bases.keys().collect::<Result<_, _>>().map_err(unusable(REFERENCE_BASES_MAP))?;
        for address in known {
            self.bases.remove(&address).map_err(unusable(REFERENCE_BASES_MAP))?;
        }
        // Any number but zero asks the program for the real one, which in a pid namespace is another.
        self.state.set(0, [u32::from(skip_own), 0, 0, 0, 0, 0, 0, 0], 0).map_err(unusable(REFERENCE_STATE_MAP))?;
        for (number, directory) in (0..).zip(directories) {
            let mut options = RawTracePointRunOptions::new();
            options.args[0] = u64::try_from(directory.as_raw_fd()).unwrap_or(u64::MAX);
            options.args[1] = number;
            tracepoint(&mut self.programs)?.test_run(options).map_err(refused(REFERENCE_BASE_PROGRAM))?;
        }
        let state = self.state()?;
        if state.unfound != 0 || state.bases as usize != directories.len() {
            return Err(ReferenceError::Unmet { what: "the directories by their descriptors".into() });
        }
        Ok(())
    }

    fn state(&self) -> Result<ReferenceState, ReferenceError> {
        let [own, bases, unfound, own_tasks, own_files, broken, files_ended, tasks_ended] =
            self.state.get(&0, 0).map_err(unusable(REFERENCE_STATE_MAP))?;
        Ok(ReferenceState { own, bases, unfound, own_tasks, own_files, broken, files_ended, tasks_ended })
    }

    fn run(&mut self, name: &'static str) -> Result<Vec<Record>, ReferenceError> {
        let program = iterator(&mut self.programs, name)?;
        let link = program.attach().map_err(refused(name))?;
        let link = program.take_link(link).map_err(refused(name))?;
        let file = link.into_file().map_err(|source| ReferenceError::Link { name, source: Box::new(source) })?;
        read(file).map_err(|source| ReferenceError::Read { name, source })?
    }
}

/// Reads an iterator to its end.
fn read(mut file: File) -> io::Result<Result<Vec<Record>, ReferenceError>> {
    let (mut records, mut buffer, mut filled) = (Vec::new(), vec![0; 64 * RECORD], 0);
    loop {
        match file.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            // A million objects in a row of which none was written: the kernel wants to be asked again.
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => continue,
            Err(error) => return Err(error),
        }
        let whole = filled / RECORD * RECORD;
        for bytes in buffer[..whole].chunks_exact(RECORD) {
            match record(bytes) {
                Ok(record) => records.push(record),
                Err(error) => return Ok(Err(error)),
            }
        }
        buffer.copy_within(whole..filled, 0);
        filled -= whole;
    }
    Ok(if filled == 0 { Ok(records) } else { Err(ReferenceError::Output { what: "half a record" }) })
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
            _ => return Err(absurd("a kind that it does not have")),
        },
        place: if word(offset_of!(ReferenceRecord, exact))? == 1 { Place::Exact } else { Place::Below },
    })
}

fn iterator<'a>(programs: &'a mut Ebpf, name: &'static str) -> Result<&'a mut Iter, ReferenceError> {
    programs.program_mut(name).ok_or(ReferenceError::Object { name })?.try_into().map_err(refused(name))
}

fn tracepoint(programs: &mut Ebpf) -> Result<&mut RawTracePoint, ReferenceError> {
    let name = REFERENCE_BASE_PROGRAM;
    programs.program_mut(name).ok_or(ReferenceError::Object { name })?.try_into().map_err(refused(name))
}

fn refused(name: &'static str) -> impl FnOnce(ProgramError) -> ReferenceError {
    move |source| ReferenceError::Program { name, source: Box::new(source) }
}

fn unusable(name: &'static str) -> impl FnOnce(MapError) -> ReferenceError {
    move |source| ReferenceError::Map { name, source: Box::new(source) }
}
