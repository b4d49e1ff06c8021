//! What holders that have ended left, brought to its end: by the service in each pass, by a sweep without one, and by each
//! hold as it ends.

use super::roots::Roots;
use super::states::States;
use crate::config::{Config, KindRule, RootConfig};
use crate::error::{Error, chain};
use crate::evidence::engine::{Engine, EvidenceChoice, Span};
use crate::model::hold::{PlaceholderKind, PlaceholderReport, Word};
use crate::model::purge::TargetVerdict;
use crate::model::report::Name;
use crate::removal::hold::{self, HoldError, Leavings, Remains, Store, Stores};
use crate::removal::{self, EntryTarget, PassOptions, PurgeOptions, Purged, RemovalError, Site, Target};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Name of the directories of placeholders in messages.
const NAME: &str = "holds";
/// Longest time for what was left in one store before others have their turn. The next pass goes on.
const BUDGET: Duration = Duration::from_secs(30);
/// Placeholders that are removed together. Each may have a directory of its own, which needs descriptors.
const TOGETHER: usize = 32;

/// Whose holds are looked at, and how long their stores may be worked on by others.
#[derive(Clone, Copy, Debug)]
pub struct Scope {
    /// One user's; everybody's when none.
    pub user: Option<u32>,
    /// Longest wait for the lock on a store.
    pub patience: Duration,
}

/// The evidence that removal goes on, which is only taken when there is something to remove.
pub enum Prover<'e> {
    /// That of the service, and what is to be called now and then, so that questions can be answered meanwhile. The places
    /// that it watches are put back by whoever lends it.
    Service(&'e mut Engine, &'e mut dyn FnMut(&mut Engine)),
    /// One that is opened for this.
    Alone(EvidenceChoice),
}

/// Removes what holders that have ended left, as far as nothing relies on it. Tells what was found.
///
/// # Errors
/// When stores cannot be listed. What is wrong with a single one is told in the log.
pub fn settle(
    config: &Config,
    scope: Scope,
    prover: &mut Prover<'_>,
    stop: Option<&Arc<AtomicBool>>,
) -> Result<Vec<PlaceholderReport>, Error> {
    let stores = Stores::of(&config.service.holds());
    let users = match scope.user {
        Some(user) => vec![user],
        None => {
            match stores.strangers()? {
                0 => {}
                count => tracing::warn!(
                    "holds: {count} directories in {} are not the users' that they are named for, and are left alone",
                    config.service.holds().display()
                ),
            }
            stores.users()?
        }
    };
    let mut reports = Vec::new();
    for user in users {
        if stop.is_some_and(|stop| stop.load(Ordering::Relaxed)) {
            break;
        }
        let store = match stores.of_user(user, scope.patience) {
            Ok(Some(store)) => store,
            Ok(None) => continue,
            Err(error) => {
                tracing::warn!("{}", chain(&error));
                continue;
            }
        };
        match settle_store(config, &store, prover, stop) {
            Ok(of_store) => reports.extend(of_store),
            Err(error) => tracing::warn!("holds of user {user}: {}", chain(&error)),
        }
        if let Prover::Service(engine, between) = prover {
            between(engine);
        }
    }
    Ok(reports)
}

/// The same for a store that is locked already.
///
/// # Errors
/// When its manifests cannot be read or taken away, or no evidence can be taken. Nothing is removed then.
pub fn settle_store(
    config: &Config,
    store: &Store,
    prover: &mut Prover<'_>,
    stop: Option<&Arc<AtomicBool>>,
) -> Result<Vec<PlaceholderReport>, Error> {
    let elsewhere = words_elsewhere(config, store.owner(), false);
    let mut leavings = hold::left(store, &elsewhere)?;
    let mut gone = Vec::new();
    let mut reports = Vec::new();
    if !leavings.is_settled() {
        let mut roots = Roots::place(config);
        let mut opened = None;
        for directory in directories(&leavings) {
            roots.add(RootConfig::without_fences(format!("{NAME} in {}", directory.display()), directory));
        }
        let mut alone = |_: &mut Engine| {};
        let (engine, between): (&mut Engine, &mut dyn FnMut(&mut Engine)) = match prover {
            Prover::Service(engine, between) => {
                engine.watch(roots.watch());
                (&mut **engine, &mut **between)
            }
            Prover::Alone(evidence) => (opened.insert(roots.engine(*evidence, Span::Command)?), &mut alone),
        };
        let mut work = Work { config, engine, between, stop, until: Instant::now() + BUDGET };
        if !leavings.unfinished.is_empty() {
            work.bring_to_end(&mut roots, &leavings.unfinished);
            leavings = hold::left(store, &elsewhere)?;
        }
        (gone, reports) = work.remove(&roots, &leavings.remains);
    }
    for trouble in leavings.finish(store, &gone)? {
        tracing::warn!("{trouble}");
    }
    Ok(reports)
}

