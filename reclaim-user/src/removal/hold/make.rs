//! Making placeholders: recorded first, named last, and never in the place of anything.

use super::error::HoldError;
use super::store::{Alive, Store};
use crate::model::hold::{
    Manifest, Placeholder, PlaceholderKind, Print, TEMPORARY, Word, is_free_of_ours, is_ours, is_plain,
};
use crate::model::path_text::PathArgument;
use crate::removal::crash;
use crate::sys::directory;
use crate::sys::file_status::{FileStatus, status_at, status_of};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, openat};
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::linkat;
use std::ffi::{CString, OsStr};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// Tries for one name that others make and take away all the time.
const TRIES: usize = 64;

/// A placeholder that somebody wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Its path.
    pub path: PathBuf,
    /// What it is to be.
    pub kind: PlaceholderKind,
}

impl Wanted {
    /// From an argument: a slash at the end asks for a directory.
    ///
    /// # Errors
    /// When it names no single file.
    pub fn parse(argument: &OsStr) -> Result<Self, HoldError> {
        let bytes = argument.as_bytes();
        let kind = if bytes.ends_with(b"/") { PlaceholderKind::Dir } else { PlaceholderKind::File };
        let end = bytes.iter().rposition(|byte| *byte != b'/').map_or(0, |at| at + 1);
        let path = PathBuf::from(OsStr::from_bytes(&bytes[..end]));
        let refused = |why| HoldError::Name { path: PathBuf::from(argument), why };
        let last = bytes[..end].rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        match last {
            b"" => Err(refused("it names nothing")),
            b"." | b".." => Err(refused("it names a directory that is there already")),
            last if !is_plain(last) => Err(refused("its name is too long")),
            last if is_ours(last) => Err(refused("reclaim uses such names itself")),
            _ => Ok(Self { path, kind }),
        }
    }
}

/// A wanted placeholder in a directory that is open.
struct Site<'w> {
    wanted: &'w Wanted,
    directory: OwnedFd,
    path: PathBuf,
    inode: u64,
    name: CString,
}

/// What has been prepared for a name that is free.
enum Prepared {
    /// A file that has no name yet.
    Nameless(OwnedFd),
    /// To be made under this name, and renamed.
    Temporary(CString),
}

/// Makes what is wanted, and names it in the manifest: what is there already is left as it is, and named, too, where
/// another hold made it.
///
/// # Errors
/// When one cannot be made. What was made before is named in the manifest, for [`super::left`] to find.
pub fn make(
    store: &Store,
    alive: &Alive,
    manifest: &mut Manifest,
    others: &[Word],
    wanted: &[Wanted],
) -> Result<(), HoldError> {
    store.write(&alive.name, manifest)?;
    crash::step("hold-manifest");
    // In their order: one may lie in another.
    for wanted in wanted {
        let site = Site::open(wanted)?;
        site.fill(store, alive, manifest, others)?;
    }
    Ok(())
}

impl<'w> Site<'w> {
    fn open(wanted: &'w Wanted) -> Result<Self, HoldError> {
        let fault = |call, source: std::io::Error| HoldError::Make {
            path: wanted.path.clone(),
            call,
            source,
            remedy: "its directory must exist: make it first, or as a placeholder before this one",
        };
        let above = match wanted.path.parent() {
            Some(above) if above.as_os_str().is_empty() => Path::new("."),
            Some(above) => above,
            None => Path::new("/"),
        };
        let path = std::fs::canonicalize(above).map_err(|error| fault("realpath", error))?;
        if !is_free_of_ours(&path) {
            return Err(HoldError::Name { path: wanted.path.clone(), why: "reclaim works in that directory itself" });
        }
        let directory = directory::open_path(&path).map_err(|error| fault("openat2", error.into()))?;
        let status = status_of(&directory).map_err(|error| fault("statx", error.into()))?;
        let name = wanted.path.file_name().unwrap_or_default();
        let name = CString::new(name.as_bytes()).unwrap_or_default();
        Ok(Self { wanted, directory, path, inode: status.identity.inode, name })
    }

