//! firth itself: the whole library with handlers and metrics, as a program would use it.

use super::meter::Meter;
use super::place::Place;
use super::subject::{Pace, Subject};
use super::workload::PAYLOAD;
use anyhow::{Context, Result};
use bytes::Bytes;
use firth::{Broker, Message, Nack, RetryPolicy};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

pub(crate) const TOPIC: &str = "bench";
pub(crate) const GROUP: &str = "group";
/// Messages without an answer.
const WINDOW: usize = 8192;
/// One message in this many fails at its first attempt, where failures are asked for.
const FAILS: u64 = 20;

pub(crate) struct Firth {
    broker: Broker,
    fails: bool,
    /// One message in this many is sent beyond what is counted.
    beyond: Option<u64>,
}

impl Firth {
    /// A topic with a group that reads it from its start.
    pub(crate) async fn open(place: &Place, partitions: u32) -> Result<Self> {
        let broker = Broker::connect(&place.url()).await.context("open the engine")?;
        broker.create_topic(TOPIC).partitions(partitions).await?;
        broker.admin().create_group(TOPIC, GROUP, firth::StartAt::Oldest).await?;
        Ok(Self { broker, fails: false, beyond: None })
    }

    /// The same with handlers of which every twentieth fails once, or none. Some messages are sent
    /// beyond the goal, so that there is work while the last failures wait for their time.
    pub(crate) fn failing(self, fails: bool) -> Self {
        Self { fails, beyond: Some(50), ..self }
    }

    pub(crate) fn broker(&self) -> &Broker {
        &self.broker
    }

    pub(crate) async fn close(self) -> Result<()> {
        Ok(self.broker.close().await?)
    }
}

impl Subject for Firth {
    async fn produce(&self, meter: &Arc<Meter>, pace: Pace, counts: bool) -> Result<()> {
        let producer = self.broker.producer(TOPIC).await?;
        let payload = Bytes::from(vec![b'x'; PAYLOAD]);
        let mut pending = VecDeque::with_capacity(WINDOW);
        let count = |answers: u64| counts.then(|| meter.add(answers));
        let mut ticks = match pace {
            Pace::Full => None,
            Pace::Every(every) => Some(tokio::time::interval(every)),
        };
        for _ in 0..meter.goal() + self.beyond.map_or(0, |share| meter.goal() / share) {
            let message = match &mut ticks {
                None => Message::new(payload.clone()),
                Some(ticks) => {
                    ticks.tick().await;
                    Message::new(meter.stamped())
                }
            };
            if pending.len() == WINDOW {
                let first: firth::SendFuture = pending.pop_front().context("the window is full")?;
                first.await?;
                count(1);
            }
            pending.push_back(producer.enqueue(message).await?);
        }
        for sending in pending {
            sending.await?;
            count(1);
        }
        producer.close().await?;
        Ok(())
    }

    async fn consume(&self, meter: &Arc<Meter>, stamped: bool) -> Result<()> {
        let done = Arc::new(Notify::new());
        let fails = self.fails;
        let consumer =
            self.broker.consumer(TOPIC, GROUP).retry(RetryPolicy::fixed(5, Duration::from_millis(100)));
        let finished = done.clone();
        let meter = meter.clone();
        let handler = move |record: firth::Record| {
            let done = done.clone();
            let meter = meter.clone();
            async move {
                if fails && record.attempt() == 1 && record.id().seq.is_multiple_of(FAILS) {
                    return Err(Nack::retry("asked for"));
                }
                if stamped {
                    meter.sample(record.payload());
                }
                if meter.add(1) {
                    done.notify_one();
                }
                Ok(())
            }
        };
        consumer.await?.run(handler).until(async move { finished.notified().await }).await?;
        Ok(())
    }
}

/// Counts as `firth serve` does, so that figures hold the price of metrics.
pub(crate) fn count_metrics() -> Result<()> {
    use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
    let buckets = |builder: PrometheusBuilder, suffix: &str, bounds: &[f64]| {
        builder.set_buckets_for_metric(Matcher::Suffix(suffix.to_owned()), bounds)
    };
    let builder = buckets(
        PrometheusBuilder::new(),
        "_seconds",
        &[0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0],
    )?;
    let recorder = buckets(builder, "_records", &[1.0, 10.0, 100.0, 1000.0])?.build_recorder();
    let handle = recorder.handle();
    metrics::set_global_recorder(recorder).ok().context("one recorder per process")?;
    tokio::spawn(async move {
        let mut ticks = tokio::time::interval(Duration::from_secs(5));
        loop {
            ticks.tick().await;
            handle.run_upkeep();
        }
    });
    Ok(())
}
