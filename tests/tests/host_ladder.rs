//! The ladder of the probes, through the built binary: each rung by leaving out those above it.

use reclaim_tests::{ConfigFile, Host, OrFail as _, Reclaim, Root, private_host};
use serde_json::Value;

const RUNGS: [(&str, &str); 4] = [
    ("fentry", "fentry"),
    ("kprobe", "kprobe"),
    ("syscall tracepoint", "tracepoint"),
    ("every-syscall tracepoint", "every-syscall"),
];

/// What a check says of the probes on system calls, with rungs left out.
fn probes(host: &Host, disabled: &str) -> Vec<Value> {
    let config = ConfigFile::write(host, [Root::of(host)]);
    let reclaim = Reclaim::with(&config).variable("RECLAIM_TEST_DISABLE", disabled);
    let (objects, _) = reclaim.objects(&["check"], &[0]);
    let calls = |object: &Value| object["type"] == "probe" && object["rung"] != "scheduler tracepoint";
    objects.into_iter().filter(calls).collect()
}

#[test]
fn a_check_tells_the_rung_in_use_and_what_speaks_against_those_above() {
    private_host(|host| {
        for above in 0..RUNGS.len() {
            let disabled: Vec<&str> = RUNGS[..above].iter().map(|&(_, name)| name).collect();
            let calls = probes(host, &disabled.join(","));
            assert_eq!(calls.len(), 13, "{calls:?}");
            for call in calls {
                let rung = call["rung"].as_str().or_fail("a rung");
                let at = RUNGS.iter().position(|&(name, _)| name == rung).or_fail(format_args!("{rung} is known"));
                assert!(at >= above, "{rung} is left out: {call}");
                let blind_to = call["blind_to"].as_str().or_fail("what it does not see");
                let may_be_left_out = ["kprobe", "syscall tracepoint"].contains(&rung);
                assert_eq!(blind_to.contains("while bpf(2) is interrupted"), may_be_left_out, "{call}");
                assert_eq!(blind_to.contains("32-bit callers"), rung.ends_with("tracepoint"), "{call}");
                let passed = call["passed"].as_array().cloned().unwrap_or_default();
                assert_eq!(passed.len(), at, "{call}");
                for (index, passed) in passed.iter().enumerate() {
                    assert_eq!(passed["rung"], RUNGS[index].0, "{call}");
                    let why = passed["why"].as_str().or_fail("a reason");
                    let test = why == "refused: RECLAIM_TEST_DISABLE names it";
                    assert_eq!(test, index < above, "{call}");
                    assert!(why.starts_with("refused: ") || why.starts_with("absent: "), "{call}");
                }
            }
        }
    });
}

#[test]
fn a_check_tells_how_commands_listen_too() {
    private_host(|host| {
        let config = ConfigFile::write(host, [Root::of(host)]);
        let (objects, _) = Reclaim::with(&config).objects(&["check"], &[0]);
        let commands: Vec<&Value> = objects.iter().filter(|object| object["type"] == "commands").collect();
        let [commands] = commands[..] else { panic!("{commands:?}") };
        assert_eq!(commands["rung"], "every-syscall tracepoint", "{commands}");
        assert!(commands["blind_to"].as_str().is_some_and(|blind| blind.starts_with("32-bit callers")), "{commands}");
    });
}

#[test]
fn a_rung_that_does_not_answer_is_passed_and_named() {
    private_host(|host| {
        for call in probes(host, "fentry,kprobe,tracepoint-answer") {
            if call["state"] == "attached" {
                assert_eq!(call["rung"], "every-syscall tracepoint", "{call}");
                let why = call["passed"][2]["why"].as_str().or_fail("a reason");
                assert!(why.starts_with("not to be relied on: "), "{call}");
            }
        }
    });
}

#[test]
fn people_are_told_every_reason_whether_a_rung_is_left_or_not() {
    private_host(|host| {
        let config = ConfigFile::write(host, [Root::of(host)]);
        let check = |disabled| Reclaim::with(&config).variable("RECLAIM_TEST_DISABLE", disabled).run(&["check"]).stdout;
        let text = check("fentry,kprobe");
        let ladder = text.lines().find(|line| line.starts_with("ladder\t")).or_fail(format_args!("a ladder in {text}"));
        assert!(ladder.contains("fentry: refused: ") && ladder.contains("kprobe: refused: "), "{ladder}");
        assert!(ladder.ends_with("; in use: syscall tracepoint"), "{ladder}");
        let text = check("fentry,kprobe,tracepoint,every-syscall");
        let none = text.lines().find(|line| line.starts_with("probes\tnone\t")).or_fail(format_args!("none in {text}"));
        for (rung, _) in RUNGS {
            assert!(none.contains(&format!("{rung}: refused: RECLAIM_TEST_DISABLE names it")), "{none}");
        }
    });
}

#[test]
fn a_sweep_does_its_work_by_each_rung() {
    private_host(|host| {
        for above in 0..=RUNGS.len() {
            let disabled: Vec<&str> = RUNGS[..above].iter().map(|&(_, name)| name).collect();
            let config = ConfigFile::write(host, [Root::of(host)]);
            let reclaim = Reclaim::with(&config).variable("RECLAIM_TEST_DISABLE", disabled.join(","));
            let (pinned, stale) = (host.entry(format!("pinned-{above}")), host.entry(format!("stale-{above}")));
            let _sandbox = host.sandbox_with(&pinned);
            let passes = reclaim.sweep();
            assert_eq!(passes.len(), 1);
            assert!(pinned.is_dir() && !stale.exists(), "without {disabled:?}: {passes:?}");
        }
    });
}
