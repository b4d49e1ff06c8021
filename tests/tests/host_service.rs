//! The service: it holds nothing up, follows events, and heeds signals and requests.

use nix::sys::signal::Signal;
use reclaim_tests::{
    Actor, ConfigFile, Host, OrFail as _, Reclaim, Request, Root, Service, private_host, query_for, verdict, verdicts,
    wait_until,
};
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

fn start(host: &Host, config: &ConfigFile) -> Service {
    let mut service = Service::start(host, config, &Reclaim::with(config));
    service.wait_for_passes(1);
    service
}

fn plain(host: &Host) -> ConfigFile {
    ConfigFile::write(host, [Root::of(host)])
}

fn is_error(answer: &Value) -> bool {
    answer.get("error").is_some() || answer["type"] == "error"
}

#[test]
fn the_first_pass_holds_nothing_up() {
    private_host(|host| {
        host.entries("stale-", 30_000);
        let pinned = host.entry("pinned");
        let (mut sandbox, point) = host.sandbox_with(&pinned);
        let config = plain(host);
        let service = Service::start(host, &config, &Reclaim::with(&config));
        let mut connection = service.connect();
        let mut answers = 0;
        let mut slowest = Duration::ZERO;
        while service.passes().is_empty() {
            let asked = Instant::now();
            let status = connection.ask(&json!({"op": "status"}));
            slowest = slowest.max(asked.elapsed());
            assert!(!is_error(&status), "{status}");
            if service.passes().is_empty() {
                answers += 1;
            }
            assert_ne!(verdict(&mut connection, &pinned), "free");
        }
        assert!(answers > 0, "status did not answer while the first pass ran; the slowest took {slowest:?}");
        eprintln!("{answers} answers during the pass, the slowest after {slowest:?}");
        assert!(pinned.is_dir());
        sandbox.still_works(&point, &pinned);
    });
}

#[test]
fn the_live_set_follows_events() {
    private_host(|host| {
        let entries = host.entries("entry-", 8);
        let config = ConfigFile::write(host, [Root::of(host).text("min_age", "1h")]);
        let service = start(host, &config);
        let mut connection = service.connect();
        for entry in &entries {
            wait_until("free", Duration::from_secs(20), || (verdict(&mut connection, entry) == "free").then_some(()));
        }
        for round in 0..5 {
            let mut sandboxes = Vec::new();
            for entry in &entries {
                sandboxes.push(host.sandbox_with(entry));
                assert_eq!(verdict(&mut connection, entry), "pinned", "at once, in round {round}");
            }
            // One lets go by itself, one dies, one hands over and dies later.
            let (mut first, point) = sandboxes.remove(0);
            first.unmount(&point);
            assert_eq!(verdict(&mut connection, &entries[0]), "free", "at once, in round {round}");
            sandboxes.remove(0).0.kill();
            wait_until("free after the end of a sandbox", Duration::from_secs(5), || {
                (verdict(&mut connection, &entries[1]) == "free").then_some(())
            });
            sandboxes[0].0.hand_over();
            assert_eq!(verdict(&mut connection, &entries[2]), "pinned");
            drop(sandboxes);
            for entry in &entries {
                wait_until("free again", Duration::from_secs(5), || {
                    (verdict(&mut connection, entry) == "free").then_some(())
                });
            }
        }
        let answer = connection.ask(&query_for(&entries));
        assert_eq!(verdicts(&answer), vec!["free"; entries.len()], "many at once");
    });
}

#[test]
fn a_bind_from_a_process_that_was_there_before_is_seen() {
    private_host(|host| {
        let entry = host.entry("entry");
        let (mut early, point) = (host.sandbox(), host.mount_point());
        let config = ConfigFile::write(host, [Root::of(host).text("min_age", "1h")]);
        let service = start(host, &config);
        let mut connection = service.connect();
        for _ in 0..20 {
            early.bind(&entry, &point);
            assert_eq!(verdict(&mut connection, &entry), "pinned");
            early.unmount(&point);
            assert_eq!(verdict(&mut connection, &entry), "free");
        }
        // In the namespace of the service itself as well.
        host.bind(&entry, &point);
        assert_eq!(verdict(&mut connection, &entry), "pinned");
        host.unmount(&point);
        assert_eq!(verdict(&mut connection, &entry), "free");
    });
}

