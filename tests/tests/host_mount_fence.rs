//! The mount fence: while entries lie condemned, others cannot bind them where the kernel has BPF LSM and the
//! configuration asks for it. Everybody else's mounts, and all once reclaim has ended, are none of its business.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use reclaim_tests::{
    Actor, ConfigFile, Host, OrFail as _, Reclaim, Request, Root, Service, earned_skip, private_host, wait_until,
};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

/// How long a process may take to come to a point, on an emulated processor.
const LIMIT: Duration = Duration::from_secs(120);
/// What stops a pass between condemning and confirming.
const STOP: (&str, &str) = ("RECLAIM_TEST_STOP", "after-condemn");

/// What a check says of the mount fence: its answer and why.
fn told(host: &Host) -> (String, String) {
    let config = config(host, true);
    // A check attaches everything once, for which the kernel waits for grace periods.
    let (objects, _) = Reclaim::with(&config).within(4 * LIMIT).objects(&["check"], &[0]);
    let row = objects.iter().find(|object| object["type"] == "feature" && object["name"] == "mount fence");
    let row = row.or_fail("the mount fence in a check");
    let text = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
    assert!(!text("used_for").contains("not asked for"), "{row}");
    (text("answer"), text("why"))
}

/// Whether the kernel has BPF LSM: it lists BPF among its security modules. Then a refusal is a fault.
fn has_lsm() -> bool {
    let modules = fs::read_to_string("/sys/kernel/security/lsm").unwrap_or_default();
    modules.trim().split(',').any(|module| module == "bpf")
}

fn config(host: &Host, refuse: bool) -> ConfigFile {
    ConfigFile::write(host, [Root::of(host)]).refuse_binds(refuse)
}

/// A sandbox that can bind one and the same directory in ways that need no name of it.
struct Binder {
    sandbox: Actor,
    descriptor: String,
    host: PathBuf,
    tries: u32,
}

impl Binder {
    fn of(host: &Host, directory: &Path) -> Self {
        let mut sandbox = host.sandbox();
        let descriptor = sandbox.ask(&Request::Hold(directory.into()));
        sandbox.ask(&Request::ChangeDir(directory.into()));
        Self { sandbox, descriptor, host: host.path("points"), tries: 0 }
    }

    /// Tries each way, and gives the refusals by way.
    fn attempt(&mut self) -> Vec<(&'static str, String)> {
        let number = self.descriptor.clone();
        let by = |place: &str| PathBuf::from(format!("{place}/{number}"));
        let ways = [
            ("/proc/self/fd", false, by("/proc/self/fd")),
            ("/proc/thread-self/fd", false, by("/proc/thread-self/fd")),
            ("open_tree", true, by("/proc/self/fd")),
            ("open_tree of .", true, ".".into()),
            (".", false, ".".into()),
            ("./.", false, "./.".into()),
            ("/proc/self/cwd", false, "/proc/self/cwd".into()),
        ];
        let mut refusals = Vec::new();
        for (way, tree, source) in ways {
            self.tries += 1;
            let target = self.host.join(format!("{}-{}", self.sandbox.pid(), self.tries));
            fs::create_dir_all(&target).or_fail("make a mount point");
            let (source, point) = (source.into(), target.clone().into());
            let request = if tree { Request::BindTree(source, point) } else { Request::Bind(source, point) };
            match self.sandbox.attempt(&request) {
                Ok(_) => self.sandbox.unmount(&target),
                Err(refusal) => refusals.push((way, refusal)),
            }
        }
        refusals
    }

    #[track_caller]
    fn expect_all_refused(&mut self) {
        let refusals = self.attempt();
        assert_eq!(refusals.len(), 7, "all ways are refused: {refusals:?}");
        for (way, refusal) in refusals {
            assert!(refusal.contains("EPERM") || refusal.contains("not permitted"), "{way}: {refusal}");
        }
    }

    #[track_caller]
    fn expect_none_refused(&mut self) {
        let refusals = self.attempt();
        assert!(refusals.is_empty(), "{refusals:?}");
    }
}

/// A sweep that has stopped itself once its entries were condemned. Killed when this is dropped.
struct Stopped(Option<Child>);

impl Stopped {
    fn sweep(config: &ConfigFile) -> Self {
        let reclaim = Reclaim::with(config).variable(STOP.0, STOP.1);
        let mut command = reclaim.command(&["--json", "sweep"]);
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let stopped = Self(Some(command.spawn().or_fail("start a sweep")));
        wait_for_stop(stopped.pid());
        stopped
    }

    fn pid(&self) -> i32 {
        let child = self.0.as_ref().or_fail("a sweep");
        i32::try_from(child.id()).or_fail("a pid")
    }

    /// Lets it go on to its end. All that it said.
    fn go_on(mut self) -> String {
        kill(Pid::from_raw(self.pid()), Signal::SIGCONT).or_fail("let a sweep go on");
        let output = self.0.take().or_fail("a sweep").wait_with_output().or_fail("wait for a sweep");
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat()
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn wait_for_stop(pid: i32) {
    wait_until("entries to be condemned", LIMIT, || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).or_fail("the state of a process");
        let (_, state) = stat.rsplit_once(") ").or_fail("a state");
        assert!(!state.starts_with('Z'), "it ended before it condemned anything");
        state.starts_with('T').then_some(())
    });
}

