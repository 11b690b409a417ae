//! `snapshot: only`: rows are copied, and then the source rests.

use crate::beside::{Rows, rebuilt};
use crate::node::{TOPIC, records};
use crate::resync::table;
use crate::world::{PATIENCE, Topic, source_with};
use firth::Broker;
use firth_connect::control::DesiredStates;
use firth_connect::postgres::Config;
use firth_connect::sources::Sources;
use firth_connect::{Condition, Status};
use firth_router::event::Operation;
use firth_testkit::{PostgresServer, wait};
use serde_json::json;

const TABLES: &str =
    "CREATE TABLE orders (id int PRIMARY KEY, n int); CREATE TABLE items (id int PRIMARY KEY);
                      INSERT INTO orders SELECT n, 0 FROM generate_series(1, 2500) n;
                      INSERT INTO items VALUES (1), (2)";

fn only(server: &PostgresServer, tables: &[&str]) -> Config {
    source_with(server, tables, &json!({ "snapshot": "only" }))
}

async fn slots(server: &PostgresServer) -> String {
    server.sql("SELECT count(*) FROM pg_replication_slots").await
}

fn of_orders(topic: &Topic) -> Rows {
    rebuilt(topic).into_iter().filter(|((table, _), _)| table == "orders").collect()
}

#[tokio::test]
async fn rows_are_copied_once_and_then_the_database_keeps_nothing() {
    let server = PostgresServer::start().await;
    server.sql_as_owner(TABLES).await;
    let topic = Topic::new(3);
    let mut config = only(&server, &["orders"]);
    config.chunk_rows = 100;
    // The first readers die on their way.
    for enough in [400, 900] {
        let _reader = topic.read(&config);
        wait::until(PATIENCE, "some rows are copied", async || topic.events().len() >= enough).await;
    }
    server.sql("DELETE FROM orders WHERE id % 10 = 0; UPDATE orders SET n = 1 WHERE id % 7 = 0").await;
    let reader = topic.read(&config);
    let reason = reader.wait_until(Condition::Done).await;
    assert!(reason.contains("firth connect snapshot"), "{reason}");
    assert_eq!(of_orders(&topic), table(&server).await, "the topic holds the table of one moment");
    let status = reader.status();
    assert_eq!((slots(&server).await.as_str(), status.slot_bytes), ("0", Some(0)));
    drop(reader);
    // What follows is not read, also not by the next reader.
    server.sql("INSERT INTO orders VALUES (9001, 0)").await;
    let before = topic.events().len();
    topic.read(&config).wait_until(Condition::Done).await;
    assert_eq!((topic.events().len(), slots(&server).await.as_str()), (before, "0"));
    // A table that is named later is copied alone.
    topic.read(&only(&server, &["orders", "items"])).wait_until(Condition::Done).await;
    assert_eq!((topic.events().len(), slots(&server).await.as_str()), (before + 2, "0"));
}

#[tokio::test]
async fn a_reader_that_dies_before_it_drops_the_slot_is_followed_by_one_that_does() {
    let server = PostgresServer::start().await;
    server.sql_as_owner(TABLES).await;
    let (topic, config) = (Topic::new(1), only(&server, &["items"]));
    let reader = topic.read(&config);
    wait::until(PATIENCE, "all is copied", async || topic.state().done).await;
    drop(reader);
    topic.read(&config).wait_until(Condition::Done).await;
    assert_eq!((topic.events().len(), slots(&server).await.as_str()), (2, "0"));
}

#[tokio::test]
async fn a_source_that_follows_changes_later_tells_a_resync_first() {
    let server = PostgresServer::start().await;
    server.sql_as_owner(TABLES).await;
    let topic = Topic::new(2);
    topic.read(&only(&server, &["orders"])).wait_until(Condition::Done).await;
    server.sql("DELETE FROM orders WHERE id > 100").await;
    let reader = topic.read(&source_with(&server, &["orders"], &json!({ "snapshot": "initial" })));
    reader.wait_until(Condition::Streaming).await;
    server.sql("UPDATE orders SET n = 3 WHERE id < 5").await;
    let expected = table(&server).await;
    wait::until(PATIENCE, "the topic holds the table", async || of_orders(&topic) == expected).await;
    let resyncs = topic.events().iter().filter(|event| event.operation == Operation::Resync).count();
    assert_eq!(resyncs, 2, "one per partition");
}

async fn is_done(sources: &Sources, appended: u64) {
    let mut seen = Status::default();
    let reached = wait::until_some(PATIENCE, async || {
        seen = sources.statuses()["shop"].clone();
        (seen.condition == Condition::Done && seen.appended == appended).then_some(())
    });
    assert!(reached.await.is_some(), "{seen:?}");
}

#[tokio::test]
async fn a_source_that_is_done_copies_again_when_an_operator_asks() {
    let server = PostgresServer::start().await;
    server.sql_as_owner(TABLES).await;
    let broker = Broker::memory();
    broker.create_topic(TOPIC).partitions(2).await.unwrap();
    let sources = Sources::start(&broker, "one", vec![only(&server, &["orders", "items"])]).await.unwrap();
    is_done(&sources, 2_502).await;
    let ask = |desired: &mut firth_connect::control::DesiredState| {
        desired.ask_snapshot(Some("public.orders"), Some("id <= 3"))
    };
    DesiredStates::new(&broker).change("shop", ask).await.unwrap();
    is_done(&sources, 2_505).await;
    assert_eq!((records(&broker).await.len(), slots(&server).await.as_str()), (2_505, "0"));
    let wanted = async || DesiredStates::new(&broker).of("shop").await.unwrap().snapshots.is_empty();
    wait::until(PATIENCE, "the request is struck off", wanted).await;
    sources.close().await;
}
