//! A running `firth serve` on files, and the driver over HTTP: the same lines, the same judge.

use crate::process::{ack_all, silence};
use crate::stage::Stage;
use crate::world::{World, is_assigned, is_delivered, is_sent, message};
use firth_driver::{Command, Event};
use firth_testkit::ports::Port;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Mutex;
use tempfile::TempDir;

/// Killed and reaped when dropped; the same port and the same files after a restart.
pub(crate) struct Server {
    // dropped before the folder that it writes into
    child: Mutex<Child>,
    port: Port,
    dir: TempDir,
}

impl Server {
    pub(crate) fn start() -> Self {
        let port = Port::reserve();
        let dir = tempfile::tempdir().unwrap();
        Self { child: Mutex::new(launch(&port, dir.path())), port, dir }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.port.addr())
    }

    /// `kill -9`, and a new one on what it left.
    pub(crate) fn restart(&self) {
        let mut child = self.child.lock().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        *child = launch(&self.port, self.dir.path());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let child = self.child.get_mut().unwrap();
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Starts a server that syncs before it answers; back when it listens.
fn launch(port: &Port, dir: &Path) -> Child {
    let engine = format!("file:{}", dir.join("data").display());
    let mut command = std::process::Command::new(binary());
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("FIRTH_")) {
        command.env_remove(name);
    }
    command.args(["serve", "--engine", &engine, "--listen", &port.addr().to_string()]);
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("http://"), "the server did not start: {line:?}");
    child
}

/// The server's program, which lies beside the driver's: tests of the whole workspace build both.
fn binary() -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_firth-driver")).with_file_name("firth");
    static BUILT: Mutex<bool> = Mutex::new(false);
    let mut built = BUILT.lock().unwrap();
    if !*built && !path.exists() {
        let build = ["build", "--locked", "--package", "firth-server", "--bin", "firth"];
        assert!(std::process::Command::new(env!("CARGO")).args(build).status().unwrap().success());
    }
    *built = true;
    path
}

async fn world(partitions: u32, groups: &[&'static str]) -> World {
    World::on(Stage::served(), "t", partitions, groups).await
}

fn is_refused(event: &Event) -> bool {
    matches!(event, Event::AckErr { definite: true, .. })
}

#[tokio::test]
async fn clients_of_a_server_share_the_work_of_each_group_and_keep_the_order_of_keys() {
    let world = world(4, &["g", "h"]).await;
    let members = [("g1", "g"), ("g2", "g"), ("h1", "h")]
        .map(|(name, group)| world.consumer(name, group, 30_000, ack_all()));
    world
        .until("every client knows the owner", || members.iter().all(|one| one.heard(is_assigned) >= 4))
        .await;
    let producer = world.producer("p");
    (0..500).for_each(|n| producer.send(message("p", n)));
    world.until("everything is sent", || producer.heard(is_sent) == 500).await;
    world.settled().await;
    assert!(producer.finish());
    assert_eq!(members[0].heard(is_delivered) + members[1].heard(is_delivered), 500);
    assert_eq!(members[2].heard(is_delivered), 500);
    assert!(members.into_iter().all(crate::process::Process::finish));
    world.judge().await;
}

#[tokio::test]
async fn over_http_too_a_nack_tries_again_and_a_reject_ends_among_the_dead() {
    let world = world(1, &["g"]).await;
    let policy = |id: &str, epoch, token, attempt| {
        let own = id.to_owned();
        let reason = "never".to_owned();
        Some(match id {
            "p-1" if attempt < 3 => Command::Nack { id: own, token, after_ms: Some(1) },
            "p-2" => Command::Reject { id: own, token, reason },
            _ => Command::Ack { id: own, epoch: Some(epoch), token },
        })
    };
    let member = world.consumer("m", "g", 30_000, Box::new(policy));
    let producer = world.producer("p");
    (0..4).for_each(|n| producer.send(message("p", n)));
    world
        .until("everything is answered", || member.heard(|event| matches!(event, Event::AckOk { .. })) == 6)
        .await;
    member.order(Command::Ack { id: "p-0".into(), epoch: None, token: 1 });
    world.until("a second verdict is refused", || member.heard(is_refused) == 1).await;
    assert!(producer.finish() && member.finish());
    let dead = vec!["p-2".to_owned()];
    assert_eq!(world.tally("g"), Event::Final { pending: 0, due: 0, lag: 0, dead });
    world.judge().await;
}

#[tokio::test]
async fn a_client_that_slept_past_its_lease_settles_nothing() {
    let world = world(1, &["g"]).await;
    let sleeper = world.consumer("m1", "g", 500, silence());
    let producer = world.producer("p");
    (0..10).for_each(|n| producer.send(message("p", n)));
    world.until("everything is in its hands", || sleeper.heard(is_delivered) == 10).await;
    sleeper.stop();
    let heir = world.consumer("m2", "g", 60_000, silence());
    world.until("somebody else has everything", || heir.heard(is_delivered) >= 10).await;
    for event in sleeper.said() {
        if let Event::Delivered { id, epoch, token, .. } = event {
            sleeper.order(Command::Ack { id, epoch: Some(epoch), token });
        }
    }
    sleeper.go_on();
    world.until("every late verdict is refused for certain", || sleeper.heard(is_refused) >= 10).await;
    assert!(matches!(world.tally("g"), Event::Final { lag: 10, .. }), "nothing was settled");
    heir.kill();
    sleeper.kill();
    let last = world.consumer("m3", "g", 30_000, ack_all());
    world.settled().await;
    assert!(producer.finish() && last.finish());
    world.judge().await;
}

#[tokio::test]
async fn a_killed_server_comes_back_with_everything_that_was_acknowledged() {
    let world = world(4, &["g"]).await;
    let member = world.consumer("m", "g", 30_000, ack_all());
    let producer = world.producer("p");
    (0..300).for_each(|n| producer.send(message("p", n)));
    world.until("work is under way", || member.heard(is_delivered) > 20).await;
    world.note_server_fault();
    world.stage.strike(&mut fastrand::Rng::new()).await;
    (300..500).for_each(|n| producer.send(message("p", n)));
    world.until("everything is sent", || producer.heard(is_sent) == 500).await;
    world.settled().await;
    assert!(producer.finish() && member.finish());
    world.judge().await;
}
