//! Standbys, promotions, and hosts that are no primary.

use crate::world::{Topic, source_with};
use firth_connect::Condition;
use firth_connect::postgres::Config;
use firth_testkit::PostgresServer;
use serde_json::json;

const TABLE: &str = "CREATE TABLE orders (id int PRIMARY KEY)";

/// A source that knows both hosts, the first one first.
fn of_both(first: &PostgresServer, second: &PostgresServer) -> Config {
    let url = first.url().replace("/shop", &format!(",{}/shop", second.addr()));
    source_with(first, &["orders"], &json!({ "snapshot": "never", "url": url }))
}

fn ids(topic: &Topic) -> Vec<String> {
    topic.events().iter().map(|event| event.key.to_string()).collect()
}

#[tokio::test]
async fn a_standby_that_takes_over_with_the_slot_is_read_where_the_primary_stopped() {
    let primary = PostgresServer::start().await;
    primary.sql_as_owner(TABLE).await;
    let standby = primary.standby().await;
    let topic = Topic::new(1);
    // The standby stands first, and is passed over.
    let config = of_both(&standby, &primary);
    let reader = topic.read(&config);
    reader.wait_until(Condition::Streaming).await;
    primary.sql("INSERT INTO orders VALUES (1)").await;
    topic.wait_for(1, &reader).await;
    standby.shutdown().await;
    primary.copy_slot_to(&standby, "firth_shop").await;
    standby.restart().await;
    primary.sql("INSERT INTO orders VALUES (2)").await;
    topic.wait_for(2, &reader).await;
    drop(reader);
    primary.sql("INSERT INTO orders VALUES (3)").await;
    primary.is_followed_by(&standby).await;
    primary.kill().await;
    standby.take_over().await;
    standby.sql("INSERT INTO orders VALUES (4)").await;
    let reader = topic.read(&config);
    topic.wait_for(4, &reader).await;
    assert_eq!(ids(&topic), ["1", "2", "3", "4"]);
    // The former primary comes back: it is on the timeline that ended.
    drop(reader);
    primary.restart().await;
    let reader = topic.read(&source_with(&primary, &["orders"], &json!({ "snapshot": "never" })));
    let reason = reader.wait_until(Condition::Failed).await;
    assert!(reason.contains("it is a former primary"), "{reason}");
}

#[tokio::test]
async fn a_standby_that_takes_over_without_the_slot_is_told_as_lost() {
    let primary = PostgresServer::start().await;
    primary.sql_as_owner(TABLE).await;
    let standby = primary.standby().await;
    let topic = Topic::new(1);
    let config = of_both(&primary, &standby);
    let reader = topic.read(&config);
    reader.wait_until(Condition::Streaming).await;
    primary.sql("INSERT INTO orders VALUES (1)").await;
    topic.wait_for(1, &reader).await;
    primary.is_followed_by(&standby).await;
    primary.kill().await;
    standby.take_over().await;
    standby.sql("INSERT INTO orders VALUES (2)").await;
    let reason = reader.wait_until(Condition::Lost).await;
    assert!(reason.contains("slot firth_shop is gone"), "{reason}");
    assert_eq!(ids(&topic), ["1"], "it never goes on from now");
    assert_eq!(standby.sql("SELECT count(*) FROM pg_replication_slots").await, "0");
}

#[tokio::test]
async fn a_standby_that_lacks_what_the_topic_has_is_told_as_lost() {
    let primary = PostgresServer::start().await;
    primary.sql_as_owner(TABLE).await;
    let standby = primary.standby().await;
    let topic = Topic::new(1);
    let config = of_both(&primary, &standby);
    let reader = topic.read(&config);
    reader.wait_until(Condition::Streaming).await;
    primary.sql("INSERT INTO orders VALUES (1)").await;
    topic.wait_for(1, &reader).await;
    primary.is_followed_by(&standby).await;
    standby.shutdown().await;
    primary.copy_slot_to(&standby, "firth_shop").await;
    primary.sql("INSERT INTO orders VALUES (2)").await;
    topic.wait_for(2, &reader).await;
    primary.kill().await;
    standby.restart().await;
    standby.take_over().await;
    let reason = reader.wait_until(Condition::Lost).await;
    assert!(reason.contains("a failover lost changes that the topic has"), "{reason}");
}

#[tokio::test]
async fn a_replica_alone_is_no_source() {
    let primary = PostgresServer::start().await;
    primary.sql_as_owner(TABLE).await;
    let standby = primary.standby().await;
    let reader = Topic::new(1).read(&source_with(&standby, &["orders"], &json!({})));
    let reason = reader.wait_until(Condition::Retrying).await;
    assert!(reason.contains("is a replica: only primaries are read"), "{reason}");
    assert_eq!(primary.sql("SELECT count(*) FROM pg_replication_slots").await, "0");
}
