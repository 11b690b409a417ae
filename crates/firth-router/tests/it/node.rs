//! Whole nodes: topic, matching, lanes, HTTP/2, real gateways; and failures of each part.

use crate::chaos::{books_close, nothing_was_given_up};
use crate::gateway::{Mood, TestGateway};
use crate::world::*;
use firth::Broker;
use firth_engine::Engine;
use firth_router::config::{Protocol, RoutingConfig};
use firth_router::deliver::{Bearer, Deliverer, Delivering, HttpDeliverer, HttpOptions, SigningKey};
use firth_router::lane::{Answer, Batch, Item, Outcome};
use firth_router::node::{Router, RouterOptions, message};
use firth_router::registry::{Gateway, Registry, Subscription};
use firth_router::routing::{Target, partition};
use firth_testkit::{Flavor, on_both};
use serde_json::json;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// The numbers of events, by document, in the order of arrival.
pub(crate) type ByDocument = HashMap<String, Vec<u64>>;

/// Leases are 30 s, or what the environment says to soak takeovers: `FIRTH_TEST_LEASE_MS=1000`.
fn lease() -> Duration {
    let set = std::env::var("FIRTH_TEST_LEASE_MS").ok().and_then(|text| text.parse().ok());
    Duration::from_millis(set.unwrap_or(30_000))
}

pub(crate) struct World {
    pub(crate) broker: Broker,
    pub(crate) registry: Registry,
    pub(crate) options: RouterOptions,
    pub(crate) http: HttpOptions,
    /// How many documents events are about.
    pub(crate) documents: u64,
    sent: ByDocument,
    number: u64,
}

impl World {
    pub(crate) async fn new(engine: Engine) -> Self {
        let broker = Broker::with_engine(engine);
        broker.create_topic("changes").partitions(2).await.unwrap();
        let registry = Registry::open(&broker, RoutingConfig::default().subscriptions).await.unwrap();
        let mut options = RouterOptions::new("changes");
        // Longer than a starved machine sleeps; tests in which a node dies set it shorter.
        options.lease = lease();
        options.stall_timeout = Duration::from_millis(300);
        options.routing.delivery.timeout = Duration::from_secs(2);
        options.routing.delivery.retry.initial_delay = Duration::from_millis(10);
        options.routing.delivery.breaker.open_for = Duration::from_millis(200);
        let http = HttpOptions {
            node: "node".to_owned(),
            timeout: options.routing.delivery.timeout,
            bearer: Some(Bearer::new("token")),
            signing: None,
        };
        Self { broker, registry, options, http, documents: 10, sent: HashMap::new(), number: 0 }
    }

    pub(crate) async fn memory() -> Self {
        Self::new(Engine::memory()).await
    }

    pub(crate) async fn node(&self) -> Router {
        self.node_with(HttpDeliverer::new(self.http.clone())).await
    }

    /// A node with a way of its own to the engine.
    pub(crate) async fn node_on(&self, broker: &Broker) -> Router {
        let deliverer = Arc::new(HttpDeliverer::new(self.http.clone()));
        Router::start(broker, self.registry.clone(), deliverer, self.options.clone()).await.unwrap()
    }

    /// A node with a wire of the test's choice.
    pub(crate) async fn node_with(&self, deliverer: impl Deliverer) -> Router {
        let options = self.options.clone();
        Router::start(&self.broker, self.registry.clone(), Arc::new(deliverer), options).await.unwrap()
    }

    /// A gateway that wants everything.
    pub(crate) async fn register(&self, id: &str, endpoint: String, protocol: Protocol) {
        let mut registration = Gateway::new(gateway(id), endpoint);
        (registration.protocol, registration.ttl_seconds) = (Some(protocol), 0);
        self.registry.register_gateway(registration).await.unwrap();
        self.registry.register(wish(&format!("wish-{id}"), "doc.all", id)).await.unwrap();
    }

    pub(crate) async fn gateway(&self, id: &str, filter: &str) -> Arc<TestGateway> {
        let gateway = TestGateway::start(id).await;
        self.registry.register_gateway(gateway.registration()).await.unwrap();
        self.registry.register(wish(&format!("wish-{id}"), filter, id)).await.unwrap();
        gateway
    }

