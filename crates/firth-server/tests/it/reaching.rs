//! What the library can do, reached over HTTP and on the command line: policies of groups, filters
//! and streams of dead letters, the newest records, mappings of keys.

use crate::talk::Entries;
use crate::world::{PATIENCE, Reply, Server, Value, json, run, side_by_side, stdout};
use std::time::Instant;

crate::on_engines!(
    a_groups_policy_says_how_often_its_records_are_tried,
    dead_letters_are_filtered_and_followed,
    the_newest_records_are_seen_without_consuming_them,
    a_topic_is_shown_partition_by_partition_and_a_replayed_record_with_its_origin,
);

fn field(reply: Reply, status: u16) -> String {
    let problem = reply.expect(status).json();
    problem["field"].as_str().unwrap_or_else(|| panic!("{problem}")).to_owned()
}

/// Nacks every delivery until no record is left to try; returns the number of nacks.
fn fail_all(server: &Server, topic: &str, group: &str) -> u64 {
    let deadline = Instant::now() + PATIENCE;
    let mut failures = 0;
    while server.lag(topic, group) > 0 {
        assert!(Instant::now() < deadline, "it is tried for ever");
        let path = format!("/v1/topics/{topic}/groups/{group}/fetch");
        let fetched = server.post(&path, &json!({ "max": 10, "wait_ms": 1000 })).expect(200).json();
        for delivery in fetched["deliveries"].as_array().unwrap() {
            failures += 1;
            let nack = json!([{ "delivery": delivery["delivery"], "reason": "no luck" }]);
            assert_eq!(server.settle(topic, group, &json!({ "nack": nack }))["settled"], 1);
        }
    }
    failures
}

fn a_groups_policy_says_how_often_its_records_are_tried(server: &Server) {
    server.topic("orders", &["one"]);
    let group = "/v1/topics/orders/groups/bar";
    server.get(&format!("{group}/policy")).problem(404, "not found");
    server.put(group, &json!({})).expect(201);
    let usual = server.get(&format!("{group}/policy")).expect(200).json();
    assert_eq!((&usual["max_attempts"], &usual["ordering"]), (&json!(5), &json!("strict")));
    let request = json!({ "max_attempts": 2, "backoff_ms": 1, "ordering": "relaxed" });
    let set = server.put(&format!("{group}/policy"), &request).expect(200).json();
    assert_eq!((&set["max_attempts"], &set["max_backoff_ms"]), (&json!(2), &json!(60_000)));
    assert_eq!(server.get(&format!("{group}/policy")).expect(200).json(), set);
    assert_eq!(fail_all(server, "orders", "bar"), 2);
    assert_eq!(server.get("/v1/topics/orders/dead/count?group=bar").expect(200).json()["count"], 1);
    // What the command line names changes, the rest stays.
    let at = server.url();
    let args = ["group", "policy", "orders", "bar", "--attempts", "3", "--json", "--server", &at];
    let changed: Value = serde_json::from_str(&stdout(&run(&args))).unwrap();
    assert_eq!((&changed["max_attempts"], &changed["backoff_ms"]), (&json!(3), &json!(1)));
    server.post("/v1/topics/orders/records", &json!({ "payload": "two" })).expect(200);
    assert_eq!(fail_all(server, "orders", "bar"), 3);
    stdout(&run(&["group", "policy", "orders", "bar", "--reset", "--server", &at]));
    assert_eq!(server.get(&format!("{group}/policy")).expect(200).json()["max_attempts"], 5);
    // A new group under the name of a deleted one has the defaults.
    server.put(&format!("{group}/policy"), &request).expect(200);
    server.call("DELETE", "/v1/topics/orders", None).expect(204);
    server.topic("orders", &[]);
    server.put(group, &json!({})).expect(201);
    assert_eq!(server.get(&format!("{group}/policy")).expect(200).json()["max_attempts"], 5);
    for (wrong, name) in [
        (json!({ "max_attempts": 0 }), "max_attempts"),
        (json!({ "backoff_ms": 86_400_001 }), "backoff_ms"),
        (json!({ "factor": 0.5 }), "factor"),
        (json!({ "jitter": 1.5 }), "jitter"),
        (json!({ "ordering": "any" }), "ordering"),
        (json!({ "colour": 1 }), "colour"),
    ] {
        assert_eq!(field(server.put(&format!("{group}/policy"), &wrong), 400), name);
    }
}

