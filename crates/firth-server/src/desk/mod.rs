//! The delivery desk: for HTTP clients that cannot hold a consumer, the server holds one per topic and group.
//!
//! A delivery that was handed out lies on the desk until it is settled by its handle, or its lease runs out and it is tried again. It is put there
//! before anything else is awaited, so a client that hangs up loses nothing: what it had not seen, and everything of a stream, goes back without
//! costing an attempt. A handle is good for one ownership of the partition: after another consumer took over, settling answers `Fenced`.
//!
//! Bounded: [`MAX_COUNTERS`] pairs of topic and group, each with at most [`MAX_UNSETTLED`] deliveries per partition (the consumer stops there). A pair
//! that nobody uses leaves its group after [`IDLE`]. No lock of the map is held while a group is joined or left, so that settling never waits for that.

mod clients;
mod counter;
mod policy;
mod stream;

pub(crate) use clients::Client;
pub(crate) use counter::Verdict;
pub(crate) use stream::Stream;

use crate::handle::Handles;
use crate::telemetry::Telemetry;
use crate::wire::{ClientShown, GroupPolicy, SERVER_MEMBER};
use counter::{Basket, Counter};
use firth::{Broker, Consumer, Delivery, Error, ErrorKind, Result};
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The most pairs of topic and group that are served at a time.
const MAX_COUNTERS: usize = 1024;
/// The most unsettled deliveries of one partition and group.
const MAX_UNSETTLED: usize = 500;
/// A counter that nobody used for this long, and without unsettled deliveries, leaves its group.
const IDLE: Duration = Duration::from_secs(60);
/// How often deadlines are looked at.
const TICK: Duration = Duration::from_millis(50);
/// How long a fetch waits for company of its first delivery.
const GATHER: Duration = Duration::from_millis(5);
/// How much longer the first fetch may take, which joins the group.
const JOIN: Duration = Duration::from_secs(20);

type Place = (String, String);

/// All counters; clones share them.
#[derive(Clone)]
pub(crate) struct Desk(Arc<Shared>);

struct Shared {
    broker: Broker,
    telemetry: Telemetry,
    closing: CancellationToken,
    counters: Mutex<HashMap<Place, Arc<Counter>>>,
    handles: Handles,
    /// Held while groups are left for the sake of their policy.
    policies: tokio::sync::Mutex<()>,
}

impl Desk {
    /// An empty desk, and the tasks that watch deadlines and policies, which end after [`close`](Self::close).
    pub(crate) fn open(broker: Broker, telemetry: Telemetry) -> Self {
        let closing = CancellationToken::new();
        let (counters, handles, policies) = (Mutex::default(), Handles::new(), tokio::sync::Mutex::default());
        let desk = Self(Arc::new(Shared { broker, telemetry, closing, counters, handles, policies }));
        tokio::spawn(desk.clone().watch());
        tokio::spawn(desk.clone().follow_policies());
        desk
    }

    /// Up to `max` deliveries; waits up to `wait` for the first. `show` sees each with its handle.
    pub(crate) async fn fetch<T>(
        &self,
        place: (&str, &str),
        client: Client,
        (max, wait, lease): (usize, Duration, Duration),
        mut show: impl FnMut(String, &Delivery) -> T,
    ) -> Result<Vec<T>> {
        let until = Instant::now() + wait;
        let counter = self.counter(place)?;
        let using = counter.enter(client);
        let (mut shown, mut basket, mut damaged) = (Vec::new(), Basket::new(&counter), None);
        let fetching = async {
            let mut seat = counter.consumer.lock().await;
            let consumer = self.join(place, &counter, &mut seat).await?;
            let until = until.max(Instant::now() + GATHER);
            while shown.len() < max {
                let patience = if shown.is_empty() { until } else { Instant::now() + GATHER };
                // Nothing is awaited between taking a delivery and putting it on the desk.
                let Ok(next) = tokio::time::timeout_at(patience, consumer.next()).await else { break };
                let delivery = match next {
                    // Others may still deliver; what is wrong is told below.
                    Some(Err(error)) if error.kind() == ErrorKind::Corrupt => break,
                    next => next.transpose()?,
                };
                let Some(delivery) = delivery else { break };
                let number = counter.number();
                shown.push(show(self.handle(number), &delivery));
                counter.hold(number, Instant::now() + lease, delivery, (&using.client, None));
                basket.put(number);
            }
            if shown.is_empty() {
                damaged = consumer.handle().damaged();
            }
            Ok(())
        };
        // Others may be waiting for a delivery in front of this one. Joining takes the time that it takes.
        let patience = match counter.joined.load(Ordering::Acquire) {
            true => until.max(Instant::now() + 2 * GATHER),
            false => until + JOIN,
        };
        let outcome: Result<()> = tokio::select! {
            outcome = tokio::time::timeout_at(patience, fetching) => outcome.unwrap_or(Ok(())),
            () = counter.closing.cancelled() => Ok(()),
        };
        match outcome {
            Err(error) if error.kind() != ErrorKind::Closed || !counter.closing.is_cancelled() => {
                self.discard(&counter);
                return Err(error);
            }
            // The group was left while this fetch was about to join it: as if it had waited already.
            _ => {}
        }
        basket.hand_over();
        damaged.map_or(Ok(shown), Err)
    }

