//! Streams: the server sends deliveries as they come, and the client settles them by handle. A
//! client that hangs up gives everything back.

use crate::talk::{Entries, call};
use crate::world::{Server, Value, json};
use nix::sys::signal::Signal;

const STREAM: &str = "/v1/topics/jobs/groups/workers/stream?lease_ms=3600000";

fn ack(server: &Server, delivery: &Value) {
    let report = server.settle("jobs", "workers", &json!({ "ack": [delivery["delivery"]] }));
    assert_eq!((&report["settled"], &report["failed"]), (&json!(1), &json!([])));
}

#[test]
fn deliveries_are_streamed_as_events_and_as_lines_and_settled_by_handle() {
    let server = Server::memory();
    server.topic("jobs", &["one"]);
    let mut events = Entries::open(server.address, STREAM, "text/event-stream");
    assert!(events.head.contains("content-type: text/event-stream"), "{}", events.head);
    let first = events.find("delivery");
    assert_eq!((&first["record"]["payload"], &first["record"]["attempt"]), (&json!("one"), &json!(1)));
    assert!(first["epoch"].as_u64().unwrap() > 0);
    ack(&server, &first);
    drop(events);
    let mut lines = Entries::open(server.address, &format!("{STREAM}&limit=1"), "application/x-ndjson");
    assert!(lines.head.contains("content-type: application/x-ndjson"), "{}", lines.head);
    server.post("/v1/topics/jobs/records", &json!({ "payload": "two" })).expect(200);
    let (_, second) = lines.next().unwrap();
    assert_eq!(second["record"]["payload"], "two");
    ack(&server, &second);
    assert!(lines.next().is_none(), "a limit of one is one");
    assert_eq!(server.lag("jobs", "workers"), 0);
}

#[test]
fn a_consumer_that_disconnects_gives_its_deliveries_back_without_costing_an_attempt() {
    let server = Server::memory();
    server.topic("jobs", &["a", "b", "c"]);
    let mut stream = Entries::open(server.address, STREAM, "text/event-stream");
    let taken: Vec<_> = (0..3).map(|_| stream.find("delivery")).collect();
    ack(&server, &taken[0]);
    drop(stream);
    let mut again = Vec::new();
    while again.len() < 2 {
        again.extend(server.fetch("jobs", "workers", &json!({ "max": 5, "wait_ms": 5000 })));
    }
    assert!(again.iter().all(|one| one["record"]["attempt"] == 1), "{again:?}");
    assert!(again.iter().all(|one| one["record"]["payload"] != taken[0]["record"]["payload"]), "{again:?}");
    // The old handles are good for nothing.
    let late = server.settle("jobs", "workers", &json!({ "ack": [taken[1]["delivery"]] }));
    assert_eq!(late["failed"][0]["kind"], "not found");
}

#[test]
fn a_stream_has_no_more_unsettled_deliveries_than_it_asked_for() {
    let server = Server::memory();
    server.topic("jobs", &["a", "b", "c"]);
    let mut stream = Entries::open(server.address, &format!("{STREAM}&max=1"), "text/event-stream");
    let first = stream.find("delivery");
    // The stream does not hold the other records, so another client can fetch them.
    let mut others = Vec::new();
    while others.len() < 2 {
        others.extend(server.fetch("jobs", "workers", &json!({ "max": 5, "wait_ms": 5000 })));
    }
    let release: Vec<_> = others.iter().map(|one| &one["delivery"]).collect();
    assert_eq!(server.settle("jobs", "workers", &json!({ "release": release }))["settled"], 2);
    ack(&server, &first);
    let second = stream.find("delivery");
    assert_eq!(second["record"]["attempt"], 1, "released without an attempt");
    assert_ne!(second["record"]["payload"], first["record"]["payload"]);
}

#[test]
fn a_stream_ends_when_one_of_its_leases_runs_out() {
    let server = Server::memory();
    server.topic("jobs", &["one"]);
    let path = "/v1/topics/jobs/groups/workers/stream?lease_ms=200";
    let mut stream = Entries::open(server.address, path, "application/x-ndjson");
    let (_, first) = stream.next().unwrap();
    assert_eq!(first["record"]["attempt"], 1);
    assert!(stream.next().is_none(), "whoever sleeps gets no more");
    let again = server.fetch("jobs", "workers", &json!({ "wait_ms": 5000 }));
    assert_eq!(again[0]["record"]["attempt"], 2);
}

