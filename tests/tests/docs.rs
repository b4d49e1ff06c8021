//! The configurations in the documentation work as they stand.

use reclaim_tests::{
    ConfigFile, EntryLine, Host, OrFail as _, Pass, Reclaim, Root, blocks, claim_places, pages, private_host, set_mode,
};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

#[test]
fn every_configuration_of_the_documentation_is_accepted_as_it_stands() {
    private_host(|host| {
        let config = ConfigFile::write(host, [Root::of(host)]);
        let reclaim = Reclaim::with(&config).evidence("scan");
        let mut tried = 0;
        for page in pages() {
            let text = fs::read_to_string(&page).or_fail(format_args!("read {}", page.display()));
            let of_page = match page.extension().is_some_and(|end| end == "toml") {
                true => vec![(1, text)],
                false => blocks(&text, "toml"),
            };
            for (line, block) in of_page {
                let at = format!("{}:{line}", page.display());
                config.write_text(&block);
                let (objects, code) = reclaim.objects(&["check"], &[0, 1, 2]);
                let faults: Vec<_> = objects
                    .iter()
                    .filter(|object| object["type"] == "fault" && object["about"] == "configuration")
                    .collect();
                // Neither a fault nor a note: what a page shows is not to look like a mistake.
                assert!(code != 2 && faults.is_empty(), "{at}: {faults:?}");
                assert!(objects.iter().any(|object| object["type"] == "root"), "{at}: there is no root in it");
                tried += 1;
            }
        }
        assert!(tried >= 5, "only {tried} blocks were found");
    });
}

/// The configuration of a page, as it stands or without its fences of age: a test cannot wait for days.
fn block_of(page: &str, with_ages: bool) -> String {
    let mut found = blocks(page, "toml");
    assert_eq!(found.len(), 1, "a page has one configuration");
    let is_kept = |line: &&str| with_ages || !line.starts_with("min_age");
    found.remove(0).1.lines().filter(is_kept).collect::<Vec<_>>().join("\n")
}

/// Verdict and reason of each entry, by its name.
type Told = BTreeMap<String, (String, Option<String>)>;

/// What became of each entry in one sweep with a configuration.
fn sweep(host: &Host, text: &str) -> (Vec<Pass>, Told) {
    let config = ConfigFile::write(host, []);
    config.write_text(text);
    let path = format!("{}:/usr/bin:/bin", host.path("bin").display());
    let reclaim = Reclaim::with(&config).evidence("scan").variable("PATH", path);
    let (passes, entries) = reclaim.sweep_verbosely(&[]);
    let told = |entry: EntryLine| (entry.name, (entry.verdict, entry.reason));
    (passes, entries.into_iter().map(told).collect())
}

fn removed() -> (String, Option<String>) {
    ("removed".into(), None)
}

fn kept(reason: &str) -> (String, Option<String>) {
    ("kept".into(), Some(reason.into()))
}

fn make(path: &str, mode: u32) {
    fs::create_dir_all(path).or_fail("make a directory of the page");
    set_mode(Path::new(path), mode);
}

#[test]
fn the_page_of_keyed_entries_does_what_it_says() {
    private_host(|host| {
        claim_places(host);
        let page = include_str!("../../docs/keyed.md");
        host.make_program("bin/acme", "#!/bin/sh\n[ \"$*\" = list-live ] && echo live\n");
        let sources = "/run/acme/sandboxes";
        let mut child = Command::new("true").spawn().or_fail("start a process");
        let [mine, gone] = [std::process::id(), child.id()].map(|process| format!("acme_sb_{process}_0123abcd"));
        child.wait().or_fail("wait for a process");
        for name in [&mine, &gone] {
            make(&format!("{sources}/{name}"), 0o700);
        }
        make(&format!("{sources}/acme_sb_4194999_00000000"), 0o755);
        make(&format!("{sources}/another"), 0o700);
        for workspace in ["ws-live/work", "ws-left/work", "other"] {
            make(&format!("/srv/acme/workspaces/{workspace}"), 0o755);
        }
        // Everything of the right name has just been made.
        let (passes, told) = sweep(host, &block_of(page, true));
        assert_eq!(passes.iter().map(|pass| pass.kept("young")).collect::<Vec<_>>(), [2, 2], "{told:?}");
        let (_, told) = sweep(host, &block_of(page, false));
        let expected = [
            (mine.as_str(), kept("pid-alive")),
            (gone.as_str(), removed()),
            ("acme_sb_4194999_00000000", kept("mode")),
            ("another", kept("name")),
            ("ws-live", kept("claimed")),
            ("ws-left", removed()),
            ("other", kept("name")),
        ];
        assert_eq!(told, expected.map(|(name, end)| (name.to_owned(), end)).into());
    });
}

