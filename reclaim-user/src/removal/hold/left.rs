//! What holders that have ended left: found and judged here, removed by a purge.

use super::error::HoldError;
use super::make::print;
use super::rights::Rights;
use super::store::{Store, names};
use crate::model::hold::{Left, Placeholder, PlaceholderKind, Print, Word, judge};
use crate::removal::lock::STORE;
use crate::removal::state_file;
use crate::sys::directory;
use crate::sys::file_status::{FileStatus, Identity, status_at, status_of};
use nix::errno::Errno;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, CString, OsStr};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// A placeholder that nobody holds by any more.
#[derive(Clone, Debug)]
pub struct Remains {
    /// The directory that it lies in.
    pub directory: PathBuf,
    /// Its name there.
    pub name: CString,
    /// What it is.
    pub kind: PlaceholderKind,
    /// Which file it is.
    pub print: Print,
    /// The ended manifests that name it.
    manifests: Vec<usize>,
}

impl Remains {
    /// Its path.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.directory.join(OsStr::from_bytes(self.name.to_bytes()))
    }
}

/// What a store's ended holders left.
#[derive(Debug, Default)]
pub struct Leavings {
    /// Placeholders to remove.
    pub remains: Vec<Remains>,
    /// Directories in which something lies condemned: that is to be brought to its end before their names mean anything.
    pub unfinished: Vec<PathBuf>,
    /// What is kept because nobody can tell, each with why.
    pub troubles: Vec<String>,
    /// The ended manifests, and whether something of each cannot be told yet.
    ended: Vec<(String, bool)>,
    /// Where each is among the placeholders to remove, as long as they are found: a user may have written down very many.
    found: HashMap<(Identity, CString), usize>,
    /// The path that leads to each of their directories.
    paths: HashMap<Identity, PathBuf>,
}

/// What a look at the place of a placeholder gives.
enum Place {
    /// Nothing of it is there any more.
    Nothing,
    /// It lies there under this name.
    Remains(PathBuf, Identity, CString, Print),
    /// Something in its directory lies condemned, maybe this.
    Unfinished(PathBuf),
    /// Its directory has gone from where it was, and the file system that it was in is there.
    Lost(String),
    /// It cannot be told.
    Trouble(String),
}

/// Finds what holders that have ended left in a store. `elsewhere`: words of living holders in other stores.
///
/// # Errors
/// When the store cannot be read.
pub fn left(store: &Store, elsewhere: &[Word]) -> Result<Leavings, HoldError> {
    let status = store.status()?;
    let mut leavings = Leavings::default();
    let mut living: Vec<Word> = elsewhere.to_vec();
    for (_, manifest) in status.living {
        match manifest {
            Ok(manifest) => living.push(Word { user: store.owner(), manifest: Some(manifest) }),
            // It could name anything.
            Err(error) => leavings.troubles.push(format!("everything is kept: {error}")),
        }
    }
    if !leavings.troubles.is_empty() {
        return Ok(leavings);
    }
    let boot = boot().map_err(|source| HoldError::Record { path: BOOT.into(), call: "read", source })?;
    let user = User { rights: Rights::of(store), id: store.owner() };
    let living = Living::of(living);
    for (name, manifest) in status.ended {
        let at = leavings.ended.len();
        match manifest {
            Ok(manifest) => {
                leavings.ended.push((name, false));
                // What is not known to be a placeholder is none.
                for placeholder in manifest.placeholders.iter().filter(|placeholder| !placeholder.untold) {
                    leavings.add(at, placeholder, &living, manifest.boot == boot, &boot, &user);
                }
            }
            Err(error) => {
                leavings.ended.push((name, true));
                leavings.troubles.push(error.to_string());
            }
        }
    }
    if let Some(more) = leavings.troubles.len().checked_sub(MOST_TOLD).filter(|more| *more > 0) {
        leavings.troubles.truncate(MOST_TOLD);
        leavings.troubles.push(format!("and {more} more in {}", store.path.display()));
    }
    (leavings.found, leavings.paths) = Default::default();
    // What lies in another placeholder goes before it.
    leavings.remains.sort_by_key(|remains| std::cmp::Reverse(remains.directory.components().count()));
    Ok(leavings)
}

