//! Case 7: the layers of overlays.

use reclaim_tests::{Host, Mode, OrFail as _, PinLine, Request, Subject, cases};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

cases! {
    layers_of_every_kind: service, scan, fallback;
    layer_through_a_link_that_has_gone: service, scan, fallback;
    layer_of_that_name_and_no_other: service, scan, fallback;
}

const NOTHING: &[&Path] = &[];

/// A layer that cannot be resolved could mean any entry of this machine, so tests that make one take turns, and have a
/// file of their own.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn layers_of_every_kind(host: &Host, mode: Mode) {
    let _alone = alone();
    let subject = Subject::start(host, mode);
    let layers: Vec<_> = ["lower-one", "lower-two", "relative-lower", "behind-link", "upper", "work"]
        .map(|name| host.entry(name))
        .into();
    let stale = host.entry("stale");
    let link = host.path("link-to-a-layer");
    symlink(&layers[3], &link).or_fail("make a link");
    let [first, second] = [host.mount_point(), host.mount_point()];
    let mut sandbox = host.sandbox();
    let upper_and_work = format!(
        "lowerdir={}:{},upperdir={},workdir={}",
        layers[0].display(),
        layers[1].display(),
        layers[4].display(),
        layers[5].display()
    );
    sandbox.ask(&Request::Overlay(first.clone().into(), upper_and_work.into_bytes()));
    sandbox.ask(&Request::ChangeDir(host.root().into()));
    let relative = format!("lowerdir=relative-lower:{}", link.display());
    sandbox.ask(&Request::Overlay(second.clone().into(), relative.into_bytes()));
    sandbox.ask(&Request::ChangeDir("/".into()));

    for layer in &layers {
        let answer = subject.query(layer);
        let relative = layer.ends_with("relative-lower");
        assert!(
            answer.verdict == "pinned" || (relative && answer.verdict == "unknown"),
            "a layer is held, or could be meant: {answer:?}"
        );
    }
    let who = subject.who(&layers[0]);
    assert!(who.pins.iter().any(|pin| pin.role == "layer"), "{who:?}");
    // The kernel's own mount of a layer is in no namespace; who has the overlay is told all the same.
    let who = subject.who(&layers[2]);
    let is_held = |pin: &PinLine| pin.tasks.iter().any(|task| task.pid == sandbox.pid());
    assert!(who.pins.iter().all(is_held), "process {}: {who:?}", sandbox.pid());
    subject.sweep_until_gone(&[&stale], &layers);
    sandbox.still_works(&first, &layers[4]);
    sandbox.kill();
    // The work directory has a child of the kernel's own, which only a tree removal takes.
    subject.sweep_until_gone(&layers[..5], NOTHING);
}

fn layer_through_a_link_that_has_gone(host: &Host, mode: Mode) {
    let _alone = alone();
    let subject = Subject::start(host, mode);
    let (layer, other) = (host.entry("layer"), host.entry("other"));
    let (link, second) = (host.path("link-to-a-layer"), host.make_dir("second"));
    symlink(&layer, &link).or_fail("make a link");
    let point = host.mount_point();
    let mut sandbox = host.sandbox();
    let options = format!("lowerdir={}:{}", link.display(), second.display());
    sandbox.ask(&Request::Overlay(point.into(), options.into_bytes()));
    fs::remove_file(&link).or_fail("remove a link");

    let answer = subject.query(&layer);
    assert_ne!(answer.verdict, "free", "the option could mean it: {answer:?}");
    let pass = subject.sweep();
    assert!(layer.is_dir(), "{pass:?}");
    if pass.evidence == "walk" {
        // The kernel's own mount of the layer tells which of the two it is.
        assert!(!other.exists(), "the walk saw nothing on it: {pass:?}");
    } else {
        assert!(other.is_dir(), "an option that leads nowhere could mean either: {pass:?}");
        assert_eq!(pass.removed, 0, "{pass:?}");
    }
    sandbox.kill();
    subject.sweep_until_gone(&[&layer, &other], NOTHING);
}

/// What is written of a relative layer says its name, so an empty entry of another name is no layer.
fn layer_of_that_name_and_no_other(host: &Host, mode: Mode) {
    let _alone = alone();
    let subject = Subject::start(host, mode);
    let layers = [host.entry("relative-one"), host.entry("relative-two")];
    let others = [host.entry("relative"), host.entry("one")];
    let mut sandbox = host.sandbox();
    sandbox.ask(&Request::ChangeDir(host.root().into()));
    let point = host.mount_point();
    sandbox.ask(&Request::Overlay(point.into(), b"lowerdir=relative-one:relative-two".to_vec()));
    sandbox.ask(&Request::ChangeDir("/".into()));
    subject.sweep_until_gone(&others, &layers);
    sandbox.kill();
    subject.sweep_until_gone(&layers, NOTHING);
}