    fn fault<E: Into<std::io::Error>>(&self, call: &'static str) -> impl Fn(E) -> HoldError {
        let path = self.wanted.path.clone();
        move |source| {
            let source = source.into();
            let remedy = match source.raw_os_error().map(Errno::from_raw) {
                Some(Errno::ENOSPC | Errno::EDQUOT) => "make room there",
                Some(Errno::EROFS) => "nothing can be bound on a name that cannot be made: leave it out",
                Some(Errno::EACCES | Errno::EPERM) => {
                    "give its user the right to write to the directory, or leave it out"
                }
                _ => "leave it out, or see to what the system says",
            };
            HoldError::Make { path: path.clone(), call, source, remedy }
        }
    }

    fn fill(&self, store: &Store, alive: &Alive, manifest: &mut Manifest, others: &[Word]) -> Result<(), HoldError> {
        for _ in 0..TRIES {
            match status_at(&self.directory, &self.name) {
                Ok(found) => return self.adopt(store, alive, manifest, others, &found),
                Err(Errno::ENOENT) => {}
                Err(error) => return Err(self.fault("statx")(error)),
            }
            let prepared = self.prepare()?;
            let record = self.record(manifest, &prepared)?;
            let keep = manifest.placeholders.len();
            manifest.placeholders.push(record);
            store.write(&alive.name, manifest)?;
            crash::step("hold-recorded");
            if self.name_it(store, alive, manifest, prepared)? {
                crash::step("hold-made");
                return Ok(());
            }
            // Somebody else made it meanwhile: it is theirs, and the file of the record is gone.
            manifest.placeholders.truncate(keep);
        }
        let source = std::io::Error::from(Errno::EAGAIN);
        let remedy = "others make and remove it all the time";
        Err(HoldError::Make { path: self.wanted.path.clone(), call: "linkat", source, remedy })
    }

    /// Names what is there in the manifest where another hold made it, or may have made it. Anything else is the user's.
    fn adopt(
        &self,
        store: &Store,
        alive: &Alive,
        manifest: &mut Manifest,
        others: &[Word],
        found: &FileStatus,
    ) -> Result<(), HoldError> {
        let print = print(found);
        let kind = PlaceholderKind::of(found.status.kind);
        if kind != Some(self.wanted.kind) {
            // It stays what it is, and the launcher that wants to bind on it may fail for that.
            let wanted = if self.wanted.kind == PlaceholderKind::Dir { "directory" } else { "file" };
            tracing::warn!("{} is there and is no {wanted}; it is left as it is", self.wanted.path.display());
        }
        let Some(kind) = kind else { return Ok(()) };
        let boot = manifest.boot.clone();
        if manifest.names(&print, &boot) {
            return Ok(());
        }
        let own = store.owner();
        // As it was made, not as it is: what somebody changed since does not become a placeholder by being found.
        let made = others.iter().find_map(|other| other.print_of(own, &print, &boot));
        let may_be_one = |other: &Word| other.is_silent_on(own, &print) || other.is_unsure_of(own, &print, &boot);
        let untold = made.is_none();
        if untold && !others.iter().any(may_be_one) {
            return Ok(());
        }
        let record = Placeholder { print: Some(made.unwrap_or(print)), kind, untold, ..self.blank() };
        manifest.placeholders.push(record);
        store.write(&alive.name, manifest)
    }

    fn blank(&self) -> Placeholder {
        Placeholder {
            directory: PathArgument::of(self.path.as_os_str().as_bytes()),
            directory_inode: self.inode,
            name: PathArgument::of(self.name.to_bytes()),
            kind: self.wanted.kind,
            temporary: None,
            print: None,
            untold: false,
        }
    }

