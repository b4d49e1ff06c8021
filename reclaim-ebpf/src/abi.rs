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
/// Read-only global of [`SYSCALL_SLOTS`] `i32`, set before load: the number of each hook's system call on this
/// architecture, indexed by the hook's tag, -1 for none. Only the programs that see every system call read it.
pub const SYSCALLS_GLOBAL: &str = "SYSCALLS";
/// Read-only global of [`SYSCALL_WORDS`] `u64`, set before load: a bit for each number in [`SYSCALLS_GLOBAL`].
pub const SYSCALL_BITS_GLOBAL: &str = "SYSCALL_BITS";
/// Words of 64 bits in [`SYSCALL_BITS_GLOBAL`]; a power of two. Numbers beyond them are nobody's that is listened to.
pub const SYSCALL_WORDS: usize = 8;
/// Room in [`SYSCALLS_GLOBAL`]; the place of `open_tree_attr(2)`, which shares a tag, is [`SYSCALL_OPEN_TREE_ATTR`].
pub const SYSCALL_SLOTS: usize = 16;
/// Where [`SYSCALLS_GLOBAL`] holds the number of `open_tree_attr(2)`.
pub const SYSCALL_OPEN_TREE_ATTR: usize = 15;

/// Mount-class calls that entered the kernel since the programs were loaded. Calls are numbered by it, from 1.
pub const COUNTER_ENTERED: u32 = 0;
/// Mount-class calls that left again, by return or by the death of their task.
pub const COUNTER_LEFT: u32 = 1;
/// Records handed to the ring, and at the same time the last sequence number given out.
pub const COUNTER_SEQUENCE: u32 = 2;
/// Records that could not be sent because the ring was full. Their sequence numbers are used up.
pub const COUNTER_LOST: u32 = 3;
/// Calls that entered without a place in [`IN_FLIGHT_MAP`]: from then on the clock cannot say when they leave. Such a
/// call is counted as left at once.
pub const COUNTER_UNTRACKED: u32 = 4;
/// Records sent with namespace 0, because the task's mount namespace could not be read.
pub const COUNTER_UNREADABLE: u32 = 5;
/// The generation that calls enter under, below [`GENERATIONS`]. Set by userspace.
pub const COUNTER_GENERATION: u32 = 6;
/// Returns that no program saw, of calls that were counted in, and runs of programs that the kernel left out. Each one
/// may stand for a record that was never numbered. Userspace adds what it finds.
pub const COUNTER_MISSED: u32 = 7;
/// First of [`GENERATIONS`] slots: calls that entered under each generation.
///
/// Whoever waits moves [`COUNTER_GENERATION`] on and watches the others until as many calls have left each as entered
/// it. That settles on a busy host too, where the totals above are never equal.
pub const COUNTER_GENERATION_ENTERED: u32 = 8;
/// First of [`GENERATIONS`] slots: calls that left again, under the generation that they entered under.
pub const COUNTER_GENERATION_LEFT: u32 = 16;
/// Number of generations; a power of two.
pub const GENERATIONS: u32 = 8;
/// First of [`HOOK_SLOTS`] slots: calls that entered, by the tag of their hook.
pub const COUNTER_HOOK_ENTERED: u32 = 24;
/// First of [`HOOK_SLOTS`] slots: calls that left by a return that was seen, by the tag of their hook.
pub const COUNTER_HOOK_LEFT: u32 = 40;
/// Room for hooks among the counters; a power of two.
pub const HOOK_SLOTS: u32 = 16;
/// Whose calls from before the programs have all returned, so that each call of theirs that is inside now was counted in:
/// 0 for nobody known, the number of a process, or [`EVERYBODY`]. Set by userspace.
pub const COUNTER_OUTSIDE: u32 = 56;
/// No process has this number.
pub const EVERYBODY: u64 = u64::MAX;
/// Number of counters.
pub const COUNTER_SLOTS: u32 = 57;

