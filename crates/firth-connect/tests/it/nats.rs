//! NATS as a source: each message of a stream is in the topic once, in order, whichever process
//! dies.

use crate::node::{Killed, TOPIC, records};
use crate::world::PATIENCE;
use async_nats::HeaderMap;
use async_nats::jetstream::stream::{Config as StreamConfig, RetentionPolicy, Stream};
use async_nats::jetstream::{self, Context};
use firth::Broker;
use firth_connect::nats::{NatsConfig, NatsOptions};
use firth_connect::sources::Sources;
use firth_connect::{Condition, Status};
use firth_router::event::{Event, Operation};
use firth_testkit::{NatsServer, wait};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

const CHILD: &str = "FIRTH_CONNECT_NATS_CHILD";
const STREAM: &str = "ORDERS";
const DOCUMENTS: u64 = 7;

/// The source `orders`: subjects are `orders.<tenant>.<key>`.
pub(crate) fn source(url: &str, change: &Value) -> NatsConfig {
    let mut options = json!({
        "url": url, "stream": STREAM, "topic": TOPIC, "tenant": { "name": 2 }, "collection": "orders",
        "key": { "name": 3 },
    });
    options.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    let options: NatsOptions = serde_json::from_value(options).unwrap();
    NatsConfig::new("orders", &options, None).unwrap()
}

pub(crate) async fn context(server: &NatsServer) -> Context {
    jetstream::new(async_nats::connect(server.url()).await.unwrap())
}

pub(crate) async fn stream(context: &Context, change: StreamConfig) -> Stream {
    let subjects = vec!["orders.>".to_owned()];
    context.create_stream(StreamConfig { name: STREAM.into(), subjects, ..change }).await.unwrap()
}

/// Version `n` of one of a few documents, so that what is lost, doubled or out of order shows.
pub(crate) async fn publish(context: &Context, numbers: impl IntoIterator<Item = u64>) {
    for number in numbers {
        let body = json!({ "version": number / DOCUMENTS + 1 }).to_string();
        let key = number % DOCUMENTS;
        context.publish(format!("orders.acme.{key}"), body.into()).await.unwrap().await.unwrap();
    }
}

pub(crate) async fn events(broker: &Broker) -> Vec<Event> {
    let records = records(broker).await;
    records.iter().map(|record| Event::from_payload(record.payload()).unwrap()).collect()
}

/// The versions of each document in the order of the topic are 1, 2, 3, …
pub(crate) async fn check(broker: &Broker, total: u64) {
    let all_there = async || events(broker).await.len() as u64 >= total;
    wait::until(PATIENCE, format!("{total} messages are in the topic"), all_there).await;
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    for event in events(broker).await {
        let version = event.after.as_ref().unwrap().to_value().unwrap()["version"].as_u64().unwrap();
        let last = seen.entry(event.key.to_string()).or_default();
        assert_eq!(version, *last + 1, "document {}", &*event.key);
        *last = version;
    }
    assert_eq!(seen.values().sum::<u64>(), total);
}

pub(crate) async fn topic(partitions: u32) -> Broker {
    let broker = Broker::memory();
    broker.create_topic(TOPIC).partitions(partitions).await.unwrap();
    broker
}

pub(crate) async fn start(broker: &Broker, node: &str, config: &NatsConfig) -> Sources {
    Sources::start(broker, node, vec![config.clone()]).await.unwrap()
}

pub(crate) fn status(sources: &Sources) -> Status {
    sources.statuses()["orders"].clone()
}

pub(crate) async fn becomes(sources: &Sources, condition: Condition) -> Status {
    let is_so = async || status(sources).condition == condition;
    let mut last = Status::default();
    let reached = wait::until_some(PATIENCE, async || {
        last = status(sources);
        is_so().await.then_some(())
    });
    assert!(reached.await.is_some(), "waited for {condition:?}, but it is {last:?}");
    status(sources)
}

#[tokio::test]
async fn messages_become_events_and_the_next_node_goes_on_behind_them() {
    let server = NatsServer::start().await;
    let context = context(&server).await;
    let stream = stream(&context, StreamConfig::default()).await;
    let broker = topic(2).await;
    publish(&context, 0..20).await;
    let rules = json!({ "op": { "from": { "header": "KV-Operation" }, "is": { "DEL": "delete" }, "otherwise": "replace" } });
    let config = source(&server.url(), &rules);
    let first = start(&broker, "one", &config).await;
    check(&broker, 20).await;
    broker.grow_topic(TOPIC, 5).await.unwrap();
    first.close().await;
    let second = start(&broker, "two", &config).await;
    becomes(&second, Condition::Streaming).await;
    let mut headers = HeaderMap::new();
    headers.insert("KV-Operation", "DEL");
    context.publish_with_headers("orders.acme.x", headers, "".into()).await.unwrap().await.unwrap();
    let deleted = async || events(&broker).await.len() == 21;
    wait::until(PATIENCE, "a delete without a body is an event", deleted).await;
    let all = events(&broker).await;
    let delete = all.iter().find(|event| event.operation == Operation::Delete).unwrap();
    assert_eq!((&*delete.key, &delete.before, &delete.after), ("x", &None, &None));
    assert!(delete.committed_ms > 0);
    let record = &records(&broker).await[0];
    assert_eq!(&record.headers().get("firth-source").unwrap()[..], b"orders");
    assert!(record.headers().get("firth-subject").unwrap().starts_with(b"orders.acme."));
    let confirmed = async || status(&second).confirmed.is_some_and(|place| place.contains("\"seq\":21"));
    wait::until(PATIENCE, "its place is saved", confirmed).await;
    let names = stream.consumer_names();
    let names: Vec<String> = futures_util::TryStreamExt::try_collect(names).await.unwrap();
    assert_eq!(names.len(), 1, "a session leaves no consumer of a former one: {names:?}");
    second.close().await;
}

