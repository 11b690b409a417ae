//! Moving data with the command line's own formats, and answers that say what is wrong.

use crate::world::{PATIENCE, Server, Value, engine, firth, json, run, stdout};
use firth_testkit::Certs;
use std::io::Write;
use std::process::{Child, Output, Stdio};
use std::time::Instant;

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn start(args: &[&str]) -> Child {
    let mut command = firth();
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn fed(args: &[&str], input: &str) -> Output {
    let mut child = start(args);
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn u17_what_consume_prints_produce_takes() {
    let server = Server::memory();
    let url = server.url();
    server.topic("from", &[]);
    server.topic("to", &[]);
    let sent = json!([
        { "key": "ada", "json": { "n": 1 }, "headers": { "color": ["red", "blue"] } },
        { "key_base64": "/wA=", "payload_base64": "/wE=" },
        { "payload": "plain" },
    ]);
    server.post("/v1/topics/from/records", &sent).expect(200);
    let print = |topic| {
        let args =
            ["consume", topic, "--group", "g", "--json", "--max", "3", "--wait", "20s", "--server", &url];
        stdout(&run(&args))
    };
    let printed = print("from");
    stdout(&fed(&["produce", "to", "--input", "messages", "--server", &url], &printed));
    let content = |text: &str| {
        let mut all: Vec<String> = lines(text)
            .into_iter()
            .map(|record| {
                let names = ["key", "key_base64", "payload", "payload_base64", "json", "headers"];
                names.map(|name| record[name].to_string()).join(" ")
            })
            .collect();
        all.sort();
        all
    };
    assert_eq!(content(&print("to")), content(&printed));
}

#[test]
fn u17_browsing_goes_beyond_a_page_and_shows_the_time() {
    let server = Server::memory();
    let url = server.url();
    server.put("/v1/topics/many", &json!({ "partitions": 1 })).expect(201);
    let input: String = (0..1200).map(|number| format!("{number}\n")).collect();
    stdout(&fed(&["produce", "many", "--server", &url], &input));
    let browse =
        |more: &[&str]| stdout(&run(&[&["topic", "browse", "many", "--server", &url], more].concat()));
    let seen = lines(&browse(&["--max", "1100", "--json"]));
    let wanted: Vec<String> = (0..1100).map(|number| number.to_string()).collect();
    let payloads: Vec<String> =
        seen.iter().map(|record| record["payload"].as_str().unwrap().into()).collect();
    assert_eq!(payloads, wanted);
    let table = browse(&["--max", "1"]);
    assert!(
        table.starts_with("PARTITION  ID") && table.contains("SENT") && table.contains("Z  -"),
        "{table}"
    );
}

#[test]
fn u17_a_group_is_reset_to_a_time_of_the_calendar() {
    let server = Server::memory();
    let url = server.url();
    server.topic("orders", &["one", "two"]);
    stdout(&run(&["consume", "orders", "--group", "g", "--max", "2", "--wait", "20s", "--server", &url]));
    let reset = |to: &str| run(&["group", "reset", "orders", "g", "--to", to, "--server", &url]);
    stdout(&reset("2001-02-03T04:05:06Z"));
    assert_eq!(server.lag("orders", "g"), 2);
    stdout(&reset("2999-01-01"));
    assert_eq!(server.lag("orders", "g"), 0);
    let refused = reset("2001-02-30T04:05:06Z");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("2026-11-17T06:30:00Z"), "{refused:?}");
}

#[test]
fn u17_produce_goes_on_when_the_server_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::on(dir.path());
    server.topic("orders", &[]);
    let url = server.url();
    let listen = server.address.to_string();
    let mut producing = start(&["produce", "orders", "--retry", "60s", "--server", &url]);
    let mut input = producing.stdin.take().unwrap();
    input.write_all(b"before\n").unwrap();
    let deadline = Instant::now() + PATIENCE;
    while server.get("/v1/topics/orders").expect(200).json()["records"] != 1 {
        assert!(Instant::now() < deadline, "the first line never came");
    }
    server.kill();
    input.write_all(b"after\n").unwrap();
    drop(input);
    let args = ["serve", "--engine", &engine(dir.path()), "--listen", &listen];
    let mut again =
        firth().args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let output = producing.wait_with_output().unwrap();
    let seen = run(&["consume", "orders", "--group", "g", "--max", "2", "--wait", "20s", "--server", &url]);
    again.kill().unwrap();
    again.wait().unwrap();
    assert_eq!(stdout(&output), "sent 2 to orders\n");
    let mut seen: Vec<_> = stdout(&seen).lines().map(str::to_owned).collect();
    seen.sort();
    assert_eq!(seen, ["after", "before"]);
}