#[test]
fn scheduled_passes_go_on() {
    private_host(|host| {
        let config = plain(host).every("1s");
        let mut service = start(host, &config);
        let (mut sandbox, point) = host.sandbox_with(&host.entry("pinned"));
        for round in 0..3 {
            let stale = host.entry(format!("stale-{round}"));
            wait_until("the next pass", Duration::from_secs(20), || (!stale.exists()).then_some(()));
        }
        let passes = service.wait_for_passes(3);
        assert!(passes.len() >= 3);
        sandbox.still_works(&point, host.root().join("pinned"));
    });
}

#[test]
fn a_signal_loads_the_configuration_again() {
    private_host(|host| {
        let other = host.make_dir("other");
        let stale_there = host.make_dir("other/stale");
        let mut config = plain(host);
        let mut service = start(host, &config);
        config.change_roots([Root::of(host), Root::at("other", &other)]);
        service.signal(Signal::SIGHUP);
        wait_until("the root that was added", Duration::from_secs(20), || {
            Reclaim::with(&config).sweep();
            (!stale_there.exists()).then_some(())
        });
        service.assert_running();

        let good = config.to_toml();
        config.write_text("[[root]]\nname = 'root'\npath = '/'\n");
        service.signal(Signal::SIGHUP);
        wait_until("the complaint", Duration::from_secs(20), || service.log().contains("path").then_some(()));
        // It goes on with what it had.
        config.write_text(&good);
        let stale = host.entry("stale");
        wait_until("a pass with the old configuration", Duration::from_secs(20), || {
            Reclaim::with(&config).sweep();
            (!stale.exists()).then_some(())
        });
        service.assert_running();
    });
}

#[test]
fn the_end_by_signal_leaves_nothing_condemned() {
    private_host(|host| {
        let pinned = host.entry("pinned");
        let (mut sandbox, point) = host.sandbox_with(&pinned);
        let config = plain(host).every("1s");
        for round in 0..6_u64 {
            host.entries(&format!("stale-{round}-"), 4_000);
            let service = Service::start_without_waiting(host, &config, &Reclaim::with(&config));
            thread::sleep(Duration::from_millis(120 + round * 70));
            let finished = service.terminate();
            assert!(finished.status.success(), "round {round}: {finished:?}");
            let left = host.condemned();
            assert!(left.is_empty(), "round {round}: {} entries stay condemned", left.len());
            assert!(pinned.is_dir());
            sandbox.still_works(&point, &pinned);
        }
        assert!(!config.socket().exists(), "the socket is taken away");
    });
}

#[test]
fn a_bad_request_gets_an_error_and_harms_nobody() {
    private_host(|host| {
        let entry = host.entry("entry");
        let (_sandbox, _point) = host.sandbox_with(&entry);
        let config = plain(host);
        let mut service = start(host, &config);
        let bad: [&[u8]; 9] = [
            b"\n",
            b"{\n",
            b"null\n",
            b"[1,2,3]\n",
            b"{\"op\":\"explode\"}\n",
            b"{\"op\":\"query\"}\n",
            b"{\"op\":\"query\",\"paths\":\"not a list\"}\n",
            b"{\"op\":\"query\",\"paths\":[1]}\n",
            b"\xff\xfe\x00garbage\n",
        ];
        for bytes in bad {
            let mut connection = service.connect();
            connection.send(bytes).or_fail("send");
            let answer = connection.receive();
            assert!(answer.as_ref().is_none_or(is_error), "{bytes:?}: {answer:?}");
            if bytes != b"\n" {
                assert!(answer.is_some(), "no answer to {bytes:?}");
            }
            service.assert_running();
        }
        let deep = format!("{}1{}\n", "[".repeat(100_000), "]".repeat(100_000));
        let huge = vec![b'x'; 64 << 20];
        for bytes in [deep.as_bytes(), &huge] {
            let mut connection = service.connect();
            // The other side may hang up before it has read all of it.
            if connection.send(bytes).and_then(|()| connection.send(b"\n")).is_ok() {
                let answer = connection.receive();
                assert!(answer.as_ref().is_none_or(is_error), "{answer:?}");
            }
            service.assert_running();
        }
        let peak = service.status_number("VmHWM");
        assert!(peak < 200 << 10, "a request of 64 MiB was kept in memory: {peak} KiB");
        // Half a request, and a peer that goes away without reading.
        let mut half = service.connect();
        half.send(b"{\"op\":").or_fail("send");
        for _ in 0..50 {
            let mut rude = service.connect();
            rude.send(b"{\"op\":\"status\"}\n{\"op\":\"status\"}\n").or_fail("send");
        }
        assert_eq!(verdict(&mut service.connect(), &entry), "pinned");
        service.assert_running();
    });
}

