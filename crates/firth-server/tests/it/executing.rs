//! Commands that handle records and claims: what they survive, and what ends them.

use crate::world::{PATIENCE, Server, firth, run};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// A folder in which commands tell what they do, and a gate at which they wait.
struct Stage(tempfile::TempDir);

impl Stage {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A command that says `begun`, waits for the gate, and says `done`.
    fn gated(&self) -> String {
        let [log, gate] = ["log", "gate"].map(|name| self.file(name).display().to_string());
        format!("echo begun >> {log}; while [ ! -f {gate} ]; do sleep 0.02; done; echo done >> {log}")
    }

    fn open_gate(&self) {
        std::fs::write(self.file("gate"), "").unwrap();
    }

    fn said(&self) -> Vec<String> {
        let log = std::fs::read_to_string(self.file("log")).unwrap_or_default();
        log.lines().map(str::to_owned).collect()
    }

    fn until_begun(&self) {
        until("a command began", || self.said().contains(&"begun".to_owned()));
    }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

/// Starts it as a terminal does: in a process group of its own.
fn spawn(args: &[&str]) -> Child {
    let mut command: Command = firth();
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.process_group(0).spawn().unwrap()
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(child.id().try_into().unwrap())
}

fn consume<'a>(url: &'a str, shell: &'a str) -> Vec<&'a str> {
    vec!["consume", "jobs", "--group", "g", "--follow", "--exec", shell, "--server", url]
}

#[test]
fn u01_a_follower_goes_on_when_its_verdict_comes_too_late() {
    let server = Server::memory();
    let stage = Stage::new();
    server.topic("jobs", &["one"]);
    let url = server.url();
    let shell = stage.gated();
    let mut following = spawn(&consume(&url, &shell));
    stage.until_begun();
    // The group is left and joined again, so the delivery in hand is void.
    assert!(run(&["group", "policy", "jobs", "g", "--attempts", "4", "--server", &url]).status.success());
    stage.open_gate();
    until("the record was settled after all", || server.lag("jobs", "g") == 0);
    server.post("/v1/topics/jobs/records", &serde_json::json!({ "payload": "two" })).expect(200);
    until("the next record was handled", || stage.said().iter().filter(|word| *word == "begun").count() >= 3);
    until("and settled", || server.lag("jobs", "g") == 0);
    kill(pid(&following), Signal::SIGTERM).unwrap();
    assert_eq!(following.wait().unwrap().code(), Some(0));
}

#[test]
fn u01_a_follower_waits_for_a_topic_that_was_deleted() {
    let server = Server::memory();
    let stage = Stage::new();
    server.topic("jobs", &["one"]);
    stage.open_gate();
    let url = server.url();
    let shell = stage.gated();
    let mut following = spawn(&consume(&url, &shell));
    until("the first record was settled", || stage.said() == ["begun", "done"]);
    server.call("DELETE", "/v1/topics/jobs", None).expect(204);
    server.topic("jobs", &["again"]);
    until("the new topic's record was handled", || stage.said().len() >= 4);
    kill(pid(&following), Signal::SIGTERM).unwrap();
    assert_eq!(following.wait().unwrap().code(), Some(0));
}

#[test]
fn u07_ctrl_c_lets_the_running_command_end_and_starts_no_other() {
    let server = Server::memory();
    let stage = Stage::new();
    server.topic("jobs", &["one", "two", "three"]);
    let url = server.url();
    let shell = stage.gated();
    let mut following = spawn(&consume(&url, &shell));
    stage.until_begun();
    // A terminal sends it to the whole group.
    killpg(pid(&following), Signal::SIGINT).unwrap();
    stage.open_gate();
    assert_eq!(following.wait().unwrap().code(), Some(0));
    assert_eq!(stage.said(), ["begun", "done"]);
    assert_eq!(server.lag("jobs", "g"), 2);
    let pending = server.get("/v1/topics/jobs/groups/g/pending").expect(200).json();
    assert_eq!(pending["total"], 0, "no record used an attempt: {pending}");
}

#[test]
fn u07_a_second_ctrl_c_stops_the_command_and_costs_no_attempt() {
    let server = Server::memory();
    let stage = Stage::new();
    server.topic("jobs", &["one"]);
    let url = server.url();
    let shell = stage.gated();
    let mut following = spawn(&consume(&url, &shell));
    stage.until_begun();
    until("it ended", || {
        killpg(pid(&following), Signal::SIGINT).unwrap();
        following.try_wait().unwrap().is_some()
    });
    assert_eq!(following.wait().unwrap().code(), Some(0));
    assert_eq!(stage.said(), ["begun"], "the command was stopped");
    let again = server.fetch("jobs", "g", &serde_json::json!({ "max": 1, "wait_ms": 1000 }));
    assert_eq!(again[0]["record"]["attempt"], 1);
}

#[test]
fn u13_a_command_that_is_not_there_ends_consume_and_costs_no_attempt() {
    let server = Server::memory();
    server.topic("jobs", &["one"]);
    let ended = run(&consume(&server.url(), "/no/such/command"));
    assert_eq!(ended.status.code(), Some(2));
    let told = String::from_utf8(ended.stderr).unwrap();
    assert!(told.contains("--exec: the command could not run"), "{told}");
    let again = server.fetch("jobs", "g", &serde_json::json!({ "max": 1, "wait_ms": 1000 }));
    assert_eq!(again[0]["record"]["attempt"], 1);
}

/// Whether the process is there and no zombie.
fn lives(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.trim_start().starts_with('Z'))
}

fn number_in(file: &Path) -> Option<i32> {
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[test]
fn u09_commands_die_with_a_worker_that_was_killed() {
    let server = Server::memory();
    let stage = Stage::new();
    let url = server.url();
    assert!(run(&["claims", "offer", "calls", "one", "--server", &url]).status.success());
    let file = stage.file("pid");
    // The child of the shell outlives the shell unless the whole group is killed.
    let shell = format!("sleep 600 & echo $! > {0}.new; mv {0}.new {0}; wait", file.display());
    let mut working = spawn(&["claims", "work", "calls", "--exec", &shell, "--server", &url]);
    until("the command began", || number_in(&file).is_some());
    let command = number_in(&file).unwrap();
    assert!(lives(command));
    working.kill().unwrap();
    working.wait().unwrap();
    until("the command is dead", || !lives(command));
}
