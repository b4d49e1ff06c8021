//! Case 9: gaps in the stream of events. Loss is counted and shown, and nothing is freed on what was seen before it.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use reclaim_tests::{
    Background, ConfigFile, Host, OrFail as _, Reclaim, Root, Service, private_host, query_for, verdict, verdicts,
    wait_until,
};
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Stdio;
use std::thread;
use std::time::Duration;

/// More than any ring takes.
const STORM: u64 = 50_000;

fn number(status: &Value, key: &str) -> u64 {
    status[key].as_u64().or_fail(format_args!("{key} as a number in {status}"))
}

fn ask_status(reclaim: &Reclaim) -> Value {
    let (mut objects, _) = reclaim.objects(&["status"], &[0]);
    objects.pop().or_fail("a status")
}

#[track_caller]
fn expect_agreement(reclaim: &Reclaim) {
    let objects = wait_until("an audit that agrees", Duration::from_secs(30), || {
        let (objects, code) = reclaim.objects(&["audit"], &[0, 3, 4]);
        (code == 0).then_some(objects)
    });
    let end = objects.last().or_fail("the end of an audit");
    assert_eq!((&end["agree"], &end["differences"]), (&json!(true), &json!(0)), "{objects:?}");
}

/// Nobody reads the ring while one sandbox binds and unmounts, another one binds an entry and a third one dies.
fn stopped_in_a_storm(host: &Host, evidence: &'static str) {
    let [early, entry, ended, elsewhere] = ["early", "entry", "ended", "elsewhere"].map(|name| host.entry(name));
    let (mut before, before_point) = host.sandbox_with(&early);
    let (gone, _) = host.sandbox_with(&ended);
    // One that is known already, so that its bind is all that there is to see of it.
    let (mut sandbox, point) = (host.sandbox(), host.mount_point());
    let address = free_address();
    let config = ConfigFile::write(host, [Root::of(host).text("min_age", "1h")]).metrics(address);
    let reclaim = Reclaim::with(&config).evidence(evidence);
    let mut service = Service::start(host, &config, &reclaim);
    service.wait_for_passes(1);
    let mut connection = service.connect();
    wait_until("the first evidence", Duration::from_secs(20), || {
        (verdict(&mut connection, &entry) == "free").then_some(())
    });
    for pinned in [&early, &ended] {
        assert_eq!(verdict(&mut connection, pinned), "pinned");
    }
    let at_first = ask_status(&reclaim);
    // Another reclaim that comes or goes makes fexit miss a return now and then, which counts as lost.
    let lost_before = number(&at_first, "lost");
    let baselines = number(&at_first, "baselines");

    service.signal(Signal::SIGSTOP);
    let noise = Background::bind_rounds(&elsewhere, &host.mount_point(), STORM);
    noise.wait(Duration::from_secs(120)).expect_clean("binds while nobody looks");
    sandbox.bind(&entry, &point);
    gone.kill();
    service.signal(Signal::SIGCONT);

    // Nobody has asked about an entry yet, so no fresh evidence is taken: the claim is lowered as soon as loss is known.
    let status = wait_until("the loss to be shown", Duration::from_secs(20), || {
        let status = ask_status(&reclaim);
        (number(&status, "lost") > lost_before).then_some(status)
    });
    let lost = number(&status, "lost");
    assert_eq!(number(&status, "baselines"), baselines, "{status}");
    assert!(number(&status["gaps"], "events-lost") > 0 && status["complete"] == false, "{status}");
    let metrics = metrics(address);
    let shown = metrics.lines().find_map(|line| line.strip_prefix("reclaim_lost_total "));
    let shown: u64 = shown.or_fail("the loss in the metrics").parse().or_fail("read a number");
    assert!(shown >= lost && metrics.contains("\nreclaim_evidence_complete 0\n"), "{metrics}");

    // Every answer comes with what the service says of its evidence right behind it.
    let both = format!("{}\n{}\n", query_for(&[&early, &entry, &ended]), json!({"op": "status"}));
    for _ in 0..30 {
        connection.send(both.as_bytes()).or_fail("send");
        let told = verdicts(&connection.receive().or_fail("an answer"));
        let status = connection.receive().or_fail("an answer");
        let [early, entry, ended] = told.as_slice() else { panic!("three verdicts: {told:?}") };
        assert_eq!(early, "pinned", "it was bound before the service began: {status}");
        assert_ne!(entry, "free", "it was bound while nobody looked: {status}");
        let fresh = number(&status, "baselines") > baselines;
        assert!(fresh || ended != "free", "it was freed without fresh evidence: {status}");
        let told_incomplete = status["gaps"].get("events-lost").is_some();
        assert!(!told_incomplete || status["complete"] == false, "a loss does not lower the claim: {status}");
        assert!(number(&status, "lost") >= lost, "a loss is forgotten: {status}");
    }
    wait_until("fresh evidence", Duration::from_secs(30), || {
        (verdict(&mut connection, &entry) == "pinned" && verdict(&mut connection, &ended) == "free").then_some(())
    });
    expect_agreement(&reclaim);
    before.still_works(&before_point, &early);
    sandbox.still_works(&point, &entry);
    service.assert_running();
}

