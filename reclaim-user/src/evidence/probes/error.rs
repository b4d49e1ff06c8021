//! Why there are no probes.

use std::io;

use aya::EbpfError;
use aya::maps::MapError;
use aya::programs::ProgramError;
use thiserror::Error;

use super::hooks::HookStatus;
use super::privileges;
use crate::evidence::btf::LayoutError;

/// Why the probes are not to be had. Whatever was attached by then is detached again.
#[derive(Debug, Error)]
pub enum ProbeError {
    /// The kernel's structures are not known.
    #[error("probes need the layout of kernel structures")]
    Layout(#[source] LayoutError),
    /// The object does not load.
    #[error("cannot load the probes' BPF object{}", because(.why.as_ref()))]
    Load {
        /// What stands in the way, where that is known.
        why: Option<String>,
        /// What the kernel or the loader said.
        #[source]
        source: Box<EbpfError>,
    },
    /// The object is not the one that this binary was made with.
    #[error("the BPF object has no {kind} {name}: it is not the one that this program was built with")]
    Object {
        /// A program or a map.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// The descriptor of a program cannot be copied.
    #[error("cannot copy the descriptor of a BPF program")]
    Descriptor {
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// A map cannot be used.
    #[error("cannot use BPF map {name}")]
    Map {
        /// Its name.
        name: &'static str,
        /// What the kernel or the loader said.
        #[source]
        source: Box<MapError>,
    },
    /// The counters cannot be mapped.
    #[error("cannot map BPF map {name} into memory")]
    Counters {
        /// Its name.
        name: &'static str,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// A hook could not be attached: events would be missing, so the stream could free nothing.
    #[error("cannot attach to {}{}", refused(.hooks), because(.why.as_ref()))]
    Refused {
        /// Every hook.
        hooks: Vec<HookStatus>,
        /// What stands in the way, where that is known.
        why: Option<String>,
    },
    /// The probes did not report what was done to try them.
    #[error("the probes do not report a call made to try them: {why}")]
    KnownAnswer {
        /// What was amiss.
        why: String,
    },
    /// What was to be done to try the probes could not be done.
    #[error("cannot make a mount namespace to try the probes in: {call}")]
    Try {
        /// The call.
        call: &'static str,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
}

impl ProbeError {
    pub(super) fn load(source: EbpfError) -> Self {
        let refused = is_refusal(&source);
        Self::Load { why: refused.then(privileges::cause).flatten(), source: Box::new(source) }
    }
}

/// Whether the kernel refused for lack of rights, somewhere down the chain.
pub(super) fn is_refusal(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        let code = error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error);
        if matches!(code, Some(libc::EPERM | libc::EACCES)) {
            return true;
        }
        next = error.source();
    }
    false
}

/// What a program that does not load or attach has to say, with all that lies beneath.
pub(super) fn explain(error: &ProgramError) -> String {
    let mut text = error.to_string();
    let mut next = std::error::Error::source(error);
    while let Some(error) = next {
        let beneath = error.to_string();
        if !text.contains(&beneath) {
            text = format!("{text}: {beneath}");
        }
        next = error.source();
    }
    text
}

fn because(why: Option<&String>) -> String {
    why.map(|why| format!(": {why}")).unwrap_or_default()
}

/// What was refused; calls that fared alike are told together.
fn refused(hooks: &[HookStatus]) -> String {
    use super::hooks::HookState;
    let mut groups: Vec<(String, Vec<&str>)> = Vec::new();
    for hook in hooks {
        let HookState::Refused { why } = &hook.state else { continue };
        let why = if hook.passed.is_empty() { format!("{}: {why}", hook.rung) } else { hook.ladder() };
        match groups.iter_mut().find(|(other, _)| *other == why) {
            Some((_, names)) => names.push(hook.hook),
            None => groups.push((why, vec![hook.hook])),
        }
    }
    let texts = groups.into_iter().map(|(why, names)| format!("{} ({why})", names.join(", ")));
    texts.collect::<Vec<_>>().join(", ")
}