#[test]
fn a_lease_can_be_extended_and_then_outlives_its_first_deadline() {
    let server = Server::memory();
    server.topic("jobs", &["slow"]);
    let first = server.fetch("jobs", "workers", &json!({ "wait_ms": 5000, "lease_ms": 1500 }));
    let extend = json!([{ "delivery": first[0]["delivery"], "lease_ms": 3_600_000 }]);
    assert_eq!(server.settle("jobs", "workers", &json!({ "extend": extend }))["settled"], 1);
    let waited =
        server.post("/v1/topics/jobs/groups/workers/fetch", &json!({ "wait_ms": 2500 })).expect(200).json();
    assert_eq!(waited["deliveries"], json!([]), "it came again in spite of the extension");
    ack(&server, &first[0]);
}

#[test]
fn a_signal_ends_streams_and_gives_their_deliveries_back() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::on(dir.path());
    server.topic("jobs", &["work"]);
    let mut stream = Entries::open(server.address, STREAM, "text/event-stream");
    stream.find("delivery");
    server.signal(Signal::SIGTERM);
    stream.find("end");
    assert!(stream.next().is_none());
    assert!(server.ended());
    let server = Server::on(dir.path());
    let again = server.fetch("jobs", "workers", &json!({ "wait_ms": 5000 }));
    assert_eq!(again[0]["record"]["attempt"], 1);
}

#[test]
fn streams_are_bounded_and_a_seat_that_is_left_is_free_again() {
    let server = Server::with(&["limits.streams=1"]);
    server.topic("jobs", &["work"]);
    let mut stream = Entries::open(server.address, STREAM, "text/event-stream");
    stream.find("delivery");
    let refused = server.get("/v1/events");
    assert!(refused.head.contains("retry-after: "), "{}", refused.head);
    assert!(refused.problem(429, "overloaded").contains("limits.streams"));
    drop(stream);
    let deadline = std::time::Instant::now() + crate::world::PATIENCE;
    while server.get("/v1/events?for_ms=0").status != 200 {
        assert!(std::time::Instant::now() < deadline, "the seat was never free");
    }
}

#[test]
fn a_stream_in_no_known_form_or_of_no_topic_is_refused() {
    let server = Server::memory();
    server.topic("jobs", &[]);
    let image = call(server.address, "GET", STREAM, &["Accept: image/png"], b"");
    assert!(image.problem(406, "invalid").contains("text/event-stream"));
    server.get("/v1/topics/none/groups/g/stream").problem(404, "not found");
    server.get(&format!("{STREAM}&max=0")).problem(400, "invalid");
    server.get(&format!("{STREAM}&colour=red")).problem(400, "invalid");
}

#[test]
fn the_feed_tells_topics_groups_members_lag_and_dead_letters() {
    let server = Server::memory();
    let mut feed = Entries::open(server.address, "/v1/events", "text/event-stream");
    server.topic("jobs", &["bad", "good"]);
    assert_eq!(feed.find("topic_created")["topic"], "jobs");
    let some = server.fetch("jobs", "workers", &json!({ "wait_ms": 5000 }));
    assert!(feed.find("member_joined")["member"].as_str().unwrap().starts_with("http"));
    let reject = json!([{ "delivery": some[0]["delivery"], "reason": "no" }]);
    server.settle("jobs", "workers", &json!({ "reject": reject }));
    let dead = feed.find("dead_letter");
    assert_eq!(
        (&dead["topic"], &dead["group"], &dead["count"]),
        (&json!("jobs"), &json!("workers"), &json!(1))
    );
    server
        .post("/v1/topics/jobs/groups/workers/reset", &json!({ "to": "newest", "drop_due": true }))
        .expect(200);
    assert_eq!(feed.find("group_reset")["group"], "workers");
    server.call("DELETE", "/v1/topics/jobs", None).expect(204);
    assert_eq!(feed.find("topic_deleted")["topic"], "jobs");
}
