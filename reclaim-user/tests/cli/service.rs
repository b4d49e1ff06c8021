//! The service, its socket and its signals.

use crate::support::{Connection, Place, Service, finish};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

fn query(path: &Path) -> Value {
    json!({"op": "query", "paths": [path]})
}

fn wait_until(what: &str, mut is: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < Duration::from_secs(120), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn first_pass(place: &Place) {
    wait_until("the first pass", || fs::read_to_string(place.path("out")).is_ok_and(|out| out.contains("\"pass\"")));
}

#[test]
fn the_first_pass_sweeps_and_what_is_pinned_stays() {
    let place = Place::new();
    let (stale, live) = (place.entry("stale"), place.entry("live"));
    let _pinned = place.pin(&live);
    let service = place.start();
    first_pass(&place);
    assert!(!stale.exists() && live.is_dir());
    let out = fs::read_to_string(place.path("out")).expect("output");
    let objects: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).expect("json")).collect();
    assert!(objects.iter().any(|object| object["type"] == "entry" && object["verdict"] == "removed"), "{out}");

    let mut connection = service.connect();
    let answer = connection.ask(&query(&live));
    assert_eq!(answer["results"][0]["verdict"], "pinned", "{answer}");
    let answer = connection.ask(&json!({"op": "who", "paths": [live]}));
    assert_eq!(answer["results"][0]["pins"][0]["role"], "source", "{answer}");
    let answer = connection.ask(&json!({"op": "pins"}));
    assert_eq!(answer["results"][0]["entry"], "live", "{answer}");
    let status = connection.ask(&json!({"op": "status"}));
    assert_eq!((&status["type"], &status["totals"]["removed"]), (&"status".into(), &1.into()), "{status}");
    for op in ["keep", "unkeep"] {
        let answer = connection.ask(&json!({"op": op}));
        assert!(answer["error"].as_str().is_some_and(|said| said.contains("missing field `path`")), "{answer}");
    }

    // A sweep goes through the service, and so does its verdict.
    let again = place.entry("again");
    let (code, objects) = place.objects(&["-v", "sweep"]);
    assert_eq!((code, again.exists()), (0, false));
    assert!(objects.iter().any(|object| object["type"] == "entry" && object["name"] == "again"), "{objects:?}");
    let (code, out, _) = place.run(&["status"]);
    assert!(code == 0 && out.contains("last pass    r: 2 entries; 1 removed; 1 kept (pinned 1)"), "{out}");
    assert!(service.end().success());
    assert!(!place.socket().exists(), "the socket goes with the service");
}

#[test]
fn nothing_that_a_peer_sends_takes_the_service_down() {
    let place = Place::new();
    let live = place.entry("live");
    let _pinned = place.pin(&live);
    let mut service = place.start();
    let mut connection = service.connect();
    for bad in
        [&b"\n"[..], b"garbage\n", b"null\n", b"[]\n", b"{\"op\":\"fly\"}\n", b"{\"op\":\"query\"}\n", b"\xff\xfe\0\n"]
    {
        connection.send(bad).expect("sent");
        let answer = connection.receive().expect("an answer");
        assert!(answer["error"].is_string(), "{bad:?}: {answer}");
    }
    let answer = connection.ask(&query(&live));
    assert_eq!(answer["results"][0]["verdict"], "pinned", "the connection goes on after a bad request");
    let answer = connection.ask(&json!({"op": "query", "paths": ["relative", {"hex": "zz"}, "/no/such", live]}));
    let results = answer["results"].as_array().expect("results");
    assert_eq!(results.len(), 4, "one for each path: {answer}");
    assert!(results[..3].iter().all(|result| result["error"].is_string()), "{answer}");

    let mut long = service.connect();
    long.send(&vec![b'x'; 2 << 20]).expect("it is read");
    let answer = long.receive().expect("an answer");
    assert!(answer["error"].as_str().is_some_and(|said| said.contains("longer than")), "{answer}");
    assert_eq!(long.receive(), None, "and then the connection ends");

    for _ in 0..100 {
        let mut rude = service.connect();
        rude.send(b"{\"op\":\"status\"}\n{\"op\":").expect("sent");
    }
    assert!(service.is_up());
    assert_eq!(service.connect().ask(&query(&live))["results"][0]["verdict"], "pinned");
}

