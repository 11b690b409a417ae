//! Further topics of a source: messages out of the log, dead letters, and the sign of life.

use crate::node::{TOPIC, all_records, records};
use crate::world::{PATIENCE, source_with};
use firth::{Broker, Record};
use firth_connect::sources::Sources;
use firth_connect::{Condition, DeadLetter, Status};
use firth_testkit::{PostgresServer, wait};
use serde_json::{Value, json};

const TABLE: &str = "CREATE TABLE docs (id text PRIMARY KEY)";

struct World {
    server: PostgresServer,
    broker: Broker,
}

impl World {
    async fn new(further: &[&str]) -> Self {
        let server = PostgresServer::start().await;
        server.sql_as_owner(TABLE).await;
        let broker = Broker::memory();
        broker.create_topic(TOPIC).partitions(2).await.unwrap();
        for topic in further {
            broker.create_topic(topic).partitions(2).await.unwrap();
        }
        Self { server, broker }
    }

    async fn start(&self, options: Value) -> Sources {
        let mut all = json!({ "snapshot": "never" });
        all.as_object_mut().unwrap().extend(options.as_object().unwrap().clone());
        let config = source_with(&self.server, &["docs"], &all);
        Sources::start(&self.broker, "one", vec![config]).await.unwrap()
    }
}

async fn status_until(sources: &Sources, what: &str, is_it: impl Fn(&Status) -> bool) -> Status {
    let mut seen = Status::default();
    let reached = wait::until_some(PATIENCE, async || {
        seen = sources.statuses()["shop"].clone();
        is_it(&seen).then_some(())
    });
    assert!(reached.await.is_some(), "{what}: {seen:?}");
    seen
}

async fn streams(sources: &Sources) {
    status_until(sources, "it streams", |status| status.condition == Condition::Streaming).await;
}

fn header(record: &Record, name: &str) -> String {
    let value = record.headers().get(name).expect("the record has the header");
    String::from_utf8_lossy(&value).into_owned()
}

#[tokio::test]
async fn messages_of_a_transaction_reach_their_topic_once_and_in_order() {
    let world = World::new(&["mails"]).await;
    let World { server, broker } = &world;
    let options = json!({ "outbox": ["mails"], "messages": { "audit": "mails" } });
    let start = async || world.start(options.clone()).await;
    let sources = start().await;
    streams(&sources).await;
    server
        .sql(
            "BEGIN; INSERT INTO docs VALUES ('a');
               SELECT pg_logical_emit_message(true, 'firth.topic.mails', 'first');
               SELECT pg_logical_emit_message(true, 'of another program', 'x');
               SELECT pg_logical_emit_message(true, 'firth.topic.mails', 'second'); COMMIT;
             BEGIN; SELECT pg_logical_emit_message(true, 'firth.topic.mails', 'never'); ROLLBACK;
             SELECT pg_logical_emit_message(false, 'firth.topic.mails', 'third');
             SELECT pg_logical_emit_message(true, 'firth.topic.mails/anna', 'hers');",
        )
        .await;
    let mails = async || all_records(broker, "mails").await;
    wait::until(PATIENCE, "all mails are there", async || mails().await.len() >= 4).await;
    drop(sources);
    // The next reader stores none of them again.
    let sources = start().await;
    streams(&sources).await;
    server.sql("SELECT pg_logical_emit_message(true, 'audit', 'last')").await;
    wait::until(PATIENCE, "the last mail is there", async || mails().await.len() >= 5).await;
    let mails = mails().await;
    let texts = |keyed: bool| {
        let own = mails.iter().filter(move |mail| mail.key().is_some() == keyed);
        own.map(|mail| String::from_utf8_lossy(mail.payload()).into_owned()).collect::<Vec<_>>()
    };
    assert_eq!(texts(false), ["first", "second", "third", "last"]);
    assert_eq!(texts(true), ["hers"]);
    let row = records(broker).await.remove(0);
    let first = mails.iter().find(|mail| mail.payload() == "first").unwrap();
    assert_eq!(header(&row, "firth-txn"), header(first, "firth-txn"));
    assert_eq!((header(&row, "firth-txn-index"), header(first, "firth-txn-index")), ("0".into(), "1".into()));
    sources.close().await;
}

#[tokio::test]
async fn a_message_for_a_topic_that_is_not_named_stops_the_source() {
    let world = World::new(&[]).await;
    let sources = world.start(json!({})).await;
    streams(&sources).await;
    world.server.sql("SELECT pg_logical_emit_message(true, 'firth.topic.mails', 'secret')").await;
    let failed = status_until(&sources, "it fails", |status| status.condition == Condition::Failed).await;
    let reason = failed.reason.unwrap();
    assert!(reason.contains("`outbox` does not name") && !reason.contains("secret"), "{reason}");
    sources.close().await;
}

