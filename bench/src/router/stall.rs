//! Many gateways of one node, one of which stands still: what the others notice of it.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use firth::Broker;
use firth_engine::Engine;
use firth_router::config::RoutingConfig;
use firth_router::event::{Document, Event, Operation};
use firth_router::node::{Router, RouterOptions, message};
use firth_router::registry::{Registry, Subscription};
use firth_router::routing::Target;
use firth_router::{GatewayId, SubscriptionId, Tenant};
use serde_json::json;

use super::deliver::{TOPIC, row, wires};
use super::gateway::Taker;
use crate::cell::Cell;
use crate::measure::{Clock, Row, Samples, percentiles};

const GATEWAYS: usize = 64;
/// Events a second, in turn for each gateway.
const PACE: u64 = 2000;
/// How often one gateway stands still, with as much time without before each.
const TURNS: usize = 4;
/// Long enough for the router to park it.
const TURN: Duration = Duration::from_secs(2);
/// How long it may take until it has caught up.
const PATIENCE: Duration = Duration::from_secs(20);

struct World {
    broker: Broker,
    node: Router,
    takers: Vec<Taker>,
    base: Instant,
    sent: usize,
}

impl World {
    async fn new() -> Result<Self> {
        let (engine, base) = (Engine::memory(), Instant::now());
        let broker = Broker::with_engine(engine.clone());
        broker.create_topic(TOPIC).partitions(1).await?;
        let registry = Registry::open(engine, RoutingConfig::default().subscriptions).await?;
        let mut takers = Vec::new();
        for number in 0..GATEWAYS {
            let name = format!("gw{number}");
            let taker = Taker::start("grpc", &name, base).await?;
            registry.register_gateway(taker.registration.clone()).await?;
            let target = Target::Direct(GatewayId::new(&name)?);
            let wish = Subscription::new(SubscriptionId::new(&name)?, Tenant::new("acme")?, "orders", target);
            let filter = Some(format!("doc.customer == {number}"));
            registry.register(Subscription { filter, ..wish }).await?;
            takers.push(taker);
        }
        let (options, wires) = (RouterOptions::new(TOPIC), Arc::new(wires("grpc")));
        let node = Router::start(&broker, registry, wires, options).await?;
        Ok(Self { broker, node, takers, base, sent: 0 })
    }

    /// Sends for a while; adds the latencies of all gateways but the first.
    async fn pace(&mut self, time: Duration, samples: &mut Samples) -> Result<()> {
        let producer = self.broker.producer(TOPIC).await?;
        let mut ticks = tokio::time::interval(Duration::from_micros(1_000_000 / PACE));
        let (begun, mut expected) = (Instant::now(), 0);
        while begun.elapsed() < time {
            ticks.tick().await;
            let (customer, mark) = (self.sent % GATEWAYS, u64::try_from(self.base.elapsed().as_nanos())?);
            let document = Document::from_value(&json!({ "customer": customer, "mark": mark }))?;
            let key = self.sent.to_string();
            let event =
                Event::new(Operation::Insert, Tenant::new("acme")?, "orders", key).with_after(document);
            producer.send(message(&event, 1)?).await?;
            self.sent += 1;
            expected += usize::from(customer != 0);
        }
        producer.close().await?;
        let (mut count, deadline) = (0, Instant::now() + PATIENCE);
        while count < expected {
            if Instant::now() > deadline {
                bail!("{count} of {expected} events arrived");
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
            for taker in &self.takers[1..] {
                let took = std::mem::take(&mut *taker.took.lock().unwrap_or_else(PoisonError::into_inner));
                count += took.len();
                took.iter().for_each(|nanos| samples.push(Duration::from_nanos(*nanos)));
            }
        }
        Ok(())
    }

    /// Waits until all gateways have everything and get events as they happen.
    async fn is_calm(&self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while self.node.lanes().iter().any(|lane| !lane.parked.is_empty() || lane.held > 0) {
            if Instant::now() > deadline {
                bail!("the gateway that stood still does not catch up: {:?}", self.node.lanes().first());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }
}

/// With and without turn about, so that whatever else the machine does meets both alike.
pub(super) async fn measure(cell: &Cell) -> Result<Row> {
    let mut world = World::new().await?;
    let capacity = usize::try_from(PACE)? * TURNS * usize::try_from(TURN.as_secs())? + GATEWAYS;
    let [mut calm, mut stalled] = [(); 2].map(|()| Samples::with_capacity(capacity));
    world.pace(cell.rounds.warm, &mut Samples::with_capacity(1)).await?;
    let clock = Clock::start()?;
    for _ in 0..TURNS {
        world.pace(TURN, &mut calm).await?;
        world.takers[0].stalled.send_replace(true);
        world.pace(TURN, &mut stalled).await?;
        world.takers[0].stalled.send_replace(false);
        world.is_calm().await?;
    }
    let spent = clock.stop()?;
    let (_, calm_p99) = percentiles(&[calm])?;
    let (p50, p99) = percentiles(&[stalled])?;
    let mut row = row(cell, world.sent as u64, spent, (p50, p99));
    row.extra.insert("calm_p99_us".to_owned(), calm_p99);
    row.extra.insert("p99_ratio".to_owned(), p99 / calm_p99);
    world.node.close().await?;
    Ok(row)
}
