//! What was answered is there, however often the server is killed; what was repeated under its key
//! is there once.

use crate::talk::try_call;
use crate::world::{Server, Value, json};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

const PRODUCERS: usize = 4;
const KILLS: usize = 4;

/// What all threads share.
struct Run {
    address: Mutex<SocketAddr>,
    over: AtomicBool,
    acked: Mutex<Vec<String>>,
    count: AtomicUsize,
}

impl Run {
    /// Sends batches; one that is not answered is sent again under its key until it is.
    fn produce(&self, producer: usize) {
        for batch in 0.. {
            if self.over.load(Ordering::Acquire) {
                return;
            }
            let names: Vec<_> = (0..1 + batch % 3).map(|n| format!("{producer}-{batch}-{n}")).collect();
            let messages: Vec<_> =
                names.iter().map(|name| json!({ "payload": name, "key": format!("k{producer}") })).collect();
            let (body, key) =
                (json!(messages).to_string(), format!("Idempotency-Key: request-{producer}-{batch}"));
            let headers = ["Content-Type: application/json", &key];
            loop {
                let address = *self.address.lock().unwrap();
                let reply = try_call(address, "POST", "/v1/topics/orders/records", &headers, body.as_bytes());
                match reply {
                    Some(reply) if reply.status == 200 => break,
                    Some(reply) => assert!(reply.status >= 500, "{reply:?}"),
                    None => std::thread::sleep(Duration::from_millis(2)),
                }
            }
            self.acked.lock().unwrap().extend(names);
            self.count.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Waits until this many more requests were answered.
    fn progress(&self, more: usize) {
        let (start, deadline) =
            (self.count.load(Ordering::Acquire), std::time::Instant::now() + crate::world::PATIENCE);
        while self.count.load(Ordering::Acquire) < start + more {
            assert!(std::time::Instant::now() < deadline, "nothing moves");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Every payload of the topic with how often it is there.
fn stored(server: &Server) -> BTreeMap<String, usize> {
    let mut all = BTreeMap::new();
    for partition in 0..2 {
        let mut after = String::new();
        loop {
            let path = format!("/v1/topics/orders/records?partition={partition}&max=500{after}");
            let page = server.get(&path).expect(200).json();
            for record in page["records"].as_array().unwrap() {
                *all.entry(record["payload"].as_str().unwrap().to_owned()).or_default() += 1;
            }
            match page["next"].as_str() {
                Some(next) => after = format!("&after={next}"),
                None => break,
            }
        }
    }
    all
}

#[test]
fn a_server_killed_at_random_loses_nothing_answered_and_doubles_nothing_repeated() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::on(dir.path());
    server.topic("orders", &[]);
    let run = Run {
        address: Mutex::new(server.address),
        over: AtomicBool::new(false),
        acked: Mutex::default(),
        count: AtomicUsize::new(0),
    };
    let server = std::thread::scope(|scope| {
        for producer in 0..PRODUCERS {
            let run = &run;
            scope.spawn(move || run.produce(producer));
        }
        for round in 0..KILLS {
            run.progress(15 + 7 * round);
            server.kill();
            server = Server::on(dir.path());
            *run.address.lock().unwrap() = server.address;
        }
        run.progress(10);
        run.over.store(true, Ordering::Release);
        server
    });
    let stored = stored(&server);
    let acked = run.acked.into_inner().unwrap();
    for payload in &acked {
        assert_eq!(stored.get(payload), Some(&1), "{payload} of {} answered ones", acked.len());
    }
    assert_eq!(stored.len(), acked.len(), "something is there that nobody sent");
}

#[test]
fn a_repeated_request_gets_the_same_receipts_also_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::on(dir.path());
    server.topic("orders", &[]);
    let body = json!([{ "payload": "a" }, { "payload": "b" }, { "payload": "c", "after_ms": 3_600_000 }])
        .to_string();
    let headers = ["Content-Type: application/json", "Idempotency-Key: order 7, once"];
    let send = |at, body: &str| {
        try_call(at, "POST", "/v1/topics/orders/records", &headers, body.as_bytes()).unwrap()
    };
    let places = |reply: &Value| {
        let receipts = reply["receipts"].as_array().unwrap();
        receipts.iter().map(|one| (one["partition"].clone(), one["id"].clone())).collect::<Vec<_>>()
    };
    let first = send(server.address, &body).expect(200).json();
    assert_eq!(first["receipts"][0]["duplicate"], false);
    assert!(
        send(server.address, &json!([{ "payload": "other" }]).to_string())
            .problem(409, "invalid")
            .contains("Idempotency-Key")
    );
    server.kill();
    let server = Server::on(dir.path());
    let again = send(server.address, &body).expect(200).json();
    assert_eq!(again["receipts"][0]["duplicate"], true);
    assert_eq!(places(&first), places(&again));
    let topic = server.get("/v1/topics/orders").expect(200).json();
    assert_eq!((&topic["records"], &topic["delayed"]), (&json!(2), &json!(1)));
    send(server.address, &json!([{ "payload": "again" }]).to_string()).problem(409, "invalid");
}
