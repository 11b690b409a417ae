//! Rows that were there before their source.

use crate::world::{PATIENCE, Reader, Topic, copied, shown, source, source_with};
use firth_connect::{Condition, State};
use firth_router::event::{Event, Operation};
use firth_testkit::{PostgresServer, wait};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Waits until the source knows this many tables and copied them.
pub(crate) async fn is_copied(topic: &Topic, reader: &Reader, tables: usize) {
    let done = async || {
        let failed = matches!(reader.status().condition, Condition::Failed | Condition::Lost);
        assert!(!failed, "{:?}", reader.status());
        let state = topic.state();
        state.tables.len() == tables && state.copy.queue.is_empty()
    };
    wait::until(PATIENCE, "everything is copied", done).await;
}

/// What a reader of the topic knows of each document.
fn rebuilt(events: &[Event]) -> BTreeMap<String, Value> {
    let mut known: BTreeMap<String, Value> = BTreeMap::new();
    for event in events {
        let Some(after) = &event.after else {
            known.remove(&event.message_key());
            continue;
        };
        let mut after = after.to_value().unwrap();
        for column in &event.missing {
            // Before its row was copied it is not known; then the whole row follows.
            let before = known.get(&event.message_key());
            after[&**column] = before.map(|row| row[&**column].clone()).unwrap_or_default();
        }
        known.insert(event.message_key(), after);
    }
    known
}

/// The table as its rows would be told.
async fn table(server: &PostgresServer, name: &str, key: &str) -> BTreeMap<String, Value> {
    let rows = server.sql(format!("SELECT {key}, row_to_json(t) FROM {name} t")).await;
    let rows = rows.lines().map(|line| line.split_once('|').unwrap());
    rows.map(|(key, row)| (format!("{name}/{key}"), serde_json::from_str(row).unwrap())).collect()
}

