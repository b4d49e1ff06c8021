//! `reclaim audit`: it tells what mount tables do not show and the walk does, and why.

use reclaim_tests::{Held, Host, Kept, Mode, OrFail as _, Request, Subject, private_host, wait_until};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

/// Without these a namespace is read through its tasks alone.
const NO_WAY_IN: &str = "nslist,listmount,setns";

/// The only difference that an audit finds, of an entry that the walk alone sees; answers the cause.
#[track_caller]
fn only_difference(subject: &Subject, entry: &Path) -> String {
    let (objects, _) = subject.reclaim().objects(&["audit"], &[3]);
    let [difference, summary] = &*objects else { panic!("one difference and the end: {objects:?}") };
    let name = entry.file_name().and_then(|name| name.to_str()).or_fail("a name");
    assert_eq!((&difference["type"], &difference["entry"]), (&json!("difference"), &json!(name)), "{difference}");
    assert_eq!(difference["seen_by"], json!(["walk"]), "{difference}");
    assert_eq!(difference["missed_by"], json!(["live", "scan"]), "{difference}");
    assert_eq!((&summary["agree"], &summary["differences"]), (&json!(false), &json!(1)), "{summary}");
    difference["cause"].as_str().or_fail("a cause").to_owned()
}

/// Waits until nothing is told: a namespace that has just ended is not gone at once.
#[track_caller]
fn expect_agreement(subject: &Subject) {
    wait_until("producers to agree", Duration::from_secs(60), || {
        let (objects, code) = subject.reclaim().objects(&["audit"], &[0, 3]);
        let is_agreed = objects.last().is_some_and(|summary| summary["agree"] == Value::Bool(true));
        assert_eq!(is_agreed, code == 0, "{objects:?}");
        is_agreed.then_some(())
    });
}

fn held(hold: fn(&Host, &Path) -> Held, word: &'static str) {
    private_host(move |host| {
        let subject = Subject::start(host, Mode::Command);
        let (entry, other) = (host.entry("live"), host.entry("seen-by-all"));
        let _sandbox = host.sandbox_with(&other);
        expect_agreement(&subject);
        let mut held = hold(host, &entry);
        let cause = only_difference(&subject, &entry);
        assert!(cause.contains(word), "{cause}");
        held.still_works(&entry);
        let _keeper = held.release();
        expect_agreement(&subject);
    });
}

#[test]
fn a_detached_tree() {
    held(Held::tree, "detached tree");
}

#[test]
fn an_unmounted_tree_with_a_descriptor_inside() {
    held(Held::by_descriptor, "unmounted while busy");
}

#[test]
fn an_unmounted_tree_with_a_working_directory_inside() {
    held(Held::by_working_directory, "unmounted while busy");
}

fn kept(keep: fn(&Host, &Path) -> Kept) {
    private_host(move |host| {
        let subject = Subject::start_without(host, Mode::Command, NO_WAY_IN);
        let entry = host.entry("live");
        let kept = keep(host, &entry);
        let cause = only_difference(&subject, &entry);
        assert!(cause.contains(&format!("namespace {} was not read", kept.namespace())), "{cause}");
        kept.still_works(&entry);
        kept.release();
        expect_agreement(&subject);
    });
}

#[test]
fn a_namespace_that_a_file_keeps() {
    kept(Kept::by_file);
}

#[test]
fn a_namespace_that_a_descriptor_keeps() {
    kept(Kept::by_descriptor);
}

#[test]
fn a_bind_outside_of_a_jail() {
    private_host(|host| {
        let subject = Subject::start_without(host, Mode::Command, NO_WAY_IN);
        let (entry, jail) = (host.entry("live"), host.make_dir("jail"));
        let (mut sandbox, point) = host.sandbox_with(&entry);
        expect_agreement(&subject);
        let relative = point.strip_prefix(host.directory()).or_fail("a relative path").to_owned();
        sandbox.ask(&Request::ChangeDir(host.directory().into()));
        sandbox.ask(&Request::ChangeRoot(jail.into()));
        let cause = only_difference(&subject, &entry);
        assert!(cause.contains(&format!("namespace {} was ", sandbox.namespace())), "{cause}");
        sandbox.still_works(&relative, &entry);
        sandbox.kill();
        expect_agreement(&subject);
    });
}
