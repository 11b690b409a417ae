//! Delivery leases: the server holds a consumer per topic and group for HTTP clients, which cannot
//! hold one.
//!
//! The server leases a delivery to a client until the client settles it by its handle. If the lease
//! ends first, the group tries the record again. The server notes the lease before it awaits
//! anything else, so a client that hangs up loses nothing. What the client had not seen, and
//! everything of a stream, goes back without costing an attempt. A handle is valid for one
//! ownership of the partition: after another consumer took over, settling answers `Fenced`.
//!
//! Bounded: [`MAX_GROUPS`] pairs of topic and group, each with at most [`MAX_UNSETTLED`]
//! deliveries per partition (the consumer stops there). If no client uses a pair for [`IDLE`], the
//! server leaves its group. The server holds no lock of the map while it joins or leaves a group,
//! so settling never waits for that.

mod clients;
mod group;
mod policy;
mod stream;

pub(crate) use clients::LeaseClient;
pub(crate) use group::LeaseVerdict;
pub(crate) use stream::DeliveryStream;

use crate::handle::Handles;
use crate::telemetry::Telemetry;
use crate::wire::{ClientShown, GroupPolicy, InFlightShown, SERVER_MEMBER};
use firth::{Broker, Consumer, Delivery, Error, ErrorKind, Result};
use group::{GroupLeases, Unshown};
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The most pairs of topic and group that are served at a time.
const MAX_GROUPS: usize = 1024;
/// The most unsettled deliveries of one partition and group.
const MAX_UNSETTLED: usize = 500;
/// If no client uses a group for this long, and it has no unsettled deliveries, the server leaves
/// it.
const IDLE: Duration = Duration::from_secs(60);
/// How often deadlines are looked at.
const TICK: Duration = Duration::from_millis(50);
/// How long a fetch waits for company of its first delivery.
const GATHER: Duration = Duration::from_millis(5);
/// How much longer the first fetch may take, which joins the group.
const JOIN: Duration = Duration::from_secs(20);

type TopicGroup = (String, String);

/// All groups; clones share them.
#[derive(Clone)]
pub(crate) struct DeliveryLeases(Arc<LeasesShared>);

struct LeasesShared {
    broker: Broker,
    telemetry: Telemetry,
    /// What kind of program this is, as members of groups tell it.
    kind: &'static str,
    closing: CancellationToken,
    groups: Mutex<HashMap<TopicGroup, Arc<GroupLeases>>>,
    handles: Handles,
    /// Locked while the server leaves groups because their policy changed.
    policies: tokio::sync::Mutex<()>,
}

impl DeliveryLeases {
    /// No leases yet, and the tasks that watch deadlines and policies, which end after
    /// [`close`](Self::close).
    pub(crate) fn open(broker: Broker, telemetry: Telemetry, kind: &'static str) -> Self {
        let closing = CancellationToken::new();
        let groups = Mutex::default();
        let handles = Handles::new();
        let policies = tokio::sync::Mutex::default();
        let leases =
            Self(Arc::new(LeasesShared { broker, telemetry, kind, closing, groups, handles, policies }));
        tokio::spawn(leases.clone().watch());
        tokio::spawn(leases.clone().follow_policies());
        leases
    }

    /// Up to `max` deliveries; waits up to `wait` for the first. `show` sees each with its handle.
    pub(crate) async fn fetch<T>(
        &self,
        pair: (&str, &str),
        client: LeaseClient,
        (max, wait, lease): (usize, Duration, Duration),
        mut show: impl FnMut(String, &Delivery) -> T,
    ) -> Result<Vec<T>> {
        let until = Instant::now() + wait;
        let group = self.group(pair)?;
        let using = group.enter(client);
        let mut shown = Vec::new();
        let mut unshown = Unshown::new(&group);
        let mut damaged = None;
        let fetching = async {
            let mut slot = group.consumer.lock().await;
            let consumer = self.join(pair, &group, &mut slot).await?;
            let until = until.max(Instant::now() + GATHER);
            while shown.len() < max {
                let patience = if shown.is_empty() { until } else { Instant::now() + GATHER };
                // Nothing is awaited between taking a delivery and noting its lease.
                let Ok(next) = tokio::time::timeout_at(patience, consumer.next()).await else { break };
                let delivery = match next {
                    // Others may still deliver; what is wrong is told below.
                    Some(Err(error)) if error.kind() == ErrorKind::Corrupt => break,
                    next => next.transpose()?,
                };
                let Some(delivery) = delivery else { break };
                let number = group.number();
                shown.push(show(self.handle(number), &delivery));
                group.hold(number, Instant::now() + lease, delivery, (&using.client, None));
                unshown.put(number);
            }
            if shown.is_empty() {
                damaged = consumer.handle().damaged();
            }
            Ok(())
        };
        // Others may be waiting for a delivery in front of this one. Joining takes the time that it
        // takes.
        let patience = match group.joined.load(Ordering::Acquire) {
            true => until.max(Instant::now() + 2 * GATHER),
            false => until + JOIN,
        };
        let outcome: Result<()> = tokio::select! {
            outcome = tokio::time::timeout_at(patience, fetching) => outcome.unwrap_or(Ok(())),
            () = group.closing.cancelled() => Ok(()),
        };
        match outcome {
            Err(error) if error.kind() != ErrorKind::Closed || !group.closing.is_cancelled() => {
                self.discard(&group);
                return Err(error);
            }
            // The group was left while this fetch was about to join it: as if it had waited
            // already.
            _ => {}
        }
        unshown.hand_over();
        damaged.map_or(Ok(shown), Err)
    }

