//! [`Hub`]: where events meet the clients that want them. [`Core`](core::Core) decides; this handle
//! locks it, a few [`Writers`] give out what waits, and a small clock has them do so for
//! connections that wait for the next tick.
//!
//! ```text
//! feed ─ publish ─► Core: index ─► outbox of each session ─► Writers ─► line ─► socket
//!                   journal (resume)   rooms (presence)         └─► Session (one per connection) ─► WebSocket, SSE, poll
//! ```

mod clients;
mod core;
mod mailbox;
mod notifier;
mod pending;
mod session;
mod source;
mod subscribe;
mod writers;

pub use clients::{HubClient, HubClients};
pub(crate) use mailbox::RawSocket;
pub use session::{Outgoing, Session, Step};
pub(crate) use session::{WriteOp, WriteOps};

use crate::accounting::Accounting;
use crate::auth::Grant;
use crate::config::Config;
use crate::frame::Body;
use crate::metrics;
use crate::outbox::SlowPolicy;
use crate::position::{Offsets, Position};
use crate::protocol::{Code, EdgeError};
use crate::upstream::Registrar;
use core::Core;
use firth::RecordId;
use firth_router::event::Event;
use firth_router::{SubscriptionId, Tenant};
use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use writers::Writers;

/// How often rooms are told about, and journals looked through.
const HOUSEKEEPING: Duration = Duration::from_millis(200);

/// How long a client that comes from a quicker gateway waits for this one.
const REACH: Duration = Duration::from_secs(5);

/// The hub of a gateway. Clones share it.
#[derive(Clone)]
pub struct Hub(Arc<Inner>);

struct Inner {
    config: Config,
    core: Mutex<Core>,
    writers: Arc<Writers>,
    deferred: Notify,
    /// The source has come further.
    moved: Notify,
    registrar: OnceLock<Registrar>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

/// A hub that may be gone.
pub(crate) struct WeakHub(Weak<Inner>);

impl WeakHub {
    pub(crate) fn upgrade(&self) -> Option<Hub> {
        self.0.upgrade().map(Hub)
    }
}

/// Outcome of a published event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// Its place; `None` if the tenant has no clients here and had none lately.
    pub at: Option<Position>,
    /// For how many connections it is.
    pub connections: usize,
}

impl Published {
    const NOBODY: Self = Self { at: None, connections: 0 };

    /// Sum of two outcomes; the place is the later one's.
    fn and(self, other: firth_router::Result<Self>) -> firth_router::Result<Self> {
        other
            .map(|other| Self { at: other.at.or(self.at), connections: self.connections + other.connections })
    }
}

/// What a hub holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HubStatus {
    /// Connections.
    pub connections: usize,
    /// Subscriptions.
    pub subscriptions: usize,
    /// Tenants with a journal.
    pub tenants: usize,
    /// Bytes in all journals.
    pub journal_bytes: usize,
    /// Where every matched event went.
    pub accounting: Accounting,
}

impl Hub {
    /// Starts a hub; it needs tokio for its clock.
    pub fn start(config: Config) -> Result<Self, EdgeError> {
        config.check()?;
        let core = Mutex::new(Core::new(config));
        let deferred = Notify::new();
        let moved = Notify::new();
        let stop = CancellationToken::new();
        let tasks = TaskTracker::new();
        let hub = Self(Arc::new(Inner {
            config,
            core,
            writers: Writers::new(tasks.clone()),
            deferred,
            moved,
            registrar: OnceLock::new(),
            stop: stop.clone(),
            tasks: tasks.clone(),
        }));
        let weak = Arc::downgrade(&hub.0);
        tasks.spawn(stop.run_until_cancelled_owned(async move {
            let mut housekeeping = tokio::time::interval(HOUSEKEEPING);
            // Who slept has one house to keep, not one for each tick.
            housekeeping.set_missed_tick_behavior(MissedTickBehavior::Delay);
            while let Some(inner) = weak.upgrade() {
                let hub = Self(inner);
                tokio::select! {
                    () = hub.0.deferred.notified() => {
                        let until = hub.core_in_burst().deferred_until();
                        let Some(until) = until else { continue };
                        tokio::time::sleep_until(until.into()).await;
                        let mut deferred = hub.core().take_deferred();
                        hub.0.writers.give(&mut deferred);
                    }
                    _ = housekeeping.tick() => hub.keep_house(),
                }
            }
        }));
        tasks.close();
        Ok(hub)
    }

    /// How it works.
    pub fn config(&self) -> &Config {
        &self.0.config
    }

