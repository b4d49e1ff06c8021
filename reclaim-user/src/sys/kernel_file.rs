#![expect(unsafe_code, reason = "a file is mapped and seen as bytes")]
//! Files that the kernel makes of its own memory, mapped where it lets them be.

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::File;
use std::io::{self, Read as _};
use std::num::NonZeroUsize;
use std::ops::Deref;
use std::path::Path;
use std::ptr::NonNull;

/// The whole of a file that does not change as long as the kernel runs.
#[derive(Debug)]
pub struct KernelFile(Content);

#[derive(Debug)]
enum Content {
    Mapped { base: NonNull<u8>, bytes: NonZeroUsize },
    Read(Vec<u8>),
}

impl KernelFile {
    /// Opens a file of sysfs, and maps it where the kernel allows that: its type information, since Linux 6.16
    /// (`btf_sysfs_vmlinux_mmap` in kernel/bpf/sysfs_btf.c). That saves a copy of some megabytes. Elsewhere it is read.
    ///
    /// The file must be one that never changes.
    ///
    /// # Errors
    /// It cannot be opened or read.
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut file = File::open(path)?;
        if let Some(bytes) = usize::try_from(file.metadata()?.len()).ok().and_then(NonZeroUsize::new) {
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

impl Deref for KernelFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            // SAFETY: the mapping has this length, lives as long as self, and what it shows does not change.
            Content::Mapped { base, bytes } => unsafe { std::slice::from_raw_parts(base.as_ptr(), bytes.get()) },
            Content::Read(text) => text,
        }
    }
}

impl Drop for KernelFile {
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
    fn a_file_is_the_same_mapped_or_read() {
        for path in ["/sys/kernel/btf/vmlinux", "/sys/kernel/notes", "/proc/version"] {
            let path = Path::new(path);
            let Ok(text) = std::fs::read(path) else {
                eprintln!("skip: this kernel has no {}", path.display());
                continue;
            };
            assert!(*KernelFile::open(path).unwrap() == *text, "{}", path.display());
        }
        assert!(KernelFile::open(Path::new("/sys/kernel/no-such-file")).is_err());
    }
}
