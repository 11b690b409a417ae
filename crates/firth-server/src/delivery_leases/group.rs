//! One pair of topic and group: its consumer, and the leases of its unsettled deliveries.

use super::clients::{LeaseClient, LeaseClients};
use crate::telemetry::Telemetry;
use crate::wire::{ClientShown, GroupPolicy, InFlightShown, millis};
use firth::{Consumer, Delivery, Error, ErrorKind, Nack, Result};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// What to do with a delivery.
pub(crate) enum LeaseVerdict {
    Ack,
    Nack(Nack),
    /// As if it had never started.
    Release,
}

pub(super) struct GroupLeases {
    /// Cancelled when waiting fetches and streams must end.
    pub(super) closing: CancellationToken,
    /// `None` until the server joins the group, and after it leaves. A call that waits for a
    /// delivery holds the lock: first come, first served.
    pub(super) consumer: tokio::sync::Mutex<Option<Consumer>>,
    /// Whether the group was joined once.
    pub(super) joined: AtomicBool,
    /// The policy that the group was joined under, and the name of the member.
    policy: Mutex<Option<GroupPolicy>>,
    member: Mutex<Option<String>>,
    held: Mutex<LeaseTable>,
    /// How many deliveries were settled, and for how many microseconds clients had them.
    handled: AtomicU64,
    handled_us: AtomicU64,
}

struct LeaseTable {
    next: u64,
    /// Fetches and streams under way.
    users: usize,
    last_use: Instant,
    /// No delivery is overdue before this.
    soonest: Option<Instant>,
    deliveries: HashMap<u64, LeasedDelivery>,
    clients: LeaseClients,
}

struct LeasedDelivery {
    deadline: Instant,
    since: SystemTime,
    delivery: Delivery,
    client: Arc<LeaseClient>,
    /// The stream that it was given to.
    stream: Option<Arc<StreamLoad>>,
}

/// How many deliveries of a stream are unsettled.
#[derive(Default)]
pub(crate) struct StreamLoad {
    unsettled: AtomicUsize,
    pub(super) changed: Notify,
    /// Cancelled when a lease of it ran out.
    pub(super) asleep: CancellationToken,
}

impl StreamLoad {
    pub(super) fn unsettled(&self) -> usize {
        self.unsettled.load(Ordering::Acquire)
    }
}

impl LeasedDelivery {
    fn leave(self) -> (Delivery, SystemTime) {
        if let Some(load) = &self.stream {
            load.unsettled.fetch_sub(1, Ordering::AcqRel);
            load.changed.notify_one();
        }
        (self.delivery, self.since)
    }
}

impl GroupLeases {
    pub(super) fn new(closing: CancellationToken) -> Self {
        let held = LeaseTable {
            next: 0,
            users: 0,
            last_use: Instant::now(),
            soonest: None,
            deliveries: HashMap::new(),
            clients: LeaseClients::default(),
        };
        let joined = AtomicBool::new(false);
        let consumer = tokio::sync::Mutex::new(None);
        Self {
            closing,
            consumer,
            joined,
            policy: Mutex::default(),
            member: Mutex::default(),
            held: Mutex::new(held),
            handled: AtomicU64::new(0),
            handled_us: AtomicU64::new(0),
        }
    }

    /// How many deliveries were settled, and for how long clients had them.
    pub(super) fn handled(&self) -> (u64, Duration) {
        let took = Duration::from_micros(self.handled_us.load(Ordering::Relaxed));
        (self.handled.load(Ordering::Relaxed), took)
    }

    /// The group is joined under this policy.
    pub(super) fn follow(&self, policy: GroupPolicy) {
        *self.policy.lock().expect("nothing panics under this lock") = Some(policy);
    }

    /// The policy that the group was joined under, if it was.
    pub(super) fn followed(&self) -> Option<GroupPolicy> {
        self.policy.lock().expect("nothing panics under this lock").clone()
    }

