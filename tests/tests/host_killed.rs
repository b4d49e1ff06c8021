//! What a reclaim that is killed leaves in the kernel: nothing of what it had loaded and attached there.

use aya::maps::loaded_maps;
use aya::programs::{loaded_links, loaded_programs};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use reclaim_tests::{ConfigFile, Host, OrFail as _, Reclaim, Root, Service, is_stopped, private_host, wait_until};
use std::collections::BTreeSet;
use std::fs;
use std::process::Stdio;
use std::time::Duration;

/// How long the kernel may take to let go of it, and a process to come to a point, on an emulated processor.
const LIMIT: Duration = Duration::from_secs(60);

/// What a process holds in the kernel, by the numbers that the kernel gave. They are not given again for a long time.
#[derive(Debug, Default)]
struct Held {
    programs: BTreeSet<u32>,
    links: BTreeSet<u32>,
    maps: BTreeSet<u32>,
}

impl Held {
    fn by(process: Pid) -> Self {
        let mut held = Self::default();
        let place = format!("/proc/{process}/fdinfo");
        for descriptor in fs::read_dir(&place).or_fail(format_args!("list {place}")).flatten() {
            let text = fs::read_to_string(descriptor.path()).unwrap_or_default();
            let number = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.trim().parse::<u32>().ok());
            held.links.extend(number("link_id:"));
            held.programs.extend(number("prog_id:"));
            held.maps.extend(number("map_id:"));
        }
        held
    }

    /// What of it the kernel has still.
    fn left(&self) -> Self {
        let programs = loaded_programs().flatten().map(|program| program.id());
        let links = loaded_links().flatten().map(|link| link.id());
        let maps = loaded_maps().flatten().map(|map| map.id());
        Self {
            programs: programs.filter(|id| self.programs.contains(id)).collect(),
            links: links.filter(|id| self.links.contains(id)).collect(),
            maps: maps.filter(|id| self.maps.contains(id)).collect(),
        }
    }

    fn counts(&self) -> [usize; 3] {
        [&self.programs, &self.links, &self.maps].map(BTreeSet::len)
    }

    /// Everything is there, and goes with the process.
    fn goes_with(&self, end: impl FnOnce()) {
        assert_eq!(self.left().counts(), self.counts(), "{self:?}");
        end();
        let mut left = self.left();
        wait_until(&format!("{self:?} to go from the kernel"), LIMIT, || {
            left = self.left();
            (left.counts() == [0, 0, 0]).then_some(())
        });
    }
}

/// A host with one entry that a pass condemns, so that all that a pass needs is loaded.
fn config(host: &Host) -> ConfigFile {
    host.entry("stale");
    ConfigFile::write(host, [Root::of(host)]).refuse_binds(true)
}

/// A service that listens by the best rung but for those that are left out.
fn a_service_leaves_nothing(without: &'static str) {
    private_host(move |host| {
        let config = config(host);
        let reclaim = Reclaim::with(&config).variable("RECLAIM_TEST_DISABLE", without);
        let mut service = Service::start(host, &config, &reclaim);
        service.wait_for_passes(1);
        let held = Held::by(Pid::from_raw(service.pid()));
        // The walk, the references, and two programs with a link each for every call or for all of them.
        let [programs, links, maps] = held.counts();
        assert!(programs >= 8 && links >= 4 && maps >= 3, "{held:?}");
        held.goes_with(|| service.kill());
    });
}

#[test]
fn a_service_that_is_killed_leaves_nothing_in_the_kernel() {
    a_service_leaves_nothing("");
}

#[test]
fn a_service_on_the_tracepoints_of_single_calls_leaves_nothing_in_the_kernel() {
    a_service_leaves_nothing("fentry,kprobe");
}

#[test]
fn a_pass_that_is_killed_leaves_nothing_in_the_kernel() {
    private_host(|host| {
        let config = config(host);
        let reclaim = Reclaim::with(&config).variable("RECLAIM_TEST_STOP", "after-confirm");
        let mut command = reclaim.command(&["sweep"]);
        let mut pass = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().or_fail("start a pass");
        let pid = Pid::from_raw(i32::try_from(pass.id()).or_fail("a pid"));
        wait_until("the pass to stop", LIMIT, || is_stopped(pid).then_some(()));
        let held = Held::by(pid);
        let [programs, links, maps] = held.counts();
        assert!(programs >= 8 && links >= 4 && maps >= 3, "{held:?}");
        held.goes_with(|| {
            kill(pid, Signal::SIGKILL).or_fail("kill the pass");
            pass.wait().or_fail("reap the pass");
        });
    });
}
