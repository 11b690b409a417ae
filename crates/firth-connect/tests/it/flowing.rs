//! What flows from a table to a topic.

use crate::world::{Topic, shown, source, source_with};
use firth_connect::Condition;
use firth_testkit::{PostgresServer, wait};
use serde_json::json;

#[tokio::test]
async fn changes_of_a_table_become_events_in_commit_order() {
    let server = PostgresServer::start().await;
    server.sql_as_owner("CREATE TABLE orders (id int PRIMARY KEY, state text, total numeric)").await;
    let topic = Topic::new(1);
    let reader = topic.read(&source(&server, &["orders"]));
    reader.wait_until(Condition::Streaming).await;
    server
        .sql(
            "INSERT INTO orders VALUES (1, 'new', 9.50), (2, 'new', NULL);
             UPDATE orders SET state = 'paid' WHERE id = 1;
             UPDATE orders SET id = 3 WHERE id = 2;
             DELETE FROM orders WHERE id = 1;",
        )
        .await;
    let events: Vec<_> = topic.wait_for(6, &reader).await.iter().map(shown).collect();
    assert_eq!(
        events,
        [
            r#"insert orders/1: - > {"id":1,"state":"new","total":"9.50"}"#,
            r#"insert orders/2: - > {"id":2,"state":"new","total":null}"#,
            r#"update orders/1: - > {"id":1,"state":"paid","total":"9.50"}"#,
            r#"delete orders/2: {"id":2} > -"#,
            r#"insert orders/3: - > {"id":3,"state":"new","total":null}"#,
            r#"delete orders/1: {"id":1} > -"#,
        ]
    );
    assert!(topic.events().iter().all(|event| event.committed_ms > 0 && event.observed_ms > 0));
}