#[tokio::test]
async fn rows_that_were_there_before_are_copied_once() {
    let server = PostgresServer::start().await;
    server
        .sql_as_owner(
            "CREATE TABLE orders (id int PRIMARY KEY, state text); CREATE TABLE empty (id int PRIMARY KEY);
             INSERT INTO orders SELECT n, 'old' FROM generate_series(1, 3000) n; ANALYZE orders;",
        )
        .await;
    let topic = Topic::new(3);
    let config = copied(&server, &["orders", "empty"]);
    let reader = topic.read(&config);
    is_copied(&topic, &reader, 2).await;
    let events = topic.events();
    assert_eq!(events.len(), 3_000);
    assert!(events.iter().all(|event| event.operation == Operation::Snapshot && event.observed_ms > 0));
    assert!(events.iter().any(|event| shown(event) == r#"snapshot orders/7: - > {"id":7,"state":"old"}"#));
    let done = async || reader.status().snapshots.iter().all(|table| table.is_done);
    wait::until(PATIENCE, "it says so", done).await;
    let told = reader.status().snapshots;
    let orders = told.iter().find(|table| table.table == "public.orders").unwrap();
    assert_eq!((orders.rows, orders.estimate), (3_000, Some(3_000)));
    drop(reader);
    // The next reader copies nothing again.
    let reader = topic.read(&config);
    reader.wait_until(Condition::Streaming).await;
    server.sql("INSERT INTO orders VALUES (3001, 'new')").await;
    topic.wait_for(3_001, &reader).await;
    assert_eq!(topic.events().len(), 3_001);
}

#[tokio::test]
async fn a_table_that_is_named_later_is_copied_and_a_source_may_leave_rows_alone() {
    let server = PostgresServer::start().await;
    server
        .sql_as_owner(
            "CREATE TABLE orders (id int PRIMARY KEY); CREATE TABLE items (id int PRIMARY KEY);
             INSERT INTO orders VALUES (1); INSERT INTO items VALUES (1), (2);",
        )
        .await;
    let topic = Topic::new(2);
    let reader = topic.read(&source(&server, &["orders"]));
    reader.wait_until(Condition::Streaming).await;
    server.sql("INSERT INTO orders VALUES (2)").await;
    topic.wait_for(1, &reader).await;
    drop(reader);
    let reader = topic.read(&copied(&server, &["orders", "items"]));
    is_copied(&topic, &reader, 2).await;
    let mut seen: Vec<_> = topic.events().iter().map(shown).collect();
    seen.sort();
    assert_eq!(
        seen,
        [
            r#"insert orders/2: - > {"id":2}"#,
            r#"snapshot items/1: - > {"id":1}"#,
            r#"snapshot items/2: - > {"id":2}"#,
        ]
    );
}

/// Writers, while a reader copies and dies at random.
async fn write(server: Arc<PostgresServer>, round: usize, moves: bool) {
    let statements = (0..60).map(|number| {
        let id = (round * 131 + number * 37) % 2_000;
        match number % 6 {
            0 => format!("DELETE FROM docs WHERE id = {id};"),
            1 => format!("INSERT INTO docs VALUES ({id}, {round}, repeat('y', 3000)) ON CONFLICT (id) DO UPDATE SET n = -1;"),
            2 => format!("BEGIN; UPDATE docs SET n = n + 1 WHERE id % 50 = {}; COMMIT;", id % 50),
            3 => format!("BEGIN; UPDATE docs SET n = 0 WHERE id = {id}; ROLLBACK;"),
            4 if moves => format!("UPDATE docs SET id = id + 2000 WHERE id = {id} AND NOT EXISTS (SELECT FROM docs WHERE id = {id} + 2000);"),
            _ => format!("UPDATE docs SET n = n + 1 WHERE id = {id};"),
        }
    });
    server.sql(statements.collect::<Vec<_>>().join("\n")).await;
}

#[tokio::test]
async fn the_topic_holds_the_table_although_writers_write_and_readers_die() {
    // A key that changes takes large values along only if old rows are told in full.
    for identity in ["DEFAULT", "FULL"] {
        let server = Arc::new(PostgresServer::start().await);
        server
            .sql_as_owner(format!(
                "CREATE TABLE docs (id int PRIMARY KEY, n int, body text);
                 ALTER TABLE docs ALTER body SET STORAGE EXTERNAL; ALTER TABLE docs REPLICA IDENTITY {identity};
                 INSERT INTO docs SELECT n, 0, repeat('x', 2500 + n % 7) FROM generate_series(0, 1999) n;"
            ))
            .await;
        let topic = Topic::new(3);
        let config = copied(&server, &["docs"]);
        for round in 0..10 {
            let writing = tokio::spawn(write(server.clone(), round, identity == "FULL"));
            let reader = topic.read(&config);
            let enough = topic.events().len() + 150 * (round % 5);
            let is_far = async || {
                let state = topic.state();
                let is_done = state.tables.len() == 1 && state.copy.queue.is_empty();
                is_done || topic.events().len() >= enough
            };
            wait::until(PATIENCE, "the reader got somewhere", is_far).await;
            drop(reader);
            writing.await.unwrap();
        }
        let reader = topic.read(&config);
        is_copied(&topic, &reader, 1).await;
        let expected = table(&server, "docs", "id").await;
        let agrees = async || (rebuilt(&topic.events()) == expected).then_some(());
        let agrees = wait::until_some(PATIENCE, agrees).await;
        let seen = rebuilt(&topic.events());
        let all = expected.keys().chain(seen.keys());
        let wrong: Vec<_> = all.filter(|key| expected.get(*key) != seen.get(*key)).collect();
        assert!(agrees.is_some(), "these differ: {wrong:?}");
    }
}

#[tokio::test]
async fn a_copied_row_is_the_same_json_as_a_streamed_one_for_every_type() {
    let server = PostgresServer::start().await;
    server
        .sql_as_owner(
            r#"CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE DOMAIN positive AS int CHECK (VALUE > 0);
               CREATE TYPE place AS (street text, number positive);
               CREATE TABLE kinds (id bigint, part "char", a bool, b float8, b4 float4, c jsonb, c1 json, d bytea,
                 e timestamptz, e1 timestamp, e2 time, e3 timetz, f interval, g int[], h text[], i mood, j positive,
                 k place, l place[], m uuid, n date, o mood[], p tsrange, q numeric(12,3), r money, s inet, t cidr,
                 u macaddr, v bit varying, w point, x polygon, y tsvector, z xml, aa oid, ab smallint, ac varchar(9),
                 ad char(5), ae name, af numeric[], ag timestamptz[], ah bytea[], ai int4multirange,
                 gone int, made int GENERATED ALWAYS AS (7) STORED, PRIMARY KEY (part, id));
               ALTER TABLE kinds DROP gone"#,
        )
        .await;
    let insert = |id: u64| {
        format!(
            r#"SET TimeZone = 'Asia/Tokyo'; SET DateStyle = 'German'; SET IntervalStyle = 'postgres'; SET bytea_output = 'escape';
               SET extra_float_digits = 0;
               INSERT INTO kinds VALUES ({id}, 'x', true, 0.1, 1.1, '{{"a": [1, null]}}', '{{"b" :  2.50}}', '\x00ff',
                 '2026-01-02 03:04:05.5+00', '2026-01-02 03:04:05', '03:04:05.25', '03:04:05+02', '1 year 1 day 02:00',
                 '{{{{1,2}},{{3,NULL}}}}', '{{"a,b","NULL",NULL}}', 'ok', 7, ('Main "St"', 4),
                 ARRAY[('x', 1)::place, ('', NULL)::place], '6f9b6f0e-0000-4000-8000-000000000001', '2026-01-02', '{{sad,ok}}',
                 '[2026-01-01,2026-01-02)', 12.5, 3.5, '10.0.0.1', '10.0.0.0/8', '08:00:2b:01:02:03', B'101', '(1,2)',
                 '((0,0),(1,1),(1,0))', 'a fat cat', '<a/>', 42, -7, 'text', 'abc', 'name', '{{1.50,NULL}}',
                 '{{"2026-01-02 03:04:05+09"}}', '{{"\\x00ff"}}', '{{[1,3),[5,9)}}');
               INSERT INTO kinds (id, part) VALUES ({id}, 'y');"#
        )
    };
    server.sql(insert(1)).await;
    let topic = Topic::new(1);
    let reader = topic.read(&copied(&server, &["kinds"]));
    is_copied(&topic, &reader, 1).await;
    server.sql(insert(2)).await;
    let events = topic.wait_for(4, &reader).await;
    let operations: Vec<_> = events.iter().map(|event| event.operation.as_str()).collect();
    assert_eq!(operations, ["snapshot", "snapshot", "insert", "insert"]);
    let texts: Vec<_> = events
        .iter()
        .map(|event| String::from_utf8(event.after.as_ref().unwrap().text().to_vec()).unwrap())
        .collect();
    for place in 0..2 {
        assert_eq!(texts[place].replacen(r#""id":1"#, r#""id":2"#, 1), texts[place + 2]);
    }
}

#[tokio::test]
async fn keys_of_several_columns_and_rows_without_primary_key_are_copied_in_full() {
    let server = PostgresServer::start().await;
    server
        .sql_as_owner(
            "CREATE TABLE pairs (a text, b timestamptz, c int, PRIMARY KEY (b, a));
             INSERT INTO pairs SELECT 'k' || n % 37, timestamptz '2026-01-01' + (n / 37) * interval '1 hour', n
               FROM generate_series(0, 2499) n;
             CREATE TABLE pages (site text NOT NULL, n int) ; ALTER TABLE pages REPLICA IDENTITY FULL;
             INSERT INTO pages SELECT 's' || n / 3, n FROM generate_series(0, 2499) n;
             CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id);
             CREATE TABLE low PARTITION OF parts FOR VALUES FROM (0) TO (1000);
             CREATE TABLE high PARTITION OF parts FOR VALUES FROM (1000) TO (3000);
             INSERT INTO parts SELECT n FROM generate_series(0, 2499) n;",
        )
        .await;
    let topic = Topic::new(2);
    let reader = topic.read(&copied(&server, &["pairs", "parts"]));
    is_copied(&topic, &reader, 2).await;
    let keys: std::collections::BTreeSet<_> = topic.events().iter().map(Event::message_key).collect();
    assert_eq!((keys.len(), topic.events().len()), (5_000, 5_000));
    drop(reader);
    let topic = Topic::new(2);
    server.sql("SELECT pg_drop_replication_slot('firth_shop')").await;
    server.sql("DROP PUBLICATION firth_shop").await;
    let by_site = json!({ "snapshot": "initial", "key": ["site"] });
    let reader = topic.read(&source_with(&server, &["pages"], &by_site));
    is_copied(&topic, &reader, 1).await;
    assert_eq!(topic.events().len(), 2_500);
}

#[tokio::test]
async fn a_role_that_may_not_read_a_table_is_told_the_statement_that_helps() {
    let server = PostgresServer::start().await;
    server
        .sql(
            "CREATE TABLE orders (id int PRIMARY KEY); INSERT INTO orders VALUES (1);
             CREATE PUBLICATION firth_shop FOR TABLE orders WITH (publish = 'insert, update, delete')",
        )
        .await;
    let topic = Topic::new(1);
    let config = copied(&server, &["orders"]);
    let reader = topic.read(&config);
    let reason = reader.wait_until(Condition::Failed).await;
    assert!(reason.contains("GRANT SELECT ON \"public\".\"orders\""), "{reason}");
    drop(reader);
    server.sql("GRANT SELECT ON orders TO firth").await;
    let reader = topic.read(&config);
    is_copied(&topic, &reader, 1).await;
    assert_eq!(topic.events().len(), 1);
    assert_ne!(topic.state(), State::default());
}
