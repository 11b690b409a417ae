//! The configuration: where values come from, what is refused, what SIGHUP takes over.

use crate::talk::call;
use crate::world::{PATIENCE, Server, firth, json, stdout};
use nix::sys::signal::Signal;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Instant;

fn config(dir: &Path, file: &str, env: &[(&str, &str)], flags: &[&str]) -> Output {
    std::fs::write(dir.join("firth.yaml"), file).unwrap();
    let mut command = firth();
    command.current_dir(dir).arg("config").args(flags).stdin(Stdio::null());
    for (name, value) in env {
        command.env(name, value);
    }
    command.output().unwrap()
}

#[test]
fn flags_win_over_variables_over_the_file_over_defaults() {
    let dir = tempfile::tempdir().unwrap();
    let file = "listen: 127.0.0.1:1111\nlog:\n  level: debug\nlimits:\n  rate: 7\n  request_size: 2MiB\n";
    let env = [("FIRTH_LOG", "warn"), ("FIRTH_LIMITS_RATE", "8")];
    let told = stdout(&config(dir.path(), file, &env, &["--set", "limits.rate=9"]));
    for line in [
        "\nlisten: \"127.0.0.1:1111\"\n",
        "\n  level: warn\n",
        "\n  rate: 9\n",
        "\n  request_size: 2MiB\n",
        "\n  burst: 100\n",
    ] {
        assert!(told.contains(line), "{line:?}: {told}");
    }
    assert!(told.contains("FIRTH_LOG, set by: FIRTH_LOG") && told.contains("set by: command line"), "{told}");
}

#[test]
fn a_wrong_name_or_value_is_refused_with_what_to_write() {
    let dir = tempfile::tempdir().unwrap();
    for (file, hint) in [
        ("limits:\n  requst_size: 1MiB\n", "did you mean limits.request_size?"),
        ("lisen: 127.0.0.1:1\n", "did you mean listen?"),
        ("limits:\n  request_size: huge\n", "a size like 16MiB"),
        ("limits:\n  body_time: 5\n", "a time like 30s"),
        ("listen: here\n", "127.0.0.1:7171"),
        ("tls:\n  cert: x.pem\n", "tls.key"),
        ("log: [a\n", "YAML"),
        ("topics:\n  auto_create: maybe\n", "true or false"),
        ("topics:\n  partitions: 5000\n", "1 to 4096"),
    ] {
        let output = config(dir.path(), file, &[], &[]);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{file}: {errors}");
        assert!(errors.contains(hint), "{file}: {errors}");
    }
}

#[test]
fn secrets_are_never_printed() {
    let dir = tempfile::tempdir().unwrap();
    let env = [("FIRTH_TOKEN", "planted-token"), ("FIRTH_ENGINE", "redis://me:planted-password@localhost/0")];
    let told = stdout(&config(dir.path(), "", &env, &[]));
    assert!(!told.contains("planted"), "{told}");
    assert!(told.contains("redis://me:") && told.contains("(set, not shown)"), "{told}");
}

#[test]
fn a_missing_topic_is_made_at_its_first_use_only_if_the_configuration_says_so() {
    let one = json!({ "payload": "one" });
    let fetch = json!({});
    let strict = Server::memory();
    strict.post("/v1/topics/orders/records", &one).problem(404, "not found");
    strict.post("/v1/topics/orders/groups/bar/fetch", &fetch).problem(404, "not found");
    let generous = Server::with(&["topics.auto_create=true", "topics.partitions=3"]);
    generous.get("/v1/topics/orders").problem(404, "not found");
    generous.post("/v1/topics/orders/records", &one).expect(200);
    generous.post("/v1/topics/mail/groups/bar/fetch", &fetch).expect(200);
    for topic in ["orders", "mail"] {
        assert_eq!(generous.get(&format!("/v1/topics/{topic}")).expect(200).json()["partitions"], 3);
    }
    generous.post("/v1/topics/a%20b/records", &one).problem(400, "invalid");
}

