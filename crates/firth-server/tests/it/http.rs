//! The API: what goes in comes out, is settled once, and errors say what to do.

use crate::talk::{Entries, call};
use crate::world::{Server, Value, firth, json, stdout};

fn ids(deliveries: &[Value]) -> Vec<Value> {
    deliveries.iter().map(|delivery| delivery["delivery"].clone()).collect()
}

#[test]
fn what_is_produced_is_fetched_settled_and_then_done() {
    let server = Server::memory();
    server.topic("orders", &[]);
    let sent = json!([
        { "key": "k", "payload": "first", "headers": { "color": "red" } },
        { "key": "k", "json": { "amount": 1 } },
        { "payload_base64": "/wA=" },
    ]);
    let receipts = server.post("/v1/topics/orders/records", &sent).expect(200).json();
    assert_eq!(receipts["receipts"].as_array().unwrap().len(), 3);
    let mut seen = Vec::new();
    while seen.len() < 3 {
        let some = server.fetch("orders", "billing", &json!({ "max": 10, "wait_ms": 5000 }));
        let report = server.settle("orders", "billing", &json!({ "ack": ids(&some) }));
        assert_eq!((&report["settled"], &report["failed"]), (&json!(some.len()), &json!([])));
        seen.extend(some);
    }
    let keyed: Vec<_> = seen.iter().filter(|one| one["record"]["key"] == "k").collect();
    assert_eq!(keyed[0]["record"]["payload"], "first");
    assert_eq!(keyed[0]["record"]["headers"]["color"], "red");
    assert_eq!(keyed[1]["record"]["json"], json!({ "amount": 1 }));
    assert!(seen.iter().any(|one| one["record"]["payload_base64"] == "/wA="));
    assert_eq!(server.lag("orders", "billing"), 0);
    let again = server.settle("orders", "billing", &json!({ "ack": ids(&seen) }));
    assert_eq!((&again["settled"], again["failed"].as_array().unwrap().len()), (&json!(0), 3));
}

#[test]
fn a_batch_of_lines_is_stored_whole_or_refused_whole() {
    let server = Server::memory();
    server.topic("lines", &[]);
    let send =
        |body: &str| server.call("POST", "/v1/topics/lines/records", Some(("application/x-ndjson", body)));
    let detail = send("{\"payload\":\"a\"}\n\n{\"payload\":}\n").problem(400, "invalid");
    assert!(detail.starts_with("line 3"), "{detail}");
    assert_eq!(server.get("/v1/topics/lines").json()["records"], 0);
    let receipts = send("{\"payload\":\"a\"}\n\n{\"payload\":\"b\"}\n").expect(200).json();
    assert_eq!(receipts["receipts"].as_array().unwrap().len(), 2);
    assert_eq!(server.get("/v1/topics/lines").json()["records"], 2);
}

#[test]
fn an_unsettled_delivery_comes_back_after_its_lease() {
    let server = Server::memory();
    server.topic("jobs", &["work"]);
    let how = json!({ "wait_ms": 5000, "lease_ms": 200 });
    let first = server.fetch("jobs", "workers", &how);
    let second = server.fetch("jobs", "workers", &how);
    assert_eq!((&first[0]["record"]["attempt"], &second[0]["record"]["attempt"]), (&json!(1), &json!(2)));
    assert_eq!(first[0]["record"]["id"], second[0]["record"]["id"]);
    let late = server.settle("jobs", "workers", &json!({ "ack": ids(&first) }));
    assert_eq!(late["failed"][0]["kind"], "not found");
    server.settle("jobs", "workers", &json!({ "ack": ids(&second) }));
    assert_eq!(server.lag("jobs", "workers"), 0);
}

