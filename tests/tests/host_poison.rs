//! Case 10: a few entries that cannot go, among others that can.

use reclaim_tests::{
    Actor, ConfigFile, EntryLine, Host, Mode, OrFail as _, Pass, Reclaim, Request, Root, Service, Subject, cases,
    make_deep_tree, private_host, set_immutable, set_mode, wait_until,
};
use std::os::unix::fs::chown;
use std::path::PathBuf;
use std::time::Duration;

cases! {
    poison_among_twenty: service, scan;
    trees_of_others_and_deep_ones_go: service, scan;
}

/// What makes a root of twenty entries a bad one.
struct Poison {
    /// Goes as soon as it may.
    good: Vec<PathBuf>,
    /// Has an immutable file deep inside.
    immutable: PathBuf,
    /// Mode 0000, of another user.
    foreign: PathBuf,
    /// Something is mounted inside, in the namespace that reclaim runs in.
    busy: PathBuf,
    /// The working directory of a process in that namespace.
    occupied: PathBuf,
    occupant: Actor,
}

fn rules(host: &Host) -> Root {
    Root::of(host).text("remove", "tree").text("owner", "root")
}

impl Poison {
    fn plant(host: &Host) -> Self {
        let mut good: Vec<PathBuf> = (0..15)
            .map(|index| {
                host.make_file(format!("root/good-{index}/sub/file"), "text");
                host.root().join(format!("good-{index}"))
            })
            .collect();
        let deep = host.entry("deep");
        make_deep_tree(&deep, 5_000);
        good.push(deep);
        host.make_file("root/immutable/goes", "text");
        host.make_file("root/immutable/deeper/goes", "text");
        set_immutable(&host.make_file("root/immutable/deeper/stays", "text"), true);
        let foreign = host.entry("foreign");
        chown(&foreign, Some(1000), Some(1000)).or_fail("chown");
        set_mode(&foreign, 0);
        host.bind(&host.make_dir("home"), &host.make_dir("root/busy/inside"));
        let (immutable, busy, occupied) = (host.entry("immutable"), host.entry("busy"), host.entry("occupied"));
        let mut occupant = Actor::start();
        occupant.ask(&Request::ChangeDir(occupied.clone().into()));
        Self { good, immutable, foreign, busy, occupied, occupant }
    }

    /// One pass over all of it: the good ones go, and each bad one has its reason.
    #[track_caller]
    fn expect_told(&self, host: &Host, pass: &Pass, entries: &[EntryLine]) {
        assert_eq!(pass.listed, 20, "{pass:?}");
        assert_eq!((pass.removed, pass.condemned), (16, 1), "{pass:?}");
        assert!(self.good.iter().all(|entry| !entry.exists()), "{pass:?}");
        let told = |name: &str| {
            let entry = entries.iter().find(|entry| entry.name == name).or_fail(format_args!("{name} in {entries:?}"));
            (entry.verdict.as_str(), entry.reason.as_deref())
        };
        assert_eq!(told("immutable"), ("condemned", Some("failed")));
        assert_eq!(told("foreign"), ("kept", Some("owner")));
        assert_eq!(told("busy"), ("kept", Some("pinned")));
        assert_eq!(told("occupied").1, Some("pinned"));
        assert!(self.foreign.is_dir() && self.busy.join("inside").is_dir() && self.occupied.is_dir());
        assert_eq!(host.condemned(), [b"immutable"]);
        assert!(!self.immutable.exists(), "what cannot be removed stays condemned");
    }
}

/// Where the immutable file is after a pass: everything beside it has gone.
#[track_caller]
fn what_stays(host: &Host) -> PathBuf {
    let batches = std::fs::read_dir(host.root().join(".reclaim")).or_fail("list .reclaim");
    let inside = batches.flatten().map(|batch| batch.path().join("immutable"));
    let inside = inside.into_iter().find(|entry| entry.is_dir()).or_fail("the entry that stays");
    let names = |path: &PathBuf| {
        let names = std::fs::read_dir(path).or_fail("list what stays").flatten();
        names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(&inside), ["deeper"], "what lies beside it does not stay");
    assert_eq!(names(&inside.join("deeper")), ["stays"]);
    inside.join("deeper/stays")
}

