//! Every fence, and the reason that it gives, through the binary.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use reclaim_tests::{
    Actor, ConfigFile, Host, Mode, OrFail as _, Reclaim, Request, Root, Subject, cases, is_stopped, private_host,
    set_mode, wait_until,
};
use std::fs;
use std::os::unix::fs::{chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

cases! {
    name: service, scan;
    kind: service, scan;
    kind_file_and_any: service, scan;
    mode_fence: service, scan;
    owner: service, scan;
    young: service, scan;
    pid_alive: service, scan;
    pid_reused: service, scan;
    backstop: service, scan;
    leased: service, scan;
    leases_not_honoured: scan;
    retained: service, scan;
    pile: service, scan;
    not_empty: service, scan;
    file_with_text_is_not_empty: scan;
    many_reasons_at_once: service, scan;
}

const NOTHING: &[&Path] = &[];

/// Enough entries for each step to be that of a large root, with a thread that looks ahead and one that removes.
const MANY: usize = 600;

fn with(host: &Host, mode: Mode, change: impl FnOnce(Root) -> Root) -> Subject {
    Subject::start_with(host, mode, &ConfigFile::write(host, [change(Root::of(host))]))
}

/// Sweeps until what is stale has gone; what was kept must be there and be told under one reason.
fn expect_kept(subject: &Subject, reason: &str, kept: &[PathBuf], stale: &[PathBuf]) {
    let pass = subject.sweep_until_gone(stale, kept);
    assert_eq!(pass.kept(reason), kept.len() as u64, "{reason}: {pass:?}");
    let (_, entries) = subject.reclaim().sweep_verbosely(&[]);
    for path in kept {
        let name = path.file_name().or_fail("a name").to_string_lossy();
        let told = entries.iter().find(|entry| entry.name == name).or_fail(format_args!("{name} in {entries:?}"));
        assert_eq!((told.verdict.as_str(), told.reason.as_deref()), ("kept", Some(reason)), "{told:?}");
    }
}

fn name(host: &Host, mode: Mode) {
    let subject = with(host, mode, |root| root.text("match", "^acme_[0-9a-f]{4}$"));
    let kept = ["other", "acme_12345", "xacme_1234", "acme_12g4", "acme_1234\n"].map(|name| host.entry(name));
    let stale = ["acme_1234", "acme_beef"].map(|name| host.entry(name));
    let pass = subject.sweep_until_gone(&stale, &kept);
    assert_eq!(pass.kept("name"), kept.len() as u64, "{pass:?}");
}

fn kind(host: &Host, mode: Mode) {
    let subject = with(host, mode, |root| root);
    let stale = [host.entry("stale")];
    let (file, link) = (host.make_file("root/file", ""), host.root().join("link"));
    symlink(host.entry("pointed-at"), &link).or_fail("make a link");
    let fifo = host.root().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).or_fail("make a fifo");
    expect_kept(&subject, "kind", &[file, link, fifo], &stale);
}

fn kind_file_and_any(host: &Host, mode: Mode) {
    let other = host.make_dir("other");
    let roots = [Root::of(host).text("kind", "file"), Root::at("any", &other).text("kind", "any")];
    let subject = Subject::start_with(host, mode, &ConfigFile::write(host, roots));
    let (directory, file) = (host.entry("directory"), host.make_file("root/file", ""));
    let (any_directory, any_file) = (host.make_dir("other/directory"), host.make_file("other/file", ""));
    wait_until("the stale ones to go", Duration::from_secs(40), || {
        subject.reclaim().sweep();
        assert!(directory.is_dir());
        (![&file, &any_directory, &any_file].iter().any(|path| path.exists())).then_some(())
    });
}

fn mode_fence(host: &Host, mode: Mode) {
    let subject = with(host, mode, |root| root.text("mode", "0700"));
    let [stale, wider, sticky] = ["stale", "wider", "sticky"].map(|name| host.entry(name));
    set_mode(&stale, 0o700);
    set_mode(&wider, 0o755);
    set_mode(&sticky, 0o1700);
    expect_kept(&subject, "mode", &[wider, sticky], &[stale]);
}

