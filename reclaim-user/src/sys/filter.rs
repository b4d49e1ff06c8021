//! Filters on the system calls of this process.
#![expect(unsafe_code, reason = "prctl takes a filter by its address")]

use std::io;

/// Makes the kernel refuse bpf(2) to this thread and all that it starts, with `EPERM`, as sandboxes and hardened hosts
/// do. There is no way back.
///
/// # Errors
/// What the kernel says: it takes CAP_SYS_ADMIN.
pub fn refuse_bpf() -> io::Result<()> {
    let number = u32::try_from(libc::SYS_bpf).map_err(|_| io::ErrorKind::InvalidData)?;
    // The number of the call is the first member of `struct seccomp_data`.
    let mut steps = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, number),
        step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM.unsigned_abs()),
        step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: the kernel copies the filter, which lives until the call returns.
    let result = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// One step of a filter: what it does, and how many steps it skips where a comparison fails.
fn step(code: u32, skipped: u8, value: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: skipped, k: value }
}