    /// Deliveries as they come, at most `max` unsettled at a time.
    pub(crate) async fn stream(
        &self,
        pair: (&str, &str),
        client: LeaseClient,
        (max, lease): (usize, Duration),
    ) -> Result<DeliveryStream> {
        let group = self.group(pair)?;
        let using = group.enter(client);
        let joined = async {
            let mut slot = group.consumer.lock().await;
            self.join(pair, &group, &mut slot).await.map(|_| ())
        };
        if let Err(error) = joined.await {
            self.discard(&group);
            return Err(error);
        }
        Ok(DeliveryStream::new(self.clone(), group, using, max, lease))
    }

    /// Notes a verdict at once; the answer says when it is stored.
    pub(crate) fn settle(
        &self,
        pair: (&str, &str),
        handle: &str,
        verdict: LeaseVerdict,
    ) -> Result<Option<firth::Settled>> {
        let (group, number) = self.find(pair, handle)?;
        group.settle(number, verdict, &self.0.telemetry)
    }

    /// More time for a delivery.
    pub(crate) fn extend(&self, pair: (&str, &str), handle: &str, lease: Duration) -> Result<()> {
        let (group, number) = self.find(pair, handle)?;
        group.extend(number, Instant::now() + lease)
    }

    /// Leaves every group of a topic, or one of them, before it is deleted.
    pub(crate) async fn leave(&self, topic: &str, group: Option<&str>) {
        let is_meant = |pair: &TopicGroup| pair.0 == topic && group.is_none_or(|group| pair.1 == group);
        let gone: Vec<_> = self.groups().extract_if(|pair, _| is_meant(pair)).collect();
        close_all(gone.into_iter().map(|(_, group)| group)).await;
    }

    /// The member that this server is in a group, and who consumes through it.
    pub(crate) fn clients(&self, pair: (&str, &str)) -> Option<(String, Vec<ClientShown>)> {
        self.groups().get(&owned(pair))?.clients()
    }

    /// Deliveries of a group that clients of this server have not settled.
    pub(crate) fn in_flight(&self, pair: (&str, &str), max: usize) -> (usize, Vec<InFlightShown>) {
        let group = self.groups().get(&owned(pair)).cloned();
        group.map(|group| group.in_flight(Instant::now(), max)).unwrap_or_default()
    }

    /// How many deliveries of each group clients of this server have settled, and for how long they
    /// had them.
    pub(crate) fn handled(&self) -> HashMap<TopicGroup, (u64, Duration)> {
        self.groups().iter().map(|(pair, group)| (pair.clone(), group.handled())).collect()
    }

    /// How a group that is consumed here treats failures.
    pub(crate) async fn policy(&self, pair: (&str, &str)) -> Result<GroupPolicy> {
        policy::get(&self.0.broker, pair).await
    }

    /// Changes it, or goes back to the defaults; the group is left here, so that the next fetch
    /// joins under the new one.
    pub(crate) async fn set_policy(&self, pair: (&str, &str), policy: Option<&GroupPolicy>) -> Result<()> {
        let _alone = self.0.policies.lock().await;
        match policy {
            Some(policy) => policy::set(&self.0.broker, pair, policy).await?,
            None => self.forget_policies(pair.0, Some(pair.1)).await?,
        }
        self.leave(pair.0, Some(pair.1)).await;
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
        let groups = std::mem::take(&mut *self.groups());
        close_all(groups.into_values()).await;
    }

