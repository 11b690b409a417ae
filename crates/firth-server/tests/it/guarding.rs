//! Who may do what: scopes and topics of tokens, rates, the audit log, TLS.

use crate::talk::call;
use crate::world::{PATIENCE, Reply, Server, firth, json, stdout};
use firth_router::deliver::Bearer;
use firth_router::registry::{Gateway, RegistryClient};
use firth_router::{ErrorKind as Kind, GatewayId};
use firth_testkit::Certs;
use firth_testkit::ports::Port;
use nix::sys::signal::Signal;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// A new token and its line.
pub(crate) fn token(args: &[&str]) -> (String, String) {
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
    let file = dir.path().join("tokens");
    let audit = dir.path().join("audit");
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

/// Patterns hold for channels and services as for topics; work is offered by producers, done by
/// consumers, taken away by admins.
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
    let file = dir.path().join("tokens");
    let (old, first) = token(&[]);
    let (new, second) = token(&[]);
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
    let file = dir.path().join("tokens");
    let audit = dir.path().join("audit");
    let log = dir.path().join("log");
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
    let dir = tempfile::tempdir().unwrap();
    let first = Certs::new();
    let second = Certs::new();
    let cert = dir.path().join("cert.pem");
    let key = dir.path().join("key.pem");
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

#[tokio::test(flavor = "multi_thread")]
async fn r17_the_grpc_address_takes_the_servers_tokens_with_their_limits() {
    let dir = tempfile::tempdir().unwrap();
    let grpc = Port::reserve();
    let (edge, one) = token(&["--scopes", "route", "--gateways", "edge-*"]);
    let (shop, two) = token(&["--scopes", "produce"]);
    let file = dir.path().join("tokens");
    std::fs::write(&file, [one, two].concat()).unwrap();
    let _server = serve(&file, &["--set", &format!("routing.listen={}", grpc.addr())]);
    let client = |token: &str| {
        let bearer = (!token.is_empty()).then(|| Bearer::new(token));
        RegistryClient::new(format!("http://{}", grpc.addr()), bearer).unwrap()
    };
    let gateway = |id: &str| Gateway::new(GatewayId::new(id).unwrap(), "http://127.0.0.1:1");
    client(&edge).register_gateway(&gateway("edge-1")).await.unwrap();
    let refused = client(&edge).register_gateway(&gateway("core")).await.unwrap_err();
    assert!(refused.context().contains("gateways="), "{refused:?}");
    for token in ["", "wrong", &shop] {
        client(token).register_gateway(&gateway("edge-1")).await.unwrap_err();
    }
}

/// A server with these tokens whose registry is at this port, and gRPC clients for it.
struct Registrars {
    grpc: Port,
    server: Server,
}

impl Registrars {
    fn serve(tokens: &Path, more: &[&str], variables: &[(&str, &str)]) -> Self {
        let grpc = Port::reserve();
        let mut command = firth();
        command.args(["serve", "--engine", "memory:", "--token-file"]).arg(tokens).args(more);
        command.args(["--set", &format!("routing.listen={}", grpc.addr())]);
        let server = Server::start(command.envs(variables.iter().copied()), None);
        Self { grpc, server }
    }

    async fn register(&self, token: &str, id: &str) -> firth_router::Result<Duration> {
        let client = self.client(token);
        client.register_gateway(&Gateway::new(GatewayId::new(id).unwrap(), "http://127.0.0.1:1")).await
    }

    fn client(&self, token: &str) -> RegistryClient {
        RegistryClient::new(format!("http://{}", self.grpc.addr()), Some(Bearer::new(token))).unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn r17_the_delivery_token_registers_nothing_beside_tokens_with_limits() {
    let dir = tempfile::tempdir().unwrap();
    let (edge, line) = token(&["--scopes", "route", "--gateways", "edge-*"]);
    let (shop, other) = token(&["--scopes", "produce"]);
    let file = dir.path().join("tokens");
    std::fs::write(&file, [line, other].concat()).unwrap();
    let registrars = Registrars::serve(&file, &[], &[("FIRTH_GATEWAY_TOKEN", "shared")]);
    registrars.register("shared", "core").await.unwrap_err();
    registrars.register(&edge, "edge-1").await.unwrap();
    drop(registrars);
    // A listed token keeps its limits, also where it is the router's token.
    for (own, refused) in [(&edge, "gateways="), (&shop, "lacks the scope route")] {
        let registrars = Registrars::serve(&file, &[], &[("FIRTH_ROUTER_TOKEN", own)]);
        let error = registrars.register(own, "core").await.unwrap_err();
        assert!(error.kind() == Kind::Forbidden && error.context().contains(refused), "{error:?}");
    }
    let registrars = Registrars::serve(&file, &[], &[("FIRTH_ROUTER_TOKEN", "own")]);
    registrars.register("own", "core").await.unwrap();
}

#[test]
fn r17_a_token_for_some_tenants_names_its_gateways() {
    let dir = tempfile::tempdir().unwrap();
    let refused = crate::world::run(&["token", "--scopes", "route", "--tenants", "acme"]);
    let told = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && told.contains("add gateways="), "{told}");
    let (_, line) = token(&["--scopes", "route", "--gateways", "edge-*", "--tenants", "acme"]);
    let file = dir.path().join("tokens");
    std::fs::write(&file, line.replace(" gateways=edge-*", "")).unwrap();
    let mut command = firth();
    command.args(["serve", "--engine", "memory:", "--listen", "127.0.0.1:0", "--token-file"]).arg(&file);
    let refused = command.output().unwrap();
    let told = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && told.contains("line ") && told.contains("gateways="), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn r17_calls_over_grpc_are_audited_with_name_peer_and_status() {
    let dir = tempfile::tempdir().unwrap();
    let (edge, line) = token(&["--name", "edge", "--scopes", "route", "--gateways", "edge-*"]);
    let file = dir.path().join("tokens");
    let audit = dir.path().join("audit");
    std::fs::write(&file, line).unwrap();
    let more = ["--audit-file", audit.to_str().unwrap(), "--set", "limits.failures=3"];
    let registrars = Registrars::serve(&file, &more, &[]);
    registrars.register(&edge, "edge-1").await.unwrap();
    registrars.client(&edge).heartbeat_gateway(&GatewayId::new("edge-1").unwrap()).await.unwrap();
    registrars.register(&edge, "core").await.unwrap_err();
    registrars.client(&edge).unregister_gateway(&GatewayId::new("edge-1").unwrap()).await.unwrap();
    for n in 0..5 {
        let refused = registrars.register("planted-guess", "edge-1").await.unwrap_err();
        assert_eq!(refused.context().contains("too often"), n >= 3, "{n}: {refused}");
    }
    registrars.register(&edge, "edge-2").await.expect("a valid token is never refused");
    assert!(registrars.server.terminate());
    let log = std::fs::read_to_string(&audit).unwrap();
    assert!(!log.contains("planted") && !log.contains(&edge), "{log}");
    let told = log.lines().map(|line| {
        let entry: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!((&entry["from"], &entry["method"]), (&json!("127.0.0.1"), &json!("GRPC")), "{log}");
        let text = |field: &str| entry[field].as_str().unwrap().replace("/RegistryService/", "");
        format!("{} {} {}", text("who"), text("path"), entry["status"])
    });
    let wanted = [
        "edge RegisterGateway/edge-1 200",
        "edge RegisterGateway/core 403",
        "edge UnregisterGateway/edge-1 200",
        "unknown RegisterGateway 401",
        "unknown RegisterGateway 401",
        "unknown RegisterGateway 401",
        "edge RegisterGateway/edge-2 200",
    ];
    assert_eq!(told.collect::<Vec<_>>(), wanted);
}

#[tokio::test(flavor = "multi_thread")]
async fn r17_calls_over_grpc_and_http_share_one_rate() {
    let dir = tempfile::tempdir().unwrap();
    let (edge, line) = token(&["--name", "edge", "--scopes", "route"]);
    let file = dir.path().join("tokens");
    std::fs::write(&file, line).unwrap();
    let more = ["--set", "limits.rate=0.001", "--set", "limits.burst=3"];
    let registrars = Registrars::serve(&file, &more, &[]);
    let at = registrars.server.address;
    let put = || ask(at, &edge, "PUT", "/v1/routing/gateways/edge-1", "{}").status;
    assert_eq!((put(), put()), (200, 200));
    registrars.register(&edge, "edge-1").await.unwrap();
    let refused = registrars.register(&edge, "edge-1").await.unwrap_err();
    assert!(refused.kind() == Kind::Unavailable && refused.context().contains("wait"), "{refused:?}");
    assert_eq!(put(), 429);
}

#[test]
fn r17_a_route_token_registers_its_own_gateways_and_tenants_only() {
    let dir = tempfile::tempdir().unwrap();
    let (admin, all) = token(&["--name", "boss"]);
    let limits = ["--scopes", "route", "--gateways", "edge-*", "--tenants", "acme,acme-*"];
    let (edge, one) = token(&[&["--name", "edge"], &limits[..]].concat());
    let file = dir.path().join("tokens");
    std::fs::write(&file, [all, one].concat()).unwrap();
    let server = serve(&file, &[]);
    let at = server.address;
    let gateway = |token: &str, method: &str, id: &str, rest: &str| {
        ask(at, token, method, &format!("/v1/routing/gateways/{id}{rest}"), "{}").status
    };
    let request = |token: &str, method: &str, name: &str, body: &str| {
        ask(at, token, method, &format!("/v1/routing/subscriptions/{name}"), body)
    };
    let (mine, theirs) =
        (r#"{"collection": "c", "gateway": "edge-1"}"#, r#"{"collection": "c", "gateway": "core"}"#);
    assert_eq!((gateway(&admin, "PUT", "core", ""), gateway(&edge, "PUT", "edge-1", "")), (200, 200));
    for (method, rest) in [("PUT", ""), ("POST", "/heartbeat"), ("DELETE", "")] {
        assert_eq!(gateway(&edge, method, "core", rest), 403, "{method}");
    }
    assert_eq!(gateway(&edge, "POST", "edge-1", "/heartbeat"), 200);
    request(&admin, "PUT", "acme/theirs", theirs).expect(200);
    request(&edge, "PUT", "acme/s", mine).expect(200);
    request(&edge, "PUT", "acme-2/s", mine).expect(200);
    let broadcast = r#"{"collection": "c", "mode": "broadcast"}"#;
    for (method, name, body) in [
        ("PUT", "other/s", mine),
        ("PUT", "acme/s", theirs),
        ("PUT", "acme/b", broadcast),
        ("PUT", "acme/theirs", mine),
        ("POST", "acme/theirs/heartbeat", ""),
        ("DELETE", "acme/theirs", ""),
        ("DELETE", "other/s", ""),
        ("GET", "other/s", ""),
    ] {
        let refused = request(&edge, method, name, body).expect(403).body;
        assert!(refused.contains("token"), "{method} {name}: {refused}");
    }
    let list = |query: &str| ask(at, &edge, "GET", &format!("/v1/routing/subscriptions{query}"), "").status;
    assert_eq!((list(""), list("?tenant=other"), list("?tenant=acme")), (403, 403, 200));
    let event = |tenant: &str| json!({ "event": { "op": "insert", "tenant": tenant, "collection": "c", "key": "k", "after": {} } });
    let explain =
        |tenant: &str| ask(at, &edge, "POST", "/v1/routing/explain", &event(tenant).to_string()).status;
    assert_eq!((explain("other"), explain("acme")), (403, 200));
    assert_eq!(request(&edge, "DELETE", "acme/s", "").status, 204);
    assert_eq!((gateway(&edge, "DELETE", "edge-1", ""), gateway(&admin, "DELETE", "core", "")), (200, 200));
}