/// Acks let a stream by interest forget: it may do so only with what the topic holds.
#[tokio::test]
async fn a_stream_by_interest_forgets_what_is_stored_and_nothing_else() {
    let server = NatsServer::start().await;
    let context = context(&server).await;
    let by_interest = StreamConfig { retention: RetentionPolicy::Interest, ..StreamConfig::default() };
    let stream = stream(&context, by_interest).await;
    let broker = topic(2).await;
    let config = source(&server.url(), &json!({}));
    let sources = start(&broker, "one", &config).await;
    becomes(&sources, Condition::Streaming).await;
    publish(&context, 0..30).await;
    check(&broker, 30).await;
    let is_empty = async || stream.get_info().await.unwrap().state.messages == 0;
    wait::until(PATIENCE, "what is stored is forgotten", is_empty).await;
    sources.close().await;
    publish(&context, 30..40).await;
    assert_eq!(stream.get_info().await.unwrap().state.messages, 10, "they wait for the next reader");
    let sources = start(&broker, "two", &config).await;
    check(&broker, 40).await;
    wait::until(PATIENCE, "what is stored is forgotten", is_empty).await;
    sources.close().await;
}

#[tokio::test]
async fn a_server_that_is_killed_neither_loses_nor_doubles_a_message() {
    let server = NatsServer::start().await;
    let first = context(&server).await;
    let file = StreamConfig::default();
    stream(&first, file).await;
    let broker = topic(3).await;
    let config = source(&server.url(), &json!({}));
    let sources = start(&broker, "one", &config).await;
    for round in 0..3 {
        let context = context(&server).await;
        publish(&context, round * 20..round * 20 + 20).await;
        server.kill().await;
        server.restart().await;
    }
    check(&broker, 60).await;
    becomes(&sources, Condition::Streaming).await;
    sources.close().await;
}

#[tokio::test]
async fn what_waits_is_bounded() {
    let server = NatsServer::start().await;
    let context = context(&server).await;
    stream(&context, StreamConfig::default()).await;
    let broker = topic(1).await;
    let mut config = source(&server.url(), &json!({}));
    config.limits.buffer_bytes = 16 << 10;
    config.limits.batch_records = 10;
    for number in 0..400_u64 {
        let body = json!({ "version": number / DOCUMENTS + 1, "pad": "x".repeat(1_000) }).to_string();
        let sent = context.publish(format!("orders.acme.{}", number % DOCUMENTS), body.into()).await;
        sent.unwrap().await.unwrap();
    }
    let sources = start(&broker, "one", &config).await;
    let mut most = 0;
    let all_there = async || events(&broker).await.len() >= 400;
    while !all_there().await {
        most = most.max(status(&sources).buffer_bytes);
        tokio::task::yield_now().await;
    }
    check(&broker, 400).await;
    assert!(most <= 20 << 10, "{most}");
    sources.close().await;
}

/// Not a law: the process that the next test kills.
#[tokio::test]
async fn nats_child_mode() {
    let Ok(told) = std::env::var(CHILD) else { return };
    let (dir, url) = told.split_once('|').unwrap();
    let broker = Broker::open(dir).await.unwrap();
    let _ = broker.create_topic(TOPIC).partitions(3).await;
    let _sources = start(&broker, "node", &source(url, &json!({}))).await;
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn readers_that_are_killed_neither_lose_nor_double_a_message() {
    let server = NatsServer::start().await;
    let context = context(&server).await;
    let stream = stream(&context, StreamConfig::default()).await;
    let dir = tempfile::tempdir().unwrap();
    for round in 0..8 {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "nats::nats_child_mode", "--nocapture"])
            .env(CHILD, format!("{}|{}", dir.path().display(), server.url()))
            .spawn();
        let child = Killed(child.unwrap());
        publish(&context, round * 25..round * 25 + 25).await;
        // Some die before they read anything, some between the append and the ack, some after.
        let acked = async || {
            let consumers = futures_util::TryStreamExt::try_collect(stream.consumers()).await;
            let consumers: Vec<jetstream::consumer::Info> = consumers.unwrap_or_default();
            let floor = consumers.iter().map(|one| one.ack_floor.stream_sequence).max();
            floor.filter(|floor| *floor > round * 25)
        };
        wait::until_some(Duration::from_millis(400 * (round % 4)), acked).await;
        drop(child);
    }
    let broker = Broker::open(dir.path()).await.unwrap();
    let sources = start(&broker, "node", &source(&server.url(), &json!({}))).await;
    check(&broker, 200).await;
    sources.close().await;
    broker.close().await.unwrap();
}
