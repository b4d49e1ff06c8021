//! What is run inside a virtual machine: tests that need no program but those of busybox.

/// What a test needs that a kernel may have as a module, or not at all.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Needs {
    Nothing,
    /// A type of file system, as /proc/filesystems lists it.
    FileSystem(&'static str),
    /// A release, by its first two numbers, or a later one.
    Release(u32, u32),
}

/// A test program, by the target that cargo builds it from.
pub(super) struct Program {
    /// File name inside the machine.
    pub(super) name: &'static str,
    /// Name of the target.
    pub(super) target: &'static str,
    /// Full names of the tests. Each one has to exist and pass.
    pub(super) tests: &'static [(&'static str, Needs)],
}

const NOTHING: Needs = Needs::Nothing;
const OVERLAY: Needs = Needs::FileSystem("overlay");
/// The list of namespaces. The tests go through ways of scanning that rest on it.
const LIST: Needs = Needs::Release(6, 12);
const FUSE: Needs = Needs::FileSystem("fuse");

/// The target whose tests sit in the library itself.
pub(super) const LIBRARY: &str = "reclaim_user";

/// File systems that are modules in some kernels.
pub(super) const MODULES: [&str; 2] = ["overlay", "fuse"];

/// All of them.
pub(super) const PROGRAMS: [Program; 3] = [
    Program {
        name: "unit",
        target: LIBRARY,
        tests: &[
            ("evidence::btf::tests::this_kernel_has_all_that_is_needed", NOTHING),
            ("evidence::walk::tests::host_walk_goes_by_the_directory_and_not_by_its_number", NOTHING),
            ("evidence::walk::tests::host_walk_of_nothing_open_says_so", NOTHING),
            ("evidence::walk::tests::host_walk_sees_overlay_layers_by_themselves", OVERLAY),
            ("evidence::walk::tests::host_walk_sees_what_mount_tables_show_and_what_they_do_not", NOTHING),
            ("evidence::walk::tests::host_walk_with_too_little_room_makes_more_and_never_answers_short", NOTHING),
            ("evidence::references::tests::host_a_program_that_runs_is_found", NOTHING),
            ("evidence::references::tests::host_an_own_thread_counts_where_the_own_process_is_not_left_out", NOTHING),
            ("evidence::features::tests::every_feature_gets_an_answer_with_a_reason", NOTHING),
            ("evidence::scan::reader::tests::a_reader_comes_home_and_only_its_own_thread_moves", NOTHING),
            ("evidence::tasks::tests::every_thread_is_counted_and_one_that_moved_is_told_apart", NOTHING),
        ],
    },
    Program {
        name: "probes",
        target: "host_probes",
        tests: &[
            ("rungs::each_step_is_reported_by_fentry", NOTHING),
            ("rungs::each_step_is_reported_by_kprobes", NOTHING),
            ("rungs::each_step_is_reported_by_syscall_tracepoints", NOTHING),
            ("rungs::each_step_is_reported_by_the_tracepoint_of_every_syscall", NOTHING),
            ("rungs::each_step_is_reported_once_by_a_mixture_of_rungs", NOTHING),
            ("rungs::the_first_rung_that_works_is_used_and_the_others_have_a_reason", NOTHING),
            ("rungs::a_rung_that_does_not_report_what_it_should_is_not_used", NOTHING),
            ("rungs::where_no_rung_is_left_every_reason_is_told", NOTHING),
            ("rungs::nothing_is_left_after_the_probes_are_gone", NOTHING),
            ("rungs::a_second_reclaim_and_one_that_is_loaded_again_see_as_much", NOTHING),
            ("rungs::a_return_that_fentry_misses_counts_as_lost_and_holds_nobody_up", FUSE),
            ("rungs::a_return_that_a_kprobe_misses_counts_as_lost_and_holds_nobody_up", FUSE),
            ("rungs::what_a_call_from_before_the_probes_does_counts_as_lost", FUSE),
            ("rungs::more_calls_hang_than_kprobes_have_room_for", FUSE),
            ("rungs::a_32_bit_caller_is_seen_by_fentry_and_kprobes", NOTHING),
            ("every_hook_is_attached_or_this_kernel_has_no_such_call", NOTHING),
            ("a_full_ring_loses_nothing_silently", NOTHING),
            ("a_call_from_before_the_probes_is_waited_for_too", FUSE),
            ("the_clock_does_not_wait_for_a_call_that_began_later", FUSE),
        ],
    },
    Program {
        name: "scan",
        target: "scan",
        tests: &[
            ("namespaces::a_bound_entry_is_pinned_until_its_sandbox_ends", NOTHING),
            ("namespaces::a_namespace_that_only_a_mounted_file_keeps_is_found", LIST),
            ("namespaces::a_namespace_that_only_a_descriptor_keeps_is_found", LIST),
            ("namespaces::an_entry_bound_twice_and_renamed_stays_pinned_under_its_name", NOTHING),
            ("namespaces::one_namespace_by_itself_reads_as_in_a_scan", LIST),
            ("accounting::tasks_that_come_and_go_leave_the_list_of_namespaces_whole", LIST),
            ("places::something_mounted_inside_an_entry_pins_it_as_a_target", NOTHING),
            ("places::a_target_is_found_through_a_bind_of_the_root", NOTHING),
            ("places::every_layer_of_an_overlay_is_pinned", LIST),
        ],
    },
];

/// Commands of busybox that the tests start.
pub(super) const COMMANDS: [&str; 8] = ["sh", "mount", "umount", "unshare", "sleep", "mkdir", "true", "cat"];
