//! Delivery through a real NATS server, to the crate's own receiving half: by request and reply,
//! and by JetStream.

use crate::chaos::books_close;
use crate::node::{ByDocument, World};
use crate::world::*;
use async_nats::jetstream;
use firth_router::config::{NatsAck, Protocol};
use firth_router::deliver::{Deliverer, NatsAuth, NatsDeliverer, NatsOptions, Tls};
use firth_router::event::Event;
use firth_router::lane::{Batch, Item, Outcome, Position};
use firth_router::receive::{Inbox, nats};
use firth_router::registry::Gateway;
use firth_router::wire::EventIn;
use firth_testkit::{Certs, Direction, NatsServer, Proxy};
use serde_json::json;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinHandle;

const TIMEOUT: Duration = Duration::from_secs(2);

/// What a gateway took in, in order; it refuses document d3 this many times first.
#[derive(Default)]
pub(crate) struct Seen {
    events: Mutex<Vec<(String, u64)>>,
    refusals: Mutex<usize>,
}

impl Seen {
    fn take(&self, event: &EventIn) -> Result<(), String> {
        let mut left = self.refusals.lock().unwrap();
        if event.document_id == "d3" && *left > 0 {
            *left -= 1;
            return Err("not yet".to_owned());
        }
        let payload: serde_json::Value = serde_json::from_str(event.payload.as_ref().unwrap().get()).unwrap();
        self.events.lock().unwrap().push((event.document_id.clone(), payload["n"].as_u64().unwrap()));
        Ok(())
    }

    pub(crate) fn by_document(&self) -> ByDocument {
        let mut documents = ByDocument::new();
        for (document, number) in &*self.events.lock().unwrap() {
            documents.entry(document.clone()).or_default().push(*number);
        }
        documents
    }

    fn count(&self) -> usize {
        self.events.lock().unwrap().len()
    }
}

fn subject(gateway: &str) -> String {
    format!("{}.{gateway}", firth_router::wire::NATS_SUBJECT)
}

/// A gateway that answers requests, once its subscription is with the server.
pub(crate) async fn answering(client: async_nats::Client, seen: &Arc<Seen>) -> JoinHandle<()> {
    let own = client.clone();
    let taken = Arc::clone(seen);
    let task = tokio::spawn(async move {
        let mut inbox = Inbox::default();
        nats::answer(&own, &subject("g"), &mut inbox, |event| taken.take(event)).await.unwrap();
    });
    until(PATIENCE, "the gateway listens", async || {
        let request = async_nats::Request::new().payload("?".into()).timeout(Some(PATIENCE));
        client.send_request(subject("g"), request).await.is_ok()
    })
    .await;
    task
}

