//! Behind a router: who comes back to the same gateway misses nothing and gets nothing twice,
//! for any number of partitions; at another gateway, which got other events in another order,
//! it must start anew.

use crate::world::{Client, Gateway, PATIENCE, order, tenant};
use firth::{Broker, Message, Producer};
use firth_edge::{Config, RouterFeed};
use firth_router::config::{Protocol, RoutingConfig};
use firth_router::deliver::{Bearer, ByProtocol, HttpDeliverer, HttpOptions};
use firth_router::event::{Event, Operation};
use firth_router::node::{Router, RouterOptions};
use firth_router::registry::{self, Registry, Subscription};
use firth_router::routing::Target;
use firth_router::{GatewayId, SubscriptionId};
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

const TOKEN: &str = "between router and gateway";
/// Documents, each in some partition.
const KEYS: i64 = 7;

/// Two gateways, and a router that gives each all orders of the tenant.
struct World {
    producer: Producer,
    gateways: Vec<Gateway>,
    entrances: Vec<JoinHandle<std::io::Result<()>>>,
    router: Router,
    registry: Registry,
}

impl World {
    async fn start(partitions: u32) -> Self {
        let broker = Broker::memory();
        broker.create_topic("changes").partitions(partitions).await.unwrap();
        let registry = Registry::open(&broker, RoutingConfig::default().subscriptions).await.unwrap();
        let mut gateways = Vec::new();
        let mut entrances = Vec::new();
        for name in ["one", "two"] {
            let gateway = Gateway::start(Config::default()).await;
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let endpoint = format!("http://{}", listener.local_addr().unwrap());
            let routes = RouterFeed::new(gateway.edge.hub().clone(), TOKEN).routes();
            entrances.push(tokio::spawn(async move { axum::serve(listener, routes).await }));
            gateways.push(gateway);
            let id = GatewayId::new(name).unwrap();
            registry.register_gateway(registry::Gateway::new(id.clone(), endpoint)).await.unwrap();
            let wanted = (SubscriptionId::new(name).unwrap(), Target::Direct(id));
            registry.register(Subscription::new(wanted.0, tenant("acme"), "orders", wanted.1)).await.unwrap();
        }
        let bearer = Some(Bearer::new(TOKEN));
        let http = HttpOptions { node: "r".to_owned(), timeout: PATIENCE, bearer, signing: None };
        let wires = ByProtocol::new(Protocol::Http).with(Protocol::Http, HttpDeliverer::new(http));
        let options = RouterOptions::new("changes");
        let router = Router::start(&broker, registry.clone(), Arc::new(wires), options).await.unwrap();
        let producer = broker.producer("changes").await.unwrap();
        Self { producer, gateways, entrances, router, registry }
    }

    async fn send(&self, numbers: std::ops::Range<i64>) {
        for n in numbers {
            let event = order("acme", &format!("k{}", n % KEYS), n);
            self.producer.send(Message::new(event.to_json()).key(event.message_key())).await.unwrap();
        }
    }

    async fn close(self) {
        self.router.close().await.unwrap();
        self.registry.close().await;
        for gateway in self.gateways {
            gateway.close().await;
        }
        self.entrances.iter().for_each(JoinHandle::abort);
    }
}

/// What a client has seen, and where it stands.
#[derive(Default)]
struct Seen {
    numbers: Vec<i64>,
    at: String,
}

impl Seen {
    async fn hear(&mut self, client: &mut Client, count: usize) {
        for _ in 0..count {
            let event = client.hear_type("event").await;
            self.numbers.push(event["event"]["after"]["n"].as_i64().unwrap());
            event["at"].as_str().unwrap().clone_into(&mut self.at);
        }
    }

    /// Every event once, and those of a document in order.
    fn check(&self, count: i64) {
        let mut sorted = self.numbers.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..count).collect::<Vec<_>>());
        for key in 0..KEYS {
            assert!(self.numbers.iter().filter(|n| *n % KEYS == key).is_sorted(), "{:?}", self.numbers);
        }
    }
}

