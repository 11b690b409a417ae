//! The process: restarts, signals, guards, health and metrics.

use crate::world::{Server, firth, json, run};
use nix::sys::signal::Signal;
use std::time::{Duration, Instant};

const FETCH: &str = "/v1/topics/jobs/groups/workers/fetch";

#[test]
fn what_was_answered_survives_a_restart_and_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::on(dir.path());
    server.topic("orders", &["one"]);
    assert!(server.terminate());
    let server = Server::on(dir.path());
    server.post("/v1/topics/orders/records", &json!({ "payload": "two" })).expect(200);
    server.kill();
    let server = Server::on(dir.path());
    assert_eq!(server.get("/v1/topics/orders").json()["records"], 2);
    let mut seen = Vec::new();
    while seen.len() < 2 {
        let some = server.fetch("orders", "g", &json!({ "max": 2, "wait_ms": 5000 }));
        for one in some {
            server.settle("orders", "g", &json!({ "ack": [one["delivery"]] }));
            seen.push(one["record"]["payload"].as_str().unwrap().to_owned());
        }
    }
    seen.sort();
    assert_eq!(seen, ["one", "two"]);
    assert!(server.terminate());
}

#[test]
fn a_signal_ends_waiting_fetches_and_gives_unsettled_records_back_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::on(dir.path());
    server.topic("jobs", &["work"]);
    server.fetch("jobs", "workers", &json!({ "wait_ms": 5000, "lease_ms": 3_600_000 }));
    let started = Instant::now();
    let reply = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| server.post(FETCH, &json!({ "wait_ms": 30_000 })));
        server.fetches_running(1);
        server.signal(Signal::SIGINT);
        waiting.join().unwrap()
    });
    assert_eq!(reply.expect(200).json()["deliveries"], json!([]));
    assert!(server.ended());
    assert!(started.elapsed() < Duration::from_secs(20), "draining waited for the lease");
    let server = Server::on(dir.path());
    let again = server.fetch("jobs", "workers", &json!({ "wait_ms": 5000 }));
    assert_eq!(again[0]["record"]["attempt"], 1, "the server's end cost an attempt");
}

#[test]
fn a_client_that_hangs_up_takes_nothing_with_it() {
    let server = Server::memory();
    server.topic("jobs", &[]);
    let gone = server.send("POST", FETCH, &json!({ "wait_ms": 30_000, "lease_ms": 3_600_000 }));
    server.fetches_running(1);
    drop(gone);
    server.fetches_running(0);
    server.post("/v1/topics/jobs/records", &json!({ "payload": "work" })).expect(200);
    let some = server.fetch("jobs", "workers", &json!({ "wait_ms": 5000 }));
    assert_eq!(some[0]["record"]["attempt"], 1);
}

#[test]
fn only_whoever_has_a_token_gets_through() {
    let dir = tempfile::tempdir().unwrap();
    let made = String::from_utf8(run(&["token"]).stdout).unwrap();
    let token = made.lines().next().unwrap().split('=').nth(1).unwrap().to_owned();
    let file = dir.path().join("tokens");
    std::fs::write(&file, &made).unwrap();
    let mut command = firth();
    command.args(["serve", "--engine", "memory:", "--token-file"]).arg(&file);
    let mut server = Server::start(&mut command, None);
    server.get("/v1/topics").problem(401, "unauthorized");
    server.get("/metrics").problem(401, "unauthorized");
    server.get("/health/live").expect(200);
    server.token = Some("wrong".to_owned());
    server.get("/v1/topics").problem(401, "unauthorized");
    server.token = Some(token);
    server.get("/v1/topics").expect(200);
}

#[test]
fn a_reachable_address_without_a_token_is_refused_with_what_to_do() {
    let output = run(&["serve", "--engine", "memory:", "--listen", "0.0.0.0:0"]);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("--token-file") && errors.contains("firth token"), "{errors}");
}

#[test]
fn web_pages_are_refused_without_tokens() {
    let server = Server::memory();
    let ask =
        |headers: &str| server.raw(&format!("GET /v1/topics HTTP/1.1\r\n{headers}Connection: close\r\n\r\n"));
    ask("Host: localhost\r\n").expect(200);
    ask("Host: localhost\r\nOrigin: http://evil.example\r\n").problem(403, "unauthorized");
    ask("Host: evil.example\r\n").problem(403, "unauthorized");
}

#[test]
fn health_and_metrics_tell_what_happens() {
    let server = Server::memory();
    server.get("/health/live").expect(200);
    server.get("/health/ready").expect(200);
    server.topic("t", &["a", "b"]);
    let metrics = server.get("/metrics").expect(200).body;
    assert!(metrics.contains("firth_produced_total{topic=\"t\",result=\"ok\"} 2"), "{metrics}");
    let counted =
        "firth_http_requests_total{method=\"POST\",route=\"/v1/topics/{topic}/records\",status=\"200\"} 2";
    assert!(metrics.contains(counted), "{metrics}");
}
