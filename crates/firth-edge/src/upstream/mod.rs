//! [`Registrar`]: what clients here subscribe to, registered with a router, so that events come to
//! this gateway and no others do.
//!
//! A subscription is registered before it becomes live here, and all clients that ask for the same
//! share one ([`table`]). One task registers and unregisters, many at a time; another gives signs
//! of life, so that no amount of registrations delays them. If the router may have forgotten us,
//! everything is registered again, and each client that may have missed events hears that it must
//! fetch its state anew.
//!
//! **Two processes of one name.** Each process has an instance of its own at the router, and the
//! newest holds the name. A process that was replaced hears of it with its next sign of life: it
//! sends its clients away and ends, and takes nothing of its successor's with it.

mod table;

use crate::hub::{Hub, WeakHub};
use crate::position::Position;
use crate::protocol::{Code, EdgeError, SubscriptionRequest};
use firth::Backoff;
use firth_router::{SubscriptionId, Tenant};
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use table::{Errand, State, Table};
use tokio::sync::{Notify, SetOnce};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How long a client waits for the router.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long one call may take: much less than a gateway lives without a sign of life.
const CALL: Duration = Duration::from_secs(10);
/// How long the first call may take: the router may have much to remove.
const FIRST_CALL: Duration = Duration::from_secs(60);
/// Calls on their way at the same time.
const AT_A_TIME: usize = 64;
/// The longest time between two signs of life: a process that was replaced must hear of it soon.
const BEAT: Duration = Duration::from_secs(5);
/// The pauses after a sign of life that did not arrive.
const AWAY: Backoff = Backoff::exponential(Duration::from_millis(500), Duration::from_secs(8));
/// Clients that missed events hear of it together, this many at once or after this time.
const TOLD_TOGETHER: (usize, Duration) = (256, Duration::from_millis(50));

/// What a router says to a sign of life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heartbeat {
    /// The gateway is registered.
    Alive,
    /// The router does not know it: it must register again.
    Unknown,
    /// A newer process has registered under its name: this one must end.
    Replaced,
}

/// A router's registry, as a gateway sees it.
pub trait Upstream: Send + Sync + 'static {
    /// This gateway's name there.
    fn gateway(&self) -> &str;
    /// This process: different from every other that has or had the name.
    fn instance(&self) -> &str;
    /// Registers this process, and answers how long it counts as alive. It takes the place of any
    /// other process of the gateway, whose registrations are taken away. If the router does not
    /// allow this gateway ([`Code::Forbidden`]), the gateway ends.
    fn announce(&self) -> BoxFuture<'_, Result<Duration, EdgeError>>;
    /// A sign of life; forbidden as [`announce`](Self::announce).
    fn heartbeat(&self) -> BoxFuture<'_, Result<Heartbeat, EdgeError>>;
    /// Registers a subscription of this gateway. If the router does not allow it
    /// ([`Code::Forbidden`]), only this subscription is refused.
    fn register<'a>(
        &'a self,
        tenant: &'a Tenant,
        id: &'a SubscriptionId,
        request: &'a SubscriptionRequest,
    ) -> BoxFuture<'a, Result<(), EdgeError>>;
    /// Takes one away; there may be none.
    fn unregister<'a>(
        &'a self,
        tenant: &'a Tenant,
        id: &'a SubscriptionId,
    ) -> BoxFuture<'a, Result<(), EdgeError>>;
    /// Takes this gateway away, with all its subscriptions, unless a newer process has its name.
    fn leave(&self) -> BoxFuture<'_, Result<(), EdgeError>>;
}

/// How many registrations there may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    pub(crate) total: usize,
    pub(crate) per_tenant: usize,
}

/// Registers for a hub. Clones share it.
#[derive(Clone)]
pub struct Registrar(Arc<Inner>);

struct Inner {
    upstream: Box<dyn Upstream>,
    hub: WeakHub,
    table: Mutex<Table>,
    wanted: Notify,
    stop: CancellationToken,
    replaced: CancellationToken,
    forbidden: SetOnce<EdgeError>,
    tasks: TaskTracker,
}

