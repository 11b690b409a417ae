//! What operators look at: records by text and filter, deliveries of other processes, takeovers of
//! claims.

use crate::gateway::Events;
use crate::on_engines;
use crate::world::{PATIENCE, Server, Value, firth, json, run, side_by_side, stdout};
use firth_testkit::wait::until;
use firth_testkit::{Flavor, RedisServer};
use std::process::Stdio;

fn ids(found: &Value) -> Vec<String> {
    let records = found["records"].as_array().unwrap();
    records.iter().map(|record| record["json"]["order"].to_string()).collect()
}

#[test]
fn records_are_found_by_text_and_by_filter_page_by_page() {
    let server = Server::memory();
    server.put("/v1/topics/orders", &json!({ "partitions": 1 })).expect(201);
    let order = |at: u64| json!({ "key": format!("guest-{}", at % 7), "json": { "order": at, "total": at * 2 }, "headers": { "source": "till" } });
    let orders: Vec<Value> = (0..6000).map(order).collect();
    server.post("/v1/topics/orders/records", &json!(orders)).expect(200);
    server
        .post("/v1/topics/orders/records", &json!({ "payload": "no JSON, Straße", "key": "x" }))
        .expect(200);
    let look = |query: &str| server.get(&format!("/v1/topics/orders/records?{query}")).expect(200).json();
    let found = look("filter=doc.total%20%3E%3D%20200%20%26%26%20doc.order%20%3C%20103&max=2");
    assert_eq!((ids(&found), found["next"].is_string()), (vec!["100".into(), "101".into()], true));
    let next = found["next"].as_str().unwrap();
    let rest =
        look(&format!("filter=doc.total%20%3E%3D%20200%20%26%26%20doc.order%20%3C%20103&after={next}"));
    assert_eq!(ids(&rest), ["102"]);
    assert!(rest["looked_at"].as_u64().unwrap() >= 5000 && rest["next"].is_string(), "bounded, and goes on");
    let keyed = look("filter=key%20%3D%3D%20'x'&newest=true");
    assert_eq!(keyed["records"][0]["payload"], "no JSON, Straße");
    let same_key = look("key=guest-3&max=500")["records"].as_array().unwrap().clone();
    assert!(same_key.len() == 500 && same_key.iter().all(|record| record["key"] == "guest-3"));
    assert_eq!(look("key=guest")["records"], json!([]), "a key is whole");
    assert_eq!(look("contains=STRASSE")["records"], json!([]));
    assert_eq!(look("contains=STRA%C3%9FE&newest=true")["records"].as_array().unwrap().len(), 1);
    assert_eq!(ids(&look("contains=%22order%22:5999&newest=true")), ["5999"]);
    assert_eq!(look("contains=TILL&max=3")["records"].as_array().unwrap().len(), 3);
    let wrong = server.get("/v1/topics/orders/records?filter=state%20%3D%3D%201").expect(400).json();
    assert_eq!(wrong["field"], "filter");
    let url = server.url();
    let told =
        stdout(&run(&["topic", "browse", "orders", "--filter", "doc.order == 4321", "--server", &url]));
    assert!(told.contains("4321") && told.lines().count() == 2, "{told}");
    let told = stdout(&run(&["topic", "browse", "orders", "--key", "x", "--max", "9", "--server", &url]));
    assert!(told.contains("no JSON") && told.lines().count() == 2, "{told}");
}