#[test]
fn a_thousand_pipelined_queries_are_answered_in_order() {
    let place = Place::new();
    place.configure("min_age = \"1h\"");
    let (live, free) = (place.entry("live"), place.entry("free"));
    let _pinned = place.pin(&live);
    let service = place.start();
    let connection = service.connect();
    let requests: String =
        (0..1_000).map(|at| format!("{}\n", query(if at % 3 == 0 { &live } else { &free }))).collect();
    let mut connection = connection;
    let begun = Instant::now();
    connection.send(requests.as_bytes()).expect("sent");
    for at in 0..1_000 {
        let answer = connection.receive().expect("an answer");
        let expected = if at % 3 == 0 { "pinned" } else { "free" };
        assert_eq!(answer["results"][0]["verdict"], expected, "{at}: {answer}");
    }
    eprintln!("1,000 pipelined queries took {:?}", begun.elapsed());
}

#[test]
fn another_user_learns_about_its_own_only() {
    let place = Place::new();
    place.configure("min_age = \"1h\"");
    fs::set_permissions(place.path(""), fs::Permissions::from_mode(0o755)).expect("a mode");
    let (own, foreign) = (place.entry("own"), place.entry("foreign"));
    std::os::unix::fs::chown(&own, Some(1000), Some(1000)).expect("chown");
    std::os::unix::fs::symlink(&foreign, place.root().join("link")).expect("a link");
    std::os::unix::fs::lchown(place.root().join("link"), Some(1000), Some(1000)).expect("chown");
    let _pinned = place.pin(&own);
    let service = place.start();
    // This very program, where the other user gets to it: a process of its own, for a socket tells who connected it.
    let program = place.path("peer");
    fs::copy(std::env::current_exe().expect("a name"), &program).expect("a copy");
    let ask = |request: &Value| -> Value {
        let mut command = Command::new(&program);
        command.args(["--exact", "service::ask_as_somebody_else", "--ignored", "--nocapture"]).uid(1000).gid(1000);
        command.env("PEER_SOCKET", place.socket()).env("PEER_REQUEST", request.to_string()).current_dir("/");
        let (code, out, err) = finish(&mut command);
        assert_eq!(code, 0, "{err}");
        let answer = out.lines().find_map(|line| line.split_once("answer: ")).expect("an answer").1;
        serde_json::from_str(answer).expect("json")
    };
    assert_eq!(ask(&query(&own))["results"][0]["verdict"], "pinned");
    assert_eq!(ask(&json!({"op": "who", "paths": [own]}))["results"][0]["pinned"], true);
    let refused = ask(&query(&foreign));
    let absent = ask(&query(&place.root().join("absent")));
    assert!(refused["results"][0]["error"].is_string(), "{refused}");
    assert_eq!(refused["results"][0]["error"], absent["results"][0]["error"], "not even whether it is there");
    let link = ask(&query(&place.root().join("link")));
    assert_ne!(link["results"][0]["verdict"], "pinned", "the link itself is asked about: {link}");
    for request in [json!({"op": "sweep"}), json!({"op": "pins"}), json!({"op": "status"})] {
        let answer = ask(&request);
        assert!(answer["error"].as_str().is_some_and(|said| said.contains("only root")), "{request}: {answer}");
    }
    assert!(foreign.is_dir());
    drop(service);
}

