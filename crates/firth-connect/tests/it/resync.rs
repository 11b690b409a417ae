//! `on_lost: resync`: after a loss the source begins anew, tells every partition, and the topic
//! holds the tables again.

use crate::beside::{Rows, rebuilt};
use crate::world::{PATIENCE, Reader, Topic, source_with};
use firth_connect::postgres::Config;
use firth_connect::{Condition, State};
use firth_router::event::{Event, Operation};
use firth_testkit::{PostgresServer, wait};
use serde_json::json;
use std::sync::Arc;

const TABLE: &str = "CREATE TABLE orders (id int PRIMARY KEY, n int);
                     CREATE TABLE others (id serial, body text);
                     INSERT INTO orders SELECT n, 0 FROM generate_series(1, 500) n";
/// What happens while no slot sees it.
const UNSEEN: &str = "DELETE FROM orders WHERE id % 7 = 0; UPDATE orders SET n = n + 1 WHERE id % 5 = 0;
                      INSERT INTO orders SELECT max(id) + 1, 0 FROM orders";

fn config(server: &PostgresServer) -> Config {
    source_with(server, &["orders"], &json!({ "snapshot": "initial", "on_lost": "resync" }))
}

pub(crate) async fn table(server: &PostgresServer) -> Rows {
    let rows = server.sql("SELECT id, row_to_json(t) FROM orders t").await;
    let rows = rows.lines().map(|line| line.split_once('|').unwrap());
    let name = |id: &str| ("orders".to_owned(), id.to_owned());
    rows.map(|(id, row)| (name(id), serde_json::from_str(row).unwrap())).collect()
}

/// Waits until nothing is left to do, and the topic holds the table.
async fn holds_the_table(topic: &Topic, reader: &Reader, server: &PostgresServer) {
    let expected = table(server).await;
    let mut seen = Rows::new();
    let agrees = wait::until_some(PATIENCE * 2, async || {
        let failed = matches!(reader.status().condition, Condition::Failed | Condition::Lost);
        assert!(!failed, "{:?}", reader.status());
        seen = rebuilt(topic);
        let State { resync, renew, copy, tables, .. } = topic.state();
        let is_done = resync.is_none() && !renew && copy.queue.is_empty() && !tables.is_empty();
        (is_done && seen == expected).then_some(())
    });
    let agrees = agrees.await.is_some();
    let wrong: Vec<_> =
        expected.keys().chain(seen.keys()).filter(|id| expected.get(*id) != seen.get(*id)).collect();
    assert!(agrees, "these differ: {wrong:?}; {:?}", reader.status());
}

/// The controls of each partition.
fn controls(topic: &Topic) -> Vec<Vec<Event>> {
    let of = |events: &Vec<Event>| events.iter().filter(|event| event.is_control()).cloned().collect();
    topic.by_partition().iter().map(of).collect()
}

fn each_partition_was_told(topic: &Topic, times: usize, why: &str) {
    for (partition, controls) in controls(topic).into_iter().enumerate() {
        assert_eq!(controls.len(), times, "partition {partition}: {controls:?}");
        let Some(last) = controls.last() else { continue };
        let told = (last.operation, last.tenant.as_str(), &*last.collection);
        assert_eq!(told, (Operation::Resync, "acme", "orders"));
        let reason = last.reason.as_deref().unwrap_or_default();
        assert!(reason.contains(why), "{reason}");
    }
}

async fn drop_slot(server: &PostgresServer) {
    let gone = async || server.try_sql("SELECT pg_drop_replication_slot('firth_shop')").await.is_ok();
    wait::until(PATIENCE, "the slot is dropped", gone).await;
}

