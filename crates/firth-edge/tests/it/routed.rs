//! Behind a router: who comes back to the same gateway misses nothing and gets nothing twice, whatever the number of partitions; at another gateway, which
//! got other events in another order, it must start anew.

use crate::world::{Client, Gateway, PATIENCE, order, tenant};
use firth::{Broker, Engine, Message, Producer};
use firth_edge::{Config, RouterFeed};
use firth_router::config::{Protocol, RoutingConfig};
use firth_router::deliver::{Bearer, ByProtocol, HttpDeliverer, HttpOptions};
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
        let engine = Engine::memory();
        let broker = Broker::with_engine(engine.clone());
        broker.create_topic("changes").partitions(partitions).await.unwrap();
        let registry = Registry::open(engine, RoutingConfig::default().subscriptions).await.unwrap();
        let (mut gateways, mut entrances) = (Vec::new(), Vec::new());
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
    let wishes = json!([{"id": "s", "collection": "orders"}]);
    ann.say(json!({"type": "subscribe", "subscriptions": wishes, "after": seen.at})).await;
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
