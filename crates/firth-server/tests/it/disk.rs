//! A disk that is nearly full: what is sent is refused at once and clearly, and the rest goes on.

use crate::world::{PATIENCE, Server, json, stdout};
use firth_testkit::cannot_run;
use firth_testkit::wait::until;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// A small disk.
struct Mount<'a>(&'a Path);

impl<'a> Mount<'a> {
    fn new(dir: &'a Path) -> Option<Self> {
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", "size=512m", "tmpfs"]).arg(dir);
        match command.output() {
            Ok(output) if output.status.success() => Some(Self(dir)),
            _ => {
                cannot_run("mount", "mounting a small disk is not allowed here");
                None
            }
        }
    }
}

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.0).status();
    }
}

fn told(command: &mut Command) -> String {
    stdout(&command.output().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn u13_on_a_low_disk_sending_is_refused_at_once_and_a_new_group_drains_the_topic() {
    let dir = tempfile::tempdir().unwrap();
    let Some(_mount) = Mount::new(dir.path()) else { return };
    let server = Server::on(dir.path());
    server.topic("t", &["one"]);
    server.get("/health/ready").expect(200);
    // The filler leaves 64 MiB of the free space, less than the 128 MiB that a server wants.
    let filler = dir.path().join("filler");
    let free = told(Command::new("df").args(["--output=avail", "-B1"]).arg(dir.path()));
    let free: u64 = free.lines().last().unwrap().trim().parse().unwrap();
    told(Command::new("fallocate").args(["-l", &(free - (64 << 20)).to_string()]).arg(&filler));

    let started = Instant::now();
    let send = || server.post("/v1/topics/t/records", &json!({ "payload": "two" }));
    let refused = send().problem(503, "unavailable");
    assert!(refused.contains("MiB free"), "{refused}");
    assert!(started.elapsed() < Duration::from_secs(15), "it took {:?}", started.elapsed());
    assert!(server.get("/health/ready").problem(503, "unavailable").contains("MiB free"));
    server.get("/health/live").expect(200);

    // The committer looks at the disk now and then: by now it may or may not have seen it.
    server.put("/v1/topics/t/groups/drain", &json!({})).expect(201);
    let some = server.fetch("t", "drain", &json!({ "wait_ms": 5000 }));
    assert_eq!(server.settle("t", "drain", &json!({ "ack": [some[0]["delivery"]] }))["settled"], 1);

    std::fs::remove_file(&filler).unwrap();
    until(PATIENCE, "sending goes on by itself", async || send().status == 200).await;
    server.get("/health/ready").expect(200);
}
