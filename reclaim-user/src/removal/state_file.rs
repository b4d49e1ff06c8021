//! Files of the state directory: read within bounds, replaced as a whole.

use nix::fcntl::{Flock, FlockArg, OFlag};
use nix::unistd::{Gid, Uid, fchown};
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Longest file that is read, in bytes.
const LONGEST: u64 = 64 << 20;

/// Longest wait for another process that changes the same file.
const PATIENCE: Duration = Duration::from_secs(5);

/// Reads a file; none when there is none. A link is not followed, and what is no regular file is an error.
///
/// # Errors
/// When it cannot be read.
pub(super) fn read(file: &Path) -> io::Result<Option<Vec<u8>>> {
    read_up_to(file, LONGEST)
}

/// The same for a file of at most so many bytes.
///
/// # Errors
/// When it cannot be read, or is longer.
pub(super) fn read_up_to(file: &Path, longest: u64) -> io::Result<Option<Vec<u8>>> {
    let opened = match open(file) {
        Ok(opened) => opened,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut text = Vec::new();
    opened.take(longest + 1).read_to_end(&mut text)?;
    if text.len() as u64 > longest {
        return Err(io::Error::other(format!("it is longer than {longest} bytes")));
    }
    Ok(Some(text))
}

/// Opens a regular file without following a link at its end, and without waiting for anybody.
fn open(file: &Path) -> io::Result<File> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let opened = OpenOptions::new().read(true).custom_flags(flags.bits()).open(file)?;
    match opened.metadata()?.is_file() {
        true => Ok(opened),
        false => Err(io::Error::other("it is not a regular file")),
    }
}

/// Replaces a file as a whole, so that it is never half a file, and is there again after a loss of power. Its owner and
/// mode stay what they were; a fresh one belongs to the caller alone.
///
/// # Errors
/// When it cannot be written; then what was there before is still there.
pub(super) fn replace(file: &Path, text: &[u8]) -> io::Result<()> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let (directory, name) = match (file.parent(), file.file_name()) {
        (Some(directory), Some(name)) => (directory, name.to_string_lossy()),
        _ => return Err(io::Error::other("it is not in a directory")),
    };
    make_directory(directory)?;
    let before = match fs::symlink_metadata(file) {
        Ok(stat) if stat.is_file() => Some((stat.uid(), stat.gid(), stat.mode() & 0o7777)),
        Ok(_) => return Err(io::Error::other("it is not a regular file")),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let beside = directory.join(format!(".{name}.{}.{number}", std::process::id()));
    match fs::remove_file(&beside) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let written = write(&beside, text, before).and_then(|()| fs::rename(&beside, file));
    if written.is_err() {
        // The error is what is told; what is left beside the file does no harm.
        let _left = fs::remove_file(&beside);
    }
    written?;
    File::open(directory)?.sync_all()
}

/// Writes a file that is made anew, so that no link is followed, and has it on disk.
fn write(file: &Path, text: &[u8], like: Option<(u32, u32, u32)>) -> io::Result<()> {
    let mut opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file)?;
    opened.write_all(text)?;
    if let Some((owner, group, mode)) = like {
        fchown(&opened, Some(Uid::from_raw(owner)), Some(Gid::from_raw(group)))?;
        // After the owner, for changing that takes set-id bits off.
        opened.set_permissions(Permissions::from_mode(mode))?;
    }
    opened.sync_all()
}

/// Makes the state directory where it is not there.
pub(super) fn make_directory(directory: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)
}

/// Makes sure that no other process changes a file meanwhile: the lock on a file beside it, for as long as this lives.
///
/// # Errors
/// When somebody holds it for long.
pub(super) fn lock(file: &Path) -> io::Result<Flock<File>> {
    let mut path = file.as_os_str().to_owned();
    path.push(".lock");
    if let Some(directory) = file.parent() {
        make_directory(directory)?;
    }
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).write(true).mode(0o600).custom_flags(OFlag::O_NOFOLLOW.bits());
    let mut opened = options.open(&path)?;
    let begun = Instant::now();
    loop {
        match Flock::lock(opened, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((file, nix::Error::EWOULDBLOCK)) if begun.elapsed() < PATIENCE => {
                opened = file;
                std::thread::sleep(Duration::from_millis(5));
            }
            Err((_, error)) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replaced_file_keeps_its_mode_and_nothing_is_left_beside_it() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("below/state.json");
        assert_eq!(read(&file).unwrap(), None);
        replace(&file, b"one").unwrap();
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o7777, 0o600);
        fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        replace(&file, b"two").unwrap();
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o7777, 0o640);
        assert_eq!(read(&file).unwrap().as_deref(), Some(&b"two"[..]));
        assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn neither_a_link_nor_a_pipe_is_read_or_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let (link, pipe) = (directory.path().join("link"), directory.path().join("pipe"));
        fs::write(directory.path().join("real"), "x").unwrap();
        std::os::unix::fs::symlink("real", &link).unwrap();
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        for file in [&link, &pipe] {
            assert!(read(file).is_err() && replace(file, b"y").is_err(), "{}", file.display());
        }
        assert_eq!(fs::read(directory.path().join("real")).unwrap(), b"x");
    }
}