#[test]
fn a_gap_frees_nothing_before_fresh_evidence() {
    private_host(|host| stopped_in_a_storm(host, "auto"));
}

/// Without a walk that would show what the live set missed.
#[test]
fn a_gap_frees_nothing_before_fresh_evidence_on_the_live_set_alone() {
    private_host(|host| stopped_in_a_storm(host, "live"));
}

fn free_address() -> SocketAddr {
    let probe = TcpListener::bind("127.0.0.1:0").or_fail("a port of 127.0.0.1; is the loopback interface up?");
    probe.local_addr().or_fail("the address of a port")
}

fn metrics(address: SocketAddr) -> String {
    let mut stream = TcpStream::connect(address).or_fail("connect to where metrics are served");
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").or_fail("ask for metrics");
    let mut text = String::new();
    stream.read_to_string(&mut text).or_fail("read metrics");
    text
}

#[test]
fn kills_in_a_storm_and_a_fresh_start_are_right_again() {
    private_host(|host| {
        let entries = host.entries("live-", 10);
        let stale = host.entries("stale-", 50);
        let sandboxes: Vec<_> = entries.iter().map(|entry| host.sandbox_with(entry)).collect();
        let noise = Background::bind_loop(&host.make_dir("root/full/noise"), &host.mount_point());
        let config = ConfigFile::write(host, [Root::of(host)]);
        let reclaim = Reclaim::with(&config);
        for round in 0..4 {
            let service = Service::start_without_waiting(host, &config, &reclaim);
            thread::sleep(Duration::from_millis(100 + round * 150));
            service.kill();
        }
        // And one that is killed while it is stopped, with all that the kernel has kept for it.
        let service = Service::start(host, &config, &reclaim);
        service.signal(Signal::SIGSTOP);
        thread::sleep(Duration::from_millis(300));
        service.kill();

        let mut service = Service::start(host, &config, &reclaim);
        service.wait_for_passes(1);
        wait_until("the stale ones to go", Duration::from_secs(40), || {
            reclaim.sweep();
            stale.iter().all(|entry| !entry.exists()).then_some(())
        });
        let mut connection = service.connect();
        for entry in &entries {
            assert_eq!(verdict(&mut connection, entry), "pinned");
        }
        noise.stop().expect_clean("bind and unmount");
        expect_agreement(&reclaim);
        for (entry, (mut sandbox, point)) in entries.iter().zip(sandboxes) {
            sandbox.still_works(point, entry);
        }
        assert!(host.condemned().is_empty());
    });
}

/// A watch is no decision, and what the live set believes in after a gap is not there for ever all the same.
#[test]
fn a_watching_audit_agrees_again_after_a_gap() {
    private_host(|host| {
        let [entry, elsewhere] = ["entry", "elsewhere"].map(|name| host.entry(name));
        let (mut sandbox, point) = host.sandbox_with(&entry);
        let config = ConfigFile::write(host, [Root::of(host).text("min_age", "1h")]);
        let mut command = Reclaim::with(&config).command(&["--json", "audit", "--watch"]);
        let mut watch = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().or_fail("start a watch");
        let pid = Pid::from_raw(i32::try_from(watch.id()).or_fail("a pid"));
        let mut lines = BufReader::new(watch.stdout.take().or_fail("its output")).lines();
        let mut next = || loop {
            let line = lines.next().or_fail("the next audit").or_fail("read");
            let object: Value = serde_json::from_str(&line).or_fail("a line of JSON");
            if object["type"] == "audit" {
                return object;
            }
        };
        let first = next();
        assert_eq!(first["agree"], json!(true), "{first}");
        kill(pid, Signal::SIGSTOP).or_fail("stop it");
        let noise = Background::bind_rounds(&elsewhere, &host.mount_point(), STORM);
        noise.wait(Duration::from_secs(120)).expect_clean("binds while nobody looks");
        sandbox.unmount(&point);
        kill(pid, Signal::SIGCONT).or_fail("let it go on");
        // The first may have begun before the gap.
        let told: Vec<Value> = (0..3).map(|_| next()).collect();
        kill(pid, Signal::SIGKILL).or_fail("kill it");
        watch.wait().or_fail("wait");
        assert_eq!(told[2]["agree"], json!(true), "{told:#?}");
    });
}
