//! MongoDB as a source: each change is in the topic once and in order, whichever process dies.

use crate::mongod::Mongod;
use crate::nats::{becomes, events, status, topic};
use crate::node::{Killed, TOPIC, records};
use crate::world::{PATIENCE, shown};
use firth::Broker;
use firth_connect::Condition;
use firth_connect::mongodb::{MongoConfig, MongoOptions};
use firth_connect::sources::Sources;
use firth_router::event::Operation;
use firth_testkit::wait;
use mongodb::Database;
use mongodb::bson::{Bson, Document, doc};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::Duration;

const CHILD: &str = "FIRTH_CONNECT_MONGO_CHILD";

/// The source `orders` of the collection `docs`.
fn source(url: &str, database: &str, change: &Value) -> MongoConfig {
    let mut options = json!({
        "url": url, "database": database, "collections": ["docs"], "topic": TOPIC, "tenant": "acme",
    });
    options.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    let options: MongoOptions = serde_json::from_value(options).unwrap();
    MongoConfig::new("orders", &options, None).unwrap()
}

async fn start(broker: &Broker, node: &str, config: &MongoConfig) -> Sources {
    Sources::start(broker, node, vec![config.clone()]).await.unwrap()
}

async fn insert(database: &Database, id: impl Into<Bson>, version: i32) {
    let fields = doc! { "_id": id.into(), "version": version };
    database.collection::<Document>("docs").insert_one(fields).await.unwrap();
}

async fn update(database: &Database, id: i32, version: i32) {
    let set = doc! { "$set": { "version": version } };
    database.collection::<Document>("docs").update_one(doc! { "_id": id }, set).await.unwrap();
}

/// One more version of some documents.
async fn workload(database: &Database, versions: &mut BTreeMap<i32, i32>, round: i32) {
    for number in 0..12 {
        let id = (round * 5 + number * 3) % 7;
        let version = versions.entry(id).or_insert(0);
        *version += 1;
        match *version {
            1 => insert(database, id, 1).await,
            next => update(database, id, next).await,
        }
    }
}

/// The versions of each document are 1, 2, 3, … up to the last one.
async fn check(broker: &Broker, versions: &BTreeMap<i32, i32>) {
    let total: i32 = versions.values().sum();
    let all_there = async || events(broker).await.len() >= usize::try_from(total).unwrap();
    wait::until(PATIENCE, format!("{total} changes are in the topic"), all_there).await;
    let mut seen: BTreeMap<i32, i32> = BTreeMap::new();
    for event in events(broker).await {
        let version = event.after.as_ref().unwrap().to_value().unwrap()["version"].as_i64().unwrap();
        let last = seen.entry(event.key.parse().unwrap()).or_default();
        assert_eq!(version, i64::from(*last + 1), "document {}", &*event.key);
        *last += 1;
    }
    assert_eq!(seen, *versions);
}

async fn told(broker: &Broker, expected: &[&str]) {
    let mut last = Vec::new();
    let reached = wait::until_some(PATIENCE, async || {
        last = events(broker).await.iter().map(shown).collect();
        (last == expected).then_some(())
    });
    assert!(reached.await.is_some(), "{last:#?} is not {expected:#?}");
}

#[tokio::test]
async fn what_is_there_is_copied_and_changes_follow() {
    let server = Mongod::start().await;
    let database = server.database().await;
    insert(&database, 1, 1).await;
    insert(&database, "text", 1).await;
    insert(&database, 2, 1).await;
    let broker = topic(1).await;
    let mut config =
        source(server.url(), &server.name, &json!({ "columns": { "docs": { "drop": ["_id"] } } }));
    config.chunk = 1;
    let sources = start(&broker, "one", &config).await;
    becomes(&sources, Condition::Streaming).await;
    let copied = [
        r#"snapshot docs/1: - > {"version":1}"#,
        r#"snapshot docs/2: - > {"version":1}"#,
        r#"snapshot docs/text: - > {"version":1}"#,
    ];
    told(&broker, &copied).await;
    update(&database, 1, 2).await;
    let replaced = doc! { "other": true };
    database.collection::<Document>("docs").replace_one(doc! { "_id": 2 }, replaced).await.unwrap();
    database.collection::<Document>("docs").delete_one(doc! { "_id": "text" }).await.unwrap();
    database.collection::<Document>("others").insert_one(doc! { "_id": 9 }).await.unwrap();
    let changes = [
        r#"update docs/1: - > {"version":2}"#,
        r#"replace docs/2: - > {"other":true}"#,
        "delete docs/text: - > -",
    ];
    let all = [&copied[..], &changes[..]].concat();
    told(&broker, &all).await;
    let update = &records(&broker).await[3];
    assert_eq!(&update.headers().get("firth-lookup").unwrap()[..], b"true");
    sources.close().await;
    let sources = start(&broker, "two", &config).await;
    becomes(&sources, Condition::Streaming).await;
    database.collection::<Document>("docs").drop().await.unwrap();
    let all = [&all[..], &["truncate docs/: - > -"]].concat();
    told(&broker, &all).await;
    sources.close().await;
}