    /// The group was joined under this name.
    pub(super) fn named(&self, member: &str) {
        *self.member.lock().expect("nothing panics under this lock") = Some(member.to_owned());
    }

    /// The member that this is, and who consumes through it.
    pub(super) fn clients(&self) -> Option<(String, Vec<ClientShown>)> {
        let member = self.member.lock().expect("nothing panics under this lock").clone()?;
        let held = self.lock();
        let holders = held.deliveries.values().map(|leased| &leased.client);
        Some((member, held.clients.show(Instant::now(), holders)))
    }

    /// The `max` oldest deliveries that are not settled, with the clients that have them, and how
    /// many there are in all.
    pub(super) fn in_flight(&self, now: Instant, max: usize) -> (usize, Vec<InFlightShown>) {
        let member = self.member.lock().expect("nothing panics under this lock").clone();
        let held = self.lock();
        let mut oldest: Vec<_> = held.deliveries.values().collect();
        let total = oldest.len();
        if total > max {
            oldest.select_nth_unstable_by_key(max, |leased| leased.since);
            oldest.truncate(max);
        }
        let shown = oldest.into_iter().map(|leased| InFlightShown {
            partition: leased.delivery.record().partition(),
            id: leased.delivery.record().id().to_string(),
            attempt: leased.delivery.record().attempt(),
            age_ms: millis(leased.since.elapsed().unwrap_or_default()),
            remaining_ms: Some(millis(leased.deadline.saturating_duration_since(now))),
            member: member.clone(),
            client: leased.client.name.clone(),
            address: leased.client.address.map(|address| address.to_string()),
            kind: leased.client.kind.to_owned(),
        });
        (total, shown.collect())
    }

