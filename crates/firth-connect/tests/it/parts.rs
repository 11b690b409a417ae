//! Lists of columns and conditions of rows: what a publication sends, and what it must not break.

use crate::snapshot::is_copied;
use crate::world::{Topic, shown, source_with};
use firth_connect::postgres::{Config, examine};
use firth_connect::{Condition, Level};
use firth_testkit::PostgresServer;
use serde_json::{Value, json};

const TABLE: &str = "CREATE TABLE orders (id int PRIMARY KEY, total int NOT NULL, secret text);
                     INSERT INTO orders VALUES (1, 5, 'a'), (2, 500, 'b')";

fn config(server: &PostgresServer, change: Value) -> Config {
    let mut options = json!({ "snapshot": "initial" });
    options.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    source_with(server, &["orders"], &options)
}

async fn refusal(server: &PostgresServer, change: Value) -> String {
    let reader = Topic::new(1).read(&config(server, change));
    reader.wait_until(Condition::Failed).await
}

#[tokio::test]
async fn only_the_columns_and_rows_that_are_named_leave_the_database() {
    let server = PostgresServer::start().await;
    server.sql_as_owner(TABLE).await;
    server.sql_as_owner("CREATE UNIQUE INDEX by_both ON orders (id, total); ALTER TABLE orders REPLICA IDENTITY USING INDEX by_both").await;
    let topic = Topic::new(1);
    let change = json!({ "columns": { "orders": { "only": ["id", "total"] } }, "where": { "orders": "total > 100" }, "key": ["id"] });
    let reader = topic.read(&config(&server, change.clone()));
    is_copied(&topic, &reader, 1).await;
    server
        .sql(
            "INSERT INTO orders VALUES (3, 7, 'c'), (4, 700, 'd'); UPDATE orders SET total = 900 WHERE id = 1;
             UPDATE orders SET total = 0 WHERE id = 2; UPDATE orders SET secret = 'x' WHERE id = 4;",
        )
        .await;
    let events = topic.wait_for(5, &reader).await;
    let told: Vec<_> = events.iter().map(shown).collect();
    assert_eq!(
        told,
        [
            r#"snapshot orders/2: - > {"id":2,"total":500}"#,
            r#"insert orders/4: - > {"id":4,"total":700}"#,
            r#"insert orders/1: - > {"id":1,"total":900}"#,
            r#"delete orders/2: {"id":2,"total":500} > -"#,
            r#"update orders/4: - > {"id":4,"total":700}"#,
        ]
    );
    drop(reader);
    // Another condition: the source changes its publication.
    let wider = json!({ "where": { "orders": "total >= 0" }, "key": ["id"] });
    let reader = topic.read(&config(&server, wider.clone()));
    reader.wait_until(Condition::Streaming).await;
    server.sql("INSERT INTO orders VALUES (5, 1, 'e')").await;
    let events = topic.wait_for(6, &reader).await;
    assert_eq!(shown(&events[5]), r#"insert orders/5: - > {"id":5,"total":1,"secret":"e"}"#);
    drop(reader);
    // Another program changes it: that is told, and the doctor knows the statement.
    server.sql("ALTER PUBLICATION firth_shop SET TABLE orders").await;
    let again = topic.read(&config(&server, wider.clone()));
    let reason = again.wait_until(Condition::Failed).await;
    assert!(reason.contains("another program changed which columns or rows of public.orders"), "{reason}");
    let found = examine(&config(&server, wider.clone())).await;
    let mends: Vec<_> = found
        .iter()
        .filter(|finding| finding.level == Level::Warning)
        .flat_map(|finding| &finding.sql)
        .collect();
    let sql = mends.iter().find(|sql| sql.starts_with("ALTER PUBLICATION")).unwrap();
    server.sql(sql).await;
    topic.read(&config(&server, wider)).wait_until(Condition::Streaming).await;
}

#[tokio::test]
async fn what_would_break_statements_of_the_application_is_not_published() {
    let server = PostgresServer::start().await;
    server.sql_as_owner(TABLE).await;
    let reason = refusal(&server, json!({ "where": { "orders": "total > 100" } })).await;
    assert!(
        reason.contains("would break its UPDATEs and DELETEs") && reason.contains("REPLICA IDENTITY FULL"),
        "{reason}"
    );
    let reason = refusal(&server, json!({ "columns": { "orders": { "only": ["total"] } } })).await;
    assert!(reason.contains("only lacks id, which is in the replica identity"), "{reason}");
    let reason = refusal(&server, json!({ "columns": { "orders": { "only": ["id", "none"] } } })).await;
    assert!(reason.contains("has no column none"), "{reason}");
    let reason = refusal(&server, json!({ "where": { "orders": "total >" } })).await;
    assert!(reason.contains("syntax error"), "{reason}");
    assert_eq!(server.sql("SELECT count(*) FROM pg_publication").await, "0");
    server.sql("UPDATE orders SET total = 6 WHERE id = 1; DELETE FROM orders WHERE id = 2").await;
}

#[tokio::test]
async fn the_rows_of_a_partitioned_table_are_checked_where_they_lie() {
    let server = PostgresServer::start().await;
    server
        .sql_as_owner(
            "CREATE TABLE orders (id int PRIMARY KEY, total int) PARTITION BY RANGE (id);
             CREATE TABLE low PARTITION OF orders FOR VALUES FROM (0) TO (10)",
        )
        .await;
    let reason = refusal(&server, json!({ "where": { "orders": "total > 100" } })).await;
    assert!(reason.contains("would break its UPDATEs and DELETEs"), "{reason}");
    let topic = Topic::new(1);
    let reader = topic.read(&config(&server, json!({ "where": { "orders": "id > 3" } })));
    reader.wait_until(Condition::Streaming).await;
    server.sql("INSERT INTO orders VALUES (1, 1), (7, 1)").await;
    assert_eq!(shown(&topic.wait_for(1, &reader).await[0]), r#"insert orders/7: - > {"id":7,"total":1}"#);
}

#[tokio::test]
async fn a_server_that_cannot_keep_a_slot_on_standbys_is_refused() {
    let server = PostgresServer::start().await;
    server.sql_as_owner(TABLE).await;
    if server.sql("SHOW server_version_num").await.parse::<u32>().unwrap() >= 170_000 {
        let reader = Topic::new(1).read(&config(&server, json!({ "failover": true })));
        reader.wait_until(Condition::Streaming).await;
        assert_eq!(server.sql("SELECT failover FROM pg_replication_slots").await, "t");
        return;
    }
    let reason = refusal(&server, json!({ "failover": true })).await;
    assert!(reason.contains("needs PostgreSQL 17"), "{reason}");
    assert_eq!(server.sql("SELECT count(*) FROM pg_replication_slots").await, "0");
    let found = examine(&config(&server, json!({ "failover": true }))).await;
    assert!(
        found.iter().any(|finding| finding.level == Level::Error && finding.text.contains("PostgreSQL 17"))
    );
}
