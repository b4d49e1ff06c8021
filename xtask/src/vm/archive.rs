//! A writer of cpio archives in the format "newc", which the kernel unpacks as its first file system.
//!
//! Format: Documentation/driver-api/early-userspace/buffer-format.rst of the kernel.

use std::io::{self, Write};

/// Type and permission bits of what is written, as in `st_mode`.
const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const LINK: u32 = 0o120_777;
/// Name of the record that ends an archive.
const END: &str = "TRAILER!!!";

/// An archive in the making. Parents have to be written before what is in them.
pub(super) struct Archive<W: Write> {
    output: W,
    written: usize,
    inode: u32,
}

impl<W: Write> Archive<W> {
    pub(super) fn new(output: W) -> Self {
        Self { output, written: 0, inode: 0 }
    }

    /// # Errors
    /// The output cannot be written.
    pub(super) fn directory(&mut self, path: &str) -> io::Result<()> {
        self.record(path, DIRECTORY, &[])
    }

    /// # Errors
    /// The output cannot be written, or the file is larger than the format allows.
    pub(super) fn program(&mut self, path: &str, content: &[u8]) -> io::Result<()> {
        self.record(path, PROGRAM, content)
    }

    /// # Errors
    /// The output cannot be written.
    pub(super) fn link(&mut self, path: &str, target: &str) -> io::Result<()> {
        self.record(path, LINK, target.as_bytes())
    }

    /// Writes the end, and returns the output.
    ///
    /// # Errors
    /// The output cannot be written.
    pub(super) fn finish(mut self) -> io::Result<W> {
        self.inode = 0;
        self.record(END, 0, &[])?;
        self.output.flush()?;
        Ok(self.output)
    }

    fn record(&mut self, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        let size = u32::try_from(content.len()).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
        let name = u32::try_from(path.len() + 1).map_err(|_| io::Error::from(io::ErrorKind::InvalidFilename))?;
        self.inode += 1;
        // Inode, mode, uid, gid, links, mtime, size, device and rdev (major, minor), name with its end, checksum.
        let fields = [self.inode, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name, 0];
        self.put(b"070701")?;
        for field in fields {
            self.put(format!("{field:08X}").as_bytes())?;
        }
        self.put(path.as_bytes())?;
        self.put(&[0])?;
        self.align()?;
        self.put(content)?;
        self.align()
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.written += bytes.len();
        self.output.write_all(bytes)
    }

    fn align(&mut self) -> io::Result<()> {
        let missing = self.written.next_multiple_of(4) - self.written;
        self.put(&[0; 3][..missing])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_headers_names_and_contents_in_fours() -> io::Result<()> {
        let mut archive = Archive::new(Vec::new());
        archive.program("ab", b"12345")?;
        let bytes = archive.finish()?;
        // 110 bytes of header, "ab\0" and three more; five bytes and three more.
        assert_eq!(&bytes[..14], b"07070100000001");
        assert_eq!(&bytes[14..22], b"000081ED");
        assert_eq!(&bytes[54..62], b"00000005");
        assert_eq!(&bytes[94..102], b"00000003");
        assert_eq!(&bytes[110..124], b"ab\0\0\0\x0012345\0\0\0"[..14].as_ref());
        assert_eq!(&bytes[124..130], b"070701");
        assert!(bytes.len() % 4 == 0 && bytes.windows(END.len()).any(|window| window == END.as_bytes()));
        Ok(())
    }
}