/// A pass that is not held back as a whole: a namespace that is just going makes evidence too weak for one. What those
/// before it removed all the same is counted with it.
#[track_caller]
fn proved_pass(subject: &Subject) -> (Pass, Vec<EntryLine>) {
    let mut removed = 0;
    wait_until("a pass whose evidence suffices", Duration::from_secs(40), || {
        let (mut passes, entries) = subject.reclaim().sweep_verbosely(&[]);
        let mut pass = passes.remove(0);
        removed += pass.removed;
        pass.removed = removed;
        (pass.complete || pass.covered).then_some((pass, entries))
    })
}

fn poison_among_twenty(host: &Host, mode: Mode) {
    let subject = Subject::start_with(host, mode, &ConfigFile::write(host, [rules(host)]));
    let poison = Poison::plant(host);
    let (pass, entries) = proved_pass(&subject);
    poison.expect_told(host, &pass, &entries);
    let stays = what_stays(host);

    // It stops nothing: more that is stale goes in the next pass. A service leaves it alone for a while; a command does not
    // know of the time before, and tries once.
    let stale = host.entries("stale-", 3);
    let (pass, _) = proved_pass(&subject);
    assert!(stale.iter().all(|entry| !entry.exists()), "{pass:?}");
    assert_eq!((pass.removed, pass.condemned), (3, 1), "{pass:?}");
    set_immutable(&stays, false);
    let (pass, _) = proved_pass(&subject);
    match mode {
        Mode::Service => assert_eq!((pass.removed, pass.condemned), (0, 1), "tried again at once: {pass:?}"),
        Mode::Command | Mode::Scan | Mode::Fallback => assert_eq!((pass.removed, pass.condemned), (1, 0), "{pass:?}"),
    }

    host.unmount(&poison.busy.join("inside"));
    poison.occupant.kill();
    set_mode(&poison.foreign, 0o700);
    chown(&poison.foreign, Some(0), Some(0)).or_fail("chown");
    subject.sweep_until_gone(&[&poison.busy, &poison.occupied, &poison.foreign], &[] as &[PathBuf]);
    assert!(host.path("home").is_dir(), "what was mounted inside is not touched");
}

/// Neither a mode of 0000 nor another owner nor depth keeps what the configuration calls ours.
fn trees_of_others_and_deep_ones_go(host: &Host, mode: Mode) {
    let subject = Subject::start_with(host, mode, &ConfigFile::write(host, [Root::of(host).text("remove", "tree")]));
    let (foreign, deep) = (host.entry("foreign"), host.entry("deep"));
    let inside = host.make_dir("root/foreign/inside");
    make_deep_tree(&deep, 5_000);
    for path in [&inside, &foreign] {
        chown(path, Some(1000), Some(1000)).or_fail("chown");
        set_mode(path, 0);
    }
    subject.sweep_until_gone(&[&foreign, &deep], &[] as &[PathBuf]);
    assert!(host.condemned().is_empty());
}

/// What is stuck does not keep the service from starting, and is tried again after a while, not in every pass.
#[test]
fn poison_does_not_stop_a_start_and_is_tried_again_rarely() {
    private_host(|host| {
        let config = ConfigFile::write(host, [rules(host)]).every("1s");
        let reclaim = Reclaim::with(&config);
        let poison = Poison::plant(host);
        let mut service = Service::start(host, &config, &reclaim);
        service.wait_for_passes(1);
        assert!(poison.good.iter().all(|entry| !entry.exists()), "{}", service.log());
        service.kill();

        let mut service = Service::start(host, &config, &reclaim);
        let before = service.passes().len();
        let stale = host.entry("stale");
        let passes = service.wait_for_passes(before + 4);
        assert!(!stale.exists(), "{}", service.log());
        // What is proved by too little has its name back for a while, and is tried again as soon as that suffices.
        let is_proved = |pass: &Pass| pass.kept("no-evidence") == 0;
        assert!(passes[before..].iter().any(is_proved), "{passes:?}");
        for pass in &passes[before..] {
            assert_eq!((pass.kept("owner"), pass.kept("pinned")), (1, 2), "{pass:?}");
            assert!(pass.condemned == 1 || (pass.condemned == 0 && !is_proved(pass)), "{pass:?}");
        }
        let told = service.log().lines().filter(|line| line.contains("immutable") && line.contains("stays")).count();
        assert!((1..=2).contains(&told), "told {told} times, once for each start is enough: {}", service.log());
        set_immutable(&what_stays(host), false);
        // It is not forgotten either.
        drop(service);
        wait_until("the rest of it to go", std::time::Duration::from_secs(40), || {
            reclaim.sweep();
            host.condemned().is_empty().then_some(())
        });
        drop(poison);
    });
}