#[tokio::test]
async fn a_slot_that_is_gone_is_made_anew_and_documents_that_vanished_are_gone() {
    let server = PostgresServer::start().await;
    server.sql_as_owner(TABLE).await;
    let (topic, config) = (Topic::new(3), config(&server));
    let reader = topic.read(&config);
    holds_the_table(&topic, &reader, &server).await;
    each_partition_was_told(&topic, 0, "");
    drop(reader);
    drop_slot(&server).await;
    server.sql(UNSEEN).await;
    let reader = topic.read(&config);
    holds_the_table(&topic, &reader, &server).await;
    each_partition_was_told(&topic, 1, "slot firth_shop is gone");
    let status = reader.status();
    assert_eq!(
        (status.condition, status.resyncs, status.errors.get("lost")),
        (Condition::Streaming, 1, Some(&1))
    );
    assert!(status.resync_reason.is_some_and(|why| why.contains("is gone")) && status.resynced_ms.is_some());
    server.sql("UPDATE orders SET n = 77 WHERE id < 20").await;
    holds_the_table(&topic, &reader, &server).await;
    drop(reader);
    // The next reader goes on, and tells nothing again.
    let reader = topic.read(&config);
    reader.wait_until(Condition::Streaming).await;
    server.sql("DELETE FROM orders WHERE id < 20").await;
    holds_the_table(&topic, &reader, &server).await;
    each_partition_was_told(&topic, 1, "slot firth_shop is gone");
    assert_eq!(reader.status().resyncs, 0);
}

#[tokio::test]
async fn a_slot_that_another_program_made_anew_is_replaced() {
    let server = PostgresServer::start().await;
    server.sql_as_owner(TABLE).await;
    let (topic, config) = (Topic::new(2), config(&server));
    let reader = topic.read(&config);
    holds_the_table(&topic, &reader, &server).await;
    drop(reader);
    crate::world::remake_slot(&server, UNSEEN).await;
    let reader = topic.read(&config);
    holds_the_table(&topic, &reader, &server).await;
    each_partition_was_told(&topic, 1, "slot firth_shop was made anew");
}

#[tokio::test]
async fn a_log_that_the_server_removed_is_followed_by_a_copy() {
    let server =
        PostgresServer::with_conf("max_slot_wal_keep_size = 16MB\nmin_wal_size = 32MB\nmax_wal_size = 32MB")
            .await;
    server.sql_as_owner(TABLE).await;
    let (topic, config) = (Topic::new(2), config(&server));
    let reader = topic.read(&config);
    holds_the_table(&topic, &reader, &server).await;
    drop(reader);
    server.sql(UNSEEN).await;
    let removed = async || {
        server.sql("INSERT INTO others (body) VALUES ('x'); SELECT pg_switch_wal(); CHECKPOINT;").await;
        server.sql("SELECT wal_status FROM pg_replication_slots").await == "lost"
    };
    wait::until(PATIENCE, "the server removes the log", removed).await;
    let reader = topic.read(&config);
    holds_the_table(&topic, &reader, &server).await;
    each_partition_was_told(&topic, 1, "max_slot_wal_keep_size");
    assert_eq!(server.sql("SELECT wal_status FROM pg_replication_slots").await, "reserved");
}

#[tokio::test]
async fn a_standby_that_lacks_what_the_topic_has_is_copied_under_its_own_timeline() {
    let primary = PostgresServer::start().await;
    primary.sql_as_owner(TABLE).await;
    let standby = primary.standby().await;
    let url = primary.url().replace("/shop", &format!(",{}/shop", standby.addr()));
    let options = json!({ "snapshot": "initial", "on_lost": "resync", "url": url });
    let config = source_with(&primary, &["orders"], &options);
    let topic = Topic::new(2);
    let reader = topic.read(&config);
    holds_the_table(&topic, &reader, &primary).await;
    primary.is_followed_by(&standby).await;
    standby.shutdown().await;
    primary.copy_slot_to(&standby, "firth_shop").await;
    // The new primary's log stands far before what the topic has of the former one.
    primary.sql("INSERT INTO others (body) SELECT repeat('x', 1000) FROM generate_series(1, 4000)").await;
    primary.sql("UPDATE orders SET n = 5 WHERE id < 100; INSERT INTO orders VALUES (9001, 1)").await;
    holds_the_table(&topic, &reader, &primary).await;
    primary.kill().await;
    standby.restart().await;
    standby.take_over().await;
    let told = async || controls(&topic).iter().all(|controls| controls.len() == 1);
    wait::until(PATIENCE, "every partition is told", told).await;
    standby.sql("UPDATE orders SET n = 6 WHERE id < 50; INSERT INTO orders VALUES (9002, 1)").await;
    holds_the_table(&topic, &reader, &standby).await;
    each_partition_was_told(&topic, 1, "a failover lost changes that the topic has");
    drop(reader);
    let reader = topic.read(&config);
    reader.wait_until(Condition::Streaming).await;
    standby.sql("DELETE FROM orders WHERE id < 60").await;
    holds_the_table(&topic, &reader, &standby).await;
}

