//! Bad input of every kind is answered with a 4xx that names the field and the limit. The answers
//! are pinned in `problems.txt`.

use crate::talk::{call, raw};
use crate::world::{Server, Value, json};
use std::fmt::Write;

const JSON: &str = "Content-Type: application/json";
const LINES: &str = "Content-Type: application/x-ndjson";
const BYTES: &str = "Content-Type: application/octet-stream";
const PRODUCE: &str = "/v1/topics/t/records";
const FETCH: &str = "/v1/topics/t/groups/g/fetch";
const SETTLE: &str = "/v1/topics/t/groups/g/settle";

/// A wrong request: method, path, headers, body; then the status and the field of its answer.
type Wrong = (&'static str, String, Vec<&'static str>, Vec<u8>, u16, &'static str);

#[expect(clippy::too_many_arguments, reason = "a row of a table")]
fn wrong(
    method: &'static str,
    path: &str,
    header: &'static str,
    body: &str,
    status: u16,
    field: &'static str,
) -> Wrong {
    let headers = if header.is_empty() { Vec::new() } else { vec![header] };
    (method, path.to_owned(), headers, body.as_bytes().to_vec(), status, field)
}

fn names() -> Vec<Wrong> {
    let long = "a".repeat(129);
    vec![
        wrong("PUT", "/v1/topics/b%20d", JSON, "{}", 400, "topic"),
        wrong("PUT", "/v1/topics/a..b", JSON, "{}", 400, "topic"),
        wrong("PUT", "/v1/topics/%00", JSON, "{}", 400, "topic"),
        wrong("PUT", "/v1/topics/%ff", JSON, "{}", 400, "path"),
        wrong("PUT", &format!("/v1/topics/{long}"), JSON, "{}", 400, "topic"),
        wrong("GET", "/v1/topics/t/groups/%7Bx%7D", "", "", 400, "group"),
        wrong("POST", "/v1/topics/t/groups/g/partitions/minus/release", "", "", 400, "partition"),
        wrong("GET", "/v1/topics/t/dead?after=x", "", "", 400, "after"),
        wrong("POST", "/v1/topics/t/dead/replay", JSON, r#"{"ids": ["x"]}"#, 400, "ids"),
    ]
}

fn shapes() -> Vec<Wrong> {
    vec![
        wrong("PUT", "/v1/topics/u", JSON, r#"{"partition": 3}"#, 400, "partition"),
        wrong("PUT", "/v1/topics/u", JSON, r#"{"partitions": "3"}"#, 400, "partitions"),
        wrong("PUT", "/v1/topics/u", JSON, r#"{"partitions": 0}"#, 400, "partitions"),
        wrong("PUT", "/v1/topics/u", JSON, r#"{"partitions": 4097}"#, 400, "partitions"),
        wrong("PUT", "/v1/topics/u", JSON, r#"{"max_payload": 16777217}"#, 400, "max_payload"),
        wrong("PUT", "/v1/topics/u", JSON, r#"{"retention_ms": 9000000000000}"#, 400, "retention_ms"),
        wrong("PUT", "/v1/topics/u", JSON, "[1]", 400, "body"),
        wrong("PUT", "/v1/topics/u", JSON, "{", 400, "body"),
        wrong("PATCH", "/v1/topics/t", JSON, r#"{"partitions": 1}"#, 409, "partitions"),
        wrong("POST", "/v1/topics/t/trim", JSON, "{}", 400, "keep"),
        wrong("POST", FETCH, JSON, r#"{"max": 0}"#, 400, "max"),
        wrong("POST", FETCH, JSON, r#"{"max": 501}"#, 400, "max"),
        wrong("POST", FETCH, JSON, r#"{"wait_ms": 30001}"#, 400, "wait_ms"),
        wrong("POST", FETCH, JSON, r#"{"lease_ms": 99}"#, 400, "lease_ms"),
        wrong("POST", FETCH, JSON, r#"{"wait": 1}"#, 400, "wait"),
        wrong("POST", SETTLE, JSON, r#"{"nack": [{"reason": "x"}]}"#, 400, "nack[0].delivery"),
        wrong(
            "POST",
            SETTLE,
            JSON,
            r#"{"extend": [{"delivery": "x", "lease_ms": 1}]}"#,
            400,
            "extend.lease_ms",
        ),
        wrong("GET", "/v1/topics/t/dead?max=many", "", "", 400, "max"),
        wrong("GET", "/v1/topics/t/groups/g/pending?sort=colour", "", "", 400, "sort"),
        wrong("GET", "/v1/topics/t/records?partition=9", "", "", 404, "partition"),
        wrong("POST", "/v1/topics/t/dead/delete", JSON, "{}", 400, "ids"),
    ]
}

fn messages() -> Vec<Wrong> {
    let key = format!(r#"{{"payload": "x", "key": "{}"}}"#, "k".repeat(1025));
    let many: String = (0..33).map(|n| format!(r#""h{n}": "v","#)).collect();
    let many = format!(r#"{{"payload": "x", "headers": {{{}}}}}"#, many.trim_end_matches(','));
    let large = format!(r#"{{"payload": "x", "headers": {{"h": "{}"}}}}"#, "v".repeat(9000));
    vec![
        wrong("POST", PRODUCE, JSON, "{}", 400, "payload"),
        wrong("POST", PRODUCE, JSON, "[]", 400, "messages"),
        wrong("POST", PRODUCE, JSON, r#"{"payload": 7}"#, 400, "payload"),
        wrong("POST", PRODUCE, JSON, r#"{"payload": "x", "color": "red"}"#, 400, "color"),
        wrong("POST", PRODUCE, JSON, r#"{"payload_base64": "***"}"#, 400, "payload_base64"),
        wrong("POST", PRODUCE, JSON, r#"{"payload": "x", "key": "a", "key_base64": "YQ=="}"#, 400, "key"),
        wrong("POST", PRODUCE, JSON, &key, 400, "key"),
        wrong("POST", PRODUCE, JSON, r#"{"payload": "x", "headers": {"": "v"}}"#, 400, "headers"),
        wrong("POST", PRODUCE, JSON, &many, 400, "headers"),
        wrong("POST", PRODUCE, JSON, &large, 400, "headers"),
        wrong("POST", PRODUCE, JSON, r#"{"payload": "x", "after_ms": 31622400001}"#, 400, "after_ms"),
        wrong("POST", PRODUCE, JSON, r#"{"payload": "x", "after_ms": 1, "at_ms": 1}"#, 400, "after_ms"),
        wrong("POST", PRODUCE, JSON, r#"{"payload": "x", "partition": 2}"#, 404, "partition"),
        wrong("POST", PRODUCE, JSON, r#"[{"payload": "x"}, {"json": 1, "payload": "x"}]"#, 400, "payload"),
        wrong("POST", PRODUCE, LINES, "{\"payload\": \"x\"}\n{\"payload\":", 400, "payload"),
        wrong("POST", PRODUCE, "Content-Type: text/plain", "x", 415, "Content-Type"),
        wrong("POST", PRODUCE, "", "x", 415, "Content-Type"),
        (
            "POST",
            PRODUCE.into(),
            vec![JSON, "Content-Encoding: gzip"],
            b"x".to_vec(),
            415,
            "Content-Encoding",
        ),
        ("POST", PRODUCE.into(), vec![JSON], b"{\"payload\": \"\xff\"}".to_vec(), 400, "payload"),
        ("POST", PRODUCE.into(), vec![BYTES, "Firth-Partition: x"], b"x".to_vec(), 400, "Firth-Partition"),
        ("POST", PRODUCE.into(), vec![BYTES, "Firth-Partition: 7"], b"x".to_vec(), 404, "Firth-Partition"),
        ("POST", PRODUCE.into(), vec![BYTES, "Firth-Key-Base64: *"], b"x".to_vec(), 400, "Firth-Key-Base64"),
        ("POST", PRODUCE.into(), vec![BYTES, "Firth-After-Ms: -1"], b"x".to_vec(), 400, "Firth-After-Ms"),
        (
            "POST",
            PRODUCE.into(),
            vec![JSON, "Idempotency-Key:"],
            b"{\"payload\": \"x\"}".to_vec(),
            400,
            "Idempotency-Key",
        ),
    ]
}

#[test]
fn every_wrong_request_names_the_field_and_the_limit() {
    let server = Server::memory();
    server.put("/v1/topics/t", &json!({ "partitions": 2, "max_payload": 1024 })).expect(201);
    server.put("/v1/topics/t/groups/g", &json!({})).expect(201);
    let mut told = String::new();
    let mut differs = String::new();
    for (method, path, headers, body, status, field) in [names(), shapes(), messages()].concat() {
        let reply = call(server.address, method, &path, &headers, &body);
        let problem = reply.json();
        let shown = String::from_utf8_lossy(&body);
        let short: String = shown.chars().take(60).collect();
        if (reply.status, &problem["field"]) != (status, &json!(field)) {
            writeln!(differs, "{method} {path} {short}: {field} and not {problem}").unwrap();
        }
        assert!(reply.head.contains("application/problem+json"), "{reply:?}");
        let path = path.replace(&"a".repeat(129), "aaa…");
        writeln!(told, "{method} {path} {short}\n    {problem}").unwrap();
    }
    assert!(differs.is_empty(), "{differs}");
    pin("problems.txt", &told);
}

/// Compares with the pinned text; with `UPDATE_PINNED=1` writes it anew.
fn pin(file: &str, told: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it").join(file);
    if std::env::var_os("UPDATE_PINNED").is_some() {
        std::fs::write(&path, told).unwrap();
    }
    let pinned = std::fs::read_to_string(&path).unwrap_or_default();
    for (index, (told, pinned)) in told.lines().zip(pinned.lines()).enumerate() {
        assert_eq!(
            told,
            pinned,
            "{file}, line {}: if that is meant, run once with UPDATE_PINNED=1",
            index + 1
        );
    }
    assert_eq!(
        told.lines().count(),
        pinned.lines().count(),
        "{file} has another length: UPDATE_PINNED=1 writes it anew"
    );
}

fn problem_of(answer: &str) -> Value {
    let body = answer.split("\r\n\r\n").nth(1).unwrap_or_else(|| panic!("no answer: {answer:?}"));
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"))
}

#[test]
fn sizes_are_bounded_and_the_bound_is_named() {
    let server = Server::with(&["limits.request_size=256KiB", "limits.buffered=300KiB"]);
    server.put("/v1/topics/t", &json!({ "max_payload": 1024 })).expect(201);
    let long = call(server.address, "POST", PRODUCE, &[BYTES], &[0; 1025]);
    assert_eq!(
        (long.status, &long.json()["field"], &long.json()["limit"]),
        (400, &json!("payload"), &json!(1024))
    );
    let huge = call(server.address, "POST", PRODUCE, &[BYTES], &vec![0; 256 * 1024 + 1]);
    assert_eq!(
        (huge.status, &huge.json()["field"], &huge.json()["limit"]),
        (413, &json!("body"), &json!(256 * 1024))
    );
    // One body waits almost sent, so that there is no room for another.
    let head = |size: usize| {
        format!("POST {PRODUCE} HTTP/1.1\r\nHost: localhost\r\n{BYTES}\r\nContent-Length: {size}\r\n\r\n")
    };
    let deadline = std::time::Instant::now() + crate::world::PATIENCE;
    loop {
        // Of two bodies that arrive together either may find no room: then the first begins again.
        let mut waiting = std::net::TcpStream::connect(server.address).unwrap();
        let _ = std::io::Write::write_all(&mut waiting, head(200_000).as_bytes());
        let _ = std::io::Write::write_all(&mut waiting, &vec![0; 199_999]);
        let full = call(server.address, "POST", PRODUCE, &[BYTES], &vec![0; 200_000]);
        if full.status == 429 {
            assert_eq!(full.json()["limit"], json!(300 * 1024));
            break;
        }
        assert!(std::time::Instant::now() < deadline, "never full: {full:?}");
    }
    let headers: String = (0..101).map(|n| format!("X-H{n}: v\r\n")).collect();
    let many = raw(
        server.address,
        format!("GET /v1 HTTP/1.1\r\nHost: localhost\r\n{headers}Connection: close\r\n\r\n").as_bytes(),
        false,
    );
    assert!(many.starts_with("HTTP/1.1 431"), "{many}");
    assert_eq!((&problem_of(&many)["field"], &problem_of(&many)["limit"]), (&json!("headers"), &json!(100)));
}

#[test]
fn slow_clients_are_told_which_part_was_too_slow() {
    let server = Server::with(&["limits.head_time=400ms", "limits.body_time=400ms"]);
    server.topic("t", &[]);
    let head = raw(server.address, b"GET /v1 HTTP/1.1\r\nHost: loc", false);
    assert!(head.starts_with("HTTP/1.1 408"), "{head:?}");
    assert_eq!((&problem_of(&head)["field"], &problem_of(&head)["limit"]), (&json!("head"), &json!(400)));
    let half = format!(
        "POST {PRODUCE} HTTP/1.1\r\nHost: localhost\r\n{JSON}\r\nContent-Length: 100\r\nConnection: close\r\n\r\n{{\"pay"
    );
    let body = raw(server.address, half.as_bytes(), false);
    assert!(body.starts_with("HTTP/1.1 408"), "{body:?}");
    assert_eq!((&problem_of(&body)["field"], &problem_of(&body)["limit"]), (&json!("body"), &json!(400)));
}

#[test]
fn a_body_that_breaks_off_stores_nothing_and_harms_nobody() {
    let server = Server::memory();
    server.topic("t", &[]);
    let half = format!(
        "POST {PRODUCE} HTTP/1.1\r\nHost: localhost\r\n{LINES}\r\nContent-Length: 100\r\nConnection: close\r\n\r\n{{\"payload\":\"x\"}}\n"
    );
    let answer = raw(server.address, half.as_bytes(), true);
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400"), "{answer:?}");
    assert_eq!(server.get("/v1/topics/t").expect(200).json()["records"], 0);
    let nonsense = raw(server.address, b"\x16\x03\x01\x02\x00 hello\r\n\r\n", false);
    assert!(nonsense.is_empty() || nonsense.starts_with("HTTP/1.1 400"), "{nonsense:?}");
    server.get("/health/ready").expect(200);
}

#[test]
fn bytes_travel_unchanged_with_key_headers_and_delay_in_http_headers() {
    let server = Server::memory();
    server.topic("t", &[]);
    let headers = [
        BYTES,
        "Firth-Key: ada",
        "Firth-Header-Color: red",
        "Firth-Header-Color: blue",
        "Firth-Partition: 1",
    ];
    let receipt = call(server.address, "POST", PRODUCE, &headers, &[255, 0, 10]).expect(200).json();
    assert_eq!(receipt["receipts"][0]["partition"], 1);
    let some = server.fetch("t", "g", &json!({ "wait_ms": 5000 }));
    let record = &some[0]["record"];
    assert_eq!((&record["payload_base64"], &record["key"]), (&json!("/wAK"), &json!("ada")));
    assert_eq!(record["headers"]["color"], json!(["red", "blue"]));
    call(server.address, "POST", PRODUCE, &[BYTES, "Firth-After-Ms: 3600000"], b"later").expect(200);
    let delayed = server.get("/v1/topics/t/delayed").expect(200).json();
    assert_eq!(delayed["count"], 1);
    assert!(delayed["next_ms"].as_u64().unwrap() > 3_000_000, "{delayed}");
}

#[test]
fn groups_are_created_reset_listed_released_and_deleted() {
    let server = Server::memory();
    server.topic("t", &["a", "b"]);
    server.put("/v1/topics/t/groups/late", &json!({ "start": "newest" })).expect(201);
    server.put("/v1/topics/t/groups/late", &json!({})).expect(200);
    assert_eq!(server.lag("t", "late"), 0);
    let moved = server.post("/v1/topics/t/groups/late/reset", &json!({ "to": "oldest" })).expect(200).json();
    assert_eq!(moved["lag"], 2);
    let some = server.fetch("t", "late", &json!({ "wait_ms": 5000 }));
    let nack = json!([{ "delivery": some[0]["delivery"], "reason": "busy", "after_ms": 3_600_000 }]);
    server.settle("t", "late", &json!({ "nack": nack }));
    let pending =
        server.get("/v1/topics/t/groups/late/pending?sort=attempt&descending=true").expect(200).json();
    assert_eq!((&pending["total"], &pending["records"][0]["reason"]), (&json!(1), &json!("busy")));
    assert_eq!(
        (&pending["records"][0]["attempt"], &pending["records"][0]["id"]),
        (&json!(2), &some[0]["record"]["id"])
    );
    let members = server.get("/v1/topics/t/groups/late/members").expect(200).json();
    assert_eq!(members["members"].as_array().unwrap().len(), 1);
    let partition = &some[0]["record"]["partition"];
    server.post(&format!("/v1/topics/t/groups/late/partitions/{partition}/release"), &json!({})).expect(204);
    server.call("DELETE", "/v1/topics/t/groups/late", None).expect(204);
    server.call("DELETE", "/v1/topics/t/groups/late", None).problem(404, "not found");
    server.get("/v1/topics/t/groups/late").problem(404, "not found");
}

#[test]
fn a_dead_letter_is_edited_in_its_place_and_comes_again() {
    let server = Server::memory();
    server.topic("t", &["bad"]);
    let some = server.fetch("t", "g", &json!({ "wait_ms": 5000 }));
    server.settle("t", "g", &json!({ "reject": [{ "delivery": some[0]["delivery"], "reason": "no" }] }));
    let page = server.get("/v1/topics/t/dead").expect(200).json();
    let edit = json!({ "id": page["letters"][0]["id"], "message": { "payload": "good" } });
    assert_eq!(server.post("/v1/topics/t/dead/edit", &edit).expect(200).json()["count"], 1);
    let again = server.fetch("t", "g", &json!({ "wait_ms": 5000 }));
    assert_eq!((&again[0]["record"]["payload"], &again[0]["record"]["attempt"]), (&json!("good"), &json!(1)));
    server.post("/v1/topics/t/dead/edit", &edit).problem(404, "not found");
}

#[test]
fn a_topic_grows_and_changes_and_is_trimmed() {
    let server = Server::memory();
    server.topic("t", &["a", "b", "c"]);
    let changed = server.call(
        "PATCH",
        "/v1/topics/t",
        Some(("application/json", r#"{"partitions": 4, "retention_records": 10}"#)),
    );
    let changed = changed.expect(200).json();
    assert_eq!((&changed["partitions"], &changed["retention_records"]), (&json!(4), &json!(10)));
    let trimmed = server.post("/v1/topics/t/trim", &json!({ "keep": 0 })).expect(200).json();
    assert_eq!(trimmed["removed"], 3);
    assert_eq!(server.get("/v1/topics/t").json()["records"], 0);
}
