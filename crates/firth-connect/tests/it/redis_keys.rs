//! Keys of Redis as a source: each key's last value arrives, and what may be missed is told.

use crate::nats::{becomes, events, status, topic};
use crate::node::TOPIC;
use crate::world::PATIENCE;
use firth::{Broker, RecordId};
use firth_connect::Condition;
use firth_connect::redis_keys::{RedisKeysConfig, RedisKeysOptions};
use firth_connect::sources::Sources;
use firth_router::event::{Event, Operation};
use firth_testkit::{RedisCluster, RedisServer, wait};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The source `orders`: keys are `cart:<tenant>:<key>`.
fn source(url: &str, change: &Value) -> RedisKeysConfig {
    let mut options = json!({
        "url": url, "pattern": "cart:*", "read": "string", "topic": "changes", "tenant": { "name": 2 },
        "collection": "carts", "key": { "name": 3 },
    });
    options.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    let options: RedisKeysOptions = serde_json::from_value(options).unwrap();
    RedisKeysConfig::new("orders", &options, None).unwrap()
}

async fn start(broker: &Broker, node: &str, config: &RedisKeysConfig) -> Sources {
    Sources::start(broker, node, vec![config.clone()]).await.unwrap()
}

async fn server(settings: &str) -> RedisServer {
    RedisServer::builder().config(format!("notify-keyspace-events {settings}")).start().await
}

/// What a consumer knows: the documents after all events. A resync is about its partition.
async fn state(broker: &Broker) -> BTreeMap<String, String> {
    let mut state = BTreeMap::new();
    for partition in 0..broker.topic(TOPIC).await.unwrap().config.partitions {
        let mut part = BTreeMap::new();
        for record in broker.admin().browse(TOPIC, partition, RecordId::ZERO, 1_000).await.unwrap() {
            let event = Event::from_payload(record.payload()).unwrap();
            match (event.operation, &event.after) {
                (Operation::Resync, _) => part.clear(),
                (Operation::Delete, _) => drop(part.remove(&*event.key)),
                (_, Some(document)) => {
                    let text = String::from_utf8(document.text().to_vec()).unwrap();
                    part.insert(event.key.to_string(), text);
                }
                _ => {}
            }
        }
        state.extend(part);
    }
    state
}

async fn holds(broker: &Broker, expected: &[(&str, &str)]) {
    let expected: BTreeMap<String, String> =
        expected.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let mut last = BTreeMap::new();
    let reached = wait::until_some(PATIENCE, async || {
        last = state(broker).await;
        (last == expected).then_some(())
    });
    let found = reached.await.is_some();
    assert!(found, "{last:?} is not {expected:?}: {:?}", events(broker).await);
}