/// Run by the test above as another user.
#[test]
#[ignore = "the other half of a test"]
fn ask_as_somebody_else() {
    let socket = std::env::var_os("PEER_SOCKET").expect("the socket");
    let request = std::env::var("PEER_REQUEST").expect("the request");
    let mut connection = Connection::open(Path::new(&socket));
    connection.send(format!("{request}\n").as_bytes()).expect("sent");
    println!("answer: {}", connection.receive().expect("an answer"));
}

#[test]
fn one_service_holds_a_socket_and_what_a_dead_one_left_is_replaced() {
    let place = Place::new();
    let mut service = place.start();
    let (code, _, err) = place.run(&["run"]);
    assert!(code == 5 && err.contains("another service holds"), "{code} {err}");
    assert!(service.is_up());
    assert!(service.connect().ask(&json!({"op": "status"}))["type"] == "status");
    service.signal(Signal::SIGKILL);
    drop(service);
    assert!(place.socket().exists(), "a killed service leaves its socket");
    // The path still answers nobody, so waiting for a connection shows that it was replaced.
    let service: Service = place.start();
    assert!(Connection::open(&place.socket()).ask(&json!({"op": "status"}))["pid"] == service.pid());
    assert!(service.end().success());
    fs::write(place.socket(), "a file").expect("a file in the way");
    let (code, _, err) = place.run(&["run"]);
    assert!(code == 2 && err.contains("is no socket"), "{code} {err}");
    assert_eq!(fs::read_to_string(place.socket()).expect("still there"), "a file");
}

#[test]
fn a_signal_reads_the_configuration_again_and_a_bad_one_changes_nothing() {
    let place = Place::new();
    place.configure("min_age = \"1h\"");
    let stale = place.entry("stale");
    let mut service = place.start();
    first_pass(&place);
    place.configure("min_age = \"soon\"");
    service.signal(Signal::SIGHUP);
    wait_until("the refusal", || place.log().contains("the old one stays in use"));
    assert!(place.log().contains("`root.min_age`"), "{}", place.log());
    assert!(service.is_up() && stale.is_dir());
    place.configure("min_age = \"0s\"");
    service.signal(Signal::SIGHUP);
    wait_until("the reload", || place.log().contains("the configuration was read again"));
    let answer = service.connect().ask(&json!({"op": "sweep"}));
    assert_eq!(answer["results"][0]["removed"], 1, "{answer}");
    assert!(!stale.exists());
}

#[test]
fn metrics_are_served_where_they_are_configured() {
    let place = Place::new();
    let probe = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = probe.local_addr().expect("its address");
    drop(probe);
    let text = fs::read_to_string(place.path("reclaim.toml")).expect("the configuration");
    place.write_config(&text.replace("[service]\n", &format!("[service]\nmetrics = \"{address}\"\n")));
    place.entry("stale");
    let _service = place.start();
    first_pass(&place);
    let get = |request: &str| {
        let mut stream = std::net::TcpStream::connect(address).expect("it listens");
        stream.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    };
    let answer = get("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("# EOF\n"), "{answer}");
    assert!(answer.contains("\nreclaim_removed_total 1\n"), "{answer}");
    assert!(get("GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
    assert!(get("POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
}

#[test]
fn an_idle_service_does_not_spin() {
    let place = Place::new();
    let service = place.start();
    first_pass(&place);
    std::thread::sleep(Duration::from_millis(500));
    let used = || {
        let text = fs::read_to_string(format!("/proc/{}/stat", service.pid())).expect("it runs");
        let fields: Vec<&str> = text.rsplit(')').next().expect("fields").split_whitespace().collect();
        fields[11].parse::<u64>().expect("a number") + fields[12].parse::<u64>().expect("a number")
    };
    let before = used();
    std::thread::sleep(Duration::from_secs(2));
    // Other tests make mounts meanwhile, of which the ring tells: a tenth of the time is far from spinning.
    let ticks = used() - before;
    assert!(ticks < 60, "{ticks} ticks of processor time in two seconds");
}
