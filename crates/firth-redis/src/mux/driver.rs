//! Driver of a mux: holds the lock around its core and performs the core's actions on connections.
//!
//! One task per node reads its frames. One more task watches the topology and the clock.

use super::config::MuxConfig;
use super::core::{MuxAction, MuxCore, MuxDeployment, SubscriberNames};
use super::mailbox::EventMailbox;
use super::meter::MuxMeter;
use super::registry::LinkId;
use super::stats::MuxStats;
use crate::backoff::Backoff;
use crate::cluster::monitor::Monitor;
use crate::cluster::topology::Topology;
use crate::cluster::topology_cache::TopologyHealth;
use crate::config::{Address, Config, Server};
use crate::connection::Connection;
use crate::connection::push_queue::{PushItem, PushQueue};
use crate::error::{CallError, LostCause};
use crate::resp::pubsub::PubSubFrame;
use std::collections::{HashMap, VecDeque};
use std::future::{Future, poll_fn};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Room that is kept between two batches of answers.
const KEPT_ITEMS: usize = 64;

/// Interval of checks for channels without a node.
const TICK: Duration = Duration::from_millis(50);

/// Interval of gauge updates, and of checks for idle connections.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// How a node's connection is made again: quickly, because a whole node's channels wait for it.
const RECONNECT: Backoff = Backoff {
    immediate: 2,
    first: Duration::from_millis(25),
    max: Duration::from_secs(1),
    factor: 2.0,
    jitter: 0.2,
};

pub(crate) struct MuxDriver {
    state: Mutex<DriverState>,
    base: Config,
    runtime: Handle,
    /// The cluster's topology; `None` for a single server.
    monitor: Option<Monitor>,
    wake_up: Notify,
    pub(crate) meter: MuxMeter,
    pub(crate) closing: CancellationToken,
    pub(crate) tasks: TaskTracker,
    pub(crate) subscriptions: AtomicUsize,
}

struct DriverState {
    core: MuxCore,
    links: HashMap<LinkId, LinkConnection>,
}

/// A connection to a node.
struct LinkConnection {
    connection: Connection,
    push_queue: Arc<PushQueue>,
}

impl MuxDriver {
    pub(crate) fn start(base: Config, config: MuxConfig, monitor: Option<Monitor>) -> Arc<Self> {
        let mut watch = monitor.as_ref().map(TopologyWatch::new);
        let (topology, deployment) = match &mut watch {
            Some(watch) => (watch.topology(), MuxDeployment::Cluster(base.cluster.address_map.clone())),
            None => (Arc::new(Topology::single(single_address(&base))), MuxDeployment::Single),
        };
        let core = MuxCore::new(config, topology, deployment);
        let driver = Arc::new(Self {
            state: Mutex::new(DriverState { core, links: HashMap::new() }),
            base,
            runtime: Handle::current(),
            monitor,
            wake_up: Notify::new(),
            meter: MuxMeter::new(),
            closing: CancellationToken::new(),
            tasks: TaskTracker::new(),
            subscriptions: AtomicUsize::new(0),
        });
        driver.spawn("keeper", maintain(driver.clone(), watch));
        driver
    }

    /// Another driver for the same servers.
    pub(crate) fn restart(&self, config: MuxConfig) -> Arc<Self> {
        Self::start(self.base.clone(), config, self.monitor.clone())
    }

    /// Runs a task of the mux. If the task panics, the core may be half changed: the mux closes,
    /// and its subscribers see the end.
    fn spawn(self: &Arc<Self>, what: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let alarm = PanicGuard { driver: self.clone(), what };
        let watched = async move {
            let _alarm = alarm;
            task.await;
        };
        self.tasks.spawn_on(watched, &self.runtime);
    }

    /// Changes the core under the lock, performs its actions, and wakes the subscribers that it
    /// touched.
    pub(crate) fn with<T>(self: &Arc<Self>, change: impl FnOnce(&mut MuxCore, Instant) -> T) -> T {
        let mut actions = Vec::new();
        let mut wakers = Vec::new();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let outcome = change(&mut state.core, Instant::now());
        state.core.drain(&mut actions, &mut wakers);
        self.meter.record(&mut state.core.counters);
        for action in actions {
            self.perform(&mut state, action);
        }
        let settled = state.core.is_settled();
        drop(state);
        wakers.into_iter().for_each(std::task::Waker::wake);
        if !settled {
            self.wake_up.notify_one();
        }
        outcome
    }