#[tokio::test]
async fn a_key_that_is_written_or_vanishes_is_an_event() {
    let server = server("KA").await;
    let broker = topic(2).await;
    let sources = start(&broker, "one", &source(&server.url(), &json!({}))).await;
    assert!(becomes(&sources, Condition::Streaming).await.lossy);
    server.command(&["SET", "cart:acme:1", r#"{"n":1}"#]).await;
    server.command(&["SET", "cart:acme:2", r#"{"n":2}"#]).await;
    server.command(&["SET", "other:acme:9", r#"{"n":9}"#]).await;
    holds(&broker, &[("1", r#"{"n":1}"#), ("2", r#"{"n":2}"#)]).await;
    server.command(&["DEL", "cart:acme:2"]).await;
    server.command(&["SET", "cart:acme:1", r#"{"n":3}"#, "PX", "1"]).await;
    holds(&broker, &[]).await;
    server.command(&["SET", "cart:acme:4", r#"{"n":4}"#]).await;
    server.command(&["RENAME", "cart:acme:4", "cart:acme:5"]).await;
    holds(&broker, &[("5", r#"{"n":4}"#)]).await;
    let all = events(&broker).await;
    assert!(all.iter().all(|event: &Event| event.tenant.as_str() == "acme" && &*event.collection == "carts"));
    sources.close().await;
}

#[tokio::test]
async fn hashes_texts_and_values_of_the_json_module_are_read() {
    for (read, renamed, write, expected) in [
        ("hash", "", vec!["HSET", "cart:acme:1", "a", "7"], r#"{"a":"7"}"#),
        ("text", "", vec!["SET", "cart:acme:1", "7"], r#"{"value":"7"}"#),
        // A server without the module: its GET answers to the name of the module's command.
        ("json", "rename-command GET JSON.GET\n", vec!["SET", "cart:acme:1", r#"{"n":7}"#], r#"{"n":7}"#),
    ] {
        let server = server(&format!("KA\n{renamed}")).await;
        let broker = topic(1).await;
        let sources = start(&broker, "one", &source(&server.url(), &json!({ "read": read }))).await;
        becomes(&sources, Condition::Streaming).await;
        server.command(&write).await;
        holds(&broker, &[("1", expected)]).await;
        sources.close().await;
    }
}

#[tokio::test]
async fn a_server_that_tells_nothing_is_refused_and_left_as_it_is() {
    let broker = topic(1).await;
    for (settings, missing) in [("\"\"", "Kgxe$"), ("Eg$xe", "K"), ("Kg$x", "e")] {
        let server = server(settings).await;
        let sources =
            start(&broker, &format!("node-{missing}").replace('$', "s"), &source(&server.url(), &json!({})))
                .await;
        let reason = becomes(&sources, Condition::Failed).await.reason.unwrap();
        assert!(reason.contains(&format!("lacks {missing}: set it")), "{reason}");
        let now = server.command(&["CONFIG", "GET", "notify-keyspace-events"]).await;
        assert!(!format!("{now:?}").contains('A'), "{now:?}");
        sources.close().await;
    }
}

#[tokio::test]
async fn a_gap_is_told_and_all_keys_are_read_again_if_they_shall() {
    let server = server("KA").await;
    server.command(&["SET", "cart:acme:1", r#"{"n":1}"#]).await;
    let broker = topic(2).await;
    let config = source(&server.url(), &json!({ "rescan": true }));
    let sources = start(&broker, "one", &config).await;
    holds(&broker, &[("1", r#"{"n":1}"#)]).await;
    assert_eq!(status(&sources).gaps, 0);
    // The connections break: notifications do not tell of changes until they are back.
    server.order(&["SET", "cart:acme:2", r#"{"n":2}"#]).await;
    holds(&broker, &[("1", r#"{"n":1}"#), ("2", r#"{"n":2}"#)]).await;
    server.kill().await;
    wait::until(PATIENCE, "the gap is counted", async || status(&sources).gaps >= 1).await;
    server.restart().await;
    server.command(&["SET", "cart:acme:3", r#"{"n":3}"#]).await;
    holds(&broker, &[("3", r#"{"n":3}"#)]).await;
    sources.close().await;
    server.command(&["DEL", "cart:acme:3"]).await;
    server.command(&["SET", "cart:acme:4", r#"{"n":4}"#]).await;
    let sources = start(&broker, "two", &config).await;
    holds(&broker, &[("4", r#"{"n":4}"#)]).await;
    sources.close().await;
}

#[tokio::test]
async fn a_value_that_cannot_be_a_document_goes_to_the_dead_letters() {
    let server = server("KA").await;
    let broker = topic(1).await;
    broker.create_topic("odd").await.unwrap();
    let change = json!({ "on_error": "dead", "dead_topic": "odd" });
    let sources = start(&broker, "one", &source(&server.url(), &change)).await;
    becomes(&sources, Condition::Streaming).await;
    server.command(&["SET", "cart:acme:1", "planted"]).await;
    server.command(&["LPUSH", "cart:acme:2", "x"]).await;
    server.command(&["SET", "cart:acme:3", "{}"]).await;
    holds(&broker, &[("3", "{}")]).await;
    assert_eq!(status(&sources).dead, 2);
    sources.close().await;
}

#[tokio::test]
async fn every_master_of_a_cluster_tells_of_its_keys() {
    let cluster = RedisCluster::builder().config("notify-keyspace-events KA").start().await;
    for key in ["a", "b", "c", "d"] {
        let master = cluster.master_of_key(format!("cart:acme:{key}")).await;
        let set = ["SET", &format!("cart:acme:{key}"), "{}"];
        cluster.node(master).server().command(&set).await;
    }
    let broker = topic(2).await;
    let sources = start(&broker, "one", &source(&cluster.url(), &json!({ "rescan": true }))).await;
    holds(&broker, &[("a", "{}"), ("b", "{}"), ("c", "{}"), ("d", "{}")]).await;
    for key in ["e", "f", "g", "h"] {
        let master = cluster.master_of_key(format!("cart:acme:{key}")).await;
        let set = ["SET", &format!("cart:acme:{key}"), "{}"];
        cluster.node(master).server().command(&set).await;
    }
    let all = ["a", "b", "c", "d", "e", "f", "g", "h"].map(|key| (key, "{}"));
    holds(&broker, &all).await;
    sources.close().await;
}
