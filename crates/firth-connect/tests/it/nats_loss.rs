//! NATS as a source: what is lost is told, what cannot be an event stops nothing else.

use crate::nats::{becomes, check, context, events, publish, source, start, status, stream, topic};
use crate::node::{TOPIC, records};
use crate::world::PATIENCE;
use async_nats::jetstream::stream::Config as StreamConfig;
use firth::RecordId;
use firth_connect::Condition;
use firth_connect::control::DesiredStates;
use firth_router::event::Operation;
use firth_testkit::{NatsServer, wait};
use serde_json::json;

#[tokio::test]
async fn messages_that_were_purged_before_they_were_read_are_told_as_lost() {
    let server = NatsServer::start().await;
    let context = context(&server).await;
    let stream = stream(&context, StreamConfig::default()).await;
    let broker = topic(2).await;
    let config = source(&server.url(), &json!({}));
    let sources = start(&broker, "one", &config).await;
    publish(&context, 0..10).await;
    check(&broker, 10).await;
    let confirmed = async || status(&sources).confirmed.is_some_and(|place| place.contains("\"seq\":10"));
    wait::until(PATIENCE, "its place is saved", confirmed).await;
    let desired = DesiredStates::new(&broker);
    desired.set_paused("orders", true).await.unwrap();
    becomes(&sources, Condition::Paused).await;
    publish(&context, 10..20).await;
    stream.purge().await.unwrap();
    publish(&context, 20..25).await;
    desired.set_paused("orders", false).await.unwrap();
    let reason = becomes(&sources, Condition::Lost).await.reason.unwrap();
    assert!(reason.contains("has removed messages from 11 to 20"), "{reason}");
    assert_eq!(events(&broker).await.len(), 10, "it does not go on from now");
    sources.close().await;
}

#[tokio::test]
async fn a_purge_of_what_was_read_loses_nothing() {
    let server = NatsServer::start().await;
    let context = context(&server).await;
    let stream = stream(&context, StreamConfig::default()).await;
    let broker = topic(2).await;
    let sources = start(&broker, "one", &source(&server.url(), &json!({}))).await;
    publish(&context, 0..10).await;
    check(&broker, 10).await;
    stream.purge().await.unwrap();
    publish(&context, 10..30).await;
    stream.delete_message(15).await.unwrap();
    check(&broker, 30).await;
    assert_eq!(status(&sources).condition, Condition::Streaming);
    sources.close().await;
}

#[tokio::test]
async fn after_a_loss_every_partition_is_told_and_the_source_begins_anew_if_it_shall() {
    let server = NatsServer::start().await;
    let context = context(&server).await;
    stream(&context, StreamConfig::default()).await;
    let broker = topic(3).await;
    let config = source(&server.url(), &json!({ "on_lost": "resync" }));
    let sources = start(&broker, "one", &config).await;
    publish(&context, 0..10).await;
    check(&broker, 10).await;
    context.delete_stream("ORDERS").await.unwrap();
    stream(&context, StreamConfig::default()).await;
    publish(&context, 0..5).await;
    let count = async || events(&broker).await.len();
    wait::until(PATIENCE, "a resync per partition and the new messages", async || count().await >= 18).await;
    for partition in 0..3 {
        let records = broker.admin().browse(TOPIC, partition, RecordId::ZERO, 100).await.unwrap();
        let events = records.iter().map(|r| firth_router::event::Event::from_payload(r.payload()).unwrap());
        let events: Vec<_> = events.collect();
        let resyncs = events.iter().filter(|event| event.operation == Operation::Resync).count();
        assert_eq!(resyncs, 1, "partition {partition}");
        let resync = events.iter().find(|event| event.operation == Operation::Resync).unwrap();
        assert!(resync.is_for_all_tenants() && &*resync.collection == "orders");
        assert!(resync.reason.as_ref().unwrap().contains("ORDERS"), "{:?}", resync.reason);
    }
    let status = status(&sources);
    assert_eq!((status.condition, status.resyncs), (Condition::Streaming, 1));
    sources.close().await;
    let sources = start(&broker, "two", &config).await;
    publish(&context, 5..8).await;
    wait::until(PATIENCE, "it goes on", async || count().await >= 21).await;
    assert_eq!(count().await, 21, "the resync is told once");
    sources.close().await;
}

