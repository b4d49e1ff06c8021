//! The mount fence: where the kernel has BPF LSM, binds of condemned entries by others are refused.
//!
//! Optional, and off unless the configuration asks for it. It makes restoring rarer; nothing rests on it, and what it
//! lets through is found by the confirmation: it knows entries by where they lie, and a bind's source only where the
//! kernel tells that by a descriptor, by the working directory or by `move_mount`. The kernel takes it down with the
//! process, however that ends.

pub(super) mod layout;

use super::btf::{self, LayoutError};
use super::features::Answer;
use super::layouts;
use super::object::{self, Given};
use super::probes::privileges;
use aya::maps::{HashMap, MapData, MapError};
use aya::programs::{Lsm, ProgramError, RawTracePoint, RawTracePointRunOptions, TestRun as _};
use aya::{Btf, BtfError, Ebpf, EbpfError, Endianness};
use layout::{FenceTypes, HOOKS};
use reclaim_ebpf::fence_abi::{
    FENCE_BIND_PROGRAM, FENCE_LAYOUT_GLOBAL, FENCE_MOVE_PROGRAM, FENCE_STORE_PROGRAM, FENCE_STORES_MAP,
};
use std::error::Error;
use std::fmt;
use std::fs;
use std::io::{self, ErrorKind};
use std::iter::successors;
use std::os::fd::{AsRawFd as _, BorrowedFd};

/// The security modules in use, separated by commas. <Documentation/admin-guide/LSM/index.rst>
const MODULES: &str = "/sys/kernel/security/lsm";
/// The programs, and the hooks that they are for.
const PROGRAMS: [(&str, &str); 2] = [(FENCE_MOVE_PROGRAM, "move_mount"), (FENCE_BIND_PROGRAM, "sb_mount")];