    /// Gives an event to every client that wants it. Never waits.
    pub fn publish(&self, event: Event) -> firth_router::Result<Published> {
        self.burst().publish(event)
    }

    /// For several events that are there at once: they reach clients when the burst ends, so that
    /// each gets its own in one write.
    pub fn burst(&self) -> Burst<'_> {
        Burst { hub: self }
    }

    /// The source has left events out: every client hears that it must fetch its state anew.
    pub fn source_gap(&self) {
        self.core().source_gap();
    }

    /// Records of the topic before this one are gone: every client hears that it must fetch its
    /// state anew.
    pub(crate) fn lose(&self, partition: u32, id: RecordId) {
        self.core().lose(partition, id);
    }

    /// Takes offsets from a topic from now on: see [`source`]. False if events come from a router
    /// as well, which have none.
    pub(crate) fn follow(&self, epoch: u64, partitions: usize) -> bool {
        let mut core = self.core();
        if !core.is_routed {
            core.follow(epoch, partitions);
        }
        !core.is_routed
    }

    /// Events come from a router.
    pub(crate) fn set_routed(&self) {
        self.core().is_routed = true;
    }

    /// A partition of the topic has nothing to read up to this record.
    pub(crate) fn begin(&self, partition: u32, last: RecordId) {
        self.core().begin(partition, last);
    }

    /// Whether it has read so far in the topic that it follows.
    pub(crate) fn has_read(&self, offsets: &Offsets) -> bool {
        self.core().source.as_ref().is_some_and(|source| source.head.covers(offsets))
    }

    /// Waits until this hub has read as far as the position says, but not for long: another gateway
    /// may have been quicker.
    pub(crate) async fn reach(&self, position: &Position) {
        let reached = async {
            loop {
                let moved = self.0.moved.notified();
                if !self.core().is_behind(position) {
                    return;
                }
                moved.await;
            }
        };
        let _ = tokio::time::timeout(REACH, reached).await;
    }

    /// Registers with a router, from now on, what clients subscribe to.
    pub(crate) fn set_registrar(&self, registrar: Registrar) {
        // A second one would find the first at work: it has nothing to do.
        let _ = self.0.registrar.set(registrar);
    }

    pub(crate) fn registrar(&self) -> Option<&Registrar> {
        self.0.registrar.get()
    }

    pub(crate) fn downgrade(&self) -> WeakHub {
        WeakHub(Arc::downgrade(&self.0))
    }

    /// Gives the place behind everything that clients of the tenant were sent, while nothing is
    /// published.
    pub(crate) fn at_head<T>(&self, tenant: &Tenant, look: impl FnOnce(Position) -> T) -> T {
        let core = self.core();
        look(core.known_head_of(tenant))
    }

    /// Clients with these registrations may have missed events: they hear that they must fetch
    /// their state anew.
    pub(crate) fn resync(&self, registrations: &HashSet<u64>) {
        self.core().resync(|subscribed| {
            subscribed.registration.is_some_and(|number| registrations.contains(&number))
        });
    }

    /// The router has left out events of these subscriptions; of any, if it does not say. Clients
    /// with others are not concerned.
    pub(crate) fn router_gap(&self, subscriptions: Option<&[SubscriptionId]>) {
        let mut core = self.core();
        // The registrations take their new positions under the hub's lock, so that no client
        // resumes from before.
        let concerned = subscriptions.zip(self.registrar()).and_then(|(subscriptions, registrar)| {
            registrar.gap(subscriptions, |tenant| core.known_head_of(tenant))
        });
        match concerned {
            None => core.source_gap(),
            Some(numbers) => core
                .resync(|subscribed| subscribed.registration.is_some_and(|number| numbers.contains(&number))),
        }
    }

    /// Lets a client in whose token was checked.
    pub fn join(&self, grant: Grant, slow: Option<SlowPolicy>) -> Result<Session, EdgeError> {
        if self.0.stop.is_cancelled() {
            return Err(EdgeError::new(
                Code::Unavailable,
                "this gateway is closing: try another, or again later",
            ));
        }
        Session::open(self.clone(), grant, slow)
    }

    /// What it holds now.
    pub fn status(&self) -> HubStatus {
        self.core().status()
    }

    /// Ends every session whose grant does not pass.
    pub(crate) fn end_unless(&self, passes: impl Fn(&Grant) -> bool) {
        self.core().end_unless(passes);
    }

    /// Tells every client to come back later, and to whom new ones may not come. Sessions end when
    /// they have sent what waits.
    pub fn drain(&self) {
        self.0.stop.cancel();
        self.core().drain();
    }

    /// Whether it is closing.
    pub fn is_closing(&self) -> bool {
        self.0.stop.is_cancelled()
    }

    /// [`drain`](Self::drain), then waits until every session has ended, at most for `limit`; false
    /// if some had not.
    pub async fn close(&self, limit: Duration) -> bool {
        self.drain();
        let gone = async {
            while self.status().connections > 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            self.0.tasks.wait().await;
        };
        tokio::time::timeout(limit, gone).await.is_ok()
    }

    fn keep_house(&self) {
        let status = {
            let mut core = self.core();
            core.keep_house(now());
            core.status()
        };
        metrics::status(&status);
    }

    /// The core, with nothing pending: what is done with it comes behind what was published
    /// before.
    fn core(&self) -> MutexGuard<'_, Core> {
        let mut core = self.core_in_burst();
        if !core.pending.is_empty() {
            self.give_out(&mut core);
        }
        core
    }

    fn core_in_burst(&self) -> MutexGuard<'_, Core> {
        self.0.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is pending reaches the clients. The first are written to while the last are still given
    /// theirs.
    fn give_out(&self, core: &mut Core) {
        let mut due = Vec::new();
        core.deliver(now(), |mailbox| {
            due.push(mailbox);
            if due.len() == writers::BATCH {
                self.0.writers.give(&mut due);
            }
        });
        self.0.writers.give(&mut due);
        if core.deferred_until().is_some() {
            self.0.deferred.notify_one();
        }
    }
}

