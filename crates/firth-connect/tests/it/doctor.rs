//! What the doctor finds, with the statements that mend it: running them is enough.

use crate::world::{PATIENCE, Topic, copied, source_with};
use firth_connect::postgres::{Config, examine};
use firth_connect::{Condition, Finding, Level};
use firth_testkit::{PostgresServer, wait};
use serde_json::json;

/// The statements of all errors, in order.
fn statements(found: &[Finding]) -> Vec<String> {
    let errors = found.iter().filter(|finding| finding.level == Level::Error);
    errors.flat_map(|finding| finding.sql.clone()).collect()
}

fn has(found: &[Finding], level: Level, text: &str) -> bool {
    found.iter().any(|finding| finding.level == level && finding.text.contains(text))
}

/// A role without any right gets each statement; after them, the source streams.
#[tokio::test]
async fn the_statements_that_the_doctor_prints_are_exactly_what_is_missing() {
    let server = PostgresServer::start().await;
    server
        .sql(
            "CREATE SCHEMA secret; CREATE TABLE secret.orders (id int PRIMARY KEY, tenant text, note text);
             CREATE TABLE items (id int PRIMARY KEY, tenant text);
             CREATE TABLE logs (tenant text, n int);
             INSERT INTO secret.orders VALUES (1, 'a', 'x'); ALTER ROLE firth NOREPLICATION;",
        )
        .await;
    let tables = ["secret.orders", "items", "logs"];
    let options = json!({ "tenant": { "column": "tenant" }, "snapshot": "initial" });
    let config = source_with(&server, &tables, &options);
    let found = examine(&config).await;
    let told = statements(&found);
    assert_eq!(
        told,
        [
            "ALTER ROLE \"firth\" REPLICATION",
            "ALTER TABLE \"public\".\"items\" REPLICA IDENTITY FULL",
            "GRANT SELECT ON \"public\".\"items\" TO \"firth\"",
            "ALTER TABLE \"public\".\"logs\" REPLICA IDENTITY FULL",
            "GRANT SELECT ON \"public\".\"logs\" TO \"firth\"",
            "ALTER TABLE \"secret\".\"orders\" REPLICA IDENTITY FULL",
            "GRANT USAGE ON SCHEMA \"secret\" TO \"firth\"",
            "GRANT SELECT ON \"secret\".\"orders\" TO \"firth\"",
            "CREATE PUBLICATION \"firth_shop\" FOR TABLE \"public\".\"items\", \"public\".\"logs\", \
             \"secret\".\"orders\" WITH (publish_via_partition_root = true)",
        ]
    );
    server.sql(told.join(";\n")).await;
    let left = examine(&config).await;
    assert_eq!(statements(&left), Vec::<String>::new());
    // A table without a primary key needs columns to be known by.
    assert!(has(&left, Level::Error, "logs has no primary key"), "{left:?}");
    let config = source_with(&server, &tables[..2], &options);
    let left = examine(&config).await;
    assert!(left.iter().all(|finding| finding.level != Level::Error), "{left:?}");
    let reader = Topic::new(1).read(&config);
    reader.wait_until(Condition::Streaming).await;
}

#[tokio::test]
async fn settings_of_the_server_are_told() {
    let server = PostgresServer::with_conf("wal_level = replica\nmax_replication_slots = 1").await;
    server.sql_as_owner("CREATE TABLE orders (id int PRIMARY KEY, body text)").await;
    server.sql("SELECT pg_create_physical_replication_slot('theirs')").await;
    let config = copied(&server, &["orders"]);
    let found = examine(&config).await;
    assert_eq!(
        statements(&found),
        ["ALTER SYSTEM SET wal_level = 'logical'", "ALTER SYSTEM SET max_replication_slots = '5'"]
    );
    assert!(has(&found, Level::Warning, "max_slot_wal_keep_size is unlimited"), "{found:?}");
    assert!(has(&found, Level::Note, "lack it"), "{found:?}");
    for statement in found.iter().flat_map(|finding| &finding.sql) {
        server.sql(statement).await;
    }
    server.restart().await;
    let mended = async || examine(&config).await.is_empty();
    wait::until(PATIENCE, "nothing is left to mend", mended).await;
}

#[tokio::test]
async fn a_publication_that_is_not_enough_is_told() {
    let server = PostgresServer::start().await;
    server
        .sql_as_owner(
            "CREATE TABLE orders (id int PRIMARY KEY); CREATE TABLE items (id int PRIMARY KEY);
             CREATE PUBLICATION theirs FOR TABLE orders WITH (publish = 'insert, update');",
        )
        .await;
    let config = source_with(&server, &["orders", "items"], &json!({ "publication": "theirs" }));
    let told = statements(&examine(&config).await);
    assert_eq!(
        told,
        [
            "ALTER PUBLICATION \"theirs\" ADD TABLE \"public\".\"items\"",
            "ALTER PUBLICATION \"theirs\" SET (publish = 'insert, update, delete, truncate')",
        ]
    );
    server.sql(told.join(";")).await;
    assert!(statements(&examine(&config).await).is_empty());
    server.sql("ALTER PUBLICATION theirs SET (publish = 'insert, update, delete')").await;
    let found = examine(&config).await;
    assert!(has(&found, Level::Warning, "leaves out TRUNCATE"), "{found:?}");
    let absent = source_with(&server, &["orders"], &json!({ "publication": "none" }));
    let told = statements(&examine(&absent).await);
    assert!(told[0].starts_with("CREATE PUBLICATION \"none\" FOR TABLE"), "{told:?}");
    assert!(has(&examine(&copied(&server, &["nothing"])).await, Level::Error, "no table public.nothing"));
}

#[tokio::test]
async fn logins_replicas_and_slots_are_told() {
    let server = PostgresServer::start().await;
    server.sql_as_owner("CREATE TABLE orders (id int PRIMARY KEY)").await;
    let options = json!({ "url": server.url(), "topic": "changes", "tables": ["orders"], "tenant": { "constant": "a" } });
    let wrong = Config::new("shop", &serde_json::from_value(options).unwrap(), Some("wrong".into())).unwrap();
    let found = examine(&wrong).await;
    assert!(has(&found, Level::Error, "password authentication failed"), "{found:?}");
    let standby = server.standby().await;
    let found = examine(&copied(&standby, &["orders"])).await;
    assert!(has(&found, Level::Note, "is a replica") && has(&found, Level::Error, "no host is a primary"));
    server.sql("SELECT pg_create_logical_replication_slot('firth_shop', 'test_decoding')").await;
    let found = examine(&copied(&server, &["orders"])).await;
    assert!(has(&found, Level::Error, "belongs to plugin \"test_decoding\""), "{found:?}");
}