    /// Sends numbered changes of ten documents once each, however long a server is away.
    pub(crate) async fn send(&mut self, count: u64) {
        let made = async || {
            let producer = self.broker.producer("changes").idempotent().timeout(PATIENCE * 4);
            producer.await.ok()
        };
        let producer = until_some(PATIENCE * 4, made).await.expect("a producer can be made");
        let mut messages = Vec::new();
        for _ in 0..count {
            self.number += 1;
            let key = format!("d{}", self.number % self.documents);
            self.sent.entry(key.clone()).or_default().push(self.number);
            messages.push(message(&order(&key, json!({ "n": self.number, "all": true })), 2).unwrap());
        }
        producer.send_all(messages).await.unwrap();
        producer.close().await.unwrap();
    }

    async fn lag(&self) -> u64 {
        self.broker.admin().group("changes", "router").await.unwrap().lag()
    }

    pub(crate) async fn has_all(&self, gateway: &TestGateway) {
        let count = self.number as usize;
        until(PATIENCE * 6, format!("{} has {count} events", gateway.id), async || gateway.count() >= count)
            .await;
        self.arrives(&gateway.id, || gateway.by_document()).await;
    }

    /// As [`has_all`](Self::has_all), for one that was there only for the last ones.
    pub(crate) async fn has_all_since(&self, gateway: &TestGateway, count: usize) {
        until(PATIENCE * 6, format!("{} has {count} events", gateway.id), async || gateway.count() == count)
            .await;
    }

    /// Waits until all sent events arrived; each must be there once, and a document's in order.
    pub(crate) async fn arrives(&self, whom: &str, mut by_document: impl FnMut() -> ByDocument) {
        let count = self.number as usize;
        let mut arrived = ByDocument::new();
        until(PATIENCE * 6, format!("{whom} has {count} events"), async || {
            arrived = by_document();
            arrived.values().map(Vec::len).sum::<usize>() >= count
        })
        .await;
        for (document, sent) in &self.sent {
            assert_eq!(arrived.get(document), Some(sent), "{document}: each event once, in order");
        }
    }

    /// How many dead letters there are.
    pub(crate) async fn dead(&self) -> u64 {
        // The group of a gateway that has caught up may vanish while it is counted.
        let count = async || self.broker.dead_letters("changes").count().await.ok();
        until_some(PATIENCE, count).await.expect("dead letters can be counted")
    }

    pub(crate) async fn settled(&self) {
        until(PATIENCE * 4, "everything is settled", async || self.lag().await == 0).await;
    }
}

pub(crate) fn balanced(node: &Router) {
    for (partition, accounting) in node.accounting() {
        assert!(accounting.balance(), "partition {partition}: {accounting:?}");
    }
}

