//! Which function of the code takes which step of the model. A function that goes by another name breaks this table.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// A step, and what it stands for: a file of the workspace, and functions in it.
type Row = (&'static str, &'static [(&'static str, &'static [&'static str])]);

const LOCK: &str = "reclaim-user/src/removal/lock.rs";
const PASS: &str = "reclaim-user/src/removal/pass.rs";
const LIST: &str = "reclaim-user/src/removal/list.rs";
const CONDEMN: &str = "reclaim-user/src/removal/condemn.rs";
const CONFIRM: &str = "reclaim-user/src/removal/confirm.rs";
const CLOCK: &str = "reclaim-user/src/evidence/clock.rs";
const ENGINE: &str = "reclaim-user/src/evidence/engine/mod.rs";
const SETTLE: &str = "reclaim-user/src/evidence/engine/settle.rs";
const ENGINE_CONFIRM: &str = "reclaim-user/src/evidence/engine/confirm.rs";
const FINISH: &str = "reclaim-user/src/removal/finish.rs";
const PROGRAMS: &str = "reclaim-ebpf/src/clock.rs";

const STEPS: &[Row] = &[
    ("mount: enter", &[(PROGRAMS, &["enter"])]),
    ("mount: counted in", &[(PROGRAMS, &["enter"])]),
    ("mount: leave", &[(PROGRAMS, &["leave", "count_left"])]),
    ("Store::open_existing", &[(PASS, &["run"]), (LOCK, &["open_existing"])]),
    ("Store::open", &[(LIST, &["go"]), (LOCK, &["open"])]),
    ("lock", &[("reclaim-user/src/sys/directory.rs", &["lock"])]),
    ("leads_to", &[(LOCK, &["leads_to"])]),
    ("Store::lock_root", &[(LIST, &["lock_root"]), (LOCK, &["lock_root"])]),
    ("Store::close", &[(LOCK, &["close"])]),
    ("leftovers", &[("reclaim-user/src/removal/leftover.rs", &["leftovers"])]),
    ("makeshift_leftover", &[(LIST, &["makeshift_leftover"])]),
    (
        "examine",
        &[
            (LIST, &["decide", "judge", "look", "feed"]),
            ("reclaim-user/src/removal/ahead.rs", &["work"]),
            ("reclaim-user/src/removal/examine.rs", &["examine"]),
        ],
    ),
    ("condemn", &[(CONDEMN, &["condemn", "moved", "is_compared", "begin_batch", "makeshift_batch"])]),
    (
        "conclude",
        &[
            (PASS, &["conclude", "wait"]),
            (ENGINE, &["settle"]),
            (SETTLE, &["settle_by_clock"]),
            (CLOCK, &["wait", "generations_to_watch"]),
        ],
    ),
    ("is_empty", &[(CLOCK, &["is_empty"])]),
    ("look_again", &[("reclaim-user/src/evidence/stragglers.rs", &["look", "look_again"])]),
    ("settle_by_time", &[(SETTLE, &["settle_by_time"])]),
    ("go_on", &[(CLOCK, &["go_on"]), ("reclaim-user/src/evidence/stragglers.rs", &["inside"])]),
    ("walk", &[(ENGINE_CONFIRM, &["confirm_mounts"]), ("reclaim-user/src/evidence/engine/walked.rs", &["walk"])]),
    (
        "refer",
        &[
            (ENGINE, &["confirm"]),
            (ENGINE_CONFIRM, &["refer"]),
            ("reclaim-user/src/evidence/references/mod.rs", &["find"]),
        ],
    ),
    (
        "count",
        &[
            (ENGINE_CONFIRM, &["confirm_by_looks", "count"]),
            ("reclaim-user/src/evidence/references/count.rs", &["count"]),
            ("reclaim-ebpf/src/reference_count.rs", &["reference_count", "seal"]),
        ],
    ),
    (
        "prove",
        &[
            (PASS, &["prove"]),
            (CONDEMN, &["place", "is_unchanged"]),
            (CONFIRM, &["prove", "is_pinned"]),
            (FINISH, &["over"]),
        ],
    ),
    (
        "confirm",
        &[(CONFIRM, &["confirm"]), ("reclaim-user/src/removal/examine.rs", &["examine", "would_find_the_same"])],
    ),
    ("remove", &[("reclaim-user/src/removal/remove.rs", &["remove"])]),
    (
        "restore",
        &[(PASS, &["take", "give_back", "give_back_denied"]), ("reclaim-user/src/removal/restore.rs", &["restore"])],
    ),
    ("end", &[(FINISH, &["go_on", "end"]), ("reclaim-user/src/removal/ahead.rs", &["take_on", "go_on"])]),
    ("finish", &[(PASS, &["finish", "help", "collect", "take_all"])]),
    ("crash", &[("reclaim-user/src/removal/crash.rs", &["step"])]),
];

/// Steps that others take, or the kernel for them.
const OTHERS: &[&str] = &[
    "mkdir",
    "rename",
    "exchange",
    "open: look the path up",
    "open: into the table",
    "open through the mount",
    "close",
    "mount: look the source up",
    "mount: attach",
    "umount",
    "SIGKILL",
];

/// Makes sure that the steps that are taken are those of the table, and that the code has each function of it.
pub(crate) fn check(taken: &BTreeSet<&'static str>) {
    let known: BTreeSet<&str> = STEPS.iter().map(|(step, _)| *step).chain(OTHERS.iter().copied()).collect();
    let strange: Vec<_> = taken.symmetric_difference(&known).collect();
    assert!(strange.is_empty(), "steps that are not in the table, or are in it and never taken: {strange:?}");
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the workspace");
    for (step, places) in STEPS {
        for (file, functions) in *places {
            let source = fs::read_to_string(workspace.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
            for function in *functions {
                let is_there =
                    [format!("fn {function}("), format!("fn {function}<")].iter().any(|text| source.contains(text));
                assert!(
                    is_there,
                    "{file} has no function `{function}`, which the step `{step}` of the model stands for"
                );
            }
        }
    }
}
