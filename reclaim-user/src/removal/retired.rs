//! Roots of legacy residue that are done with: a marker in the state directory says so, and they are looked at no more.

use super::state_file::make_directory;
use crate::config::RootConfig;
use crate::model::calendar;
use nix::fcntl::OFlag;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Longest time that is read from a marker, in bytes.
const LONGEST: u64 = 64;

/// Since when a root is retired, for people; none when it is not. Whatever lies in the place of the marker counts as one:
/// a root that is skipped loses nothing.
///
/// # Errors
/// When that cannot be told.
pub fn retired_since(state_dir: &Path, root: &RootConfig) -> io::Result<Option<String>> {
    if !root.once {
        return Ok(None);
    }
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    match OpenOptions::new().read(true).custom_flags(flags.bits()).open(marker(state_dir, root)) {
        Ok(file) => {
            let mut text = String::new();
            let read = file.metadata().is_ok_and(|stat| stat.is_file())
                && file.take(LONGEST).read_to_string(&mut text).is_ok()
                && calendar::read(text.trim()).is_some();
            Ok(Some(if read { text.trim().to_owned() } else { "an unknown time".to_owned() }))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        // What O_NOFOLLOW answers for a link.
        Err(error) if error.raw_os_error() == Some(nix::libc::ELOOP) => Ok(Some("an unknown time".to_owned())),
        Err(error) => Err(error),
    }
}

/// Retires a root. Nothing that lies in the place of the marker is written to.
///
/// # Errors
/// When the marker cannot be made; the root stays in use.
pub fn retire(state_dir: &Path, root: &RootConfig) -> io::Result<()> {
    make_directory(state_dir)?;
    let mut options = OpenOptions::new();
    // O_EXCL with O_CREAT.
    options.write(true).create_new(true).mode(0o600).custom_flags(OFlag::O_NOFOLLOW.bits());
    let mut file = options.open(marker(state_dir, root))?;
    file.write_all(format!("{}\n", calendar::written(super::examine::now())).as_bytes())?;
    file.sync_all()?;
    File::open(state_dir)?.sync_all()
}

/// The place of the marker. It belongs to a root's name and path, so that neither a root that is moved nor one that comes
/// by the name of another one is taken for retired.
#[must_use]
pub fn marker(state_dir: &Path, root: &RootConfig) -> PathBuf {
    use std::fmt::Write as _;
    let mut name = "retired-".to_owned();
    for byte in root.name.bytes().take(64) {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => name.push(char::from(byte)),
            _ => name.push('+'),
        }
    }
    // FNV-1a, which stays the same from one build to the next.
    let parts = [root.name.as_bytes(), &[0], root.path.as_os_str().as_bytes()].concat();
    let hash = parts
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    write!(name, "-{hash:016x}").expect("writing to a string cannot fail");
    state_dir.join(name)
}
