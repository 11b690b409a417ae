//! Trace context and OTLP: from the caller's header through the message to the consumer, and to a
//! collector.

use crate::talk::call;
use crate::world::{PATIENCE, Server, Value, json};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::time::Instant;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const JSON: &str = "Content-Type: application/json";

type Seen = Arc<Mutex<Vec<(String, Value)>>>;

/// A collector that takes everything.
fn collector() -> (SocketAddr, Seen) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let seen = Seen::default();
    let all = seen.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let all = all.clone();
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stream);
                while let Some((path, body)) = request(&mut reader) {
                    all.lock().unwrap().push((path, body));
                    let _ = reader.get_mut().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}");
                }
            });
        }
    });
    (address, seen)
}

fn request(reader: &mut impl BufRead) -> Option<(String, Value)> {
    let mut head = String::new();
    let mut length = 0;
    while !head.ends_with("\r\n\r\n") {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
        head.push_str(&line);
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((head.split(' ').nth(1)?.to_owned(), serde_json::from_slice(&body).ok()?))
}

fn spans(seen: &Seen) -> Vec<Value> {
    let seen = seen.lock().unwrap();
    let traces = seen.iter().filter(|(path, _)| path == "/v1/traces");
    traces
        .flat_map(|(_, body)| body["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap().clone())
        .collect()
}

#[test]
fn a_trace_goes_from_the_request_through_the_message_to_the_consumer() {
    let server = Server::memory();
    server.topic("t", &[]);
    call(server.address, "POST", "/v1/topics/t/records", &[JSON, PARENT], br#"{"payload": "x"}"#).expect(200);
    let own = br#"{"payload": "y", "headers": {"traceparent": "mine"}, "partition": 1}"#;
    call(server.address, "POST", "/v1/topics/t/records", &[JSON, PARENT], own).expect(200);
    let mut found = Vec::new();
    while found.len() < 2 {
        found.extend(server.fetch("t", "g", &json!({ "max": 2, "wait_ms": 5000 })));
    }
    let trace = |payload: &str| {
        let one = found.iter().find(|one| one["record"]["payload"] == payload).unwrap();
        one["record"]["headers"]["traceparent"].as_str().unwrap().to_owned()
    };
    assert_eq!(trace("x"), PARENT.strip_prefix("traceparent: ").unwrap());
    assert_eq!(trace("y"), "mine", "a message keeps its own context");
}

#[test]
fn spans_and_metrics_reach_a_collector() {
    let (address, seen) = collector();
    let server = Server::with(&[&format!("otlp.endpoint=http://{address}"), "otlp.interval=200ms"]);
    server.topic("t", &[]);
    call(server.address, "POST", "/v1/topics/t/records", &[JSON, PARENT], br#"{"payload": "x"}"#).expect(200);
    let some = server.fetch("t", "g", &json!({ "wait_ms": 5000 }));
    server.settle("t", "g", &json!({ "ack": [some[0]["delivery"]] }));
    let named =
        |name: &str| spans(&seen).into_iter().find(|span| span["name"] == name && span["traceId"] == TRACE);
    let deadline = Instant::now() + PATIENCE;
    let (sent, processed) = loop {
        if let (Some(sent), Some(processed)) = (named("POST /v1/topics/{topic}/records"), named("process t"))
        {
            break (sent, processed);
        }
        assert!(Instant::now() < deadline, "{:?}", spans(&seen));
        std::thread::sleep(std::time::Duration::from_millis(5));
    };
    assert_eq!(
        (&sent["parentSpanId"], &processed["parentSpanId"]),
        (&json!("00f067aa0ba902b7"), &sent["spanId"])
    );
    let counted = |name: &str| {
        let seen = seen.lock().unwrap();
        let metrics = seen.iter().filter(|(path, _)| path == "/v1/metrics");
        let all = metrics.flat_map(|(_, body)| {
            body["resourceMetrics"][0]["scopeMetrics"][0]["metrics"].as_array().unwrap().clone()
        });
        all.rev().find(|metric| metric["name"] == name)
    };
    while counted("firth_produced_total")
        .is_none_or(|metric| metric["sum"]["dataPoints"][0]["asDouble"] != 1.0)
    {
        assert!(Instant::now() < deadline, "metrics never came");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    // No scraper runs: the exporter itself looks at topics and groups.
    while counted("firth_group_lag").is_none() {
        assert!(Instant::now() < deadline, "lag never came");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(counted("firth_http_seconds").unwrap()["histogram"]["dataPoints"][0]["count"].is_string());
    assert!(server.terminate());
}