async fn comes_back(partitions: u32) {
    let world = World::start(partitions).await;
    let one = &world.gateways[0];
    let mut seen = Seen::default();
    let mut ann = one.connect("ann").await;
    ann.subscribe("orders", None).await;
    world.send(0..30).await;
    // It goes away in the middle of what comes, and some of it comes while it is away.
    seen.hear(&mut ann, 11).await;
    drop(ann);
    world.send(30..50).await;
    let mut ann = one.connect("ann").await;
    let answer = ann.subscribe("orders", Some(&seen.at)).await;
    assert_eq!(answer["resumed"], true);
    seen.hear(&mut ann, 5).await;
    drop(ann);
    let mut ann = one.connect("ann").await;
    ann.subscribe("orders", Some(&seen.at)).await;
    world.send(50..60).await;
    seen.hear(&mut ann, 60 - 11 - 5).await;
    seen.check(60);
    drop(ann);

    let mut ann = world.gateways[1].connect("ann").await;
    let requests = json!([{"id": "s", "collection": "orders"}]);
    ann.say(json!({"type": "subscribe", "subscriptions": requests, "after": seen.at})).await;
    let answers: [Value; 2] = [ann.hear().await, ann.hear().await];
    assert_eq!(
        (&answers[0]["type"], &answers[0]["reason"]),
        (&"resync-required".into(), &"unknown-epoch".into())
    );
    assert_eq!(answers[1]["resumed"], false);
    drop(ann);
    world.close().await;
}

#[tokio::test]
async fn behind_a_router_who_comes_back_to_its_gateway_misses_nothing_and_gets_nothing_twice() {
    comes_back(1).await;
}

#[tokio::test]
async fn behind_a_router_of_four_partitions_as_well() {
    comes_back(4).await;
}

/// A control goes through the router in its place; who subscribed to something else is not
/// disturbed.
#[tokio::test]
async fn a_control_comes_through_the_router_in_order_and_to_its_collection_alone() {
    let world = World::start(1).await;
    let one = &world.gateways[0];
    let (mut ann, mut bob, mut eve) =
        (one.connect("ann").await, one.connect("bob").await, one.connect("eve").await);
    ann.subscribe("orders", None).await;
    bob.subscribe("orders", None).await;
    eve.subscribe("orders", None).await;
    let mut carol = one.connect("ann").await;
    carol.subscribe("items", None).await;
    world.send(0..5).await;
    // Two of one document: a control must not come between them.
    for n in [100, 101] {
        world
            .producer
            .send(Message::new(order("acme", "twice", n).to_json()).key("orders/twice"))
            .await
            .unwrap();
    }
    for event in [
        Event::control(Operation::Truncate, Some(tenant("acme")), "orders"),
        Event::control(Operation::Resync, None, "orders").with_reason("the slot is lost"),
    ] {
        world.producer.send(Message::new(event.to_compact()).key(event.message_key())).await.unwrap();
    }
    world.send(5..8).await;
    for client in [&mut ann, &mut bob] {
        let mut before = Vec::new();
        for _ in 0..7 {
            before.push(client.hear().await["event"]["after"]["n"].as_i64().unwrap());
        }
        before.sort_unstable();
        assert_eq!(before, [0, 1, 2, 3, 4, 100, 101]);
        let told = client.hear().await;
        assert_eq!((&told["type"], &told["reason"]), (&json!("resync-required"), &json!("truncated")));
        assert_eq!((&told["subs"], &told["collection"]), (&json!(["mine"]), &json!("orders")));
        let told = client.hear().await;
        assert_eq!(
            (&told["reason"], &told["message"]),
            (&json!("source"), &json!("the slot is lost")),
            "{told}"
        );
        let mut after = Vec::new();
        for _ in 5..8 {
            after.push(client.hear().await["event"]["after"]["n"].as_i64().unwrap());
        }
        after.sort_unstable();
        assert_eq!(after, [5, 6, 7]);
    }
    // Another tenant hears of what is for all alone.
    let told = eve.hear().await;
    assert_eq!((&told["type"], &told["reason"]), (&json!("resync-required"), &json!("source")));
    one.publish(Event::new(Operation::Insert, tenant("acme"), "items", "i"));
    assert_eq!(carol.hear().await["type"], "event", "another collection hears nothing before");
    drop((ann, bob, carol, eve));
    world.close().await;
}
