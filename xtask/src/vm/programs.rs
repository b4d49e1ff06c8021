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
    /// Variables of its environment.
    pub(super) environment: Vec<(String, String)>,
}

/// Variables that let reclaim begin with the last rung of its probes. To attach by the first ones and to let go of them
/// again takes an emulated kernel ten seconds, for it changes its own text some hundred times.
const LAST_RUNG: [(&str, &str); 2] = [("RECLAIM_TEST", "1"), ("RECLAIM_TEST_DISABLE", "fentry,kprobe,tracepoint")];

/// Tiers in which services begin by the first rung that works, as everywhere else.
const FIRST_RUNG: [&str; 3] = ["host_ladder", "race_torture", "race_gap"];

/// File systems that are modules in some kernels.
pub(super) const MODULES: [&str; 2] = ["overlay", "fuse"];

/// Commands of busybox that the tests start.
pub(super) const COMMANDS: [&str; 12] =
    ["sh", "sleep", "mkdir", "true", "cat", "kill", "head", "printf", "touch", "test", "echo", "rm"];

/// Programs of this host that the tests start, taken along with the libraries they are linked with.
pub(super) const BORROWED: [&str; 6] = ["bwrap", "chattr", "mount", "nsenter", "umount", "unshare"];

/// How much is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// What sees mounts and attaches probes, and the binary among real sandboxes: as long as the tests of this host take.
    Evidence,
    /// Tests of what another kernel could do otherwise: a quarter of an hour and more.
    Kernel,
    /// Every test that asks something of the kernel.
    Everything,
    /// No test: what the probes cost is measured instead.
    Probes,
}

/// The part of [`KERNEL`] that is run beside the tests of this host.
const EVIDENCE: [&str; 4] = ["reclaim_user", "host_probes", "scan", "host_cases_bubblewrap"];

/// Test programs of what another kernel could do otherwise, and the parts of them that ask it: evidence by every means,
/// the cases of mounts, the protocol among launchers and crashes.
const KERNEL: [(&str, &[&str]); 17] = [
    ("reclaim_user", &["evidence::", "removal::"]),
    ("host_probes", &["rungs::", "_from_before_", "a_full_ring"]),
    ("scan", &[]),
    ("host_kernel_facts", &[]),
    ("host_ladder", &[]),
    ("host_fallbacks", &[]),
    ("host_mount_fence", &[]),
    ("host_cases_pins", &[]),
    ("host_poison", &[]),
    ("host_audit", &[]),
    ("host_cases_mounts", &["::service"]),
    ("host_cases_overlay", &["::service"]),
    ("host_cases_bubblewrap", &["::service"]),
    ("host_hold", &["::service"]),
    ("race_gap", &[]),
    ("race_torture", &[]),
    ("crash_steps", &["_auto", "a_name_that_was_taken"]),
];

/// Test programs of the packages that ask something of the kernel, and the parts of them that do.
const ASKING: [(&str, &[&str]); 4] =
    [("reclaim_user", &["evidence::", "removal::", "sys::"]), ("host_probes", &[]), ("scan", &[]), ("cli", &[])];

/// Tests whose sandboxes are scripts in a language that a machine has not, or need more of a system than a machine is, or
/// a processor that is not emulated. All of them have a twin in the tiers, which do without.
const SCRIPTED: [(&str, &[&str]); 5] = [
    (
        "reclaim_user",
        &[
            "host_descriptors_at",
            "host_working_directories",
            "host_a_thread_with",
            "in_flight_is_not_seen",
            "host_equal_inode",
            "host_the_own_process",
            "host_a_long_answer",
            "a_bind_through_a_descriptor_while_condemned",
            "a_missing_return_counts_once",
        ],
    ),
    ("host_probes", &["a_task_made_by_clone"]),
    ("host_leases", &["the_example_in"]),
    ("host_hold", &["the_command_is_this_process", "a_hold_lives_as_long"]),
    (
        "scan",
        &[
            "scale::",
            "the_account_counts_each_thread_once",
            "a_child_that_a_launcher_left",
            "a_chrooted_task",
            "a_root_that_covers_another",
            "a_thread_that_outlives",
            "names_are_bytes",
        ],
    ),
];

/// How a program is run inside a machine; None for one that is not.
pub(super) fn run_of(program: &Program, extent: Extent) -> Option<Run> {
    let named = |table: &[(&str, &'static [&'static str])]| {
        table.iter().find(|(target, _)| program.test && program.target == *target).map(|(_, parts)| *parts)
    };
    let asks = ["host_", "race_", "crash_"].iter().any(|tier| program.target.starts_with(tier));
    let parts = match extent {
        Extent::Probes => return None,
        Extent::Evidence if !EVIDENCE.contains(&&*program.target) => return None,
        Extent::Evidence | Extent::Kernel => named(&KERNEL)?,
        Extent::Everything if program.is_tier() => asks.then_some(&[][..])?,
        Extent::Everything => named(&ASKING)?,
    };
    let mut arguments: Vec<String> = parts.iter().map(|&part| part.to_owned()).collect();
    for left_out in named(&SCRIPTED).into_iter().flatten() {
        arguments.extend(["--skip".to_owned(), (*left_out).to_owned()]);
    }
    let mut environment = Vec::new();
    if program.is_tier() && !FIRST_RUNG.contains(&&*program.target) {
        environment.extend(LAST_RUNG.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }
    Some(Run { name: program.target.clone(), arguments, environment })
}