#[test]
fn rejected_records_are_dead_letters_that_can_be_replayed_and_deleted() {
    let server = Server::memory();
    server.topic("mail", &["letter"]);
    let how = json!({ "wait_ms": 5000 });
    let reject = || {
        let some = server.fetch("mail", "post", &how);
        let reject = json!([{ "delivery": some[0]["delivery"], "reason": "no stamp" }]);
        assert_eq!(server.settle("mail", "post", &json!({ "reject": reject }))["settled"], 1);
    };
    reject();
    let page = server.get("/v1/topics/mail/dead?group=post&reason=stamp").expect(200).json();
    assert_eq!((&page["letters"][0]["reason"], &page["next"]), (&json!("no stamp"), &Value::Null));
    let pick = json!({ "ids": [page["letters"][0]["id"]] });
    assert_eq!(server.post("/v1/topics/mail/dead/replay", &pick).expect(200).json()["count"], 1);
    reject();
    assert_eq!(server.get("/v1/topics/mail/dead/count").expect(200).json()["count"], 1);
    assert_eq!(server.post("/v1/topics/mail/dead/delete", &json!({ "all": true })).json()["count"], 1);
    assert_eq!(server.get("/v1/topics/mail/dead/count").json()["count"], 0);
    server.post("/v1/topics/mail/dead/delete", &json!({})).problem(400, "invalid");
}

#[test]
fn a_nack_is_tried_again_when_it_says_so() {
    let server = Server::memory();
    server.topic("jobs", &["work"]);
    let some = server.fetch("jobs", "workers", &json!({ "wait_ms": 5000 }));
    let nack = json!([{ "delivery": some[0]["delivery"], "reason": "busy", "after_ms": 0 }]);
    server.settle("jobs", "workers", &json!({ "nack": nack }));
    let again = server.fetch("jobs", "workers", &json!({ "wait_ms": 5000 }));
    assert_eq!(again[0]["record"]["attempt"], 2);
}

#[test]
fn every_wrong_request_is_a_problem_with_its_status() {
    let server = Server::memory();
    server.topic("t", &[]);
    server.get("/v1/topics/none").problem(404, "not found");
    server.get("/nowhere").problem(404, "not found");
    server.call("PATCH", "/v1/topics", None).problem(405, "invalid");
    server.put("/v1/topics/t", &json!({ "partitions": 2 })).expect(200);
    server.put("/v1/topics/t", &json!({ "partitions": 3 })).problem(409, "already exists");
    let field = server.put("/v1/topics/u", &json!({ "partition": 3 })).problem(400, "invalid");
    assert!(field.contains("partition"), "{field}");
    server.put("/v1/topics/u", &json!({ "partitions": 0 })).problem(400, "invalid");
    server.put("/v1/topics/b%20d", &json!({})).problem(400, "invalid");
    server.post("/v1/topics/none/records", &json!({ "payload": "x" })).problem(404, "not found");
    server.post("/v1/topics/none/groups/g/fetch", &json!({})).problem(404, "not found");
    server.post("/v1/topics/t/groups/g/fetch", &json!({ "max": 0 })).problem(400, "invalid");
    server.post("/v1/topics/t/groups/g/fetch", &json!({ "wait_ms": 31_000 })).problem(400, "invalid");
    server.post("/v1/topics/t/groups/g/settle", &json!({ "ack": vec!["x"; 501] })).problem(400, "invalid");
    server.post("/v1/topics/t/records", &json!({ "payload": 7 })).problem(400, "invalid");
    let text = Some(("text/plain", "hello"));
    server.call("POST", "/v1/topics/t/records", text).problem(415, "invalid");
    server.get("/v1/topics/t/dead?max=many").problem(400, "invalid");
}

#[test]
fn limits_are_named_and_kept() {
    let server = Server::memory();
    server.put("/v1/topics/t", &json!({ "max_payload": 1024 })).expect(201);
    let long = json!({ "payload": "x".repeat(1025) });
    let detail = server.post("/v1/topics/t/records", &long).problem(400, "invalid");
    assert!(detail.contains("1024"), "{detail}");
    let body = "x".repeat(32 * 1024 * 1024 + 1);
    let huge = server.call("POST", "/v1/topics/t/records", Some(("application/json", &body)));
    assert!(huge.problem(413, "invalid").contains("33554432"));
}