    fn groups(&self) -> MutexGuard<'_, HashMap<TopicGroup, Arc<GroupLeases>>> {
        self.0.groups.lock().expect("nothing panics under this lock")
    }

    fn group(&self, pair: (&str, &str)) -> Result<Arc<GroupLeases>> {
        if self.0.closing.is_cancelled() {
            return Err(Error::new(ErrorKind::Closed, "the server is shutting down: try again in a moment"));
        }
        let mut groups = self.groups();
        if let Some(group) = groups.get(&owned(pair)) {
            return Ok(group.clone());
        }
        if groups.len() >= MAX_GROUPS {
            let why = format!("at most {MAX_GROUPS} pairs of topic and group are consumed here at a time");
            return Err(Error::new(ErrorKind::Overloaded, why));
        }
        let group = Arc::new(GroupLeases::new(self.0.closing.child_token()));
        groups.insert(owned(pair), group.clone());
        Ok(group)
    }

    /// The consumer of a group, which joins it at first use.
    async fn join<'s>(
        &self,
        pair: (&str, &str),
        group: &GroupLeases,
        slot: &'s mut Option<Consumer>,
    ) -> Result<&'s mut Consumer> {
        if group.closing.is_cancelled() {
            return Err(Error::new(ErrorKind::Closed, "the group was left here just now: try again"));
        }
        let consumer = match slot.take() {
            Some(consumer) => consumer,
            None => {
                let consumer = self.0.broker.consumer(pair.0, pair.1).name(SERVER_MEMBER).kind(self.0.kind);
                let consumer = consumer.max_in_flight(MAX_UNSETTLED).concurrency(MAX_UNSETTLED);
                let policy = policy::get(&self.0.broker, pair).await?;
                let consumer = consumer.retry(policy.retry()).ordering(policy.ordering());
                group.follow(policy);
                consumer.lease(Duration::from_secs(5)).drain(Duration::from_secs(5)).await?
            }
        };
        group.named(consumer.handle().name());
        group.joined.store(true, Ordering::Release);
        Ok(slot.insert(consumer))
    }

    /// The consumer is at its end (its topic is gone, say), or never began: the next one makes a
    /// new one.
    fn discard(&self, group: &Arc<GroupLeases>) {
        let mut groups = self.groups();
        groups.retain(|_, other| !Arc::ptr_eq(other, group));
        drop(groups);
        if !group.is_unused() {
            group.closing.cancel();
        }
        let group = group.clone();
        tokio::spawn(async move { group.close().await });
    }

    fn find(&self, pair: (&str, &str), handle: &str) -> Result<(Arc<GroupLeases>, u64)> {
        let group = self.groups().get(&owned(pair)).cloned();
        group.zip(self.0.handles.read(handle)).ok_or_else(|| {
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
            let mut groups = self.groups();
            let idle: Vec<_> = groups.extract_if(|_, group| group.is_idle(now, IDLE)).collect();
            let busy: Vec<_> = groups.values().cloned().collect();
            drop(groups);
            for group in busy {
                group.expire(now);
            }
            if !idle.is_empty() {
                tokio::spawn(close_all(idle.into_iter().map(|(_, group)| group)));
            }
        }
    }

    /// Leaves groups whose policy another server changed, so that the next fetch joins under the
    /// new one.
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
        let followed = |pair: &TopicGroup| self.groups().get(pair).and_then(|group| group.followed());
        let pairs: Vec<_> = self.groups().keys().cloned().collect();
        for pair in pairs {
            let known = policies.get(&policy::name((&pair.0, &pair.1))).cloned().unwrap_or_default();
            if followed(&pair).is_none_or(|followed| followed == known) {
                continue;
            }
            // Read the policy again under the lock: the server may have joined again since, under
            // the newest policy, and must stay then.
            let _alone = self.0.policies.lock().await;
            let now = policy::get(&self.0.broker, (&pair.0, &pair.1)).await;
            if followed(&pair).is_some_and(|followed| now.is_ok_and(|now| followed != now)) {
                self.leave(&pair.0, Some(&pair.1)).await;
            }
        }
    }

    fn handle(&self, number: u64) -> String {
        self.0.handles.write(number)
    }
}

async fn close_all(groups: impl IntoIterator<Item = Arc<GroupLeases>>) {
    let mut closing = tokio::task::JoinSet::new();
    for group in groups {
        closing.spawn(async move { group.close().await });
    }
    closing.join_all().await;
}

fn owned(pair: (&str, &str)) -> TopicGroup {
    (pair.0.to_owned(), pair.1.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// The client hangs up when the server has taken a delivery for it, and waits for company.
    #[tokio::test(start_paused = true)]
    async fn t06_a_fetch_that_is_dropped_half_way_gives_back_what_it_took() {
        const LONG: Duration = Duration::from_secs(3600);
        let broker = Broker::memory();
        broker.create_topic("jobs").await.unwrap();
        broker.producer("jobs").await.unwrap().send("one").await.unwrap();
        let leases = DeliveryLeases::open(broker, Telemetry::default(), "test");
        let client = || LeaseClient { name: None, address: None, kind: "fetch" };
        let has_taken = Cell::new(false);
        let taken = async {
            while !has_taken.get() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::select! {
            _ = leases.fetch(("jobs", "g"), client(), (2, LONG, LONG), |_, _| has_taken.set(true)) => {
                panic!("it has one of two");
            }
            () = taken => {}
        }
        let again =
            leases.fetch(("jobs", "g"), client(), (1, GATHER, LONG), |_, delivery| delivery.attempt());
        assert_eq!(again.await.unwrap(), [1]);
        leases.close().await;
    }
}
