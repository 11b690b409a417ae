//! A slot that is not the one that was read is told; each way to die leaves one that is.

use crate::world::{PATIENCE, Topic, confirmed, remake_slot, source};
use firth_connect::{Allowed, Condition, State};
use firth_testkit::{PostgresServer, wait};

const TABLE: &str = "CREATE TABLE orders (id int PRIMARY KEY); CREATE TABLE others (id serial)";

#[tokio::test]
async fn a_slot_that_was_made_anew_under_its_name_is_told() {
    for rows_before in [0, 1] {
        let server = PostgresServer::start().await;
        server.sql_as_owner(TABLE).await;
        let topic = Topic::new(2);
        let config = source(&server, &["orders"]);
        let reader = topic.read(&config);
        reader.wait_until(Condition::Streaming).await;
        server.sql(format!("INSERT INTO orders SELECT n FROM generate_series(1, {rows_before}) n")).await;
        topic.wait_for(rows_before, &reader).await;
        drop(reader);
        remake_slot(&server, "INSERT INTO orders VALUES (2)").await;
        server.sql("INSERT INTO orders VALUES (3)").await;
        let reason = topic.read(&config).wait_until(Condition::Lost).await;
        assert!(reason.contains("slot firth_shop was made anew"), "{reason}");
        assert!(reason.contains("give the source another name"), "{reason}");
        assert_eq!(topic.events().len(), rows_before, "nothing after the hole is stored");
        let lost = topic.read(&config).wait_until(Condition::Lost).await;
        assert_eq!(lost, reason, "it stays lost");
    }
}

#[tokio::test]
async fn a_slot_that_was_made_anew_is_told_by_the_marks_alone() {
    let server = PostgresServer::start().await;
    server.sql_as_owner(TABLE).await;
    let topic = Topic::new(1);
    let config = source(&server, &["orders"]);
    let reader = topic.read(&config);
    reader.wait_until(Condition::Streaming).await;
    server.sql("INSERT INTO orders VALUES (1)").await;
    topic.wait_for(1, &reader).await;
    drop(reader);
    topic.set_state(State::default());
    remake_slot(&server, "INSERT INTO orders VALUES (2)").await;
    let reason = topic.read(&config).wait_until(Condition::Lost).await;
    assert!(reason.contains("what the source saved is gone"), "{reason}");
    assert_eq!(topic.events().len(), 1);
}

#[tokio::test]
async fn an_idle_source_that_was_confirmed_beyond_its_changes_starts_again() {
    let server = PostgresServer::start().await;
    server.sql_as_owner(TABLE).await;
    let topic = Topic::new(2);
    let config = source(&server, &["orders"]);
    for round in 1..=3 {
        let reader = topic.read(&config);
        reader.wait_until(Condition::Streaming).await;
        let before = confirmed(&server).await;
        // Another table is busy: only signs of life tell of it.
        let moved = async || {
            server.sql("INSERT INTO others DEFAULT VALUES").await;
            confirmed(&server).await > before
        };
        wait::until(PATIENCE, "the server may forget", moved).await;
        assert_eq!(topic.events().len(), round - 1);
        drop(reader);
        server.sql(format!("INSERT INTO orders VALUES ({round})")).await;
        topic.wait_for(round, &topic.read(&config)).await;
    }
}

#[tokio::test]
async fn a_reader_that_dies_before_it_tells_what_it_saved_is_followed() {
    let server = PostgresServer::start().await;
    server.sql_as_owner(TABLE).await;
    let topic = Topic::new(1);
    let config = source(&server, &["orders"]);
    let reader = topic.read(&config);
    reader.wait_until(Condition::Streaming).await;
    let before = topic.state().allowed.unwrap();
    topic.hold_saves(true);
    server.sql("INSERT INTO orders VALUES (1)").await;
    let saved = async || topic.state().allowed.unwrap().lsn > before.lsn;
    wait::until(PATIENCE, "more is allowed", saved).await;
    drop(reader);
    assert!(confirmed(&server).await <= before.lsn, "the server is told after the state is saved");
    topic.hold_saves(false);
    server.sql("INSERT INTO orders VALUES (2)").await;
    let reader = topic.read(&config);
    assert_eq!(topic.wait_for(2, &reader).await.len(), 2);
    let told = async || confirmed(&server).await > before.lsn;
    wait::until(PATIENCE, "the server may forget", told).await;
}