#[tokio::test]
async fn images_tell_the_tenant_of_a_delete() {
    let server = Mongod::start().await;
    let database = server.database().await;
    let images = doc! { "enabled": true };
    database
        .create_collection("docs")
        .change_stream_pre_and_post_images(image_options(images))
        .await
        .unwrap();
    let broker = topic(1).await;
    let change = json!({ "images": true, "tenant": { "pointer": "/owner" }, "snapshot": "never" });
    let sources = start(&broker, "one", &source(server.url(), &server.name, &change)).await;
    becomes(&sources, Condition::Streaming).await;
    let docs = database.collection::<Document>("docs");
    docs.insert_one(doc! { "_id": 1, "owner": "acme", "n": 1 }).await.unwrap();
    docs.update_one(doc! { "_id": 1 }, doc! { "$set": { "n": 2 } }).await.unwrap();
    docs.delete_one(doc! { "_id": 1 }).await.unwrap();
    let expected = [
        r#"insert docs/1: - > {"_id":1,"n":1,"owner":"acme"}"#,
        r#"update docs/1: {"_id":1,"n":1,"owner":"acme"} > {"_id":1,"n":2,"owner":"acme"}"#,
        r#"delete docs/1: {"_id":1,"n":2,"owner":"acme"} > -"#,
    ];
    told(&broker, &expected).await;
    assert!(events(&broker).await.iter().all(|event| event.tenant.as_str() == "acme"));
    sources.close().await;
}

#[tokio::test]
async fn a_copy_that_breaks_goes_on_and_leaves_out_nothing() {
    let server = Mongod::stand_in().await;
    let database = server.database().await;
    for id in 0..20 {
        insert(&database, id, 1).await;
    }
    server.world().reads = Some(6);
    let broker = topic(2).await;
    let mut config = source(server.url(), &server.name, &json!({}));
    config.chunk = 2;
    let sources = start(&broker, "one", &config).await;
    let keys =
        async || events(&broker).await.iter().map(|event| event.key.to_string()).collect::<BTreeSet<_>>();
    wait::until(PATIENCE, "all documents are copied", async || keys().await.len() == 20).await;
    assert!(status(&sources).reconnects >= 1, "a read failed");
    sources.close().await;
}

fn image_options(images: Document) -> mongodb::options::ChangeStreamPreAndPostImages {
    mongodb::bson::deserialize_from_document(images).unwrap()
}

#[tokio::test]
async fn a_stream_goes_on_behind_an_invalidate() {
    let server = Mongod::start().await;
    let database = server.database().await;
    insert(&database, 1, 1).await;
    let broker = topic(1).await;
    let config = source(server.url(), &server.name, &json!({ "snapshot": "never" }));
    let sources = start(&broker, "one", &config).await;
    becomes(&sources, Condition::Streaming).await;
    database.drop().await.unwrap();
    insert(&database, 2, 1).await;
    let is_told = async || events(&broker).await.iter().any(|event| event.operation == Operation::Insert);
    wait::until(PATIENCE, "the insert is told", is_told).await;
    let all = events(&broker).await;
    assert_eq!(all[0].operation, Operation::Truncate);
    assert_eq!(status(&sources).condition, Condition::Streaming);
    sources.close().await;
}

