//! Several `firth gateway --router` beside one another, and their internal addresses.

use crate::gateway::Events;
use crate::routing::{event, produce, router};
use crate::world::{PATIENCE, Server, Value, firth, json, run, stdout};
use firth_testkit::ports::Port;
use firth_testkit::wait::until;
use firth_testkit::{Certs, Flavor, RedisServer};
use std::path::Path;
use std::process::Command;

/// A gateway behind the router, with an internal address of its own.
fn gateway(router: &str, internal: &Port, more: &[&str]) -> Server {
    let at = internal.addr().to_string();
    let mut command = firth();
    command.args(["gateway", "--router", router, "--internal", &at, "--tenant", "acme"]).args(more);
    command.env("FIRTH_GATEWAY_TOKEN", "shared").env("FIRTH_ROUTER_TOKEN", "shared");
    Server::start(&mut command, None)
}

/// A client that is subscribed to orders.
fn subscribed(gateway: &Server) -> Events {
    let mut events = Events::open(gateway.address);
    assert_eq!((&events.next()["type"], &events.next()["type"]), (&json!("hello"), &json!("subscribed")));
    events
}

fn number(event: &Value) -> &Value {
    &event["event"]["after"]["n"]
}

#[test]
fn r02_gateways_without_a_name_stand_side_by_side() {
    let dir = tempfile::tempdir().unwrap();
    let ports = [Port::reserve(), Port::reserve()];
    let server = router(dir.path(), &[]);
    let gateways = ports.each_ref().map(|port| gateway(&server.url(), port, &[]));
    let mut clients = gateways.each_ref().map(subscribed);
    produce(&server, &[event("1", &json!({ "n": 7 }))]);
    for client in &mut clients {
        assert_eq!(number(&client.next()), 7);
    }
    for gateway in gateways {
        assert!(gateway.terminate());
    }
}

#[test]
fn u03_a_gateway_without_tokens_answers_to_its_own_names_alone() {
    let dir = tempfile::tempdir().unwrap();
    let port = Port::reserve();
    let server = router(dir.path(), &[]);
    let gateway = gateway(&server.url(), &port, &["--host", "edge.test"]);
    let ask = |host: &str| {
        let headers = format!("host: {host}\r\norigin: http://{host}\r\nconnection: close\r\n\r\n");
        gateway.raw(&format!("GET /v1/events HTTP/1.1\r\n{headers}"))
    };
    let refused = ask("evil.com:7272");
    assert!(refused.status == 403 && refused.body.contains("--host"), "{}", refused.body);
    // Those come in, and are told what is missing.
    for own in [&*gateway.address.to_string(), "edge.test:7272", "localhost:7272"] {
        assert_eq!(ask(own).status, 400, "{own}");
    }
    assert!(gateway.terminate());
}

fn the_newest_holds_the_name(server: &Server, url: &str) {
    let ports = [Port::reserve(), Port::reserve()];
    let first = gateway(url, &ports[0], &["--id", "edge"]);
    let mut old = subscribed(&first);
    let second = gateway(url, &ports[1], &["--id", "edge"]);
    let mut new = subscribed(&second);
    let bye = old.next();
    assert_eq!((&bye["type"], &bye["code"]), (&json!("bye"), &json!(1012)), "its clients hear of it");
    assert!(!first.ended(), "and it ends with an error");
    produce(server, &[event("1", &json!({ "n": 7 }))]);
    assert_eq!(number(&new.next()), 7, "the successor goes on");
    assert!(second.terminate());
    // The node forgets the lane of a gateway that is gone a moment later.
    let left = server.get("/v1/routing/gateways/edge");
    if left.status != 404 {
        let shown = left.expect(200).json();
        let nothing = (&json!("absent"), &json!(0));
        assert_eq!((&shown["state"], &shown["subscriptions"]), nothing, "and leaves nothing behind");
    }
}

