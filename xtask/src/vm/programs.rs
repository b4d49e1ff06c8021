//! What is run inside a virtual machine.

use serde::{Deserialize, Serialize};

use crate::programs::Program;

/// One test program inside a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Run {
    /// As people know it; also its file name.
    pub(super) name: String,
    /// What it is called with.
    pub(super) arguments: Vec<String>,
    /// Variables of its environment.
    pub(super) environment: Vec<(String, String)>,
}

/// Something of the kernel that some tests cannot do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// Type information: without it there is no probe and no walk, which the command says for itself.
    Types,
    /// The union file system.
    Overlay,
    /// File systems in user space, which tests make calls hang with.
    Fuse,
}

impl Need {
    pub(super) const ALL: [Self; 3] = [Self::Types, Self::Overlay, Self::Fuse];

    /// What the kernel calls it.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Types => "BTF",
            Self::Overlay => "overlay",
            Self::Fuse => "fuse",
        }
    }

    /// The tests that need it, by programs and parts of their names; a program without parts needs it throughout. Kernels
    /// of Debian have all of it, so that this is for others.
    fn tests(self) -> &'static [(&'static str, &'static [&'static str])] {
        match self {
            Self::Types => &[
                ("reclaim_user", &["evidence::walk", "evidence::references", "btf", "layout", "host_"]),
                ("host_probes", &[]),
                ("scan", &["tasks_that_come_and_go", "keeps_is_found", "one_namespace_by_itself", "every_layer_of"]),
                ("host_kernel_facts", &["namespaces_can_be_listed"]),
                ("host_ladder", &[]),
                ("host_fallbacks", &[]),
                ("host_mount_fence", &[]),
                ("host_killed", &[]),
                ("host_cases_pins", &["namespace_kept"]),
                ("race_gap", &[]),
                ("race_torture", &[]),
            ],
            Self::Overlay => &[
                ("reclaim_user", &["host_walk_sees_overlay_layers", "host_an_entry_that_the_kernel_has_not_looked_up"]),
                ("scan", &["overlay", "layer"]),
                ("host_kernel_facts", &["an_overlay_shows"]),
                ("host_cases_overlay", &[]),
                ("host_fallbacks", &[]),
            ],
            Self::Fuse => &[
                (
                    "host_probes",
                    &[
                        "a_call_from_before",
                        "the_clock_waits",
                        "the_clock_does_not_wait",
                        "the_clock_knows",
                        "a_return_that",
                        "more_calls_hang",
                    ],
                ),
                ("host_own_files", &["one_that_cannot_be_used"]),
                ("host_hanging", &[]),
            ],
        }
    }
}

impl Run {
    /// What is left of it on a kernel that lacks something, None for nothing, and the lines that tell what is skipped.
    pub(super) fn without(&self, lacks: &[Need]) -> (Option<Self>, Vec<String>) {
        let mut run = self.clone();
        let mut lines = Vec::new();
        for need in lacks {
            let tests = need.tests().iter().find(|(program, _)| *program == self.name);
            let Some((_, parts)) = tests else { continue };
            let why = format!("the kernel has no {}", need.word());
            if parts.is_empty() {
                return (None, vec![format!("SKIP {}: {why}", self.name)]);
            }
            for part in *parts {
                run.arguments.extend(["--skip".to_owned(), (*part).to_owned()]);
                lines.push(format!("SKIP {}, {part}: {why}", self.name));
            }
        }
        (Some(run), lines)
    }
}

/// Variables that let reclaim begin with the last rung of its probes. To attach by the first ones and to let go of them
/// again takes an emulated kernel ten seconds, for it changes its own text some hundred times.
const LAST_RUNG: [(&str, &str); 2] = [("RECLAIM_TEST", "1"), ("RECLAIM_TEST_DISABLE", "fentry,kprobe,tracepoint")];

/// Tiers in which services begin by the first rung that works, as everywhere else.
const FIRST_RUNG: [&str; 3] = ["host_ladder", "race_torture", "race_gap"];

/// File systems that are modules in some kernels.
pub(super) const MODULES: [&str; 2] = ["overlay", "fuse"];

/// Commands of busybox that the tests start.
pub(super) const COMMANDS: [&str; 13] =
    ["sh", "sleep", "mkdir", "true", "cat", "kill", "head", "printf", "touch", "test", "echo", "rm", "cp"];

/// Programs of this host that the tests start, taken along with the libraries they are linked with.
pub(super) const BORROWED: [&str; 6] = ["bwrap", "chattr", "mount", "nsenter", "umount", "unshare"];

/// How much is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// What is run beside the tests of this host: no longer than those take.
    Evidence,
    /// Tests of what another kernel could do otherwise: a quarter of an hour and more.
    Kernel,
    /// Every test that asks something of the kernel.
    Everything,
    /// No test: what the probes cost is measured instead.
    Probes,
}

