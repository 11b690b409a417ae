//! Webhooks: signed requests of other programs become records of a topic, each once.

use crate::talk::call;
use crate::world::{PATIENCE, Reply, Server, firth, json, run, stdout};
use firth_testkit::wait::until;
use std::path::Path;

const TOKEN: &str = "a-token-of-the-test-that-is-long";
/// The secret of the example in GitHub's documentation.
const SECRET: &str = "It's a Secret to Everybody";
pub(crate) const OPENED: &str = r#"{"action":"opened","issue":{"number":42,"title":"Tea"}}"#;
pub(crate) const OPENED_CODE: &str = "66d3da5c3e36cfe5de394c6e4e9513567de8586eb50875b7daa40eeb27147e14";
const EDITED: &str = r#"{"action":"edited","issue":{"number":42}}"#;
const EDITED_CODE: &str = "836de69d8706e2516ab2e19ffbd162268c110b876ca5fb52a6b476da9bfcfc06";
/// This one lacks what the key is made of.
const ODD: &str = r#"{"action":"opened","issue":1}"#;
const ODD_CODE: &str = "2b784948859aa4eb74009a796294622ff5b55529826768e34b72b3b266492111";
/// Signed with the secret that replaces the first one.
const NEXT: &str = r#"{"action":"opened","issue":{"number":43}}"#;
const NEXT_CODE: &str = "1d01234f64e4b1740a5d9b9345aace692418bb5effec4e766b89728f5bf0d337";

pub(crate) fn configured(dir: &Path, engine: &str) -> Server {
    let file = dir.join("firth.yaml");
    let secrets = dir.join("secrets");
    std::fs::write(&secrets, format!("{SECRET}\nthe next secret\n")).unwrap();
    let section = json!({ "hub": {
        "kind": "webhook", "verify": "github", "secret_file": secrets, "topic": "changes",
        "tenant": "acme", "collection": { "header": "X-GitHub-Event" },
        "key": { "pointer": "/issue/number" }, "document": "/issue", "max_body": 1000,
        "op": { "from": { "pointer": "/action" }, "is": { "opened": "insert" } },
    } });
    std::fs::write(&file, format!("topics:\n  auto_create: true\nconnect: {section}\n")).unwrap();
    let mut command = firth();
    command.args(["serve", "--engine", engine, "--config"]).arg(file).env("FIRTH_TOKEN", TOKEN);
    Server::start(&mut command, Some(TOKEN))
}

pub(crate) fn hook(server: &Server, delivery: &str, body: &str, code: &str) -> Reply {
    let delivery = format!("X-GitHub-Delivery: {delivery}");
    let code = format!("X-Hub-Signature-256: sha256={code}");
    let headers = ["Content-Type: application/json", "X-GitHub-Event: issues", &delivery, &code];
    call(server.address, "POST", "/v1/hooks/hub", &headers, body.as_bytes())
}

/// All records of the topic, as JSON.
fn records(server: &Server) -> String {
    let mut command = firth();
    command.args(["topic", "browse", "changes", "--json", "--server", &server.url()]);
    stdout(&command.env("FIRTH_TOKEN", TOKEN).output().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signed_request_is_stored_once_whatever_restarts_and_others_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let engine = format!("file:{}", dir.path().join("data").display());
    let server = configured(dir.path(), &engine);
    let first = hook(&server, "d-1", OPENED, OPENED_CODE).expect(200).json();
    assert_eq!(first, json!({ "stored": true, "duplicate": false }));
    let again = hook(&server, "d-1", OPENED, OPENED_CODE).expect(200).json();
    assert_eq!(again["duplicate"], true);
    server.kill();
    let server = configured(dir.path(), &engine);
    assert_eq!(hook(&server, "d-1", OPENED, OPENED_CODE).expect(200).json()["duplicate"], true);
    assert_eq!(hook(&server, "d-2", NEXT, NEXT_CODE).expect(200).json()["stored"], true, "the other secret");
    assert_eq!(hook(&server, "d-3", EDITED, EDITED_CODE).expect(200).json()["stored"], false, "left out");
    let why = hook(&server, "d-4", OPENED, NEXT_CODE).problem(401, "unauthorized");
    assert!(why.contains("no signature fits") && !why.contains("Secret"), "{why}");
    let why = hook(&server, "d-5", ODD, ODD_CODE).problem(400, "invalid");
    assert!(why.contains("key: the request has nothing at pointer /issue/number"), "{why}");
    hook(&server, "d-6", &" ".repeat(1001), OPENED_CODE).expect(413);
    call(server.address, "POST", "/v1/hooks/other", &[], b"").expect(404);
    let stored = records(&server);
    assert_eq!(stored.matches("firth-source").count(), 2, "{stored}");
    assert!(stored.contains("issues/42") && stored.contains("issues/43"), "{stored}");
    assert!(server.terminate());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_webhook_asks_its_sender_to_come_again() {
    let dir = tempfile::tempdir().unwrap();
    let server = configured(dir.path(), "memory:");
    let state = || server.get("/v1/sources/hub").expect(200).json()["state"].clone();
    until(PATIENCE, "it is open", async || state() == "streaming").await;
    server.post("/v1/sources/hub/pause", &json!({})).expect(200);
    until(PATIENCE, "it refuses", async || hook(&server, "d-1", OPENED, OPENED_CODE).status == 503).await;
    assert!(hook(&server, "d-1", OPENED, OPENED_CODE).head.contains("retry-after: 60"));
    server.post("/v1/sources/hub/resume", &json!({})).expect(200);
    until(PATIENCE, "it takes requests", async || hook(&server, "d-1", OPENED, OPENED_CODE).status == 200)
        .await;
    let shown = server.get("/v1/sources/hub").expect(200).json();
    assert_eq!((&shown["state"], &shown["appended"]), (&json!("streaming"), &json!(1)));
    let why = server.post("/v1/sources/hub/snapshot", &json!({})).problem(400, "invalid");
    assert!(why.contains("nothing that could be copied"), "{why}");
    let mut listed = firth();
    listed.args(["connect", "list", "--server", &server.url()]).env("FIRTH_TOKEN", TOKEN);
    let listed = listed.output().unwrap();
    assert!(stdout(&listed).contains("webhook"));
    assert!(!run(&["connect", "list", "--server", &server.url()]).status.success(), "it needs a token");
    assert!(server.terminate());
}