#[tokio::test]
async fn a_resync_that_dies_at_any_step_goes_on_and_tells_each_partition_once() {
    let server = PostgresServer::start().await;
    server.sql_as_owner(TABLE).await;
    let mut config = config(&server);
    config.chunk_rows = 50;
    let topic = Topic::new(3);
    let reader = topic.read(&config);
    holds_the_table(&topic, &reader, &server).await;
    drop(reader);
    drop_slot(&server).await;
    server.sql(UNSEEN).await;
    let dies_when = async |what: &str, is_there: &dyn Fn(&State) -> bool| {
        let reader = topic.read(&config);
        wait::until(PATIENCE, what, async || is_there(&topic.state())).await;
        drop(reader);
        server.sql(UNSEEN).await;
    };
    topic.hold_saves(true);
    dies_when("the loss is noted", &|state| state.renew).await;
    let noted = topic.state();
    let is_made = |state: &State| state.resync.as_ref().is_some_and(|resync| resync.at.is_some());
    dies_when("the slot is noted", &is_made).await;
    // As if it died before that: the slot is there, and nothing says so.
    topic.set_state(noted);
    dies_when("another slot is noted", &is_made).await;
    let told = || controls(&topic).iter().all(|controls| controls.len() == 1);
    dies_when("every partition is told", &|_| told()).await;
    topic.hold_saves(false);
    let before = topic.events().len();
    dies_when("some rows are copied", &|_| topic.events().len() > before + 100).await;
    let reader = topic.read(&config);
    holds_the_table(&topic, &reader, &server).await;
    each_partition_was_told(&topic, 1, "slot firth_shop is gone");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_topic_holds_the_table_after_losses_between_writers_and_deaths() {
    let server = Arc::new(PostgresServer::start().await);
    server.sql_as_owner(TABLE).await;
    let mut config = config(&server);
    config.chunk_rows = 60;
    let topic = Topic::new(2);
    for round in 1..=4 {
        let writing = tokio::spawn({
            let server = server.clone();
            let statements = (0..40).map(move |number| {
                let id = (round * 131 + number * 37) % 600;
                match number % 4 {
                    0 => format!("DELETE FROM orders WHERE id = {id};"),
                    1 => format!(
                        "INSERT INTO orders VALUES ({id}, {round}) ON CONFLICT (id) DO UPDATE SET n = -1;"
                    ),
                    2 => format!("BEGIN; UPDATE orders SET n = n + 1 WHERE id % 50 = {}; COMMIT;", id % 50),
                    _ => format!("UPDATE orders SET n = n + 1 WHERE id = {id};"),
                }
            });
            async move { server.sql(statements.collect::<String>()).await }
        });
        for part in 1..=3 {
            let enough = topic.events().len() + 90 * part;
            let _reader = topic.read(&config);
            let is_far = async || {
                let State { has_slot, resync, copy, .. } = topic.state();
                let is_told = controls(&topic).iter().all(|controls| controls.len() + 1 >= round);
                let is_done = is_told && has_slot && resync.is_none() && copy.queue.is_empty();
                is_done || topic.events().len() >= enough
            };
            wait::until(PATIENCE, "the reader got somewhere", is_far).await;
        }
        writing.await.unwrap();
        drop_slot(&server).await;
    }
    let reader = topic.read(&config);
    holds_the_table(&topic, &reader, &server).await;
}
