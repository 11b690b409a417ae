//! The delivery desk: for HTTP clients that cannot hold a consumer, the server holds one per topic and group.
//!
//! A fetched delivery lies on the desk until it is settled by its id, or its lease runs out and it is tried again. It is put there
//! before anything else is awaited, so a client that hangs up loses nothing. Bounded: [`MAX_COUNTERS`] pairs of topic and group, each with
//! at most [`MAX_UNSETTLED`] deliveries per partition (the consumer stops there). A pair that nobody asks for leaves its group after [`IDLE`].

use firth::{Broker, Consumer, Delivery, Error, ErrorKind, Nack, Result};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The most pairs of topic and group that are served at a time.
const MAX_COUNTERS: usize = 1024;
/// The most unsettled deliveries of one partition and group.
const MAX_UNSETTLED: usize = 500;
/// A counter without a fetch for this long, and without unsettled deliveries, leaves its group.
const IDLE: Duration = Duration::from_secs(60);
/// How often deadlines are looked at.
const TICK: Duration = Duration::from_millis(50);
/// How long a fetch waits for company of its first delivery.
const GATHER: Duration = Duration::from_millis(5);

type Place = (String, String);

/// All counters; clones share them.
#[derive(Clone)]
pub(crate) struct Desk(Arc<Shared>);

struct Shared {
    broker: Broker,
    closing: CancellationToken,
    counters: tokio::sync::Mutex<HashMap<Place, Arc<Counter>>>,
    /// Ids of an earlier life of this server never match.
    life: u64,
}

/// One pair of topic and group.
struct Counter {
    /// Cancelled when waiting fetches must end.
    closing: CancellationToken,
    consumer: tokio::sync::Mutex<Option<Consumer>>,
    held: Mutex<Held>,
}

struct Held {
    next: u64,
    last_fetch: Instant,
    deliveries: HashMap<u64, (Instant, Delivery)>,
}

/// What to do with a delivery.
pub(crate) enum Verdict {
    Ack,
    Nack(Nack),
}

impl Desk {
    /// An empty desk and the task that watches deadlines, which ends after [`close`](Self::close).
    pub(crate) fn open(broker: Broker) -> Self {
        let closing = CancellationToken::new();
        let counters = tokio::sync::Mutex::default();
        let desk = Self(Arc::new(Shared { broker, closing, counters, life: fastrand::u64(..) }));
        tokio::spawn(desk.clone().watch());
        desk
    }

    /// Up to `max` deliveries; waits up to `wait` for the first. `show` sees each with its id before it is put on the desk.
    pub(crate) async fn fetch<T>(
        &self,
        place: (&str, &str),
        (max, wait, lease): (usize, Duration, Duration),
        mut show: impl FnMut(String, &Delivery) -> T,
    ) -> Result<Vec<T>> {
        let until = Instant::now() + wait;
        let counter = self.counter(place).await?;
        let mut shown = Vec::new();
        let fetching = async {
            let mut consumer = counter.consumer.lock().await;
            while shown.len() < max {
                // Nothing is awaited between taking a delivery and putting it on the desk.
                let Some(next) = consumer.as_mut() else { return Ok(()) };
                let next = next.next();
                let delivery = match shown.is_empty() {
                    true => next.await,
                    false => match tokio::time::timeout(GATHER, next).await {
                        Ok(delivery) => delivery,
                        Err(_) => return Ok(()),
                    },
                };
                let Some(delivery) = delivery.transpose()? else { return Ok(()) };
                let number = counter.number();
                shown.push(show(self.id(number), &delivery));
                counter.hold(number, Instant::now() + lease, delivery);
            }
            Ok(())
        };
        let outcome = tokio::select! {
            outcome = fetching => outcome,
            () = tokio::time::sleep_until(until) => Ok(()),
            () = counter.closing.cancelled() => Ok(()),
        };
        counter.lock().last_fetch = Instant::now();
        if let Err(error) = outcome {
            // The consumer is at its end (its topic is gone, say): the next fetch makes a new one.
            self.0.counters.lock().await.retain(|_, other| !Arc::ptr_eq(other, &counter));
            return Err(error);
        }
        Ok(shown)
    }

    /// Stores a verdict.
    pub(crate) async fn settle(&self, place: (&str, &str), id: &str, verdict: Verdict) -> Result<()> {
        let counter = self.0.counters.lock().await.get(&owned(place)).cloned();
        let delivery = counter.zip(self.number(id)).and_then(|(counter, number)| counter.take(number));
        let delivery = delivery.ok_or_else(|| {
            let why =
                "no such delivery is waiting here: it is settled, or its lease ran out and it comes again";
            Error::new(ErrorKind::NotFound, why)
        })?;
        match verdict {
            Verdict::Ack => delivery.ack().await,
            Verdict::Nack(nack) => delivery.nack(nack).await,
        }
    }

    /// Leaves every group of a topic, before it is deleted.
    pub(crate) async fn forget(&self, topic: &str) {
        let mut counters = self.0.counters.lock().await;
        let gone: Vec<_> = counters.extract_if(|(of, _), _| of == topic).collect();
        drop(counters);
        close_all(gone.into_iter().map(|(_, counter)| counter)).await;
    }

