//! A sweep among sandboxes that go on with their work.

use reclaim_tests::{
    Background, ConfigFile, Crowd, Host, Mode, OrFail as _, Reclaim, Root, Subject, cases, share_of, wait_until,
};
use std::process::Stdio;
use std::time::{Duration, Instant};

cases! {
    a_large_sweep_disturbs_nobody: service, scan;
    sandboxes_that_come_and_go: service, scan;
}

fn a_large_sweep_disturbs_nobody(host: &Host, mode: Mode) {
    let subject = Subject::start(host, mode);
    let full = host.make_file("root/full/file", "text").parent().or_fail("a parent").to_owned();
    host.entries("member-", 1_000);
    let crowd = Crowd::start(&host.root(), &host.make_dir("points"), "member-", 100, 10);
    let outside = Background::bind_loop(&host.make_dir("outside"), &host.mount_point());
    let inside = Background::bind_loop(&full, &host.mount_point());
    host.entries("stale-", share_of(60_000));

    // The bound members are checked over and over while the sweep runs.
    let mut during = 0;
    wait_until("the sweep of many", Duration::from_secs(150), || {
        let mut sweep = subject
            .reclaim()
            .command(&["--json", "sweep"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .or_fail("start a sweep");
        while sweep.try_wait().or_fail("look at the sweep").is_none() {
            crowd.still_works();
            during += 1;
        }
        (host.names().len() == 1_001).then_some(())
    });
    assert!(during > 0, "the sweep was over before anything could be checked");
    crowd.still_works();
    outside.stop().expect_clean("bind and unmount elsewhere");
    inside.stop().expect_clean("bind and unmount of an entry that is not empty");
    drop(crowd);
    wait_until("the members to go", Duration::from_secs(40), || {
        subject.sweep();
        (host.names() == [b"full"]).then_some(())
    });
}

fn sandboxes_that_come_and_go(host: &Host, mode: Mode) {
    let config = ConfigFile::write(host, [Root::of(host)]).every("1s");
    let point = host.mount_point();
    let steady: Vec<_> =
        host.entries("steady-", 10).into_iter().map(|entry| (host.sandbox_with(&entry), entry)).collect();
    let mut steady = steady;
    // Only now: a pass of the service may come before a slow launcher binds what it made.
    let subject = Subject::start_with(host, mode, &config);
    let storms: Vec<_> = (0..2)
        .map(|index| {
            let prefix = format!("storm-{index}-");
            host.entries(&prefix, 200);
            Background::sandbox_storm(&host.root(), &point, &prefix, 200)
        })
        .collect();
    let deadline = Instant::now() + Duration::from_secs(4);
    while Instant::now() < deadline {
        host.entries("storm-0-", 200);
        subject.sweep();
        for ((sandbox, point), entry) in &mut steady {
            sandbox.still_works(&*point, entry);
        }
    }
    for storm in storms {
        storm.stop();
    }
    wait_until("the rest to go", Duration::from_secs(40), || {
        Reclaim::sweep(subject.reclaim());
        (host.names().len() == steady.len()).then_some(())
    });
}
