//! Case 11: names that are bytes, not words.

use reclaim_tests::{ConfigFile, Host, Mode, Root, Subject, cases};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

cases! {
    odd_names: service, scan, fallback;
    odd_names_are_told_exactly: service, scan;
}

fn names() -> Vec<Vec<u8>> {
    let mut names: Vec<Vec<u8>> = [
        &b"with space"[..],
        b"tab\there",
        b"line\nbreak",
        b"back\\slash",
        b"literal\\040space",
        b"literal\\134",
        b"#comment",
        b"look-alike (deleted)",
        b"look-alike\\057\\057deleted",
        b"deleted",
        b"-rf",
        b"--json",
        b"\"quoted\" 'twice'",
        b"not-utf8-\xff\xfe",
        b"\xc3\x28",
        b"control-\x01\x1b[31m",
        b"*",
        b"...",
        "umlaut-\u{e4}\u{1f980}".as_bytes(),
    ]
    .map(<[u8]>::to_vec)
    .into();
    names.push(vec![b'n'; 255]);
    names.push(vec![0xf0; 255]);
    names
}

fn at(directory: &Path, name: &[u8]) -> PathBuf {
    directory.join(OsStr::from_bytes(name))
}

/// Every name is pinned in one root and stale in the other, so neither half can come right by chance.
fn odd_names(host: &Host, mode: Mode) {
    let second = host.make_dir("second");
    let config = ConfigFile::write(host, [Root::of(host), Root::at("second", &second)]);
    let subject = Subject::start_with(host, mode, &config);
    let mut sandboxes = Vec::new();
    let (mut pinned, mut stale) = (Vec::new(), Vec::new());
    for (index, name) in names().iter().enumerate() {
        let both = [at(&host.root(), name), at(&second, name)];
        for entry in &both {
            std::fs::create_dir(entry).unwrap_or_else(|error| panic!("make {entry:?}: {error}"));
        }
        let [live, dead] = if index % 2 == 0 { both } else { [both[1].clone(), both[0].clone()] };
        let (sandbox, point) = host.sandbox_with(&live);
        sandboxes.push((sandbox, point, live.clone()));
        pinned.push(live);
        stale.push(dead);
    }
    for entry in &pinned {
        subject.expect_pinned(entry);
    }
    sweep_both_until_gone(&subject, &stale, &pinned);
    for (sandbox, point, entry) in &mut sandboxes {
        sandbox.still_works(point, entry);
    }
    drop(sandboxes);
    sweep_both_until_gone(&subject, &pinned, &[]);
}

fn sweep_both_until_gone(subject: &Subject, gone: &[PathBuf], stay: &[PathBuf]) {
    reclaim_tests::wait_until("sweep all that is stale", std::time::Duration::from_secs(40), || {
        let passes = subject.reclaim().sweep();
        for entry in stay {
            assert!(entry.is_dir(), "{entry:?} is in use and has gone: {passes:?}");
        }
        gone.iter().all(|entry| !entry.exists()).then_some(())
    });
}

fn odd_names_are_told_exactly(host: &Host, mode: Mode) {
    let subject = Subject::start(host, mode);
    for name in names() {
        host.entry(&name);
    }
    let expected: BTreeSet<_> = names().into_iter().collect();
    let (_, entries) = subject.reclaim().sweep_verbosely(&["--dry-run"]);
    let told: BTreeSet<_> = entries.iter().map(reclaim_tests::EntryLine::bytes).collect();
    assert_eq!(told, expected);
    assert!(entries.iter().all(|entry| entry.root == "root"), "{entries:?}");
    for entry in &entries {
        let is_text = std::str::from_utf8(&entry.bytes()).is_ok();
        assert_eq!(entry.name_hex.is_none(), is_text, "the exact bytes where text loses them: {entry:?}");
        assert!(!entry.name.is_empty());
    }
}