#[tokio::test]
async fn a_row_that_cannot_be_an_event_becomes_a_dead_letter_and_its_neighbours_events() {
    let world = World::new(&["changes.dead"]).await;
    let sources = world.start(json!({ "on_error": "dead" })).await;
    streams(&sources).await;
    let long = "l".repeat(701);
    world
        .server
        .sql(format!(
            "INSERT INTO docs VALUES ('a'), ('{long}'), ('b'); DELETE FROM docs WHERE length(id) > 700;
             SELECT pg_logical_emit_message(true, 'firth.topic.nowhere', 'x');"
        ))
        .await;
    let dead = async || all_records(&world.broker, "changes.dead").await;
    wait::until(PATIENCE, "the dead letters are there", async || dead().await.len() >= 3).await;
    let status = status_until(&sources, "it streams", |status| status.appended >= 5).await;
    assert_eq!((status.condition, status.dead), (Condition::Streaming, 3));
    let keys: Vec<_> =
        records(&world.broker).await.iter().map(|record| record.key().unwrap().clone()).collect();
    assert_eq!(keys.len(), 2, "the neighbours are there: {keys:?}");
    let letters: Vec<DeadLetter> =
        dead().await.iter().map(|record| serde_json::from_slice(record.payload()).unwrap()).collect();
    let told: Vec<_> =
        letters.iter().map(|letter| (&*letter.table, &*letter.op, letter.key.clone())).collect();
    let row = |op| ("public.docs", op, Some(long.clone()));
    assert_eq!(told, [row("insert"), row("delete"), ("", "message", None)]);
    assert!(letters[0].reason.contains("700") && letters[0].committed_ms > 0, "{letters:?}");
    assert_eq!(header(&dead().await[0], "firth-txn-index"), "1");
    sources.close().await;
}

/// A row beyond what is read of any row, one beyond what the topic takes, and one that fits.
const LONG: &str = "ALTER TABLE docs ADD body text;
                    INSERT INTO docs VALUES ('huge', repeat('x', 70000000));
                    INSERT INTO docs VALUES ('large', repeat('x', 2000000)), ('small', 'x')";

#[tokio::test]
async fn rows_that_are_too_long_become_dead_letters_with_the_limit_that_they_break() {
    let world = World::new(&["changes.dead"]).await;
    let sources = world.start(json!({ "on_error": "dead" })).await;
    streams(&sources).await;
    world.server.sql(LONG).await;
    let status = status_until(&sources, "all three are stored", |status| status.appended >= 3).await;
    assert_eq!((status.condition, status.dead, status.reconnects), (Condition::Streaming, 2, 0));
    let letters: Vec<DeadLetter> = all_records(&world.broker, "changes.dead")
        .await
        .iter()
        .map(|record| serde_json::from_slice(record.payload()).unwrap())
        .collect();
    for (letter, key, limit) in [(&letters[0], "huge", "67108864"), (&letters[1], "large", "1048576")] {
        let told = (&*letter.table, &*letter.op, letter.key.as_deref());
        assert_eq!(told, ("public.docs", "insert", Some(key)));
        assert!(letter.reason.contains(limit) && !letter.reason.contains("xxx"), "{letter:?}");
    }
    assert_eq!(records(&world.broker).await.len(), 1);
    sources.close().await;
}

#[tokio::test]
async fn a_row_that_is_too_long_stops_a_source_that_may_not_leave_it_out() {
    let world = World::new(&[]).await;
    let sources = world.start(json!({})).await;
    streams(&sources).await;
    world.server.sql(LONG).await;
    let failed = status_until(&sources, "it fails", |status| status.condition == Condition::Failed).await;
    let reason = failed.reason.unwrap();
    let is_exact = reason.contains("row of public.docs has 7000") && reason.contains("at most 67108864");
    assert!(is_exact && reason.contains("the insert at"), "{reason}");
    sources.close().await;
}

#[tokio::test]
async fn copied_rows_that_are_too_long_are_counted_and_the_others_are_copied() {
    let world = World::new(&["changes.dead"]).await;
    world.server.sql(LONG).await;
    let sources = world.start(json!({ "on_error": "dead", "snapshot": "initial" })).await;
    let is_copied =
        |status: &Status| status.appended == 1 && status.snapshots.iter().all(|copy| copy.is_done);
    let status = status_until(&sources, "the table is copied", is_copied).await;
    assert_eq!(status.errors.get("poison"), Some(&2), "{status:?}");
    sources.close().await;
}

#[tokio::test]
async fn a_copied_row_that_cannot_be_an_event_is_counted_and_its_neighbours_are_copied() {
    let world = World::new(&["changes.dead"]).await;
    world.server.sql("INSERT INTO docs VALUES ('a'), (repeat('l', 701)), ('m')").await;
    let sources = world.start(json!({ "on_error": "dead", "snapshot": "initial" })).await;
    let is_copied =
        |status: &Status| status.appended == 2 && status.snapshots.iter().all(|copy| copy.is_done);
    let status = status_until(&sources, "the table is copied", is_copied).await;
    assert_eq!(status.errors.get("poison"), Some(&1), "{status:?}");
    sources.close().await;
}

#[tokio::test]
async fn a_sign_of_life_measures_an_idle_source_and_the_slot_is_watched() {
    let world = World::new(&[]).await;
    let sources = world.start(json!({ "heartbeat": true })).await;
    let has_come = |status: &Status| status.heartbeat_ms.is_some() && status.slot_bytes.is_some();
    let status = status_until(&sources, "the sign of life came back", has_come).await;
    assert!(status.lag_ms.is_some_and(|lag| lag < 10_000) && status.behind_bytes.is_some(), "{status:?}");
    assert!(records(&world.broker).await.is_empty(), "it is no event");
    sources.close().await;
}
