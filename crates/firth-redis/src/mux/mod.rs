//! The pub/sub multiplexer: any number of subscriptions over one connection per node, with no
//! silent gap.
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
//! **What is promised.** Pub/sub delivers at most once. Every message that the server sent on a
//! confirmed subscription is given to its subscriber, in order, unless a [`Signal`] says that some
//! may be missing: [`Signal::Gap`] to [`Signal::Resumed`] around a change of the cluster,
//! [`Signal::Lagged`] where a full buffer dropped some. The nodes of a cluster also forward
//! messages to each other, with a delay. So after a gap in which a channel changed its node, an
//! earlier message may come late, or twice.
//!
//! **Keyspace notifications.** A node of a cluster tells only of its own keys. So the mux
//! subscribes such names at every master, and follows the masters as they change. These are names
//! that begin with `__keyspace@` or `__keyevent@`, and patterns that begin with `__key` and may
//! match such a name. [`Signal::NodeLost`] names the node; the gap ends when all masters serve.
//! Other patterns that match such names too, for example `*`, get the keys of one node only.
//!
//! **How it works.** The `core` is a pure state: the desired set of (kind, name), the nodes that
//! serve it, and one reconcile step. The `driver` performs its actions. Subscriptions have
//! connections of their own, so that a push can never be taken for the reply of a request.

mod callbacks;
mod client_muxes;
mod config;
mod core;
mod driver;
mod event;
mod link;
mod mailbox;
mod meter;
mod placement;
mod registry;
mod stats;
mod subscription;
mod summary;
mod wire;

use self::callbacks::CallbackPool;
pub use self::callbacks::CallbackSubscription;
pub(crate) use self::client_muxes::ClientMuxes;
pub use self::config::{Buffer, MuxConfig, NodePreference, OverflowPolicy};
use self::driver::MuxDriver;
pub use self::event::{Event, GapReason, Message, Names, Signal, SubscriptionKind};
pub use self::stats::MuxStats;
pub use self::subscription::{SubscribeCall, Subscription};
use crate::cluster::monitor::Monitor;
use crate::config::Config;
use bytes::Bytes;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

/// A multiplexer of subscriptions. Cheap to clone; lives as long as a clone or a subscription does.
///
/// It closes with its client. If the client is [opened again](crate::Client::reopen), so is the
/// mux, without the subscriptions that it had.
#[derive(Clone)]
pub struct Mux {
    inner: Arc<MuxInner>,
}

struct MuxInner {
    config: MuxConfig,
    open_mux: RwLock<Arc<OpenMux>>,
}

/// What runs from one opening to the next close.
pub(crate) struct OpenMux {
    pub(crate) driver: Arc<MuxDriver>,
    pool: OnceLock<Arc<CallbackPool>>,
}

impl OpenMux {
    fn new(driver: Arc<MuxDriver>) -> Arc<Self> {
        Arc::new(Self { driver, pool: OnceLock::new() })
    }

    /// The workers of callbacks, made when first asked for.
    fn pool(&self, config: &MuxConfig) -> &Arc<CallbackPool> {
        self.pool
            .get_or_init(|| CallbackPool::new(&self.driver, config.callback_workers, config.max_callbacks))
    }
}

impl Drop for OpenMux {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.get() {
            pool.abort();
        }
        self.driver.shut_down();
    }
}

impl Mux {
    pub(crate) fn start(base: Config, config: MuxConfig, monitor: Option<Monitor>) -> Self {
        let config = config.sanitised();
        let open_mux = OpenMux::new(MuxDriver::start(base, config.clone(), monitor));
        Self { inner: Arc::new(MuxInner { config, open_mux: RwLock::new(open_mux) }) }
    }

    /// Starts anew if it is closed.
    fn reopen(&self) {
        let mut open_mux = self.inner.open_mux.write().unwrap_or_else(PoisonError::into_inner);
        if open_mux.driver.closing.is_cancelled() {
            *open_mux = OpenMux::new(open_mux.driver.restart(self.inner.config.clone()));
        }
    }

    /// What runs now.
    pub(crate) fn open_mux(&self) -> Arc<OpenMux> {
        self.inner.open_mux.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Subscribes to channels by their exact names.
    pub fn subscribe<N: Into<Bytes>>(&self, names: impl IntoIterator<Item = N>) -> SubscribeCall<'_> {
        self.prepare(SubscriptionKind::Channel, names)
    }

    /// Subscribes to all channels that match patterns such as `news.*`.
    pub fn subscribe_pattern<N: Into<Bytes>>(
        &self,
        patterns: impl IntoIterator<Item = N>,
    ) -> SubscribeCall<'_> {
        self.prepare(SubscriptionKind::Pattern, patterns)
    }

    /// Subscribes to sharded channels, which live in the slot of their name (Redis 7 and newer,
    /// Valkey).
    pub fn subscribe_sharded<N: Into<Bytes>>(&self, names: impl IntoIterator<Item = N>) -> SubscribeCall<'_> {
        self.prepare(SubscriptionKind::Sharded, names)
    }

    fn prepare<N: Into<Bytes>>(
        &self,
        kind: SubscriptionKind,
        names: impl IntoIterator<Item = N>,
    ) -> SubscribeCall<'_> {
        SubscribeCall::new(self, kind, names.into_iter().map(Into::into).collect())
    }

    /// What the mux has done and what it holds.
    pub fn stats(&self) -> MuxStats {
        let open_mux = self.open_mux();
        let mut stats = open_mux.driver.stats();
        if let Some(pool) = open_mux.pool.get() {
            stats.callbacks = pool.runs.load(Ordering::Relaxed);
            stats.callback_panics = pool.panics.load(Ordering::Relaxed);
        }
        stats
    }

    /// Ends all subscriptions: what was received can still be read, callbacks may finish it within
    /// the configured time, and a stuck callback is abandoned. Every task of the mux is gone when
    /// this returns, but for such a one.
    pub async fn close(&self) {
        let open_mux = self.open_mux();
        let driver = &open_mux.driver;
        let connections = driver.take_connections();
        driver.shut_down();
        for connection in connections {
            connection.abort().await;
        }
        driver.tasks.wait().await;
        if let Some(pool) = open_mux.pool.get() {
            pool.close(self.inner.config.close_timeout).await;
        }
    }

    /// Changes how many tasks run callbacks (at least 1), while they run. It begins with
    /// [`MuxConfig::callback_workers`].
    pub fn set_callback_workers(&self, workers: usize) {
        self.open_mux().pool(self.config()).resize(workers.max(1));
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