impl Leavings {
    /// Whether there is nothing to remove and nothing to bring to its end.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.remains.is_empty() && self.unfinished.is_empty()
    }

    fn add(
        &mut self,
        manifest: usize,
        placeholder: &Placeholder,
        living: &Living,
        same_boot: bool,
        boot: &str,
        user: &User,
    ) {
        let held = |print: &Print| living.naming(print).any(|word| word.print_of(user.id, print, boot).is_some());
        let is_unsure = |print: &Print| living.naming(print).any(|word| word.is_unsure_of(user.id, print, boot));
        let is_untold = |print: &Print| living.silent.iter().any(|word| word.is_silent_on(user.id, print));
        match look(placeholder, same_boot, user) {
            Place::Nothing => {}
            Place::Lost(why) => self.troubles.push(why),
            // Whoever holds by it takes it away.
            Place::Remains(_, _, _, print) if held(&print) => {}
            // Whoever holds by that will not, so this manifest has to be there until then.
            Place::Remains(_, _, _, print) if is_unsure(&print) => self.ended[manifest].1 = true,
            Place::Remains(directory, _, name, print) if is_untold(&print) => {
                let path = directory.join(OsStr::from_bytes(name.to_bytes()));
                self.ended[manifest].1 = true;
                self.troubles.push(format!(
                    "the placeholder {} is kept: what another user holds by cannot be read",
                    path.display()
                ));
            }
            Place::Remains(directory, place, name, print) => {
                // By one path only: a directory is locked while it is worked in, whichever path leads to it.
                let directory = self.paths.entry(place).or_insert(directory).clone();
                match self.found.entry((place, name.clone())) {
                    Entry::Occupied(known) => self.remains[*known.get()].manifests.push(manifest),
                    Entry::Vacant(vacant) => {
                        vacant.insert(self.remains.len());
                        let kind = placeholder.kind;
                        self.remains.push(Remains { directory, name, kind, print, manifests: vec![manifest] });
                    }
                }
            }
            Place::Unfinished(directory) => {
                self.ended[manifest].1 = true;
                if !self.unfinished.contains(&directory) {
                    self.unfinished.push(directory);
                }
            }
            Place::Trouble(why) => {
                self.ended[manifest].1 = true;
                self.troubles.push(why);
            }
        }
    }

    /// Takes manifests away of which nothing is left. `gone` tells for each of [`Leavings::remains`] whether it is; what it
    /// does not tell of is there.
    ///
    /// # Errors
    /// When a manifest cannot be taken away.
    pub fn finish(self, store: &Store, gone: &[bool]) -> Result<Vec<String>, HoldError> {
        let told = gone.iter().copied().chain(std::iter::repeat(false));
        let there = self.remains.iter().zip(told).filter(|(_, gone)| !gone);
        let needed: HashSet<usize> = there.flat_map(|(remains, _)| remains.manifests.iter().copied()).collect();
        for (at, (name, untold)) in self.ended.iter().enumerate() {
            if !untold && !needed.contains(&at) {
                store.forget(name)?;
            }
        }
        Ok(self.troubles)
    }
}

/// Words that count, by the inode numbers that they name.
struct Living {
    words: Vec<Word>,
    by_inode: HashMap<u64, Vec<usize>>,
    /// Those that could name anything.
    silent: Vec<Word>,
}

impl Living {
    fn of(words: Vec<Word>) -> Self {
        let (words, silent): (Vec<_>, Vec<_>) = words.into_iter().partition(|word| word.manifest.is_some());
        let mut by_inode: HashMap<u64, Vec<usize>> = HashMap::new();
        for (at, word) in words.iter().enumerate() {
            let placeholders = word.manifest.iter().flat_map(|manifest| &manifest.placeholders);
            for print in placeholders.filter_map(|placeholder| placeholder.print) {
                by_inode.entry(print.inode).or_default().push(at);
            }
        }
        Self { words, by_inode, silent }
    }

    fn naming(&self, print: &Print) -> impl Iterator<Item = &Word> {
        self.by_inode.get(&print.inode).into_iter().flatten().map(|at| &self.words[*at])
    }
}

/// Whose holder has ended.
struct User {
    rights: Rights,
    id: u32,
}