#[test]
fn the_page_of_what_was_left_behind_does_what_it_says() {
    private_host(|host| {
        claim_places(host);
        let page = include_str!("../../docs/legacy.md");
        let of = |number: u32| format!("/run/acme/tmp.{number:08}");
        (0..511).for_each(|number| make(&of(number), 0o700));
        make("/run/acme/tmp.abc", 0o700);
        let (passes, _) = sweep(host, &block_of(page, true));
        assert_eq!((passes[0].kept("young"), passes[0].removed), (511, 0), "{passes:?}");
        make("/run/acme/tmp.fullfull/work", 0o700);
        set_mode(Path::new("/run/acme/tmp.fullfull"), 0o700);
        let few = block_of(page, false).replace("once = true", "");
        let (passes, _) = sweep(host, &few);
        assert_eq!((passes[0].kept("pile"), passes[0].removed), (511, 0), "{passes:?}");
        make(&of(511), 0o700);
        let (passes, told) = sweep(host, &block_of(page, false));
        assert_eq!((passes[0].removed, passes[0].listed), (512, 514), "{passes:?}");
        assert_eq!((&told["tmp.abc"], &told["tmp.fullfull"]), (&kept("name"), &kept("not-empty")));
        // It is done with.
        make(&of(0), 0o700);
        let (passes, _) = sweep(host, &block_of(page, false));
        assert_eq!((passes[0].listed, Path::new(&of(0)).exists()), (0, true), "{passes:?}");
    });
}

#[test]
fn the_page_of_retention_does_what_it_says() {
    private_host(|host| {
        claim_places(host);
        let page = include_str!("../../docs/retention.md");
        let now = SystemTime::now().duration_since(UNIX_EPOCH).or_fail("read the clock").as_secs();
        let with = |name: &str, manifest: Option<String>| {
            let entry = format!("/srv/acme/results/{name}");
            make(&format!("{entry}/logs"), 0o755);
            if let Some(manifest) = manifest {
                fs::write(format!("{entry}/manifest.json"), manifest).or_fail("write a manifest");
            }
        };
        let begun = |hours: u64, deadline: &str| Some(format!("{{\"created_at\":{}{deadline}}}", now - hours * 3600));
        with("run-00000000000a", begun(73, ""));
        with("run-00000000000b", begun(71, ""));
        with("run-00000000000c", begun(1, &format!(",\"expires_at\":{}", now - 1)));
        with("run-00000000000d", None);
        with("run-00000000000e", Some("nonsense".to_owned()));
        with("else", begun(99, ""));
        make("/srv/acme/scratch/any", 0o755);
        let (passes, told) = sweep(host, &block_of(page, true));
        assert_eq!(passes.iter().map(|pass| pass.kept("young")).collect::<Vec<_>>(), [5, 1], "{told:?}");
        let (_, told) = sweep(host, &block_of(page, false));
        let expected = [
            ("run-00000000000a", removed()),
            ("run-00000000000b", kept("retained")),
            ("run-00000000000c", removed()),
            ("run-00000000000d", kept("retained")),
            ("run-00000000000e", kept("retained")),
            ("else", kept("name")),
            ("any", kept("retained")),
        ];
        assert_eq!(told, expected.map(|(name, end)| (name.to_owned(), end)).into());
    });
}

#[test]
fn the_page_of_what_is_held_does_what_it_says() {
    private_host(|host| {
        claim_places(host);
        for name in ["leased", "free"] {
            make(&format!("/run/acme/sources/{name}"), 0o755);
        }
        let opened = File::open("/run/acme/sources/leased").or_fail("open an entry");
        opened.lock_shared().or_fail("lock an entry");
        let page = block_of(include_str!("../../docs/held.md"), true);
        let (_, told) = sweep(host, &page);
        assert_eq!((&told["leased"], &told["free"]), (&kept("leased"), &removed()));
        drop(opened);
        let (_, told) = sweep(host, &page);
        assert_eq!(told["leased"], removed());
    });
}

/// The overviews of all keys: their roots are passed over as they stand, and what is not theirs stays.
#[test]
fn the_overviews_of_all_keys_can_be_swept_with() {
    private_host(|host| {
        claim_places(host);
        make("/srv/ws/_cache", 0o755);
        make("/run/user/1000/acme_sb_4194999_0123abcd", 0o700);
        make("/run/user/1000/else", 0o700);
        let readme = blocks(include_str!("../../README.md"), "toml").remove(0).1;
        for text in [readme.as_str(), include_str!("../../docs/reclaim.example.toml")] {
            let (passes, told) = sweep(host, text);
            assert_eq!((passes.len(), passes[0].listed, passes[0].removed), (1, 2, 0), "{passes:?}");
            assert_eq!((&told["acme_sb_4194999_0123abcd"], &told["else"]), (&kept("owner"), &kept("name")));
        }
    });
}