#[tokio::test]
async fn a_full_replica_identity_tells_old_rows_and_large_values() {
    let server = PostgresServer::start().await;
    server
        .sql_as_owner(
            "CREATE TABLE docs (id int PRIMARY KEY, tenant text, n int, body text);
             ALTER TABLE docs ALTER body SET STORAGE EXTERNAL;
             CREATE TABLE brief (LIKE docs INCLUDING ALL);
             ALTER TABLE docs REPLICA IDENTITY FULL;",
        )
        .await;
    let topic = Topic::new(1);
    let config = source_with(&server, &["docs"], &json!({ "tenant": { "column": "tenant" } }));
    let reader = topic.read(&config);
    reader.wait_until(Condition::Streaming).await;
    server
        .sql(
            "INSERT INTO docs VALUES (1, 'a', 0, repeat('x', 10000));
             UPDATE docs SET n = 1; UPDATE docs SET tenant = 'b'; DELETE FROM docs;",
        )
        .await;
    let events = topic.wait_for(5, &reader).await;
    let body = format!(r#""body":"{}"}}"#, "x".repeat(10_000));
    let seen: Vec<_> = events.iter().map(|event| (event.operation.as_str(), event.tenant.as_str())).collect();
    assert_eq!(seen, [("insert", "a"), ("update", "a"), ("delete", "a"), ("insert", "b"), ("delete", "b")]);
    for event in &events {
        for document in event.before.iter().chain(&event.after) {
            assert!(document.text().ends_with(body.as_bytes()), "{}", event.operation.as_str());
        }
    }
    assert_eq!(reader.status().with_missing, 0);
}

#[tokio::test]
async fn values_of_every_type_are_the_json_that_the_guide_names() {
    let server = PostgresServer::start().await;
    server
        .sql_as_owner(
            "CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE DOMAIN positive AS int CHECK (VALUE > 0);
             CREATE TYPE place AS (street text, number positive);
             CREATE TABLE kinds (id bigint PRIMARY KEY, a bool, b float8, c jsonb, d bytea, e timestamptz, f interval,
               g int[], h text[], i mood, j positive, k place, l place[], m uuid, n date, o mood[], p tsrange)",
        )
        .await;
    let topic = Topic::new(1);
    let reader = topic.read(&source(&server, &["kinds"]));
    reader.wait_until(Condition::Streaming).await;
    server
        .sql(
            r#"SET TimeZone = 'Asia/Tokyo'; SET DateStyle = 'German';
               INSERT INTO kinds VALUES (9007199254740993, true, 0.1, '{"a": [1, null]}', '\x00ff',
                 '2026-01-02 03:04:05.5+00', '1 day 02:00', '{{1,2},{3,NULL}}', '{"a,b","NULL",NULL}', 'ok', 7,
                 ('Main "St"', 4), ARRAY[('x', 1)::place, ('', NULL)::place],
                 '6f9b6f0e-0000-4000-8000-000000000001', '2026-01-02', '{sad,ok}', '[2026-01-01,2026-01-02)')"#,
        )
        .await;
    let events = topic.wait_for(1, &reader).await;
    let document = events[0].after.as_ref().unwrap().to_value().unwrap();
    assert_eq!(
        document,
        json!({
            "id": 9_007_199_254_740_993_u64, "a": true, "b": 0.1, "c": { "a": [1, null] }, "d": "AP8=",
            "e": "2026-01-02T03:04:05.5Z", "f": "P1DT2H", "g": [[1, 2], [3, null]], "h": ["a,b", "NULL", null],
            "i": "ok", "j": 7, "k": { "street": "Main \"St\"", "number": 4 },
            "l": [{ "street": "x", "number": 1 }, { "street": "", "number": null }],
            "m": "6f9b6f0e-0000-4000-8000-000000000001", "n": "2026-01-02", "o": ["sad", "ok"],
            "p": "[\"2026-01-01 00:00:00\",\"2026-01-02 00:00:00\")",
        })
    );
}

#[tokio::test]
async fn a_table_may_change_its_columns_in_the_middle_of_the_stream() {
    let server = PostgresServer::start().await;
    server.sql_as_owner("CREATE TABLE orders (id int PRIMARY KEY, a text)").await;
    let topic = Topic::new(1);
    let reader = topic.read(&source(&server, &["orders"]));
    reader.wait_until(Condition::Streaming).await;
    server
        .sql(
            "INSERT INTO orders VALUES (1, 'x'); ALTER TABLE orders ADD b int DEFAULT 5;
             INSERT INTO orders VALUES (2, 'y'); ALTER TABLE orders RENAME a TO z; ALTER TABLE orders DROP b;
             INSERT INTO orders VALUES (3, 'w');",
        )
        .await;
    let events: Vec<_> = topic.wait_for(3, &reader).await.iter().map(shown).collect();
    assert_eq!(
        events,
        [
            r#"insert orders/1: - > {"id":1,"a":"x"}"#,
            r#"insert orders/2: - > {"id":2,"a":"y","b":5}"#,
            r#"insert orders/3: - > {"id":3,"z":"w"}"#,
        ]
    );
}

#[tokio::test]
async fn a_partitioned_table_is_one_collection() {
    let server = PostgresServer::start().await;
    server
        .sql_as_owner(
            "CREATE TABLE orders (id int PRIMARY KEY) PARTITION BY RANGE (id);
             CREATE TABLE low PARTITION OF orders FOR VALUES FROM (0) TO (10);
             CREATE TABLE high PARTITION OF orders FOR VALUES FROM (10) TO (20);",
        )
        .await;
    let topic = Topic::new(1);
    let reader = topic.read(&source(&server, &["orders"]));
    reader.wait_until(Condition::Streaming).await;
    server.sql("INSERT INTO orders VALUES (1), (11)").await;
    let events: Vec<_> = topic.wait_for(2, &reader).await.iter().map(shown).collect();
    assert_eq!(events, [r#"insert orders/1: - > {"id":1}"#, r#"insert orders/11: - > {"id":11}"#]);
}

#[tokio::test]
async fn an_idle_table_in_a_busy_database_holds_no_log_back() {
    let server = PostgresServer::start().await;
    server.sql_as_owner("CREATE TABLE orders (id int PRIMARY KEY); CREATE TABLE busy (n int)").await;
    let topic = Topic::new(1);
    let reader = topic.read(&source(&server, &["orders"]));
    reader.wait_until(Condition::Streaming).await;
    server.sql("INSERT INTO busy SELECT generate_series(1, 10000)").await;
    let written = server.sql("SELECT pg_current_wal_lsn()").await;
    let released = async || {
        let sql = format!("SELECT confirmed_flush_lsn >= '{written}' FROM pg_replication_slots");
        server.sql(sql).await == "t"
    };
    wait::until(crate::world::PATIENCE, "the slot moves on", released).await;
    assert!(topic.events().is_empty());
}

#[tokio::test]
async fn a_truncate_stands_in_order_in_every_partition() {
    let server = PostgresServer::start().await;
    server
        .sql_as_owner(
            "CREATE TABLE orders (id int PRIMARY KEY);
             CREATE TABLE items (id int PRIMARY KEY, orders int REFERENCES orders);",
        )
        .await;
    let topic = Topic::new(3);
    let reader = topic.read(&source(&server, &["orders", "items"]));
    reader.wait_until(Condition::Streaming).await;
    server
        .sql(
            "INSERT INTO orders VALUES (1); TRUNCATE orders RESTART IDENTITY CASCADE;
             INSERT INTO orders VALUES (1);",
        )
        .await;
    let events = topic.wait_for(8, &reader).await;
    let controls: Vec<_> = events.iter().filter(|event| event.is_control()).collect();
    for table in ["orders", "items"] {
        let of_table = controls.iter().filter(|event| *event.collection == *table);
        assert_eq!(of_table.count(), 3, "{table}: one per partition");
    }
    let told = |event: &&&firth_router::event::Event| {
        (
            event.operation.as_str(),
            event.tenant.as_str().to_owned(),
            event.reason.as_deref().map(str::to_owned),
        )
    };
    let reason = Some("TRUNCATE RESTART IDENTITY CASCADE".to_owned());
    assert!(controls.iter().all(|event| told(&event) == ("truncate", "acme".to_owned(), reason.clone())));
    let place = |operation: &str| {
        let with_orders: Vec<_> = events.iter().filter(|event| *event.collection == *"orders").collect();
        let first = with_orders.iter().position(|event| event.operation.as_str() == "insert").unwrap();
        with_orders[first..].iter().position(|event| event.operation.as_str() == operation)
    };
    assert_eq!(place("truncate"), Some(1), "between the two inserts of its partition");
}

#[tokio::test]
async fn a_truncate_of_a_table_that_shares_its_collection_is_a_resync() {
    let server = PostgresServer::start().await;
    server.sql_as_owner("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)").await;
    let topic = Topic::new(1);
    let config = source_with(&server, &["a", "b"], &json!({ "collection": "all", "snapshot": "never" }));
    let reader = topic.read(&config);
    reader.wait_until(Condition::Streaming).await;
    server.sql("TRUNCATE a").await;
    let events = topic.wait_for(1, &reader).await;
    assert_eq!((events[0].operation.as_str(), &*events[0].collection), ("resync", "all"));
}