    fn perform(self: &Arc<Self>, state: &mut DriverState, action: MuxAction) {
        match action {
            // After the end no connection is opened: no task would close it.
            MuxAction::Open(..) if self.closing.is_cancelled() => {}
            MuxAction::Open(link, address) => {
                let link_connection = self.dial(&address, state.core.config.read_ahead);
                self.spawn("reader", read_link(self.clone(), link, link_connection.push_queue.clone()));
                state.links.insert(link, link_connection);
            }
            MuxAction::Send(link, op, bytes) => {
                if let (Some(link_connection), Some(node)) =
                    (state.links.get(&link), state.core.links.get(link))
                {
                    // A lost connection reports that in its push queue.
                    link_connection.connection.send_unpaired(node.generation, op, &bytes);
                }
            }
            MuxAction::Close(link) => drop(state.links.remove(&link)),
            MuxAction::Reset(link) => {
                if let Some(link_connection) = state.links.get(&link) {
                    link_connection.connection.reset();
                }
            }
            MuxAction::Refresh => {
                if let Some(monitor) = &self.monitor {
                    monitor.refresh();
                }
            }
            MuxAction::Moved(slot, to) => {
                if let Some(monitor) = &self.monitor {
                    monitor.cache().moved(slot, &to);
                }
            }
        }
    }

    fn dial(&self, address: &Address, read_ahead: usize) -> LinkConnection {
        let mut config = match self.monitor {
            Some(_) => self.base.at(Server::Tcp(address.clone())),
            None => self.base.clone(),
        };
        config.reconnect = Some(RECONNECT);
        config.setup = Arc::from([]);
        let push_queue = Arc::new(PushQueue::new(read_ahead));
        // The caller may be outside of the runtime.
        let _entered = self.runtime.enter();
        LinkConnection {
            connection: Connection::spawn_subscriber(config, "subscriptions", push_queue.clone()),
            push_queue,
        }
    }

    /// Handles the items of a node; `Err` if another connection has replaced this one.
    fn handle(
        self: &Arc<Self>,
        link: LinkId,
        push_queue: &Arc<PushQueue>,
        items: &mut VecDeque<PushItem>,
    ) -> Result<Option<Arc<EventMailbox>>, ()> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let ours = state
            .links
            .get(&link)
            .is_some_and(|link_connection| Arc::ptr_eq(&link_connection.push_queue, push_queue));
        drop(state);
        if !ours {
            return Err(());
        }
        Ok(self.with(|core, now| core.handle(link, items, now)))
    }

    /// Why a call to subscribe has not succeeded within its time.
    pub(crate) fn timeout_reason(self: &Arc<Self>, want: SubscriberNames<'_>, limit: Duration) -> CallError {
        let known = self.with(|core, now| core.timeout_reason(want, limit, now));
        known.unwrap_or_else(|| {
            let problem = self.monitor.as_ref().and_then(|monitor| monitor.cache().health().problem);
            match problem {
                Some(problem) => CallError::Down { cause: LostCause::Reconnect(problem) },
                None => CallError::Timeout { after: limit, sent: false },
            }
        })
    }

    pub(crate) fn stats(&self) -> MuxStats {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut stats = state.core.counters.totals.clone();
        stats.subscriptions = self.subscriptions.load(Ordering::Relaxed);
        stats.connections = state.links.len();
        if self.closing.is_cancelled() {
            return stats;
        }
        let counts = state.core.registry.counts();
        [stats.channels, stats.patterns, stats.sharded] = counts.live;
        stats.unserved = counts.unserved;
        stats.queued = self.meter.backlog.len();
        stats
    }

    /// Ends every task and connection of the mux.
    pub(crate) fn shut_down(&self) {
        self.closing.cancel();
        self.tasks.close();
        let links = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            for (_, channel) in state.core.registry.iter() {
                channel.listeners.iter().for_each(|mailbox| mailbox.close());
            }
            std::mem::take(&mut state.links)
        };
        drop(links);
    }

    /// The connections, to be closed one by one.
    pub(crate) fn take_connections(&self) -> Vec<Connection> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.links.drain().map(|(_, link_connection)| link_connection.connection).collect()
    }
}

/// Tells of a task that panicked, and closes its mux.
struct PanicGuard {
    driver: Arc<MuxDriver>,
    what: &'static str,
}

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.driver.meter.task_panics.increment(1);
            tracing::error!(task = self.what, "a task of the mux panicked; the mux is closed");
            self.driver.shut_down();
        }
    }
}

/// A name for the only server of a mux without a cluster.
fn single_address(config: &Config) -> Address {
    match &config.server {
        Server::Tcp(address) => address.clone(),
        Server::Unix(path) => Address::new(path.display().to_string(), 0),
        Server::Sentinel(sentinels) => Address::new(sentinels.master.clone(), 0),
        Server::Cluster(_) => unreachable!("a cluster has a monitor"),
    }
}

