//! The programs that tell userspace what happens to mount namespaces, and that keep the mount clock.
//!
//! Each hook has thin entry programs, one per way of attaching; all of them end in the shared bodies of [`probes`].
#![cfg_attr(target_arch = "bpf", no_std, no_main)]
#![cfg_attr(target_arch = "bpf", feature(asm_experimental_arch))]
#![cfg_attr(
    target_arch = "bpf",
    expect(unsafe_code, reason = "helpers, maps and kernel memory are reached through raw pointers")
)]

#[cfg(target_arch = "bpf")]
mod clock;
#[cfg(target_arch = "bpf")]
mod emit;
#[cfg(target_arch = "bpf")]
mod fence;
#[cfg(target_arch = "bpf")]
mod inside;
#[cfg(target_arch = "bpf")]
mod kernel;
#[cfg(target_arch = "bpf")]
mod maps;
#[cfg(target_arch = "bpf")]
mod probes;
#[cfg(target_arch = "bpf")]
mod reference;
#[cfg(target_arch = "bpf")]
mod reference_count;
#[cfg(target_arch = "bpf")]
mod walk;

#[cfg(target_arch = "bpf")]
#[unsafe(no_mangle)]
#[unsafe(link_section = "license")]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

#[cfg(target_arch = "bpf")]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

/// The host build of this package is of use for its library only.
#[cfg(not(target_arch = "bpf"))]
fn main() {}
