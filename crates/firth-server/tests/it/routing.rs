//! The router inside the server: registration, delivery, books, dead letters, explanations; by HTTP
//! and by the command line.

use crate::gateway::Events;
use crate::receiver::Receiver;
use crate::talk::call;
use crate::world::{PATIENCE, Server, Value, firth, json, run, stdout};
use firth_testkit::ports::Port;
use firth_testkit::wait::until;
use firth_testkit::{Flavor, RedisServer};
use std::path::Path;

const SEED: &str = include_str!("../../../firth-router/src/config/documented.yaml");

/// A server that routes, with the documented configuration as it stands.
pub(crate) fn router(dir: &Path, more: &[&str]) -> Server {
    router_with("FIRTH_GATEWAY_TOKEN", dir, more)
}

/// As [`router`], with the token for gateways in this variable.
fn router_with(variable: &str, dir: &Path, more: &[&str]) -> Server {
    let file = dir.join("firth.yaml");
    std::fs::write(&file, SEED).unwrap();
    let mut command = firth();
    command.args(["route", "run", "--engine", "memory:", "--config"]).arg(file).args(more);
    Server::start(command.env(variable, "shared"), None)
}

pub(crate) fn event(key: &str, document: &Value) -> Value {
    json!({ "json": { "op": "insert", "tenant": "acme", "collection": "orders", "key": key, "after": document } })
}

fn subscribe(server: &Server, id: &str, request: &Value) -> u16 {
    server.put(&format!("/v1/routing/subscriptions/acme/{id}"), request).status
}

pub(crate) fn produce(server: &Server, events: &[Value]) {
    server.post("/v1/topics/changes/records", &json!(events)).expect(200);
}

fn cli(server: &Server, args: &[&str]) -> String {
    stdout(&run(&[args, &["--server", &server.url()]].concat()))
}

