//! Where the manifests of one user's holds are, and the locks that tell which holders live.
//!
//! `BASE/UID/NAME.json` is a manifest and `NAME.alive` a pipe that nothing is written to: its holder, and every process
//! that inherited it, has it locked. The kernel lets go of that lock with the last of them. A pipe, because a sandbox that
//! inherits it can neither reach a directory through it nor fill a file.

use super::error::HoldError;
use super::left::boot;
use crate::model::fence::FileKind;
use crate::model::hold::Manifest;
use crate::removal::state_file;
use crate::sys::directory::{self, Names, Reader};
use crate::sys::file_status::status_of;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, Flock, OFlag, open, openat};
use nix::sys::stat::{Mode, fchmod, mkdirat};
use nix::unistd::{geteuid, mkfifo};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Between two tries for a lock.
const PAUSE: Duration = Duration::from_millis(5);
/// Longest manifest, in bytes, and most that is read of one store: they are other users' words, and need memory.
const LONGEST: u64 = 1 << 20;
const MOST: u64 = 32 << 20;
/// What a manifest counts for at least.
const LEAST: u64 = 512;
/// How the names of manifests end.
const MANIFEST: &str = ".json";
/// How the names of the pipes beside them end.
const ALIVE: &str = ".alive";

/// The directory that holds a store for each user.
#[derive(Clone, Debug)]
pub struct Stores {
    base: PathBuf,
}

impl Stores {
    /// In this directory. Nothing is made or read yet.
    #[must_use]
    pub fn of(base: &Path) -> Self {
        Self { base: base.into() }
    }

    /// Makes the directory where it is not there: by root, so that every user can have a store in it.
    ///
    /// # Errors
    /// When it cannot be made, or others could change what is in it.
    pub fn prepare(&self) -> Result<OwnedFd, HoldError> {
        let shared = geteuid().is_root();
        let mode = if shared { Mode::from_bits_truncate(0o1777) } else { Mode::S_IRWXU };
        let above = self.base.parent().unwrap_or(Path::new("/"));
        if shared {
            state_file::make_directory(above).map_err(|error| self.refused(error.to_string()))?;
        }
        match mkdirat(AT_FDCWD, &self.base, mode) {
            Ok(()) => {
                let made = directory::open_path(&self.base).map_err(|error| self.refused(error.desc().into()))?;
                // The umask took bits off.
                fchmod(&made, mode).map_err(|error| self.refused(error.desc().into()))?;
            }
            Err(Errno::EEXIST) => {}
            Err(error) => return Err(self.refused(error.desc().into())),
        }
        self.open()
    }

    fn open(&self) -> Result<OwnedFd, HoldError> {
        let opened = directory::open_path(&self.base).map_err(|error| self.refused(error.desc().into()))?;
        let status = status_of(&opened).map_err(|error| self.refused(error.desc().into()))?.status;
        if status.owner != 0 && status.owner != geteuid().as_raw() {
            return Err(self.refused(format!("it belongs to user {}", status.owner)));
        }
        if status.mode & 0o022 != 0 && status.mode & 0o1000 == 0 {
            return Err(self.refused(format!("with mode {:04o} anybody can take others' stores away", status.mode)));
        }
        Ok(opened)
    }

    fn refused(&self, why: String) -> HoldError {
        let remedy = "root makes that directory by `reclaim run`, or see `holds` in the configuration";
        HoldError::Place { path: self.base.clone(), why, remedy }
    }