/// Two sandboxes: one with an entry, one with a directory that is none.
fn binders(host: &Host) -> (PathBuf, Binder, Binder) {
    let (entry, elsewhere) = (host.make_dir("root/entry"), host.make_dir("elsewhere/.reclaim/other"));
    let (inside, other) = (Binder::of(host, &entry), Binder::of(host, &elsewhere));
    (entry, inside, other)
}

#[test]
fn a_check_tells_whether_there_can_be_one() {
    private_host(|host| {
        let (answer, why) = told(host);
        match has_lsm() {
            true => assert_eq!((answer.as_str(), why.as_str()), ("yes", "")),
            false => assert!(answer != "yes" && !why.is_empty(), "{answer}: {why}"),
        }
    });
}

/// Wanted and not to be had: told, and nothing else changes.
#[test]
fn without_it_a_pass_goes_on_and_says_so() {
    private_host(|host| {
        let config = config(host, true);
        host.entries("stale-", 3);
        let finished = Reclaim::with(&config).variable("RECLAIM_TEST_DISABLE", "btf").run(&["--json", "sweep"]);
        let warning = "binds of condemned entries cannot be refused, only found";
        assert_eq!(finished.stderr.matches(warning).count(), 1, "{finished:?}");
        assert!([0, 4].contains(&finished.code()) && finished.stdout.contains("\"listed\":3"), "{finished:?}");
        let unasked = Reclaim::with(&config.refuse_binds(false)).run(&["--json", "sweep"]);
        assert!(!unasked.stderr.contains(warning), "{unasked:?}");
    });
}

#[test]
fn condemned_entries_cannot_be_bound_while_it_stands() {
    private_host(|host| {
        earned_skip!(has_lsm(), told(host).1);
        let config = config(host, true);
        let (entry, mut inside, mut other) = binders(host);
        inside.expect_none_refused();
        let sweep = Stopped::sweep(&config);
        assert_eq!(host.condemned(), [b"entry"]);
        inside.expect_all_refused();
        other.expect_none_refused();
        let said = sweep.go_on();
        assert!(!said.contains("refused, only found"), "{said}");
        assert!(entry.is_dir() && host.condemned().is_empty(), "whoever has it open keeps it: {said}");
        inside.expect_none_refused();
        other.expect_none_refused();
    });
}

#[test]
fn condemned_entries_can_be_bound_where_it_is_not_asked_for() {
    private_host(|host| {
        let config = config(host, false);
        let (entry, mut inside, mut other) = binders(host);
        let sweep = Stopped::sweep(&config);
        assert_eq!(host.condemned(), [b"entry"]);
        inside.expect_none_refused();
        other.expect_none_refused();
        let point = host.mount_point();
        inside.sandbox.ask(&Request::Bind(".".into(), point.clone().into()));
        let said = sweep.go_on();
        assert!(entry.is_dir() && host.condemned().is_empty(), "it is restored: {said}");
        inside.sandbox.still_works(&point, &entry);
    });
}

#[test]
fn a_place_deep_in_a_condemned_entry_cannot_be_bound() {
    private_host(|host| {
        earned_skip!(has_lsm(), told(host).1);
        let deep = host.make_dir("root/entry/a/b/c/d/e/f/g/h");
        let config = ConfigFile::write(host, [Root::of(host).text("remove", "tree")]).refuse_binds(true);
        let mut inside = Binder::of(host, &deep);
        let sweep = Stopped::sweep(&config);
        inside.expect_all_refused();
        sweep.go_on();
        inside.expect_none_refused();
    });
}

#[test]
fn nothing_is_refused_between_passes_of_the_service() {
    private_host(|host| {
        earned_skip!(has_lsm(), told(host).1);
        let config = config(host, true);
        let (entry, mut inside, mut other) = binders(host);
        let reclaim = Reclaim::with(&config).variable(STOP.0, STOP.1);
        let mut service = Service::start_without_waiting(host, &config, &reclaim);
        wait_for_stop(service.pid());
        inside.expect_all_refused();
        other.expect_none_refused();
        service.signal(Signal::SIGCONT);
        service.wait_for_passes(1);
        assert!(entry.is_dir());
        inside.expect_none_refused();
        service.terminate();
        inside.expect_none_refused();
    });
}

#[test]
fn nothing_is_refused_once_reclaim_was_killed() {
    private_host(|host| {
        earned_skip!(has_lsm(), told(host).1);
        let config = config(host, true);
        let (_, mut inside, _) = binders(host);
        let reclaim = Reclaim::with(&config).variable(STOP.0, STOP.1);
        let service = Service::start_without_waiting(host, &config, &reclaim);
        wait_for_stop(service.pid());
        inside.expect_all_refused();
        service.kill();
        inside.expect_none_refused();
        assert_eq!(host.condemned(), [b"entry"]);
        Reclaim::with(&config).sweep();
        assert_eq!(host.names(), [b"entry"], "the next pass restores what somebody has open");
    });
}
