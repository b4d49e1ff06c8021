//! What is run inside a virtual machine.

use serde::{Deserialize, Serialize};

use crate::programs::Program;

/// One test program inside a machine.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Run {
    /// As people know it; also its file name.
    pub(super) name: String,
    /// What it is called with.
    pub(super) arguments: Vec<String>,
}

/// File systems that are modules in some kernels.
pub(super) const MODULES: [&str; 2] = ["overlay", "fuse"];

/// Commands of busybox that the tests start.
pub(super) const COMMANDS: [&str; 14] = [
    "sh", "mount", "umount", "unshare", "nsenter", "chattr", "sleep", "mkdir", "true", "cat", "kill", "head", "printf",
    "touch",
];

/// Programs of this host that the tests start, taken along with the libraries they are linked with.
pub(super) const BORROWED: [&str; 1] = ["bwrap"];

/// Test programs of the packages that ask something of the kernel, and the parts of them that do.
const ASKING: [(&str, &[&str]); 4] =
    [("reclaim_user", &["evidence::", "removal::", "sys::"]), ("host_probes", &[]), ("scan", &[]), ("cli", &[])];

/// Tests whose sandboxes are scripts in a language that a machine has not. All of them have a twin in the tiers, which
/// do without.
const SCRIPTED: [(&str, &[&str]); 3] = [
    ("reclaim_user", &["evidence::references::tests::host_"]),
    ("host_probes", &["a_task_made_by_clone"]),
    ("scan", &["scale::", "by_a_thread"]),
];

/// How a program is run inside a machine; None for one that asks nothing of the kernel.
pub(super) fn run_of(program: &Program) -> Option<Run> {
    let mut arguments = Vec::new();
    if program.is_tier() {
        let asks = ["host_", "race_", "crash_"].iter().any(|tier| program.target.starts_with(tier));
        if !asks {
            return None;
        }
    } else {
        let (_, parts) = ASKING.iter().find(|(target, _)| program.test && program.target == *target)?;
        arguments.extend(parts.iter().map(|&part| part.to_owned()));
        let scripted = SCRIPTED.iter().filter(|(target, _)| program.target == *target);
        for left_out in scripted.flat_map(|(_, tests)| *tests) {
            arguments.extend(["--skip".to_owned(), (*left_out).to_owned()]);
        }
    }
    Some(Run { name: program.target.clone(), arguments })
}
