//! Snapshots beside writers: the state that a reader of the topic builds is the table's, over
//! random workloads, sizes of chunks, and deaths of readers, databases and engines.
//!
//! `FIRTH_HISTORY_SEEDS` and `FIRTH_SEED` choose more seeds and others; see `history`.

use crate::history::judge::partitions;
use crate::history::{Engine, die, redis, workload};
use crate::snapshot::is_copied;
use crate::world::{PATIENCE, Topic, source_with};
use fastrand::Rng;
use firth_connect::Condition;
use firth_connect::sources::Sources;
use firth_router::event::Event;
use firth_testkit::{PostgresServer, wait};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

pub(crate) type Rows = BTreeMap<(String, String), Value>;

/// The state of the tables as the events of all partitions tell it.
pub(crate) fn rebuilt(topic: &Topic) -> Rows {
    all_of(&topic.by_partition())
}

fn all_of(partitions: &[Vec<Event>]) -> Rows {
    partitions.iter().flat_map(|events| of_partition(events)).collect()
}

/// The same of one partition. A large value that the topic never told is absent.
fn of_partition(events: &[Event]) -> Rows {
    let mut rows = Rows::new();
    for event in events {
        let name = (event.collection.to_string(), event.key.to_string());
        let Some(after) = &event.after else {
            rows.remove(&name);
            if event.is_control() {
                rows.retain(|(table, _), _| *table != *event.collection);
            }
            continue;
        };
        let mut after = after.to_value().unwrap();
        let before = rows.get(&name);
        for column in &event.missing {
            if let Some(value) = before.and_then(|row| row.get(&**column)) {
                after[&**column] = value.clone();
            }
        }
        rows.insert(name, after);
    }
    rows
}

/// The tables themselves.
async fn tables(server: &PostgresServer, schema: &str) -> Rows {
    let mut all = Rows::new();
    for table in workload::TABLES {
        let rows = server.sql(format!("SELECT id, row_to_json(t) FROM {schema}.{table} t")).await;
        for (id, row) in rows.lines().map(|line| line.split_once('|').unwrap()) {
            all.insert((table.to_owned(), id.to_owned()), serde_json::from_str(row).unwrap());
        }
    }
    all
}

/// Documents whose states differ. A row that moved may lack its large value where old rows are told
/// by key alone.
fn differences(topic: &Rows, table: &Rows) -> Vec<String> {
    let names = table.keys().chain(topic.keys().filter(|name| !table.contains_key(*name)));
    let same = |name: &(String, String)| match (topic.get(name), table.get(name)) {
        (Some(told), Some(row)) if name.0 == "brief" && told.get("body").is_none() => {
            let mut row = row.clone();
            row.as_object_mut().unwrap().remove("body");
            *told == row
        }
        (told, row) => told == row,
    };
    names.filter(|name| !same(name)).map(|name| format!("{name:?}")).collect()
}

/// The tables of a seed, with rows in them.
async fn fill(server: &PostgresServer, rng: &mut Rng, schema: &str, documents: u32) {
    server.sql_as_owner(workload::schema(schema)).await;
    for table in workload::TABLES {
        let count = rng.u32(0..documents);
        server
            .sql(format!(
                "INSERT INTO {schema}.{table} SELECT n, 0, 0, 'v0:' || repeat('y', 3000) FROM generate_series(1, {count}) n"
            ))
            .await;
    }
}

/// The source and its tables are gone.
async fn clean(server: &PostgresServer, schema: &str, source: &str) {
    let slot = format!("SELECT pg_drop_replication_slot('firth_{source}')");
    let gone = async || server.try_sql(&slot).await.is_ok();
    wait::until(PATIENCE, "the slot is dropped", gone).await;
    server.sql(format!("DROP SCHEMA {schema} CASCADE; DROP PUBLICATION IF EXISTS firth_{source}")).await;
}