#[test]
fn topics_made_at_their_first_use_are_bounded_and_audited() {
    let dir = tempfile::tempdir().unwrap();
    let one = json!({ "payload": "one" });
    let audit = dir.path().join("audit");
    let file = format!("auth.audit_file={}", audit.display());
    let server = Server::with(&["topics.auto_create=true", "topics.auto_create_limit=2", &file]);
    server.post("/v1/topics/orders/records", &one).expect(200);
    server.post("/v1/topics/orders/records", &one).expect(200);
    server.post("/v1/topics/mail/groups/bar/fetch", &json!({})).expect(200);
    let refused = server.post("/v1/topics/more/records", &one).problem(404, "not found");
    assert!(refused.contains("at most 2"), "{refused}");
    let log = std::fs::read_to_string(&audit).unwrap();
    let made: Vec<serde_json::Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for (entry, topic) in made.iter().zip(["orders", "mail"]) {
        assert_eq!((&entry["who"], &entry["from"]), (&json!("local"), &json!("127.0.0.1")), "{log}");
        assert_eq!(
            (&entry["method"], &entry["path"]),
            (&json!("AUTO"), &json!(format!("/v1/topics/{topic}")))
        );
    }
    assert_eq!(made.len(), 2, "{log}");
}

#[test]
fn limits_and_log_level_are_taken_over_on_sighup() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("my.yaml");
    let logs = dir.path().join("log");
    std::fs::write(&file, "limits: { request_size: 1MiB }\nlog: { level: warn }\n").unwrap();
    let mut command = firth();
    command.args(["serve", "--engine", "memory:", "--config"]).arg(&file);
    let server = Server::logging(&mut command, None, std::fs::File::create(&logs).unwrap().into());
    server.topic("t", &[]);
    let send = || {
        call(
            server.address,
            "POST",
            "/v1/topics/t/records",
            &["Content-Type: application/octet-stream"],
            &[0; 4096],
        )
    };
    send().expect(200);
    std::fs::write(&file, "limits: { request_size: 2KiB }\nlog: { level: debug }\n").unwrap();
    server.signal(Signal::SIGHUP);
    let deadline = Instant::now() + PATIENCE;
    while send().status != 413 {
        assert!(Instant::now() < deadline, "never taken over");
    }
    while !std::fs::read_to_string(&logs).unwrap().contains("DEBUG") {
        assert!(Instant::now() < deadline, "the level was not taken over");
        server.get("/v1");
    }
    // A wrong file changes nothing, and the server goes on.
    std::fs::write(&file, "limits: { request_size: lots }\n").unwrap();
    server.signal(Signal::SIGHUP);
    while !std::fs::read_to_string(&logs).unwrap().contains("nothing was changed") {
        assert!(Instant::now() < deadline, "the mistake was not told");
    }
    assert_eq!(send().status, 413);
}

#[test]
fn logs_hold_neither_payloads_nor_keys_nor_tokens() {
    let dir = tempfile::tempdir().unwrap();
    let logs = dir.path().join("log");
    let mut command = firth();
    command.args(["serve", "--engine", &crate::world::engine(dir.path()), "--log", "trace", "--log-json"]);
    command.env("FIRTH_TOKEN", "planted-token");
    let server =
        Server::logging(&mut command, Some("planted-token"), std::fs::File::create(&logs).unwrap().into());
    server.topic("t", &["planted-payload"]);
    let secret =
        json!({ "json": "planted-json", "key": "planted-key", "headers": { "h": "planted-header" } });
    server.post("/v1/topics/t/records", &secret).expect(200);
    server
        .post("/v1/topics/t/records", &json!({ "payload": 7, "key": "planted-wrong" }))
        .problem(400, "invalid");
    let some = server.fetch("t", "g", &json!({ "wait_ms": 5000, "max": 5 }));
    server.settle("t", "g", &json!({ "ack": [some[0]["delivery"]] }));
    call(server.address, "GET", "/v1/topics", &["Authorization: Bearer planted-guess"], b"")
        .problem(401, "unauthorized");
    assert!(server.terminate());
    let logs = std::fs::read_to_string(&logs).unwrap();
    assert!(logs.lines().count() > 10 && logs.contains("\"serving\""), "{logs}");
    let leaks: Vec<_> = logs.lines().filter(|line| line.contains("planted")).collect();
    assert!(leaks.is_empty(), "{leaks:#?}");
}
