//! What is known of the cluster, shared by everyone who uses it: the view that requests are routed by, and the watchers
//! of the topology. The monitor's looks and the callers' redirections both write here; they never wait for each other.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
    time::Duration,
};

use tokio::{
    sync::{Notify, broadcast, watch},
    time::Instant,
};

use super::{diff::diff, node::Node, topology::Topology, view::View};
use crate::{
    config::{Address, Config},
    connection::{ConnectionEvent, ConnectionEvents, EventKind, Stage},
    error::{ConnectError, LostCause},
    metrics::ClusterMeter,
    resp::Frame,
};

/// What a redirection said is believed for so long, whatever a node says that has not heard of it yet.
const HELD: Duration = Duration::from_secs(1);
/// So many redirections change the view between two looks; the rest are followed, and the look learns them all.
const PATCHES: u32 = 16;
/// Redirections remembered at most.
const REMEMBERED: usize = 1024;
/// A node outside the topology that nobody was sent to for so long is forgotten.
const GUEST_STAY: Duration = Duration::from_secs(60);
/// What is under way at a node that left the cluster may go on for so long.
const FAREWELL: Duration = Duration::from_secs(5);
/// How many pushes are kept for a slow listener.
const PUSH_CAPACITY: usize = 1024;
/// How many events are kept for a slow watcher.
const EVENT_CAPACITY: usize = 64;

pub(crate) struct Chart {
    pub(crate) config: Config,
    pub(crate) meter: ClusterMeter,
    pub(crate) hint: Notify,
    pub(crate) pushes: broadcast::Sender<Arc<Frame>>,
    view: RwLock<Arc<View>>,
    topology: watch::Sender<Arc<Topology>>,
    health: watch::Sender<Health>,
    events: broadcast::Sender<ConnectionEvent>,
    fresh: Mutex<Fresh>,
}

/// How the looks at the cluster go.
#[derive(Debug, Clone, Default)]
pub(crate) struct Health {
    /// How often the topology came into reach; 1 is the first time.
    pub(crate) generation: u64,
    /// Looks that ended.
    pub(crate) looks: u64,
    /// When the last look that succeeded was begun: what it told was true then, or later.
    pub(crate) seen: Option<Instant>,
    /// Looks in a row that failed.
    pub(crate) failures: u32,
    /// Why the last look failed, if it did.
    pub(crate) problem: Option<Arc<ConnectError>>,
    /// The client was closed.
    pub(crate) closed: bool,
}

/// What was learned since the last look.
#[derive(Default)]
struct Fresh {
    moved: HashMap<u16, (Address, Instant)>,
    patches: u32,
    guests: HashMap<Address, (Arc<Node>, Instant)>,
    /// Nodes that left the cluster, and when.
    retired: Vec<(Arc<Node>, Instant)>,
}

impl Fresh {
    /// Forgets what is too old.
    fn age(&mut self, now: Instant) {
        self.patches = 0;
        self.moved.retain(|_, (_, at)| now.duration_since(*at) < HELD);
        self.guests.retain(|_, (_, used)| now.duration_since(*used) < GUEST_STAY);
        self.retired.retain(|(node, since)| {
            let stays = now.duration_since(*since) < FAREWELL;
            if !stays {
                node.end();
            }
            stays
        });
    }
}

impl Chart {
    pub(crate) fn new(config: Config) -> Self {
        let view = View::empty();
        Self {
            config,
            meter: ClusterMeter::new(),
            hint: Notify::new(),
            pushes: broadcast::Sender::new(PUSH_CAPACITY),
            topology: watch::Sender::new(view.topology().clone()),
            view: RwLock::new(Arc::new(view)),
            health: watch::Sender::new(Health::default()),
            events: broadcast::Sender::new(EVENT_CAPACITY),
            fresh: Mutex::default(),
        }
    }