    /// The caller's own store, made where it is not there, locked within `patience`.
    ///
    /// # Errors
    /// When it cannot be made or used, or others do not let go of it.
    pub fn own(&self, patience: Duration) -> Result<Store, HoldError> {
        let base = self.prepare()?;
        let owner = geteuid().as_raw();
        let name = CString::new(owner.to_string()).unwrap_or_default();
        match directory::make(&base, &name) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(error) => return Err(self.refused(error.desc().into())),
        }
        self.lock(&base, owner, patience)
    }

    /// The store of a user, locked within `patience`; none when there is none.
    ///
    /// # Errors
    /// As [`Stores::own`].
    pub fn of_user(&self, owner: u32, patience: Duration) -> Result<Option<Store>, HoldError> {
        let name = CString::new(owner.to_string()).unwrap_or_default();
        let base = match directory::open_path(&self.base) {
            Err(Errno::ENOENT) => return Ok(None),
            _ => self.open()?,
        };
        match directory::open_child(&base, &name) {
            Err(Errno::ENOENT) => Ok(None),
            _ => self.lock(&base, owner, patience).map(Some),
        }
    }

    /// The users that have a store.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn users(&self) -> Result<Vec<u32>, HoldError> {
        Ok(self.listed()?.0)
    }

    /// How many directories bear the name of a user whose they are not. Anybody may make one, so they mean nothing.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn strangers(&self) -> Result<usize, HoldError> {
        Ok(self.listed()?.1)
    }

    fn listed(&self) -> Result<(Vec<u32>, usize), HoldError> {
        let base = match directory::open_path(&self.base) {
            Err(Errno::ENOENT) => return Ok((Vec::new(), 0)),
            _ => self.open()?,
        };
        let names = names(&base).map_err(|error| self.refused(error.desc().into()))?;
        let users = names.iter().filter_map(|name| {
            let text = name.to_str().ok()?;
            // Only as it is written here: `+1` and `01` are nobody's.
            let user = text.parse::<u32>().ok().filter(|user| user.to_string() == text)?;
            // What is mounted there is not asked for anything. What cannot be looked at may be that user's.
            let is_own = match directory::open_child(&base, name).and_then(status_of) {
                Ok(file) => file.status.owner == user,
                Err(error) => !matches!(error, Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::EXDEV),
            };
            Some((user, is_own))
        });
        let (own, others): (Vec<_>, Vec<_>) = users.partition(|(_, is_own)| *is_own);
        Ok((own.into_iter().map(|(user, _)| user).collect(), others.len()))
    }

    /// The manifests in the store of a user, none where there is no store. It is not locked for that: a holder that is about
    /// to write its manifest is not among them.
    ///
    /// # Errors
    /// When the caller may not read it.
    pub fn look(&self, user: u32) -> Result<Vec<Seen>, HoldError> {
        let (path, base) = (self.base.join(user.to_string()), self.open()?);
        if path.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            return Ok(Vec::new());
        }
        let opened = self.open_store(&base, user)?;
        let seen = |found: Found| Some(Seen { is_alive: found.is_alive, manifest: found.manifest? });
        Ok(found(&path, opened.as_fd())?.into_iter().filter_map(seen).collect())
    }

    /// Whether a manifest is still there. Not knowing counts as that.
    #[must_use]
    pub fn is_recorded(&self, user: u32, name: &str) -> bool {
        let file = self.base.join(user.to_string()).join(format!("{name}{MANIFEST}"));
        !file.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    }

    /// Opens the store of a user, which nobody else can change.
    fn open_store(&self, base: &OwnedFd, owner: u32) -> Result<OwnedFd, HoldError> {
        let path = self.base.join(owner.to_string());
        let remedy = "look what it is, and move it away";
        let refused = |why: String| HoldError::Place { path: path.clone(), why, remedy };
        let name = CString::new(owner.to_string()).unwrap_or_default();
        let opened = directory::open_child(base, &name).map_err(|error| refused(error.desc().into()))?;
        let status = status_of(&opened).map_err(|error| refused(error.desc().into()))?.status;
        if status.owner != owner || status.mode & 0o077 != 0 {
            return Err(refused(format!("it belongs to user {} and has mode {:04o}", status.owner, status.mode)));
        }
        Ok(opened)
    }

    fn lock(&self, base: &OwnedFd, owner: u32, patience: Duration) -> Result<Store, HoldError> {
        let mut opened = self.open_store(base, owner)?;
        let path = self.base.join(owner.to_string());
        let begun = Instant::now();
        loop {
            match directory::lock(opened) {
                Ok(directory) => return Ok(Store { path, owner, directory }),
                Err((again, Errno::EWOULDBLOCK)) if begun.elapsed() < patience => opened = again,
                Err((_, Errno::EWOULDBLOCK)) => return Err(HoldError::Busy { path }),
                Err((_, source)) => {
                    return Err(HoldError::Record { path, call: "flock", source: source.into() });
                }
            }
            std::thread::sleep(PAUSE);
        }
    }
}

/// The store of one user, locked for as long as this lives.
#[derive(Debug)]
pub struct Store {
    pub(super) path: PathBuf,
    pub(super) owner: u32,
    directory: Flock<OwnedFd>,
}

/// What a store holds.
#[derive(Debug, Default)]
pub struct StoreStatus {
    /// Manifests whose holder lives, each with its name.
    pub living: Vec<(String, Result<Manifest, HoldError>)>,
    /// Manifests whose holder has ended.
    pub ended: Vec<(String, Result<Manifest, HoldError>)>,
}

/// The holder's own end of the pipe that tells that it lives.
#[derive(Debug)]
pub struct Alive {
    /// Name of its manifest.
    pub name: String,
    /// For those that live as long as the hold: locked, and inherited.
    pub held: OwnedFd,
    /// For whoever waits for their end: it hangs up then. Locked, too.
    pub watched: OwnedFd,
}