async fn run(server: &Arc<PostgresServer>, seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let schema = format!("b{seed}");
    let documents = rng.u32(10..3_000);
    fill(server, &mut rng, &schema, documents).await;
    let names = workload::TABLES.map(|table| format!("{schema}.{table}"));
    let mut config = source_with(server, &[&*names[0], &*names[1]], &json!({ "snapshot": "initial" }));
    config.chunk_rows = rng.usize(1..1_500);
    let topic = Topic::new(rng.usize(1..5));
    for _ in 0..rng.usize(2..7) {
        let script = workload::script(&mut rng, &schema, documents);
        let writing = tokio::spawn({
            let server = server.clone();
            async move { server.try_sql(&script).await.is_ok() }
        });
        let reader = topic.read(&config);
        let enough = topic.events().len() + rng.usize(0..800);
        let is_far = async || {
            let state = topic.state();
            let is_done = !state.tables.is_empty() && state.copy.queue.is_empty();
            let broken = matches!(reader.status().condition, Condition::Failed | Condition::Lost);
            assert!(!broken, "seed {seed}: {:?}", reader.status());
            is_done || topic.events().len() >= enough
        };
        wait::until(PATIENCE, format!("seed {seed}: the reader got somewhere"), is_far).await;
        drop(reader);
        writing.await.unwrap();
    }
    let reader = topic.read(&config);
    is_copied(&topic, &reader, 2).await;
    let expected = tables(server, &schema).await;
    let agrees = async || differences(&rebuilt(&topic), &expected).is_empty().then_some(());
    let agrees = wait::until_some(PATIENCE * 2, agrees).await;
    let wrong = differences(&rebuilt(&topic), &expected);
    let status = reader.status();
    assert!(agrees.is_some(), "seed {seed}: these differ: {wrong:?}; the source is {status:?}");
    drop(reader);
    clean(server, &schema, "shop").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_state_of_the_topic_is_the_tables_whatever_is_written_and_dies_meanwhile() {
    let server = Arc::new(PostgresServer::start().await);
    for seed in workload::seeds(4) {
        run(&server, seed).await;
    }
}

/// As [`run`], on a real engine. Readers are dropped, databases and engines killed at random
/// moments.
async fn run_on(engine: &Engine, server: &Arc<PostgresServer>, seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let schema = format!("d{seed}");
    let documents = rng.u32(10..3_000);
    fill(server, &mut rng, &schema, documents).await;
    let names = workload::TABLES.map(|table| format!("{schema}.{table}"));
    let mut config = source_with(server, &[&*names[0], &*names[1]], &json!({ "snapshot": "initial" }));
    (config.name, config.topic) = (schema.clone(), schema.clone());
    config.chunk_rows = rng.usize(1..1_500);
    let broker = engine.open().await;
    broker.create_topic(&schema).partitions(rng.u32(1..5)).await.unwrap();
    broker.close().await.unwrap();
    let start = async || {
        let broker = engine.open().await;
        let sources = Sources::start(&broker, "node", vec![config.clone()]).await.unwrap();
        (broker, sources)
    };
    for _ in 0..rng.usize(2..7) {
        let reader = start().await;
        let script = workload::script(&mut rng, &schema, documents);
        let writing = tokio::spawn({
            let server = server.clone();
            async move { server.try_sql(&script).await.is_ok() }
        });
        // no synchronisation: random moments
        tokio::time::sleep(Duration::from_millis(rng.u64(0..700))).await;
        die(rng.u8(0..9), server, engine).await;
        tokio::time::sleep(Duration::from_millis(rng.u64(0..700))).await;
        drop(reader);
        writing.await.unwrap();
    }
    let (broker, sources) = start().await;
    let status = || sources.statuses().remove(&schema).unwrap_or_default();
    let copied = async || {
        let status = status();
        let is_done = status.snapshots.iter().all(|copy| copy.is_done);
        status.condition == Condition::Streaming && is_done
    };
    wait::until(PATIENCE * 2, format!("seed {seed}: all is copied"), copied).await;
    let expected = tables(server, &schema).await;
    let mut wrong = Vec::new();
    let agrees = async || {
        let events = partitions(&broker, &schema).await.ok()?;
        wrong = differences(&all_of(&events), &expected);
        wrong.is_empty().then_some(())
    };
    let agrees = wait::until_some(PATIENCE * 2, agrees).await;
    assert!(agrees.is_some(), "seed {seed}: these differ: {wrong:?}; the source is {:?}", status());
    sources.close().await;
    clean(server, &schema, &schema).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_state_of_the_topic_is_the_tables_whatever_dies_beside_redis() {
    let server = Arc::new(PostgresServer::start().await);
    let engine = redis().await;
    for seed in workload::seeds(4).filter(|seed| seed % 2 == 0) {
        run_on(&engine, &server, seed).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_state_of_the_topic_is_the_tables_whatever_dies_on_files() {
    let server = Arc::new(PostgresServer::start().await);
    let engine = Engine::Files(tempfile::tempdir().unwrap());
    for seed in workload::seeds(4).filter(|seed| seed % 2 == 1) {
        run_on(&engine, &server, seed).await;
    }
}