/// What is run beside the tests of this host, on each kernel: every means and every rung, and of what the binary has to get
/// right the parts that tell most of a kernel, as many as there is time for.
const EVIDENCE: [(&str, &[&str]); 13] = [
    ("reclaim_user", &["evidence::"]),
    (
        "host_probes",
        &[
            "each_step_is_reported",
            "the_first_rung_that_works",
            "a_rung_that_does_not_report",
            "a_return_that",
            "_from_before_",
            "a_32_bit_caller",
            "a_full_ring",
        ],
    ),
    ("scan", &[]),
    ("host_cases_bubblewrap", &["::service"]),
    // What one mount table does not show.
    (
        "host_cases_pins",
        &[
            "thread_of_a_zombie_leader::service",
            "namespace_kept_by_file::service",
            "namespace_kept_by_descriptor::service",
            "detached_tree::service",
            "unmounted_with_a_descriptor_inside::service",
        ],
    ),
    ("host_cases_mounts", &["hidden_by_chroot::service"]),
    // No type information, no BPF, no walk to be relied on, no clock, no list of mounts.
    (
        "host_fallbacks",
        &["type_information", "bpf_system_call::command", "answer_of_the_walk::command", "mount_clock::command"],
    ),
    ("host_mount_fence", &["a_check_tells", "cannot_be_bound_while_it_stands", "once_reclaim_was_killed"]),
    ("host_killed", &["a_service_that_is_killed"]),
    ("host_poison", &["::service"]),
    ("race_gap", &["on_the_live_set_alone", "kills_in_a_storm"]),
    ("race_torture", &["never_lose_what_is_live::service"]),
    ("crash_steps", &["after_settle_auto", "makeshift_mid_restore_auto", "a_name_that_was_taken", "a_second_thread"]),
];

/// Test programs of what another kernel could do otherwise, and the parts of them that ask it: evidence by every means,
/// the cases of mounts, the protocol among launchers and crashes.
const KERNEL: [(&str, &[&str]); 19] = [
    ("reclaim_user", &["evidence::", "removal::"]),
    ("host_probes", &["rungs::", "_from_before_", "a_full_ring"]),
    ("scan", &[]),
    ("host_kernel_facts", &[]),
    ("host_ladder", &[]),
    ("host_fallbacks", &[]),
    ("host_mount_fence", &[]),
    ("host_killed", &[]),
    ("host_cases_pins", &[]),
    ("host_poison", &["poison_", "trees_of_others"]),
    ("host_audit", &[]),
    ("host_hanging", &[]),
    ("host_cases_mounts", &["::service"]),
    ("host_cases_overlay", &["::service"]),
    ("host_cases_bubblewrap", &["::service"]),
    ("host_hold", &["::service"]),
    ("race_gap", &[]),
    ("race_torture", &[]),
    ("crash_steps", &["_auto", "a_name_that_was_taken", "a_second_thread"]),
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
        Extent::Evidence => named(&EVIDENCE)?,
        Extent::Kernel => named(&KERNEL)?,
        Extent::Everything if program.is_tier() => asks.then_some(&[][..])?,
        Extent::Everything => named(&ASKING)?,
    };
    let mut arguments: Vec<String> = parts.iter().map(|&part| part.to_owned()).collect();
    for left_out in named(&SCRIPTED).into_iter().flatten() {
        arguments.extend(["--skip".to_owned(), (*left_out).to_owned()]);
    }
    let mut environment = Vec::new();
    // Beside the tests of this host there is no time for it, and those of the probes begin by every rung.
    let by_first = extent != Extent::Evidence && FIRST_RUNG.contains(&&*program.target);
    if program.is_tier() && !by_first {
        environment.extend(LAST_RUNG.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }
    Some(Run { name: program.target.clone(), arguments, environment })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_kernel_lacks_is_skipped_and_told() {
        let run =
            Run { name: "host_probes".to_owned(), arguments: vec!["rungs::".to_owned()], environment: Vec::new() };
        assert_eq!(run.without(&[]), (Some(run.clone()), Vec::new()));
        assert_eq!(run.without(&[Need::Overlay]), (Some(run.clone()), Vec::new()));
        let (left, lines) = run.without(&[Need::Fuse]);
        let arguments = left.expect("most of it is left").arguments;
        assert_eq!(arguments[..3], ["rungs::", "--skip", "a_call_from_before"]);
        assert_eq!(lines.len() * 2 + 1, arguments.len());
        assert!(
            lines.iter().all(|line| line.starts_with("SKIP host_probes, ") && line.ends_with("no fuse")),
            "{lines:?}"
        );
        let lacking = run.without(&[Need::Types, Need::Fuse]);
        assert_eq!(lacking, (None, vec!["SKIP host_probes: the kernel has no BTF".to_owned()]));
    }
}