fn reject(server: &Server, count: usize) {
    for _ in 0..count {
        let delivery =
            server.fetch("orders", "bar", &json!({ "wait_ms": 20_000 })).remove(0)["delivery"].clone();
        let reject = json!([{ "delivery": delivery, "reason": "hopeless" }]);
        assert_eq!(server.settle("orders", "bar", &json!({ "reject": reject }))["settled"], 1);
    }
}

fn dead_letters_are_filtered_and_followed(server: &Server) {
    server.topic("orders", &[]);
    for (key, partition) in [("ada", 0), ("ben", 1)] {
        let message = json!({ "payload": "x", "key": key, "partition": partition });
        server.post("/v1/topics/orders/records", &message).expect(200);
    }
    reject(server, 2);
    let keys = |query: &str| -> Vec<String> {
        let page = server.get(&format!("/v1/topics/orders/dead?{query}")).expect(200).json();
        let keys = page["letters"].as_array().unwrap().iter();
        keys.map(|letter| letter["record"]["key"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!((keys("key=ben"), keys("partition=0")), (vec!["ben".to_owned()], vec!["ada".to_owned()]));
    assert_eq!((keys("older_than_ms=3600000").len(), keys("older_than_ms=0").len()), (0, 2));
    assert_eq!(server.get("/v1/topics/orders/dead/count?key=ada").expect(200).json()["count"], 1);
    assert_eq!(field(server.get("/v1/topics/orders/dead?partition=4096"), 400), "partition");
    server.get("/v1/topics/none/dead/stream").problem(404, "not found");
    // Those that are there come first, then new ones, each once.
    let mut letters =
        Entries::open(server.address, "/v1/topics/orders/dead/stream?group=bar", "text/event-stream");
    let mut seen =
        [letters.find("letter"), letters.find("letter")].map(|letter| letter["record"]["key"].to_string());
    seen.sort();
    assert_eq!(seen, ["\"ada\"", "\"ben\""]);
    server.post("/v1/topics/orders/records", &json!({ "payload": "y", "key": "cyd" })).expect(200);
    reject(server, 1);
    assert_eq!(letters.find("letter")["record"]["key"], "cyd");
    let at = server.url();
    let args = ["dead", "delete", "orders", "--all", "--key", "ada", "--partition", "0", "--server", &at];
    assert_eq!(stdout(&run(&args)), "deleted 1 dead letter\n");
    let replay = json!({ "all": true, "key": "ben", "older_than_ms": 0 });
    assert_eq!(server.post("/v1/topics/orders/dead/replay", &replay).expect(200).json()["count"], 1);
    let both = json!({ "ids": ["bar/0/1-1"], "key": "ben" });
    assert_eq!(field(server.post("/v1/topics/orders/dead/replay", &both), 400), "group");
    assert_eq!(stdout(&run(&["dead", "count", "orders", "--older-than", "0s", "--server", &at])), "1\n");
}

fn the_newest_records_are_seen_without_consuming_them(server: &Server) {
    let made =
        server.put("/v1/topics/orders", &json!({ "partitions": 2, "mapping": "modulo" })).expect(201).json();
    assert_eq!(made["mapping"], "modulo");
    let other =
        server.call("PATCH", "/v1/topics/orders", Some(("application/json", r#"{"mapping": "consistent"}"#)));
    assert_eq!(field(other, 409), "mapping");
    for n in 0..5 {
        let message = json!({ "payload": n.to_string(), "partition": 1 });
        server.post("/v1/topics/orders/records", &message).expect(200);
    }
    let seen = server.get("/v1/topics/orders/records?partition=1&newest=true&max=2").expect(200).json();
    let texts: Vec<_> =
        seen["records"].as_array().unwrap().iter().map(|record| record["payload"].clone()).collect();
    assert_eq!(texts, ["3", "4"]);
    let after = seen["records"][0]["id"].as_str().unwrap();
    let on = server
        .get(&format!("/v1/topics/orders/records?partition=1&newest=true&after={after}"))
        .expect(200)
        .json();
    assert_eq!((on["records"].as_array().unwrap().len(), &on["records"][0]["payload"]), (1, &json!("4")));
    let at = server.url();
    let rows = stdout(&run(&["topic", "browse", "orders", "--last", "1", "--json", "--server", &at]));
    let row: Value = serde_json::from_str(rows.trim()).unwrap();
    assert_eq!((&row["partition"], &row["payload"]), (&json!(1), &json!("4")));
    let all = stdout(&run(&["topic", "browse", "orders", "--partition", "1", "--server", &at]));
    assert_eq!(all.lines().count(), 6, "{all}");
}

fn a_topic_is_shown_partition_by_partition_and_a_replayed_record_with_its_origin(server: &Server) {
    server.topic("orders", &[]);
    let send = |n: u32| {
        let sent =
            server.post("/v1/topics/orders/records", &json!({ "payload": n.to_string(), "partition": 1 }));
        sent.expect(200).json()["receipts"][0]["id"].as_str().unwrap().to_owned()
    };
    let [first, last] = [0, 1].map(send);
    server.post("/v1/topics/orders/trim", &json!({ "keep": 1 })).expect(200);
    let topic = server.get("/v1/topics/orders").expect(200).json();
    let untouched = json!({ "partition": 0, "records": 0, "trimmed": null, "last": null, "delayed": 0 });
    let used = json!({ "partition": 1, "records": 1, "trimmed": first, "last": last, "delayed": 0 });
    assert_eq!(topic["parts"], json!([untouched, used]));
    assert!(topic["created_ms"].as_u64().unwrap() > 1_600_000_000_000, "{topic}");
    assert!(topic["updated_ms"].as_u64() >= topic["created_ms"].as_u64(), "{topic}");
    assert!(server.get("/v1/topics").expect(200).json()["topics"][0].get("parts").is_none());
    let rows = stdout(&run(&["topic", "show", "orders", "--server", &server.url()]));
    assert!(rows.lines().count() == 3 && rows.contains(&last), "{rows}");
    reject(server, 1);
    let all = json!({ "all": true, "everyone": true });
    assert_eq!(server.post("/v1/topics/orders/dead/replay", &all).expect(200).json()["count"], 1);
    let again = server.fetch("orders", "bar", &json!({ "wait_ms": 20_000 })).remove(0)["record"].clone();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis();
    assert!((1_600_000_000_000..=now).contains(&again["sent_ms"].as_u64().unwrap().into()), "{again}");
    assert_eq!(again["replayed_from"], json!({ "partition": 1, "id": last, "group": "bar" }));
}

#[test]
fn a_policy_outlives_its_server() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::on(dir.path());
    server.topic("orders", &["one"]);
    server.put("/v1/topics/orders/groups/bar", &json!({})).expect(201);
    server.put("/v1/topics/orders/groups/bar/policy", &json!({ "max_attempts": 1 })).expect(200);
    server.kill();
    let server = Server::on(dir.path());
    assert_eq!(fail_all(&server, "orders", "bar"), 1);
}

#[test]
fn a_changed_policy_reaches_servers_that_joined_before() {
    side_by_side(|[here, there]| {
        let group = "/v1/topics/orders/groups/bar";
        let fetch = "/v1/topics/orders/groups/bar/fetch";
        here.topic("orders", &[]);
        here.post(fetch, &json!({})).expect(200);
        std::thread::scope(|scope| {
            // Ends as soon as the group is left.
            let waiting = scope.spawn(|| here.post(fetch, &json!({ "wait_ms": 30_000 })));
            here.fetches_running(1);
            there.put(&format!("{group}/policy"), &json!({ "max_attempts": 1 })).expect(200);
            waiting.join().unwrap();
        });
        there.post("/v1/topics/orders/records", &json!({ "payload": "one" })).expect(200);
        assert_eq!(fail_all(here, "orders", "bar"), 1);
    });
}