    fn lock(&self) -> MutexGuard<'_, LeaseTable> {
        self.held.lock().expect("nothing panics under this lock")
    }

    /// Counts a user as long as it lives.
    pub(super) fn enter(self: &Arc<Self>, client: LeaseClient) -> UseGuard {
        let client = Arc::new(client);
        let mut held = self.lock();
        held.users += 1;
        held.clients.begin(&client, Instant::now());
        UseGuard { group: self.clone(), client }
    }

    pub(super) fn number(&self) -> u64 {
        let mut held = self.lock();
        held.next += 1;
        held.next
    }

    pub(super) fn hold(
        &self,
        number: u64,
        deadline: Instant,
        delivery: Delivery,
        (client, stream): (&Arc<LeaseClient>, Option<&Arc<StreamLoad>>),
    ) {
        if let Some(load) = stream {
            load.unsettled.fetch_add(1, Ordering::AcqRel);
        }
        let client = client.clone();
        let stream = stream.cloned();
        let leased = LeasedDelivery { deadline, since: SystemTime::now(), delivery, client, stream };
        let mut held = self.lock();
        held.soonest = Some(held.soonest.map_or(deadline, |soonest| soonest.min(deadline)));
        held.deliveries.insert(number, leased);
    }

    fn take(&self, number: u64) -> Result<(Delivery, SystemTime)> {
        let leased = self.lock().deliveries.remove(&number);
        leased.map(LeasedDelivery::leave).ok_or_else(not_here)
    }

    pub(super) fn holds(&self, number: u64) -> bool {
        self.lock().deliveries.contains_key(&number)
    }

    /// Notes a verdict; the answer says when it is stored.
    pub(super) fn settle(
        &self,
        number: u64,
        verdict: LeaseVerdict,
        telemetry: &Telemetry,
    ) -> Result<Option<firth::Settled>> {
        let (delivery, since) = self.take(number)?;
        let outcome = match &verdict {
            LeaseVerdict::Ack => "ack",
            LeaseVerdict::Nack(_) => "nack",
            LeaseVerdict::Release => "release",
        };
        telemetry.processed(delivery.record(), since, outcome);
        if !matches!(verdict, LeaseVerdict::Release) {
            let took = since.elapsed().unwrap_or_default();
            self.handled.fetch_add(1, Ordering::Relaxed);
            self.handled_us.fetch_add(u64::try_from(took.as_micros()).unwrap_or(0), Ordering::Relaxed);
        }
        Ok(match verdict {
            LeaseVerdict::Ack => Some(delivery.ack()),
            LeaseVerdict::Nack(nack) => Some(delivery.nack(nack)),
            LeaseVerdict::Release => {
                delivery.give_back();
                None
            }
        })
    }

    /// More time for a delivery.
    pub(super) fn extend(&self, number: u64, deadline: Instant) -> Result<()> {
        let mut held = self.lock();
        held.soonest = Some(held.soonest.map_or(deadline, |soonest| soonest.min(deadline)));
        held.deliveries.get_mut(&number).map(|leased| leased.deadline = deadline).ok_or_else(not_here)
    }

    /// Gives deliveries back as if they had never started.
    pub(super) fn give_back(&self, numbers: impl IntoIterator<Item = u64>) {
        for number in numbers {
            if let Ok((delivery, _)) = self.take(number) {
                delivery.give_back();
            }
        }
    }

    pub(super) fn is_idle(&self, now: Instant, after: Duration) -> bool {
        let held = self.lock();
        held.users == 0 && held.deliveries.is_empty() && now.saturating_duration_since(held.last_use) > after
    }

    pub(super) fn is_unused(&self) -> bool {
        let held = self.lock();
        held.users <= 1 && held.deliveries.is_empty()
    }

    /// What was not settled in time is tried again, and counts as an attempt.
    pub(super) fn expire(&self, now: Instant) {
        let mut held = self.lock();
        if held.soonest.is_none_or(|soonest| soonest > now) {
            return;
        }
        let late: Vec<_> = held.deliveries.extract_if(|_, leased| leased.deadline <= now).collect();
        held.soonest = held.deliveries.values().map(|leased| leased.deadline).min();
        drop(held);
        for (_, leased) in late {
            let why = "not settled before its lease ran out";
            // The client of this stream does not settle in time. End the stream: each further
            // delivery would cost an attempt.
            if let Some(load) = &leased.stream {
                load.asleep.cancel();
            }
            // The verdict counts whether or not it is awaited.
            drop(leased.leave().0.nack(Nack::retry_after(Duration::ZERO, why)));
        }
    }

    /// Gives everything back and leaves the group.
    pub(super) async fn close(&self) {
        self.closing.cancel();
        let held = std::mem::take(&mut self.lock().deliveries);
        for leased in held.into_values() {
            leased.leave().0.give_back();
        }
        let consumer = self.consumer.lock().await.take();
        if let Some(consumer) = consumer
            && let Err(error) = consumer.close().await
        {
            tracing::debug!(%error, "a group was left without goodbye");
        }
    }
}

fn not_here() -> Error {
    let why = "no such delivery is waiting here: it is settled, or its lease ran out and it comes again";
    Error::new(ErrorKind::NotFound, why)
}

/// A fetch or a stream under way.
pub(super) struct UseGuard {
    group: Arc<GroupLeases>,
    pub(super) client: Arc<LeaseClient>,
}

impl Drop for UseGuard {
    fn drop(&mut self) {
        let mut held = self.group.lock();
        let now = Instant::now();
        held.users -= 1;
        held.last_use = now;
        held.clients.end(&self.client, now);
    }
}

/// Deliveries that were handed out but not yet shown: dropping it gives them back, without costing
/// an attempt.
pub(super) struct Unshown<'c> {
    group: &'c GroupLeases,
    numbers: Vec<u64>,
}

impl<'c> Unshown<'c> {
    pub(super) fn new(group: &'c GroupLeases) -> Self {
        Self { group, numbers: Vec::new() }
    }

    pub(super) fn put(&mut self, number: u64) {
        self.numbers.push(number);
    }

    /// They are the client's from now on.
    pub(super) fn hand_over(mut self) {
        self.numbers.clear();
    }
}

impl Drop for Unshown<'_> {
    fn drop(&mut self) {
        self.group.give_back(self.numbers.drain(..));
    }
}
