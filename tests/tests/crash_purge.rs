//! A purge that dies half-way: what the next purge, the next sweep and the next pass of the service make of it.

use reclaim_tests::{ConfigFile, Host, OrFail as _, Reclaim, Root, Service, private_host, wait_until};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

/// Two directories of templates and no root at all: only a purge ever makes anything in them.
fn config(host: &Host) -> ConfigFile {
    host.make_dir("ws");
    host.make_dir("cache");
    ConfigFile::write(host, []).tables(&format!(
        "\n[[owned]]\npath = '{0}/ws/{{id}}'\n\n[[owned]]\npath = '{0}/cache/{{id}}'\n",
        host.directory().display()
    ))
}

fn make(host: &Host) -> [PathBuf; 2] {
    host.make_file("ws/abc/deep/file", "text");
    host.make_file("cache/abc/file", "text");
    ["ws/abc", "cache/abc"].map(|path| host.path(path))
}

/// Runs a purge that ends itself at a step, and fails when it does not get there.
fn crash_at(reclaim: &Reclaim, step: &str) {
    wait_until("evidence enough to come to the step", Duration::from_secs(90), || {
        let finished = reclaim.clone().variable("RECLAIM_TEST_CRASH", step).run(&["--json", "purge", "abc"]);
        // On a busy host it may be kept for a doubt.
        if matches!(finished.status.code(), Some(3 | 4)) {
            return None;
        }
        assert!(
            !finished.status.success() && finished.status.code().is_none(),
            "it never came to {step}: {finished:?}"
        );
        Some(())
    });
}

fn condemned(host: &Host, parent: &str) -> Option<PathBuf> {
    let batches = fs::read_dir(host.path(parent).join(".reclaim")).ok()?;
    let mut found = batches.flatten().map(|batch| batch.path().join("abc"));
    found.find(|path| path.symlink_metadata().is_ok())
}

fn nothing_condemned(host: &Host) -> bool {
    !["ws", "cache"].iter().any(|parent| host.path(parent).join(".reclaim").exists())
}

/// Who mends it.
#[derive(Clone, Copy)]
enum By {
    Purge,
    Sweep,
    Service,
}

/// Returns what was told meanwhile.
fn mend(host: &Host, config: &ConfigFile, by: By, is_mended: impl Fn() -> bool) -> String {
    let reclaim = Reclaim::with(config);
    let service = match by {
        By::Service => Some(Service::start(host, config, &reclaim)),
        By::Purge | By::Sweep => None,
    };
    let mut told = String::new();
    wait_until("it to be mended", Duration::from_secs(40), || {
        match by {
            // Of another id: what is left behind is mended whoever comes next.
            By::Purge => told.push_str(&reclaim.run(&["purge", "other"]).stderr),
            By::Sweep => told.push_str(&reclaim.run(&["sweep"]).stderr),
            By::Service => {}
        }
        is_mended().then_some(())
    });
    told + &service.map(|service| service.log()).unwrap_or_default()
}

/// Nothing was decided, so all comes back, also where one of it is in use by now.
fn undecided(step: &str, by: By, evidence: &'static str) {
    let step = step.to_owned();
    private_host(move |host| {
        let config = config(host);
        let ours = make(host);
        crash_at(&Reclaim::with(&config).evidence(evidence), &step);
        assert!(!ours.iter().any(|path| path.exists()), "both are condemned at {step}");
        let live = condemned(host, "cache").or_fail("where it lies condemned");
        let (mut sandbox, point) = host.sandbox_with(&live);
        mend(host, &config, by, || ours.iter().all(|path| path.is_dir()) && nothing_condemned(host));
        assert_eq!(fs::read_to_string(ours[0].join("deep/file")).or_fail("read"), "text");
        sandbox.still_works(&point, &ours[1]);
    });
}

/// All was proved together and it was decided, so it is finished.
fn decided(step: &str, by: By, evidence: &'static str) {
    let step = step.to_owned();
    private_host(move |host| {
        let config = config(host);
        let sibling = host.make_file("ws/abcd/file", "text");
        wait_until("evidence enough to finish it", Duration::from_secs(60), || {
            let ours = make(host);
            crash_at(&Reclaim::with(&config).evidence(evidence), &step);
            assert!(condemned(host, "cache").is_some());
            let told = mend(host, &config, by, || nothing_condemned(host));
            let is_gone = !ours.iter().any(|path| path.exists());
            let doubts = ["no-evidence", "mounts were made", "cannot be resolved"];
            let is_doubted = doubts.iter().any(|doubt| told.contains(doubt));
            assert!(is_gone || is_doubted, "it was not finished, and nothing spoke against it: {told}");
            is_gone.then_some(())
        });
        assert_eq!(fs::read_to_string(sibling).or_fail("read"), "text");
    });
}

