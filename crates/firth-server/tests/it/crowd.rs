//! Many clients at a time: no error, nothing lost, bounded memory. The full crowd is
//! `cargo xtask bench server`.

use crate::world::{PATIENCE, Server, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

const MEMBERS: usize = 40;
const EACH: usize = 10;
const GROUPS: usize = 2;
/// Far above what it needs, far below what a leak makes of it.
const MOST_KIB: u64 = 400 * 1024;

#[test]
fn a_crowd_of_producers_and_consumers_meets_no_error_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::on(dir.path());
    server.topic("crowd", &[]);
    for group in 0..GROUPS {
        server.put(&format!("/v1/topics/crowd/groups/g{group}"), &json!({})).success();
    }
    let settled = AtomicUsize::new(0);
    let wanted = MEMBERS * EACH * GROUPS;
    let deadline = Instant::now() + PATIENCE;
    std::thread::scope(|scope| {
        for member in 0..MEMBERS {
            let server = &server;
            let settled = &settled;
            scope.spawn(move || {
                for _ in 0..EACH {
                    let message = json!({ "key": format!("k{member}"), "payload": "x".repeat(256) });
                    server.post("/v1/topics/crowd/records", &message).expect(200);
                }
            });
            scope.spawn(move || {
                let path = format!("/v1/topics/crowd/groups/g{}", member % GROUPS);
                while settled.load(Ordering::Relaxed) < wanted {
                    assert!(
                        Instant::now() < deadline,
                        "{} of {wanted} settled",
                        settled.load(Ordering::Relaxed)
                    );
                    let how = json!({ "max": 50, "wait_ms": 500 });
                    let fetched = server.post(&format!("{path}/fetch"), &how).expect(200).json();
                    let ack: Vec<_> = fetched["deliveries"]
                        .as_array()
                        .unwrap()
                        .iter()
                        .map(|one| &one["delivery"])
                        .collect();
                    if ack.is_empty() {
                        continue;
                    }
                    let report =
                        server.post(&format!("{path}/settle"), &json!({ "ack": ack })).expect(200).json();
                    assert_eq!(report["failed"], json!([]));
                    settled.fetch_add(ack.len(), Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(settled.load(Ordering::Relaxed), wanted);
    assert!(server.memory_kib() < MOST_KIB, "{} KiB", server.memory_kib());
}
