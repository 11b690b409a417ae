//! The API: what goes in comes out, is settled once, and errors say what to do.

use crate::world::{Server, Value, json};

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