macro_rules! crashes {
    ($($test:ident: $kind:ident $step:literal $by:ident $evidence:literal;)+) => {
        $(#[test]
        fn $test() {
            $kind($step, By::$by, $evidence);
        })+
    };
}

crashes! {
    condemned_then_purge: undecided "after-condemn" Purge "auto";
    condemned_then_service: undecided "after-condemn" Service "scan";
    settled_then_purge: undecided "after-settle" Purge "scan";
    confirmed_then_service: undecided "after-confirm" Service "auto";
    confirmed_then_purge: undecided "after-confirm" Purge "scan";
    decided_then_purge: decided "after-decision" Purge "scan";
    decided_then_service: decided "after-decision" Service "auto";
    half_removed_then_purge: decided "mid-remove" Purge "scan";
    half_removed_then_service: decided "mid-remove" Service "scan";
}

/// With a root beside them, a sweep brings to its end what lies in the directories of templates.
#[test]
fn a_sweep_mends_it_too() {
    private_host(|host| {
        let config = config(host);
        let ours = make(host);
        crash_at(&Reclaim::with(&config).evidence("scan"), "after-condemn");
        let text = format!("{}\n[[root]]\nname = 'root'\npath = '{}'\n", config.to_toml(), host.root().display());
        config.write_text(&text);
        mend(host, &config, By::Sweep, || ours.iter().all(|path| path.is_dir()) && nothing_condemned(host));
    });
}

/// Its name was taken while it lay condemned: what took it is never replaced, and it comes back once that has gone.
#[test]
fn a_name_that_was_taken_meanwhile_is_not_overwritten() {
    private_host(|host| {
        let config = config(host);
        make(host);
        crash_at(&Reclaim::with(&config).evidence("scan"), "after-condemn");
        let theirs = host.make_file("ws/abc/theirs", "text");
        mend(host, &config, By::Purge, || host.path("cache/abc").is_dir());
        assert!(condemned(host, "ws").is_some_and(|path| path.join("deep/file").is_file()));
        assert_eq!(fs::read_to_string(&theirs).or_fail("read"), "text");
        fs::remove_dir_all(host.path("ws/abc")).or_fail("free the name");
        let finished = Reclaim::with(&config).evidence("scan").run(&["purge", "other"]);
        assert!(host.path("ws/abc/deep/file").is_file() && nothing_condemned(host), "{finished:?}");
    });
}

/// What somebody wants kept comes back, although a pass that knew nothing of that had condemned it and died.
#[test]
fn what_is_kept_is_given_back_by_a_purge_of_another_id() {
    private_host(|host| {
        let root = || Root::of(host).text("match", "^job-(?<id>[a-z]+)$").text("remove", "tree");
        let config = ConfigFile::write(host, [root()]);
        // The same root with another state directory, where no keep is known.
        let unaware = Reclaim::with(&ConfigFile::write(host, [root()])).evidence("scan");
        let [kept, stale] = ["job-kept", "job-stale"].map(|name| host.entry(name));
        let reclaim = Reclaim::with(&config).evidence("scan");
        reclaim.objects(&["keep".as_ref(), kept.as_os_str(), "--for".as_ref(), "1h".as_ref()], &[0]);
        wait_until("a pass that condemns both", Duration::from_secs(60), || {
            unaware.clone().variable("RECLAIM_TEST_CRASH", "after-condemn").run(&["sweep"]);
            (host.condemned().len() == 2).then_some(())
        });
        wait_until("the other one to be removed", Duration::from_secs(60), || {
            let finished = reclaim.run(&["purge", "other"]);
            assert!(kept.is_dir() && host.condemned().is_empty(), "{finished:?}");
            if stale.exists() {
                // Given back for a doubt.
                reclaim.run(&["sweep"]);
            }
            (!stale.exists()).then_some(())
        });
        assert!(kept.is_dir());
    });
}