#[tokio::test]
async fn a_reader_that_dies_before_its_first_state_is_followed_from_the_slot_on() {
    let server = PostgresServer::start().await;
    server.sql_as_owner(TABLE).await;
    let topic = Topic::new(1);
    let config = source(&server, &["orders"]);
    topic.hold_saves(true);
    let reader = topic.read(&config);
    let saved = async || topic.state().has_slot;
    wait::until(PATIENCE, "the slot is made", saved).await;
    drop(reader);
    // It died just before.
    topic.set_state(State::default());
    topic.hold_saves(false);
    server.sql("INSERT INTO orders VALUES (1)").await;
    topic.wait_for(1, &topic.read(&config)).await;
}

#[tokio::test]
async fn the_state_of_the_build_before_is_taken_over_and_completed() {
    let server = PostgresServer::start().await;
    server.sql_as_owner(TABLE).await;
    let topic = Topic::new(1);
    let config = source(&server, &["orders"]);
    let reader = topic.read(&config);
    reader.wait_until(Condition::Streaming).await;
    server.sql("INSERT INTO orders VALUES (1)").await;
    topic.wait_for(1, &reader).await;
    drop(reader);
    topic.set_state(State { allowed: None, ..topic.state() });
    server.sql("INSERT INTO orders VALUES (2)").await;
    topic.wait_for(2, &topic.read(&config)).await;
    assert!(topic.state().allowed.is_some());
    remake_slot(&server, "INSERT INTO orders VALUES (3)").await;
    topic.read(&config).wait_until(Condition::Lost).await;
}

#[tokio::test]
async fn a_failover_neither_doubles_changes_nor_hides_a_slot_that_was_made_anew() {
    let server = PostgresServer::start().await;
    server.sql_as_owner(TABLE).await;
    let topic = Topic::new(1);
    let config = source(&server, &["orders"]);
    let reader = topic.read(&config);
    reader.wait_until(Condition::Streaming).await;
    // The server is not told that it may forget the change, so the next timeline repeats it.
    topic.hold_saves(true);
    server.sql("INSERT INTO orders VALUES (1)").await;
    topic.wait_for(1, &reader).await;
    drop(reader);
    topic.hold_saves(false);
    server.promote().await;
    server.sql("INSERT INTO orders VALUES (2)").await;
    let reader = topic.read(&config);
    let keys = || topic.events().iter().map(|event| event.key.to_string()).collect::<Vec<_>>();
    let is_there = async || keys().contains(&"2".to_owned());
    wait::until(PATIENCE, "the new change is in the topic", is_there).await;
    assert_eq!(keys(), ["1", "2"]);
    drop(reader);
    let allowed = topic.state().allowed.unwrap();
    assert_eq!(allowed.timeline, 2);

    // The former timeline went further than the server followed it.
    let further = Allowed { timeline: 1, lsn: allowed.lsn + (1 << 30) };
    topic.set_state(State { allowed: Some(further), ..topic.state() });
    remake_slot(&server, "INSERT INTO orders VALUES (3)").await;
    topic.read(&config).wait_until(Condition::Lost).await;
    assert_eq!(keys(), ["1", "2"]);

    let newer = Allowed { timeline: 3, lsn: allowed.lsn };
    topic.set_state(State { allowed: Some(newer), ..topic.state() });
    let reason = topic.read(&config).wait_until(Condition::Failed).await;
    assert!(reason.contains("timeline 3 was read before"), "{reason}");
}
