//! Launchers that bind by a descriptor, for which the name that a sweep takes away does not matter.

use reclaim_tests::{Background, Host, Mode, Subject, cases, wait_until};
use std::fs::File;
use std::thread::sleep;
use std::time::{Duration, Instant};

cases! {
    launchers_with_a_descriptor_never_lose_a_live_source: service, scan;
    an_entry_with_a_descriptor_stays_until_that_is_closed: service, scan;
}

/// Case 8, by a descriptor that was opened before the entry is condemned. The sweep has no age fence.
fn launchers_with_a_descriptor_never_lose_a_live_source(host: &Host, mode: Mode) {
    let subject = Subject::start(host, mode);
    let launchers: Vec<_> = (0..3)
        .map(|index| Background::descriptor_loop(&host.root(), &host.mount_point(), &format!("opened-{index}-")))
        .collect();
    let deadline = Instant::now() + Duration::from_secs(10);
    let (mut removed, mut restored) = (0, 0);
    while Instant::now() < deadline {
        let pass = subject.sweep();
        removed += pass.removed;
        restored += pass.restored;
    }
    for launcher in launchers {
        let counts = launcher.stop();
        println!("{counts:?}, {removed} removed, {restored} restored");
        counts.expect_clean("launches by descriptor");
    }
    assert!(removed > 0, "nothing was removed, so nothing was at risk");
    assert!(restored > 0, "nothing was held back, so no descriptor met a sweep");
    wait_until("what the launchers left to go", Duration::from_secs(40), || {
        subject.sweep();
        host.names().is_empty().then_some(())
    });
    assert!(host.condemned().is_empty());
}

fn an_entry_with_a_descriptor_stays_until_that_is_closed(host: &Host, mode: Mode) {
    let subject = Subject::start(host, mode);
    let open = File::open(host.entry("open")).expect("the entry was made");
    host.entry("stale");
    for _ in 0..3 {
        subject.sweep();
        sleep(Duration::from_millis(20));
    }
    assert_eq!(host.names(), [b"open"]);
    drop(open);
    subject.sweep();
    assert!(host.names().is_empty());
}
