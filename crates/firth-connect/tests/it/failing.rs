//! What a source refuses, and how it says so.

use crate::world::{Topic, source, source_with};
use firth_connect::Condition;
use firth_connect::postgres::{Config, Options};
use firth_testkit::{Certs, PostgresServer};
use serde_json::json;

const TABLE: &str = "CREATE TABLE orders (id int PRIMARY KEY, state text)";

#[tokio::test]
async fn a_slot_that_is_gone_is_told_and_never_made_again() {
    let server = PostgresServer::start().await;
    server.sql_as_owner(TABLE).await;
    let topic = Topic::new(1);
    let config = source(&server, &["orders"]);
    let reader = topic.read(&config);
    reader.wait_until(Condition::Streaming).await;
    assert!(topic.state().has_slot);
    drop(reader);
    let gone = async || server.try_sql("SELECT pg_drop_replication_slot('firth_shop')").await.is_ok();
    firth_testkit::wait::until(crate::world::PATIENCE, "the slot is dropped", gone).await;
    server.sql("INSERT INTO orders VALUES (1)").await;
    let reader = topic.read(&config);
    let reason = reader.wait_until(Condition::Lost).await;
    assert!(reason.contains("slot firth_shop is gone"), "{reason}");
    assert_eq!(server.sql("SELECT count(*) FROM pg_replication_slots").await, "0");
    assert!(topic.events().is_empty());
}

#[tokio::test]
async fn a_log_that_the_server_removed_is_told() {
    let server =
        PostgresServer::with_conf("max_slot_wal_keep_size = 16MB\nmin_wal_size = 32MB\nmax_wal_size = 32MB")
            .await;
    server.sql_as_owner(TABLE).await;
    let topic = Topic::new(1);
    let config = source(&server, &["orders"]);
    topic.read(&config).wait_until(Condition::Streaming).await;
    let removed = async || {
        server
            .sql("INSERT INTO orders VALUES (1) ON CONFLICT DO NOTHING; SELECT pg_switch_wal(); CHECKPOINT;")
            .await;
        server.sql("SELECT wal_status FROM pg_replication_slots").await == "lost"
    };
    firth_testkit::wait::until(crate::world::PATIENCE, "the server removes the log", removed).await;
    let reader = topic.read(&config);
    let reason = reader.wait_until(Condition::Lost).await;
    assert!(reason.contains("max_slot_wal_keep_size"), "{reason}");
}

#[tokio::test]
async fn a_table_whose_updates_would_break_is_not_published() {
    let server = PostgresServer::start().await;
    server.sql_as_owner("CREATE TABLE notes (body text)").await;
    let reader = Topic::new(1).read(&source(&server, &["notes"]));
    let reason = reader.wait_until(Condition::Failed).await;
    assert!(reason.contains("ALTER TABLE \"public\".\"notes\" REPLICA IDENTITY FULL"), "{reason}");
    server.sql("INSERT INTO notes VALUES ('a'); UPDATE notes SET body = 'b';").await;
    assert_eq!(server.sql("SELECT count(*) FROM pg_publication").await, "0");
}

#[tokio::test]
async fn what_the_role_may_not_do_is_said_as_the_statement_for_the_owner() {
    let server = PostgresServer::start().await;
    server.sql(TABLE).await;
    let reader = Topic::new(1).read(&source(&server, &["orders"]));
    let reason = reader.wait_until(Condition::Failed).await;
    assert!(reason.contains("CREATE PUBLICATION \"firth_shop\" FOR TABLE \"public\".\"orders\""), "{reason}");
}

#[tokio::test]
async fn a_table_that_an_operator_removed_from_the_publication_is_not_put_back() {
    let server = PostgresServer::start().await;
    server.sql_as_owner(format!("{TABLE}; CREATE TABLE items (id int PRIMARY KEY)")).await;
    let topic = Topic::new(1);
    topic.read(&source(&server, &["orders"])).wait_until(Condition::Streaming).await;
    topic.read(&source(&server, &["orders", "items"])).wait_until(Condition::Streaming).await;
    server.sql("ALTER PUBLICATION firth_shop DROP TABLE items").await;
    let reader = topic.read(&source(&server, &["orders", "items"]));
    let reason = reader.wait_until(Condition::Failed).await;
    assert!(reason.contains("public.items was removed from publication firth_shop"), "{reason}");
}

#[tokio::test]
async fn a_row_that_cannot_be_an_event_stops_the_source_and_is_named_without_its_values() {
    let server = PostgresServer::start().await;
    server.sql_as_owner("CREATE TABLE docs (id text PRIMARY KEY)").await;
    let topic = Topic::new(1);
    let reader = topic.read(&source(&server, &["docs"]));
    reader.wait_until(Condition::Streaming).await;
    server.sql("INSERT INTO docs VALUES ('fine'), (repeat('secret', 200))").await;
    let reason = reader.wait_until(Condition::Failed).await;
    assert!(
        reason.contains("public.docs") && reason.contains("700") && !reason.contains("secretsecret"),
        "{reason}"
    );
}

#[tokio::test]
async fn a_wrong_password_and_another_database_are_told() {
    let server = PostgresServer::start().await;
    server.sql_as_owner(TABLE).await;
    let options = |url: &str| -> Options {
        let options =
            json!({ "url": url, "topic": "changes", "tables": ["orders"], "tenant": { "constant": "a" } });
        serde_json::from_value(options).unwrap()
    };
    let wrong = Config::new("shop", &options(&server.url()), Some("wrong".into())).unwrap();
    let reader = Topic::new(1).read(&wrong);
    let reason = reader.wait_until(Condition::Failed).await;
    assert!(reason.contains("password authentication failed"), "{reason}");
    assert!(!reason.contains("wrong"), "{reason}");

    let other = PostgresServer::start().await;
    other.sql_as_owner(TABLE).await;
    let topic = Topic::new(1);
    topic.read(&source(&server, &["orders"])).wait_until(Condition::Streaming).await;
    let reader = topic.read(&source(&other, &["orders"]));
    let reason = reader.wait_until(Condition::Failed).await;
    assert!(reason.contains("another database cluster"), "{reason}");
}

#[tokio::test]
async fn an_encrypted_connection_checks_authority_and_name() {
    let certs = Certs::new();
    let server = PostgresServer::with_tls(&certs).await;
    server.sql_as_owner(TABLE).await;
    let source = |name: &str, ca: &Certs| {
        let url = server.url().replace("127.0.0.1", name) + "?sslmode=verify-full";
        source_with(&server, &["orders"], &json!({ "url": url, "ca_file": ca.ca_path() }))
    };
    let topic = Topic::new(1);
    let reader = topic.read(&source("localhost", &certs));
    reader.wait_until(Condition::Streaming).await;
    server.sql("INSERT INTO orders VALUES (1)").await;
    topic.wait_for(1, &reader).await;

    let strangers = Certs::new();
    let reader = Topic::new(1).read(&source("localhost", &strangers));
    let reason = reader.wait_until(Condition::Failed).await;
    assert!(reason.contains("TLS with localhost failed"), "{reason}");
    let plain = source_with(&server, &["orders"], &json!({}));
    let reader = Topic::new(1).read(&plain);
    let reason = reader.wait_until(Condition::Failed).await;
    assert!(reason.contains("no encryption"), "{reason}");
}
