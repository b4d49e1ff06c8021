//! SIGKILL at random moments of a pass, then another pass.

use reclaim_tests::{
    Actor, ConfigFile, Host, Mode, OrFail as _, Reclaim, Root, Sequence, Service, cases, share_of, wait_until,
};
use std::path::PathBuf;
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

cases! {
    killed_at_random: scan;
    killed_at_random_as_a_service: service;
}

const STALE: usize = 2_500;

/// Kills at random moments, at full size.
const ROUNDS: usize = 25;

fn rounds() -> u64 {
    // Fewer than this may all miss the moment between condemning and removing.
    share_of(ROUNDS).max(8) as u64
}

struct Scene {
    live: Vec<(Actor, PathBuf, PathBuf)>,
    strangers: Vec<PathBuf>,
}

impl Scene {
    fn set(host: &Host) -> Self {
        let live = host.entries("live-", 12).into_iter().map(|entry| {
            let (sandbox, point) = host.sandbox_with(&entry);
            (sandbox, point, entry)
        });
        let live = live.collect();
        let strangers = vec![
            host.make_file("root/a-file", "text"),
            host.make_file("root/full/file", "text"),
            host.make_file("root/full/deep/er/file", "text"),
        ];
        Self { live, strangers }
    }

    fn expect_intact(&mut self, round: u64) {
        for (sandbox, point, entry) in &mut self.live {
            assert!(entry.is_dir(), "round {round}: {} is not under its own name", entry.display());
            sandbox.works(&*point, &*entry).or_fail(format_args!("round {round}: {}", entry.display()));
        }
        for file in &self.strangers {
            let text = std::fs::read_to_string(file).or_fail(format_args!("round {round}: {}", file.display()));
            assert_eq!(text, "text");
        }
    }
}

fn finish(host: &Host, reclaim: &Reclaim, scene: &mut Scene, round: u64) {
    wait_until("everything stale to go", Duration::from_secs(40), || {
        reclaim.sweep();
        scene.expect_intact(round);
        let stale = host.names().iter().filter(|name| name.starts_with(b"stale-")).count();
        (stale == 0 && host.condemned().is_empty()).then_some(())
    });
    assert_eq!(host.names().len(), scene.live.len() + 2, "round {round}: {:?}", host.names());
}

fn killed_at_random(host: &Host, _mode: Mode) {
    let mut scene = Scene::set(host);
    let config = ConfigFile::write(host, [Root::of(host)]);
    let reclaim = Reclaim::with(&config).evidence("scan");
    host.entries("stale-", STALE);
    let begun = Instant::now();
    reclaim.sweep();
    let usual = u64::try_from(begun.elapsed().as_micros()).or_fail("a duration");
    finish(host, &reclaim, &mut scene, 0);
    let mut sequence = Sequence::new(20_240_607);
    let mut condemned = 0;
    for round in 1..=rounds() {
        host.entries("stale-", STALE);
        let mut sweep = reclaim
            .command(&["--json", "sweep"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .or_fail("start a sweep");
        sleep(Duration::from_micros(sequence.below(usual)));
        sweep.kill().or_fail("kill the sweep");
        sweep.wait().or_fail("reap the sweep");
        condemned += host.condemned().len();
        finish(host, &reclaim, &mut scene, round);
    }
    eprintln!("{condemned} entries lay condemned after {} kills", rounds());
    assert!(condemned > 0, "no kill fell between condemning and removing");
}

fn killed_at_random_as_a_service(host: &Host, _mode: Mode) {
    let mut scene = Scene::set(host);
    let config = ConfigFile::write(host, [Root::of(host)]);
    let reclaim = Reclaim::with(&config);
    let mut sequence = Sequence::new(7);
    for round in 1..=rounds().div_ceil(2) {
        host.entries("stale-", STALE);
        let service = Service::start_without_waiting(host, &config, &reclaim);
        sleep(Duration::from_millis(50 + sequence.below(1_200)));
        service.kill();
        scene.expect_intact(round);
    }
    // A service that was killed leaves its socket, which must not stop the next one.
    let mut service = Service::start(host, &config, &reclaim);
    finish(host, &reclaim, &mut scene, rounds());
    service.assert_running();
}