/// Reads the push queue of one node until its connection is replaced.
async fn read_link(driver: Arc<MuxDriver>, link: LinkId, push_queue: Arc<PushQueue>) {
    let closing = driver.closing.clone();
    let mut items = VecDeque::new();
    let reading = async {
        loop {
            poll_fn(|cx| push_queue.poll_take(cx, &mut items)).await;
            let messages =
                items.iter().any(|item| matches!(item, PushItem::Frame(PubSubFrame::Message { .. })));
            loop {
                match driver.handle(link, &push_queue, &mut items) {
                    Err(()) => return,
                    Ok(None) => break,
                    Ok(Some(full)) => poll_fn(|cx| full.poll_room(cx)).await,
                }
            }
            if !messages {
                // Answers come in large batches once; give their memory back.
                items.shrink_to(KEPT_ITEMS);
            }
        }
    };
    tokio::select! {
        () = closing.cancelled() => {}
        () = reading => {}
    }
}

/// Watches the topology, the clock while any channel is unsettled, and idle connections at
/// intervals.
async fn maintain(driver: Arc<MuxDriver>, mut watch: Option<TopologyWatch>) {
    let mut sweeps = tokio::time::interval(SWEEP_INTERVAL);
    sweeps.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let unsettled = !driver.with(|core, _| core.is_settled());
        tokio::select! {
            () = driver.closing.cancelled() => return driver.meter.hold(MuxStats::default()),
            () = topology_changed(&mut watch) => apply_topology(&driver, &mut watch),
            () = tokio::time::sleep(TICK), if unsettled => driver.with(MuxCore::tick),
            () = driver.wake_up.notified(), if !unsettled => {}
            _ = sweeps.tick() => {
                driver.with(MuxCore::sweep);
                driver.meter.hold(driver.stats());
            }
        }
    }
}

/// Watchers of the monitor.
struct TopologyWatch {
    topology: watch::Receiver<Arc<Topology>>,
    health: watch::Receiver<TopologyHealth>,
}

impl TopologyWatch {
    fn new(monitor: &Monitor) -> Self {
        Self { topology: monitor.watch(), health: monitor.cache().watch_health() }
    }

    fn topology(&mut self) -> Arc<Topology> {
        self.topology.borrow_and_update().clone()
    }
}

async fn topology_changed(watch: &mut Option<TopologyWatch>) {
    let Some(watch) = watch else { return std::future::pending().await };
    let more = tokio::select! {
        topology = watch.topology.changed() => topology.is_ok(),
        health = watch.health.changed() => health.is_ok(),
    };
    if !more {
        std::future::pending::<()>().await;
    }
}

/// Applies the newest topology. The health is read first: the topology of the refresh that it tells
/// of is there already.
fn apply_topology(driver: &Arc<MuxDriver>, watch: &mut Option<TopologyWatch>) {
    let Some(watch) = watch else { return };
    let seen = watch.health.borrow_and_update().refreshed_at;
    let topology = watch.topology();
    driver.with(|core, now| {
        core.set_topology(topology, now);
        if let Some(begun) = seen {
            core.topology_refreshed(begun, now);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mux::{config::Buffer, event::SubscriptionKind, registry::Confirmation};
    use std::task::{Context, Poll, Waker};

    fn start() -> Arc<MuxDriver> {
        let nobody = Config::new(Server::Tcp(Address::new("127.0.0.1", 1)));
        MuxDriver::start(nobody, MuxConfig::default(), None)
    }

    /// Wants a channel, which orders a connection.
    fn join(driver: &Arc<MuxDriver>) -> Arc<EventMailbox> {
        let mailbox = Arc::new(EventMailbox::new(Buffer::default(), Arc::default()));
        let names = [bytes::Bytes::from_static(b"a")];
        let want = SubscriberNames { kind: SubscriptionKind::Channel, names: &names, mailbox: &mailbox };
        driver.with(|core, now| core.join(want, &Confirmation::new(1), now));
        mailbox
    }

    #[tokio::test]
    async fn c20_connections_are_ordered_from_outside_of_the_runtime_too() {
        let driver = start();
        let other = driver.clone();
        std::thread::spawn(move || join(&other)).join().expect("nothing panics there");
        assert_eq!(driver.stats().connections, 1);
        driver.shut_down();
    }

    #[tokio::test]
    async fn c10_a_panic_in_a_task_closes_the_mux_for_all_to_see() {
        let driver = start();
        let mailbox = join(&driver);
        let broken = driver.clone();
        driver.spawn("test", async move { broken.with(|_, _| panic!("on purpose")) });
        driver.closing.cancelled().await;
        driver.tasks.wait().await;
        let cx = Context::from_waker(Waker::noop());
        assert_eq!(mailbox.poll_take(&cx, &mut VecDeque::new()), Poll::Ready(false));
    }
}