    /// Ends waiting fetches at once; settling goes on until [`close`](Self::close).
    pub(crate) fn stop_fetching(&self) {
        self.0.closing.cancel();
    }

    /// Gives everything unsettled back and leaves every group.
    pub(crate) async fn close(&self) {
        self.0.closing.cancel();
        let counters = std::mem::take(&mut *self.0.counters.lock().await);
        close_all(counters.into_values()).await;
    }

    async fn counter(&self, place: (&str, &str)) -> Result<Arc<Counter>> {
        let mut counters = self.0.counters.lock().await;
        if self.0.closing.is_cancelled() {
            return Err(Error::new(ErrorKind::Closed, "the server is shutting down: try again in a moment"));
        }
        if let Some(counter) = counters.get(&owned(place)) {
            counter.lock().last_fetch = Instant::now();
            return Ok(counter.clone());
        }
        if counters.len() >= MAX_COUNTERS {
            let why = format!("{MAX_COUNTERS} pairs of topic and group are being fetched already");
            return Err(Error::new(ErrorKind::Overloaded, why));
        }
        let consumer = self.0.broker.consumer(place.0, place.1).name("http");
        let consumer = consumer.max_in_flight(MAX_UNSETTLED).concurrency(MAX_UNSETTLED);
        let consumer = consumer.lease(Duration::from_secs(5)).drain(Duration::from_secs(5)).await?;
        let held = Held { next: 0, last_fetch: Instant::now(), deliveries: HashMap::new() };
        let consumer = tokio::sync::Mutex::new(Some(consumer));
        let counter =
            Arc::new(Counter { closing: self.0.closing.child_token(), consumer, held: Mutex::new(held) });
        counters.insert(owned(place), counter.clone());
        Ok(counter)
    }

    async fn watch(self) {
        let mut ticks = tokio::time::interval(TICK);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = self.0.closing.cancelled() => return,
            }
            let now = Instant::now();
            let mut counters = self.0.counters.lock().await;
            let idle: Vec<_> = counters.extract_if(|_, counter| counter.is_idle(now)).collect();
            let busy: Vec<_> = counters.values().cloned().collect();
            drop(counters);
            for counter in busy {
                counter.expire(now);
            }
            if !idle.is_empty() {
                tokio::spawn(close_all(idle.into_iter().map(|(_, counter)| counter)));
            }
        }
    }

    fn id(&self, number: u64) -> String {
        format!("{:016x}.{number:x}", self.0.life)
    }

    fn number(&self, id: &str) -> Option<u64> {
        let (life, number) = id.split_once('.')?;
        let is_ours = u64::from_str_radix(life, 16).ok()? == self.0.life;
        u64::from_str_radix(number, 16).ok().filter(|_| is_ours)
    }
}

impl Counter {
    fn lock(&self) -> std::sync::MutexGuard<'_, Held> {
        self.held.lock().expect("nothing panics under this lock")
    }

    fn number(&self) -> u64 {
        let mut held = self.lock();
        held.next += 1;
        held.next
    }

    fn hold(&self, number: u64, deadline: Instant, delivery: Delivery) {
        self.lock().deliveries.insert(number, (deadline, delivery));
    }

    fn take(&self, number: u64) -> Option<Delivery> {
        self.lock().deliveries.remove(&number).map(|(_, delivery)| delivery)
    }

    fn is_idle(&self, now: Instant) -> bool {
        let held = self.lock();
        held.deliveries.is_empty() && now.saturating_duration_since(held.last_fetch) > IDLE
    }

    /// Gives back what was not settled in time.
    fn expire(&self, now: Instant) {
        let mut held = self.lock();
        let late: Vec<_> = held.deliveries.extract_if(|_, (deadline, _)| *deadline <= now).collect();
        drop(held);
        for (_, (_, delivery)) in late {
            give_back(delivery, "not settled before its lease ran out");
        }
    }

    async fn close(&self) {
        self.closing.cancel();
        let held = std::mem::take(&mut self.lock().deliveries);
        for (_, delivery) in held.into_values() {
            give_back(delivery, "the server left the group before it was settled");
        }
        let consumer = self.consumer.lock().await.take();
        if let Some(consumer) = consumer
            && let Err(error) = consumer.close().await
        {
            tracing::debug!(%error, "a group was left without goodbye");
        }
    }
}

fn give_back(delivery: Delivery, why: &str) {
    // The verdict counts whether or not it is awaited; the consumer's close waits for it.
    drop(delivery.nack(Nack::retry_after(Duration::ZERO, why)));
}

async fn close_all(counters: impl IntoIterator<Item = Arc<Counter>>) {
    let mut closing = tokio::task::JoinSet::new();
    for counter in counters {
        closing.spawn(async move { counter.close().await });
    }
    closing.join_all().await;
}

fn owned(place: (&str, &str)) -> Place {
    (place.0.to_owned(), place.1.to_owned())
}