fn books(server: &Server) -> Value {
    server.get("/v1/routing").expect(200).json()["partitions"][0]["books"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_the_documented_section_routes_and_its_books_balance() {
    let dir = tempfile::tempdir().unwrap();
    let receiver = Receiver::start().await;
    let server = router(dir.path(), &["--node", "n1"]);
    let alive = server.put("/v1/routing/gateways/edge", &json!({ "endpoint": receiver.endpoint() }));
    assert_eq!(alive.expect(200).json()["ttl_seconds"], 90);
    let request = json!({ "collection": "orders", "filter": "doc.total > 100", "gateway": "edge" });
    assert_eq!(subscribe(&server, "big", &request), 200);
    produce(&server, &[event("1", &json!({ "total": 7 })), event("2", &json!({ "total": 200 }))]);
    until(PATIENCE, "the event arrives", async || !receiver.documents().is_empty()).await;
    assert_eq!(receiver.documents(), [json!({ "total": 200 })]);
    assert!(receiver.tokens().iter().all(|token| token == "Bearer shared"));
    until(PATIENCE, "it is settled", async || books(&server)["delivered"] == 1).await;
    let status = server.get("/v1/routing").expect(200).json();
    assert_eq!(
        (&status["running"], &status["health"], &status["node"]),
        (&json!(true), &json!("healthy"), &json!("n1"))
    );
    assert_eq!((&status["subscriptions"], &status["gateways"]), (&json!(1), &json!(1)));
    assert_eq!(
        books(&server),
        json!({ "taken": 1, "delivered": 1, "parked": 0, "dead": 0, "gapped": 0, "in_flight": 0, "balanced": true })
    );
    assert_eq!(server.get("/health").expect(200).body, "healthy\n");
    let shown = cli(&server, &["route", "status"]);
    assert!(shown.contains("healthy: topic changes, group router, node n1 routes here"), "{shown}");
    let gateways = cli(&server, &["route", "gateways"]);
    assert!(gateways.contains("edge") && gateways.contains("ok"), "{gateways}");
    let metric = "firth_router_books{partition=\"0\",place=\"delivered\"} 1";
    until(PATIENCE, "the books are metrics", async || server.get("/metrics").body.contains(metric)).await;
    assert!(server.terminate(), "it drains and ends well");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_goes_from_a_topic_through_the_router_and_a_gateway_to_a_client() {
    let dir = tempfile::tempdir().unwrap();
    let redis = RedisServer::start(Flavor::Redis).await;
    let engine = redis.url();
    let internal = Port::reserve();
    stdout(&run(&["topic", "create", "own", "--engine", &engine]));
    let at = internal.addr().to_string();
    let args = ["gateway", "--engine", &engine, "--topic", "own", "--tenant", "acme", "--internal", &at];
    let gateway = Server::start(firth().args(args).env("FIRTH_GATEWAY_TOKEN", "shared"), None);
    let mut events = Events::open(gateway.address);
    assert_eq!((&events.next()["type"], &events.next()["type"]), (&json!("hello"), &json!("subscribed")));
    let server = router(dir.path(), &[]);
    let endpoint = format!("http://{at}");
    server.put("/v1/routing/gateways/edge", &json!({ "endpoint": endpoint })).expect(200);
    assert_eq!(subscribe(&server, "all", &json!({ "collection": "orders", "gateway": "edge" })), 200);
    produce(&server, &[event("1", &json!({ "n": 7 }))]);
    let arrived = events.next();
    assert_eq!((&arrived["type"], &arrived["event"]["after"]["n"]), (&json!("event"), &json!(7)));
    until(PATIENCE, "it is settled", async || books(&server)["delivered"] == 1).await;
}

/// No operator registers subscriptions: the gateway registers what its clients ask for, once for
/// all clients that ask for the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_registers_what_its_clients_subscribe_to_and_takes_it_away_at_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let server = router(dir.path(), &[]);
    registers(&server, &server.url(), "FIRTH_GATEWAY_TOKEN").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_registers_by_grpc_as_well() {
    let dir = tempfile::tempdir().unwrap();
    let grpc = Port::reserve();
    let server = router(dir.path(), &["--set", &format!("routing.listen={}", grpc.addr())]);
    registers(&server, &format!("grpc://{}", grpc.addr()), "FIRTH_GATEWAY_TOKEN").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn u16_the_older_variables_of_the_tokens_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let grpc = Port::reserve();
    let more = ["--set", &format!("routing.listen={}", grpc.addr())];
    let server = router_with("FIRTH_ROUTING_TOKEN", dir.path(), &more);
    registers(&server, &format!("grpc://{}", grpc.addr()), "FIRTH_TOKEN").await;
}

async fn registers(server: &Server, url: &str, variable: &str) {
    let internal = Port::reserve();
    let at = internal.addr().to_string();
    let args = ["gateway", "--router", url, "--internal", &at, "--id", "edge", "--tenant", "acme"];
    let mut command = firth();
    command.args(args).env(variable, "shared");
    if url.starts_with("grpc") {
        command.env("FIRTH_ROUTER_TOKEN", "shared");
    }
    let gateway = Server::start(&mut command, None);
    let registered = || {
        let page = server.get("/v1/routing/subscriptions?gateway=edge").expect(200).json();
        page["subscriptions"].as_array().unwrap().len()
    };
    assert_eq!(registered(), 0);
    let mut all: Vec<Events> = (0..2).map(|_| Events::open(gateway.address)).collect();
    let mut big = Events::ask(gateway.address, "collection=orders&filter=doc.n%20%3E%20100");
    for events in all.iter_mut().chain([&mut big]) {
        assert_eq!((&events.next()["type"], &events.next()["type"]), (&json!("hello"), &json!("subscribed")));
    }
    assert_eq!(registered(), 2, "those who ask for the same share one");
    produce(server, &[event("1", &json!({ "n": 7 })), event("2", &json!({ "n": 700 }))]);
    for events in &mut all {
        for n in [7, 700] {
            assert_eq!(events.next()["event"]["after"]["n"], n);
        }
    }
    assert_eq!(big.next()["event"]["after"]["n"], 700);
    until(PATIENCE, "it is settled", async || books(server)["delivered"] == 2).await;

    // A client that was away for a moment finds nothing missing: what it asked for stays
    // registered.
    let position = {
        let mut away = all.pop().unwrap();
        produce(server, &[event("3", &json!({ "n": 8 }))]);
        away.next()["at"].as_str().unwrap().to_owned()
    };
    produce(server, &[event("4", &json!({ "n": 9 }))]);
    assert_eq!(all[0].next()["event"]["after"]["n"], 8);
    assert_eq!(all[0].next()["event"]["after"]["n"], 9);
    let mut back = Events::ask(gateway.address, &format!("collection=orders&after={position}"));
    assert_eq!((&back.next()["type"], &back.next()["resumed"]), (&json!("hello"), &json!(true)));
    assert_eq!(back.next()["event"]["after"]["n"], 9);
    // A client with a new subscription cannot resume from before the gateway registered it.
    let mut other = Events::ask(gateway.address, &format!("collection=orders&document=4&after={position}"));
    assert_eq!((&other.next()["type"], &other.next()["reason"]), (&json!("hello"), &json!("too-old")));

    assert!(gateway.terminate());
    assert_eq!(server.get("/v1/routing/gateways/edge").expect(200).json()["state"], "absent");
    assert_eq!(registered(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_gateway_refuses_is_listed_with_its_reason_retried_and_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let receiver = Receiver::start().await;
    receiver.refuse(true);
    let server = router(dir.path(), &["--set", "routing.delivery.retry.initial_delay=1ms"]);
    cli(&server, &["route", "gateways", "add", "edge", &receiver.endpoint()]);
    let add = ["route", "subscriptions", "add", "acme", "all", "--collection", "orders", "--gateway", "edge"];
    assert_eq!(cli(&server, &add), "registered acme/all\n");
    produce(&server, &[event("1", &json!({ "n": 1 })), event("2", &json!({ "n": 2 }))]);
    let count = "/v1/topics/changes/dead/count?group=router";
    until(PATIENCE, "both are given up", async || server.get(count).json()["count"] == 2).await;
    let listed = cli(&server, &["route", "dead", "list", "--reason", "not today"]);
    assert!(listed.contains("gateway edge: not today"), "{listed}");
    let first = cli(&server, &["route", "dead", "--json"]);
    let first: Value = serde_json::from_str(first.lines().next().unwrap()).unwrap();
    assert_eq!(cli(&server, &["route", "dead", "delete", first["id"].as_str().unwrap()]), "1\n");
    // Letters of a group by which a parked gateway is fed are the router's, too; those of others
    // are not.
    for group in ["router.gw.far", "other"] {
        let some = server.fetch("changes", group, &json!({ "wait_ms": 5000, "max": 1 }));
        let reject = json!([{ "delivery": some[0]["delivery"], "reason": "far away" }]);
        assert_eq!(server.settle("changes", group, &json!({ "reject": reject }))["settled"], 1);
    }
    let listed = cli(&server, &["route", "dead"]);
    assert!(listed.contains("router.gw.far/0/") && !listed.contains("other/0/"), "{listed}");
    assert_eq!(listed.lines().filter(|line| line.starts_with("router")).count(), 2, "{listed}");
    assert_eq!(cli(&server, &["route", "dead", "list", "--max", "1"]).lines().count(), 2);
    let deleted = cli(&server, &["dead", "delete", "changes", "--all", "--group", "router.gw.far"]);
    assert_eq!(deleted, "deleted 1 dead letter\n");
    receiver.refuse(false);
    assert_eq!(cli(&server, &["route", "dead", "retry", "--all"]), "1\n");
    until(PATIENCE, "the other arrives", async || receiver.documents().len() == 1).await;
    until(PATIENCE, "it is counted", async || books(&server)["delivered"] == 1).await;
    assert_eq!((&books(&server)["dead"], &books(&server)["balanced"]), (&json!(2), &json!(true)));
}

/// Every server shows the books of all nodes, and their sum.
#[tokio::test(flavor = "multi_thread")]
async fn the_books_of_all_nodes_are_added_up() {
    let redis = RedisServer::start(Flavor::Redis).await;
    let receiver = Receiver::start().await;
    let node = |name: &str| {
        let mut command = firth();
        command.args(["route", "run", "--engine", &redis.url(), "--node", name]);
        Server::start(command.args(["--set", "routing.num_partitions=2"]), None)
    };
    let servers = [node("one"), node("two")];
    let status = |server: &Server| server.get("/v1/routing").expect(200).json();
    let owners = |server: &Server| {
        let status = status(server);
        let owner = |at: usize| status["partitions"][at]["owner"].as_str().map(str::to_owned);
        (owner(0), owner(1))
    };
    until(PATIENCE, "each has a partition", async || {
        let (first, second) = owners(&servers[0]);
        first.is_some() && second.is_some() && first != second
    })
    .await;
    servers[0].put("/v1/routing/gateways/edge", &json!({ "endpoint": receiver.endpoint() })).expect(200);
    assert_eq!(subscribe(&servers[0], "all", &json!({ "collection": "orders", "gateway": "edge" })), 200);
    until(PATIENCE, "both know of it", async || {
        servers.iter().all(|server| status(server)["subscriptions"] == 1)
    })
    .await;
    let events: Vec<Value> = (0..10)
        .map(|n: u32| {
            let mut event = event(&n.to_string(), &json!({ "n": n }));
            event["partition"] = json!(n % 2);
            event
        })
        .collect();
    produce(&servers[1], &events);
    for server in &servers {
        until(PATIENCE, "all books are added up", async || {
            let status = status(server);
            let books = &status["books"];
            books["delivered"] == 10 && books["in_flight"] == 0 && books["balanced"] == true
        })
        .await;
    }
    let names: Vec<_> =
        status(&servers[0])["nodes"].as_array().unwrap().iter().map(|node| node["node"].clone()).collect();
    assert_eq!(names, ["one", "two"]);
    let shown = cli(&servers[0], &["route", "status"]);
    assert!(shown.lines().any(|line| line.starts_with("all ") && line.contains(" 10 ")), "{shown}");
    let [one, two] = servers;
    assert!(tokio::task::block_in_place(|| two.terminate()));
    let nodes = status(&one)["nodes"].as_array().unwrap().len();
    assert_eq!(nodes, 1, "whoever leaves takes its books along");
}

#[test]
fn registrations_have_quotas_names_and_an_end() {
    let server = Server::start(
        firth().args(["route", "run", "--engine", "memory:", "--set", "routing.subscriptions.per_gateway=1"]),
        None,
    );
    let request = json!({ "collection": "orders", "gateway": "edge", "ttl_seconds": 60 });
    assert_eq!(subscribe(&server, "one", &request), 200);
    assert_eq!(subscribe(&server, "one", &request), 200, "replacing one's own is always allowed");
    let told = server.put("/v1/routing/subscriptions/acme/two", &request).problem(429, "overloaded");
    assert!(told.contains("routing.subscriptions.per_gateway of 1"), "{told}");
    for (wrong, field) in [
        (json!({ "gateway": "edge" }), "collection"),
        (json!({ "collection": "", "gateway": "edge" }), "collection"),
        (json!({ "collection": "c" }), "gateway"),
        (json!({ "collection": "c", "gateway": "a.b" }), "mode"),
        (json!({ "collection": "c", "gateway": "a", "filter": "doc.(" }), "filter"),
        (json!({ "collection": "c", "gateway": "a", "filter": "5" }), "filter"),
        (json!({ "collection": "c", "gateway": "a", "ttl_seconds": 5 }), "ttl_seconds"),
        (json!({ "collection": "c", "gateway": "a", "colour": 1 }), "colour"),
    ] {
        let problem = server.put("/v1/routing/subscriptions/acme/x", &wrong).expect(400).json();
        assert_eq!(problem["field"], field, "{wrong}: {problem}");
    }
    let beat = "/v1/routing/subscriptions/acme/one/heartbeat";
    assert_eq!(server.call("POST", beat, None).expect(200).json()["ttl_seconds"], 60);
    server.call("POST", "/v1/routing/subscriptions/other/one/heartbeat", None).problem(404, "not found");
    server.call("POST", "/v1/routing/gateways/edge/heartbeat", None).problem(404, "not found");
    server.put("/v1/routing/gateways/edge", &json!({ "endpoint": "ftp://x" })).problem(400, "invalid");
    server.put("/v1/routing/gateways/edge", &json!({})).expect(200);
    server.call("POST", "/v1/routing/gateways/edge/heartbeat", None).expect(200);
    let gone = server.call("DELETE", "/v1/routing/gateways/edge", None).expect(200).json();
    assert_eq!(gone["subscriptions"], 1);
    server.get("/v1/routing/subscriptions/acme/one").problem(404, "not found");
    server.call("DELETE", "/v1/routing/gateways/edge", None).problem(404, "not found");
}

/// Each quota is told by its name and its limit, on every server of the engine; what leaves makes
/// room.
#[test]
fn quotas_hold_per_gateway_per_tenant_and_in_all() {
    let mut command = firth();
    command.args(["route", "run", "--engine", "memory:"]);
    for quota in ["per_gateway=2", "per_tenant=3", "total=4"] {
        command.args(["--set", &format!("routing.subscriptions.{quota}")]);
    }
    let server = Server::start(&mut command, None);
    let add = |tenant: &str, id: &str, gateway: &str| {
        let request = json!({ "collection": "orders", "gateway": gateway });
        server.put(&format!("/v1/routing/subscriptions/{tenant}/{id}"), &request)
    };
    add("acme", "1", "east").expect(200);
    add("acme", "2", "east").expect(200);
    let told = add("acme", "3", "east").problem(429, "overloaded");
    assert!(told.contains("per_gateway of 2"), "{told}");
    add("acme", "3", "west").expect(200);
    let told = add("acme", "4", "west").problem(429, "overloaded");
    assert!(told.contains("per_tenant of 3"), "{told}");
    add("other", "1", "west").expect(200);
    let told = add("other", "2", "north").problem(429, "overloaded");
    assert!(told.contains("total of 4"), "{told}");
    server.call("DELETE", "/v1/routing/subscriptions/acme/3", None).success();
    add("other", "2", "north").expect(200);
}

/// No more requests, no more reading, the batch on its way is finished, its verdict is stored:
/// nothing comes again afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn a_router_that_is_asked_to_stop_finishes_what_is_on_its_way_and_goes_on_after_it() {
    let dir = tempfile::tempdir().unwrap();
    let receiver = Receiver::start().await;
    let start = || {
        let mut command = firth();
        command.args(["route", "run", "--engine", &crate::world::engine(dir.path())]);
        Server::start(&mut command, None)
    };
    let server = start();
    server.put("/v1/topics/changes", &json!({ "partitions": 1 })).success();
    server
        .put("/v1/routing/gateways/edge", &json!({ "endpoint": receiver.endpoint(), "ttl_seconds": 3600 }))
        .expect(200);
    let request = json!({ "collection": "orders", "gateway": "edge", "ttl_seconds": 3600 });
    assert_eq!(subscribe(&server, "all", &request), 200);
    receiver.hold(true);
    produce(&server, &[event("1", &json!({ "n": 1 }))]);
    until(PATIENCE, "the batch is on its way", async || receiver.calls() == 1).await;
    server.signal(nix::sys::signal::Signal::SIGTERM);
    let address = server.address;
    until(PATIENCE, "nobody is let in", async || std::net::TcpStream::connect(address).is_err()).await;
    receiver.hold(false);
    assert!(tokio::task::block_in_place(|| server.ended()), "it ends well");
    assert_eq!(receiver.documents(), [json!({ "n": 1 })]);
    let server = start();
    produce(&server, &[event("2", &json!({ "n": 2 }))]);
    until(PATIENCE, "the next event arrives", async || receiver.documents().len() == 2).await;
    until(PATIENCE, "it is settled", async || books(&server)["delivered"] == 1).await;
    assert_eq!(receiver.calls(), 2, "the first batch was stored as delivered, and came once");
}

#[test]
fn subscriptions_are_browsed_page_by_page_on_a_server_that_routes_nothing() {
    let server = Server::memory();
    for n in 0..5 {
        let request = json!({ "collection": "orders", "mode": "hash", "conditions": [{ "field": "n", "op": "==", "value": n }] });
        assert_eq!(subscribe(&server, &format!("s{n}"), &request), 200);
    }
    let page = server.get("/v1/routing/subscriptions?tenant=acme&max=2").expect(200).json();
    assert_eq!((&page["subscriptions"][1]["id"], &page["next"]), (&json!("s1"), &json!("acme/s1")));
    let all = cli(&server, &["route", "subscriptions", "list", "--tenant", "acme", "--json"]);
    assert_eq!(all.lines().count(), 5);
    assert_eq!(cli(&server, &["route", "subscriptions", "list", "--tenant", "other", "--json"]), "");
    assert_eq!(cli(&server, &["route", "subscriptions", "remove", "acme", "s3"]), "removed acme/s3\n");
    assert!(cli(&server, &["route", "status"]).contains("no node runs in this server"));
}

#[test]
fn an_explanation_says_who_gets_an_event_and_why_another_does_not() {
    let server = Server::memory();
    let big = json!({ "collection": "orders", "filter": "doc.total > 100 && doc.state == \"paid\"", "gateway": "g" });
    assert_eq!(
        (
            subscribe(&server, "big", &big),
            subscribe(&server, "all", &json!({ "collection": "orders", "gateway": "g" }))
        ),
        (200, 200)
    );
    let event = r#"{"op":"insert","tenant":"acme","collection":"orders","key":"1","after":{"total":200,"state":"new"}}"#;
    let told = cli(&server, &["route", "explain", event, "--subscription", "big"]);
    for part in [
        "1 subscriptions match",
        "acme/all gets it; it goes to g",
        "acme/big does not get it",
        "doc.total > 100: true",
        "doc.state == \"paid\": false",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    let json: Value = serde_json::from_str(&cli(&server, &["route", "explain", event, "--json"])).unwrap();
    assert_eq!((&json["matches"], &json["subscriptions"][0]["id"]), (&json!(1), &json!("all")));
    let refused = run(&["route", "explain", "{}", "--server", &server.url()]);
    assert_eq!(refused.status.code(), Some(2));
    let unknown = run(&["route", "explain", event, "--subscription", "none", "--server", &server.url()]);
    assert_eq!(unknown.status.code(), Some(3));
}

#[test]
fn a_token_for_routing_registers_and_no_more_and_changes_are_audited() {
    let dir = tempfile::tempdir().unwrap();
    let made = |args: &[&str]| {
        let made = stdout(&run(&[&["token"], args].concat()));
        (made.lines().next().unwrap().split('=').nth(1).unwrap().to_owned(), made)
    };
    let (gateway, one) = made(&["--name", "edge", "--scopes", "route"]);
    let (watcher, two) = made(&["--name", "eyes", "--scopes", "observe"]);
    let file = dir.path().join("tokens");
    let audit = dir.path().join("audit");
    std::fs::write(&file, [one, two].concat()).unwrap();
    let mut command = firth();
    command.args(["serve", "--engine", "memory:", "--token-file"]).arg(&file).arg("--audit-file").arg(&audit);
    let server = Server::start(&mut command, None);
    let ask = |token: &str, method: &str, path: &str| {
        let head = format!("Authorization: Bearer {token}");
        call(server.address, method, path, &[&head, "Content-Type: application/json"], b"{}").status
    };
    assert_eq!(ask(&gateway, "PUT", "/v1/routing/gateways/g"), 200);
    assert_eq!(ask(&gateway, "POST", "/v1/routing/gateways/g/heartbeat"), 200);
    assert_eq!(ask(&gateway, "PUT", "/v1/topics/t"), 403);
    assert_eq!(ask(&watcher, "GET", "/v1/routing"), 200);
    assert_eq!(ask(&watcher, "GET", "/v1/routing/subscriptions"), 403, "filters hold values");
    assert_eq!(ask(&watcher, "DELETE", "/v1/routing/gateways/g"), 403);
    assert_eq!(ask(&gateway, "DELETE", "/v1/routing/gateways/g"), 200);
    let log = std::fs::read_to_string(audit).unwrap();
    assert_eq!(log.lines().filter(|line| line.contains("/v1/routing/gateways/g")).count(), 3, "{log}");
    assert!(!log.contains("heartbeat") && log.contains("\"eyes\"") && log.contains("403"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rte_a_subscription_has_the_configured_mode_unless_it_names_a_gateway() {
    let receiver = Receiver::start().await;
    let args = ["route", "run", "--engine", "memory:", "--set", "routing.mode=consistent_hash"];
    let server = Server::start(firth().args(args), None);
    server.put("/v1/routing/gateways/edge", &json!({ "endpoint": receiver.endpoint() })).expect(200);
    assert_eq!(subscribe(&server, "spread", &json!({ "collection": "orders" })), 200);
    assert_eq!(subscribe(&server, "direct", &json!({ "collection": "others", "gateway": "edge" })), 200);
    let mode = |id: &str| {
        server.get(&format!("/v1/routing/subscriptions/acme/{id}")).expect(200).json()["mode"].clone()
    };
    assert_eq!((mode("spread"), mode("direct")), (json!("hash"), json!("direct")));
    produce(&server, &[event("1", &json!({ "n": 7 }))]);
    until(PATIENCE, "its owner gets the event", async || receiver.documents() == [json!({ "n": 7 })]).await;
}

/// The value of a series.
fn metric(text: &str, series: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
    line.parse().ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn rte_the_metrics_of_the_router_say_what_happened() {
    let dir = tempfile::tempdir().unwrap();
    let receiver = Receiver::start().await;
    let server = router(dir.path(), &[]);
    server.put("/v1/routing/gateways/edge", &json!({ "endpoint": receiver.endpoint() })).expect(200);
    let request = json!({ "collection": "orders", "filter": "doc.total > 100", "gateway": "edge" });
    assert_eq!(subscribe(&server, "big", &request), 200);
    let small = event("1", &json!({ "total": 7 }));
    produce(&server, &[small.clone(), small, event("2", &json!({ "total": 200 }))]);
    let expected = [
        ("firth_router_events_total{wanted=\"yes\"}", 1.0),
        ("firth_router_events_total{wanted=\"no\"}", 2.0),
        ("firth_router_released_total{fate=\"delivered\"}", 1.0),
        ("firth_router_batches_total{result=\"answered\"}", 1.0),
        ("firth_router_batch_events_total{result=\"answered\"}", 1.0),
        ("firth_router_queue_events{gateway=\"edge\"}", 0.0),
        ("firth_router_pressure{gateway=\"edge\"}", 0.0),
        ("firth_router_pressure_events_total{gateway=\"edge\",level=\"hard\"}", 0.0),
        ("firth_router_parked_partitions{gateway=\"edge\"}", 0.0),
        ("firth_router_parked_gateways", 0.0),
        ("firth_router_subscriptions", 1.0),
        ("firth_router_gateways", 1.0),
        ("firth_router_running", 1.0),
        ("firth_router_health{partition=\"0\"}", 0.0),
        ("firth_router_lag_records{partition=\"0\"}", 0.0),
        ("firth_router_books{partition=\"0\",place=\"taken\"}", 1.0),
        ("firth_router_books{partition=\"0\",place=\"delivered\"}", 1.0),
    ];
    let mut wrong = Vec::new();
    let told = std::time::Instant::now() + PATIENCE;
    while std::time::Instant::now() < told {
        let text = server.get("/metrics").expect(200).body;
        let is = |(series, _): &&(&str, f64)| metric(&text, series);
        wrong = expected.iter().filter(|one| is(one) != Some(one.1)).map(|one| (one, is(&one))).collect();
        if wrong.is_empty() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    panic!("{wrong:?}");
}
