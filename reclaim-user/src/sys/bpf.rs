//! bpf(2), for what aya does not wrap.
#![expect(unsafe_code, reason = "a system call that no library here wraps in full")]

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, FromRawFd as _, OwnedFd};

/// Commands, and types of programs and attachment. <include/uapi/linux/bpf.h>
const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_OBJ_GET_INFO_BY_FD: libc::c_int = 15;
const BPF_PROG_TYPE_TRACING: u32 = 26;
const BPF_TRACE_FENTRY: u32 = 24;

/// `r0 = 0; exit`: eight bytes each, in little-endian order of their fields.
const DOES_NOTHING: [[u8; 8]; 2] = [[0xb7, 0, 0, 0, 0, 0, 0, 0], [0x95, 0, 0, 0, 0, 0, 0, 0]];

/// Where `struct bpf_prog_info` has `recursion_misses`, a `u64` since Linux 5.12, and what comes before it in words.
const INFO_WORDS: usize = 27;
const INFO_MISSES: usize = 26;

/// The members of `union bpf_attr` for BPF_PROG_LOAD, up to and with `attach_btf_id`.
#[repr(C)]
struct LoadAttributes {
    kind: u32,
    instruction_count: u32,
    instructions: u64,
    licence: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    expected_attach_type: u32,
    btf: u32,
    function_info_size: u32,
    function_info: u64,
    function_info_count: u32,
    line_info_size: u32,
    line_info: u64,
    line_info_count: u32,
    attach_btf_id: u32,
}

/// The members of `union bpf_attr` for BPF_OBJ_GET_INFO_BY_FD.
#[repr(C)]
struct InfoAttributes {
    descriptor: u32,
    length: u32,
    info: u64,
}

/// Asks whether the kernel lets this process load a program for the entry of a kernel function, given the function's
/// number in the kernel's type information. The program is dropped at once.
///
/// # Errors
/// What the kernel says: `EPERM` where it refuses, `EINVAL` where it has no such programs.
pub fn try_fentry(function: u32) -> io::Result<()> {
    let licence = c"GPL";
    let attributes = LoadAttributes {
        kind: BPF_PROG_TYPE_TRACING,
        instruction_count: DOES_NOTHING.len() as u32,
        instructions: DOES_NOTHING.as_ptr() as u64,
        licence: licence.as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log: 0,
        kernel_version: 0,
        flags: 0,
        name: *b"reclaim_try\0\0\0\0\0",
        interface: 0,
        expected_attach_type: BPF_TRACE_FENTRY,
        btf: 0,
        function_info_size: 0,
        function_info: 0,
        function_info_count: 0,
        line_info_size: 0,
        line_info: 0,
        line_info_count: 0,
        attach_btf_id: function,
    };
    // SAFETY: the attributes and all that they point to live until the call returns, and nothing is written to them.
    let descriptor = unsafe { bpf(BPF_PROG_LOAD, (&raw const attributes).cast(), size_of::<LoadAttributes>()) }?;
    // SAFETY: the kernel has just given this descriptor to us, and to nobody else.
    drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
    Ok(())
}

/// How often the kernel left a program out because it was running on the same processor already, as when a task that
/// was inside it made way for another one. Counted for fentry, fexit and raw tracepoints since Linux 5.12, for kprobes
/// and tracepoints since 6.7; 0 where it is not.
///
/// # Errors
/// What the kernel says.
pub fn program_misses(program: impl AsFd) -> io::Result<u64> {
    let mut info = [0u64; INFO_WORDS];
    let descriptor = u32::try_from(program.as_fd().as_raw_fd()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let attributes = InfoAttributes { descriptor, length: size_of_val(&info) as u32, info: info.as_mut_ptr() as u64 };
    // SAFETY: the kernel writes no more than the length given, into memory that lives until the call returns.
    unsafe { bpf(BPF_OBJ_GET_INFO_BY_FD, (&raw const attributes).cast(), size_of::<InfoAttributes>()) }?;
    Ok(info[INFO_MISSES])
}

/// # Safety
/// The attributes are of that size and are what the command takes.
unsafe fn bpf(command: libc::c_int, attributes: *const libc::c_void, size: usize) -> io::Result<i32> {
    // SAFETY: the caller vouches for the attributes.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attributes, size) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    i32::try_from(result).map_err(|_| io::ErrorKind::InvalidData.into())
}
