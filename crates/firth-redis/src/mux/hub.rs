//! The mux's body: the lock around its core, the connections that its orders are carried out on, one task per node
//! that reads what the node sends, and one keeper that watches the topology and the clock.

use std::{
    collections::{HashMap, VecDeque},
    future::{Future, poll_fn},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    runtime::Handle,
    sync::{Notify, watch},
    time::Instant,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    config::MuxConfig,
    core::{Core, Order, Place, Want},
    mailbox::Mailbox,
    meter::MuxMeter,
    registry::LinkId,
    stats::MuxStats,
};
use crate::{
    backoff::Backoff,
    cluster::{chart::Health, monitor::Monitor, topology::Topology},
    config::{Address, Config, Server},
    connection::{
        Connection,
        feed::{Feed, FeedItem},
    },
    error::{CallError, LostCause},
    resp::pubsub::Said,
};

/// Room that is kept between two batches of answers.
const KEPT_ITEMS: usize = 64;

/// How often homeless channels are looked after.
const TICK: Duration = Duration::from_millis(50);

/// How often gauges are told, and connections looked at that serve nothing.
const ROUND: Duration = Duration::from_secs(1);

/// How a node's connection is made again: quickly, because a whole node's channels wait for it.
const RECONNECT: Backoff = Backoff {
    immediate: 2,
    first: Duration::from_millis(25),
    max: Duration::from_secs(1),
    factor: 2.0,
    jitter: 0.2,
};

pub(crate) struct Hub {
    state: Mutex<State>,
    base: Config,
    runtime: Handle,
    /// The cluster's topology; `None` for a single server.
    monitor: Option<Monitor>,
    nudge: Notify,
    pub(crate) meter: MuxMeter,
    pub(crate) closing: CancellationToken,
    pub(crate) tasks: TaskTracker,
    pub(crate) subscriptions: AtomicUsize,
}

struct State {
    core: Core,
    lines: HashMap<LinkId, Line>,
}

/// A connection to a node.
struct Line {
    connection: Connection,
    feed: Arc<Feed>,
}

impl Hub {
    pub(crate) fn start(base: Config, config: MuxConfig, monitor: Option<Monitor>) -> Arc<Self> {
        let mut news = monitor.as_ref().map(News::new);
        let (topology, place) = match &mut news {
            Some(news) => (news.topology(), Place::Cluster(base.cluster.address_map.clone())),
            None => (Arc::new(Topology::single(single_address(&base))), Place::Single),
        };
        let core = Core::new(config, topology, place);
        let hub = Arc::new(Self {
            state: Mutex::new(State { core, lines: HashMap::new() }),
            base,
            runtime: Handle::current(),
            monitor,
            nudge: Notify::new(),
            meter: MuxMeter::new(),
            closing: CancellationToken::new(),
            tasks: TaskTracker::new(),
            subscriptions: AtomicUsize::new(0),
        });
        hub.spawn("keeper", keep(hub.clone(), news));
        hub
    }

    /// Another hub for the same servers.
    pub(crate) fn again(&self, config: MuxConfig) -> Arc<Self> {
        Self::start(self.base.clone(), config, self.monitor.clone())
    }

    /// Runs a task of the mux. If the task panics, the core may be half changed: the mux closes,
    /// and its subscribers see the end.
    fn spawn(self: &Arc<Self>, what: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let alarm = Alarm { hub: self.clone(), what };
        let watched = async move {
            let _alarm = alarm;
            task.await;
        };
        self.tasks.spawn_on(watched, &self.runtime);
    }

    /// Changes the core under the lock, carries out its orders, and wakes whom it touched.
    pub(crate) fn with<T>(self: &Arc<Self>, change: impl FnOnce(&mut Core, Instant) -> T) -> T {
        let (mut orders, mut wakers) = (Vec::new(), Vec::new());
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let outcome = change(&mut state.core, Instant::now());
        state.core.drain(&mut orders, &mut wakers);
        self.meter.record(&mut state.core.tally);
        for order in orders {
            self.carry_out(&mut state, order);
        }
        let settled = state.core.is_settled();
        drop(state);
        wakers.into_iter().for_each(std::task::Waker::wake);
        if !settled {
            self.nudge.notify_one();
        }
        outcome
    }

