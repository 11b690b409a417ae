//! The pub/sub multiplexer: any number of subscriptions over one connection per node, with no silent gap.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use firth_redis::{Client, mux::Event};
//!
//! let client = Client::connect("redis+cluster://10.0.0.1,10.0.0.2").await?;
//! let mut prices = client.mux().subscribe_sharded(["eur", "usd"]).await?;
//! while let Some(event) = prices.next().await {
//!     match event {
//!         Event::Message(message) => println!("{} bytes on {:?}", message.payload.len(), message.channel),
//!         Event::Signal(signal) => eprintln!("{signal:?}"),
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! **What is promised.** Pub/sub delivers at most once. Every message that the server sent on a confirmed subscription is
//! given to its subscriber, in order, unless a [`Signal`] says that some may be missing: [`Signal::Gap`] to
//! [`Signal::Resumed`] around a change of the cluster, [`Signal::Lagged`] where a full buffer dropped some. The nodes of a
//! cluster also hand messages to each other, in their own time: after a gap in which a channel changed its node, one that
//! was published before may come late, or once more.
//!
//! **Keyspace notifications.** A node of a cluster tells only of its own keys. So the mux
//! subscribes names that begin with `__keyspace@` or `__keyevent@`, and patterns that begin with
//! `__key` and may match such a name, at every master, and follows the masters as they change.
//! [`Signal::NodeLost`] names the node; the gap ends when all masters are heard. Other patterns
//! that match such names too, for example `*`, hear of the keys of one node only.
//!
//! **How it works.** The `core` is a pure state: the desired set of (kind, name), the nodes that serve it, and one
//! reconcile step. The `hub` carries out its orders. Subscriptions live on connections of their own, so that a push can
//! never be taken for the reply of a request.

mod config;
mod core;
mod event;
mod hub;
mod link;
mod mailbox;
mod meter;
mod placement;
mod pool;
mod registry;
mod roster;
mod stats;
mod subscription;
mod summary;
mod wire;

use std::sync::{Arc, OnceLock, PoisonError, RwLock, atomic::Ordering};

use bytes::Bytes;

pub(crate) use self::roster::Roster;
pub use self::{
    config::{Buffer, MuxConfig, NodePreference, Overflow},
    event::{Event, GapReason, Kind, Message, Names, Signal},
    pool::CallbackSubscription,
    stats::MuxStats,
    subscription::{Subscribe, Subscription},
};
use self::{hub::Hub, pool::Pool};
use crate::{cluster::monitor::Monitor, config::Config};

/// A multiplexer of subscriptions. Cheap to clone; lives as long as a clone or a subscription does.
///
/// It closes with its client. If the client is [opened again](crate::Client::reopen), so is the
/// mux, without the subscriptions that it had.
#[derive(Clone)]
pub struct Mux {
    inner: Arc<Inner>,
}

struct Inner {
    config: MuxConfig,
    live: RwLock<Arc<Live>>,
}

/// What runs from one opening to the next close.
pub(crate) struct Live {
    pub(crate) hub: Arc<Hub>,
    pool: OnceLock<Arc<Pool>>,
}

impl Live {
    fn new(hub: Arc<Hub>) -> Arc<Self> {
        Arc::new(Self { hub, pool: OnceLock::new() })
    }

    /// The workers of callbacks, made when first asked for.
    fn pool(&self, config: &MuxConfig) -> &Arc<Pool> {
        self.pool.get_or_init(|| Pool::new(&self.hub, config.callback_workers, config.max_callbacks))
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.get() {
            pool.abort();
        }
        self.hub.shut();
    }
}

impl Mux {
    pub(crate) fn start(base: Config, config: MuxConfig, monitor: Option<Monitor>) -> Self {
        let config = config.sanitised();
        let live = Live::new(Hub::start(base, config.clone(), monitor));
        Self { inner: Arc::new(Inner { config, live: RwLock::new(live) }) }
    }

    /// Starts anew if it is closed.
    fn reopen(&self) {
        let mut live = self.inner.live.write().unwrap_or_else(PoisonError::into_inner);
        if live.hub.closing.is_cancelled() {
            *live = Live::new(live.hub.again(self.inner.config.clone()));
        }
    }

    /// What runs now.
    pub(crate) fn live(&self) -> Arc<Live> {
        self.inner.live.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Subscribes to channels by their exact names.
    pub fn subscribe<N: Into<Bytes>>(&self, names: impl IntoIterator<Item = N>) -> Subscribe<'_> {
        self.prepare(Kind::Channel, names)
    }

    /// Subscribes to all channels that match patterns such as `news.*`.
    pub fn subscribe_pattern<N: Into<Bytes>>(&self, patterns: impl IntoIterator<Item = N>) -> Subscribe<'_> {
        self.prepare(Kind::Pattern, patterns)
    }

    /// Subscribes to sharded channels, which live in the slot of their name (Redis 7 and newer, Valkey).
    pub fn subscribe_sharded<N: Into<Bytes>>(&self, names: impl IntoIterator<Item = N>) -> Subscribe<'_> {
        self.prepare(Kind::Sharded, names)
    }

    fn prepare<N: Into<Bytes>>(&self, kind: Kind, names: impl IntoIterator<Item = N>) -> Subscribe<'_> {
        Subscribe::new(self, kind, names.into_iter().map(Into::into).collect())
    }

    /// What the mux has done and what it holds.
    pub fn stats(&self) -> MuxStats {
        let live = self.live();
        let mut stats = live.hub.stats();
        if let Some(pool) = live.pool.get() {
            stats.callbacks = pool.runs.load(Ordering::Relaxed);
            stats.callback_panics = pool.panics.load(Ordering::Relaxed);
        }
        stats
    }

    /// Ends all subscriptions: what was received can still be read, callbacks may finish it within the configured
    /// time, and a stuck callback is abandoned. Every task of the mux is gone when this returns, but for such a one.
    pub async fn close(&self) {
        let live = self.live();
        let hub = &live.hub;
        let connections = hub.take_connections();
        hub.shut();
        for connection in connections {
            connection.abort().await;
        }
        hub.tasks.wait().await;
        if let Some(pool) = live.pool.get() {
            pool.close(self.inner.config.close_timeout).await;
        }
    }

    /// Changes how many tasks run callbacks (at least 1), while they run. It begins with
    /// [`MuxConfig::callback_workers`].
    pub fn set_callback_workers(&self, workers: usize) {
        self.live().pool(self.config()).resize(workers.max(1));
    }

    /// The settings that this mux was made with.
    pub fn config(&self) -> &MuxConfig {
        &self.inner.config
    }
}

impl std::fmt::Debug for Mux {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mux").field("stats", &self.stats()).finish()
    }
}