async fn events_reach_who_asked(engine: Engine) {
    let mut world = World::new(engine).await;
    // However long a starved machine takes: what is fed again to a parked gateway counts twice.
    world.options.stall_timeout = Duration::from_secs(600);
    let all = world.gateway("all", "doc.all == true").await;
    let some = world.gateway("some", "doc.n > 50 && doc.n <= 60").await;
    let none = world.gateway("none", "doc.n == 0").await;
    let node = world.node().await;
    world.send(100).await;
    world.has_all(&all).await;
    world.settled().await;
    assert_eq!((some.count(), none.requests()), (10, 0));
    assert_eq!(all.subscriptions().into_iter().collect::<Vec<_>>(), ["wish-all"]);
    balanced(&node);
    let delivered: u64 = node.accounting().values().map(|accounting| accounting.delivered).sum();
    assert_eq!(delivered, 110);
    node.close().await.unwrap();
    world.registry.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_reaches_the_gateways_that_asked_for_it_and_no_other() {
    events_reach_who_asked(Engine::memory()).await;
}

async fn an_event_reaches_its_gateways_on_a_server(flavor: Flavor) {
    let (_server, engine, _) = on_server(flavor).await;
    events_reach_who_asked(engine).await;
}

on_both!(an_event_reaches_its_gateways_on_a_server);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letters_of_a_parked_gateway_stay_until_they_are_replayed() {
    let mut world = World::memory().await;
    let picky = world.gateway("picky", "doc.all").await;
    picky.set(Mood::Hangs);
    let node = world.node().await;
    let is_parked = || node.lanes().iter().any(|lane| !lane.parked.is_empty());
    world.send(200).await;
    until(PATIENCE, "it is parked", async || is_parked()).await;
    picky.set(Mood::Refuses("d3".to_owned()));
    // Of an event that was on its way when the gateway was parked there may be two: it is also fed.
    until(PATIENCE * 4, "all of it has arrived or is a dead letter", async || {
        let held: u64 = node.accounting().values().map(|accounting| accounting.held).sum();
        picky.count() == 180 && held == 0 && world.dead().await >= 20
    })
    .await;
    picky.set(Mood::Fine);
    world.send(50).await;
    until(PATIENCE * 4, "it gets what comes", async || picky.count() == 230).await;
    assert!(world.dead().await >= 20, "they are still there");
    world.broker.dead_letters("changes").replay_all(firth::Replay::Group).await.unwrap();
    until(PATIENCE * 4, "the replayed ones arrive", async || picky.count() == 250).await;
    until(PATIENCE * 4, "it gets events as they happen again", async || !is_parked()).await;
    assert_eq!(world.dead().await, 0);
    balanced(&node);
    node.close().await.unwrap();
}

/// Refuses one document, and leaves the batches of another unanswered until it is told otherwise.
struct Halting {
    refuses: String,
    halts: String,
    goes_on: Arc<tokio::sync::Semaphore>,
}

impl Deliverer for Halting {
    fn deliver<'a>(&'a self, _: &'a Gateway, batch: &'a Batch) -> Delivering<'a> {
        Box::pin(async move {
            if batch.items.iter().any(|item| *item.event.key == *self.halts) {
                self.goes_on.acquire().await.unwrap().forget();
                self.goes_on.add_permits(1);
            }
            let answer = |item: &Item| match *item.event.key == *self.refuses {
                true => Answer::Refused("never".to_owned()),
                false => Answer::Accepted,
            };
            Outcome::Answered(batch.items.iter().map(answer).collect())
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_that_was_given_up_before_its_gateway_was_parked_leaves_one_dead_letter() {
    let mut world = World::memory().await;
    world.options.routing.batch.max_size = 1;
    let mut keys = (0..).map(|n| format!("k{n}")).filter(|key| partition("orders", key, 2) == 0);
    let [halts, refuses] = std::array::from_fn(|_| keys.next().unwrap());
    let goes_on = Arc::new(tokio::sync::Semaphore::new(0));
    world.register("g", "http://127.0.0.1:1".to_owned(), Protocol::Http).await;
    let deliverer = Halting { refuses: refuses.clone(), halts: halts.clone(), goes_on: Arc::clone(&goes_on) };
    let node = world.node_with(deliverer).await;
    let events = [&halts, &refuses].map(|key| message(&order(key, json!({ "all": true })), 2).unwrap());
    let producer = world.broker.producer("changes").await.unwrap();
    producer.send_all(events.to_vec()).await.unwrap();
    // The second event is given up while the first is in flight; parking begins at the first.
    until(PATIENCE, "it is parked", async || node.lanes().iter().any(|lane| lane.parked == [0])).await;
    until(PATIENCE, "the second one is fed and refused again", async || {
        let accounting = node.accounting();
        accounting.get(&0).is_some_and(|accounting| accounting.dead == 2)
    })
    .await;
    goes_on.add_permits(1);
    world.settled().await;
    let groups = async || {
        let letters = world.broker.dead_letters("changes").list(None, 10).await.ok()?.letters;
        Some(letters.iter().map(|letter| letter.id.group.to_string()).collect::<Vec<_>>())
    };
    until(PATIENCE, "one letter is left", async || groups().await == Some(vec!["router.gw.g".to_owned()]))
        .await;
    balanced(&node);
    node.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_refused_for_good_is_a_dead_letter_that_can_be_replayed() {
    let mut world = World::memory().await;
    // A slow machine must not park the gateway: the letters would be another group's.
    world.options.stall_timeout = Duration::from_secs(600);
    let fine = world.gateway("fine", "doc.all").await;
    let picky = world.gateway("picky", "doc.all").await;
    picky.set(Mood::Refuses("d3".to_owned()));
    let node = world.node().await;
    world.send(20).await;
    world.has_all(&fine).await;
    world.settled().await;
    assert_eq!(picky.count(), 18);
    let letters = world.broker.dead_letters("changes");
    assert_eq!(letters.count().await.unwrap(), 2);
    let page = letters.list(None, 10).await.unwrap();
    assert_eq!(page.letters[0].reason, "gateway picky: not this one (attempts: 3)");
    picky.set(Mood::Fine);
    letters.replay_all(firth::Replay::Group).await.unwrap();
    until(PATIENCE, "the replayed ones arrive", async || picky.count() == 20).await;
    world.settled().await;
    assert_eq!(fine.count(), 20, "who has them drops them");
    let mut replayed = picky.by_document()["d3"].clone();
    replayed.sort_unstable();
    assert_eq!(replayed, world.sent["d3"]);
    balanced(&node);
    node.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_is_no_event_is_a_dead_letter_and_stops_nobody() {
    let mut world = World::memory().await;
    let gateway = world.gateway("g", "doc.all").await;
    let node = world.node().await;
    let producer = world.broker.producer("changes").await.unwrap();
    producer.send("what is this?").await.unwrap();
    world.send(10).await;
    world.has_all(&gateway).await;
    world.settled().await;
    assert_eq!(world.dead().await, 1);
    books_close(&node, 10).await;
    node.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_crashes_and_flaps_under_load_misses_nothing() {
    let mut world = World::memory().await;
    let gateway = world.gateway("g", "doc.all").await;
    let node = world.node().await;
    for round in 0..4 {
        world.send(100).await;
        until(PATIENCE, "some arrived", async || gateway.count() > round * 200).await;
        gateway.crash();
        world.send(100).await;
        gateway.come_back().await;
    }
    world.has_all(&gateway).await;
    world.settled().await;
    books_close(&node, 1).await;
    node.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_get_lost_lead_to_repetitions_and_to_nothing_worse() {
    let mut world = World::memory().await;
    let gateway = world.gateway("g", "doc.all").await;
    let node = world.node().await;
    gateway.set(Mood::Answers(500));
    world.send(50).await;
    until(PATIENCE, "it has seen some twice", async || gateway.requests() > 3).await;
    gateway.set(Mood::Fine);
    world.has_all(&gateway).await;
    world.settled().await;
    books_close(&node, 1).await;
    node.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_hangs_slows_nobody_and_catches_up_from_the_topic() {
    let mut world = World::memory().await;
    let quick = world.gateway("quick", "doc.all").await;
    let stuck = world.gateway("stuck", "doc.all").await;
    stuck.set(Mood::Hangs);
    let node = world.node().await;
    world.send(1500).await;
    world.has_all(&quick).await;
    until(PATIENCE, "the stuck one is parked", async || {
        node.lanes().iter().any(|lane| lane.gateway.as_str() == "stuck" && !lane.parked.is_empty())
    })
    .await;
    world.settled().await;
    assert_eq!(stuck.count(), 0);
    assert!(node.open_records() < 1000, "memory stays bounded");
    balanced(&node);
    stuck.set(Mood::Fine);
    world.has_all(&stuck).await;
    world.send(200).await;
    world.has_all(&stuck).await;
    world.has_all(&quick).await;
    until(PATIENCE, "it gets events as they happen again", async || {
        let groups = world.broker.admin().groups("changes").await.unwrap();
        node.lanes().iter().all(|lane| lane.parked.is_empty()) && groups.len() == 1
    })
    .await;
    world.settled().await;
    books_close(&node, 3400).await;
    node.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_killed_under_load_is_replaced_and_nothing_is_lost() {
    let mut world = World::memory().await;
    world.options.lease = Duration::from_secs(2);
    let gateway = world.gateway("g", "doc.all").await;
    let first = world.node().await;
    world.send(500).await;
    until(PATIENCE, "some arrived", async || gateway.count() > 20).await;
    drop(first);
    world.send(500).await;
    let second = world.node().await;
    world.has_all(&gateway).await;
    world.settled().await;
    books_close(&second, 1).await;
    second.close().await.unwrap();
}

/// Starts a second node, which has everything for both gateways once the stuck one is well.
async fn next_node_catches_up(world: &mut World, quick: &TestGateway, stuck: &TestGateway, records: u64) {
    let second = world.node().await;
    world.send(300).await;
    world.has_all(quick).await;
    stuck.set(Mood::Fine);
    world.has_all(stuck).await;
    nothing_was_given_up(world).await;
    books_close(&second, records).await;
    second.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parked_gateway_stays_parked_for_the_next_node() {
    let mut world = World::memory().await;
    world.options.lease = Duration::from_secs(2);
    let quick = world.gateway("quick", "doc.all").await;
    let stuck = world.gateway("stuck", "doc.all").await;
    stuck.set(Mood::Hangs);
    let first = world.node().await;
    world.send(1200).await;
    world.has_all(&quick).await;
    world.settled().await;
    drop(first);
    next_node_catches_up(&mut world, &quick, &stuck, 300).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_crashed_and_comes_back_under_its_own_name_goes_on_at_once() {
    let mut world = World::memory().await;
    world.options.is_sole = true;
    // The lease does not expire during the test.
    world.options.lease = Duration::from_secs(3600);
    let quick = world.gateway("quick", "doc.all").await;
    let stuck = world.gateway("stuck", "doc.all").await;
    stuck.set(Mood::Hangs);
    let first = world.node().await;
    world.send(500).await;
    world.has_all(&quick).await;
    until(PATIENCE, "it is parked on both", async || {
        first.lanes().iter().any(|lane| lane.gateway.as_str() == "stuck" && lane.parked == [0, 1])
    })
    .await;
    drop(first);
    next_node_catches_up(&mut world, &quick, &stuck, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_share_the_partitions_and_hand_over_without_loss() {
    let mut world = World::memory().await;
    let gateway = world.gateway("g", "doc.all").await;
    let first = world.node().await;
    world.send(200).await;
    let second = world.node().await;
    world.send(200).await;
    until(PATIENCE, "each has one", async || {
        first.consumer().assignment().len() == 1 && second.consumer().assignment().len() == 1
    })
    .await;
    world.send(200).await;
    first.close().await.unwrap();
    world.send(200).await;
    world.has_all(&gateway).await;
    world.settled().await;
    books_close(&second, 1).await;
    second.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_events_have_no_gateway_closes_and_another_one_delivers_them() {
    let mut world = World::memory().await;
    world.options.drain = Duration::from_millis(100);
    let spread = Subscription { target: Target::Hash, ..wish("spread", "doc.second", "g") };
    world.registry.register(spread).await.unwrap();
    world.registry.register(wish("direct", "doc.first", "g")).await.unwrap();
    let node = world.node().await;
    let events = ["first", "second"].map(|name| message(&order("d1", json!({ name: true })), 2).unwrap());
    let producer = world.broker.producer("changes").await.unwrap();
    producer.send_all(events.to_vec()).await.unwrap();
    // The first one waits in the lane of its gateway, the second one for any gateway at all.
    until(PATIENCE, "the node has come to the second one", async || {
        node.accounting().values().any(|accounting| accounting.taken == 1)
    })
    .await;
    let closing = tokio::time::timeout(PATIENCE * 2, node.close()).await;
    closing.expect("it does not wait for a gateway that may never come").unwrap();
    let gateway = TestGateway::start("g").await;
    world.registry.register_gateway(gateway.registration()).await.unwrap();
    let node = world.node().await;
    until(PATIENCE * 2, "the next node delivers both", async || gateway.count() == 2).await;
    nothing_was_given_up(&world).await;
    node.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_grows_while_a_gateway_is_parked_keeps_no_group_for_it_when_it_has_caught_up() {
    let mut world = World::memory().await;
    let stuck = world.gateway("stuck", "doc.all").await;
    stuck.set(Mood::Hangs);
    let node = world.node().await;
    world.send(100).await;
    until(PATIENCE, "it is parked on both", async || {
        node.lanes().first().is_some_and(|lane| lane.parked == [0, 1])
    })
    .await;
    // The new partition comes with all groups of the topic, and so with that of the parked gateway.
    world.broker.grow_topic("changes", 3).await.unwrap();
    stuck.set(Mood::Fine);
    world.has_all(&stuck).await;
    until(PATIENCE * 4, "no group but the router's is left to hold the log", async || {
        let groups = world.broker.admin().groups("changes").await.unwrap();
        groups.len() == 1 && node.lanes().iter().all(|lane| lane.parked.is_empty())
    })
    .await;
    world.settled().await;
    books_close(&node, 1).await;
    node.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_trace_context_of_an_event_goes_with_it_unless_it_is_none() {
    const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let world = World::memory().await;
    let gateway = world.gateway("g", "doc.all").await;
    let node = world.node().await;
    let sent = message(&order("d1", json!({ "n": 1, "all": true })), 2).unwrap();
    let long = "x".repeat(1000);
    let messages =
        [sent.clone(), sent.clone().header(firth::TRACEPARENT, TRACE), sent.header(firth::TRACEPARENT, long)];
    let producer = world.broker.producer("changes").await.unwrap();
    producer.send_all(messages.to_vec()).await.unwrap();
    until(PATIENCE, "all arrive", async || gateway.count() == 3).await;
    assert_eq!(gateway.traces(), [None, Some(TRACE.to_owned()), None]);
    books_close(&node, 3).await;
    node.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_are_signed_and_carry_the_token() {
    let mut world = World::memory().await;
    let text = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    world.http.signing = Some(SigningKey::parse(text).unwrap());
    let gateway = TestGateway::with_keys("g", vec![SigningKey::parse(text).unwrap()]).await;
    world.registry.register_gateway(gateway.registration()).await.unwrap();
    world.registry.register(wish("w", "doc.all", "g")).await.unwrap();
    let node = world.node().await;
    world.send(20).await;
    world.has_all(&gateway).await;
    books_close(&node, 20).await;
    node.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_gateway_that_also_moves_on_slows_nobody() {
    let mut world = World::memory().await;
    let quick = world.gateway("quick", "doc.all").await;
    let slow = world.gateway("slow", "doc.all").await;
    world.options.routing.delivery.max_in_flight = 1;
    world.options.routing.batch.max_size = 10;
    slow.set(Mood::Slow(Duration::from_millis(100)));
    let node = world.node().await;
    world.send(1200).await;
    world.has_all(&quick).await;
    assert!(slow.count() < 1200, "it cannot be done yet");
    slow.set(Mood::Fine);
    world.has_all(&slow).await;
    world.settled().await;
    books_close(&node, 2400).await;
    node.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letters_go_when_they_are_old_or_never_come_if_nobody_wants_them() {
    for enabled in [true, false] {
        let mut world = World::memory().await;
        // A slow machine must not park the gateway: the letters would be another group's.
        world.options.stall_timeout = Duration::from_secs(600);
        world.options.routing.dlq.enabled = enabled;
        world.options.routing.dlq.max_age = Duration::from_millis(300);
        let gateway = world.gateway("g", "doc.all").await;
        gateway.set(Mood::Refuses("d3".to_owned()));
        let node = world.node().await;
        world.send(10).await;
        until(PATIENCE, "one was given up", async || {
            node.accounting().values().map(|accounting| accounting.dead).sum::<u64>() == 1
        })
        .await;
        world.settled().await;
        let letters = world.broker.dead_letters("changes");
        if !enabled {
            assert_eq!(letters.count().await.unwrap(), 0);
        }
        until(PATIENCE, "it is swept", async || letters.count().await.unwrap() == 0).await;
        balanced(&node);
        node.close().await.unwrap();
    }
}