/// Room for calls in flight at one time.
pub const IN_FLIGHT_SLOTS: u32 = 16_384;
/// Bytes of the event ring: room for 43,690 records. All of it is resident twice, since it is mapped twice in a row.
pub const EVENTS_BYTES: u32 = 2 << 20;

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
/// `clone(2)` with `CLONE_NEWNS`. As an event: a task was made in a mount namespace other than its maker's, by
/// whichever call. Sent before the task first runs; process, thread and namespace are the made task's.
pub const HOOK_CLONE: u32 = 10;
/// `clone3(2)` with `CLONE_NEWNS`, as a call in flight. Its event is [`HOOK_CLONE`].
pub const HOOK_CLONE3: u32 = 11;
/// The last task that used a namespace proxy exits. The namespace may live on: in another proxy, a descriptor, a bind.
///
/// Two processes that shared a proxy and die at the same moment on two processors may go without one, so a namespace
/// must also be looked for from time to time. That errs toward keeping.
pub const HOOK_EXIT: u32 = 12;
/// `mount_setattr(2)`: propagation changes move no pin by themselves, but decide where later ones spread.
pub const HOOK_MOUNT_SETATTR: u32 = 13;
/// A task left a mount namespace by `setns(2)` or `unshare(2)`; the record's namespace is the one it left, which may
/// have died by that. The event of the call itself, with the namespace entered, follows.
pub const HOOK_DEPART: u32 = 14;

/// One thing that happened to a mount namespace. Sent when a call has succeeded, and at exit.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Sequence number, counted from 1 without holes over all processors; a hole is a lost record.
    pub sequence: u64,
    /// `bpf_ktime_get_ns`: nanoseconds of CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// What the call returned; 0 for an exit; the made task's thread id for [`HOOK_CLONE`].
    pub result: i64,
    /// Inode number of the mount namespace that the task is in once the call has returned (for [`HOOK_DEPART`]: was in
    /// before); 0 where unreadable.
    pub namespace: u32,
    /// One of the `HOOK_*` tags.
    pub hook: u32,
    /// Thread group id in the first pid namespace.
    pub process: u32,
    /// Thread id in the first pid namespace.
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
    /// Generation that the call entered under.
    pub generation: u32,
    /// Inode number of the mount namespace that the task was in; 0 where unreadable.
    pub namespace: u32,
}

/// Size of an [`InFlight`] in the map.
pub const IN_FLIGHT_SIZE: usize = 32;

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
    /// `task_struct.pid`.
    pub task_pid: u32,
    /// `task_struct.tgid`.
    pub task_tgid: u32,
    /// `task_struct.signal`.
    pub task_signal: u32,
    /// `signal_struct.live`.
    pub signal_live: u32,
    /// `signal_struct.nr_threads`.
    pub signal_nr_threads: u32,
    /// Where `struct pt_regs` keeps the number of the system call.
    pub regs_number: u32,
    /// Where `struct pt_regs` keeps the first argument of the system call.
    pub regs_first: u32,
    /// Where `struct pt_regs` keeps the first argument of a 32-bit caller's system call.
    pub regs_first_32: u32,
    /// 1 once the offsets above are filled in; while 0, records carry namespace 0.
    pub known: u32,
}

/// Size of a [`Layout`] in the object.
pub const LAYOUT_SIZE: usize = 52;

const _: () = assert!(core::mem::size_of::<Event>() == EVENT_SIZE);
const _: () = assert!(core::mem::size_of::<InFlight>() == IN_FLIGHT_SIZE);
const _: () = assert!(core::mem::size_of::<Layout>() == LAYOUT_SIZE);
const _: () = assert!(GENERATIONS.is_power_of_two());
const _: () = assert!(COUNTER_GENERATION_ENTERED + GENERATIONS <= COUNTER_GENERATION_LEFT);
const _: () = assert!(COUNTER_GENERATION_LEFT + GENERATIONS <= COUNTER_HOOK_ENTERED);
const _: () = assert!(HOOK_SLOTS.is_power_of_two() && HOOK_DEPART < HOOK_SLOTS);
const _: () = assert!(COUNTER_HOOK_ENTERED + HOOK_SLOTS <= COUNTER_HOOK_LEFT);
const _: () = assert!(COUNTER_HOOK_LEFT + HOOK_SLOTS <= COUNTER_SLOTS);

impl Layout {
    /// The bytes that the object's global has to hold.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; LAYOUT_SIZE] {
        let Self {
            task_nsproxy,
            nsproxy_count,
            nsproxy_mnt_ns,
            mnt_namespace_inum,
            task_pid,
            task_tgid,
            task_signal,
            signal_live,
            signal_nr_threads,
            regs_number,
            regs_first,
            regs_first_32,
            known,
        } = *self;
        let words = [
            task_nsproxy,
            nsproxy_count,
            nsproxy_mnt_ns,
            mnt_namespace_inum,
            task_pid,
            task_tgid,
            task_signal,
            signal_live,
            signal_nr_threads,
            regs_number,
            regs_first,
            regs_first_32,
            known,
        ];
        let mut bytes = [0; LAYOUT_SIZE];
        for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }
}
