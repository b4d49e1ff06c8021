//! Why the kernel may have refused: rights that this process lacks, and lockdown.

use std::fs;

/// Capabilities that probes need, with their bit. <include/uapi/linux/capability.h>
const NEEDED: [(&str, u32); 2] = [("CAP_BPF", 39), ("CAP_PERFMON", 38)];
/// Stands in for both.
const CAP_SYS_ADMIN: u32 = 21;
/// Shows the level of lockdown in brackets.
const LOCKDOWN: &str = "/sys/kernel/security/lockdown";

/// What may stand in the way; none where nothing is seen to.
pub(in crate::evidence) fn cause() -> Option<String> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let lockdown = fs::read_to_string(LOCKDOWN).unwrap_or_default();
    let own_user_namespace = fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| !is_whole(&map));
    judge(effective(&status), &lockdown, own_user_namespace)
}

fn judge(capabilities: Option<u64>, lockdown: &str, own_user_namespace: bool) -> Option<String> {
    if let Some(capabilities) = capabilities {
        let has = |bit: u32| capabilities >> bit & 1 != 0;
        let missing: Vec<_> = NEEDED.into_iter().filter(|&(_, bit)| !has(bit)).map(|(name, _)| name).collect();
        if !missing.is_empty() && !has(CAP_SYS_ADMIN) {
            return Some(format!("this process lacks {}; run as root or grant it", missing.join(" and ")));
        }
    }
    if lockdown.contains("[confidentiality]") {
        return Some("kernel lockdown is at level confidentiality, which forbids reading kernel memory".to_owned());
    }
    own_user_namespace.then(|| {
        "this process is in a user namespace of its own, where capabilities do not count for BPF; run it on the host"
            .to_owned()
    })
}

/// `CapEff` of a status file.
fn effective(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

/// Whether a `uid_map` is the first user namespace's, which maps everything to itself.
fn is_whole(map: &str) -> bool {
    map.split_ascii_whitespace().eq(["0", "0", "4294967295"])
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: u64 = (1 << 41) - 1;

    #[test]
    fn missing_capabilities_are_named() {
        let why = judge(Some(ALL & !(1 << CAP_SYS_ADMIN) & !(1 << 38)), "", false).expect("a cause");
        assert!(why.contains("CAP_PERFMON") && !why.contains("CAP_BPF"), "{why}");
        assert!(judge(Some(0), "", false).expect("a cause").contains("CAP_BPF and CAP_PERFMON"));
        assert_eq!(judge(Some(1 << CAP_SYS_ADMIN), "", false), None);
    }

    #[test]
    fn lockdown_and_user_namespaces_are_named() {
        assert!(judge(Some(ALL), "none integrity [confidentiality]", false).expect("a cause").contains("lockdown"));
        assert_eq!(judge(Some(ALL), "none [integrity] confidentiality", false), None);
        assert!(judge(Some(ALL), "", true).expect("a cause").contains("user namespace"));
    }

    #[test]
    fn proc_files_are_understood() {
        assert_eq!(effective("Name:\tx\nCapEff:\t000001fffeffffff\nCapBnd:\t0\n"), Some(0x1ff_feff_ffff));
        assert_eq!(effective("Name:\tx\n"), None);
        assert!(is_whole("         0          0 4294967295\n"));
        assert!(!is_whole("         0       1000          1\n"));
    }
}
