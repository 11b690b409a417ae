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
use tokio::time::MissedTickBehavior;

use super::deliver::{TOPIC, row, wires};
use super::gateway::Taker;
use crate::cell::Cell;
use crate::measure::{Clock, Row, Samples, median, percentiles};

const GATEWAYS: usize = 64;
/// Every so often some events are sent, in turn for each gateway. Timers are no finer.
const TICK: Duration = Duration::from_millis(1);
const AT_ONCE: usize = 2;
/// How often one gateway stands still, with as much time without before each.
const TURNS: usize = 6;
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

    /// Sends for a while; answers median and 99th percentile of the latencies of all gateways but the first, in microseconds.
    async fn pace(&mut self, time: Duration) -> Result<(f64, f64)> {
        let producer = self.broker.producer(TOPIC).await?;
        let mut ticks = tokio::time::interval(TICK);
        // What the machine held up does not come as a burst, which would be slow by itself.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (begun, mut expected) = (Instant::now(), 0);
        while begun.elapsed() < time {
            ticks.tick().await;
            for _ in 0..AT_ONCE {
                producer.send(message(&self.event()?, 1)?).await?;
                expected += usize::from(!self.sent.is_multiple_of(GATEWAYS));
                self.sent += 1;
            }
        }
        producer.close().await?;
        let mut samples = Samples::with_capacity(expected);
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
        percentiles(&[samples])
    }

    /// The next one, for the gateway whose turn it is, with the time.
    fn event(&self) -> Result<Event> {
        let (customer, mark) = (self.sent % GATEWAYS, u64::try_from(self.base.elapsed().as_nanos())?);
        let document = Document::from_value(&json!({ "customer": customer, "mark": mark }))?;
        let event = Event::new(Operation::Insert, Tenant::new("acme")?, "orders", self.sent.to_string());
        Ok(event.with_after(document))
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

/// With and without turn about, and each turn is held against the one before it: what else the machine does meets both alike, and what meets only
/// one of them is not the median of all.
pub(super) async fn measure(cell: &Cell) -> Result<Row> {
    let mut world = World::new().await?;
    world.pace(cell.rounds.warm).await?;
    let (clock, mut turns) = (Clock::start()?, Vec::new());
    for _ in 0..TURNS {
        let (_, calm_p99) = world.pace(TURN).await?;
        world.takers[0].stalled.send_replace(true);
        let (p50, p99) = world.pace(TURN).await?;
        world.takers[0].stalled.send_replace(false);
        world.is_calm().await?;
        turns.push([p50, p99, calm_p99, p99 / calm_p99]);
    }
    let spent = clock.stop()?;
    let [p50, p99, calm_p99, ratio] =
        std::array::from_fn(|at| median(turns.iter().map(|turn| turn[at]).collect()));
    let mut row = row(cell, world.sent as u64, spent, (p50, p99));
    row.extra.insert("calm_p99_us".to_owned(), calm_p99);
    row.extra.insert("p99_ratio".to_owned(), ratio);
    world.node.close().await?;
    Ok(row)
}
