//! How much of its log a database keeps, whose transactions are read, and the names of shapes.

use crate::node::{TOPIC, records};
use crate::world::{PATIENCE, Reader, Topic, source_with};
use firth::Broker;
use firth_connect::Condition;
use firth_connect::sources::Sources;
use firth_testkit::{PostgresServer, wait};
use serde_json::{Value, json};
use std::sync::Arc;

const TABLE: &str = "CREATE TABLE orders (id int PRIMARY KEY, n int); CREATE TABLE others (body text)";
/// More of the log than the limit allows.
const MUCH: &str = "INSERT INTO others SELECT repeat('x', 1000) FROM generate_series(1, 24000)";

/// A source that holds the log back, because what it stored cannot be saved.
async fn holding(limits: Value) -> (PostgresServer, Arc<Topic>, Reader) {
    let server = PostgresServer::start().await;
    server.sql_as_owner(TABLE).await;
    let topic = Topic::new(1);
    let config = source_with(&server, &["orders"], &json!({ "limits": limits }));
    topic.read(&config).wait_until(Condition::Streaming).await;
    topic.hold_saves(true);
    server.sql(MUCH).await;
    let reader = topic.read(&config);
    (server, topic, reader)
}

#[tokio::test]
async fn a_slot_that_keeps_too_much_is_warned_of_and_kept() {
    let (server, _topic, reader) = holding(json!({ "wal": "16MiB" })).await;
    let warned = async || reader.status().warning.is_some_and(|text| text.contains("limits.wal (16777216)"));
    wait::until(PATIENCE, "the status warns", warned).await;
    let status = reader.status();
    assert_eq!((status.condition, status.slot_limit_bytes), (Condition::Streaming, Some(16 << 20)));
    assert_eq!(server.sql("SELECT count(*) FROM pg_replication_slots").await, "1");
}

#[tokio::test]
async fn a_slot_that_keeps_too_much_is_dropped_if_the_configuration_says_so() {
    let (server, _topic, reader) = holding(json!({ "wal": "16MiB", "on_wal": "drop_slot" })).await;
    let reason = reader.wait_until(Condition::Lost).await;
    assert!(reason.contains("more than limits.wal") && reason.contains("was dropped"), "{reason}");
    assert_eq!(server.sql("SELECT count(*) FROM pg_replication_slots").await, "0");
}

#[tokio::test]
async fn a_slot_that_grows_too_large_under_its_reader_is_dropped_too() {
    let server = PostgresServer::start().await;
    server.sql_as_owner(TABLE).await;
    let topic = Topic::new(1);
    let limits = json!({ "limits": { "wal": "16MiB", "on_wal": "drop_slot" } });
    let reader = topic.read(&source_with(&server, &["orders"], &limits));
    reader.wait_until(Condition::Streaming).await;
    topic.hold_saves(true);
    server.sql(MUCH).await;
    let lost = async || reader.status().condition == Condition::Lost;
    wait::until(PATIENCE * 2, "the slot is dropped", lost).await;
    assert_eq!(server.sql("SELECT count(*) FROM pg_replication_slots").await, "0");
}

#[tokio::test]
async fn transactions_that_came_by_replication_are_left_out() {
    let server = PostgresServer::start().await;
    server.sql_as_owner(TABLE).await;
    let topic = Topic::new(1);
    let reader = topic.read(&source_with(&server, &["orders"], &json!({ "origin": "none" })));
    reader.wait_until(Condition::Streaming).await;
    server
        .sql(
            "SELECT pg_replication_origin_create('a_sink');
             INSERT INTO orders VALUES (1, 0);
             SELECT pg_replication_origin_session_setup('a_sink');
             INSERT INTO orders VALUES (2, 0); UPDATE orders SET n = 1 WHERE id = 1;
             SELECT pg_replication_origin_session_reset();
             INSERT INTO orders VALUES (3, 0);",
        )
        .await;
    let events = topic.wait_for(2, &reader).await;
    let told: Vec<_> =
        events.iter().map(|event| format!("{} {}", event.operation.as_str(), event.key)).collect();
    assert_eq!(told, ["insert 1", "insert 3"]);
}

#[tokio::test]
async fn records_name_the_shape_of_their_table_copied_or_streamed() {
    let server = PostgresServer::start().await;
    server.sql_as_owner(format!("{TABLE}; INSERT INTO orders VALUES (1, 0)")).await;
    let broker = Broker::memory();
    broker.create_topic(TOPIC).partitions(1).await.unwrap();
    let options = json!({ "schema_header": true, "snapshot": "initial" });
    let config = source_with(&server, &["orders"], &options);
    let sources = Sources::start(&broker, "one", vec![config]).await.unwrap();
    let has = async |count: usize| {
        wait::until(PATIENCE, "the records are there", async || records(&broker).await.len() >= count).await;
    };
    has(1).await;
    server.sql("INSERT INTO orders VALUES (2, 0); ALTER TABLE orders ADD more text; INSERT INTO orders VALUES (3, 0)").await;
    has(3).await;
    let shapes: Vec<_> = records(&broker)
        .await
        .iter()
        .map(|record| record.headers().get("firth-schema").unwrap().clone())
        .collect();
    assert_eq!((shapes[0] == shapes[1], shapes[1] == shapes[2]), (true, false), "{shapes:?}");
    sources.close().await;
}
