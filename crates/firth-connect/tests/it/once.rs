//! Each change is in the topic once and in commit order, also when readers and servers die.

use crate::world::{PATIENCE, Topic, source};
use firth_connect::{Condition, ErrorKind};
use firth_router::event::Operation;
use firth_testkit::{PostgresServer, wait};
use std::collections::BTreeMap;
use std::time::Duration;

/// Each document counts its own versions, so that a change that is lost, doubled or out of order
/// shows.
pub(crate) const TABLE: &str = "CREATE TABLE docs (id int PRIMARY KEY, version int NOT NULL, pad text)";
const DOCUMENTS: usize = 10;

/// One more version of some documents, in transactions of different lengths.
pub(crate) fn workload(round: usize) -> String {
    let statements = (0..15).map(|number| {
        let first = (round + number) % DOCUMENTS;
        let last = (round * 7 + number * 3) % DOCUMENTS;
        let one = |id: usize| {
            format!("INSERT INTO docs VALUES ({id}, 1, 'x') ON CONFLICT (id) DO UPDATE SET version = docs.version + 1;")
        };
        match number % 4 {
            0 => format!("BEGIN; {}{} COMMIT;", one(first), one(last)),
            1 => format!("BEGIN; {} ROLLBACK;", one(first)),
            _ => one(first),
        }
    });
    statements.collect::<Vec<_>>().join("\n")
}

/// The documents of the table with their versions.
pub(crate) async fn expected(server: &PostgresServer) -> BTreeMap<String, u64> {
    let table = server.sql("SELECT id, version FROM docs ORDER BY id").await;
    let rows = table.lines().map(|line| line.split_once('|').unwrap());
    rows.map(|(id, version)| (id.to_owned(), version.parse().unwrap())).collect()
}

/// The versions of each document in the order of the topic are 1, 2, 3, … up to the table's.
async fn check(topic: &Topic, server: &PostgresServer, deadline: Duration) {
    let expected = expected(server).await;
    let total: u64 = expected.values().sum();
    let all_there = async || topic.events().len() as u64 >= total;
    wait::until(deadline, format!("{total} changes are in the topic"), all_there).await;
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    for event in topic.events() {
        let last = seen.entry(event.key.to_string()).or_default();
        let version = event.after.as_ref().unwrap().to_value().unwrap()["version"].as_u64().unwrap();
        assert_eq!(version, *last + 1, "document {}", &*event.key);
        assert_eq!(event.operation == Operation::Insert, version == 1);
        *last = version;
    }
    assert_eq!(seen, expected);
}

#[tokio::test]
async fn readers_that_die_at_random_neither_lose_nor_double_a_change() {
    let server = PostgresServer::start().await;
    server.sql_as_owner(TABLE).await;
    let topic = Topic::new(3);
    let config = source(&server, &["docs"]);
    topic.read(&config).wait_until(Condition::Streaming).await;
    for round in 0..25 {
        // The reader dies somewhere between its login and the end of its work.
        let reader = topic.read(&config);
        server.sql(workload(round)).await;
        let enough = topic.events().len() + round % 12;
        if round % 3 == 0 {
            topic.wait_for(enough, &reader).await;
        }
        drop(reader);
        let confirmed = crate::world::confirmed(&server).await;
        let allowed = topic.state().allowed.expect("it was saved").lsn;
        assert!(confirmed <= allowed, "{confirmed} was told before {allowed} was saved");
    }
    let reader = topic.read(&config);
    check(&topic, &server, PATIENCE).await;
    assert_eq!(reader.status().condition, Condition::Streaming);
}

#[tokio::test]
async fn a_database_that_is_killed_neither_loses_nor_doubles_a_change() {
    let server = PostgresServer::start().await;
    server.sql_as_owner(TABLE).await;
    let topic = Topic::new(3);
    let config = source(&server, &["docs"]);
    let reader = topic.read(&config);
    reader.wait_until(Condition::Streaming).await;
    for round in 0..4 {
        server.sql(workload(round)).await;
        if round % 2 == 0 {
            server.kill().await;
            reader.wait_until(Condition::Retrying).await;
        }
        server.restart().await;
    }
    check(&topic, &server, PATIENCE).await;
    drop(reader);
}

#[tokio::test]
async fn the_newest_reader_takes_over_and_the_former_one_ends() {
    let server = PostgresServer::start().await;
    server.sql_as_owner(TABLE).await;
    let topic = Topic::new(2);
    let config = source(&server, &["docs"]);
    let mut former = topic.read(&config);
    former.wait_until(Condition::Streaming).await;
    let reader = topic.read(&config);
    reader.wait_until(Condition::Streaming).await;
    server.sql(workload(0)).await;
    check(&topic, &server, PATIENCE).await;
    let ended = tokio::time::timeout(PATIENCE, &mut former.task).await.expect("it ends").unwrap();
    assert_eq!(ended.kind(), ErrorKind::Fenced);
}

#[tokio::test]
async fn a_transaction_larger_than_the_buffer_flows_through_it() {
    let server = PostgresServer::start().await;
    server.sql_as_owner(TABLE).await;
    let mut config = source(&server, &["docs"]);
    config.limits.buffer_bytes = 64 << 10;
    let topic = Topic::new(2);
    let reader = topic.read(&config);
    reader.wait_until(Condition::Streaming).await;
    server.sql("INSERT INTO docs SELECT n, 1, repeat('x', 200) FROM generate_series(1, 20000) n").await;
    check(&topic, &server, PATIENCE).await;
    assert!(reader.status().buffer_bytes <= 80 << 10, "{:?}", reader.status());
}