/// Why there is no mount fence.
#[derive(Debug, thiserror::Error)]
pub enum FenceError {
    /// BPF is not among the security modules.
    #[error("bpf is not among the kernel's security modules ({modules}); boot with lsm=...,bpf to have it")]
    NotListed {
        /// Those that are.
        modules: String,
    },
    /// The security modules cannot be listed.
    #[error(
        "cannot read {MODULES}, which tells whether the kernel has BPF LSM; mount securityfs on /sys/kernel/security"
    )]
    Modules(#[source] io::Error),
    /// The structures of this kernel cannot be looked into.
    #[error("the mount fence needs the kernel's type information")]
    Layout(#[from] LayoutError),
    /// The kernel has no such hook.
    #[error("the kernel has no hook bpf_lsm_{hook}; it takes CONFIG_BPF_LSM")]
    NoHook {
        /// The hook.
        hook: &'static str,
    },
    /// The number of a hook's function cannot be handed on.
    #[error("the type of a hook cannot be told")]
    Types(#[from] BtfError),
    /// The object cannot be loaded.
    #[error("the mount fence cannot be loaded; it takes CAP_BPF, CAP_PERFMON and Linux 5.17")]
    Load(#[source] Box<EbpfError>),
    /// A program is refused or does not run.
    #[error("the program {name} of the mount fence is refused; it takes CAP_BPF, CAP_PERFMON and Linux 5.17")]
    Program {
        /// The program.
        name: &'static str,
        /// What stands in the way.
        #[source]
        source: Box<ProgramError>,
    },
    /// The object lacks something.
    #[error("the object has no {name}; this build is broken")]
    Object {
        /// What it lacks.
        name: &'static str,
    },
    /// A map cannot be used.
    #[error("the map {FENCE_STORES_MAP} cannot be used")]
    Map(#[source] Box<MapError>),
    /// The kernel did not find the directory of condemned entries behind its descriptor.
    #[error("the mount fence was not told where condemned entries lie")]
    Unmet,
}

impl FenceError {
    /// Whether the kernel has not what it takes. A refusal may have other causes.
    fn is_absence(&self) -> bool {
        match self {
            Self::NotListed { .. } | Self::NoHook { .. } => true,
            Self::Layout(LayoutError::MissingStruct { .. } | LayoutError::MissingMember { .. }) => true,
            Self::Layout(LayoutError::Read { source, .. }) => source.kind() == ErrorKind::NotFound,
            _ => false,
        }
    }
}

/// The attached programs. They are detached when this goes.
pub struct MountFence {
    programs: Ebpf,
    stores: HashMap<MapData, u64, u32>,
}

impl fmt::Debug for MountFence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MountFence").finish_non_exhaustive()
    }
}

impl MountFence {
    /// Loads and attaches the programs. They refuse nothing before there is a store.
    ///
    /// # Errors
    /// When the kernel has no BPF LSM, does not tell, or refuses a program.
    pub fn attach() -> Result<Self, FenceError> {
        modules()?;
        Self::load()
    }

    fn load() -> Result<Self, FenceError> {
        let FenceTypes { layout, hooks } = layouts::of_running_kernel()?.mount_fence.clone()?;
        let layout = layout::bytes(&layout);
        let given = Given { globals: &[(FENCE_LAYOUT_GLOBAL, &layout)], sizes: &[] };
        let mut programs = object::load(&given).map_err(|error| FenceError::Load(Box::new(error)))?;
        recorder(&mut programs)?.load().map_err(refused(FENCE_STORE_PROGRAM))?;
        for (((name, hook), function), number) in PROGRAMS.into_iter().zip(HOOKS).zip(hooks) {
            let types = btf::only(function, number.ok_or(FenceError::NoHook { hook })?)?;
            let types = Btf::parse(&types, Endianness::default())?;
            let program = programs.program_mut(name).ok_or(FenceError::Object { name })?;
            let program: &mut Lsm = program.try_into().map_err(refused(name))?;
            program.load(hook, &types).map_err(refused(name))?;
            program.attach().map_err(refused(name))?;
        }
        let stores = programs.take_map(FENCE_STORES_MAP).ok_or(FenceError::Object { name: FENCE_STORES_MAP })?;
        let stores = HashMap::try_from(stores).map_err(unusable)?;
        Ok(Self { programs, stores })
    }

    /// Refuses to bind what lies in a directory of condemned entries, to all but the calling process, in place of the
    /// one before. It has to stay open until this is called again or the fence goes.
    ///
    /// # Errors
    /// When the kernel was not told. Nothing is refused then.
    pub fn guard(&mut self, store: Option<BorrowedFd<'_>>) -> Result<(), FenceError> {
        let known: Vec<u64> = self.stores.keys().collect::<Result<_, _>>().map_err(unusable)?;
        for address in known {
            self.stores.remove(&address).map_err(unusable)?;
        }
        let Some(store) = store else { return Ok(()) };
        let mut options = RawTracePointRunOptions::new();
        options.args[0] = u64::try_from(store.as_raw_fd()).unwrap_or(u64::MAX);
        recorder(&mut self.programs)?.test_run(options).map_err(refused(FENCE_STORE_PROGRAM))?;
        if self.stores.keys().count() == 1 { Ok(()) } else { Err(FenceError::Unmet) }
    }
}

/// Whether this kernel gives a mount fence: by attaching one that refuses nothing.
#[must_use]
pub fn answer() -> Answer {
    match (modules(), MountFence::load()) {
        (Ok(()), Ok(_)) => Answer::Yes,
        (Ok(()), Err(error)) | (Err(error @ FenceError::NotListed { .. }), _) => answered(&error),
        (Err(error), Ok(_)) => answered(&error),
        (Err(_), Err(error)) if error.is_absence() => answered(&error),
        (Err(unlisted), Err(error)) => Answer::Unknown { why: format!("{}; and {}", chain(&error), chain(&unlisted)) },
    }
}

fn answered(error: &FenceError) -> Answer {
    let why = chain(error);
    if error.is_absence() {
        return Answer::No { why };
    }
    Answer::Unknown { why: privileges::cause().map_or_else(|| why.clone(), |cause| format!("{cause}: {why}")) }
}

/// Looks whether BPF is among the security modules. A program attaches to its hooks also where it is not, and never runs.
fn modules() -> Result<(), FenceError> {
    let modules = fs::read_to_string(MODULES).map_err(FenceError::Modules)?;
    let modules = modules.trim();
    if modules.split(',').any(|module| module == "bpf") {
        return Ok(());
    }
    Err(FenceError::NotListed { modules: modules.to_owned() })
}

fn recorder(programs: &mut Ebpf) -> Result<&mut RawTracePoint, FenceError> {
    let name = FENCE_STORE_PROGRAM;
    programs.program_mut(name).ok_or(FenceError::Object { name })?.try_into().map_err(refused(name))
}

fn refused(name: &'static str) -> impl FnOnce(ProgramError) -> FenceError {
    move |source| FenceError::Program { name, source: Box::new(source) }
}

fn unusable(source: MapError) -> FenceError {
    FenceError::Map(Box::new(source))
}

/// An error with its causes.
fn chain(error: &dyn Error) -> String {
    let causes = successors(error.source(), |&cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