#[test]
fn u13_a_torn_input_tells_how_much_was_stored() {
    let server = Server::memory();
    let url = server.url();
    server.topic("orders", &[]);
    let torn = fed(&["produce", "orders", "--input", "json", "--server", &url], "{\"n\":1}\n{\"n\":");
    assert!(!torn.status.success());
    let told = String::from_utf8_lossy(&torn.stderr).into_owned();
    assert!(told.contains("after 1 messages were stored"), "{told}");
    assert_eq!(server.get("/v1/topics/orders").expect(200).json()["records"], 1);
}

#[test]
fn u13_looking_makes_no_store() {
    let dir = tempfile::tempdir().unwrap();
    let typo = dir.path().join("typo");
    for command in
        [&["topic", "list"][..], &["group", "list", "t"], &["dead", "list", "t"], &["top", "--once"]]
    {
        let output = run(&[command, &["--engine", &engine(&typo)]].concat());
        assert_eq!(output.status.code(), Some(3), "{command:?}: {output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("there is no store in"), "{output:?}");
    }
    assert!(!typo.exists());
}

#[test]
fn u13_a_server_without_tls_is_told_apart_from_no_server() {
    let server = Server::memory();
    let output = run(&["topic", "list", "--server", &format!("https://{}", server.address)]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("a secure connection to") && told.contains("FIRTH_CA_FILE"), "{told}");
}

#[test]
fn u13_a_certificate_that_is_not_trusted_is_told_apart_from_no_server() {
    let certs = Certs::new();
    let mut command = firth();
    command.args(["serve", "--engine", "memory:", "--tls-cert"]).arg(certs.server_cert_path());
    let server = Server::start(command.arg("--tls-key").arg(certs.server_key_path()), None);
    let url = format!("https://localhost:{}", server.address.port());
    let list = || {
        let mut command = firth();
        command.args(["topic", "list", "--server", &url]);
        command
    };
    let told = list().output().unwrap();
    let told = String::from_utf8_lossy(&told.stderr).into_owned();
    assert!(told.contains("FIRTH_CA_FILE") && !told.contains("no server at"), "{told}");
    assert!(told.contains("certificate"), "the cause is told: {told}");
    stdout(&list().env("FIRTH_CA_FILE", certs.ca_path()).output().unwrap());
}

#[test]
fn u16_one_thing_has_one_name_and_the_old_one_still_works() {
    let server = Server::memory();
    server.topic("orders", &[]);
    server.put("/v1/topics/orders/groups/g", &json!({})).expect(201);
    for (flag, attempts) in [("--max-attempts", 7), ("--attempts", 8)] {
        let args = ["group", "policy", "orders", "g", flag, &attempts.to_string(), "--json"];
        let policy = lines(&stdout(&run(&[&args[..], &["--server", &server.url()]].concat())));
        assert_eq!(policy[0]["max_attempts"], attempts);
    }
}

/// Runs a command at a terminal and types an answer.
fn at_a_terminal(command: &str, answer: &str) -> Output {
    let mut script = std::process::Command::new("script");
    script.args(["-qec", command, "/dev/null"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = script.spawn().unwrap();
    child.stdin.take().unwrap().write_all(answer.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn u13_deletes_at_a_terminal_ask_first() {
    let server = Server::memory();
    server.topic("orders", &[]);
    let delete = format!("{} topic delete orders --server {}", env!("CARGO_BIN_EXE_firth"), server.url());
    let refused = at_a_terminal(&delete, "n\n");
    let told = String::from_utf8_lossy(&refused.stdout).into_owned();
    assert!(told.contains("Delete topic orders") && told.contains("nothing was changed"), "{told}");
    server.get("/v1/topics/orders").expect(200);
    at_a_terminal(&delete, "y\n");
    server.get("/v1/topics/orders").expect(404);
}
