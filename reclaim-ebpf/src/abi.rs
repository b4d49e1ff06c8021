//! Records and counters exchanged between the BPF programs and userspace.
//!
//! Every integer has a fixed width and every byte of padding is named, so that a record can be decoded field by field
//! from bytes; a tag is an integer on the wire and becomes an enum only through a checked conversion.

/// Ring buffer of [`EVENT_SIZE`]-byte event records.
pub const EVENTS_MAP: &str = "EVENTS";
/// Memory-mappable array of [`COUNTER_SLOTS`] `u64` counters, indexed by the `COUNTER_*` constants.
pub const COUNTERS_MAP: &str = "COUNTERS";
/// Hash from thread id to [`InFlight`]: the mount-class calls that have entered the kernel and not left it.
pub const IN_FLIGHT_MAP: &str = "IN_FLIGHT";
/// Read-only global of type [`Layout`], set before load.
pub const LAYOUT_GLOBAL: &str = "LAYOUT";

/// Mount-class calls that entered the kernel since the programs were loaded. Calls are numbered by it, from 1.
pub const COUNTER_ENTERED: u32 = 0;
/// Mount-class calls that left again, by return or by the death of their task.
pub const COUNTER_LEFT: u32 = 1;
/// Records handed to the ring, and at the same time the last sequence number given out.
pub const COUNTER_SEQUENCE: u32 = 2;
/// Records that could not be sent because the ring was full. Their sequence numbers are used up.
pub const COUNTER_LOST: u32 = 3;
/// Calls that entered without a place in [`IN_FLIGHT_MAP`]: from then on the clock cannot say when they leave.
pub const COUNTER_UNTRACKED: u32 = 4;
/// Records sent with namespace 0, because the task's mount namespace could not be read.
pub const COUNTER_UNREADABLE: u32 = 5;
/// Number of counters.
pub const COUNTER_SLOTS: u32 = 8;

/// Room for calls in flight at one time.
pub const IN_FLIGHT_SLOTS: u32 = 16_384;
/// Bytes of the event ring.
pub const EVENTS_BYTES: u32 = 4 << 20;

/// `mount(2)`.
pub const HOOK_MOUNT: u32 = 1;
/// `umount2(2)`.
pub const HOOK_UMOUNT: u32 = 2;
/// `move_mount(2)`.
pub const HOOK_MOVE_MOUNT: u32 = 3;
/// `open_tree(2)` and `open_tree_attr(2)`.
pub const HOOK_OPEN_TREE: u32 = 4;
/// `fsmount(2)`.
pub const HOOK_FSMOUNT: u32 = 5;
/// `fsconfig(2)`.
pub const HOOK_FSCONFIG: u32 = 6;
/// `pivot_root(2)`.
pub const HOOK_PIVOT_ROOT: u32 = 7;
/// `setns(2)`.
pub const HOOK_SETNS: u32 = 8;
/// `unshare(2)` with `CLONE_NEWNS`.
pub const HOOK_UNSHARE: u32 = 9;
/// `clone(2)` with `CLONE_NEWNS`.
pub const HOOK_CLONE: u32 = 10;
/// `clone3(2)` with `CLONE_NEWNS`.
pub const HOOK_CLONE3: u32 = 11;
/// The last task that used a namespace proxy exits.
pub const HOOK_EXIT: u32 = 12;
/// `mount_setattr(2)`: propagation changes move no pin by themselves, but decide where later ones spread.
pub const HOOK_MOUNT_SETATTR: u32 = 13;

/// One thing that happened to a mount namespace. Sent when a call has succeeded, and at exit.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Sequence number, counted from 1 without holes over all processors; a hole is a lost record.
    pub sequence: u64,
    /// `bpf_ktime_get_ns`: nanoseconds of CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// What the call returned; 0 for an exit.
    pub result: i64,
    /// Inode number of the mount namespace that the task is in once the call has returned; 0 where unreadable.
    pub namespace: u32,
    /// One of the `HOOK_*` tags.
    pub hook: u32,
    /// Thread group id.
    pub process: u32,
    /// Thread id.
    pub thread: u32,
}

/// Size of an [`Event`] on the wire.
pub const EVENT_SIZE: usize = 40;

/// A mount-class call that is inside the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlight {
    /// Value of the entered counter with this call counted.
    pub number: u64,
    /// When it entered, nanoseconds of CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Thread group id.
    pub process: u32,
    /// One of the `HOOK_*` tags.
    pub hook: u32,
}

/// Byte offsets of kernel structure members, looked up in the running kernel's BTF by userspace.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// `task_struct.nsproxy`.
    pub task_nsproxy: u32,
    /// `nsproxy.count`.
    pub nsproxy_count: u32,
    /// `nsproxy.mnt_ns`.
    pub nsproxy_mnt_ns: u32,
    /// `mnt_namespace.ns` plus `ns_common.inum`.
    pub mnt_namespace_inum: u32,
    /// 1 where the offsets above are known, 0 where no BTF was to be had: then records carry namespace 0.
    pub known: u32,
    /// Fills the structure to a multiple of eight bytes.
    pub reserved: u32,
}

const _: () = assert!(core::mem::size_of::<Event>() == EVENT_SIZE);
const _: () = assert!(core::mem::size_of::<InFlight>() == 24);
const _: () = assert!(core::mem::size_of::<Layout>() == 24);