    /// Deliveries as they come, at most `max` unsettled at a time.
    pub(crate) async fn stream(
        &self,
        place: (&str, &str),
        client: Client,
        (max, lease): (usize, Duration),
    ) -> Result<Stream> {
        let counter = self.counter(place)?;
        let using = counter.enter(client);
        let joined = async {
            let mut seat = counter.consumer.lock().await;
            self.join(place, &counter, &mut seat).await.map(|_| ())
        };
        if let Err(error) = joined.await {
            self.discard(&counter);
            return Err(error);
        }
        Ok(Stream::new(self.clone(), counter, using, max, lease))
    }

    /// Notes a verdict at once; the answer says when it is stored.
    pub(crate) fn settle(
        &self,
        place: (&str, &str),
        handle: &str,
        verdict: Verdict,
    ) -> Result<Option<firth::Settled>> {
        let (counter, number) = self.find(place, handle)?;
        counter.settle(number, verdict, &self.0.telemetry)
    }

    /// More time for a delivery.
    pub(crate) fn extend(&self, place: (&str, &str), handle: &str, lease: Duration) -> Result<()> {
        let (counter, number) = self.find(place, handle)?;
        counter.extend(number, Instant::now() + lease)
    }

    /// Leaves every group of a topic, or one of them, before it is deleted.
    pub(crate) async fn leave(&self, topic: &str, group: Option<&str>) {
        let is_meant = |place: &Place| place.0 == topic && group.is_none_or(|group| place.1 == group);
        let gone: Vec<_> = self.counters().extract_if(|place, _| is_meant(place)).collect();
        close_all(gone.into_iter().map(|(_, counter)| counter)).await;
    }

    /// The member that this server is in a group, and who consumes through it.
    pub(crate) fn clients(&self, place: (&str, &str)) -> Option<(String, Vec<ClientShown>)> {
        self.counters().get(&owned(place))?.clients()
    }

    /// How a group that is consumed here treats failures.
    pub(crate) async fn policy(&self, place: (&str, &str)) -> Result<GroupPolicy> {
        policy::get(&self.0.broker, place).await
    }

    /// Changes it, or goes back to the defaults; the group is left here, so that the next fetch joins under the new one.
    pub(crate) async fn set_policy(&self, place: (&str, &str), policy: Option<&GroupPolicy>) -> Result<()> {
        let _alone = self.0.policies.lock().await;
        match policy {
            Some(policy) => policy::set(&self.0.broker, place, policy).await?,
            None => self.forget_policies(place.0, Some(place.1)).await?,
        }
        self.leave(place.0, Some(place.1)).await;
        Ok(())
    }

    /// Forgets what was set for a group, or for all groups of a topic.
    pub(crate) async fn forget_policies(&self, topic: &str, group: Option<&str>) -> Result<()> {
        policy::forget(&self.0.broker, topic, group).await
    }

    /// Ends waiting fetches and streams at once; settling goes on until [`close`](Self::close).
    pub(crate) fn stop_fetching(&self) {
        self.0.closing.cancel();
    }

    /// Gives everything unsettled back and leaves every group.
    pub(crate) async fn close(&self) {
        self.0.closing.cancel();
        let counters = std::mem::take(&mut *self.counters());
        close_all(counters.into_values()).await;
    }