#[test]
fn requests_can_be_pipelined_and_are_answered_in_order() {
    private_host(|host| {
        let entries = host.entries("entry-", 50);
        let config = ConfigFile::write(host, [Root::of(host).text("min_age", "1h")]);
        let service = start(host, &config);
        let sandboxes: Vec<_> = entries.iter().step_by(2).map(|entry| host.sandbox_with(entry)).collect();
        let mut connection = service.connect();
        wait_until("free", Duration::from_secs(20), || (verdict(&mut connection, &entries[1]) == "free").then_some(()));
        let requests: String = entries.iter().map(|entry| format!("{}\n", query_for(&[entry]))).collect();
        connection.send(requests.as_bytes()).or_fail("send all requests");
        for index in 0..entries.len() {
            let answer = connection.receive().or_fail("an answer");
            let expected = if index % 2 == 0 { "pinned" } else { "free" };
            assert_eq!(verdicts(&answer), [expected], "request {index}: {answer}");
        }
        drop(sandboxes);
    });
}

/// Another user may ask about what it owns and about nothing else, and may start nothing.
#[test]
fn credentials_decide() {
    private_host(|host| {
        let (own, foreign) = (host.entry("own"), host.entry("foreign"));
        std::os::unix::fs::chown(&own, Some(1000), Some(1000)).or_fail("chown");
        let config = ConfigFile::write(host, [Root::of(host).text("min_age", "1h")]);
        let mut service = start(host, &config);
        let (_sandbox, _point) = host.sandbox_with(&own);
        let mut user = Actor::start();
        user.ask(&Request::BecomeUser(1000));
        let mut ask = |request: Value| {
            let socket = config.socket().to_path_buf();
            let answer = user.ask(&Request::AskSocket(socket.into(), request.to_string()));
            serde_json::from_str::<Value>(&answer).or_fail(format_args!("answer to {request}: {answer:?}"))
        };
        let answer = ask(query_for(&[&own]));
        assert_eq!(verdicts(&answer), ["pinned"], "{answer}");
        for request in [
            query_for(&[&foreign]),
            json!({"op": "who", "paths": [foreign.to_str()]}),
            json!({"op": "sweep"}),
            json!({"op": "pins"}),
        ] {
            let answer = ask(request.clone());
            let refused = is_error(&answer) || answer.to_string().contains("error");
            assert!(refused, "{request} of another user: {answer}");
        }
        service.assert_running();
    });
}

/// Others have their turn beside whoever asks and asks: a pass is made, and the service ends when it is told to.
#[test]
fn questions_without_end_hold_nothing_up() {
    private_host(|host| {
        let pinned = host.entry("pinned");
        let (_sandbox, _point) = host.sandbox_with(&pinned);
        let config = plain(host).every("1s");
        let line = format!("{}\n", query_for(&[&pinned]));
        let ask = || {
            // Until the service has gone.
            let Ok(mut stream) = UnixStream::connect(config.socket()) else { return 0 };
            let Ok(mut answers) = stream.try_clone().map(BufReader::new) else { return 0 };
            let mut answer = String::new();
            (0_u64..)
                .take_while(|_| {
                    answer.clear();
                    stream.write_all(line.as_bytes()).is_ok()
                        && answers.read_line(&mut answer).is_ok()
                        && answer.contains("pinned")
                })
                .count()
        };
        thread::scope(|scope| {
            // Gone before those who ask are waited for, also where this fails.
            let service = start(host, &config);
            let asking: Vec<_> = (0..24).map(|_| scope.spawn(ask)).collect();
            thread::sleep(Duration::from_millis(500));
            let stale = host.entry("stale");
            wait_until("a pass", Duration::from_secs(40), || (!stale.exists()).then_some(()));
            let finished = service.terminate();
            assert!(finished.status.success(), "{finished:?}");
            for asking in asking {
                assert!(asking.join().is_ok_and(|answers| answers > 0), "somebody was given no answer");
            }
        });
    });
}