/// Manifests in the stores of others whose word counts for what is in the store of `owner`: everybody's for root, and
/// root's for everybody. `ended`: also of holders that have ended. What cannot be read could name anything.
fn words_elsewhere(config: &Config, owner: u32, ended: bool) -> Vec<Word> {
    let stores = Stores::of(&config.service.holds());
    let silent = |user| vec![Word { user, manifest: None }];
    let Ok(users) = stores.users() else { return silent(0) };
    let counts = |user: &u32| *user != owner && (owner == 0 || *user == 0);
    let words = users.into_iter().filter(counts).map(|user| match stores.look(user) {
        Ok(seen) => {
            let seen = seen.into_iter().filter(|seen| ended || seen.is_alive);
            seen.map(|seen| Word { user, manifest: seen.manifest.ok() }).collect()
        }
        Err(_) => silent(user),
    });
    words.flatten().collect()
}

fn directories(leavings: &Leavings) -> Vec<PathBuf> {
    let remains = leavings.remains.iter().map(|remains| &remains.directory);
    let mut directories: Vec<PathBuf> = remains.chain(&leavings.unfinished).cloned().collect();
    directories.sort();
    directories.dedup();
    directories
}

/// What the steps of an end share.
struct Work<'w> {
    config: &'w Config,
    engine: &'w mut Engine,
    between: &'w mut dyn FnMut(&mut Engine),
    stop: Option<&'w Arc<AtomicBool>>,
    until: Instant,
}

