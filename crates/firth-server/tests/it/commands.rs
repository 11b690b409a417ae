//! The command line, against a server and on an engine of its own; and what the documents promise.

use crate::world::{PATIENCE, Server, engine, firth, json, run, stdout};
use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::time::Instant;

/// The same commands, wherever they go.
fn tour(target: &[&str]) {
    let ask = |args: &[&str]| run(&[args, target].concat());
    let say = |args: &[&str]| stdout(&ask(args));
    assert!(say(&["topic", "create", "orders", "--partitions", "2"]).contains("orders"));
    assert_eq!(say(&["produce", "orders", "one", "two", "--key", "k"]), "sent 2 to orders\n");
    let list: serde_json::Value = serde_json::from_str(&say(&["topic", "list", "--json"])).unwrap();
    assert_eq!(list["topics"][0]["records"], 2);
    assert_eq!(say(&["consume", "orders", "--group", "g", "--max", "2"]), "one\ntwo\n");
    let group: serde_json::Value =
        serde_json::from_str(&say(&["group", "show", "orders", "g", "--json"])).unwrap();
    assert_eq!(group["lag"], 0);
    assert!(say(&["group", "list", "orders"]).contains("LAG"));
    assert_eq!(say(&["dead", "count", "orders"]), "0\n");
    assert!(say(&["dead", "list", "orders"]).starts_with("ID"));
    assert_eq!(say(&["topic", "delete", "orders"]), "deleted orders\n");
    let missing = ask(&["topic", "show", "orders"]);
    assert_eq!(missing.status.code(), Some(3), "{missing:?}");
}

#[test]
fn commands_work_against_a_server() {
    let server = Server::memory();
    tour(&["--server", &server.url()]);
}

#[test]
fn commands_work_on_an_engine_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    tour(&["--engine", &engine(dir.path())]);
}

#[test]
fn lines_of_the_input_are_messages_and_come_back_as_json() {
    let server = Server::memory();
    server.topic("lines", &[]);
    let url = server.url();
    let produce = firth()
        .args(["produce", "lines", "--key", "k", "--json", "--server", &url])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut produce = produce.unwrap();
    produce.stdin.take().unwrap().write_all(b"{\"n\":1}\n\n{\"n\":2}\n").unwrap();
    assert_eq!(stdout(&produce.wait_with_output().unwrap()).lines().count(), 2);
    let seen = stdout(&run(&["consume", "lines", "--group", "g", "--json", "--max", "2", "--server", &url]));
    let seen: Vec<serde_json::Value> = seen.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&seen[0]["json"]["n"], &seen[1]["json"]["n"]), (&json!(1), &json!(2)));
}

#[test]
fn a_server_that_is_not_there_is_told_with_what_to_do() {
    // A port that was free a moment ago.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let output = run(&["topic", "list", "--server", &format!("http://{free}")]);
    assert_eq!(output.status.code(), Some(6));
    assert!(String::from_utf8(output.stderr).unwrap().contains("firth serve"));
}

#[test]
fn the_doctor_finds_health_and_says_what_to_do_without() {
    let server = Server::memory();
    let told = stdout(&run(&["doctor", "--server", &server.url()]));
    assert_eq!(told.lines().filter(|line| line.starts_with("ok")).count(), 4, "{told}");
    assert_eq!(server.get("/v1/topics").json()["topics"], json!([]));
    let dir = tempfile::tempdir().unwrap();
    assert!(stdout(&run(&["doctor", "--engine", &engine(dir.path())])).contains("settled"));
    let file = dir.path().join("file");
    std::fs::write(&file, "no directory").unwrap();
    let sick = run(&["doctor", "--json", "--engine", &format!("file:{}", file.display())]);
    assert!(!sick.status.success());
    let finding: serde_json::Value = serde_json::from_slice(&sick.stdout).unwrap();
    assert_eq!((&finding["check"], &finding["ok"]), (&json!("engine"), &json!(false)));
    assert!(finding["advice"].is_string());
}

#[test]
fn completions_are_written_for_shells() {
    assert!(stdout(&run(&["completions", "bash"])).contains("firth"));
}

const GUIDE: &str = include_str!("../../../../docs/server.md");
const README: &str = include_str!("../../../../README.md");

fn snippets(text: &str, language: &str) -> Vec<String> {
    let fence = format!("```{language}\n");
    text.split(&fence).skip(1).map(|rest| rest.split("```").next().unwrap().to_owned()).collect()
}

fn runs(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

#[test]
fn the_documented_curl_calls_work_as_written() {
    for (text, lag) in [(GUIDE, 0), (README, 1)] {
        assert_eq!(lag_after_calls_of(text), lag);
    }
}

/// Makes the document's calls one after the other; the README's do not settle.
fn lag_after_calls_of(text: &str) -> u64 {
    let server = Server::memory();
    let calls = snippets(text, "sh").into_iter().find(|text| text.contains("/fetch")).unwrap();
    let mut delivery = String::new();
    for call in calls.lines() {
        let call = call.replace("localhost:7171", &server.address.to_string()).replace("DELIVERY", &delivery);
        let output =
            runs(Command::new("sh").arg("-c").arg(call.replacen("curl", "curl -sS --fail-with-body", 1)));
        let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        if let Some(id) = answer["deliveries"][0]["delivery"].as_str() {
            delivery = id.to_owned();
        }
    }
    assert!(!delivery.is_empty(), "nothing was fetched");
    server.lag("orders", "bar")
}

#[test]
fn the_documented_python_client_works_as_written() {
    let server = Server::memory();
    let script = snippets(GUIDE, "python").remove(0).replace("http://localhost:7171", &server.url());
    let output = runs(Command::new("python3").arg("-c").arg(script));
    assert!(String::from_utf8(output.stdout).unwrap().contains("coffee"));
    let deadline = Instant::now() + PATIENCE;
    while server.lag("orders", "bar") > 0 {
        assert!(Instant::now() < deadline, "never settled");
    }
}

#[test]
fn the_demo_shows_a_retry_a_dead_letter_and_its_replay() {
    let started = Instant::now();
    let told = stdout(&run(&["demo"]));
    for step in
        ["attempt 2: the card reader is broken", "dead letter billing/", "1 replayed, 0 dead letters left"]
    {
        assert!(told.contains(step), "{step}: {told}");
    }
    assert!(started.elapsed().as_secs() < 20);
}
