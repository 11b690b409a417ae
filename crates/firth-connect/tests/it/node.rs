//! Sources on a real topic: nodes take over from each other, and processes are killed.

use crate::once::{TABLE, expected, workload};
use crate::world::{PATIENCE, confirmed, remake_slot, source};
use firth::{Broker, Record, RecordId};
use firth_connect::Condition;
use firth_connect::control::DesiredStates;
use firth_connect::postgres::{Config, Options};
use firth_connect::reports::Reports;
use firth_connect::sources::{SERVICE, Sources};
use firth_router::event::Event;
use firth_testkit::{PostgresServer, wait};
use serde_json::json;
use std::collections::BTreeMap;
use std::process::{Child, Command};
use std::time::Duration;

const CHILD: &str = "FIRTH_CONNECT_CHILD";
pub(crate) const TOPIC: &str = "changes";

/// All records of the topic, partition by partition.
pub(crate) async fn records(broker: &Broker) -> Vec<Record> {
    all_records(broker, TOPIC).await
}

/// The same of any topic.
pub(crate) async fn all_records(broker: &Broker, topic: &str) -> Vec<Record> {
    let partitions = broker.topic(topic).await.unwrap().config.partitions;
    let mut all = Vec::new();
    for partition in 0..partitions {
        let mut after = RecordId::ZERO;
        loop {
            let page = broker.admin().browse(topic, partition, after, 1_000).await.unwrap();
            let Some(last) = page.last() else { break };
            after = last.id();
            all.extend(page);
        }
    }
    all
}

/// The versions of each document in the order of the topic are 1, 2, 3, … up to the table's.
async fn check(broker: &Broker, server: &PostgresServer) {
    let expected = expected(server).await;
    let total: u64 = expected.values().sum();
    let all_there = async || records(broker).await.len() as u64 >= total;
    wait::until(PATIENCE, format!("{total} changes are in the topic"), all_there).await;
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    for record in records(broker).await {
        let event = Event::from_payload(record.payload()).unwrap();
        let last = seen.entry(event.key.to_string()).or_default();
        let version = event.after.as_ref().unwrap().to_value().unwrap()["version"].as_u64().unwrap();
        assert_eq!(version, *last + 1, "document {}", &*event.key);
        *last = version;
        let source = record.headers().get("firth-source").expect("every record names its source");
        assert_eq!(&source[..], b"shop");
    }
    assert_eq!(seen, expected);
}

async fn streams(sources: &Sources) {
    let streams = async || sources.statuses()["shop"].condition == Condition::Streaming;
    wait::until(PATIENCE, "the source streams", streams).await;
}

#[tokio::test]
async fn a_node_that_leaves_hands_its_source_over_and_the_topic_may_grow() {
    let server = PostgresServer::start().await;
    server.sql_as_owner(TABLE).await;
    let broker = Broker::memory();
    broker.create_topic(TOPIC).partitions(2).await.unwrap();
    let start =
        async |node: &str| Sources::start(&broker, node, vec![source(&server, &["docs"])]).await.unwrap();
    let first = start("one").await;
    streams(&first).await;
    let second = start("two").await;
    server.sql(workload(0)).await;
    check(&broker, &server).await;
    assert_eq!(second.statuses()["shop"].condition, Condition::Waiting);
    first.close().await;
    streams(&second).await;
    broker.grow_topic(TOPIC, 5).await.unwrap();
    for round in 1..8 {
        server.sql(workload(round)).await;
    }
    let partitions = || async {
        let mut used = 0;
        for partition in 0..5 {
            used += usize::from(
                !broker.admin().browse(TOPIC, partition, RecordId::ZERO, 1).await.unwrap().is_empty(),
            );
        }
        used
    };
    check_any_order(&broker, &server).await;
    assert!(partitions().await > 2, "new partitions are used");
    second.close().await;
}