#[tokio::test]
async fn a_message_that_cannot_be_an_event_stops_the_source_behind_all_before_it() {
    let server = NatsServer::start().await;
    let context = context(&server).await;
    stream(&context, StreamConfig::default()).await;
    let broker = topic(2).await;
    publish(&context, 0..10).await;
    context.publish("orders.acme.9", "planted{".into()).await.unwrap().await.unwrap();
    publish(&context, 10..14).await;
    let sources = start(&broker, "one", &source(&server.url(), &json!({}))).await;
    let reason = becomes(&sources, Condition::Failed).await.reason.unwrap();
    assert!(reason.contains("no JSON") && !reason.contains("planted"), "{reason}");
    check(&broker, 10).await;
    sources.close().await;
    // An operator lets it go to the dead letters: nothing else is missed or doubled.
    let dead = source(&server.url(), &json!({ "on_error": "dead", "dead_topic": "odd" }));
    broker.create_topic("odd").partitions(2).await.unwrap();
    let sources = start(&broker, "two", &dead).await;
    check(&broker, 14).await;
    let mut letters = Vec::new();
    for partition in 0..2 {
        letters.extend(broker.admin().browse("odd", partition, RecordId::ZERO, 10).await.unwrap());
    }
    assert_eq!(letters.len(), 1);
    assert_eq!(&letters[0].payload()[..], b"planted{");
    let header = |name: &str| String::from_utf8(letters[0].headers().get(name).unwrap().to_vec()).unwrap();
    assert_eq!((&*header("firth-source"), &*header("firth-name")), ("orders", "orders.acme.9"));
    assert!(header("firth-error").contains("no JSON") && header("firth-position").ends_with("0b"));
    let status = status(&sources);
    assert_eq!((status.condition, status.dead), (Condition::Streaming, 1));
    sources.close().await;
}

#[tokio::test]
async fn plain_subjects_are_lossy_and_say_so() {
    let server = NatsServer::start().await;
    let broker = topic(2).await;
    let change = json!({ "stream": null, "lossy": true, "subjects": ["orders.>"] });
    let config = source(&server.url(), &change);
    let sources = start(&broker, "one", &config).await;
    assert!(becomes(&sources, Condition::Streaming).await.lossy);
    let client = async_nats::connect(server.url()).await.unwrap();
    let count = async || records(&broker).await.len();
    client.publish("orders.acme.1", r#"{"version":1}"#.into()).await.unwrap();
    wait::until(PATIENCE, "it is stored", async || count().await == 1).await;
    assert_eq!(status(&sources).gaps, 0);
    sources.close().await;
    client.publish("orders.acme.1", r#"{"version":2}"#.into()).await.unwrap();
    client.flush().await.unwrap();
    let sources = start(&broker, "two", &config).await;
    becomes(&sources, Condition::Streaming).await;
    assert_eq!(status(&sources).gaps, 1, "no node listened for a while");
    client.publish("orders.acme.1", r#"{"version":3}"#.into()).await.unwrap();
    wait::until(PATIENCE, "the next one is stored", async || count().await == 2).await;
    server.kill().await;
    wait::until(PATIENCE, "the gap is counted", async || status(&sources).gaps >= 2).await;
    sources.close().await;
}

#[tokio::test]
async fn a_stream_that_cannot_be_read_is_named() {
    let server = NatsServer::start().await;
    let broker = topic(1).await;
    let sources = start(&broker, "one", &source(&server.url(), &json!({}))).await;
    let reason = becomes(&sources, Condition::Failed).await.reason.unwrap();
    assert!(reason.contains("there is no stream ORDERS"), "{reason}");
    sources.close().await;
    let locked = NatsServer::with_conf("authorization { token: \"t\" }\n").await;
    let sources = start(&broker, "two", &source(&locked.url(), &json!({}))).await;
    let reason = becomes(&sources, Condition::Failed).await.reason.unwrap();
    assert!(reason.contains("refuses us"), "{reason}");
    sources.close().await;
}
