//! What the iterator that tells which threads are inside mount-class calls and userspace agree on.

/// Iterator over every thread, which writes nothing itself: what it finds is in [`INSIDE_OUTPUT_MAP`].
pub const INSIDE_PROGRAM: &str = "inside_task";
/// Read-only global of type [`InsideLayout`], set before load.
pub const INSIDE_LAYOUT_GLOBAL: &str = "INSIDE_LAYOUT";
/// Read-only global of [`INSIDE_WORDS`] `u64`, set before load: a bit for each number of a system call that is looked for.
pub const INSIDE_BITS_GLOBAL: &str = "INSIDE_BITS";
/// Array with one [`InsideState`].
pub const INSIDE_STATE_MAP: &str = "INSIDE_STATE";
/// Array of [`InsideRecord`], of which the state tells how many were written.
pub const INSIDE_OUTPUT_MAP: &str = "INSIDE_OUTPUT";

/// Threads that there is room for.
pub const INSIDE_RECORDS: u32 = 2048;
/// Words of bits, for numbers below 512.
pub const INSIDE_WORDS: usize = 8;
/// Arguments of a system call.
pub const INSIDE_ARGUMENTS: usize = 6;

/// How a look goes. Userspace sets all to zero, and the program counts.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InsideState {
    /// The iterator came to its end.
    pub ended: u32,
    /// Records written.
    pub records: u32,
    /// Threads that there was no room for: the look is void.
    pub unwritten: u32,
    /// Threads that could not be looked at: the look is void.
    pub broken: u32,
    /// The number of the call that the thread which reads the iterator is inside, as the program sees it: it has to be the
    /// one of `read`.
    pub own_number: u32,
    /// The lower half of its first argument: it has to be the descriptor.
    pub own_first: u32,
}

/// One thread inside a call that is looked for, as its registers at the enter of that call tell. For a thread outside the kernel
/// these may be of a call that it has left.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InsideRecord {
    /// The process, by its number in the first pid namespace.
    pub process: u32,
    /// The thread, likewise.
    pub thread: u32,
    /// The number of the call.
    pub number: u64,
    /// What it was called with; of a caller of 32 bits the first argument alone is right.
    pub arguments: [u64; INSIDE_ARGUMENTS],
    /// The stack pointer outside the kernel.
    pub stack: u64,
    /// Not 0 for a call by a number of callers of 32 bits.
    pub is_32: u64,
}

/// Byte offsets of kernel structure members, looked up in the running kernel's BTF by userspace.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InsideLayout {
    /// `task_struct.pid`.
    pub task_pid: u32,
    /// `task_struct.tgid`.
    pub task_tgid: u32,
    /// `task_struct.flags`.
    pub task_flags: u32,
    /// `task_struct.exit_state`.
    pub task_exit: u32,
    /// `task_struct.thread_info.status` on x86-64.
    pub task_status: u32,
    /// The bits of it that tell of a call by a number of callers of 32 bits; 0 where no such calls are told apart.
    pub status_32: u32,
    /// The number of the call in `pt_regs`.
    pub regs_number: u32,
    /// The stack pointer there.
    pub regs_stack: u32,
    /// The first argument there of a caller of 32 bits.
    pub regs_first_32: u32,
    /// The arguments there, each by itself.
    pub regs_arguments: [u32; INSIDE_ARGUMENTS],
}

/// Words in an [`InsideLayout`].
pub const INSIDE_LAYOUT_WORDS: usize = core::mem::size_of::<InsideLayout>() / 4;

const _: () = assert!(core::mem::size_of::<InsideState>() == 24);
const _: () = assert!(core::mem::size_of::<InsideRecord>() == 80);
