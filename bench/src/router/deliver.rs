//! From a topic to a gateway, at full speed and at rest.

use super::gateway::Taker;
use crate::cell::Cell;
use crate::measure::{Clock, Row, Samples, percentiles, precise};
use anyhow::{Context, Result, bail};
use firth::Broker;
use firth_router::config::{NatsAck, Protocol, RoutingConfig};
use firth_router::deliver::{
    ByProtocol, Deliverer, GrpcDeliverer, GrpcOptions, HttpDeliverer, HttpOptions, NatsDeliverer, NatsOptions,
};
use firth_router::event::{Document, Event, Operation};
use firth_router::lane::{Answer, Batch, Item, Outcome, Position};
use firth_router::node::{Router, RouterOptions, message};
use firth_router::registry::{Registry, Subscription, Wanted};
use firth_router::routing::Target;
use firth_router::{GatewayId, SubscriptionId, Tenant};
use futures_util::stream::{FuturesUnordered, StreamExt};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

pub(super) const TOPIC: &str = "changes";
const SUBSCRIPTIONS: usize = 100_000;
const BATCH: usize = 100;
/// Batches on their way at a time, for `raw`.
const WINDOW: usize = 32;
/// Events a second when there is little to do.
const PACE: u64 = 500;

pub(super) fn wires(wire: &str) -> ByProtocol {
    let node = "bench".to_owned();
    let timeout = Duration::from_secs(10);
    let http = HttpOptions { node: node.clone(), timeout, bearer: None, signing: None };
    let grpc = GrpcOptions { node, timeout, bearer: None };
    let mut nats = NatsOptions::new("bench", timeout);
    if wire == "jetstream" {
        (nats.ack, nats.stream) = (NatsAck::JetStream, Some("events".to_owned()));
    }
    let grpc = GrpcDeliverer::new(grpc);
    ByProtocol::new(Protocol::Http)
        .with(Protocol::Http, HttpDeliverer::new(http))
        .with(Protocol::Grpc, if wire == "grpc-stream" { grpc } else { grpc.unary() })
        .with(Protocol::Nats, NatsDeliverer::new(nats))
}

fn event(number: usize, mark: u64) -> Result<Event> {
    let document = json!({ "customer": number % SUBSCRIPTIONS, "mark": mark, "state": "paid", "note": "leave at the door" });
    let event = Event::new(Operation::Insert, Tenant::new("acme")?, "orders", number.to_string());
    Ok(event.with_after(Document::from_value(&document)?))
}

fn subscription(number: usize) -> Result<Subscription> {
    let id = SubscriptionId::new(format!("s{number}"))?;
    let target = Target::Direct(GatewayId::new("gw")?);
    let all = Subscription::new(id, Tenant::new("acme")?, "orders", target);
    Ok(Subscription { filter: Some(format!("doc.customer == {number}")), ..all })
}

/// A broker with its topic, a registry, and a gateway.
struct World {
    broker: Broker,
    registry: Registry,
    gateway: Taker,
    wire: String,
}

impl World {
    async fn new(wire: &str, base: Instant) -> Result<Self> {
        let broker = Broker::memory();
        broker.create_topic(TOPIC).partitions(1).await?;
        let mut quotas = RoutingConfig::default().subscriptions;
        (quotas.per_gateway, quotas.per_tenant) = (SUBSCRIPTIONS, SUBSCRIPTIONS);
        let registry = Registry::open(&broker, quotas).await?;
        let gateway = Taker::start(wire, "gw", base).await?;
        registry.register_gateway(gateway.registration.clone()).await?;
        for number in 0..SUBSCRIPTIONS {
            registry.register(subscription(number)?).await?;
        }
        Ok(Self { broker, registry, gateway, wire: wire.to_owned() })
    }

    async fn node(&self) -> Result<Router> {
        let options = RouterOptions::new(TOPIC);
        let wires = Arc::new(wires(&self.wire));
        Ok(Router::start(&self.broker, self.registry.clone(), wires, options).await?)
    }

    async fn close(self, node: Router) -> Result<()> {
        node.close().await?;
        self.registry.close().await;
        Ok(self.broker.close().await?)
    }
}