impl Registrar {
    /// Registers this gateway, and from now on everything that clients of the hub subscribe to.
    pub async fn start(hub: &Hub, upstream: impl Upstream) -> Result<Self, EdgeError> {
        let ttl = timeout(FIRST_CALL, upstream.announce()).await.map_err(|_| unanswered())??;
        let limits = &hub.config().limits;
        let room = Room { total: limits.registrations, per_tenant: limits.registrations_per_tenant };
        let window = hub.config().window.age;
        let table = Mutex::new(Table::new(upstream.gateway(), upstream.instance(), window, room));
        let registrar = Self(Arc::new(Inner {
            upstream: Box::new(upstream),
            hub: hub.downgrade(),
            table,
            wanted: Notify::new(),
            stop: CancellationToken::new(),
            replaced: CancellationToken::new(),
            forbidden: SetOnce::new(),
            tasks: TaskTracker::new(),
        }));
        hub.set_registrar(registrar.clone());
        registrar.0.tasks.spawn(registrar.clone().beat(ttl));
        registrar.0.tasks.spawn(registrar.clone().work());
        registrar.0.tasks.close();
        Ok(registrar)
    }

    /// Resolves when a newer process has registered under this gateway's name. The hub is draining
    /// then: events come no more, so the gateway should end.
    pub async fn replaced(&self) {
        self.0.replaced.cancelled().await;
    }

    /// Resolves when the router does not allow this gateway any more, with the reason. The hub is
    /// draining then, as if it were [`replaced`](Self::replaced).
    pub async fn forbidden(&self) -> EdgeError {
        self.0.forbidden.wait().await.clone()
    }

    /// Stops, and takes this gateway away from the router, unless a newer process has its name.
    pub async fn close(&self) -> Result<(), EdgeError> {
        self.0.stop.cancel();
        self.0.tasks.wait().await;
        self.0.upstream.leave().await
    }

    /// Has the request registered, and waits until it is.
    pub(crate) async fn hold(
        &self,
        tenant: &Tenant,
        request: &SubscriptionRequest,
    ) -> Result<Hold, EdgeError> {
        let (number, mut state) = self.table().hold(tenant, request, now())?;
        let hold = Hold { registrar: self.clone(), number };
        self.0.wanted.notify_one();
        let settled = state.wait_for(|state| matches!(state, State::Live(_) | State::Refused(_)));
        match timeout(PATIENCE, settled).await {
            Ok(Ok(state)) => match &*state {
                State::Refused(error) => Err(error.clone()),
                _ => Ok(hold),
            },
            _ => Err(unanswered()),
        }
    }

    /// Events of these subscriptions were left out up to now: the numbers of their registrations.
    /// `None` if one of them was not made here, so that any client may be concerned.
    pub(crate) fn gap(
        &self,
        ids: &[SubscriptionId],
        head_of: impl Fn(&Tenant) -> Position,
    ) -> Option<HashSet<u64>> {
        self.table().gap(ids, head_of)
    }

    /// Gives signs of life.
    async fn beat(self, mut ttl: Duration) {
        let mut alive_at = now();
        let mut pause = (ttl / 3).min(BEAT);
        let mut failures = 0;
        while let Some(()) = self.0.stop.run_until_cancelled(tokio::time::sleep(pause)).await {
            let partial = now();
            let outcome = self.sign_of_life(partial.saturating_duration_since(alive_at) <= ttl).await;
            match outcome {
                Ok(Sign::Alive) => alive_at = partial,
                Ok(Sign::Anew(fresh)) => {
                    tracing::warn!("the router forgot this gateway: everything is registered again");
                    (ttl, alive_at) = (fresh, partial);
                    self.table().renew();
                }
                Ok(Sign::Replaced) => return self.give_way().await,
                Err(error) if error.code == Code::Forbidden => return self.give_up(error),
                Err(error) => tracing::warn!(%error, "the router cannot be reached"),
            }
            if alive_at == partial {
                (pause, failures) = ((ttl / 3).min(BEAT), 0);
            } else {
                failures += 1;
                pause = AWAY.delay(failures);
            }
            let mut table = self.table();
            table.retry();
            table.sweep(now());
            drop(table);
            self.0.wanted.notify_one();
        }
    }

    /// One sign of life, in time or not; the router may have forgotten a gateway in between whose
    /// last one is too old.
    async fn sign_of_life(&self, is_in_time: bool) -> Result<Sign, EdgeError> {
        let late = |_| unanswered();
        match timeout(CALL, self.0.upstream.heartbeat()).await.map_err(late)?? {
            Heartbeat::Replaced => Ok(Sign::Replaced),
            Heartbeat::Alive if is_in_time => Ok(Sign::Alive),
            Heartbeat::Alive | Heartbeat::Unknown => {
                timeout(CALL, self.0.upstream.announce()).await.map_err(late)?.map(Sign::Anew)
            }
        }
    }