/// What cannot be removed is told when it is first seen and not in every sweep, and `check` lists it with why.
#[test]
fn a_stuck_entry_is_told_once_and_listed() {
    private_host(|host| {
        let config = ConfigFile::write(host, [rules(host)]);
        let reclaim = Reclaim::with(&config).evidence("scan");
        set_immutable(&host.make_file("root/stuck/stays", "text"), true);
        set_immutable(&host.entry("itself"), true);
        let told = |name: &str| {
            let ended = reclaim.run(&["sweep"]);
            let lines = ended.stderr.lines().filter(|line| line.contains("WARN") && line.contains(name)).count();
            assert_eq!(ended.code(), 0, "{ended:?}");
            lines
        };
        assert_eq!(told("root/stuck"), 1, "at first");
        assert_eq!((told("root/stuck"), told("root/itself")), (0, 0), "told already, by an earlier sweep");
        let stuck = || {
            let (objects, _) = reclaim.objects(&["check"], &[0, 1]);
            let mut stuck: Vec<_> = objects.into_iter().filter(|object| object["type"] == "stuck").collect();
            stuck.sort_by_key(|object| object["name"].to_string());
            stuck
        };
        let listed = stuck();
        let names: Vec<_> = listed.iter().map(|object| object["name"].as_str().unwrap_or_default()).collect();
        assert_eq!(names, ["itself", "stuck"], "{listed:?}");
        assert!(listed[1]["why"].as_str().is_some_and(|why| why.contains("EPERM")), "{listed:?}");
        assert!(listed[1]["since"].is_string(), "{listed:?}");
        // A service that starts later has been told as well.
        let mut service = Service::start(host, &config, &Reclaim::with(&config));
        service.wait_for_passes(1);
        assert!(!service.log().contains("root/stuck"), "{}", service.log());
        drop(service.terminate());
        set_immutable(&host.root().join("itself"), false);
        for batch in std::fs::read_dir(host.root().join(".reclaim")).or_fail("list .reclaim").flatten() {
            set_immutable(&batch.path().join("stuck/stays"), false);
        }
        reclaim.sweep();
        assert!(host.names().is_empty() && host.condemned().is_empty());
        assert!(stuck().is_empty(), "what has gone is not listed");
    });
}

fn stuck(reclaim: &Reclaim) -> Vec<(String, String)> {
    let (objects, _) = reclaim.objects(&["check"], &[0, 1]);
    let of = |object: &serde_json::Value, key: &str| object[key].as_str().unwrap_or_default().to_owned();
    let stuck = objects.iter().filter(|object| object["type"] == "stuck");
    stuck.map(|object| (of(object, "name"), of(object, "why"))).collect()
}