#[tokio::test]
async fn the_next_node_tells_that_the_slot_was_made_anew() {
    let server = PostgresServer::start().await;
    server.sql_as_owner(TABLE).await;
    let broker = Broker::memory();
    broker.create_topic(TOPIC).partitions(2).await.unwrap();
    let start =
        async |node: &str| Sources::start(&broker, node, vec![source(&server, &["docs"])]).await.unwrap();
    let first = start("one").await;
    streams(&first).await;
    server.sql(workload(0)).await;
    check(&broker, &server).await;
    first.close().await;
    let stored = records(&broker).await.len();
    remake_slot(&server, &workload(1)).await;
    let second = start("two").await;
    let is_lost = async || second.statuses()["shop"].condition == Condition::Lost;
    wait::until(PATIENCE, "the source is lost", is_lost).await;
    assert_eq!(records(&broker).await.len(), stored);
    second.close().await;
}

#[tokio::test]
async fn a_copy_that_an_operator_asks_for_is_made_once() {
    let server = PostgresServer::start().await;
    server.sql_as_owner(TABLE).await;
    server.sql("INSERT INTO docs SELECT n, 1, 'x' FROM generate_series(1, 50) n").await;
    let broker = Broker::memory();
    broker.create_topic(TOPIC).partitions(2).await.unwrap();
    let sources = Sources::start(&broker, "one", vec![source(&server, &["docs"])]).await.unwrap();
    streams(&sources).await;
    let desired = DesiredStates::new(&broker);
    for (condition, count) in [(Some("id % 5 = 0 OR id = 1"), 11), (None, 61)] {
        desired.change("shop", |desired| desired.ask_snapshot(Some("public.docs"), condition)).await.unwrap();
        let is_copied = async || records(&broker).await.len() == count;
        wait::until(PATIENCE, format!("{count} rows are copied"), is_copied).await;
        let is_struck_off = async || desired.of("shop").await.unwrap().snapshots.is_empty();
        wait::until(PATIENCE, "the request is struck off", is_struck_off).await;
    }
    sources.close().await;
    let sources = Sources::start(&broker, "two", vec![source(&server, &["docs"])]).await.unwrap();
    streams(&sources).await;
    server.sql("INSERT INTO docs VALUES (51, 1, 'x')").await;
    let is_streamed = async || records(&broker).await.len() >= 62;
    wait::until(PATIENCE, "the change is stored", is_streamed).await;
    assert_eq!(records(&broker).await.len(), 62);
    sources.close().await;
}

/// A document that moved to a new partition is in order within each partition only.
async fn check_any_order(broker: &Broker, server: &PostgresServer) {
    let expected = expected(server).await;
    let total: u64 = expected.values().sum();
    let all_there = async || records(broker).await.len() as u64 >= total;
    wait::until(PATIENCE, format!("{total} changes are in the topic"), all_there).await;
    let mut seen: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for record in records(broker).await {
        let event = Event::from_payload(record.payload()).unwrap();
        let version = event.after.as_ref().unwrap().to_value().unwrap()["version"].as_u64().unwrap();
        seen.entry(event.key.to_string()).or_default().push(version);
    }
    for (key, versions) in &mut seen {
        versions.sort_unstable();
        assert_eq!(*versions, (1..=expected[key]).collect::<Vec<_>>(), "document {key}");
    }
}

/// Not a law: the process that the next test kills.
#[tokio::test]
async fn child_mode() {
    let Ok(told) = std::env::var(CHILD) else { return };
    let (dir, url) = told.split_once('|').unwrap();
    let broker = Broker::open(dir).await.unwrap();
    let _ = broker.create_topic(TOPIC).partitions(3).await;
    let options = json!({ "url": url, "topic": TOPIC, "tables": ["docs"], "tenant": { "constant": "acme" }, "snapshot": "never" });
    let options: Options = serde_json::from_value(options).unwrap();
    let password = std::env::var("PGPASSWORD").unwrap();
    let config = Config::new("shop", &options, Some(password)).unwrap();
    let _sources = Sources::start(&broker, "node", vec![config]).await.unwrap();
    std::future::pending::<()>().await;
}

