//! Calls that change what is mounted in the caller's namespace.

use aya_ebpf::{macros::tracepoint, programs::TracePointContext};
use reclaim_ebpf::abi::{
    HOOK_FSCONFIG, HOOK_FSMOUNT, HOOK_MOUNT, HOOK_MOUNT_SETATTR, HOOK_MOVE_MOUNT, HOOK_OPEN_TREE, HOOK_PIVOT_ROOT,
    HOOK_UMOUNT,
};

use super::{enter, leave, result};

/// The entry programs of one system call for the tracepoint rung.
macro_rules! tracepoints {
    ($($enter:ident, $leave:ident => $hook:expr;)*) => {$(
        #[tracepoint]
        fn $enter(_context: TracePointContext) -> u32 {
            enter($hook);
            0
        }

        #[tracepoint]
        fn $leave(context: TracePointContext) -> u32 {
            leave($hook, result(&context));
            0
        }
    )*};
}

tracepoints! {
    enter_mount, leave_mount => HOOK_MOUNT;
    enter_umount, leave_umount => HOOK_UMOUNT;
    enter_move_mount, leave_move_mount => HOOK_MOVE_MOUNT;
    enter_open_tree, leave_open_tree => HOOK_OPEN_TREE;
    enter_open_tree_attr, leave_open_tree_attr => HOOK_OPEN_TREE;
    enter_fsmount, leave_fsmount => HOOK_FSMOUNT;
    enter_fsconfig, leave_fsconfig => HOOK_FSCONFIG;
    enter_pivot_root, leave_pivot_root => HOOK_PIVOT_ROOT;
    enter_mount_setattr, leave_mount_setattr => HOOK_MOUNT_SETATTR;
}
