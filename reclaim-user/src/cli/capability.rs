//! Which capabilities this process has, and what works without those that it has not.

use crate::model::check::Three;

/// One capability that reclaim makes use of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Capability {
    /// Its name.
    pub(super) name: &'static str,
    bit: u32,
    /// What does not work without it.
    pub(super) without: &'static str,
    /// What still works without it.
    pub(super) still: &'static str,
}

const SYS_ADMIN: u32 = 21;
const PERFMON: u32 = 38;
const BPF: u32 = 39;

/// All of them. Numbers from `include/uapi/linux/capability.h`.
pub(super) const CAPABILITIES: [Capability; 5] = [
    Capability {
        name: "CAP_SYS_ADMIN",
        bit: SYS_ADMIN,
        without: "mount namespaces cannot be entered or listed",
        still: "mount tables of readable tasks are read, and what they pin is known",
    },
    Capability {
        name: "CAP_BPF",
        bit: BPF,
        without: "no probes and no walk of the kernel's mounts",
        still: "evidence comes from a scan",
    },
    Capability {
        name: "CAP_PERFMON",
        bit: PERFMON,
        without: "no probes and no walk of the kernel's mounts",
        still: "evidence comes from a scan",
    },
    Capability {
        name: "CAP_SYS_PTRACE",
        bit: 19,
        without: "other users' tasks cannot be read, so evidence does not cover what they could hold",
        still: "entries that they could never hold can be covered, and pins that are seen always count",
    },
    Capability {
        name: "CAP_DAC_READ_SEARCH",
        bit: 2,
        without: "paths inside other users' private directories cannot be asked about",
        still: "every path that this user may reach",
    },
];

/// The effective set of this process; none when it cannot be read.
pub(super) fn effective() -> Option<u64> {
    parse(&std::fs::read_to_string("/proc/self/status").ok()?)
}

fn parse(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

impl Capability {
    /// Whether a set has it. The kernel takes CAP_SYS_ADMIN for CAP_BPF and CAP_PERFMON, too.
    pub(super) fn held(self, effective: Option<u64>) -> Three {
        let has = |bit: u32| effective.map(|set| set & (1 << bit) != 0);
        let stand_in = if matches!(self.bit, BPF | PERFMON) { has(SYS_ADMIN) } else { Some(false) };
        match (has(self.bit), stand_in) {
            (Some(true), _) | (_, Some(true)) => Three::Yes,
            (Some(false), _) => Three::No,
            (None, _) => Three::CouldNotTell,
        }
    }
}

/// What is missing, what that costs and what still works, in one sentence; none when nothing is missing.
pub(super) fn hint() -> Option<String> {
    sentence(effective())
}

fn sentence(effective: Option<u64>) -> Option<String> {
    let missing: Vec<Capability> =
        CAPABILITIES.into_iter().filter(|capability| capability.held(effective) == Three::No).collect();
    if missing.is_empty() {
        return None;
    }
    let names: Vec<&str> = missing.iter().map(|capability| capability.name).collect();
    let join = |parts: Vec<&'static str>| {
        let mut seen: Vec<&'static str> = Vec::new();
        for part in parts {
            if !seen.contains(&part) {
                seen.push(part);
            }
        }
        seen.join("; ")
    };
    let without = join(missing.iter().map(|capability| capability.without).collect());
    let still = join(missing.iter().map(|capability| capability.still).collect());
    Some(format!("missing {}: {without}. What still works: {still}. Run as root for all of it", names.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_with_what_still_works() {
        assert_eq!(parse("Name:\tx\nCapEff:\t000001ffffffffff\n"), Some(0x1ff_ffff_ffff));
        assert_eq!(sentence(Some(u64::MAX)), None);
        let none = sentence(Some(0)).expect("all are missing");
        for capability in CAPABILITIES {
            assert!(none.contains(capability.name) && none.contains(capability.still), "{none}");
        }
        let admin = sentence(Some(1 << SYS_ADMIN)).expect("some are missing");
        assert!(!admin.contains("CAP_BPF") && admin.contains("CAP_SYS_PTRACE"), "{admin}");
        assert_eq!(CAPABILITIES[0].held(None), Three::CouldNotTell);
    }
}
