//! System calls as a program of 32 bits makes them, from this one. For tests of what sees such callers.
#![cfg(target_arch = "x86_64")]
#![expect(unsafe_code, reason = "a way into the kernel that no library wraps")]

use std::ffi::CStr;
use std::num::NonZeroUsize;
use std::ptr;

use nix::Result;
use nix::errno::Errno;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// `umount2(2)`. <arch/x86/entry/syscalls/syscall_32.tbl>
const UMOUNT2: u64 = 52;

/// umount2(2) by the gate of 32-bit programs. The process dies of SIGSEGV where the kernel serves none: ask first, for
/// example whether /proc/kallsyms has `__ia32_sys_umount`.
///
/// # Errors
/// As umount2(2).
pub fn umount(path: &CStr, flags: u32) -> Result<()> {
    let path = path.to_bytes_with_nul();
    let length = NonZeroUsize::new(path.len()).ok_or(Errno::EINVAL)?;
    // SAFETY: fresh memory at an address of the kernel's choice replaces nothing.
    let low = unsafe {
        mmap_anonymous(
            None,
            length,
            ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
            MapFlags::MAP_PRIVATE | MapFlags::MAP_32BIT,
        )
    }?;
    // SAFETY: the memory is as long as the path, and nobody else knows of it.
    unsafe { ptr::copy_nonoverlapping(path.as_ptr(), low.cast().as_ptr(), path.len()) };
    let mut result = UMOUNT2;
    // SAFETY: the kernel reads the path, which ends in NUL. It keeps every register but rax and, in older kernels, r8 to
    // r11; rbx, which the compiler keeps to itself, is put back.
    unsafe {
        std::arch::asm!(
            "xchg rbx, {path}",
            "int 0x80",
            "xchg rbx, {path}",
            path = inout(reg) low.as_ptr() => _,
            inout("rax") result,
            in("rcx") u64::from(flags),
            out("r8") _, out("r9") _, out("r10") _, out("r11") _,
        );
    }
    // SAFETY: mapped above with this length, and not used any more.
    unsafe { munmap(low, length.get()) }?;
    // Callers of 32 bits get 32 bits.
    match result as i32 {
        0 => Ok(()),
        refusal => Err(Errno::from_raw(refusal.wrapping_neg())),
    }
}