    /// The router does not allow this gateway: sends all clients away, and asks for nothing more.
    fn give_up(&self, error: EdgeError) {
        tracing::error!(gateway = self.0.upstream.gateway(), %error, "no more events come: this gateway ends");
        if let Some(hub) = self.0.hub.upgrade() {
            hub.drain();
        }
        // Only this task sets it, and only once.
        let _ = self.0.forbidden.set(error);
        self.0.stop.cancel();
    }

    /// A newer process has the name: sends all clients away, and takes away what it does not know
    /// of.
    async fn give_way(&self) {
        tracing::error!(
            gateway = self.0.upstream.gateway(),
            "another process has registered under this gateway's name: this one gets no more events and ends; give each its own id"
        );
        if let Some(hub) = self.0.hub.upgrade() {
            hub.drain();
        }
        self.0.replaced.cancel();
        self.0.stop.cancel();
        let all = self.table().all();
        let take_away =
            futures_util::stream::iter(&all).for_each_concurrent(AT_A_TIME, async |(tenant, id)| {
                let _ = self.0.upstream.unregister(tenant, id).await;
            });
        // What is left lives as long as the successor.
        let _ = timeout(CALL, take_away).await;
    }

    /// Registers and unregisters.
    async fn work(self) {
        let mut running = FuturesUnordered::new();
        let mut missed = Missed::default();
        loop {
            while running.len() < AT_A_TIME
                && let Some(errand) = self.next()
            {
                running.push(self.run(errand));
            }
            tokio::select! {
                () = self.0.stop.cancelled() => return,
                Some(number) = running.next() => missed.add(number),
                () = self.0.wanted.notified() => {}
            }
            if missed.must_be_told(running.is_empty())
                && let Some(hub) = self.0.hub.upgrade()
            {
                hub.resync(&std::mem::take(&mut missed).numbers);
            }
        }
    }

    fn next(&self) -> Option<Errand> {
        self.table().next()
    }

    /// Asks the router once. Answers the number of a registration whose clients may have missed
    /// events.
    async fn run(&self, errand: Errand) -> Option<u64> {
        let late = |_| Err(unanswered());
        match errand {
            Errand::Register { number, asked, tenant, id, request } => {
                let call = self.0.upstream.register(&tenant, &id, &request);
                let answer = timeout(CALL, call).await.unwrap_or_else(late);
                let settle = |since| self.table().settle(number, asked, answer.map(|()| since));
                let missed = match self.0.hub.upgrade() {
                    Some(hub) => hub.at_head(&tenant, settle),
                    None => settle(Position::nowhere()),
                };
                missed.then_some(number)
            }
            Errand::Unregister { tenant, id, is_eviction } => {
                let call = self.0.upstream.unregister(&tenant, &id);
                // If it fails, the router forgets it with this gateway.
                if let Err(error) = timeout(CALL, call).await.unwrap_or_else(late) {
                    tracing::debug!(%error, "a subscription could not be unregistered");
                }
                if is_eviction {
                    self.table().evicted();
                }
                None
            }
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What came of a sign of life.
enum Sign {
    Alive,
    /// Registered again, for this time.
    Anew(Duration),
    Replaced,
}

/// Registrations whose clients must hear that they may have missed events.
#[derive(Default)]
struct Missed {
    numbers: HashSet<u64>,
    since: Option<Instant>,
}

impl Missed {
    fn add(&mut self, number: Option<u64>) {
        if let Some(number) = number {
            self.numbers.insert(number);
            self.since.get_or_insert_with(now);
        }
    }

    fn must_be_told(&self, is_idle: bool) -> bool {
        let (count, time) = TOLD_TOGETHER;
        self.since.is_some_and(|since| {
            is_idle || self.numbers.len() >= count || now().saturating_duration_since(since) >= time
        })
    }
}

/// A registration that a client needs. Dropping it lets it go.
pub(crate) struct Hold {
    registrar: Registrar,
    number: u64,
}

impl Hold {
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Whether everything behind the position came here.
    pub(crate) fn covers(&self, position: &Position) -> bool {
        self.registrar.table().covers(self.number, position)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.registrar.table().release(self.number, now());
    }
}

fn unanswered() -> EdgeError {
    EdgeError::new(Code::Unavailable, "the router does not answer: try again later")
}

fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

impl std::fmt::Debug for Registrar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Registrar({})", self.0.upstream.gateway())
    }
}

#[cfg(test)]
mod tests;