fn look(placeholder: &Placeholder, same_boot: bool, user: &User) -> Place {
    let (path, name) = match (placeholder.directory.path(), placeholder.name.bytes().map(CString::new)) {
        (Ok(path), Ok(Ok(name))) => (path, name),
        _ => return Place::Trouble("a manifest names no path".to_owned()),
    };
    let shown = path.join(OsStr::from_bytes(name.to_bytes()));
    let trouble = |what: &str| Place::Trouble(format!("the placeholder {} is not looked for: {what}", shown.display()));
    let lost = |what: &str| Place::Lost(format!("the placeholder {} is forgotten: {what}", shown.display()));
    let opened = match directory::open_path(&path) {
        Ok(opened) => opened,
        Err(Errno::ENOENT) if same_boot && lies_above(&path, placeholder) => {
            return lost("its directory was removed, or moved and the placeholder with it");
        }
        Err(error) => return trouble(&format!("its directory cannot be opened: {}", error.desc())),
    };
    let place = match status_of(&opened) {
        Ok(found) if found.identity.inode != placeholder.directory_inode => {
            return match same_boot && is_of_device(placeholder, &found) {
                true => lost("its directory was removed or moved, and another one has its name"),
                false => trouble("its directory was moved, and another one has its name"),
            };
        }
        Ok(found) => found,
        Err(error) => return trouble(error.desc()),
    };
    let remains = |name: CString, print: Print| match user.rights.may_change(&place) {
        true => Place::Remains(path.clone(), place.identity, name, print),
        // It made the placeholder there, so it could. What it cannot do any more nobody does for it.
        false => trouble("its user may not change its directory"),
    };
    if let Some(temporary) = placeholder.temporary.as_ref().and_then(|name| CString::new(name.as_str()).ok()) {
        match status_at(&opened, &temporary) {
            Ok(found) => {
                let found_print = print(&found);
                // Its random name tells that it was to be this one, where no more was written down yet.
                let expected = placeholder.print.unwrap_or(found_print);
                return match judge(&expected, placeholder.kind, &found_print, &found.status, same_boot, user.id) {
                    Left::Placeholder => remains(temporary, found_print),
                    Left::Another(_) => Place::Nothing,
                };
            }
            // It has its own name by now, unless it lies condemned under this one.
            Err(Errno::ENOENT) => match after(&opened, path.clone(), &temporary) {
                Place::Nothing => {}
                unfinished => return unfinished,
            },
            Err(error) => return trouble(error.desc()),
        }
    }
    let Some(expected) = placeholder.print else { return Place::Nothing };
    match status_at(&opened, &name) {
        Ok(found) => {
            let found_print = print(&found);
            match judge(&expected, placeholder.kind, &found_print, &found.status, same_boot, user.id) {
                Left::Placeholder => remains(name, found_print),
                Left::Another(why) => {
                    tracing::info!("{} is left to its owner: {why}", shown.display());
                    after(&opened, path.clone(), &name)
                }
            }
        }
        Err(Errno::ENOENT) => after(&opened, path.clone(), &name),
        Err(error) => trouble(error.desc()),
    }
}

/// Whether the file system that a placeholder was in is the one that the rest of its path leads to: then nothing has to be
/// mounted for its directory to be there.
fn lies_above(path: &Path, placeholder: &Placeholder) -> bool {
    let found = path.ancestors().skip(1).find_map(|above| match directory::open_path(above) {
        Err(Errno::ENOENT) => None,
        opened => Some(opened.and_then(status_of)),
    });
    found.is_some_and(|found| found.is_ok_and(|found| is_of_device(placeholder, &found)))
}

/// Whether a file is of the device that a placeholder is on. Not without a record of it, nor after another boot.
fn is_of_device(placeholder: &Placeholder, found: &FileStatus) -> bool {
    let device = found.identity.device;
    placeholder.print.is_some_and(|print| print.device == (device.major, device.minor))
}

/// Its name is free or another's: the placeholder has gone, or lies condemned beside it. Not knowing counts as that.
fn after(directory: &OwnedFd, path: PathBuf, name: &CStr) -> Place {
    let lies_there = |store: OwnedFd| -> Result<bool, Errno> {
        for batch in names(&store)? {
            match directory::open_child(&store, &batch).and_then(|batch| status_at(&batch, name)) {
                Ok(_) => return Ok(true),
                Err(Errno::ENOENT | Errno::ENOTDIR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    };
    match directory::open_child(directory, STORE).and_then(lies_there) {
        Ok(false) | Err(Errno::ENOENT) => Place::Nothing,
        Ok(true) | Err(_) => Place::Unfinished(path),
    }
}

/// So many troubles are told one by one.
const MOST_TOLD: usize = 16;

const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// Which boot this is.
///
/// # Errors
/// When procfs does not tell.
pub fn boot() -> std::io::Result<String> {
    state_file::read(BOOT.as_ref())?
        .and_then(|text| Some(String::from_utf8(text).ok()?.trim().to_owned()))
        .filter(|boot| !boot.is_empty())
        .ok_or_else(|| std::io::Error::other("it is not there"))
}