#[test]
fn r02_an_older_gateway_of_the_same_name_ends_and_leaves_the_newer_alone() {
    let dir = tempfile::tempdir().unwrap();
    let server = router(dir.path(), &[]);
    the_newest_holds_the_name(&server, &server.url());
}

#[test]
fn r02_the_same_over_grpc() {
    let dir = tempfile::tempdir().unwrap();
    let grpc = Port::reserve();
    let server = router(dir.path(), &["--set", &format!("routing.listen={}", grpc.addr())]);
    the_newest_holds_the_name(&server, &format!("grpc://{}", grpc.addr()));
}

#[test]
fn r20_a_batch_for_another_gateway_is_not_taken() {
    let dir = tempfile::tempdir().unwrap();
    let port = Port::reserve();
    let server = router(dir.path(), &[]);
    let gateway = gateway(&server.url(), &port, &["--id", "edge"]);
    let mut client = subscribed(&gateway);
    let url = format!("http://{}/internal/v1/streamer/events", port.addr());
    let post = |to: &str, n: u64| {
        let event = json!({"seq": n, "partition_id": 0, "epoch": 1, "event_type": "insert", "tenant": "acme",
            "collection": "orders", "document_id": "1", "subscriptions": [{"id": "s"}], "payload": {"n": n}});
        let body = json!({"gateway_id": to, "events": [event]}).to_string();
        let mut command = Command::new("curl");
        command.args(["-sS", "--max-time", "30", "-o", "/dev/null", "-w", "%{http_code}", "-d", &body]);
        let output = command.args(["-H", "authorization: Bearer shared", &url]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!((post("other", 1), post("edge", 2)), ("421".to_owned(), "200".to_owned()));
    assert_eq!(number(&client.next()), 2);
    assert!(gateway.terminate());
}

#[test]
fn r17_the_internal_address_speaks_https_with_routers() {
    let dir = tempfile::tempdir().unwrap();
    let certs = Certs::new();
    let port = Port::reserve();
    let trusted = format!("routing.delivery.tls.ca_file={}", certs.ca_path().display());
    let server = router(dir.path(), &["--set", &trusted]);
    let endpoint = format!("https://localhost:{}", port.addr().port());
    let cert = certs.server_cert_path();
    let key = certs.server_key_path();
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let more = ["--internal-cert", &path(&cert), "--internal-key", &path(&key), "--endpoint", &endpoint];
    let gateway = gateway(&server.url(), &port, &more);
    let mut client = subscribed(&gateway);
    produce(&server, &[event("1", &json!({ "n": 7 }))]);
    assert_eq!(number(&client.next()), 7);
    let ask = |url: String| {
        let mut command = Command::new("curl");
        command.args(["-sS", "--max-time", "30", "--cacert"]).arg(certs.ca_path()).arg(url).output().unwrap()
    };
    assert!(ask(format!("{endpoint}/metrics")).status.success());
    assert!(!ask(format!("http://localhost:{}/metrics", port.addr().port())).status.success());
    assert!(gateway.terminate());
}

/// A gateway that registers with this token, for these clients.
fn limited(router: &str, internal: &Port, token: &str, [id, tenant]: [&str; 2]) -> Command {
    let at = internal.addr().to_string();
    let mut command = firth();
    command.args(["gateway", "--router", router, "--internal", &at, "--id", id, "--tenant", tenant]);
    command.env("FIRTH_GATEWAY_TOKEN", "shared").env("FIRTH_ROUTER_TOKEN", token);
    command
}

#[test]
fn r17_what_the_router_does_not_allow_is_refused_and_no_client_is_told_to_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let grpc = Port::reserve();
    let internal = Port::reserve();
    let limits = ["--scopes", "route", "--gateways", "edge-*", "--tenants", "acme"];
    let made = stdout(&run(&[&["token", "--name", "edge"], &limits[..]].concat()));
    let token = made.lines().next().unwrap().split('=').nth(1).unwrap();
    let file = dir.path().join("tokens");
    std::fs::write(&file, &made).unwrap();
    let listen = format!("routing.listen={}", grpc.addr());
    let mut command = firth();
    command.args(["serve", "--engine", "memory:", "--set", &listen, "--token-file"]).arg(&file);
    let server = Server::start(command.env("FIRTH_GATEWAY_TOKEN", "shared"), None);
    for url in [server.url(), format!("grpc://{}", grpc.addr())] {
        // Of another tenant: this subscription is refused, and the gateway goes on.
        let gateway = Server::start(&mut limited(&url, &internal, token, ["edge-1", "other"]), None);
        for _ in 0..2 {
            let refused = gateway.get("/v1/events?collection=orders").expect(403);
            assert!(refused.body.contains("forbidden") && refused.body.contains("tenant"), "{refused:?}");
        }
        assert!(gateway.terminate());
        let gateway = Server::start(&mut limited(&url, &internal, token, ["edge-1", "acme"]), None);
        subscribed(&gateway);
        assert!(gateway.terminate());
        // Another gateway: it ends at once and says why.
        let mut core = limited(&url, &internal, token, ["core", "acme"]);
        let ended = core.args(["--listen", "127.0.0.1:0"]).output().unwrap();
        let told = String::from_utf8(ended.stderr).unwrap();
        assert!(!ended.status.success() && told.contains("see gateways= on its line"), "{url}: {told}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_metrics_of_a_gateway_say_what_it_does() {
    let redis = RedisServer::start(Flavor::Redis).await;
    let port = Port::reserve();
    let engine = redis.url();
    let at = port.addr().to_string();
    stdout(&run(&["topic", "create", "changes", "--engine", &engine]));
    let args = ["gateway", "--engine", &engine, "--topic", "changes", "--tenant", "acme", "--internal", &at];
    let gateway = Server::start(firth().args(args), None);
    let mut client = subscribed(&gateway);
    for payload in
        [r#"{"op":"insert","tenant":"acme","collection":"orders","key":"1","after":{"n":7}}"#, "no event"]
    {
        stdout(&run(&["produce", "changes", payload, "--engine", &engine]));
    }
    assert_eq!(number(&client.next()), 7);
    let mut stranger = Events::ask(gateway.address, "collection=orders&after=0000000000000001:1");
    assert_eq!(
        (&stranger.next()["type"], &stranger.next()["type"]),
        (&json!("hello"), &json!("resync-required"))
    );
    let refused =
        Command::new("curl").args(["-sS", &format!("{}/v1/events", gateway.url())]).output().unwrap();
    assert!(String::from_utf8_lossy(&refused.stdout).contains("invalid"));
    let wanted = [
        "firth_edge_connections 2",
        "firth_edge_subscriptions 2",
        "firth_edge_sockets 2",
        "firth_edge_matched_total 1",
        "firth_edge_events_total{result=\"sent\"} 1",
        "firth_edge_events_total{result=\"gap_marked\"} 0",
        "firth_edge_events_total{result=\"conflated\"} 0",
        "firth_edge_events_total{result=\"left_behind\"} 0",
        "firth_edge_queued_events 0",
        "firth_edge_fed_total{result=\"ok\"} 1",
        "firth_edge_fed_total{result=\"unreadable\"} 1",
        "firth_edge_refused_total{code=\"invalid\"} 1",
        "firth_edge_resyncs_total{reason=\"unknown-epoch\"} 1",
    ];
    let mut missing = Vec::new();
    let all_there = async || {
        let answer = Command::new("curl").args(["-sS", &format!("http://{at}/metrics")]).output().unwrap();
        let text = String::from_utf8(answer.stdout).unwrap();
        let is_missing = |line: &&&str| !text.lines().any(|shown| shown == **line);
        missing = wanted.iter().filter(is_missing).map(ToString::to_string).collect();
        missing.is_empty()
    };
    if tokio::time::timeout(PATIENCE, until(2 * PATIENCE, "all metrics", all_there)).await.is_err() {
        panic!("{missing:?}");
    }
    drop((client, stranger));
    assert!(gateway.terminate());
}
