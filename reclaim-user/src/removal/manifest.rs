//! The manifest of an entry, read by descriptor.

use crate::config::RetainFrom;
use crate::model::fence::FileKind;
use crate::model::retention::{self, LONGEST_MANIFEST, Record};
use crate::sys::directory;
use crate::sys::file_status::{status_at, status_of};
use nix::errno::Errno;
use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::io::Read as _;
use std::os::fd::AsFd;
use std::sync::LazyLock;

/// What a verdict was made on, to be compared with what is there before removal.
///
/// Two keyed hashes stand for the bytes: nobody outside of this process knows the keys, so nobody can write another
/// manifest with the same ones, and a group of entries stays small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Witness {
    /// There was none, or it could not be looked at.
    None,
    /// Something that is no manifest.
    Odd,
    /// These bytes.
    Bytes {
        /// How many.
        length: usize,
        /// What they come to.
        hashes: [u64; 2],
    },
}

/// Reads the manifest in the directory of an entry. No link is followed, nothing but a regular file is opened, and nobody is
/// waited for.
pub(super) fn read(entry: impl AsFd, from: &RetainFrom) -> (Record, Witness) {
    match read_bytes(entry, from) {
        Ok(Some(bytes)) if bytes.len() > LONGEST_MANIFEST => (Record::Broken, Witness::Odd),
        Ok(Some(bytes)) => (retention::read(&bytes, from), Witness::of(&bytes)),
        Ok(None) => (Record::Broken, Witness::Odd),
        Err(Errno::ENOENT) => (Record::Absent, Witness::None),
        Err(_) => (Record::Unread, Witness::None),
    }
}

/// Its bytes, one more than is allowed at most; none when it is no regular file.
fn read_bytes(entry: impl AsFd, from: &RetainFrom) -> Result<Option<Vec<u8>>, Errno> {
    let seen = status_at(&entry, &from.file)?;
    if seen.status.kind != FileKind::File {
        return Ok(None);
    }
    // What took its place since was there a moment ago: that is no time to say that it is absent.
    let opened = directory::open_entry(&entry, &from.file, false).map_err(|error| match error {
        Errno::ENOENT => Errno::EAGAIN,
        error => error,
    })?;
    if status_of(&opened)?.identity != seen.identity {
        return Err(Errno::EAGAIN);
    }
    let mut bytes = Vec::new();
    let limit = LONGEST_MANIFEST as u64 + 1;
    match File::from(opened).take(limit).read_to_end(&mut bytes) {
        Ok(_) => Ok(Some(bytes)),
        Err(error) => Err(error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)),
    }
}

impl Witness {
    fn of(bytes: &[u8]) -> Self {
        static KEYS: LazyLock<[RandomState; 2]> = LazyLock::new(|| [RandomState::new(), RandomState::new()]);
        Self::Bytes { length: bytes.len(), hashes: [0, 1].map(|index: usize| KEYS[index].hash_one(bytes)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::WithoutRecord;
    use crate::model::fence::Timestamp;
    use std::fs;
    use std::path::Path;

    fn read_in(directory: &Path) -> (Record, Witness) {
        let rule = WithoutRecord::Keep;
        let from = RetainFrom { file: c"m".into(), field: "at".into(), deadline: None, absent: rule, broken: rule };
        read(File::open(directory).unwrap(), &from)
    }

    #[test]
    fn only_a_regular_file_of_some_size_is_a_manifest() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("m");
        let odd = |make: &dyn Fn()| {
            make();
            assert_eq!(read_in(directory.path()), (Record::Broken, Witness::Odd));
            if file.is_dir() { fs::remove_dir(&file).unwrap() } else { fs::remove_file(&file).unwrap() }
        };
        odd(&|| nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).unwrap());
        odd(&|| fs::create_dir(&file).unwrap());
        odd(&|| std::os::unix::fs::symlink("/etc/passwd", &file).unwrap());
        odd(&|| fs::write(&file, [b"{\"at\": 1}", vec![b' '; LONGEST_MANIFEST].as_slice()].concat()).unwrap());
        assert_eq!(read_in(directory.path()), (Record::Absent, Witness::None));
        fs::write(&file, "{\"at\": 7}").unwrap();
        let (record, witness) = read_in(directory.path());
        assert_eq!(record, Record::Told { begun: Timestamp::of(7, 0), deadline: None });
        fs::write(&file, "{\"at\":  7}").unwrap();
        assert_eq!(read_in(directory.path()).0, record);
        assert_ne!(read_in(directory.path()).1, witness, "other bytes");
        fs::write(&file, "{\"at\": 7}").unwrap();
        assert_eq!(read_in(directory.path()), (record, witness));
    }
}