/// Events that come together. Dropping it ends it.
pub struct Burst<'a> {
    hub: &'a Hub,
}

impl Burst<'_> {
    /// As [`Hub::publish`].
    pub fn publish(&mut self, event: Event) -> firth_router::Result<Published> {
        if event.is_for_all_tenants() {
            let events = self.hub.core_in_burst().for_each_tenant(&event);
            return events
                .into_iter()
                .map(|event| self.publish(event))
                .try_fold(Published::NOBODY, Published::and);
        }
        {
            let mut core = self.hub.core_in_burst();
            if core.source.is_some() {
                let message = "this hub follows a topic: events come from there alone";
                return Err(firth_router::Error::invalid(message));
            }
            if !core.keeps(&event.tenant, now()) {
                return Ok(Published::NOBODY);
            }
        }
        let body = Body::new(event)?;
        let mut core = self.hub.core_in_burst();
        let published = core.publish(body, None, now());
        self.go_on(core);
        published
    }

    /// A record of the topic that the hub follows, with its partition and id: an event, or
    /// something else that was passed.
    pub(crate) fn arrive(
        &mut self,
        event: Option<Event>,
        (partition, id): (u32, RecordId),
    ) -> firth_router::Result<Published> {
        if let Some(event) = event.as_ref().filter(|event| event.is_for_all_tenants()) {
            return self.arrive_for_all(event, (partition, id));
        }
        let body = event.map(Body::new).transpose();
        let mut core = self.hub.core_in_burst();
        // In one step: a session that stands at this number has the event, or is sent it.
        let is_new = core.arrive(partition, id);
        let published = body.and_then(|body| match body {
            Some(body) if is_new && core.keeps(&body.event.tenant, now()) => {
                core.publish(body, Some(partition), now())
            }
            _ => Ok(Published::NOBODY),
        });
        self.go_on(core);
        published
    }

    /// A control for every tenant, in one step as well.
    fn arrive_for_all(
        &mut self,
        event: &Event,
        (partition, id): (u32, RecordId),
    ) -> firth_router::Result<Published> {
        let mut core = self.hub.core_in_burst();
        let mut published = Published::NOBODY;
        if core.arrive(partition, id) {
            for event in core.for_each_tenant(event) {
                published = published.and(core.publish(Body::new(event)?, Some(partition), now()))?;
            }
        }
        self.go_on(core);
        Ok(published)
    }

    /// A burst that is too large becomes several.
    fn go_on(&self, mut core: MutexGuard<'_, Core>) {
        if core.pending.is_full() {
            self.hub.give_out(&mut core);
        }
    }
}

impl Drop for Burst<'_> {
    fn drop(&mut self) {
        drop(self.hub.core());
        self.hub.0.moved.notify_waiters();
    }
}

impl std::fmt::Debug for Burst<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Burst")
    }
}

/// Tokio's clock, so that tests can pause it.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Hub").field(&self.status()).finish()
    }
}

#[cfg(test)]
mod control_tests;
#[cfg(test)]
mod tests;
