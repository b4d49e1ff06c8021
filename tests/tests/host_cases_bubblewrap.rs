//! Cases 1 and 2 with sandboxes that bubblewrap makes.

use reclaim_tests::{Actor, ConfigFile, Host, Mode, OrFail as _, Request, Root, Subject, cases};
use reclaim_tests::{helper_program, program_on_path};
use std::path::Path;
use std::process::Command;

cases! {
    bound_source: service, scan, fallback;
    placeholder_as_target: service, scan, fallback;
}

const NOTHING: &[&Path] = &[];

/// A helper inside bubblewrap, with the whole host bound below and what `more` asks for above.
fn bubblewrap(more: &[&Path]) -> Actor {
    let words = more.iter().map(|word| word.as_os_str());
    let mut command = Command::new(program_on_path("bwrap"));
    command.args(["--die-with-parent", "--dev-bind", "/", "/"]).args(words).arg("--");
    Actor::start_command(command.arg(helper_program()).arg("serve"))
}

fn bound_source(host: &Host, mode: Mode) {
    let subject = Subject::start(host, mode);
    let (entry, stale, point) = (host.entry("live"), host.entry("stale"), host.mount_point());
    let mut sandbox = bubblewrap(&["--bind".as_ref(), &entry, &point]);
    subject.expect_pinned(&entry);
    let who = subject.who(&entry);
    assert!(who.pins.iter().any(|pin| pin.role == "source" && !pin.tasks.is_empty()), "{who:?}");
    subject.sweep_until_gone(&[&stale], &[&entry]);
    sandbox.still_works(&point, &entry);
    drop(sandbox);
    subject.sweep_until_gone(&[&entry], NOTHING);
}

/// An empty file that denies writes for as long as something is mounted on it.
fn placeholder_as_target(host: &Host, mode: Mode) {
    let config = ConfigFile::write(host, [Root::of(host).text("kind", "file")]);
    let subject = Subject::start_with(host, mode, &config);
    let denied = host.make_file("root/denied", "");
    let stale = host.make_file("root/stale", "");
    let policy = host.make_file("policy", "read only");
    let mut sandbox = bubblewrap(&["--ro-bind".as_ref(), &policy, &denied]);
    assert_eq!(sandbox.ask(&Request::Read(denied.clone().into())), "read only");
    subject.expect_pinned(&denied);
    subject.sweep_until_gone(&[&stale], &[&denied]);
    assert_eq!(sandbox.attempt(&Request::Read(denied.clone().into())).or_fail("read"), "read only");
    drop(sandbox);
    subject.sweep_until_gone(&[&denied], NOTHING);
}
