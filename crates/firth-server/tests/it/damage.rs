//! A damaged partition never looks like an empty one: every way to read it says what is wrong.

use crate::world::{PATIENCE, Server, engine, json, run};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The largest table file below a folder.
fn largest(dir: &Path) -> (u64, PathBuf) {
    let mut found = (0, dir.to_owned());
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        let candidate = match path.is_dir() {
            true => largest(&path),
            false => (path.metadata().map_or(0, |meta| meta.len()), path),
        };
        found = found.max(candidate);
    }
    found
}

/// A directory with a topic `orders` of one partition, in the middle of whose tables 64 bytes are
/// overwritten.
fn damaged(dir: &Path) {
    let tables = dir.join("data/store/keyspaces");
    let server = Server::on(dir);
    server.put("/v1/topics/orders", &json!({ "partitions": 1 })).expect(201);
    for _ in 0..40 {
        let noise: String = std::iter::repeat_with(fastrand::alphanumeric).take(50_000).collect();
        server.post("/v1/topics/orders/records", &json!({ "payload": noise })).expect(200);
    }
    // What an unclean end leaves in the journal goes to tables at the next start.
    server.kill();
    let server = Server::on(dir);
    let deadline = Instant::now() + PATIENCE;
    while largest(&tables).0 < 500_000 {
        assert!(Instant::now() < deadline, "nothing reached a table");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(server.terminate());
    let (size, table) = largest(&tables);
    let file = std::fs::OpenOptions::new().write(true).open(table).unwrap();
    file.write_all_at(&[7; 64], size / 2).unwrap();
}

#[test]
fn u05_every_reader_of_a_damaged_partition_is_told() {
    let dir = tempfile::tempdir().unwrap();
    damaged(dir.path());
    let server = Server::on(dir.path());
    server.get("/health/ready").expect(200);
    let fetch = json!({ "max": 100, "wait_ms": 500 });
    let path = "/v1/topics/orders/groups/g/fetch";
    let deadline = Instant::now() + PATIENCE;
    let told = loop {
        let reply = server.post(path, &fetch);
        if reply.status != 200 {
            break reply.problem(500, "corrupt");
        }
        assert!(Instant::now() < deadline, "fetching never failed: {reply:?}");
    };
    assert!(told.contains("orders/0"), "{told}");
    let again = server.post(path, &fetch).problem(500, "corrupt");
    assert!(again.contains("orders/0"), "also whoever asks again: {again}");
    let told = server.get("/health/ready").problem(503, "corrupt");
    assert!(told.contains("orders/0"), "{told}");
    let doctor = run(&["doctor", "--server", &server.url()]);
    let told = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(!doctor.status.success() && told.contains("orders/0"), "{told}");
    let online = run(&["check", "--server", &server.url()]);
    let told = String::from_utf8_lossy(&online.stdout).into_owned();
    assert!(!online.status.success() && told.contains("orders/0  it cannot be read behind record"), "{told}");
    let file = dir.path().join("firth.backup");
    let backup = run(&["backup", file.to_str().unwrap(), "--server", &server.url()]);
    let told = String::from_utf8_lossy(&backup.stderr).into_owned();
    assert!(!backup.status.success() && told.contains("--set-aside orders/0"), "{told}");
    assert!(!file.exists() && !dir.path().join("firth.backup.partial").exists());
    let data = dir.path().join("data");
    let used = run(&["check", data.to_str().unwrap()]);
    assert_eq!(used.status.code(), Some(6), "{used:?}");
    assert!(server.terminate());

    let consume = run(&["consume", "orders", "--group", "other", "--engine", &engine(dir.path())]);
    let told = String::from_utf8_lossy(&consume.stderr).into_owned();
    assert!(!consume.status.success() && told.contains("orders/0"), "{told}");

    set_aside(dir.path());
}

/// What is readable is counted, moved away, and the rest serves.
fn set_aside(dir: &Path) {
    let data = dir.join("data");
    let data = data.to_str().unwrap();
    let checked = run(&["check", data]);
    let told = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(!checked.status.success() && told.contains("orders/0") && told.contains("can be read"), "{told}");
    let advice = String::from_utf8_lossy(&checked.stderr).into_owned();
    assert!(advice.contains(&format!("firth check {data} --set-aside orders/0")), "{advice}");
    let done = run(&["check", data, "--set-aside", "orders/0", "--yes", "--json"]);
    let done: serde_json::Value = serde_json::from_str(&crate::world::stdout(&done)).unwrap();
    let lost = done["partitions"][0]["unreadable"].as_u64().unwrap();
    let (moved, behind) =
        (done["moved"].as_u64().unwrap(), done["partitions"][0]["behind"].as_u64().unwrap());
    assert_eq!((moved + lost + behind, lost > 0), (40, true), "{done}");
    crate::world::stdout(&run(&["check", data]));
    let server = Server::on(dir);
    assert_eq!(server.get("/v1/topics/orders").expect(200).json()["records"], behind);
    server.post("/v1/topics/orders/records", &json!({ "payload": "it goes on" })).expect(200);
    server.get("/health/ready").expect(200);
    assert!(server.terminate());
    let other = dir.join("moved");
    let file = done["file"].as_str().unwrap();
    crate::world::stdout(&run(&["restore", file, other.join("data").to_str().unwrap()]));
    let server = Server::on(&other);
    assert_eq!(server.get("/v1/topics/orders").expect(200).json()["records"], moved);
    assert!(server.terminate());
}