/// Not a law: the process that the next test kills.
#[tokio::test]
async fn mongo_child_mode() {
    let Ok(told) = std::env::var(CHILD) else { return };
    let [dir, url, name] = told.split('|').collect::<Vec<_>>().try_into().unwrap();
    let broker = Broker::open(dir).await.unwrap();
    let _ = broker.create_topic(TOPIC).partitions(3).await;
    let config = source(url, name, &json!({ "snapshot": "never", "images": true }));
    let _sources = start(&broker, "node", &config).await;
    std::future::pending::<()>().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_that_are_killed_neither_lose_nor_double_a_change() {
    let server = Mongod::start().await;
    let database = server.database().await;
    let images = doc! { "enabled": true };
    database
        .create_collection("docs")
        .change_stream_pre_and_post_images(image_options(images))
        .await
        .unwrap();
    let dir = tempfile::tempdir().unwrap();
    let config = source(server.url(), &server.name, &json!({ "snapshot": "never", "images": true }));
    let broker = Broker::open(dir.path()).await.unwrap();
    broker.create_topic(TOPIC).partitions(3).await.unwrap();
    let sources = start(&broker, "node", &config).await;
    becomes(&sources, Condition::Streaming).await;
    sources.close().await;
    broker.close().await.unwrap();
    let mut versions = BTreeMap::new();
    for round in 0..6 {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "mongo::mongo_child_mode", "--nocapture"])
            .env(CHILD, format!("{}|{}|{}", dir.path().display(), server.url(), server.name))
            .spawn();
        let child = Killed(child.unwrap());
        workload(&database, &mut versions, round).await;
        // Some die before they read anything, some while they do, some after.
        let limit = Duration::from_millis(300 * u64::try_from(round % 4).unwrap());
        let _ = tokio::time::timeout(limit, std::future::pending::<()>()).await;
        drop(child);
    }
    let broker = Broker::open(dir.path()).await.unwrap();
    let sources = start(&broker, "node", &config).await;
    check(&broker, &versions).await;
    sources.close().await;
    broker.close().await.unwrap();
}

#[tokio::test]
async fn history_that_is_gone_is_told_and_a_resync_copies_all_again() {
    let server = Mongod::stand_in().await;
    let database = server.database().await;
    let broker = topic(1).await;
    let config = source(server.url(), &server.name, &json!({ "snapshot": "never" }));
    let sources = start(&broker, "one", &config).await;
    becomes(&sources, Condition::Streaming).await;
    insert(&database, 1, 1).await;
    told(&broker, &[r#"insert docs/1: - > {"_id":1,"version":1}"#]).await;
    sources.close().await;
    insert(&database, 2, 1).await;
    {
        let mut world = server.world();
        world.forgotten = world.now();
    }
    let sources = start(&broker, "two", &config).await;
    let reason = becomes(&sources, Condition::Lost).await.reason.unwrap();
    assert!(reason.contains("286"), "{reason}");
    sources.close().await;
    let config = source(server.url(), &server.name, &json!({ "on_lost": "resync" }));
    let sources = start(&broker, "three", &config).await;
    let expected = [
        r#"insert docs/1: - > {"_id":1,"version":1}"#,
        "resync docs/: - > -",
        r#"snapshot docs/1: - > {"_id":1,"version":1}"#,
        r#"snapshot docs/2: - > {"_id":2,"version":1}"#,
    ];
    told(&broker, &expected).await;
    assert_eq!(status(&sources).resyncs, 1);
    sources.close().await;
}

#[tokio::test]
async fn another_cluster_and_a_single_server_are_told() {
    let server = Mongod::stand_in().await;
    let database = server.database().await;
    let broker = topic(1).await;
    let config = source(server.url(), &server.name, &json!({}));
    let sources = start(&broker, "one", &config).await;
    // A document that is inserted while the source starts is both copied and streamed.
    becomes(&sources, Condition::Streaming).await;
    insert(&database, 1, 1).await;
    wait::until(PATIENCE, "it is told", async || events(&broker).await.len() == 1).await;
    sources.close().await;
    server.world().set = Some("rs1".to_owned());
    let sources = start(&broker, "two", &config).await;
    let reason = becomes(&sources, Condition::Lost).await.reason.unwrap();
    assert!(reason.contains("this is cluster rs1; rs0 was read"), "{reason}");
    sources.close().await;
    server.world().set = None;
    let sources = start(&broker, "three", &config).await;
    let reason = becomes(&sources, Condition::Failed).await.reason.unwrap();
    assert!(reason.contains("replica set"), "{reason}");
    sources.close().await;
}

#[tokio::test]
async fn a_large_event_that_comes_in_parts_is_put_together() {
    let server = Mongod::stand_in().await;
    server.world().splits = true;
    let database = server.database().await;
    let broker = topic(2).await;
    let config = source(server.url(), &server.name, &json!({ "snapshot": "never", "images": true }));
    let sources = start(&broker, "one", &config).await;
    becomes(&sources, Condition::Streaming).await;
    let mut versions = BTreeMap::new();
    workload(&database, &mut versions, 0).await;
    check(&broker, &versions).await;
    sources.close().await;
    workload(&database, &mut versions, 1).await;
    let sources = start(&broker, "two", &config).await;
    check(&broker, &versions).await;
    sources.close().await;
}