    fn carry_out(self: &Arc<Self>, state: &mut State, order: Order) {
        match order {
            // After the end nothing is opened: nobody would close it.
            Order::Open(..) if self.closing.is_cancelled() => {}
            Order::Open(link, address) => {
                let line = self.dial(&address, state.core.config.read_ahead);
                self.spawn("reader", listen(self.clone(), link, line.feed.clone()));
                state.lines.insert(link, line);
            }
            Order::Send(link, op, bytes) => {
                if let (Some(line), Some(node)) = (state.lines.get(&link), state.core.links.get(link)) {
                    // A connection that is gone says so in its feed.
                    line.connection.send_unpaired(node.generation, op, &bytes);
                }
            }
            Order::Close(link) => drop(state.lines.remove(&link)),
            Order::Reset(link) => {
                if let Some(line) = state.lines.get(&link) {
                    line.connection.reset();
                }
            }
            Order::Refresh => {
                if let Some(monitor) = &self.monitor {
                    monitor.refresh();
                }
            }
            Order::Moved(slot, to) => {
                if let Some(monitor) = &self.monitor {
                    monitor.chart().moved(slot, &to);
                }
            }
        }
    }

    fn dial(&self, address: &Address, read_ahead: usize) -> Line {
        let mut config = match self.monitor {
            Some(_) => self.base.at(Server::Tcp(address.clone())),
            None => self.base.clone(),
        };
        config.reconnect = Some(RECONNECT);
        config.setup = Arc::from([]);
        let feed = Arc::new(Feed::new(read_ahead));
        // The caller may be outside of the runtime.
        let _entered = self.runtime.enter();
        Line { connection: Connection::spawn_feeding(config, "subscriptions", feed.clone()), feed }
    }

    /// Deals with what a node sent; `Err` if the line is no longer ours to read.
    fn hear(
        self: &Arc<Self>,
        link: LinkId,
        feed: &Arc<Feed>,
        items: &mut VecDeque<FeedItem>,
    ) -> Result<Option<Arc<Mailbox>>, ()> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let ours = state.lines.get(&link).is_some_and(|line| Arc::ptr_eq(&line.feed, feed));
        drop(state);
        if !ours {
            return Err(());
        }
        Ok(self.with(|core, now| core.hear(link, items, now)))
    }

    /// Why a call to subscribe has not succeeded within its time.
    pub(crate) fn excuse(self: &Arc<Self>, want: Want<'_>, limit: Duration) -> CallError {
        let known = self.with(|core, now| core.excuse(want, limit, now));
        known.unwrap_or_else(|| {
            let problem = self.monitor.as_ref().and_then(|monitor| monitor.chart().health().problem);
            match problem {
                Some(problem) => CallError::Down { cause: LostCause::Reconnect(problem) },
                None => CallError::Timeout { after: limit, sent: false },
            }
        })
    }

    pub(crate) fn stats(&self) -> MuxStats {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut stats = state.core.tally.totals.clone();
        stats.subscriptions = self.subscriptions.load(Ordering::Relaxed);
        stats.connections = state.lines.len();
        if self.closing.is_cancelled() {
            return stats;
        }
        let counts = state.core.registry.counts();
        [stats.channels, stats.patterns, stats.sharded] = counts.live;
        stats.homeless = counts.unserved;
        stats.queued = self.meter.backlog.len();
        stats
    }

    /// Ends every task and connection of the mux.
    pub(crate) fn shut(&self) {
        self.closing.cancel();
        self.tasks.close();
        let lines = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            for (_, channel) in state.core.registry.iter() {
                channel.listeners.iter().for_each(|mailbox| mailbox.close());
            }
            std::mem::take(&mut state.lines)
        };
        drop(lines);
    }

    /// The connections, to be closed one by one.
    pub(crate) fn take_connections(&self) -> Vec<Connection> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.lines.drain().map(|(_, line)| line.connection).collect()
    }
}

/// Tells of a task that panicked, and closes its mux.
struct Alarm {
    hub: Arc<Hub>,
    what: &'static str,
}