    /// What requests are routed by at this moment.
    pub(crate) fn view(&self) -> Arc<View> {
        self.view.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Calls `with` on the view without taking a share of it.
    pub(crate) fn look_up<T>(&self, with: impl FnOnce(&View) -> T) -> T {
        with(&self.view.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Arc<Topology>> {
        self.topology.subscribe()
    }

    pub(crate) fn watch_health(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    pub(crate) fn events(&self) -> ConnectionEvents {
        ConnectionEvents(self.events.subscribe())
    }

    pub(crate) fn health(&self) -> Health {
        self.health.borrow().clone()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.health.borrow().closed
    }

    /// Asks the monitor to look soon.
    pub(crate) fn refresh(&self) {
        self.hint.notify_one();
    }

    /// The node at an address that a redirection named, whether or not the topology knows it.
    pub(crate) fn node(&self, address: &Address) -> Arc<Node> {
        if let Some(node) = self.look_up(|view| view.node(address).cloned()) {
            return node;
        }
        let mut fresh = self.fresh();
        let (node, used) =
            fresh.guests.entry(address.clone()).or_insert_with(|| (self.make(address), Instant::now()));
        *used = Instant::now();
        node.clone()
    }

    /// A node said that a slot lives elsewhere.
    pub(crate) fn moved(&self, slot: u16, to: &Address) {
        let mut fresh = self.fresh();
        if self.is_closed() {
            return;
        }
        if fresh.moved.len() < REMEMBERED || fresh.moved.contains_key(&slot) {
            fresh.moved.insert(slot, (to.clone(), Instant::now()));
        }
        fresh.patches += 1;
        if fresh.patches <= PATCHES {
            let current = self.view().topology().clone();
            if let Some(topology) = current.with_slots_at([(slot, to)]) {
                self.replace(&mut fresh, topology);
            }
        }
    }

    /// A node could not be reached: what redirections said of it no longer counts.
    pub(crate) fn unreachable(&self, node: &Address) {
        self.fresh().moved.retain(|_, (to, _)| to != node);
    }

    /// A look that was begun at this time succeeded. True if it told something new.
    pub(crate) fn learn(&self, topology: Topology, begun: Instant) -> bool {
        let mut fresh = self.fresh();
        fresh.age(Instant::now());
        let held = fresh.moved.iter().map(|(slot, (to, _))| (*slot, to));
        let topology = topology.with_slots_at(held).unwrap_or(topology);
        let changed = topology != **self.view().topology();
        if changed {
            self.replace(&mut fresh, topology);
        }
        drop(fresh);
        let mut news = false;
        self.health.send_modify(|h| {
            news = h.generation == 0 || h.problem.is_some();
            let generation = h.generation + u64::from(news);
            let (looks, closed) = (h.looks + 1, h.closed);
            *h = Health { generation, looks, closed, seen: Some(begun), ..Health::default() };
        });
        if news {
            self.tell(EventKind::Connected, Stage::Connect);
        }
        changed || news
    }

    /// A look failed; what was known before stays.
    pub(crate) fn learned_nothing(&self, problem: ConnectError) {
        self.fresh().age(Instant::now());
        let mut news = false;
        self.health.send_modify(|h| {
            news = h.problem.is_none();
            h.looks += 1;
            h.failures = h.failures.saturating_add(1);
            h.problem = Some(Arc::new(problem));
        });
        if news {
            self.tell(EventKind::Disconnected, Stage::Runtime);
        }
    }

    /// Says whether the client is closed.
    pub(crate) fn set_closed(&self, closed: bool) {
        let news = self.health.send_if_modified(|h| {
            let news = h.closed != closed;
            if news {
                // A client that is opened again knows no more than a new one.
                *h = Health { closed, generation: h.generation, ..Health::default() };
            }
            news
        });
        if news && closed {
            self.tell(EventKind::Closed, Stage::Close);
        }
    }

    fn tell(&self, kind: EventKind, stage: Stage) {
        let Health { generation, failures, problem, .. } = self.health();
        let stage = match stage {
            Stage::Connect if generation > 1 => Stage::Reconnect,
            Stage::Runtime if generation == 0 => Stage::Connect,
            stage => stage,
        };
        let cause = problem.map(LostCause::Reconnect);
        // Nobody may be watching: then there is nobody to tell.
        let _ = self.events.send(ConnectionEvent { kind, stage, generation, attempts: failures, cause });
    }

    /// Takes every node out of use and gives them to be closed. Watchers of the topology keep it.
    pub(crate) fn clear(&self) -> Vec<Arc<Node>> {
        let mut fresh = self.fresh();
        let Fresh { guests, retired, .. } = std::mem::take(&mut *fresh);
        let view = std::mem::replace(
            &mut *self.view.write().unwrap_or_else(PoisonError::into_inner),
            Arc::new(View::empty()),
        );
        let others = guests.into_values().chain(retired).map(|(node, _)| node);
        view.nodes().cloned().chain(others).collect()
    }

    /// Under the lock of `fresh`, so that two writers cannot undo each other's change.
    fn replace(&self, fresh: &mut Fresh, topology: Topology) {
        let topology = Arc::new(topology);
        let guests = &mut fresh.guests;
        let find =
            |address: &Address| guests.remove(address).map_or_else(|| self.make(address), |guest| guest.0);
        let old = self.view();
        let view = old.next(topology.clone(), find);
        *self.view.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(view);
        let changes = diff(old.topology(), &topology);
        changes.log();
        for node in changes.lost.iter().filter_map(|lost| old.node(lost)) {
            node.retire();
            fresh.retired.push((node.clone(), Instant::now()));
        }
        self.topology.send_if_modified(|known| {
            let news = *known != topology;
            *known = topology;
            news
        });
    }

    fn make(&self, address: &Address) -> Arc<Node> {
        Arc::new(Node::new(&self.config, address.clone(), self.pushes.clone()))
    }

    fn fresh(&self) -> MutexGuard<'_, Fresh> {
        self.fresh.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