#[test]
fn mq46_a_first_delivery_in_flight_is_shown_by_every_server_and_of_the_command_line() {
    side_by_side(|[here, there]: &[Server; 2]| {
        here.topic("orders", &["one"]);
        here.fetch("orders", "bar", &json!({ "wait_ms": 20_000, "lease_ms": 60_000 }));
        let shown = there.get("/v1/topics/orders/groups/bar/in_flight").expect(200).json();
        let one = &shown["deliveries"][0];
        assert_eq!((&shown["total"], &shown["silent"]), (&json!(1), &json!([])), "{shown}");
        assert_eq!(
            (&one["kind"], &one["attempt"], &one["remaining_ms"]),
            (&json!("server"), &json!(1), &json!(null))
        );
        assert!(one["member"].as_str().unwrap().starts_with("http-"), "{one}");
        let told = stdout(&run(&["group", "in-flight", "orders", "bar", "--server", &there.url()]));
        assert!(told.contains("http-"), "{told}");
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn u15_a_consumer_with_an_engine_of_its_own_is_a_member_of_kind_cli() {
    let redis = RedisServer::start(Flavor::Redis).await;
    let engine = redis.url();
    let server = Server::start(firth().args(["serve", "--engine", &engine]), None);
    server.topic("orders", &["one"]);
    // The command stays until it is killed, so its record stays in flight.
    let mut consume = firth();
    consume.args([
        "consume", "orders", "--group", "bar", "--exec", "sleep 60", "--lease", "60s", "--engine", &engine,
    ]);
    let mut consume = consume.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    until(PATIENCE, "the command has the record", async || {
        let reply = server.get("/v1/topics/orders/groups/bar/in_flight");
        reply.status == 200 && reply.json()["deliveries"][0]["kind"] == "cli"
    })
    .await;
    let members = server.get("/v1/topics/orders/groups/bar/members").expect(200).json();
    let member = &members["members"][0];
    assert_eq!((&member["kind"], &member["pid"]), (&json!("cli"), &json!(consume.id())), "{member}");
    assert!(member["host"].as_str().is_some_and(|host| !host.is_empty()), "{member}");
    let told = stdout(&run(&["group", "members", "orders", "bar", "--server", &server.url()]));
    assert!(told.contains("cli") && told.contains(&consume.id().to_string()), "{told}");
    consume.kill().unwrap();
    consume.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_takeover_of_a_claim_is_told_with_both_workers() {
    let server = Server::memory();
    server.post("/v1/claims/calls/offers", &json!([{ "name": "a" }])).expect(200);
    let join = |name: &str| {
        let request = json!({ "ttl_ms": 1000, "max_claims": 5 });
        server.put(&format!("/v1/claims/calls/workers/{name}"), &request).expect(200).json()["session"]
            .clone()
    };
    let changes = || server.get("/v1/claims/calls/takeovers").expect(200).json()["changes"].take();
    let has = |kind: &str, from: Value, to: &str| {
        changes().as_array().unwrap().iter().any(|one| {
            one["kind"] == kind && one["from"] == from && one["to"] == to && one["time_ms"].as_u64() > Some(0)
        })
    };
    let first = join("first");
    until(PATIENCE, "the first worker has it", async || {
        let poll = json!({ "session": first, "wait_ms": 100 });
        server.post("/v1/claims/calls/workers/first/poll", &poll).expect(200);
        has("granted", json!(null), "first")
    })
    .await;
    let second = join("second");
    until(PATIENCE, "the second one took it over", async || {
        let poll = json!({ "session": second, "wait_ms": 100 });
        server.post("/v1/claims/calls/workers/second/poll", &poll).expect(200);
        has("taken_over", json!("first"), "second")
    })
    .await;
    let told = stdout(&run(&["claims", "takeovers", "calls", "--server", &server.url()]));
    assert!(told.contains("taken over") && told.contains("second"), "{told}");
    server.get("/v1/claims/none/takeovers").problem(404, "not found");
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_of_gateways_are_told_to_every_server() {
    let redis = RedisServer::start(Flavor::Redis).await;
    let engine = redis.url();
    let server = Server::start(firth().args(["serve", "--engine", &engine]), None);
    server.topic("changes", &[]);
    let args = ["gateway", "--engine", &engine, "--topic", "changes", "--tenant", "acme", "--id", "edge-1"];
    let gateway = Server::start(firth().args(args), None);
    let mut events = Events::open(gateway.address);
    assert_eq!((&events.next()["type"], &events.next()["type"]), (&json!("hello"), &json!("subscribed")));
    let told = || server.get("/v1/routing/clients?gateway=edge-1").expect(200).json()["gateways"][0].clone();
    until(PATIENCE, "the gateway tells of its client", async || told()["connections"] == 1).await;
    let edge = told();
    let one = &edge["clients"][0];
    assert_eq!((&edge["gateway"], &edge["subscriptions"]), (&json!("edge-1"), &json!(1)));
    assert_eq!(
        (&one["tenant"], &one["user"], &one["subscriptions"]),
        (&json!("acme"), &json!(null), &json!(1))
    );
    let shown = stdout(&run(&["route", "clients", "--server", &server.url()]));
    assert!(shown.contains("edge-1: 1 connections") && shown.contains("acme"), "{shown}");
    gateway.kill();
    until(PATIENCE, "the gateway is forgotten", async || told().is_null()).await;
    // As a gateway behind a router does.
    let path = "/v1/routing/gateways/edge-2/clients";
    let client = json!({ "tenant": "t", "user": "u", "subscriptions": 2, "queued": 0, "connected_ms": 5 });
    let report = |clients: Vec<Value>| json!({ "connections": 7, "subscriptions": 9, "clients": clients });
    server.post(path, &report(vec![client.clone(); 101])).problem(400, "invalid");
    server.post(path, &report(vec![client])).expect(204);
    let shown = || server.get("/v1/routing/clients?gateway=edge-2").expect(200).json()["gateways"][0].clone();
    until(PATIENCE, "the report went round", async || shown()["connections"] == 7).await;
}

#[test]
fn delayed_messages_are_listed_with_their_times_and_payloads() {
    let server = Server::memory();
    server.topic("mail", &["now"]);
    let later = |hours: u64| json!({ "payload": format!("in {hours} h"), "key": "k", "after_ms": hours * 3_600_000, "partition": 1 });
    server.post("/v1/topics/mail/records", &json!([later(3), later(1), later(2)])).expect(200);
    let look =
        |query: &str| server.get(&format!("/v1/topics/mail/delayed/messages?{query}")).expect(200).json();
    assert_eq!(look("partition=0"), json!({ "messages": [], "next": null }));
    let mut found = Vec::new();
    let mut after = String::new();
    for _ in 0..3 {
        let page = look(&format!("partition=1&max=1{after}"));
        let message = &page["messages"][0];
        let due = message["due_ms"].as_u64().unwrap() / 3_500_000;
        found.push((message["payload"].as_str().unwrap().to_owned(), due));
        after = page["next"].as_str().map_or(String::new(), |next| format!("&after={next}"));
    }
    assert_eq!(found, [("in 1 h".into(), 1), ("in 2 h".into(), 2), ("in 3 h".into(), 3)]);
    assert!(after.is_empty(), "that was all");
    server.get("/v1/topics/mail/delayed/messages?partition=2").problem(404, "not found");
    let shown = stdout(&run(&["topic", "delayed", "mail", "--server", &server.url()]));
    assert!(shown.contains("in 2 h") && shown.lines().count() == 4, "{shown}");
}

#[test]
fn delayed_messages_are_cancelled_and_delivered_by_their_ids() {
    let server = Server::memory();
    server.topic("mail", &[]);
    let later = |name: &str| json!({ "payload": name, "after_ms": 3_600_000, "partition": 1 });
    let all: Vec<Value> = ["a", "b", "c", "d", "e"].map(later).to_vec();
    server.post("/v1/topics/mail/records", &json!(all)).expect(200);
    let listed = || server.get("/v1/topics/mail/delayed/messages?partition=1").expect(200).json();
    let before = listed();
    let id = |index: usize| before["messages"][index]["id"].as_str().unwrap().to_owned();
    let change = |what: &str, ids: &[String]| {
        server.post(&format!("/v1/topics/mail/delayed/messages/{what}"), &json!({ "ids": ids }))
    };
    let states = |reply: Value| -> Vec<(String, bool)> {
        let messages = reply["messages"].as_array().unwrap();
        let state = |one: &Value| (one["state"].as_str().unwrap().into(), one["changed"] == json!(true));
        messages.iter().map(state).collect()
    };
    let unknown = "1/1700000000000-99".to_owned();
    let cancelled = change("cancel", &[id(1), id(2), unknown]).expect(200).json();
    let told =
        [("cancelled".to_owned(), true), ("cancelled".to_owned(), true), ("missing".to_owned(), false)];
    assert_eq!(states(cancelled), told);
    let delivered = change("deliver", &[id(2), id(3)]).expect(200).json();
    let record = delivered["messages"][1]["record"].as_str().unwrap().to_owned();
    assert_eq!(states(delivered), [("cancelled".to_owned(), false), ("delivered".to_owned(), true)]);
    let found = server.get("/v1/topics/mail/records?partition=1").expect(200).json();
    assert_eq!((&found["records"][0]["id"], &found["records"][0]["payload"]), (&json!(record), &json!("d")));
    let shell = |args: &[&str]| run(&[&["topic"], args, &["--server", &server.url()]].concat());
    let shown = stdout(&shell(&["deliver", "mail", &id(0)]));
    assert!(shown.contains(": delivered"), "{shown}");
    let late = shell(&["cancel", "mail", &id(0), &id(4)]);
    assert!(!late.status.success());
    assert!(String::from_utf8_lossy(&late.stdout).contains(": delivered before"), "{late:?}");
    assert_eq!(listed()["messages"], json!([]));
    change("cancel", &[]).problem(400, "invalid");
    change("cancel", &["1/x".to_owned()]).problem(400, "invalid");
    change("deliver", &["7/1-2".to_owned()]).problem(404, "not found");
}

#[test]
fn the_oldest_deliveries_in_flight_are_shown_and_all_are_counted() {
    let server = Server::memory();
    server.topic("orders", &["one", "two", "three", "four", "five"]);
    let lease = json!({ "max": 1, "wait_ms": 5000, "lease_ms": 60_000 });
    let taken: Vec<Value> = (0..5).flat_map(|_| server.fetch("orders", "bar", &lease)).collect();
    let shown = server.get("/v1/topics/orders/groups/bar/in_flight?max=2").expect(200).json();
    let ids = |list: &[Value], field: fn(&Value) -> &Value| -> Vec<Value> {
        list.iter().map(|one| field(one).clone()).collect()
    };
    let oldest = ids(&taken[..2], |one| &one["record"]["id"]);
    assert_eq!(
        (ids(shown["deliveries"].as_array().unwrap(), |one| &one["id"]), &shown["total"]),
        (oldest, &json!(5))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_is_away_is_no_answer_without_dead_letters() {
    let redis = RedisServer::start(Flavor::Redis).await;
    let proxy = firth_testkit::Proxy::start(redis.addr()).await;
    let engine = format!("redis://{}", proxy.addr());
    let server = Server::start(firth().args(["serve", "--engine", &engine]), None);
    server.topic("orders", &["one"]);
    server.get("/v1/dead").expect(200);
    proxy.refuse().await;
    proxy.cut().await;
    let reply = server.get("/v1/dead");
    assert!(reply.status >= 500, "{} {}", reply.status, reply.body);
}

on_engines!(a_dead_letter_tells_its_attempts_over_http_and_on_the_command_line);

fn a_dead_letter_tells_its_attempts_over_http_and_on_the_command_line(server: &Server) {
    server.put("/v1/topics/orders", &json!({ "partitions": 1 })).expect(201);
    server.post("/v1/topics/orders/records", &json!({ "payload": "one" })).expect(200);
    let why = ["the oven is cold", "the oven is still cold", "no oven is left"];
    for (nth, reason) in why.iter().enumerate() {
        let taken = server.fetch("orders", "bar", &json!({ "wait_ms": 1000 }));
        assert_eq!(taken[0]["record"]["attempt"], nth + 1);
        let failure = json!({ "delivery": taken[0]["delivery"], "reason": reason, "after_ms": 0 });
        let verdict = if nth == 2 {
            json!({ "reject": [{ "delivery": taken[0]["delivery"], "reason": reason }] })
        } else {
            json!({ "nack": [failure] })
        };
        assert_eq!(server.settle("orders", "bar", &verdict)["settled"], 1);
    }
    let found = server.get("/v1/topics/orders/dead").expect(200).json();
    let letter = &found["letters"][0];
    let history = letter["history"].as_array().unwrap();
    let told: Vec<_> =
        history.iter().map(|past| (&past["attempt"], past["reason"].as_str().unwrap())).collect();
    assert_eq!(told, [(&json!(3), why[2]), (&json!(2), why[1]), (&json!(1), why[0])]);
    let owner =
        server.get("/v1/topics/orders/groups/bar").expect(200).json()["partitions"][0]["owner"].take();
    assert!(owner.is_string());
    assert!(history.iter().all(|past| past["age_ms"].is_u64() && past["member"] == owner), "{letter}");
    let id = letter["id"].as_str().unwrap();
    let shown = stdout(&run(&["dead", "show", "orders", id, "--server", &server.url()]));
    let lines: Vec<_> = shown.lines().filter(|line| line.starts_with("attempt ")).collect();
    assert_eq!(lines.len(), 3, "{shown}");
    assert!(lines.iter().zip(why.iter().rev()).all(|(line, why)| line.ends_with(why)), "{shown}");
}
