//! Many gateways of one node, one of which stands still: what the others notice of it.

use super::deliver::{TOPIC, row, wires};
use super::gateway::Taker;
use crate::cell::Cell;
use crate::measure::{Clock, Row, Samples, median, percentiles, precise};
use anyhow::{Result, bail};
use firth::Broker;
use firth_router::config::RoutingConfig;
use firth_router::event::{Document, Event, Operation};
use firth_router::node::{Router, RouterOptions, message};
use firth_router::registry::{Registry, Subscription};
use firth_router::routing::Target;
use firth_router::{GatewayId, SubscriptionId, Tenant};
use serde_json::json;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};
use tokio::time::MissedTickBehavior;

const GATEWAYS: usize = 64;
/// Every so often some events are sent, in turn for each gateway. Timers are no finer.
const TICK: Duration = Duration::from_millis(1);
const AT_ONCE: usize = 2;
/// How often one gateway stands still, with as much time without before or after it.
const TURNS: usize = 24;
/// Long enough for the router to park it.
const TURN: Duration = Duration::from_secs(2);
/// How long all turns take, without catching up.
pub(super) const LENGTH: Duration = Duration::from_secs(2 * TURN.as_secs() * TURNS as u64);
/// How long latencies are collected for one percentile.
const SPAN: Duration = Duration::from_millis(250);
/// Somewhat more than there are of them.
const EXPECTED: usize = 1000;
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
        let broker = Broker::memory();
        let base = Instant::now();
        broker.create_topic(TOPIC).partitions(1).await?;
        let registry = Registry::open(&broker, RoutingConfig::default().subscriptions).await?;
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
        let options = RouterOptions::new(TOPIC);
        let wires = Arc::new(wires("grpc"));
        let node = Router::start(&broker, registry, wires, options).await?;
        Ok(Self { broker, node, takers, base, sent: 0 })
    }

    /// Sends for a while; answers median and 99th percentile of the latencies of all gateways but
    /// the first, in microseconds, span by span.
    async fn pace(&mut self, time: Duration) -> Result<Vec<(f64, f64)>> {
        let producer = self.broker.producer(TOPIC).await?;
        let mut ticks = tokio::time::interval(TICK);
        // What the machine held up does not come as a burst, which would be slow by itself.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let begun = Instant::now();
        let mut expected = 0;
        let mut spans = vec![Samples::with_capacity(EXPECTED)];
        while begun.elapsed() < time {
            ticks.tick().await;
            for _ in 0..AT_ONCE {
                producer.send(message(&self.event()?, 1)?).await?;
                expected += usize::from(!self.sent.is_multiple_of(GATEWAYS));
                self.sent += 1;
            }
            // What is still on its way belongs to the next one, or to the last.
            if begun.elapsed() > SPAN * u32::try_from(spans.len())? && begun.elapsed() + SPAN / 2 < time {
                expected -= self.collect(spans.last_mut());
                spans.push(Samples::with_capacity(EXPECTED));
            }
        }
        producer.close().await?;
        let deadline = Instant::now() + PATIENCE;
        while expected > 0 {
            if Instant::now() > deadline {
                bail!("{expected} events did not arrive");
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
            expected -= self.collect(spans.last_mut());
        }
        spans.into_iter().map(|span| percentiles(&[span])).collect()
    }

    /// Moves what has arrived at all gateways but the first into a span; answers how many there
    /// were.
    fn collect(&self, span: Option<&mut Samples>) -> usize {
        let take =
            |taker: &Taker| std::mem::take(&mut *taker.took.lock().unwrap_or_else(PoisonError::into_inner));
        let took: Vec<u64> = self.takers[1..].iter().flat_map(take).collect();
        if let Some(span) = span {
            took.iter().for_each(|nanos| span.push(Duration::from_nanos(*nanos)));
        }
        took.len()
    }

    /// The next one, for the gateway whose turn it is, with the time.
    fn event(&self) -> Result<Event> {
        let customer = self.sent % GATEWAYS;
        let mark = u64::try_from(self.base.elapsed().as_nanos())?;
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

/// With and without turn about, so that what else the machine does meets both alike. A hiccup of
/// the machine is longer than one event in a hundred: so the 99th percentile is that of a short
/// span, and the median of all spans is judged. `disturbed` is the share of spans in which it was
/// twice as high as that, with and (`calm_disturbed`) without the gateway that stands still.
pub(super) async fn measure(cell: &Cell) -> Result<Row> {
    let mut world = World::new().await?;
    world.pace(cell.rounds.warm).await?;
    let clock = Clock::start()?;
    let mut spans = [vec![], vec![]];
    for turn in 0..TURNS {
        for stalls in [turn % 2 == 1, turn % 2 == 0] {
            world.takers[0].stalled.send_replace(stalls);
            spans[usize::from(stalls)].extend(world.pace(TURN).await?);
            world.takers[0].stalled.send_replace(false);
            world.is_calm().await?;
        }
    }
    let spent = clock.stop()?;
    let [calm, stalled] = spans.each_ref().map(|spans| Typical::of(spans));
    let mut row = row(cell, world.sent as u64, spent, (stalled.p50, stalled.p99));
    row.extra.insert("calm_p99_us".to_owned(), calm.p99);
    row.extra.insert("p99_ratio".to_owned(), stalled.p99 / calm.p99);
    row.extra.insert("calm_disturbed".to_owned(), calm.disturbed);
    row.extra.insert("disturbed".to_owned(), stalled.disturbed);
    world.node.close().await?;
    Ok(row)
}

/// What spans have in common.
struct Typical {
    p50: f64,
    p99: f64,
    disturbed: f64,
}

impl Typical {
    fn of(spans: &[(f64, f64)]) -> Self {
        let (p50s, p99s): (Vec<_>, Vec<_>) = spans.iter().copied().unzip();
        let p99 = median(p99s.clone());
        let disturbed = p99s.iter().filter(|one| **one > 2.0 * p99).count();
        Self { p50: median(p50s), p99, disturbed: precise(disturbed as u64) / precise(p99s.len() as u64) }
    }
}
