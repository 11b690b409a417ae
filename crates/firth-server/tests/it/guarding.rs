//! Who may do what: scopes and topics of tokens, rates, the audit log, TLS.

use crate::talk::call;
use crate::world::{PATIENCE, Reply, Server, firth, json, stdout};
use firth_testkit::Certs;
use nix::sys::signal::Signal;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Instant;

/// A new token and its line.
fn token(args: &[&str]) -> (String, String) {
    let made = stdout(&crate::world::run(&[&["token"], args].concat()));
    let token = made.lines().next().unwrap().split('=').nth(1).unwrap().to_owned();
    (token, made)
}

fn serve(tokens: &Path, more: &[&str]) -> Server {
    let mut command = firth();
    command.args(["serve", "--engine", "memory:", "--token-file"]).arg(tokens).args(more);
    Server::start(&mut command, None)
}

fn ask(at: SocketAddr, token: &str, method: &str, path: &str, body: &str) -> Reply {
    let bearer = format!("Authorization: Bearer {token}");
    call(at, method, path, &[&bearer, "Content-Type: application/json"], body.as_bytes())
}

#[test]
fn a_token_does_what_its_scopes_and_topics_say_and_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let (admin, all) = token(&["--name", "boss"]);
    let (producer, one) = token(&["--name", "shop", "--scopes", "produce", "--topics", "orders.*"]);
    let (consumer, two) = token(&["--name", "bar", "--scopes", "consume", "--topics", "orders.*"]);
    let (watcher, three) = token(&["--name", "eyes", "--scopes", "observe"]);
    let (file, audit) = (dir.path().join("tokens"), dir.path().join("audit"));
    std::fs::write(&file, [all, one, two, three].concat()).unwrap();
    let server = serve(&file, &["--audit-file", audit.to_str().unwrap()]);
    let at = server.address;
    for topic in ["orders.eu", "mail"] {
        ask(at, &admin, "PUT", &format!("/v1/topics/{topic}"), "{}").expect(201);
    }
    let (eu, mail, message) =
        ("/v1/topics/orders.eu", "/v1/topics/mail", r#"{"payload": "planted-payload"}"#);
    let status =
        |token: &str, method: &str, path: String, body: &str| ask(at, token, method, &path, body).status;
    assert_eq!(status(&producer, "POST", format!("{eu}/records"), message), 200);
    assert_eq!(status(&producer, "POST", format!("{mail}/records"), message), 403);
    assert_eq!(status(&producer, "GET", format!("{eu}/records"), ""), 403);
    assert_eq!(status(&producer, "POST", format!("{eu}/groups/g/fetch"), "{}"), 403);
    assert_eq!(status(&producer, "GET", eu.into(), ""), 200);
    assert_eq!(status(&producer, "GET", mail.into(), ""), 403);
    assert_eq!(status(&producer, "DELETE", eu.into(), ""), 403);
    assert_eq!(status(&consumer, "POST", format!("{eu}/groups/g/fetch"), r#"{"wait_ms": 5000}"#), 200);
    assert_eq!(status(&consumer, "GET", format!("{eu}/dead"), ""), 200);
    assert_eq!(status(&consumer, "POST", format!("{eu}/records"), message), 403);
    assert_eq!(status(&consumer, "POST", format!("{eu}/dead/replay"), r#"{"all": true}"#), 403);
    assert_eq!(status(&consumer, "POST", format!("{eu}/groups/g/reset"), "{}"), 403);
    assert_eq!(status(&watcher, "GET", "/metrics".into(), ""), 200);
    assert_eq!(status(&watcher, "GET", "/v1/events?for_ms=0".into(), ""), 200);
    assert_eq!(status(&watcher, "GET", format!("{mail}/groups"), ""), 200);
    assert_eq!(status(&watcher, "GET", format!("{mail}/records"), ""), 403);
    assert_eq!(status(&consumer, "GET", "/metrics".into(), ""), 403);
    let seen = ask(at, &consumer, "GET", "/v1/topics", "").expect(200).json();
    assert_eq!(seen["topics"].as_array().unwrap().len(), 1, "it sees topics that are not its own: {seen}");
    channels_and_claims(at, [&admin, &producer, &consumer, &watcher]);
    assert_eq!(status(&admin, "DELETE", eu.into(), ""), 204);
    let log = std::fs::read_to_string(&audit).unwrap();
    assert!(!log.contains("planted") && !log.contains("firth_"), "{log}");
    let entries: Vec<serde_json::Value> =
        log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let told = |who: &str, method: &str, status: u16| {
        let is_it = |entry: &&serde_json::Value| {
            entry["who"] == who && entry["method"] == method && entry["status"] == status
        };
        entries.iter().filter(is_it).count()
    };
    assert_eq!(
        (told("boss", "PUT", 201), told("boss", "DELETE", 204), told("shop", "DELETE", 403)),
        (2, 1, 1),
        "{log}"
    );
    let seized =
        |entry: &&serde_json::Value| entry["path"].as_str().is_some_and(|path| path.ends_with("/seize"));
    assert_eq!(entries.iter().filter(seized).count(), 2, "{log}");
    assert!(
        entries.iter().all(|entry| entry["time_ms"].as_u64() > Some(0) && entry["from"] == "127.0.0.1"),
        "{log}"
    );
}

/// Patterns hold for channels and services as for topics; work is offered by producers, done by consumers, taken away by admins.
fn channels_and_claims(at: SocketAddr, [admin, producer, consumer, watcher]: [&str; 4]) {
    let status =
        |token: &str, method: &str, path: &str, body: &str| ask(at, token, method, path, body).status;
    let message = r#"{"payload": "planted-payload"}"#;
    assert_eq!(status(producer, "POST", "/v1/channels/orders.live", message), 204);
    assert_eq!(status(producer, "POST", "/v1/channels/mail", message), 403);
    assert_eq!(status(producer, "GET", "/v1/channels/orders.live?for_ms=0", ""), 403);
    assert_eq!(status(consumer, "GET", "/v1/channels/orders.live?for_ms=0", ""), 200);
    assert_eq!(status(consumer, "GET", "/v1/channels/mail?for_ms=0", ""), 403);
    assert_eq!(status(consumer, "POST", "/v1/channels/orders.live", message), 403);
    let (offers, unit) =
        ("/v1/claims/orders.jobs/offers", r#"{"name": "unit", "payload": "planted-payload"}"#);
    assert_eq!(status(producer, "POST", offers, unit), 200);
    assert_eq!(status(producer, "POST", "/v1/claims/mail/offers", unit), 403);
    assert_eq!(status(consumer, "POST", offers, unit), 403);
    assert_eq!((status(watcher, "GET", offers, ""), status(consumer, "GET", offers, "")), (200, 200));
    let place = "/v1/claims/orders.jobs/workers/w";
    assert_eq!(status(producer, "PUT", place, "{}"), 403);
    let joined = ask(at, consumer, "PUT", place, r#"{"ttl_ms": 3600000}"#).expect(200).json();
    let take = json!({ "session": joined["session"], "name": "unit" }).to_string();
    assert_eq!(status(consumer, "POST", &format!("{place}/claim"), &take), 200);
    // A unit's data needs the right to its service and to its topic.
    let read = json!({ "session": joined["session"], "claim": "1.1" }).to_string();
    assert_eq!(status(consumer, "POST", &format!("{place}/data/orders.eu/read"), &read), 409);
    assert_eq!(status(consumer, "POST", &format!("{place}/data/mail/read"), &read), 403);
    assert_eq!(status(consumer, "POST", "/v1/claims/mail/workers/w/data/orders.eu/read", &read), 403);
    assert_eq!(status(producer, "POST", &format!("{place}/data/orders.eu/settle"), &read), 403);
    assert_eq!(status(consumer, "POST", &format!("{place}/seize"), &take), 403);
    assert_eq!(status(admin, "POST", &format!("{place}/seize"), &take), 200);
    assert_eq!(status(consumer, "POST", &format!("{offers}/unit/release"), "{}"), 403);
    assert_eq!(status(admin, "POST", &format!("{offers}/unit/release"), "{}"), 204);
    assert_eq!(status(consumer, "DELETE", &format!("{offers}/unit"), ""), 403);
    assert_eq!(status(producer, "DELETE", &format!("{offers}/unit"), ""), 204);
    let seen = ask(at, consumer, "GET", "/v1/claims", "").expect(200).json();
    assert_eq!(seen["services"], json!(["orders.jobs"]));
}

#[test]
fn tokens_are_taken_over_on_sighup() {
    let dir = tempfile::tempdir().unwrap();
    let (file, (old, first), (new, second)) = (dir.path().join("tokens"), token(&[]), token(&[]));
    std::fs::write(&file, first).unwrap();
    let server = serve(&file, &["--set", "limits.failures=100000"]);
    ask(server.address, &old, "GET", "/v1", "").expect(200);
    std::fs::write(&file, second).unwrap();
    server.signal(Signal::SIGHUP);
    let deadline = Instant::now() + PATIENCE;
    while ask(server.address, &new, "GET", "/v1", "").status != 200 {
        assert!(Instant::now() < deadline, "never taken over");
    }
    ask(server.address, &old, "GET", "/v1", "").problem(401, "unauthorized");
}

#[test]
fn too_many_requests_must_wait() {
    let server = Server::with(&["limits.rate=0.01", "limits.burst=3"]);
    for _ in 0..3 {
        server.get("/v1").expect(200);
    }
    let refused = server.get("/v1");
    let wait: u64 =
        refused.head.split("retry-after: ").nth(1).unwrap().lines().next().unwrap().parse().unwrap();
    assert!((2..=100).contains(&wait), "{wait}");
    refused.problem(429, "overloaded");
    server.get("/health/live").expect(200);
}

#[test]
fn u11_wrong_tokens_wait_and_are_told_of_and_a_valid_one_is_never_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (good, line) = token(&["--name", "boss"]);
    let (file, audit, log) = (dir.path().join("tokens"), dir.path().join("audit"), dir.path().join("log"));
    std::fs::write(&file, line).unwrap();
    let mut command = firth();
    command.args(["serve", "--engine", "memory:", "--set", "limits.failures=3", "--token-file"]);
    command.arg(&file).arg("--audit-file").arg(&audit);
    let server = Server::logging(&mut command, None, std::fs::File::create(&log).unwrap().into());
    let at = server.address;
    for _ in 0..3 {
        ask(at, "planted-guess", "GET", "/v1/topics", "").problem(401, "unauthorized");
    }
    let refused = ask(at, "planted-guess", "GET", "/v1/topics", "");
    assert_eq!((refused.status, &refused.json()["limit"]), (429, &json!(3)));
    ask(at, &good, "GET", "/v1", "").expect(200);
    ask(at, "planted-other", "GET", "/v1", "").problem(401, "unauthorized");
    ask(at, &good, "GET", "/v1", "").expect(200);
    let told = std::fs::read_to_string(&audit).unwrap();
    let lines: Vec<serde_json::Value> =
        told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 3, "as many lines as the limit says: {told}");
    for line in &lines {
        let seen = (&line["who"], &line["from"], &line["path"], &line["status"]);
        assert_eq!(seen, (&json!("unknown"), &json!("127.0.0.1"), &json!("/v1/topics"), &json!(401)));
    }
    let log = std::fs::read_to_string(&log).unwrap();
    assert!(log.contains("refused") && log.contains("127.0.0.1"), "{log}");
    assert!(!told.contains("planted") && !log.contains("planted"), "{told}{log}");
}

#[test]
fn u12_the_audit_log_shows_paths_as_they_are_meant() {
    let dir = tempfile::tempdir().unwrap();
    let audit = dir.path().join("audit");
    let mut command = firth();
    command.args(["serve", "--engine", "memory:", "--audit-file"]).arg(&audit);
    let server = Server::start(&mut command, None);
    server.put("/v1/topics/%6frders", &json!({})).expect(201);
    let told = std::fs::read_to_string(&audit).unwrap();
    assert!(told.contains("\"/v1/topics/orders\""), "{told}");
}

#[test]
fn u13_a_token_that_is_not_for_a_topic_is_told_so() {
    let dir = tempfile::tempdir().unwrap();
    let (shop, line) = token(&["--name", "shop", "--scopes", "produce", "--topics", "orders.*"]);
    let file = dir.path().join("tokens");
    std::fs::write(&file, line).unwrap();
    let server = serve(&file, &[]);
    let told = |method: &str, path: &str| {
        ask(server.address, &shop, method, path, "{}").problem(403, "unauthorized")
    };
    let other = told("POST", "/v1/topics/mail/records");
    assert!(other.contains("shop is not for mail") && other.contains("topics="), "{other}");
    let scope = told("POST", "/v1/topics/orders.eu/groups/g/fetch");
    assert!(scope.contains("lacks the scope consume"), "{scope}");
}

pub(crate) fn curl(server: &Server, ca: &Path, path: &str) -> Output {
    let url = format!("https://localhost:{}{path}", server.address.port());
    let resolve = format!("localhost:{}:127.0.0.1", server.address.port());
    let mut command = Command::new("curl");
    command
        .args(["-sS", "--fail-with-body", "--max-time", "30", "--resolve", &resolve, "--cacert"])
        .arg(ca)
        .arg(url);
    command.output().unwrap()
}

#[test]
fn https_is_served_with_a_certificate_that_can_be_replaced_while_it_runs() {
    let (dir, first, second) = (tempfile::tempdir().unwrap(), Certs::new(), Certs::new());
    let (cert, key) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
    let put = |certs: &Certs| {
        std::fs::copy(certs.server_key_path(), &key).unwrap();
        std::fs::copy(certs.server_cert_path(), &cert).unwrap();
    };
    put(&first);
    let mut command = firth();
    command.args(["serve", "--engine", "memory:", "--tls-cert"]).arg(&cert).arg("--tls-key").arg(&key);
    let server = Server::start(&mut command, None);
    assert!(curl(&server, &first.ca_path(), "/v1").status.success());
    assert!(
        !curl(&server, &second.ca_path(), "/v1").status.success(),
        "a stranger's certificate was trusted"
    );
    let plain = crate::talk::raw(server.address, b"GET /v1 HTTP/1.1\r\nHost: localhost\r\n\r\n", false);
    assert!(!plain.contains("version"), "plain HTTP was answered: {plain}");
    put(&second);
    server.signal(Signal::SIGHUP);
    let deadline = Instant::now() + PATIENCE;
    while !curl(&server, &second.ca_path(), "/v1").status.success() {
        assert!(Instant::now() < deadline, "the new certificate is not used");
    }
    assert!(server.terminate());
}