/// Waits until the gateways accepted this many events.
async fn delivered(node: &Router, count: u64) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let accounting = node
            .accounting()
            .into_values()
            .fold(Default::default(), firth_router::lane::LaneAccounting::plus);
        if accounting.delivered >= count {
            return Ok(());
        }
        if Instant::now() > deadline || !node.is_running() {
            bail!("only {accounting:?} of {count}");
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

pub(super) async fn routed(cell: &Cell, wire: &str) -> Result<Row> {
    // Long enough that what else a node does now and then, such as comparing its registry with the
    // catalog, counts as much as it does in a long run.
    let count = if cell.quick { 400_000 } else { 1_000_000 };
    let world = World::new(wire, Instant::now()).await?;
    let producer = world.broker.producer(TOPIC).await?;
    for part in (0..count).collect::<Vec<usize>>().chunks(1000) {
        let messages = part.iter().map(|number| Ok(message(&event(*number, 0)?, 1)?));
        producer.send_all(messages.collect::<Result<Vec<_>>>()?).await?;
    }
    producer.close().await?;
    let clock = Clock::start()?;
    let node = world.node().await?;
    delivered(&node, count as u64).await?;
    let spent = clock.stop()?;
    world.close(node).await?;
    Ok(row(cell, count as u64, spent, (0.0, 0.0)))
}

pub(super) async fn raw(cell: &Cell, wire: &str) -> Result<Row> {
    let taker = Taker::start(wire, "gw", Instant::now()).await?;
    let wires = wires(wire);
    let gateway = &taker.registration;
    let wanted = Wanted { subscription: Arc::new(subscription(1)?), leaves: false };
    let item = |number: usize| -> Result<Item> {
        let position = Position { partition: 0, seq: number as u64 + 1 };
        Ok(Item::new(position, 1, Arc::new(event(number, 0)?), std::slice::from_ref(&wanted)))
    };
    let items = (0..BATCH).map(item).collect::<Result<Vec<_>>>()?;
    let batch = Batch { id: 1, topic: "events".into(), items: Arc::new(items), gap: None };
    let clock = Clock::start()?;
    let begun = Instant::now();
    let mut batches = 0_u64;
    let mut sending = FuturesUnordered::new();
    while begun.elapsed() < cell.rounds.timed {
        while sending.len() < WINDOW {
            sending.push(wires.deliver(gateway, &batch));
        }
        match sending.next().await {
            Some(Outcome::Accepted) => batches += 1,
            // By NATS each event is answered.
            Some(Outcome::Answered(all)) if all.iter().all(|one| *one == Answer::Accepted) => batches += 1,
            other => bail!("the gateway said {other:?}"),
        }
    }
    Ok(row(cell, batches * BATCH as u64, clock.stop()?, (0.0, 0.0)))
}

pub(super) async fn latency(cell: &Cell, wire: &str) -> Result<Row> {
    let base = Instant::now();
    let world = World::new(wire, base).await?;
    let node = world.node().await?;
    let producer = world.broker.producer(TOPIC).await?;
    let mut ticks = tokio::time::interval(Duration::from_micros(1_000_000 / PACE));
    let clock = Clock::start()?;
    let begun = Instant::now();
    let mut sent = 0;
    while begun.elapsed() < cell.rounds.timed {
        ticks.tick().await;
        let mark = u64::try_from(base.elapsed().as_nanos())?;
        producer.send(message(&event(sent, mark)?, 1)?).await?;
        sent += 1;
    }
    delivered(&node, sent as u64).await?;
    let spent = clock.stop()?;
    let took = std::mem::take(&mut *world.gateway.took.lock().unwrap_or_else(PoisonError::into_inner));
    let mut samples = Samples::with_capacity(took.len());
    took.iter().for_each(|nanos| samples.push(Duration::from_nanos(*nanos)));
    producer.close().await?;
    world.close(node).await?;
    Ok(row(cell, sent as u64, spent, percentiles(&[samples]).context("latencies")?))
}

pub(super) fn row(
    cell: &Cell,
    count: u64,
    spent: crate::measure::Spent,
    (p50_us, p99_us): (f64, f64),
) -> Row {
    Row {
        bench: cell.bench.clone(),
        workload: cell.workload.clone(),
        subject: cell.subject.clone(),
        ops_per_s: precise(count) / spent.wall.as_secs_f64(),
        cpu_us_per_op: spent.cpu.as_secs_f64() * 1e6 / precise(count),
        p50_us,
        p99_us,
        extra: BTreeMap::new(),
    }
}