/// The fence that an entry comes to stop at, and by what.
type Change = (&'static str, fn(&Path));

/// Whoever has an entry open may change it while no path leads to it.
#[test]
fn what_somebody_changes_while_it_lies_condemned_is_given_back() {
    private_host(|host| {
        let config = ConfigFile::write(host, [Root::of(host).text("mode", "0700").text("owner", "root")]);
        let changes: [Change; 2] =
            [("mode", |path| set_mode(path, 0o750)), ("owner", |path| chown(path, Some(1000), None).or_fail("chown"))];
        for (reason, change) in changes {
            wait_until("a sweep with evidence", Duration::from_secs(60), || {
                (0..MANY).for_each(|index| set_mode(&host.make_dir(format!("root/entry-{index}")), 0o700));
                let (entry, told) = changed_while_condemned(host, &config, change);
                assert!(entry.is_dir(), "{} has gone: {told:?}", entry.display());
                let name = entry.file_name().or_fail("a name").to_string_lossy();
                let of_entry = told.iter().find(|line| line["type"] == "entry" && line["name"] == *name);
                let of_entry = of_entry.or_fail("what became of it");
                assert_eq!(of_entry["verdict"], "restored", "{of_entry}");
                let is_told = of_entry["reason"] == reason;
                let left = fs::read_dir(host.root()).or_fail("list the root").count();
                fs::remove_dir(&entry).or_fail("start again");
                (is_told && left == 1).then_some(())
            });
        }
    });
}

/// Sweeps, and changes one entry each time that some lie condemned, the same one. Its path, and what the sweep told.
fn changed_while_condemned(host: &Host, config: &ConfigFile, change: fn(&Path)) -> (PathBuf, Vec<serde_json::Value>) {
    let reclaim = Reclaim::with(config).variable("RECLAIM_TEST_STOP", "after-condemn");
    let mut command = reclaim.command(&["--json", "-v", "sweep"]);
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut sweep = command.spawn().or_fail("start a sweep");
    let pid = Pid::from_raw(i32::try_from(sweep.id()).or_fail("a pid"));
    let mut output = sweep.stdout.take().or_fail("its output");
    let said = std::thread::spawn(move || std::io::read_to_string(&mut output).or_fail("what it says"));
    let mut entry = None;
    wait_until("a sweep to end", Duration::from_secs(60), || {
        if is_stopped(pid) {
            entry.get_or_insert_with(|| {
                let list = |path: &Path| fs::read_dir(path).or_fail("list").flatten().map(|entry| entry.path());
                let condemned = list(&host.root().join(".reclaim")).flat_map(|batch| list(&batch).collect::<Vec<_>>());
                let condemned = condemned.min().or_fail("a condemned entry");
                change(&condemned);
                host.root().join(condemned.file_name().or_fail("a name"))
            });
            kill(pid, Signal::SIGCONT).or_fail("let it go on");
        }
        sweep.try_wait().or_fail("wait for it")
    });
    let Ok(said) = said.join() else { panic!("what it says cannot be read") };
    let told = said.lines().map(|line| serde_json::from_str(line).or_fail("a line of JSON")).collect();
    (entry.or_fail("it condemned something"), told)
}

fn owner(host: &Host, mode: Mode) {
    let subject = with(host, mode, |root| root.text("owner", "1000"));
    let [stale, of_root, of_stranger] = ["stale", "of-root", "of-stranger"].map(|name| host.entry(name));
    chown(&stale, Some(1000), Some(1000)).or_fail("chown");
    chown(&of_stranger, Some(1001), Some(1000)).or_fail("chown");
    expect_kept(&subject, "owner", &[of_root, of_stranger], &[stale]);
}

fn young(host: &Host, mode: Mode) {
    let subject = with(host, mode, |root| root.text("min_age", "15s"));
    let first = host.entry("first");
    let pass = subject.sweep();
    assert!(first.is_dir() && pass.kept("young") == 1, "{pass:?}");
    sleep(Duration::from_millis(15_200));
    let second = host.entry("second");
    // Work inside moves the time of change and not the age.
    fs::write(first.join("file"), "").and_then(|()| fs::remove_file(first.join("file"))).or_fail("work inside");
    expect_kept(&subject, "young", &[second], &[first]);
}

fn named_after(host: &Host, pid: u32) -> PathBuf {
    host.entry(format!("acme_sb_{pid}_0a1b2c3d"))
}

const PATTERN: &str = r"^acme_sb_(?<pid>\d+)_[0-9a-f]{8}$";

fn dead_pid() -> u32 {
    let actor = Actor::start();
    let pid = actor.first_pid();
    actor.kill();
    pid
}

fn pid_alive(host: &Host, mode: Mode) {
    let subject = with(host, mode, |root| root.text("match", PATTERN));
    let alive = Actor::start();
    // The task must be older than the entry beyond doubt.
    sleep(Duration::from_millis(1_500));
    let (kept, stale) = (named_after(host, alive.first_pid()), named_after(host, dead_pid()));
    expect_kept(&subject, "pid-alive", std::slice::from_ref(&kept), &[stale]);
    alive.kill();
    subject.sweep_until_gone(&[&kept], NOTHING);
}

fn pid_reused(host: &Host, mode: Mode) {
    let subject = with(host, mode, |root| root.text("match", PATTERN));
    // The birth of a directory stays when it is renamed, so the pid in its name is of a task that came later.
    let born_first = host.make_dir("born-first");
    sleep(Duration::from_millis(2_500));
    let later = Actor::start();
    let entry = host.root().join(format!("acme_sb_{}_0a1b2c3d", later.first_pid()));
    fs::rename(&born_first, &entry).or_fail("rename");
    subject.sweep_until_gone(&[&entry], NOTHING);
}

fn backstop(host: &Host, mode: Mode) {
    let subject = with(host, mode, |root| root.text("match", PATTERN).text("backstop", "6s"));
    let alive = Actor::start();
    sleep(Duration::from_millis(1_500));
    let entry = named_after(host, alive.first_pid());
    let (pinned_name, other) = (host.root().join("acme_sb_1_ffffffff"), host.make_dir("other"));
    fs::rename(&other, &pinned_name).or_fail("rename");
    let (mut sandbox, point) = host.sandbox_with(&pinned_name);
    let pass = subject.sweep();
    assert!(entry.is_dir() && pass.kept("pid-alive") >= 1, "{pass:?}");
    sleep(Duration::from_secs(6));
    // Past the backstop the pid does not hold it any more. A pin always does.
    subject.sweep_until_gone(&[&entry], &[&pinned_name]);
    sandbox.still_works(&point, &pinned_name);
}

fn leased(host: &Host, mode: Mode) {
    let subject = with(host, mode, |root| root);
    let (kept, stale) = (host.entry("leased"), host.entry("stale"));
    let mut holder = Actor::start();
    holder.ask(&Request::Lock(kept.clone().into()));
    expect_kept(&subject, "leased", std::slice::from_ref(&kept), &[stale]);
    holder.kill();
    subject.sweep_until_gone(&[&kept], NOTHING);
}

fn leases_not_honoured(host: &Host, mode: Mode) {
    let subject = with(host, mode, |root| root.raw("leases", "false"));
    let entry = host.entry("locked");
    let lock = fs::File::open(&entry).or_fail("open an entry");
    let lock = nix::fcntl::Flock::lock(lock, nix::fcntl::FlockArg::LockExclusive).map_err(|(_, error)| error);
    let lock = lock.or_fail("lock an entry");
    let pass = subject.sweep();
    assert_eq!(pass.kept("leased"), 0, "{pass:?}");
    drop(lock);
    subject.sweep_until_gone(&[&entry], NOTHING);
}

fn retained(host: &Host, mode: Mode) {
    let subject = with(host, mode, |root| root.text("retain", "6s"));
    let entry = host.entry("retained");
    let pass = subject.sweep();
    assert!(entry.is_dir() && pass.kept("retained") == 1, "{pass:?}");
    sleep(Duration::from_secs(6));
    subject.sweep_until_gone(&[&entry], NOTHING);
}

fn pile(host: &Host, mode: Mode) {
    let subject = with(host, mode, |root| root.raw("pile", "8"));
    let few = host.entries("few-", 7);
    let pass = subject.sweep();
    assert_eq!((pass.removed, pass.kept("pile")), (0, 7), "{pass:?}");
    assert!(few.iter().all(|entry| entry.is_dir()));
    let eighth = host.entry("eighth");
    subject.sweep_until_gone(&[few, vec![eighth]].concat(), NOTHING);
}

fn not_empty(host: &Host, mode: Mode) {
    let subject = with(host, mode, |root| root);
    let kept = host.make_file("root/full/file", "text").parent().or_fail("a parent").to_owned();
    let nested = host.make_dir("root/nested/directory").parent().or_fail("a parent").to_owned();
    let stale = host.entry("stale");
    expect_kept(&subject, "not-empty", &[kept, nested], &[stale]);
}

fn file_with_text_is_not_empty(host: &Host, mode: Mode) {
    let subject = with(host, mode, |root| root.text("kind", "file"));
    let kept = host.make_file("root/text", "text");
    let stale = host.make_file("root/nothing", "");
    expect_kept(&subject, "not-empty", &[kept], &[stale]);
}

fn many_reasons_at_once(host: &Host, mode: Mode) {
    let subject = with(host, mode, |root| root.text("match", "^ours").text("mode", "0755").text("owner", "root"));
    let strange = host.entry("strange");
    let file = host.make_file("root/ours-file", "");
    let narrow = host.entry("ours-narrow");
    set_mode(&narrow, 0o700);
    let foreign = host.entry("ours-foreign");
    chown(&foreign, Some(1000), None).or_fail("chown");
    let full = host.make_file("root/ours-full/file", "").parent().or_fail("a parent").to_owned();
    let pinned = host.entry("ours-pinned");
    let (mut sandbox, point) = host.sandbox_with(&pinned);
    let leased = host.entry("ours-leased");
    let mut holder = Actor::start();
    holder.ask(&Request::Lock(leased.clone().into()));
    let stale = host.entries("ours-", 30);
    let kept = [&strange, &file, &narrow, &foreign, &full, &pinned, &leased];
    let pass = subject.sweep_until_gone(&stale, &kept);
    for reason in ["name", "kind", "mode", "owner", "not-empty", "pinned", "leased"] {
        assert_eq!(pass.kept(reason), 1, "{reason}: {pass:?}");
    }
    assert_eq!(pass.kept.values().sum::<u64>(), kept.len() as u64, "{pass:?}");
    sandbox.still_works(&point, &pinned);
}
