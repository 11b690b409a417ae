//! [`Hub`]: where events meet the clients that want them. [`Core`](core::Core) decides; this handle locks it, and a small clock wakes connections
//! that wait for the next tick.
//!
//! ```text
//! feed ─ publish ─► Core: index ─► outbox of each session ─► Session (one per connection) ─► WebSocket, SSE, poll
//!                   journal (resume)   rooms (presence)
//! ```

mod core;
mod session;
mod subscribe;

pub use session::{Outgoing, Session, Step};

use crate::auth::Grant;
use crate::books::Books;
use crate::config::Config;
use crate::frame::Body;
use crate::metrics;
use crate::outbox::{Outbox, SlowPolicy};
use crate::position::Position;
use crate::protocol::{Code, Refusal};
use core::Core;
use firth_router::event::Event;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How often rooms are told about, and journals looked through.
const HOUSEKEEPING: Duration = Duration::from_millis(200);

/// The hub of a gateway. Clones share it.
#[derive(Clone)]
pub struct Hub(Arc<Inner>);

struct Inner {
    config: Config,
    core: Mutex<Core>,
    deferred: Notify,
    stop: CancellationToken,
    tasks: TaskTracker,
}

/// A connection's queue, and what wakes its task.
pub(crate) struct Mailbox {
    outbox: Mutex<Outbox>,
    wake: Notify,
}

/// What became of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    /// Its place; `None` if the tenant has no clients here and had none lately.
    pub at: Option<Position>,
    /// For how many connections it is.
    pub connections: usize,
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
    pub books: Books,
}

impl Hub {
    /// Starts a hub; it needs tokio for its clock.
    pub fn start(config: Config) -> Result<Self, Refusal> {
        config.check()?;
        let core = Mutex::new(Core::new(config));
        let (deferred, stop, tasks) = (Notify::new(), CancellationToken::new(), TaskTracker::new());
        let hub = Self(Arc::new(Inner { config, core, deferred, stop: stop.clone(), tasks: tasks.clone() }));
        let weak = Arc::downgrade(&hub.0);
        tasks.spawn(stop.run_until_cancelled_owned(async move {
            let mut housekeeping = tokio::time::interval(HOUSEKEEPING);
            while let Some(inner) = weak.upgrade() {
                let hub = Self(inner);
                tokio::select! {
                    () = hub.0.deferred.notified() => {
                        tokio::time::sleep(hub.config().tick).await;
                        hub.core().wake_deferred();
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

    /// For several events that are there at once: clients are woken when the burst ends, so that each gets its own in one write.
    pub fn burst(&self) -> Burst<'_> {
        Burst { hub: self, due: Vec::new() }
    }

    /// The source has left events out: every client hears that it must fetch its state anew.
    pub fn source_gap(&self) {
        self.core().source_gap();
    }

    /// Lets a client in whose token was checked.
    pub fn join(&self, grant: Grant, slow: Option<SlowPolicy>) -> Result<Session, Refusal> {
        if self.0.stop.is_cancelled() {
            return Err(Refusal::new(
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

    /// Tells every client to come back later, and to whom new ones may not come. Sessions end when they have sent what waits.
    pub fn drain(&self) {
        self.0.stop.cancel();
        self.core().drain();
    }

    /// Whether it is closing.
    pub fn is_closing(&self) -> bool {
        self.0.stop.is_cancelled()
    }

    /// [`drain`](Self::drain), then waits until every session has ended, at most for `limit`; false if some had not.
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

    fn core(&self) -> MutexGuard<'_, Core> {
        self.0.core.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Events that come together. Dropping it ends it.
pub struct Burst<'a> {
    hub: &'a Hub,
    due: Vec<Arc<Mailbox>>,
}

impl Burst<'_> {
    /// As [`Hub::publish`].
    pub fn publish(&mut self, event: Event) -> firth_router::Result<Published> {
        let known = self.hub.core().knows(&event.tenant);
        if !known {
            return Ok(Published { at: None, connections: 0 });
        }
        let body = Body::new(event)?;
        let mut core = self.hub.core();
        let published = core.publish(body, now(), &mut self.due)?;
        if core.has_deferred() {
            self.hub.0.deferred.notify_one();
        }
        Ok(published)
    }
}

impl Drop for Burst<'_> {
    fn drop(&mut self) {
        for mailbox in self.due.drain(..) {
            mailbox.wake.notify_one();
        }
    }
}

impl std::fmt::Debug for Burst<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Burst({} connections)", self.due.len())
    }
}

impl Mailbox {
    fn new(outbox: Outbox) -> Self {
        Self { outbox: Mutex::new(outbox), wake: Notify::new() }
    }

    fn outbox(&self) -> MutexGuard<'_, Outbox> {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
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
mod tests;