#[test]
fn a_deleted_topic_is_gone_and_can_be_made_again() {
    let server = Server::memory();
    server.topic("t", &["old"]);
    server.fetch("t", "g", &json!({ "wait_ms": 5000 }));
    server.call("DELETE", "/v1/topics/t", None).expect(204);
    server.call("DELETE", "/v1/topics/t", None).problem(404, "not found");
    server.post("/v1/topics/t/records", &json!({ "payload": "x" })).problem(404, "not found");
    server.topic("t", &["new"]);
    let some = server.fetch("t", "g", &json!({ "wait_ms": 5000 }));
    assert_eq!(some[0]["record"]["payload"], "new");
}

#[test]
fn u13_what_programs_on_the_way_could_read_differently_is_refused() {
    let server = Server::memory();
    let host = server.address;
    let two =
        server.raw(&format!("GET /v1 HTTP/1.1\r\nHost: {host}\r\nHost: {host}\r\nConnection: close\r\n\r\n"));
    assert!(two.problem(400, "invalid").contains("Host"));
    let head = format!("PUT /v1/topics/t HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n");
    let body = "Connection: close\r\n\r\n2\r\n{}\r\n0\r\n\r\n";
    let coded = server.raw(&format!("{head}Transfer-Encoding: gzip, chunked\r\n{body}"));
    coded.problem(501, "unsupported");
    server.get("/v1/topics/t").problem(404, "not found");
    server.raw(&format!("{head}Transfer-Encoding: chunked\r\n{body}")).expect(201);
}

#[test]
fn u13_an_unknown_query_parameter_is_refused_everywhere() {
    let server = Server::memory();
    server.topic("t", &[]);
    for path in ["/v1/topics", "/v1/topics/t", "/v1/topics/t/groups", "/v1", "/metrics", "/v1/topics/t/dead"]
    {
        let reply = server.get(&format!("{path}?colour=red"));
        assert_eq!((reply.status, &reply.json()["field"]), (400, &json!("colour")), "{path}: {}", reply.body);
    }
    server.call("PUT", "/v1/topics/u?partitions=4", Some(("application/json", "{}"))).problem(400, "invalid");
    server.get("/v1/topics/t/dead?max=1").expect(200);
}

#[test]
fn q07_a_retention_and_the_expiry_of_dead_letters_can_be_ended() {
    let server = Server::memory();
    let limits = ["retention_ms", "retention_records", "retention_bytes", "dead_letters_ms"];
    let all: serde_json::Map<_, _> =
        limits.iter().map(|limit| ((*limit).to_owned(), json!(86_400_000))).collect();
    server.put("/v1/topics/t", &json!(all)).expect(201);
    let change = |change: &Value| {
        let change = change.to_string();
        server.call("PATCH", "/v1/topics/t", Some(("application/json", &change))).expect(200).json()
    };
    assert_eq!(change(&json!({ "lossy": true }))["retention_ms"], 86_400_000, "what is not named stays");
    for limit in limits {
        let shown = change(&json!({ limit: null }));
        assert_eq!(shown[limit], Value::Null, "{shown}");
    }
    assert_eq!(change(&json!({ "retention_ms": 0 }))["retention_ms"], 0, "0 is a limit, not the end of it");
    server.put("/v1/topics/u", &json!({ "retention_ms": null })).expect(201);
}

#[test]
fn u10_a_stream_of_a_missing_topic_is_refused_and_a_limit_beyond_its_maximum_too() {
    let server = Server::memory();
    server.get("/v1/topics/none/dead/stream?for_ms=0").problem(404, "not found");
    server.topic("t", &[]);
    server.call("DELETE", "/v1/topics/t", None).expect(204);
    server.get("/v1/topics/t/dead/stream?for_ms=0").problem(404, "not found");
    server.topic("t", &[]);
    let limit = |limit: u64| server.get(&format!("/v1/topics/t/groups/g/stream?for_ms=0&limit={limit}"));
    let refused = limit(9_007_199_254_740_992).expect(400).json();
    assert_eq!((&refused["field"], &refused["limit"]), (&json!("limit"), &json!(9_007_199_254_740_991_u64)));
    limit(9_007_199_254_740_991).expect(200);
}

