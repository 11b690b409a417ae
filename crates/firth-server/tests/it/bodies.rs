//! Bodies in and out: uploads that are slow, pages that end by their bytes, JSON that is very deep.

use crate::on_engines;
use crate::talk::call;
use crate::world::{PATIENCE, Server, json};
use firth_testkit::wait::until;
use std::io::Write;
use std::net::TcpStream;

/// A request whose body stops after these bytes.
fn upload(server: &Server, announced: usize, sent: usize) -> TcpStream {
    let head = format!(
        "POST /v1/topics/t/records HTTP/1.1\r\nHost: {}\r\nContent-Type: application/octet-stream\r\nContent-Length: {announced}\r\n\r\n",
        server.address
    );
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&vec![b'x'; sent]).unwrap();
    stream
}

fn send(server: &Server, bytes: usize) -> u16 {
    let body = vec![b'x'; bytes];
    call(server.address, "POST", "/v1/topics/t/records", &["Content-Type: application/octet-stream"], &body)
        .status
}

/// Waits until this many uploads are under way.
async fn running(server: &Server, count: usize) {
    let wanted = format!("firth_http_requests_running{{route=\"/v1/topics/{{topic}}/records\"}} {count}\n");
    until(PATIENCE, "the uploads are under way", async || {
        server.get("/metrics").expect(200).body.contains(&wanted)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn k06_slow_uploads_take_only_the_room_of_what_arrived() {
    let server = Server::with(&["limits.buffered=1MiB", "limits.request_size=256KiB"]);
    server.topic("t", &["one"]);
    let slow: Vec<_> = (0..16).map(|_| upload(&server, 256 * 1024, 100)).collect();
    running(&server, slow.len()).await;
    assert_eq!(send(&server, 200 * 1024), 200);
    let some = server.fetch("t", "g", &json!({ "wait_ms": 5000 }));
    assert_eq!(server.settle("t", "g", &json!({ "ack": [some[0]["delivery"]] }))["settled"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn k06_small_requests_pass_while_uploads_fill_all_the_room() {
    let server = Server::with(&["limits.buffered=1MiB", "limits.request_size=256KiB"]);
    server.topic("t", &["one"]);
    // All but the last byte of each.
    let slow: Vec<_> = (0..4).map(|_| upload(&server, 256 * 1024, 256 * 1024 - 1)).collect();
    running(&server, slow.len()).await;
    until(PATIENCE, "the room is full", async || send(&server, 200 * 1024) == 429).await;
    assert_eq!(send(&server, 1000), 200);
    let some = server.fetch("t", "g", &json!({ "wait_ms": 5000 }));
    assert_eq!(server.settle("t", "g", &json!({ "ack": [some[0]["delivery"]] }))["settled"], 1);
    server.get("/health/ready").expect(200);
    drop(slow);
    until(PATIENCE, "there is room again", async || send(&server, 200 * 1024) == 200).await;
}

/// Follows `next` to its end.
fn copy(server: &Server, max: usize) -> Vec<String> {
    let mut ids = Vec::new();
    let mut after = String::new();
    loop {
        let page = server.get(&format!("/v1/topics/t/records?max={max}{after}")).expect(200).json();
        let records = page["records"].as_array().unwrap();
        ids.extend(records.iter().map(|record| record["id"].as_str().unwrap().to_owned()));
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => return ids,
        }
    }
}

fn k07_next_leads_to_the_end_also_where_a_page_ends_by_its_bytes(server: &Server) {
    server.put("/v1/topics/t", &json!({ "partitions": 1 })).expect(201);
    for _ in 0..12 {
        assert_eq!(send(server, 1_000_000), 200);
    }
    let ids = copy(server, 100);
    assert_eq!(ids.len(), 12, "{ids:?}");
    assert!(ids.is_sorted());
    assert_eq!(copy(server, 1), ids);
    let last = server.get(&format!("/v1/topics/t/records?max=1&after={}", ids[10])).expect(200).json();
    assert_eq!((&last["records"][0]["id"], &last["next"]), (&json!(ids[11]), &json!(null)));
}

on_engines!(k07_next_leads_to_the_end_also_where_a_page_ends_by_its_bytes);

#[test]
fn k09_very_deep_json_comes_as_text_so_that_every_reader_can_read_the_rest() {
    let server = Server::memory();
    server.topic("t", &[]);
    let nested = |depth: usize| format!("{}\"[\"{}", "[".repeat(depth), "]".repeat(depth));
    for depth in [30, 2000] {
        let body = format!("{{\"key\": \"k\", \"json\": {}}}", nested(depth));
        server.call("POST", "/v1/topics/t/records", Some(("application/json", &body))).expect(200);
    }
    let mut seen = Vec::new();
    while seen.len() < 2 {
        seen.extend(server.fetch("t", "g", &json!({ "max": 10, "wait_ms": 5000 })));
        let ids: Vec<_> = seen.iter().map(|delivery| delivery["delivery"].clone()).collect();
        server.settle("t", "g", &json!({ "ack": ids }));
    }
    let shallow = &seen[0]["record"];
    let deep = &seen[1]["record"];
    assert_eq!(shallow["json"].to_string(), nested(30));
    assert_eq!((deep["payload"].as_str().unwrap(), &deep["json"]), (nested(2000).as_str(), &json!(null)));
}