    fn prepare(&self) -> Result<Prepared, HoldError> {
        if self.wanted.kind == PlaceholderKind::File {
            let flags = OFlag::O_TMPFILE | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
            match openat(&self.directory, ".", flags, Mode::from_bits_truncate(0o644)) {
                Ok(nameless) => return Ok(Prepared::Nameless(nameless)),
                // What file systems without such files answer; see open(2).
                Err(Errno::EOPNOTSUPP | Errno::EISDIR | Errno::ENOENT | Errno::EINVAL) => {}
                Err(error) => return Err(self.fault("open(O_TMPFILE)")(error)),
            }
        }
        let random =
            std::fs::read_to_string("/proc/sys/kernel/random/uuid").map_err(self.fault("read a random number"))?;
        let name = [TEMPORARY, random.trim().as_bytes()].concat();
        Ok(Prepared::Temporary(CString::new(name).unwrap_or_default()))
    }

    fn record(&self, manifest: &Manifest, prepared: &Prepared) -> Result<Placeholder, HoldError> {
        debug_assert!(!manifest.boot.is_empty(), "device numbers belong to a boot");
        Ok(match prepared {
            Prepared::Nameless(file) => {
                let print = print(&status_of(file).map_err(self.fault("statx"))?);
                Placeholder { print: Some(print), ..self.blank() }
            }
            Prepared::Temporary(name) => {
                Placeholder { temporary: Some(name.to_string_lossy().into_owned()), ..self.blank() }
            }
        })
    }

    /// Gives what is prepared its name. False when something has that name already; then nothing is left of it.
    fn name_it(
        &self,
        store: &Store,
        alive: &Alive,
        manifest: &mut Manifest,
        prepared: Prepared,
    ) -> Result<bool, HoldError> {
        let named = match prepared {
            Prepared::Nameless(file) => {
                let own = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
                linkat(AT_FDCWD, &own, &self.directory, self.name.as_c_str(), AtFlags::AT_SYMLINK_FOLLOW)
                    .map_err(|error| ("linkat", error))
            }
            Prepared::Temporary(name) => {
                self.make_temporary(&name)?;
                crash::step("hold-temporary");
                let print = print(&status_at(&self.directory, &name).map_err(self.fault("statx"))?);
                if let Some(last) = manifest.placeholders.last_mut() {
                    last.print = Some(print);
                }
                store.write(&alive.name, manifest)?;
                crash::step("hold-identified");
                let moved = directory::move_entry(&self.directory, &name, &self.directory, &self.name);
                if moved.is_err() {
                    self.remove_temporary(&name).map_err(self.fault("unlinkat"))?;
                }
                moved.map_err(|error| ("renameat2", error))
            }
        };
        match named {
            Ok(()) => Ok(true),
            Err((_, Errno::EEXIST)) => Ok(false),
            Err((call, error)) => Err(self.fault(call)(error)),
        }
    }

    fn make_temporary(&self, name: &CString) -> Result<(), HoldError> {
        match self.wanted.kind {
            PlaceholderKind::Dir => mkdirat(&self.directory, name.as_c_str(), Mode::from_bits_truncate(0o755))
                .map_err(self.fault("mkdirat")),
            PlaceholderKind::File => {
                let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_WRONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
                openat(&self.directory, name.as_c_str(), flags, Mode::from_bits_truncate(0o644))
                    .map(drop)
                    .map_err(self.fault("openat"))
            }
        }
    }

    fn remove_temporary(&self, name: &CString) -> Result<(), Errno> {
        match self.wanted.kind {
            PlaceholderKind::Dir => directory::remove_directory(&self.directory, name),
            PlaceholderKind::File => directory::remove_file(&self.directory, name),
        }
    }
}

/// Which file it is.
pub(super) fn print(file: &FileStatus) -> Print {
    Print::of(file.identity.device, file.identity.inode, &file.status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_names_one_file_or_one_directory() {
        let parse = |text: &str| Wanted::parse(OsStr::new(text)).ok().map(|wanted| (wanted.path, wanted.kind));
        assert_eq!(parse("a/.env"), Some((PathBuf::from("a/.env"), PlaceholderKind::File)));
        assert_eq!(parse("/a/.git//"), Some((PathBuf::from("/a/.git"), PlaceholderKind::Dir)));
        for bad in ["", "/", "//", ".", "..", "a/..", "a/.", "a/../", ".reclaim-hold-x", ".reclaim", "a/.reclaim/"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
        assert_eq!(parse(&"x".repeat(256)), None);
    }
}
