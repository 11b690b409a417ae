//! The OpenAPI document is true: a public, property-based API tester finds no 5xx, no undocumented
//! status, no wrong input that passes and no right input that fails.

use crate::world::{Server, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The tester, as `cargo xtask setup` installs it.
fn tester() -> PathBuf {
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.tools/schemathesis/bin/st");
    let found = std::env::var_os("FIRTH_SCHEMATHESIS").map_or(ours, PathBuf::from);
    assert!(found.is_file(), "{} is missing: run `cargo xtask setup`", found.display());
    found
}

/// Streams have no end, so they are tested by hand; so are waits, where there is something to wait
/// for, and backups, which engines in memory do not take.
const NO_STREAMS: [&str; 14] = [
    "--exclude-operation-id",
    "consume.consume",
    "--exclude-operation-id",
    "system.events",
    "--exclude-operation-id",
    "system.backup",
    "--exclude-operation-id",
    "channels.subscribe",
    "--exclude-operation-id",
    "work.stream",
    "--exclude-operation-id",
    "work.stream_data",
    "--exclude-operation-id",
    "dead_letters.follow",
];

fn run(server: &Server, dir: &Path, arguments: &[&str]) {
    // A starved machine may not get to a single case in the usual time.
    let told = run_for("25", server, dir, arguments);
    if told.contains("No test cases were generated") {
        let told = run_for("90", server, dir, arguments);
        assert!(told.contains(" passed"), "nothing was tested: {told}");
    }
}

/// What it tells if it finds nothing.
fn run_for(seconds: &str, server: &Server, dir: &Path, arguments: &[&str]) -> String {
    let output = Command::new(tester())
        .current_dir(dir)
        .args(["--config-file", "tester.toml", "run"])
        .arg(format!("{}/openapi.json", server.url()))
        .args(["--checks", "all", "--continue-on-failure", "--no-color", "--suppress-health-check", "all"])
        .args(["--max-time", seconds, "--request-timeout", "120", "--seed", "7"])
        // The document promises no response time: a caller may ask the server to wait.
        .args(["--max-response-time", "100"])
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{told}\n{}", String::from_utf8_lossy(&output.stderr));
    told
}

#[test]
fn u10_the_document_is_valid_openapi() {
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.tools/openapi/bin/openapi-spec-validator");
    let validator = std::env::var_os("FIRTH_OPENAPI_VALIDATOR").map_or(ours, PathBuf::from);
    assert!(validator.is_file(), "{} is missing: run `cargo xtask setup`", validator.display());
    let server = Server::memory();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("openapi.json");
    std::fs::write(&file, server.get("/openapi.json").expect(200).body).unwrap();
    let mut command = Command::new(validator);
    let output = command.args(["--schema", "3.1", "--validation-errors", "all"]).arg(&file).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{told}{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_api_does_what_its_document_says_whatever_is_asked() {
    let server = Server::memory();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tester.toml"), "").unwrap();
    let phases = ["--phases", "coverage,fuzzing,stateful", "--max-examples", "10"];
    run(&server, dir.path(), &[&phases[..], &NO_STREAMS[..]].concat());
    server.get("/health/ready").expect(200);
}

#[test]
fn the_api_does_what_its_document_says_on_a_topic_that_is_there() {
    let server = Server::memory();
    let dir = tempfile::tempdir().unwrap();
    server.topic("orders", &["one", "two"]);
    server.put("/v1/topics/orders/groups/bar", &json!({})).expect(201);
    server.post("/v1/claims/calls/offers", &json!({ "name": "call-1" })).expect(200);
    let there =
        "[parameters]\n\"path.topic\" = \"orders\"\n\"path.group\" = \"bar\"\n\"path.service\" = \"calls\"\n";
    std::fs::write(dir.path().join("tester.toml"), there).unwrap();
    let phases = ["--phases", "coverage,fuzzing", "--max-examples", "10"];
    // Deleting takes the topic away, and changing its limits makes right input wrong for the
    // others: the latter is asked alone.
    let others = [
        "--exclude-method",
        "DELETE",
        "--exclude-method",
        "PATCH",
        "--exclude-operation-id",
        "consume.fetch",
    ];
    run(&server, dir.path(), &[&phases[..], &NO_STREAMS[..], &others[..]].concat());
    run(&server, dir.path(), &[&phases[..], &["--include-method", "PATCH"]].concat());
    server.get("/health/ready").expect(200);
}