impl Store {
    /// Whose it is.
    #[must_use]
    pub fn owner(&self) -> u32 {
        self.owner
    }

    /// Its group, which is the one that its owner makes files with.
    pub(super) fn group(&self) -> Option<u32> {
        status_of(self.directory.as_fd()).ok().map(|file| file.group)
    }

    fn file(&self, name: &str) -> PathBuf {
        file(self.directory.as_fd(), name)
    }

    fn fault<E: Into<io::Error>>(&self, name: &str, call: &'static str) -> impl Fn(E) -> HoldError {
        fault(self.path.join(name), call)
    }

    /// Makes the pipe of a hold and locks it: from here on its manifest is that of a living holder.
    ///
    /// # Errors
    /// When there is no room for it, and the like. Nothing is left then.
    pub fn begin(&self) -> Result<Alive, HoldError> {
        let random = std::fs::read_to_string("/proc/sys/kernel/random/uuid")
            .map_err(self.fault("/proc/sys/kernel/random/uuid", "read"))?;
        let name = random.trim().to_owned();
        let file = format!("{name}{ALIVE}");
        mkfifo(&self.file(&file), Mode::S_IRUSR | Mode::S_IWUSR).map_err(self.fault(&file, "mkfifo"))?;
        let flags = OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let open = |access| {
            let opened = open(&self.file(&file), access | flags, Mode::empty()).map_err(self.fault(&file, "open"))?;
            // Of the open file, not of a value here: whoever inherits the descriptor holds it, too. Somebody who just
            // looks whether it is alive has it for a moment.
            let mut tries = 0;
            loop {
                match directory::lock_shared(&opened) {
                    Ok(()) => return Ok(opened),
                    Err(Errno::EWOULDBLOCK) if tries < 200 => tries += 1,
                    Err(error) => return Err(self.fault(&file, "flock")(error)),
                }
                std::thread::sleep(PAUSE);
            }
        };
        let both = open(OFlag::O_RDONLY).and_then(|watched| Ok((watched, open(OFlag::O_WRONLY)?)));
        match both {
            Ok((watched, held)) => Ok(Alive { name, held, watched }),
            Err(error) => {
                self.forget(&name)?;
                Err(error)
            }
        }
    }

    /// Writes the manifest of a hold, so that it is there after a loss of power.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, name: &str, manifest: &Manifest) -> Result<(), HoldError> {
        let file = format!("{name}{MANIFEST}");
        state_file::replace(&self.file(&file), &manifest.write()).map_err(self.fault(&file, "write"))
    }

    /// Takes a manifest away, and its pipe.
    ///
    /// # Errors
    /// When one of them stays.
    pub fn forget(&self, name: &str) -> Result<(), HoldError> {
        // The manifest first: a pipe without one means nothing.
        for end in [MANIFEST, ALIVE] {
            let file = format!("{name}{end}");
            let text = CString::new(file.as_str()).unwrap_or_default();
            match directory::remove_file(self.directory.as_fd(), &text) {
                Ok(()) | Err(Errno::ENOENT) => {}
                Err(error) => return Err(self.fault(&file, "unlinkat")(error)),
            }
        }
        Ok(())
    }

    /// Reads every manifest, and finds out whose holder lives.
    ///
    /// # Errors
    /// When the store cannot be listed.
    pub fn status(&self) -> Result<StoreStatus, HoldError> {
        let mut status = StoreStatus::default();
        self.clear()?;
        for Found { name, is_alive, manifest } in found(&self.path, self.directory.as_fd())? {
            match (is_alive, manifest) {
                (true, Some(manifest)) => status.living.push((name, manifest)),
                (false, Some(manifest)) => status.ended.push((name, manifest)),
                // A holder that has not written anything yet, and makes nothing before it has.
                (true, None) => {}
                (false, None) => self.forget(&name)?,
            }
        }
        Ok(status)
    }

    /// Takes away what whoever died while it wrote a manifest left: nobody else writes, for the store is locked.
    fn clear(&self) -> Result<(), HoldError> {
        let listed = directory::open_child(self.directory.as_fd(), c".").and_then(|fresh| names(&fresh));
        let half = |name: &CString| name.as_bytes().starts_with(b".") && name.to_string_lossy().contains(".json.");
        for name in listed.map_err(fault(self.path.clone(), "getdents64"))?.iter().filter(|name| half(name)) {
            let shown = name.to_string_lossy();
            directory::remove_file(self.directory.as_fd(), name).map_err(self.fault(&shown, "unlinkat"))?;
        }
        Ok(())
    }
}