impl Work<'_> {
    /// Whether nothing more is to be begun.
    fn is_over(&self) -> bool {
        self.stop.is_some_and(|stop| stop.load(Ordering::Relaxed)) || Instant::now() >= self.until
    }

    /// Brings what lies condemned in these directories to its end: it gets its name back, or goes. What lies in a root is
    /// judged by the rules of the root.
    fn bring_to_end(&mut self, roots: &mut Roots, unfinished: &[PathBuf]) {
        let Self { config, engine, between, stop, .. } = self;
        let mut states = States::read(&config.service.state_dir);
        let options = PassOptions {
            budget: Duration::from_secs(30),
            stop: stop.cloned(),
            state_dir: Some(config.service.state_dir.clone()),
            ..PassOptions::default()
        };
        for directory in unfinished {
            let Some(at) = roots.find_same(directory) else { continue };
            if let Err(error) = roots.bring_to_end(at, engine, &mut states, &options, between) {
                tracing::warn!("{}: {}", directory.display(), chain(&error));
            }
        }
    }

    /// Removes placeholders, those that lie deepest first. Each tells whether it is gone.
    fn remove(&mut self, roots: &Roots, remains: &[Remains]) -> (Vec<bool>, Vec<PlaceholderReport>) {
        let depth = |remains: &Remains| remains.directory.components().count();
        let mut ends = Vec::new();
        for level in remains.chunk_by(|one, other| depth(one) == depth(other)) {
            for part in level.chunks(TOGETHER) {
                // One part is always tried: else a slow start would leave every pass where it began.
                match self.is_over() && !ends.is_empty() {
                    true => ends.extend(part.iter().map(|_| Purged::undone("the next pass goes on".to_owned()))),
                    false => ends.extend(self.remove_together(roots, part)),
                }
                // There may be thousands of parts, and none of them has to wait for anything.
                (self.between)(self.engine);
            }
        }
        let is_gone = |end: &Purged| matches!(end.verdict, TargetVerdict::Removed | TargetVerdict::Absent);
        let gone = ends.iter().map(is_gone).collect();
        (gone, remains.iter().zip(ends).map(|(remains, end)| report(remains, end)).collect())
    }

    /// A purge takes all or nothing, so what was refused is left out and the rest is tried once more.
    fn remove_together(&mut self, roots: &Roots, remains: &[Remains]) -> Vec<Purged> {
        let unplaced = || Purged::undone("its directory could not be looked at before".to_owned());
        let is_placed = |remains: &Remains| roots.find_last(&remains.directory).is_some();
        let mut ends: Vec<Option<Purged>> =
            remains.iter().map(|remains| if is_placed(remains) { None } else { Some(unplaced()) }).collect();
        loop {
            let open: Vec<usize> = (0..remains.len()).filter(|at| ends[*at].is_none()).collect();
            if open.is_empty() {
                break;
            }
            let told = self.purge(roots, &open.iter().map(|at| &remains[*at]).collect::<Vec<_>>());
            let settled = told.iter().filter(|end| end.verdict != TargetVerdict::Kept).count();
            for (at, end) in open.into_iter().zip(told) {
                if settled == 0 || end.verdict != TargetVerdict::Kept {
                    ends[at] = Some(end);
                }
            }
        }
        ends.into_iter().flatten().collect()
    }

    /// Where one directory cannot be used, the others have their turn by themselves.
    fn purge(&mut self, roots: &Roots, remains: &[&Remains]) -> Vec<Purged> {
        match self.purge_together(roots, remains) {
            Ok(told) => told,
            Err(_) if remains.len() > 1 => remains.iter().flat_map(|one| self.purge(roots, &[*one])).collect(),
            Err(error) => vec![Purged::undone(chain(&error))],
        }
    }

    fn purge_together(&mut self, roots: &Roots, remains: &[&Remains]) -> Result<Vec<Purged>, RemovalError> {
        let mut places: Vec<usize> = Vec::new();
        let mut targets = Vec::new();
        for remains in remains {
            let Some(place) = roots.find_same(&remains.directory) else { continue };
            let site = places.iter().position(|known| *known == place).unwrap_or_else(|| {
                places.push(place);
                places.len() - 1
            });
            let kind = match remains.kind {
                PlaceholderKind::File => KindRule::File,
                PlaceholderKind::Dir => KindRule::Directory,
            };
            let bare = RootConfig::without_fences(NAME.to_owned(), remains.directory.clone());
            let rules = RootConfig { owner: Some(remains.print.owner), kind, ..bare };
            let only = Some(remains.print);
            targets.push(Target::from(EntryTarget { site, name: remains.name.clone(), rules, only }));
        }
        let sites: Vec<Site<'_>> = places
            .iter()
            .map(|at| {
                let placed = roots.at(*at);
                Site { path: &placed.config.path, index: roots.index(*at), location: placed.location.as_ref() }
            })
            .collect();
        let options = PurgeOptions {
            dry_run: false,
            state_dir: Some(self.config.service.state_dir.clone()),
            settle_limit: Duration::from_secs(5),
            stop: self.stop.cloned(),
        };
        removal::purge(&sites, &targets, self.engine, &options, self.between)
    }
}

/// What became of a placeholder, which is told in the log, too.
fn report(remains: &Remains, end: Purged) -> PlaceholderReport {
    let path = Name(remains.path().as_os_str().as_bytes().to_vec());
    let Purged { verdict, reason, detail, .. } = end;
    let report = PlaceholderReport { path_hex: path.hex(), path, verdict, reason, detail };
    match (report.is_gone(), &report.detail) {
        (true, _) => tracing::info!("the placeholder {} is gone", report.path),
        (false, None) => tracing::info!("the placeholder {} stays: {:?}", report.path, report.reason),
        (false, Some(why)) => tracing::info!("the placeholder {} stays: {why}", report.path),
    }
    report
}

/// Opens the caller's own store, and reads what other holders of it rely on.
///
/// # Errors
/// When it cannot be used.
pub fn own_store(config: &Config, patience: Duration) -> Result<(Store, Vec<Word>), HoldError> {
    let store = Stores::of(&config.service.holds()).own(patience)?;
    let status = store.status()?;
    let all = status.living.into_iter().chain(status.ended);
    let user = store.owner();
    let mut known: Vec<Word> = all.map(|(_, manifest)| Word { user, manifest: manifest.ok() }).collect();
    known.extend(words_elsewhere(config, user, true));
    Ok((store, known))
}
