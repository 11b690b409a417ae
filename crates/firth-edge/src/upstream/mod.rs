//! [`Registrar`]: what clients here subscribe to, registered with a router, so that events come to this gateway and no others do.
//!
//! A subscription is registered before it becomes live here, and all who ask for the same share one ([`table`]). One task talks to the
//! router: it registers, gives signs of life, and unregisters what nobody holds any more. If the router may have forgotten us, everything is
//! registered again, and then every client hears that it must fetch its state anew.

mod table;

use crate::hub::{Hub, WeakHub};
use crate::position::Position;
use crate::protocol::{Code, Refusal, Wish};
use firth_router::{SubscriptionId, Tenant};
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use table::{Key, State, Table};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How long a client waits for the router.
const PATIENCE: Duration = Duration::from_secs(10);
/// Registrations on their way at the same time.
const AT_A_TIME: usize = 16;
/// The pause after a sign of life that did not arrive, and between two looks at what nobody holds.
const PAUSE: Duration = Duration::from_secs(1);

/// A router's registry, as a gateway sees it.
pub trait Upstream: Send + Sync + 'static {
    /// This gateway's name there.
    fn gateway(&self) -> &str;
    /// Registers this gateway, or gives a sign of life of it; answers how long it counts as alive. With `anew`, what was registered for it before is
    /// taken away first.
    fn announce(&self, anew: bool) -> BoxFuture<'_, Result<Duration, Refusal>>;
    /// A sign of life; false if the router does not know this gateway.
    fn heartbeat(&self) -> BoxFuture<'_, Result<bool, Refusal>>;
    /// Registers a subscription of this gateway.
    fn register<'a>(
        &'a self,
        tenant: &'a Tenant,
        id: &'a SubscriptionId,
        wish: &'a Wish,
    ) -> BoxFuture<'a, Result<(), Refusal>>;
    /// Takes one away; there may be none.
    fn unregister<'a>(
        &'a self,
        tenant: &'a Tenant,
        id: &'a SubscriptionId,
    ) -> BoxFuture<'a, Result<(), Refusal>>;
    /// Takes this gateway away, with all its subscriptions.
    fn leave(&self) -> BoxFuture<'_, Result<(), Refusal>>;
}

/// Registers for a hub. Clones share it.
#[derive(Clone)]
pub struct Registrar(Arc<Inner>);

struct Inner {
    upstream: Box<dyn Upstream>,
    hub: WeakHub,
    table: Mutex<Table>,
    wanted: Notify,
    changed: watch::Sender<()>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Registrar {
    /// Registers this gateway, and from now on whatever clients of the hub subscribe to.
    pub async fn start(hub: &Hub, upstream: impl Upstream) -> Result<Self, Refusal> {
        let ttl = upstream.announce(true).await?;
        let table = Mutex::new(Table::new(upstream.gateway(), hub.config().window.age));
        let registrar = Self(Arc::new(Inner {
            upstream: Box::new(upstream),
            hub: hub.downgrade(),
            table,
            wanted: Notify::new(),
            changed: watch::Sender::new(()),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        }));
        hub.set_registrar(registrar.clone());
        registrar.0.tasks.spawn(registrar.clone().run(ttl));
        registrar.0.tasks.close();
        Ok(registrar)
    }

    /// Stops, and takes this gateway away from the router.
    pub async fn close(&self) -> Result<(), Refusal> {
        self.0.stop.cancel();
        self.0.tasks.wait().await;
        self.0.upstream.leave().await
    }

    /// Has the wish registered, and waits until it is.
    pub(crate) async fn hold(&self, tenant: &Tenant, wish: &Wish) -> Result<Hold, Refusal> {
        let key = Key::new(tenant, wish);
        let mut changed = self.0.changed.subscribe();
        self.table().hold(&key, wish, now())?;
        let mut hold = Hold { registrar: self.clone(), key, since: Position::nowhere() };
        self.0.wanted.notify_one();
        let settled = async {
            loop {
                match self.table().state(&hold.key) {
                    Some(State::Live(since)) => return Ok(since),
                    Some(State::Refused(refusal)) => return Err(refusal),
                    Some(State::Wanted | State::Asked) | None => {}
                }
                if changed.changed().await.is_err() {
                    return Err(unanswered());
                }
            }
        };
        hold.since = tokio::time::timeout(PATIENCE, settled).await.unwrap_or_else(|_| Err(unanswered()))?;
        Ok(hold)
    }

    async fn run(self, mut ttl: Duration) {
        let (mut alive_at, mut beat_at) = (now(), now() + ttl / 3);
        while let Some(()) = self.0.stop.run_until_cancelled(self.next(beat_at)).await {
            self.register_wanted().await;
            let begun = now();
            if begun < beat_at {
                continue;
            }
            match self.0.upstream.heartbeat().await {
                // It may have forgotten us in between.
                Ok(true) if begun.saturating_duration_since(alive_at) <= ttl => alive_at = begun,
                Ok(_) => match self.0.upstream.announce(false).await {
                    Ok(fresh) => {
                        tracing::warn!("the router forgot this gateway: everything is registered again");
                        (ttl, alive_at) = (fresh, begun);
                        self.table().renew();
                        self.register_wanted().await;
                    }
                    Err(error) => tracing::warn!(%error, "this gateway cannot be registered"),
                },
                Err(error) => tracing::warn!(%error, "the router cannot be reached"),
            }
            let is_alive = alive_at == begun;
            beat_at = now() + if is_alive { ttl / 3 } else { PAUSE };
            self.table().retry();
            self.take_away().await;
        }
    }

    /// Waits for something to do.
    async fn next(&self, beat_at: Instant) {
        tokio::select! {
            () = self.0.wanted.notified() => {}
            () = tokio::time::sleep_until(beat_at.into()) => {}
        }
    }

    /// Asks the router for everything that is wanted.
    async fn register_wanted(&self) {
        let errands = self.table().errands();
        let ask = |errand: table::Errand| async move {
            let answer = self.0.upstream.register(&errand.tenant, &errand.id, &errand.wish).await;
            let hub = self.0.hub.upgrade();
            let since = hub.map_or_else(Position::nowhere, |hub| hub.head_of(&errand.tenant));
            self.table().settle(&errand.key, answer.map(|()| since))
        };
        let mut asked = futures_util::stream::iter(errands).map(ask).buffer_unordered(AT_A_TIME);
        let mut missed = false;
        while let Some(may_have_missed) = asked.next().await {
            missed |= may_have_missed;
            self.0.changed.send_replace(());
        }
        if let Some(hub) = self.0.hub.upgrade().filter(|_| missed) {
            hub.source_gap();
        }
    }

    async fn take_away(&self) {
        let gone = self.table().sweep(now());
        for (tenant, id) in gone {
            // If it fails, the router forgets it with this gateway.
            if let Err(error) = self.0.upstream.unregister(&tenant, &id).await {
                tracing::debug!(%error, "a subscription could not be unregistered");
            }
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A registration that a client needs. Dropping it lets it go.
pub(crate) struct Hold {
    registrar: Registrar,
    key: Key,
    since: Position,
}

impl Hold {
    /// Whether everything behind the position came here.
    pub(crate) fn covers(&self, position: &Position) -> bool {
        self.since.epoch != position.epoch || position.offsets.covers(&self.since.offsets)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.registrar.table().release(&self.key, now());
    }
}

fn unanswered() -> Refusal {
    Refusal::new(Code::Unavailable, "the router does not answer: try again later")
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
