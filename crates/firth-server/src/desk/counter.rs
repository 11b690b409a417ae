//! One pair of topic and group on the desk: its consumer, and what lies there unsettled.

use super::clients::{Client, Clients};
use crate::telemetry::Telemetry;
use crate::wire::{ClientShown, GroupPolicy};
use firth::{Consumer, Delivery, Error, ErrorKind, Nack, Result};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::SystemTime;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// What to do with a delivery.
pub(crate) enum Verdict {
    Ack,
    Nack(Nack),
    /// As if it had never started.
    Release,
}

pub(super) struct Counter {
    /// Cancelled when waiting fetches and streams must end.
    pub(super) closing: CancellationToken,
    /// `None` until the group is joined, and after it was left. Whoever waits for a delivery holds the lock: first come, first served.
    pub(super) consumer: tokio::sync::Mutex<Option<Consumer>>,
    /// Whether the group was joined once.
    pub(super) joined: AtomicBool,
    /// The policy that the group was joined under, and the name of the member.
    policy: Mutex<Option<GroupPolicy>>,
    member: Mutex<Option<String>>,
    held: Mutex<Held>,
}

struct Held {
    next: u64,
    /// Fetches and streams under way.
    users: usize,
    last_use: Instant,
    /// No delivery is overdue before this.
    soonest: Option<Instant>,
    deliveries: HashMap<u64, Lying>,
    clients: Clients,
}

struct Lying {
    deadline: Instant,
    since: SystemTime,
    delivery: Delivery,
    client: Arc<Client>,
    /// The stream that it was given to.
    stream: Option<Arc<Load>>,
}

/// How many deliveries of a stream are unsettled.
#[derive(Default)]
pub(crate) struct Load {
    unsettled: AtomicUsize,
    pub(super) changed: Notify,
    /// Cancelled when a lease of it ran out.
    pub(super) asleep: CancellationToken,
}

impl Load {
    pub(super) fn unsettled(&self) -> usize {
        self.unsettled.load(Ordering::Acquire)
    }
}

impl Lying {
    fn leave(self) -> (Delivery, SystemTime) {
        if let Some(load) = &self.stream {
            load.unsettled.fetch_sub(1, Ordering::AcqRel);
            load.changed.notify_one();
        }
        (self.delivery, self.since)
    }
}

impl Counter {
    pub(super) fn new(closing: CancellationToken) -> Self {
        let held = Held {
            next: 0,
            users: 0,
            last_use: Instant::now(),
            soonest: None,
            deliveries: HashMap::new(),
            clients: Clients::default(),
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
        }
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
        let holders = held.deliveries.values().map(|lying| &lying.client);
        Some((member, held.clients.show(Instant::now(), holders)))
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().expect("nothing panics under this lock")
    }

    /// Counts a user as long as it lives.
    pub(super) fn enter(self: &Arc<Self>, client: Client) -> Using {
        let client = Arc::new(client);
        let mut held = self.lock();
        held.users += 1;
        held.clients.begin(&client, Instant::now());
        Using { counter: self.clone(), client }
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
        (client, stream): (&Arc<Client>, Option<&Arc<Load>>),
    ) {
        if let Some(load) = stream {
            load.unsettled.fetch_add(1, Ordering::AcqRel);
        }
        let (client, stream) = (client.clone(), stream.cloned());
        let lying = Lying { deadline, since: SystemTime::now(), delivery, client, stream };
        let mut held = self.lock();
        held.soonest = Some(held.soonest.map_or(deadline, |soonest| soonest.min(deadline)));
        held.deliveries.insert(number, lying);
    }

    fn take(&self, number: u64) -> Result<(Delivery, SystemTime)> {
        let lying = self.lock().deliveries.remove(&number);
        lying.map(Lying::leave).ok_or_else(not_here)
    }

    pub(super) fn holds(&self, number: u64) -> bool {
        self.lock().deliveries.contains_key(&number)
    }

    /// Notes a verdict; the answer says when it is stored.
    pub(super) fn settle(
        &self,
        number: u64,
        verdict: Verdict,
        telemetry: &Telemetry,
    ) -> Result<Option<firth::Settled>> {
        let (delivery, since) = self.take(number)?;
        let outcome = match &verdict {
            Verdict::Ack => "ack",
            Verdict::Nack(_) => "nack",
            Verdict::Release => "release",
        };
        telemetry.processed(delivery.record(), since, outcome);
        Ok(match verdict {
            Verdict::Ack => Some(delivery.ack()),
            Verdict::Nack(nack) => Some(delivery.nack(nack)),
            Verdict::Release => {
                delivery.give_back();
                None
            }
        })
    }

    /// More time for a delivery.
    pub(super) fn extend(&self, number: u64, deadline: Instant) -> Result<()> {
        let mut held = self.lock();
        held.soonest = Some(held.soonest.map_or(deadline, |soonest| soonest.min(deadline)));
        held.deliveries.get_mut(&number).map(|lying| lying.deadline = deadline).ok_or_else(not_here)
    }

    /// Gives deliveries back as if they had never started.
    pub(super) fn give_back(&self, numbers: impl IntoIterator<Item = u64>) {
        for number in numbers {
            if let Ok((delivery, _)) = self.take(number) {
                delivery.give_back();
            }
        }
    }

    pub(super) fn is_idle(&self, now: Instant, after: std::time::Duration) -> bool {
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
        let late: Vec<_> = held.deliveries.extract_if(|_, lying| lying.deadline <= now).collect();
        held.soonest = held.deliveries.values().map(|lying| lying.deadline).min();
        drop(held);
        for (_, lying) in late {
            let why = "not settled before its lease ran out";
            // Whoever sleeps gets no more: everything that it was given would cost an attempt.
            if let Some(load) = &lying.stream {
                load.asleep.cancel();
            }
            // The verdict counts whether or not it is awaited.
            drop(lying.leave().0.nack(Nack::retry_after(std::time::Duration::ZERO, why)));
        }
    }

    /// Gives everything back and leaves the group.
    pub(super) async fn close(&self) {
        self.closing.cancel();
        let held = std::mem::take(&mut self.lock().deliveries);
        for lying in held.into_values() {
            lying.leave().0.give_back();
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
pub(super) struct Using {
    counter: Arc<Counter>,
    pub(super) client: Arc<Client>,
}

impl Drop for Using {
    fn drop(&mut self) {
        let mut held = self.counter.lock();
        let now = Instant::now();
        held.users -= 1;
        held.last_use = now;
        held.clients.end(&self.client, now);
    }
}

/// Deliveries that were handed out but not yet shown: dropping it gives them back, without costing an attempt.
pub(super) struct Basket<'c> {
    counter: &'c Counter,
    numbers: Vec<u64>,
}

impl<'c> Basket<'c> {
    pub(super) fn new(counter: &'c Counter) -> Self {
        Self { counter, numbers: Vec::new() }
    }

    pub(super) fn put(&mut self, number: u64) {
        self.numbers.push(number);
    }

    /// They are the client's from now on.
    pub(super) fn hand_over(mut self) {
        self.numbers.clear();
    }
}

impl Drop for Basket<'_> {
    fn drop(&mut self) {
        self.counter.give_back(self.numbers.drain(..));
    }
}