/// What is condemned and given back in every pass, since a process is in it, is told as what cannot be removed is.
#[test]
fn what_a_process_is_in_is_told_once_and_listed() {
    private_host(|host| {
        let config = ConfigFile::write(host, [rules(host)]);
        let reclaim = Reclaim::with(&config).evidence("scan");
        let entry = host.make_dir("root/inside");
        let mut occupant = Actor::start();
        occupant.ask(&Request::ChangeDir(entry.clone().into()));
        let sweep = |arguments: &[&str]| {
            let ended = reclaim.run(arguments);
            assert!(ended.code() == 0 && entry.is_dir(), "{ended:?}");
            (ended.stderr.matches("root/inside").count(), ended.stdout.matches("root/inside").count())
        };
        assert_eq!(sweep(&["sweep"]).0, 1, "at first");
        assert_eq!(sweep(&["sweep"]).0, 0, "told already");
        assert_eq!(sweep(&["-v", "sweep"]).1, 1, "every entry is told to who asks for that");
        let listed = stuck(&reclaim);
        assert!(
            listed.len() == 1 && listed[0].0 == "inside" && listed[0].1.contains("working directory"),
            "{listed:?}"
        );
        let mut service = Service::start(host, &config, &Reclaim::with(&config));
        assert_eq!(service.wait_for_passes(1)[0].restored, 1);
        assert!(!service.log().contains("root/inside"), "{}", service.log());
        // One that was not told of yet is told of by the service.
        let other = host.make_dir("root/other");
        occupant.ask(&Request::Hold(other.clone().into()));
        for _ in 0..2 {
            Reclaim::with(&config).sweep();
        }
        assert_eq!(service.log().matches("root/other").count(), 1, "{}", service.log());
        drop(service.terminate());
        assert_eq!(stuck(&reclaim).len(), 2);
        // Once a pass sees it otherwise it is forgotten, and told again when it comes back.
        let keep = ["keep".as_ref(), entry.as_os_str(), "--for".as_ref(), "1h".as_ref()];
        reclaim.objects(&keep, &[0]);
        sweep(&["sweep"]);
        assert_eq!(stuck(&reclaim).iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["other"]);
        reclaim.objects(&["unkeep".as_ref(), entry.as_os_str()], &[0]);
        assert_eq!(sweep(&["sweep"]).0, 1, "it came back");
        drop(occupant);
        reclaim.sweep();
        assert!(stuck(&reclaim).is_empty() && host.names().is_empty());
    });
}

/// Where more entries cannot be removed than are remembered one by one, those beyond are not told in every sweep either.
#[test]
fn more_than_are_remembered_are_told_once_and_counted() {
    private_host(|host| {
        let config = ConfigFile::write(host, [rules(host).text("kind", "file")]);
        let reclaim = Reclaim::with(&config).evidence("scan");
        let files: Vec<PathBuf> =
            (0..1_003).map(|number| host.make_file(format!("root/file-{number}"), "text")).collect();
        files.iter().for_each(|file| set_immutable(file, true));
        let told = || {
            let ended = reclaim.run(&["sweep"]);
            assert_eq!(ended.code(), 0, "{ended:?}");
            ended.stderr.lines().filter(|line| line.contains("WARN") && line.contains("root/file-")).count()
        };
        assert_eq!(told(), 20, "as many as one pass tells");
        for _ in 0..60 {
            if told() == 0 {
                break;
            }
        }
        assert_eq!(told(), 0, "all were told of");
        let (objects, _) = reclaim.objects(&["check"], &[0, 1]);
        assert_eq!(objects.iter().filter(|object| object["type"] == "stuck").count(), 1_000);
        let counts = |object: &&serde_json::Value| {
            object["message"].as_str().is_some_and(|message| message.starts_with("3 more entries"))
        };
        assert_eq!(objects.iter().filter(counts).count(), 1, "{objects:?}");
        files.iter().for_each(|file| set_immutable(file, false));
        reclaim.sweep();
        assert!(host.names().is_empty());
    });
}

/// A pass that fails says at warning level that it holds things back, and why.
#[test]
fn a_pass_that_fails_says_what_it_holds_back() {
    private_host(|host| {
        let config = ConfigFile::write(host, [Root::of(host)]);
        host.make_file("root/.reclaim", "no directory");
        let ended = Reclaim::with(&config).evidence("scan").run(&["sweep"]);
        let told = ended.stderr.lines().any(|line| line.contains("WARN") && line.contains("held back"));
        assert!(ended.code() == 1 && told && ended.stderr.contains(".reclaim"), "{ended:?}");
    });
}