impl Drop for Alarm {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.hub.meter.task_panics.increment(1);
            tracing::error!(task = self.what, "a task of the mux panicked; the mux is closed");
            self.hub.shut();
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

/// Reads one node's feed until its line is closed.
async fn listen(hub: Arc<Hub>, link: LinkId, feed: Arc<Feed>) {
    let closing = hub.closing.clone();
    let mut items = VecDeque::new();
    let reading = async {
        loop {
            poll_fn(|cx| feed.poll_take(cx, &mut items)).await;
            let messages = items.iter().any(|item| matches!(item, FeedItem::Said(Said::Message { .. })));
            loop {
                match hub.hear(link, &feed, &mut items) {
                    Err(()) => return,
                    Ok(None) => break,
                    Ok(Some(full)) => poll_fn(|cx| full.poll_room(cx)).await,
                }
            }
            if !messages {
                // Answers come in heaps, once; what they took is given back.
                items.shrink_to(KEPT_ITEMS);
            }
        }
    };
    tokio::select! {
        () = closing.cancelled() => {}
        () = reading => {}
    }
}

/// Watches the topology, the clock while anything is homeless, and now and then what is no longer needed.
async fn keep(hub: Arc<Hub>, mut news: Option<News>) {
    let mut rounds = tokio::time::interval(ROUND);
    rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let unsettled = !hub.with(|core, _| core.is_settled());
        tokio::select! {
            () = hub.closing.cancelled() => return hub.meter.hold(MuxStats::default()),
            () = changed(&mut news) => learn(&hub, &mut news),
            () = tokio::time::sleep(TICK), if unsettled => hub.with(Core::tick),
            () = hub.nudge.notified(), if !unsettled => {}
            _ = rounds.tick() => {
                hub.with(Core::sweep);
                hub.meter.hold(hub.stats());
            }
        }
    }
}

/// What the monitor tells.
struct News {
    topology: watch::Receiver<Arc<Topology>>,
    health: watch::Receiver<Health>,
}

impl News {
    fn new(monitor: &Monitor) -> Self {
        Self { topology: monitor.watch(), health: monitor.chart().watch_health() }
    }

    fn topology(&mut self) -> Arc<Topology> {
        self.topology.borrow_and_update().clone()
    }
}

async fn changed(news: &mut Option<News>) {
    let Some(news) = news else { return std::future::pending().await };
    let more = tokio::select! {
        topology = news.topology.changed() => topology.is_ok(),
        health = news.health.changed() => health.is_ok(),
    };
    if !more {
        std::future::pending::<()>().await;
    }
}

/// The health is read first: whatever look it tells of, its topology is there already, and is learned before.
fn learn(hub: &Arc<Hub>, news: &mut Option<News>) {
    let Some(news) = news else { return };
    let seen = news.health.borrow_and_update().seen;
    let topology = news.topology();
    hub.with(|core, now| {
        core.retopologise(topology, now);
        if let Some(begun) = seen {
            core.looked(begun, now);
        }
    });
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::mux::{config::Buffer, event::Kind, registry::Confirm};

    fn start() -> Arc<Hub> {
        let nobody = Config::new(Server::Tcp(Address::new("127.0.0.1", 1)));
        Hub::start(nobody, MuxConfig::default(), None)
    }

    /// Wants a channel, which orders a connection.
    fn join(hub: &Arc<Hub>) -> Arc<Mailbox> {
        let mailbox = Arc::new(Mailbox::new(Buffer::default(), Arc::default()));
        let names = [bytes::Bytes::from_static(b"a")];
        let want = Want { kind: Kind::Channel, names: &names, mailbox: &mailbox };
        hub.with(|core, now| core.join(want, &Confirm::new(1), now));
        mailbox
    }

    #[tokio::test]
    async fn c20_connections_are_ordered_from_outside_of_the_runtime_too() {
        let hub = start();
        let other = hub.clone();
        std::thread::spawn(move || join(&other)).join().expect("nothing panics there");
        assert_eq!(hub.stats().connections, 1);
        hub.shut();
    }

    #[tokio::test]
    async fn c10_a_panic_in_a_task_closes_the_mux_for_all_to_see() {
        let hub = start();
        let mailbox = join(&hub);
        let broken = hub.clone();
        hub.spawn("test", async move { broken.with(|_, _| panic!("on purpose")) });
        hub.closing.cancelled().await;
        hub.tasks.wait().await;
        let cx = Context::from_waker(Waker::noop());
        assert_eq!(mailbox.poll_take(&cx, &mut VecDeque::new()), Poll::Ready(false));
    }
}