/// A process that is killed with its value.
pub(crate) struct Killed(pub(crate) Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn processes_that_are_killed_neither_lose_nor_double_a_change() {
    let server = PostgresServer::start().await;
    server.sql_as_owner(TABLE).await;
    let dir = tempfile::tempdir().unwrap();
    let start = || {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "node::child_mode", "--nocapture"])
            .env(CHILD, format!("{}|{}", dir.path().display(), server.url()))
            .env("PGPASSWORD", server.password())
            .spawn();
        Killed(child.unwrap())
    };
    let first = start();
    let made = async || server.sql("SELECT count(*) FROM pg_replication_slots").await == "1";
    wait::until(PATIENCE, "the slot is made", made).await;
    drop(first);
    for round in 0..10 {
        let child = start();
        server.sql(workload(round)).await;
        // Some die before they read anything, some while they do, some after.
        let before = confirmed(&server).await;
        let limit = Duration::from_millis(300 * (round as u64 % 5));
        let _ = wait::until_some(limit, async || (confirmed(&server).await != before).then_some(())).await;
        drop(child);
    }
    let broker = Broker::open(dir.path()).await.unwrap();
    let sources = Sources::start(&broker, "node", vec![source(&server, &["docs"])]).await.unwrap();
    check(&broker, &server).await;
    sources.close().await;
    broker.close().await.unwrap();
}

#[tokio::test]
async fn a_paused_source_rests_and_then_goes_on_where_it_stopped() {
    let server = PostgresServer::start().await;
    server.sql_as_owner(TABLE).await;
    let broker = Broker::memory();
    broker.create_topic(TOPIC).partitions(2).await.unwrap();
    let sources = Sources::start(&broker, "one", vec![source(&server, &["docs"])]).await.unwrap();
    streams(&sources).await;
    server.sql(workload(0)).await;
    check(&broker, &server).await;
    // Another process of the same engine says so.
    let states = DesiredStates::new(&broker);
    states.set_paused("shop", true).await.unwrap();
    let rests = async || sources.statuses()["shop"].condition == Condition::Paused;
    wait::until(PATIENCE, "the source rests", rests).await;
    let free = async || server.sql("SELECT count(*) FROM pg_replication_slots WHERE active").await == "0";
    wait::until(PATIENCE, "no session reads the slot", free).await;
    let stored = records(&broker).await.len();
    server.sql(workload(1)).await;
    assert_eq!(records(&broker).await.len(), stored);
    states.set_paused("shop", false).await.unwrap();
    check(&broker, &server).await;
    // A slot that was made anew in a pause is found out: the state of the last turn is read again.
    states.set_paused("shop", true).await.unwrap();
    wait::until(PATIENCE, "the source rests again", rests).await;
    remake_slot(&server, &workload(2)).await;
    states.set_paused("shop", false).await.unwrap();
    let is_lost = async || sources.statuses()["shop"].condition == Condition::Lost;
    wait::until(PATIENCE, "the source is lost", is_lost).await;
    states.restart("shop").await.unwrap();
    let begins_anew = async || sources.statuses()["shop"].condition != Condition::Lost;
    wait::until(PATIENCE, "a restart is obeyed", begins_anew).await;
    wait::until(PATIENCE, "the source is lost again", is_lost).await;
    sources.close().await;
}

#[tokio::test]
async fn a_removed_source_leaves_nothing_behind_and_can_begin_again() {
    let server = PostgresServer::start().await;
    server.sql_as_owner(TABLE).await;
    let broker = Broker::memory();
    broker.create_topic(TOPIC).partitions(2).await.unwrap();
    let sources = Sources::start(&broker, "one", vec![source(&server, &["docs"])]).await.unwrap();
    streams(&sources).await;
    server.sql(workload(0)).await;
    check(&broker, &server).await;
    let told = async || Reports::new(&broker).all().await.unwrap();
    let is_told = async || told().await.get("shop").is_some_and(|report| report.node == "one");
    wait::until(PATIENCE, "its reader tells how it is", is_told).await;
    let states = DesiredStates::new(&broker);
    states.set_removed("shop", true).await.unwrap();
    let left = "SELECT (SELECT count(*) FROM pg_replication_slots) + (SELECT count(*) FROM pg_publication)";
    let gone = async || server.sql(left).await == "0" && told().await.is_empty();
    wait::until(PATIENCE, "slot, publication and report are gone", gone).await;
    let offers = async || broker.claims(SERVICE).offers(None, 10).await.unwrap().len();
    wait::until(PATIENCE, "no node can claim it", async || offers().await == 0).await;
    states.set_removed("shop", false).await.unwrap();
    streams(&sources).await;
    assert_eq!(offers().await, 1);
    sources.close().await;
}
