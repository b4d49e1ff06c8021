#![expect(unsafe_code, reason = "a file is mapped and seen as bytes")]
//! The kernel's type information, mapped where it lets that be.

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::sys::statfs::{SYSFS_MAGIC, fstatfs};
use std::fs::File;
use std::io::{self, Read as _};
use std::num::NonZeroUsize;
use std::ops::Deref;
use std::path::Path;
use std::ptr::NonNull;

/// Where the kernel shows its type information, with CONFIG_DEBUG_INFO_BTF.
pub const VMLINUX: &str = "/sys/kernel/btf/vmlinux";

/// The whole of what the running kernel says of its types, which does not change as long as it runs.
#[derive(Debug)]
pub struct KernelTypes(Content);

#[derive(Debug)]
enum Content {
    Mapped { base: NonNull<u8>, bytes: NonZeroUsize },
    Read(Vec<u8>),
}

impl KernelTypes {
    /// Maps them where the kernel allows that, since Linux 6.16 (`btf_sysfs_vmlinux_mmap` in kernel/bpf/sysfs_btf.c): that
    /// saves a copy of some megabytes. Elsewhere they are read, and so is what somebody mounted in their place, which may
    /// change or become shorter while it is looked at.
    ///
    /// # Errors
    /// They cannot be opened or read.
    pub fn open() -> io::Result<Self> {
        Self::of(File::open(Path::new(VMLINUX))?)
    }

    fn of(mut file: File) -> io::Result<Self> {
        let is_kernels = fstatfs(&file).is_ok_and(|status| status.filesystem_type() == SYSFS_MAGIC);
        let bytes = usize::try_from(file.metadata()?.len()).ok().and_then(NonZeroUsize::new);
        if let Some(bytes) = bytes.filter(|_| is_kernels) {
            // SAFETY: a fresh private mapping at an address of the kernel's choice replaces nothing.
            let mapped = unsafe { mmap(None, bytes, ProtFlags::PROT_READ, MapFlags::MAP_PRIVATE, &file, 0) };
            if let Ok(base) = mapped {
                return Ok(Self(Content::Mapped { base: base.cast(), bytes }));
            }
        }
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        Ok(Self(Content::Read(text)))
    }
}

impl Deref for KernelTypes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            // SAFETY: the mapping has this length, lives as long as self, and what it shows does not change.
            Content::Mapped { base, bytes } => unsafe { std::slice::from_raw_parts(base.as_ptr(), bytes.get()) },
            Content::Read(text) => text,
        }
    }
}

impl Drop for KernelTypes {
    fn drop(&mut self) {
        if let Content::Mapped { base, bytes } = self.0 {
            // SAFETY: the mapping was made by `open` with this length, and nothing borrows from it any more.
            let unmapped = unsafe { munmap(base.cast(), bytes.get()) };
            debug_assert!(unmapped.is_ok(), "munmap of a mapping of our own failed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_the_same_mapped_or_read() {
        let Ok(text) = std::fs::read(VMLINUX) else {
            eprintln!("skip: this kernel has no {VMLINUX}");
            return;
        };
        assert!(*KernelTypes::open().unwrap() == *text);
    }

    #[test]
    fn what_is_mounted_in_their_place_is_read() {
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, b"no types").unwrap();
        std::io::Seek::rewind(&mut file).unwrap();
        let read = KernelTypes::of(file).unwrap();
        assert!(matches!(&read.0, Content::Read(text) if text == b"no types"), "{read:?}");
    }
}