#[test]
fn u13_nothing_is_made_under_a_name_that_clients_take_out_of_a_path() {
    let server = Server::memory();
    let told = server.put("/v1/topics/.", &json!({})).problem(400, "invalid");
    assert!(told.contains("topic"), "{told}");
    server.topic("t", &[]);
    server.put("/v1/topics/t/groups/.", &json!({})).problem(400, "invalid");
    server.put("/v1/topics/.hidden", &json!({})).expect(201);
    let there = server.put("/v1/topics/t", &json!({ "partitions": 3 })).problem(409, "already exists");
    assert!(there.contains("firth topic change") && there.contains("nothing was changed"), "{there}");
}

#[test]
fn u16_a_topic_has_as_many_partitions_as_the_server_says_however_it_is_made() {
    for (settings, partitions) in [(vec![], 1), (vec!["topics.partitions=3"], 3)] {
        let server = Server::with(&settings);
        let made = server.put("/v1/topics/one", &json!({})).expect(201).json();
        assert_eq!(made["partitions"], partitions);
        let made =
            firth().args(["topic", "create", "two", "--json", "--server", &server.url()]).output().unwrap();
        let made: Value = serde_json::from_str(&stdout(&made)).unwrap();
        assert_eq!(made["partitions"], partitions);
    }
}

#[test]
fn u16_a_policy_says_attempts_by_either_name() {
    let server = Server::memory();
    server.topic("t", &[]);
    server.put("/v1/topics/t/groups/g", &json!({})).expect(201);
    for name in ["attempts", "max_attempts"] {
        let set = server.put("/v1/topics/t/groups/g/policy", &json!({ name: 7 })).expect(200).json();
        assert_eq!(set["max_attempts"], 7, "{set}");
    }
}

#[test]
fn u15_clients_of_a_group_over_http_are_told_apart() {
    let server = Server::memory();
    server.topic("t", &["one", "two"]);
    let fetch = |name: &str| {
        let client = format!("Firth-Client: {name}");
        let headers = [client.as_str(), "Content-Type: application/json"];
        let how = json!({ "max": 1, "wait_ms": 5000, "lease_ms": 600_000 }).to_string();
        call(server.address, "POST", "/v1/topics/t/groups/g/fetch", &headers, how.as_bytes()).expect(200)
    };
    fetch("billing-1");
    fetch("billing-2");
    let _stream = Entries::open(server.address, "/v1/topics/t/groups/g/stream", "text/event-stream");
    let members = server.get("/v1/topics/t/groups/g/members").expect(200).json();
    assert_eq!(members["members"].as_array().unwrap().len(), 1, "{members}");
    let member = &members["members"][0];
    assert_eq!(member["kind"], "server", "{member}");
    let clients = member["clients"]
        .as_array()
        .unwrap()
        .iter()
        .map(|client| ["name", "address", "kind", "unsettled"].map(|field| client[field].clone()));
    let clients: Vec<_> = clients.collect();
    let here = json!("127.0.0.1");
    let wanted = [
        [Value::Null, here.clone(), json!("stream"), json!(0)],
        [json!("billing-1"), here.clone(), json!("fetch"), json!(1)],
        [json!("billing-2"), here, json!("fetch"), json!(1)],
    ];
    assert_eq!(clients, wanted);
    let shown =
        stdout(&firth().args(["group", "show", "t", "g", "--server", &server.url()]).output().unwrap());
    assert!(shown.contains("billing-1") && shown.contains("127.0.0.1"), "{shown}");
    let long = format!("Firth-Client: {}", "x".repeat(129));
    call(server.address, "POST", "/v1/topics/t/groups/g/fetch", &[&long], b"").problem(400, "invalid");
}