/// A manifest, as it is seen without a lock.
#[derive(Debug)]
pub struct Seen {
    /// Whether its holder lives.
    pub is_alive: bool,
    /// What it says.
    pub manifest: Result<Manifest, HoldError>,
}

/// What a store has under one name.
struct Found {
    name: String,
    is_alive: bool,
    manifest: Option<Result<Manifest, HoldError>>,
}

/// A path that leads to a file of a store by the store's descriptor, whatever its names lead to by now.
fn file(store: BorrowedFd<'_>, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/{name}", store.as_raw_fd()))
}

fn fault<E: Into<io::Error>>(path: PathBuf, call: &'static str) -> impl Fn(E) -> HoldError {
    move |source| HoldError::Record { path: path.clone(), call, source: source.into() }
}

fn found(path: &Path, store: BorrowedFd<'_>) -> Result<Vec<Found>, HoldError> {
    let listed = directory::open_child(store, c".").and_then(|fresh| names(&fresh));
    let listed = listed.map_err(fault(path.into(), "getdents64"))?;
    let pipes = listed.iter().filter_map(|name| name.to_str().ok()?.strip_suffix(ALIVE));
    let manifests = listed.iter().filter_map(|name| name.to_str().ok()?.strip_suffix(MANIFEST));
    let mut known: Vec<&str> = pipes.chain(manifests).filter(|name| !name.starts_with('.')).collect();
    known.sort_unstable();
    known.dedup();
    // Lives first: whoever is dead by then writes nothing any more. Then what the living say, so that manifests of those
    // that have ended can be too many without anything being unknown: the rest of them have their turn when these are gone.
    let mut known: Vec<(Life, &str)> = known.into_iter().map(|name| (life(store, name), name)).collect();
    known.sort_by_key(|(life, _)| *life == Life::Ended);
    let mut left = MOST;
    let mut all = Vec::new();
    for (life, name) in known {
        let own = format!("{name}{MANIFEST}");
        let unread = |why: String| HoldError::Manifest { path: path.join(&own), why };
        let manifest = match state_file::read_up_to(&file(store, &own), LONGEST) {
            Ok(None) => None,
            Ok(Some(text)) if (text.len() as u64).max(LEAST) > left && life == Life::Ended => break,
            Ok(Some(text)) if (text.len() as u64).max(LEAST) > left => {
                // Any of those that follow could be that of a living holder.
                let why = format!("it and others beside it hold more than {MOST} bytes");
                all.push(Found { name: name.to_owned(), is_alive: true, manifest: Some(Err(unread(why))) });
                break;
            }
            Ok(Some(text)) => {
                left -= (text.len() as u64).max(LEAST);
                Some(Manifest::read(&text).map_err(unread))
            }
            Err(error) => {
                left = left.saturating_sub(LEAST);
                Some(Err(unread(error.to_string())))
            }
        };
        all.push(Found { name: name.to_owned(), is_alive: life.is_alive(manifest.as_ref()), manifest });
    }
    Ok(all)
}

/// What the pipe beside a manifest tells of its holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Lives,
    Ended,
    /// There is no pipe of that name. Whoever had one may hold it still.
    Untold,
}

impl Life {
    /// Not knowing counts as living, but no holder outlives its boot.
    fn is_alive(self, manifest: Option<&Result<Manifest, HoldError>>) -> bool {
        match (self, manifest) {
            (Self::Lives, _) => true,
            (Self::Untold, Some(Ok(manifest))) => boot().map_or(true, |boot| boot == manifest.boot),
            (Self::Untold, Some(Err(_))) => true,
            (Self::Untold, None) | (Self::Ended, _) => false,
        }
    }
}

/// Whether anybody holds the lock on the pipe of a manifest. One that cannot be looked at counts as locked.
fn life(store: BorrowedFd<'_>, name: &str) -> Life {
    let file = CString::new(format!("{name}{ALIVE}")).unwrap_or_default();
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let opened = match openat(store, file.as_c_str(), flags, Mode::empty()) {
        Ok(opened) => opened,
        Err(Errno::ENOENT) => return Life::Untold,
        Err(_) => return Life::Lives,
    };
    let is_pipe = status_of(&opened).is_ok_and(|file| file.status.kind == FileKind::Other);
    if is_pipe && directory::lock(opened).is_ok() { Life::Ended } else { Life::Lives }
}

/// The names in a directory, from where its descriptor stands.
pub(super) fn names(directory: &OwnedFd) -> Result<Vec<CString>, Errno> {
    let (mut reader, mut names) = (Reader::default(), Names::default());
    while reader.read(directory, &mut names)? {}
    Ok((0..names.len()).filter_map(|index| names.get(index).map(|(name, _, _)| name.to_owned())).collect())
}
