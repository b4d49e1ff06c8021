//! Kernel structures, read at the offsets that userspace found in the running kernel's BTF.

use core::ptr;

use aya_ebpf::helpers::{bpf_get_current_task, bpf_probe_read_kernel};
use aya_ebpf::macros::map;
use aya_ebpf::maps::Array;
use reclaim_ebpf::abi::{Layout, SYSCALL_SLOTS, SYSCALL_WORDS};

// Both are filled in by the loader; the values here only keep them in .rodata.
#[unsafe(no_mangle)]
static LAYOUT: Layout = Layout {
    task_nsproxy: 0,
    nsproxy_count: 0,
    nsproxy_mnt_ns: 0,
    mnt_namespace_inum: 0,
    task_pid: 0,
    task_tgid: 0,
    task_signal: 0,
    signal_live: 0,
    signal_nr_threads: 0,
    regs_number: 0,
    regs_first: 0,
    regs_first_32: 0,
    known: 0,
};
#[unsafe(no_mangle)]
static SYSCALLS: [i32; SYSCALL_SLOTS] = [-1; SYSCALL_SLOTS];

#[unsafe(no_mangle)]
static SYSCALL_BITS: [u64; SYSCALL_WORDS] = [0; SYSCALL_WORDS];

/// Holds a zero that the kernel's verifier does not know.
#[map]
static UNKNOWN_ZERO: Array<u64> = Array::with_max_entries(1, 0);

/// An offset of [`LAYOUT`]. Volatile, since the loader changes what the compiler takes for a constant.
macro_rules! offset {
    ($member:ident) => {
        // SAFETY: points into a static.
        unsafe { ptr::read_volatile(&raw const LAYOUT.$member) } as usize
    };
}

/// The number of the system call in a slot of [`SYSCALLS`].
#[inline(always)]
pub(crate) fn syscall_number(slot: usize) -> i64 {
    let place = (&raw const SYSCALLS).cast::<i32>().wrapping_add(slot);
    // SAFETY: inside the static, since callers pass constants below SYSCALL_SLOTS.
    let number = unsafe { ptr::read_volatile(place) };
    i64::from(number)
}

/// Whether the number of a system call is one of [`SYSCALLS`].
#[inline(always)]
pub(crate) fn is_listened_to(number: i64) -> bool {
    let number = number as u64;
    if number >= SYSCALL_WORDS as u64 * 64 {
        return false;
    }
    let place = (&raw const SYSCALL_BITS).cast::<u64>().wrapping_add((number / 64) as usize & (SYSCALL_WORDS - 1));
    // SAFETY: inside the static, by the check above.
    let word = unsafe { ptr::read_volatile(place) };
    word >> (number & 63) & 1 != 0
}

/// A mount namespace, as one task's proxy names it.
#[derive(Clone, Copy)]
pub(crate) struct Namespace {
    /// Address of the `struct mnt_namespace`; never followed by others, only compared.
    pub(crate) address: usize,
    /// The inode number that userspace knows it by.
    pub(crate) inode: u32,
}

/// A `struct task_struct`.
#[derive(Clone, Copy)]
pub(crate) struct Task(usize);

/// The task that runs this program; none while the offsets are not known.
#[inline(always)]
pub(crate) fn current() -> Option<Task> {
    // SAFETY: takes no pointer; the call cannot fail.
    Task::at(unsafe { bpf_get_current_task() } as usize)
}

impl Task {
    /// The task at an address that the kernel gave; none while the offsets are not known.
    #[inline(always)]
    pub(crate) fn at(address: usize) -> Option<Self> {
        (offset!(known) != 0).then_some(Self(address))
    }

    /// Its mount namespace; none once it has let go of it.
    #[inline(always)]
    pub(crate) fn namespace(self) -> Option<Namespace> {
        let proxy = self.proxy()?;
        let address: usize = read(proxy + offset!(nsproxy_mnt_ns))?;
        if address == 0 {
            return None;
        }
        let inode = read(address + offset!(mnt_namespace_inum))?;
        Some(Namespace { address, inode })
    }

    /// How many tasks share its namespace proxy.
    #[inline(always)]
    pub(crate) fn proxy_users(self) -> Option<u32> {
        read(self.proxy()? + offset!(nsproxy_count))
    }

    /// Threads of its process that are not reaped, where none of them will run again; none where some will.
    #[inline(always)]
    pub(crate) fn threads_of_dead_process(self) -> Option<u32> {
        let signal: usize = read(self.0 + offset!(task_signal))?;
        let live: u32 = read(signal + offset!(signal_live))?;
        if live != 0 {
            return None;
        }
        read(signal + offset!(signal_nr_threads))
    }

    /// Thread group id and thread id, in the first pid namespace.
    #[inline(always)]
    pub(crate) fn ids(self) -> Option<(u32, u32)> {
        Some((read(self.0 + offset!(task_tgid))?, read(self.0 + offset!(task_pid))?))
    }

    #[inline(always)]
    fn proxy(self) -> Option<usize> {
        read(self.0 + offset!(task_nsproxy)).filter(|&proxy: &usize| proxy != 0)
    }
}

/// The number of the system call that registers belong to.
#[inline(always)]
pub(crate) fn regs_number(regs: usize) -> Option<i64> {
    // 32 bits on every architecture: x86-64 keeps a long, aarch64 an int, both little-endian.
    read::<i32>(regs + offset!(regs_number)).map(i64::from)
}

/// The first argument of the system call that registers belong to.
#[inline(always)]
pub(crate) fn regs_first(regs: usize) -> Option<u64> {
    read(regs + offset!(regs_first))
}

/// The first argument of a 32-bit caller's system call that registers belong to.
#[inline(always)]
pub(crate) fn regs_first_32(regs: usize) -> Option<u64> {
    read(regs + offset!(regs_first_32)).map(|first: u64| first & u64::from(u32::MAX))
}

/// Copies a value from kernel memory. A bad address yields none: the kernel catches the fault.
#[inline(always)]
pub(crate) fn read<T>(address: usize) -> Option<T> {
    // SAFETY: the helper checks the address itself; callers ask for plain integers only.
    unsafe { bpf_probe_read_kernel(address as *const T) }.ok()
}

/// A zero that the verifier does not know to be one, for all that a callback of `bpf_loop` branches on.
///
/// Until Linux 6.7 (and 6.6 with later fixes) it looks at a callback once, with what it knows of the context then, and
/// takes branches out of the program that only later steps go through.
#[inline(always)]
pub(crate) fn unknown_zero() -> Option<u64> {
    // SAFETY: the value of a map that lives as long as the program, and that nobody writes.
    UNKNOWN_ZERO.get_ptr(0).map(|zero| unsafe { ptr::read_volatile(zero) })
}