fn deliverer() -> NatsDeliverer {
    NatsDeliverer::new(NatsOptions::new("node", TIMEOUT))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_behind_nats_gets_each_event_once_in_order_though_it_refuses_and_the_server_dies() {
    let server = NatsServer::start().await;
    let mut world = World::memory().await;
    world.register("g", server.url(), Protocol::Nats).await;
    let node = world.node_with(deliverer()).await;
    world.send(50).await;
    until(PATIENCE, "nobody listens yet", async || {
        node.lanes().iter().any(|lane| lane.circuit != firth_router::lane::Circuit::Closed)
    })
    .await;
    let seen = Arc::new(Seen { refusals: Mutex::new(2), ..Seen::default() });
    let gateway = answering(async_nats::connect(server.url()).await.unwrap(), &seen).await;
    world.arrives("g", || seen.by_document()).await;
    for round in 0..3 {
        world.send(100).await;
        until(PATIENCE, "some arrived", async || seen.count() > 50 + round * 200).await;
        server.kill().await;
        world.send(100).await;
        server.restart().await;
    }
    world.arrives("g", || seen.by_document()).await;
    world.settled().await;
    assert_eq!(world.dead().await, 0);
    books_close(&node, 50).await;
    node.close().await.unwrap();
    gateway.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_that_get_lost_lead_to_repetitions_that_the_inbox_drops() {
    let server = NatsServer::start().await;
    let mut world = World::memory().await;
    let proxy = Proxy::start(server.addr()).await;
    world.register("g", format!("nats://{}", proxy.addr()), Protocol::Nats).await;
    let seen = Arc::new(Seen::default());
    let gateway = answering(async_nats::connect(server.url()).await.unwrap(), &seen).await;
    let node = world.node_with(deliverer()).await;
    world.send(50).await;
    world.arrives("g", || seen.by_document()).await;
    proxy.stall(Direction::ToClient);
    world.send(50).await;
    until(PATIENCE, "they arrive, and their answers do not", async || seen.count() > 50).await;
    proxy.cut().await;
    proxy.heal().await;
    world.send(50).await;
    world.arrives("g", || seen.by_document()).await;
    world.settled().await;
    books_close(&node, 150).await;
    node.close().await.unwrap();
    gateway.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_larger_than_the_server_takes_goes_in_parts_in_order() {
    let server = NatsServer::with_max_payload(4096).await;
    let mut world = World::memory().await;
    world.register("g", server.url(), Protocol::Nats).await;
    let seen = Arc::new(Seen { refusals: Mutex::new(2), ..Seen::default() });
    let gateway = answering(async_nats::connect(server.url()).await.unwrap(), &seen).await;
    let node = world.node_with(deliverer()).await;
    world.send(300).await;
    world.arrives("g", || seen.by_document()).await;
    world.settled().await;
    books_close(&node, 300).await;
    node.close().await.unwrap();
    gateway.abort();
}

/// A consumer of the stream that batches for `g` are stored in.
async fn consumer(server: &NatsServer) -> jetstream::consumer::PullConsumer {
    let context = jetstream::new(async_nats::connect(server.url()).await.unwrap());
    let found = firth_testkit::wait::until_some(PATIENCE, async || context.get_stream("EVENTS").await.ok());
    let stream = found.await.expect("the deliverer makes the stream");
    let config = jetstream::consumer::pull::Config {
        durable_name: Some("gateway".to_owned()),
        filter_subject: subject("g"),
        max_ack_pending: 1,
        ack_wait: Duration::from_secs(60),
        ..Default::default()
    };
    stream.create_consumer(config).await.unwrap()
}

fn storing() -> NatsDeliverer {
    let stream = Some("EVENTS".to_owned());
    NatsDeliverer::new(NatsOptions { ack: NatsAck::JetStream, stream, ..NatsOptions::new("node", TIMEOUT) })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jetstream_keeps_batches_for_a_gateway_that_comes_later_and_refuses() {
    let server = NatsServer::start().await;
    let mut world = World::memory().await;
    world.register("g", server.url(), Protocol::Nats).await;
    let node = world.node_with(storing()).await;
    world.send(100).await;
    world.settled().await;
    server.kill().await;
    world.send(100).await;
    server.restart().await;
    world.settled().await;
    let seen = Arc::new(Seen { refusals: Mutex::new(2), ..Seen::default() });
    let consumer = consumer(&server).await;
    let taken = Arc::clone(&seen);
    let gateway = tokio::spawn(async move {
        let mut inbox = Inbox::default();
        nats::take(&consumer, &mut inbox, |event| taken.take(event)).await.unwrap();
    });
    world.arrives("g", || seen.by_document()).await;
    world.send(100).await;
    world.arrives("g", || seen.by_document()).await;
    books_close(&node, 300).await;
    node.close().await.unwrap();
    gateway.abort();
}

/// A stream that is full takes nothing more: its answer is a refusal and no receipt.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t06_what_a_full_stream_refuses_is_not_delivered() {
    let server = NatsServer::start().await;
    let context = jetstream::new(async_nats::connect(server.url()).await.unwrap());
    let config = jetstream::stream::Config {
        name: "EVENTS".to_owned(),
        subjects: vec![subject(">")],
        max_messages: 1,
        discard: jetstream::stream::DiscardPolicy::New,
        ..Default::default()
    };
    context.create_stream(config).await.unwrap();
    let deliverer = storing();
    let to = Gateway::new(gateway("g"), server.url());
    let first = deliverer.deliver(&to, &batch(1..=3)).await;
    assert!(matches!(first, Outcome::Answered(_)), "{first:?}");
    let second = deliverer.deliver(&to, &batch(4..=6)).await;
    assert!(matches!(second, Outcome::Unreached), "{second:?}");
}

pub(crate) fn batch(seqs: std::ops::RangeInclusive<u64>) -> Batch {
    let item = |seq| {
        let event: Event = order(&format!("d{seq}"), json!({ "n": seq, "all": true }));
        Item::new(Position { partition: 0, seq }, 1, Arc::new(event), &[])
    };
    Batch { id: 1, topic: "changes".into(), items: Arc::new(seqs.map(item).collect()), gap: None }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_sent_again_is_stored_once() {
    let server = NatsServer::start().await;
    let deliverer = storing();
    let to = Gateway::new(gateway("g"), server.url());
    until(PATIENCE, "the stream is made", async || {
        matches!(deliverer.deliver(&to, &batch(1..=3)).await, Outcome::Answered(_))
    })
    .await;
    for again in [batch(1..=3), Batch { id: 9, ..batch(1..=3) }, batch(4..=4)] {
        let outcome = deliverer.deliver(&to, &again).await;
        assert!(
            matches!(&outcome, Outcome::Answered(answers) if answers.len() == again.items.len()),
            "{outcome:?}"
        );
    }
    // Another node sends it again under its own connection.
    storing().deliver(&to, &batch(1..=3)).await;
    let context = jetstream::new(async_nats::connect(server.url()).await.unwrap());
    let stream = context.get_stream("EVENTS").await.unwrap();
    assert_eq!(stream.cached_info().state.messages, 2, "one batch of three, one of one");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nats_over_mutual_tls_with_a_token_works_and_without_them_does_not() {
    let certs = Certs::new();
    let server = NatsServer::with_tls(&certs, "s3cret").await;
    let mut world = World::memory().await;
    let identity = (certs.client_cert_pem().as_bytes(), certs.client_key_pem().as_bytes());
    let tls = Tls::from_pem(Some(certs.ca_pem().as_bytes()), Some(identity)).unwrap();
    let options = NatsOptions {
        tls: Some(tls),
        auth: NatsAuth::Token("s3cret".to_owned()),
        url: Some(server.url()),
        ..NatsOptions::new("node", Duration::from_secs(20))
    };
    let to = Gateway::new(gateway("g"), "");
    let anonymous = Tls::from_pem(Some(certs.ca_pem().as_bytes()), None).unwrap();
    for wrong in [
        NatsOptions { auth: NatsAuth::Anyone, ..options.clone() },
        NatsOptions { tls: Some(anonymous), ..options.clone() },
        NatsOptions { url: None, ..options.clone() },
        NatsOptions { url: Some("nats://user:secret@127.0.0.1".to_owned()), ..options.clone() },
    ] {
        assert_eq!(NatsDeliverer::new(wrong).deliver(&to, &batch(1..=1)).await, Outcome::Unreached);
    }
    assert!(!format!("{options:?}").contains("s3cret"));
    let client = async_nats::ConnectOptions::with_token("s3cret".to_owned())
        .add_root_certificates(certs.ca_path())
        .add_client_certificate(certs.client_cert_path(), certs.client_key_path())
        .connect(server.url());
    let seen = Arc::new(Seen::default());
    let listening = answering(client.await.unwrap(), &seen).await;
    world.register("g", String::new(), Protocol::Nats).await;
    let node = world.node_with(NatsDeliverer::new(options)).await;
    world.send(50).await;
    world.arrives("g", || seen.by_document()).await;
    books_close(&node, 50).await;
    node.close().await.unwrap();
    listening.abort();
}
