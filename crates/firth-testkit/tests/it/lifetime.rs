//! No fixture leaves a process or a file behind, however the test ends.

use firth_testkit::{Flavor, RedisServer, on_both, wait};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const CHILD_MODE: &str = "FIRTH_TESTKIT_CHILD_MODE";

on_both!(
    a_dropped_server_leaves_no_process_and_no_file,
    a_frozen_server_ends_with_its_fixture,
    a_panicking_test_leaves_no_server,
);

async fn a_dropped_server_leaves_no_process_and_no_file(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let pid = server.pid();
    let dir = server.data_dir();
    assert!(is_alive(pid) && dir.exists());
    drop(server);
    assert!(!is_alive(pid));
    assert!(!dir.exists());
}

async fn a_frozen_server_ends_with_its_fixture(flavor: Flavor) {
    let server = RedisServer::start(flavor).await;
    let pid = server.pid();
    server.freeze();
    drop(server);
    assert!(!is_alive(pid));
}

async fn a_panicking_test_leaves_no_server(flavor: Flavor) {
    let (send, receive) = std::sync::mpsc::channel();
    let failing = tokio::spawn(async move {
        let server = RedisServer::start(flavor).await;
        send.send(server.pid()).unwrap();
        panic!("on purpose");
    });
    assert!(failing.await.is_err());
    assert!(!is_alive(receive.recv().unwrap()));
}

/// Not a law: the part of the next test that runs in a process of its own.
#[tokio::test]
async fn child_mode() {
    if std::env::var_os(CHILD_MODE).is_none() {
        return;
    }
    let server = RedisServer::start(Flavor::Redis).await;
    println!("\nserver {} {}", server.pid(), server.data_dir().display());
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn a_test_process_that_is_killed_takes_its_servers_along() {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "lifetime::child_mode", "--nocapture"])
        .env(CHILD_MODE, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let (pid, dir) = lines
        .map_while(Result::ok)
        .find_map(|line| {
            let (pid, dir) = line.strip_prefix("server ")?.split_once(' ')?;
            Some((pid.parse::<u32>().ok()?, dir.to_owned()))
        })
        .expect("the child names its server");
    assert!(is_alive(pid));
    child.kill().unwrap();
    child.wait().unwrap();
    wait::until(Duration::from_secs(5), "the kernel ends the server", async || !is_alive(pid)).await;
    std::fs::remove_dir_all(dir).unwrap(); // files are the one thing that a killed process leaves
}

/// Whether a process runs; a zombie, whose parent we are not, counts as ended.
fn is_alive(pid: u32) -> bool {
    let status = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("status"));
    status.is_ok_and(|text| !text.contains("State:\tZ"))
}
