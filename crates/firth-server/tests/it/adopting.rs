//! A stream that some other program writes becomes a topic, from the command line and over HTTP.

use crate::world::{Server, firth, json, run, stdout};
use firth_redis::{Client, cmd};
use firth_testkit::{Flavor, RedisServer, on_both};

async fn a_stream_of_another_program_is_adopted_with_its_group(flavor: Flavor) {
    let redis = RedisServer::start(flavor).await;
    let at = format!("redis://127.0.0.1:{}", redis.port());
    let client = Client::connect(&at).await.unwrap();
    for (customer, item) in [("ada", "coffee"), ("ben", "tea")] {
        let entry = cmd("XADD").key("shop").arg("*").arg("customer").arg(customer).arg("item").arg(item);
        client.call::<String>(entry).await.unwrap();
    }
    let group = cmd("XGROUP").arg("CREATE").key("shop").arg("old").arg("0");
    client.call::<String>(group).await.unwrap();
    let engine = format!("{at}?prefix=ours&durability=fast");
    let told = tokio::task::spawn_blocking(move || {
        let adopt = [
            "topic",
            "adopt",
            "orders",
            "--stream",
            "shop",
            "--key-field",
            "customer",
            "--import-group",
            "old=billing",
        ];
        stdout(&run(&[&adopt[..], &["--engine", &engine]].concat()));
        let take = [
            "consume", "orders", "--group", "billing", "--max", "2", "--wait", "50s", "--json", "--engine",
            &engine,
        ];
        let taken = stdout(&run(&take));
        // The same over HTTP, on the same engine, as another topic.
        let server = Server::start(firth().args(["serve", "--engine", &engine]), None);
        let request = json!({ "stream": "shop", "payload_field": "item" });
        let topic = server.post("/v1/topics/items/adopt", &request).expect(200).json();
        assert_eq!(topic["name"], "items");
        let first = server.fetch("items", "g", &json!({ "max": 1, "wait_ms": 5000 }));
        assert_eq!(first[0]["record"]["payload"], "coffee");
        let wrong = server.post("/v1/topics/x/adopt", &json!({ "stream": "" })).expect(400).json();
        assert_eq!(wrong["field"], "stream");
        taken
    });
    let taken = told.await.unwrap();
    let keys: Vec<String> = taken
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["key"].to_string())
        .collect();
    assert_eq!(keys, ["\"ada\"", "\"ben\""], "{taken}");
}

on_both!(a_stream_of_another_program_is_adopted_with_its_group);