    fn counters(&self) -> MutexGuard<'_, HashMap<Place, Arc<Counter>>> {
        self.0.counters.lock().expect("nothing panics under this lock")
    }

    fn counter(&self, place: (&str, &str)) -> Result<Arc<Counter>> {
        if self.0.closing.is_cancelled() {
            return Err(Error::new(ErrorKind::Closed, "the server is shutting down: try again in a moment"));
        }
        let mut counters = self.counters();
        if let Some(counter) = counters.get(&owned(place)) {
            return Ok(counter.clone());
        }
        if counters.len() >= MAX_COUNTERS {
            let why = format!("at most {MAX_COUNTERS} pairs of topic and group are consumed here at a time");
            return Err(Error::new(ErrorKind::Overloaded, why));
        }
        let counter = Arc::new(Counter::new(self.0.closing.child_token()));
        counters.insert(owned(place), counter.clone());
        Ok(counter)
    }

    /// The consumer of a counter, which joins its group at first use.
    async fn join<'s>(
        &self,
        place: (&str, &str),
        counter: &Counter,
        seat: &'s mut Option<Consumer>,
    ) -> Result<&'s mut Consumer> {
        if counter.closing.is_cancelled() {
            return Err(Error::new(ErrorKind::Closed, "the group was left here just now: try again"));
        }
        let consumer = match seat.take() {
            Some(consumer) => consumer,
            None => {
                let consumer = self.0.broker.consumer(place.0, place.1).name(SERVER_MEMBER);
                let consumer = consumer.max_in_flight(MAX_UNSETTLED).concurrency(MAX_UNSETTLED);
                let policy = policy::get(&self.0.broker, place).await?;
                let consumer = consumer.retry(policy.retry()).ordering(policy.ordering());
                counter.follow(policy);
                consumer.lease(Duration::from_secs(5)).drain(Duration::from_secs(5)).await?
            }
        };
        counter.named(consumer.handle().name());
        counter.joined.store(true, Ordering::Release);
        Ok(seat.insert(consumer))
    }

    /// The consumer is at its end (its topic is gone, say), or never began: the next one makes a new one.
    fn discard(&self, counter: &Arc<Counter>) {
        let mut counters = self.counters();
        counters.retain(|_, other| !Arc::ptr_eq(other, counter));
        drop(counters);
        if !counter.is_unused() {
            counter.closing.cancel();
        }
        let counter = counter.clone();
        tokio::spawn(async move { counter.close().await });
    }

    fn find(&self, place: (&str, &str), handle: &str) -> Result<(Arc<Counter>, u64)> {
        let counter = self.counters().get(&owned(place)).cloned();
        counter.zip(self.0.handles.read(handle)).ok_or_else(|| {
            let why =
                "no such delivery is waiting here: it is settled, or its lease ran out and it comes again";
            Error::new(ErrorKind::NotFound, why)
        })
    }

    async fn watch(self) {
        let mut ticks = tokio::time::interval(TICK);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = self.0.closing.cancelled() => return,
            }
            let now = Instant::now();
            let mut counters = self.counters();
            let idle: Vec<_> = counters.extract_if(|_, counter| counter.is_idle(now, IDLE)).collect();
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

    /// Leaves groups whose policy another server changed, so that the next fetch joins under the new one.
    async fn follow_policies(self) {
        let mut watch = policy::Watch::new(&self.0.broker);
        loop {
            let changed = tokio::select! {
                changed = watch.changed() => changed,
                () = self.0.closing.cancelled() => return,
            };
            match changed {
                Ok(policies) => self.leave_outdated(&policies).await,
                Err(error) => {
                    tracing::debug!(%error, "cannot look at the groups' policies");
                    tokio::time::sleep(TICK).await;
                }
            }
        }
    }

    async fn leave_outdated(&self, policies: &HashMap<String, GroupPolicy>) {
        let followed = |place: &Place| self.counters().get(place).and_then(|counter| counter.followed());
        let places: Vec<_> = self.counters().keys().cloned().collect();
        for place in places {
            let known = policies.get(&policy::name((&place.0, &place.1))).cloned().unwrap_or_default();
            if followed(&place).is_none_or(|followed| followed == known) {
                continue;
            }
            // It may have been changed and joined again since: nobody is sent away for old news.
            let _alone = self.0.policies.lock().await;
            let now = policy::get(&self.0.broker, (&place.0, &place.1)).await;
            if followed(&place).is_some_and(|followed| now.is_ok_and(|now| followed != now)) {
                self.leave(&place.0, Some(&place.1)).await;
            }
        }
    }

    fn handle(&self, number: u64) -> String {
        self.0.handles.write(number)
    }
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
