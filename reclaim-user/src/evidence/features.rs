//! What this kernel gives, asked by trying. "No" is only said where the kernel is known to mean it.

use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use aya::maps::MapType;
use aya::programs::ProgramType;
use aya::sys::{is_map_supported, is_program_supported};

use super::btf;
use super::probes::{privileges, tracefs};

/// Three answers, so that a refusal is never taken for an absence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is there.
    Yes,
    /// It is not.
    No {
        /// What says so.
        why: String,
    },
    /// It could not be told.
    Unknown {
        /// What stood in the way.
        why: String,
    },
}

impl fmt::Display for Answer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Yes => formatter.pad("yes"),
            Self::No { why } => write!(formatter, "no: {why}"),
            Self::Unknown { why } => write!(formatter, "could not tell: {why}"),
        }
    }
}

/// One feature and whether it is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feature {
    /// What it is.
    pub name: &'static str,
    /// What it is for.
    pub used_for: &'static str,
    /// Whether it is there.
    pub answer: Answer,
}

/// Asks for every feature that the probes use or could use.
#[must_use]
pub fn probe() -> Vec<Feature> {
    let feature = |name, used_for, answer| Feature { name, used_for, answer };
    vec![
        feature("kernel type information", "finding kernel structures", type_information()),
        feature("BPF system call", "every probe", program(ProgramType::SocketFilter)),
        feature("BPF ring buffer", "events", map(MapType::RingBuf)),
        feature("raw tracepoints", "forks and exits; the last rung", program(ProgramType::RawTracePoint)),
        feature("tracepoints", "system calls", program(ProgramType::TracePoint)),
        feature("tracefs", "system calls", trace_file_system()),
        feature("kprobes", "a cheaper rung", kernel_probes()),
        feature("fentry and fexit", "the cheapest rung", program(ProgramType::Tracing)),
    ]
}

fn type_information() -> Answer {
    match btf::running_kernel() {
        Ok(_) => Answer::Yes,
        Err(error) => {
            let why = describe(&error);
            match error {
                btf::LayoutError::Read { source, .. } if source.kind() == ErrorKind::NotFound => Answer::No { why },
                _ => Answer::Unknown { why },
            }
        }
    }
}

fn program(kind: ProgramType) -> Answer {
    answer(is_program_supported(kind).map_err(|error| describe(&error)))
}

fn map(kind: MapType) -> Answer {
    answer(is_map_supported(kind).map_err(|error| describe(&error)))
}

fn answer(supported: Result<bool, String>) -> Answer {
    match supported {
        Ok(true) => Answer::Yes,
        Ok(false) => match privileges::cause() {
            // A refusal for lack of rights can look like an absence.
            Some(why) => Answer::Unknown { why },
            None => Answer::No { why: "the kernel does not know it".to_owned() },
        },
        Err(why) => Answer::Unknown { why: privileges::cause().unwrap_or(why) },
    }
}

fn trace_file_system() -> Answer {
    if tracefs::mounted().is_some() {
        return Answer::Yes;
    }
    match fs::read_to_string("/proc/filesystems") {
        Ok(text) if text.lines().any(|line| line.split_ascii_whitespace().last() == Some("tracefs")) => {
            match tracefs::with_tracefs(|| tracefs::mounted().is_some()) {
                Ok(true) => Answer::Yes,
                Ok(false) => Answer::Unknown { why: "tracefs is mounted and shows no events".to_owned() },
                Err(error) => Answer::Unknown { why: format!("tracefs is not mounted and cannot be: {error}") },
            }
        }
        Ok(_) => Answer::No { why: "the kernel has no tracefs".to_owned() },
        Err(error) => Answer::Unknown { why: format!("cannot read /proc/filesystems: {error}") },
    }
}

fn kernel_probes() -> Answer {
    let source = Path::new("/sys/bus/event_source/devices/kprobe");
    match (source.try_exists(), Path::new("/sys/bus/event_source").try_exists()) {
        (Ok(true), _) => program(ProgramType::KProbe),
        (Ok(false), Ok(true)) => Answer::No { why: format!("the kernel has no {}", source.display()) },
        _ => Answer::Unknown { why: "sysfs does not show the kernel's event sources".to_owned() },
    }
}

fn describe(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        text = format!("{text}: {error}");
        next = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_feature_gets_an_answer_with_a_reason() {
        for feature in probe() {
            match &feature.answer {
                Answer::Yes => {}
                Answer::No { why } | Answer::Unknown { why } => assert!(!why.is_empty(), "{}", feature.name),
            }
            eprintln!("{}: {}", feature.name, feature.answer);
        }
    }
}
