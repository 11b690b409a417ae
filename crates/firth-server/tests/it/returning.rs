//! A server that is killed: commands that wait for it go on within a second of its return. An
//! engine that comes back without its last moments says so to each reader.

use crate::world::{PATIENCE, Server, firth, json};
use firth_testkit::wait::until;
use firth_testkit::{Flavor, Persist, Proxy, RedisServer};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Ends the command with the test.
struct Running(Child);

impl Running {
    fn start(args: &[&str], url: &str) -> Self {
        let mut command: Command = firth();
        command.args(args).args(["--server", url]).stdin(Stdio::piped()).stdout(Stdio::piped());
        Self(command.stderr(Stdio::null()).spawn().unwrap())
    }

    /// Its lines, as they come.
    fn lines(&mut self) -> Receiver<String> {
        let out = BufReader::new(self.0.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        lines
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The server is away for so long that the pauses between tries have grown. A machine with other
/// work may be late once, so the best of some rounds counts.
#[tokio::test(flavor = "multi_thread")]
async fn k02_commands_go_on_within_a_second_of_their_servers_return() {
    const AWAY: Duration = Duration::from_millis(3300);
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::on(dir.path());
    server.put("/v1/topics/jobs", &json!({})).expect(201);
    let proxy = Proxy::start(server.address).await;
    let url = format!("http://{}", proxy.addr());
    let mut consuming = Running::start(&["consume", "jobs", "--group", "g", "--follow"], &url);
    let lines = consuming.lines();
    let mut producing = Running::start(&["produce", "jobs", "--retry", "60s"], &url);
    let mut input = producing.0.stdin.take().unwrap();
    let mut say = |line: &str| input.write_all(format!("{line}\n").as_bytes()).unwrap();
    say("before");
    assert_eq!(lines.recv_timeout(PATIENCE).unwrap(), "before");
    let mut best = Duration::MAX;
    for round in 0..3 {
        server.kill();
        let sent = format!("away-{round}");
        say(&sent);
        tokio::time::sleep(AWAY).await;
        server = Server::on(dir.path());
        proxy.retarget(server.address);
        let back = Instant::now();
        while lines.recv_timeout(PATIENCE).unwrap() != sent {}
        best = best.min(back.elapsed());
    }
    assert!(best < Duration::from_secs(1), "{best:?}");
}

/// Redis loses its last records and gives their numbers to others.
#[tokio::test(flavor = "multi_thread")]
async fn k04_a_reader_is_told_that_its_place_is_gone() {
    let redis = RedisServer::builder().flavor(Flavor::Redis).persist(Persist::Rdb).start().await;
    let server = Server::start(firth().args(["serve", "--engine", &redis.url()]), None);
    server.put("/v1/topics/jobs", &json!({})).expect(201);
    let send = |text: &str| server.post("/v1/topics/jobs/records", &json!({ "payload": text }));
    send("kept").expect(200);
    redis.order(&["SAVE"]).await;
    for text in ["lost", "lost too"] {
        send(text).expect(200);
    }
    let page = || server.get("/v1/topics/jobs/records").expect(200).json()["records"].clone();
    let seen = page();
    redis.kill().await;
    redis.restart().await;
    until(PATIENCE, "the server has its engine again", async || send("new").status == 200).await;
    let after = |record: usize| {
        let id = seen[record]["id"].as_str().unwrap();
        server.get(&format!("/v1/topics/jobs/records?after={id}"))
    };
    for lost in [1, 2] {
        let told = after(lost).problem(409, "went back");
        assert!(!told.is_empty());
    }
    let rest = after(0).expect(200).json()["records"].clone();
    let payloads: Vec<_> = rest.as_array().unwrap().iter().map(|record| &record["payload"]).collect();
    assert!(payloads.iter().all(|payload| *payload == "new"), "{payloads:?}");
}
