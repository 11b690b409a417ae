//! What a server tells of its engine: the directory, or the servers below, and never a secret.

use crate::talk::call;
use crate::world::{PATIENCE, Server, firth, json, run, stdout};
use firth_testkit::wait::until;
use firth_testkit::{Flavor, RedisServer};

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_on_files_tells_its_directory_and_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::on(dir.path());
    let engine = || server.get("/v1/engine").expect(200).json();
    until(PATIENCE, "the disk is measured", async || engine()["disk_free"].as_u64() > Some(0)).await;
    let told = engine();
    assert_eq!((&told["kind"], &told["ready"], &told["nodes"]), (&json!("file"), &json!(true), &json!([])));
    assert!(told["directory"].as_str().unwrap().ends_with("/data"), "{told}");
    assert!(told["disk"].is_u64() && told["process_memory"].as_u64() > Some(1 << 20), "{told}");
}

#[test]
fn an_engine_in_memory_tells_the_memory_of_the_process() {
    let server = Server::memory();
    let told = server.get("/v1/engine").expect(200).json();
    assert_eq!(
        (&told["kind"], &told["place"], &told["problem"]),
        (&json!("memory"), &json!("memory:"), &json!(null))
    );
    assert_eq!((&told["directory"], &told["disk"]), (&json!(null), &json!(null)));
    assert!(told["process_memory"].as_u64() > Some(1 << 20), "{told}");
    let doctor = stdout(&run(&["doctor", "--server", &server.url()]));
    assert!(doctor.contains("memory:, no other servers"), "{doctor}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_servers_of_an_engine_on_redis_are_told_without_their_password() {
    let redis = RedisServer::builder().flavor(Flavor::Valkey).password("s3cret-word").start().await;
    let url = format!("redis://:s3cret-word@127.0.0.1:{}?durability=fast", redis.port());
    let server = Server::start(firth().args(["serve", "--engine", &url]), None);
    let engine = || server.get("/v1/engine").expect(200);
    until(PATIENCE, "the server is known", async || engine().json()["nodes"][0]["memory"].is_u64()).await;
    let told = engine();
    assert!(!told.body.contains("s3cret-word"), "{}", told.body);
    let node = &told.json()["nodes"][0];
    assert_eq!(node["address"], json!(format!("127.0.0.1:{}", redis.port())));
    assert_eq!((&node["role"], &node["state"]), (&json!("master"), &json!("online")));
    assert!(node["version"].as_str().unwrap().starts_with("valkey "), "{node}");
    let doctor = stdout(&run(&["doctor", "--server", &server.url()]));
    assert!(doctor.contains("master 127.0.0.1:") && !doctor.contains("s3cret-word"), "{doctor}");
    redis.freeze();
    until(PATIENCE, "it is away", async || {
        let told = engine().json();
        told["ready"] == json!(false) && told["nodes"][0]["state"] == json!("away")
    })
    .await;
    redis.thaw();
    until(PATIENCE, "it is back", async || engine().json()["ready"] == json!(true)).await;
}

#[test]
fn a_token_for_some_topics_does_not_see_the_engine() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tokens");
    let made = stdout(&run(&["token", "--name", "some", "--scopes", "observe", "--topics", "orders"]));
    std::fs::write(&file, &made).unwrap();
    let token = made.lines().next().unwrap().split('=').nth(1).unwrap();
    let mut command = firth();
    command.args(["serve", "--engine", "memory:", "--token-file"]).arg(&file);
    let server = Server::start(&mut command, Some(token));
    let header = format!("Authorization: Bearer {token}");
    let detail = call(server.address, "GET", "/v1/engine", &[&header], b"").problem(403, "unauthorized");
    assert!(detail.contains("some topics only"), "{detail}");
}
