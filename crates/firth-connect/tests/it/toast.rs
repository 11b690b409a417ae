//! Large values that an update leaves alone: the stream tells them only under a full replica
//! identity.

use crate::world::{Topic, source};
use firth_connect::Condition;
use firth_router::event::Event;
use firth_testkit::PostgresServer;

/// Operation, key, whether the large value is there, and the columns that are said to be missing.
fn told(event: &Event) -> String {
    let after = event.after.as_ref().map(|after| after.to_value().unwrap());
    let body = after.map_or("-", |after| match after["body"].as_str() {
        Some(body) if body.len() > 9_000 => "large",
        Some(_) => "small",
        None => "absent",
    });
    let missing: Vec<_> = event.missing.iter().map(|column| &**column).collect();
    format!("{} {} {body} [{}]", event.operation.as_str(), event.key, missing.join(","))
}

async fn under(identity: &str, key: &str) -> Vec<String> {
    let server = PostgresServer::start().await;
    server
        .sql_as_owner(format!(
            "CREATE TABLE docs (id int PRIMARY KEY, code int NOT NULL, n int, body text);
             ALTER TABLE docs ALTER body SET STORAGE EXTERNAL; CREATE UNIQUE INDEX by_code ON docs (code);
             ALTER TABLE docs REPLICA IDENTITY {identity}"
        ))
        .await;
    let topic = Topic::new(1);
    let reader = topic.read(&source(&server, &["docs"]));
    reader.wait_until(Condition::Streaming).await;
    server
        .sql(format!(
            "INSERT INTO docs VALUES (1, 51, 0, repeat('x', 10000)); UPDATE docs SET n = 1;
             UPDATE docs SET {key} = {key} + 1; UPDATE docs SET body = repeat('y', 10000);
             UPDATE docs SET body = 'short'; UPDATE docs SET n = 2; DELETE FROM docs;"
        ))
        .await;
    let events = topic.wait_for(8, &reader).await;
    let lack = events.iter().filter(|event| !event.missing.is_empty()).count() as u64;
    assert_eq!(reader.status().with_missing, lack);
    events.iter().map(told).collect()
}

#[tokio::test]
async fn under_the_primary_key_a_large_value_that_did_not_change_is_missing() {
    assert_eq!(
        under("DEFAULT", "id").await,
        [
            "insert 1 large []",
            "update 1 absent [body]",
            "delete 1 - []",
            "insert 2 absent [body]",
            "update 2 large []",
            "update 2 small []",
            "update 2 small []",
            "delete 2 - []",
        ]
    );
}

#[tokio::test]
async fn under_an_index_a_large_value_that_did_not_change_is_missing() {
    assert_eq!(
        under("USING INDEX by_code", "code").await,
        [
            "insert 51 large []",
            "update 51 absent [body]",
            "delete 51 - []",
            "insert 52 absent [body]",
            "update 52 large []",
            "update 52 small []",
            "update 52 small []",
            "delete 52 - []",
        ]
    );
}

#[tokio::test]
async fn under_the_full_row_a_large_value_that_did_not_change_is_there() {
    assert_eq!(
        under("FULL", "id").await,
        [
            "insert 1 large []",
            "update 1 large []",
            "delete 1 - []",
            "insert 2 large []",
            "update 2 large []",
            "update 2 small []",
            "update 2 small []",
            "delete 2 - []",
        ]
    );
}
