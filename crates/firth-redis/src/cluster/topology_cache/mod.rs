//! Topology shared by all users of a cluster client: the routing table, and watchers of the
//! topology. Refreshes and the callers' redirections both write here, and never wait for each
//! other.

use super::diff::diff;
use super::node::NodeClient;
use super::routing_table::RoutingTable;
use super::topology::Topology;
use crate::config::{Address, Config};
use crate::connection::{ConnectionEvent, ConnectionEventKind, ConnectionEvents, ConnectionPhase};
use crate::error::{ConnectError, LostCause};
use crate::metrics::ClusterMeter;
use crate::resp::Frame;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::{Notify, broadcast, watch};
use tokio::time::Instant;

/// A redirection overrides refreshes for this long: the node that was asked may not know of the
/// move yet.
const REDIRECT_TTL: Duration = Duration::from_secs(1);
/// Between two refreshes, at most this many redirections change the routing table. The rest are
/// followed, and the next refresh learns them all.
const PATCHES: u32 = 16;
/// Redirections remembered at most.
const REMEMBERED: usize = 1024;
/// A node outside the topology is forgotten after this long without a redirection to it.
const EXTRA_NODE_TTL: Duration = Duration::from_secs(60);
/// Requests in flight at a node that left the cluster may go on for this long.
const DRAIN_TIME: Duration = Duration::from_secs(5);
/// How many pushes are kept for a slow listener.
const PUSH_CAPACITY: usize = 1024;
/// How many events are kept for a slow watcher.
const EVENT_CAPACITY: usize = 64;

pub(crate) struct TopologyCache {
    pub(crate) config: Config,
    pub(crate) meter: ClusterMeter,
    pub(crate) hint: Notify,
    pub(crate) pushes: broadcast::Sender<Arc<Frame>>,
    table: RwLock<Arc<RoutingTable>>,
    topology: watch::Sender<Arc<Topology>>,
    health: watch::Sender<TopologyHealth>,
    events: broadcast::Sender<ConnectionEvent>,
    recent: Mutex<RecentChanges>,
}

/// State of the refreshes.
#[derive(Debug, Clone, Default)]
pub(crate) struct TopologyHealth {
    /// Times that the topology became available; 1 is the first.
    pub(crate) generation: u64,
    /// Refreshes that ended.
    pub(crate) refreshes: u64,
    /// Start of the last successful refresh: its topology was true then, or later.
    pub(crate) refreshed_at: Option<Instant>,
    /// Failed refreshes in a row.
    pub(crate) failures: u32,
    /// Error of the last refresh, if it failed.
    pub(crate) problem: Option<Arc<ConnectError>>,
    /// The client was closed.
    pub(crate) closed: bool,
}

/// Changes since the last refresh.
#[derive(Default)]
struct RecentChanges {
    moved: HashMap<u16, (Address, Instant)>,
    patches: u32,
    extra_nodes: HashMap<Address, (Arc<NodeClient>, Instant)>,
    /// Nodes that left the cluster, and when.
    retired: Vec<(Arc<NodeClient>, Instant)>,
}

impl RecentChanges {
    /// Forgets what is too old.
    fn expire(&mut self, now: Instant) {
        self.patches = 0;
        self.moved.retain(|_, (_, at)| now.duration_since(*at) < REDIRECT_TTL);
        self.extra_nodes.retain(|_, (_, used)| now.duration_since(*used) < EXTRA_NODE_TTL);
        self.retired.retain(|(node, since)| {
            let stays = now.duration_since(*since) < DRAIN_TIME;
            if !stays {
                node.end();
            }
            stays
        });
    }
}

impl TopologyCache {
    pub(crate) fn new(config: Config) -> Self {
        let table = RoutingTable::empty();
        Self {
            config,
            meter: ClusterMeter::new(),
            hint: Notify::new(),
            pushes: broadcast::Sender::new(PUSH_CAPACITY),
            topology: watch::Sender::new(table.topology().clone()),
            table: RwLock::new(Arc::new(table)),
            health: watch::Sender::new(TopologyHealth::default()),
            events: broadcast::Sender::new(EVENT_CAPACITY),
            recent: Mutex::default(),
        }
    }

    /// Routing table of this moment.
    pub(crate) fn table(&self) -> Arc<RoutingTable> {
        self.table.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Calls `with` on the routing table without cloning its `Arc`.
    pub(crate) fn with_table<T>(&self, with: impl FnOnce(&RoutingTable) -> T) -> T {
        with(&self.table.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Arc<Topology>> {
        self.topology.subscribe()
    }

    pub(crate) fn watch_health(&self) -> watch::Receiver<TopologyHealth> {
        self.health.subscribe()
    }

    pub(crate) fn events(&self) -> ConnectionEvents {
        ConnectionEvents(self.events.subscribe())
    }

    pub(crate) fn health(&self) -> TopologyHealth {
        self.health.borrow().clone()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.health.borrow().closed
    }

    /// Asks the monitor to refresh soon.
    pub(crate) fn refresh(&self) {
        self.hint.notify_one();
    }

    /// The node at an address that a redirection named, whether or not the topology knows it.
    pub(crate) fn node(&self, address: &Address) -> Arc<NodeClient> {
        if let Some(node) = self.with_table(|table| table.node(address).cloned()) {
            return node;
        }
        let mut recent = self.recent();
        let (node, used) =
            recent.extra_nodes.entry(address.clone()).or_insert_with(|| (self.make(address), Instant::now()));
        *used = Instant::now();
        node.clone()
    }

    /// A node said that a slot lives elsewhere.
    pub(crate) fn moved(&self, slot: u16, to: &Address) {
        let mut recent = self.recent();
        if self.is_closed() {
            return;
        }
        if recent.moved.len() < REMEMBERED || recent.moved.contains_key(&slot) {
            recent.moved.insert(slot, (to.clone(), Instant::now()));
        }
        recent.patches += 1;
        if recent.patches <= PATCHES {
            let current = self.table().topology().clone();
            if let Some(topology) = current.with_slots_at([(slot, to)]) {
                self.replace(&mut recent, topology);
            }
        }
    }

    /// A node could not be reached: redirections to it no longer count.
    pub(crate) fn unreachable(&self, node: &Address) {
        self.recent().moved.retain(|_, (to, _)| to != node);
    }

    /// A refresh that began at this time succeeded. True if the topology or the state changed.
    pub(crate) fn refreshed(&self, topology: Topology, begun: Instant) -> bool {
        let mut recent = self.recent();
        recent.expire(Instant::now());
        let held = recent.moved.iter().map(|(slot, (to, _))| (*slot, to));
        let topology = topology.with_slots_at(held).unwrap_or(topology);
        let changed = topology != **self.table().topology();
        if changed {
            self.replace(&mut recent, topology);
        }
        drop(recent);
        let mut changed_state = false;
        self.health.send_modify(|h| {
            changed_state = h.generation == 0 || h.problem.is_some();
            let generation = h.generation + u64::from(changed_state);
            let refreshes = h.refreshes + 1;
            let closed = h.closed;
            *h = TopologyHealth {
                generation,
                refreshes,
                closed,
                refreshed_at: Some(begun),
                ..TopologyHealth::default()
            };
        });
        if changed_state {
            self.tell(ConnectionEventKind::Connected, ConnectionPhase::Connect);
        }
        changed || changed_state
    }

    /// A refresh failed; the topology stays as it was.
    pub(crate) fn refresh_failed(&self, problem: ConnectError) {
        self.recent().expire(Instant::now());
        let mut changed_state = false;
        self.health.send_modify(|h| {
            changed_state = h.problem.is_none();
            h.refreshes += 1;
            h.failures = h.failures.saturating_add(1);
            h.problem = Some(Arc::new(problem));
        });
        if changed_state {
            self.tell(ConnectionEventKind::Disconnected, ConnectionPhase::Runtime);
        }
    }

    /// Marks the client closed or open.
    pub(crate) fn set_closed(&self, closed: bool) {
        let changed_state = self.health.send_if_modified(|h| {
            let changed_state = h.closed != closed;
            if changed_state {
                // A client that is opened again knows no more than a new one.
                *h = TopologyHealth { closed, generation: h.generation, ..TopologyHealth::default() };
            }
            changed_state
        });
        if changed_state && closed {
            self.tell(ConnectionEventKind::Closed, ConnectionPhase::Close);
        }
    }

    fn tell(&self, kind: ConnectionEventKind, phase: ConnectionPhase) {
        let TopologyHealth { generation, failures, problem, .. } = self.health();
        let phase = match phase {
            ConnectionPhase::Connect if generation > 1 => ConnectionPhase::Reconnect,
            ConnectionPhase::Runtime if generation == 0 => ConnectionPhase::Connect,
            phase => phase,
        };
        let cause = problem.map(LostCause::Reconnect);
        // The send fails only without a watcher.
        let _ = self.events.send(ConnectionEvent { kind, phase, generation, attempts: failures, cause });
    }

    /// Takes every node out of use and returns them to be closed. Watchers keep the topology.
    pub(crate) fn clear(&self) -> Vec<Arc<NodeClient>> {
        let mut recent = self.recent();
        let RecentChanges { extra_nodes, retired, .. } = std::mem::take(&mut *recent);
        let table = std::mem::replace(
            &mut *self.table.write().unwrap_or_else(PoisonError::into_inner),
            Arc::new(RoutingTable::empty()),
        );
        let others = extra_nodes.into_values().chain(retired).map(|(node, _)| node);
        table.nodes().cloned().chain(others).collect()
    }

    /// Under the lock of `fresh`, so that two writers cannot undo each other's change.
    fn replace(&self, recent: &mut RecentChanges, topology: Topology) {
        let topology = Arc::new(topology);
        let extra_nodes = &mut recent.extra_nodes;
        let find = |address: &Address| {
            extra_nodes.remove(address).map_or_else(|| self.make(address), |extra| extra.0)
        };
        let old = self.table();
        let table = old.next(topology.clone(), find);
        *self.table.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(table);
        let changes = diff(old.topology(), &topology);
        changes.log();
        for node in changes.lost.iter().filter_map(|lost| old.node(lost)) {
            node.retire();
            recent.retired.push((node.clone(), Instant::now()));
        }
        self.topology.send_if_modified(|known| {
            let changed_state = *known != topology;
            *known = topology;
            changed_state
        });
    }

    fn make(&self, address: &Address) -> Arc<NodeClient> {
        Arc::new(NodeClient::new(&self.config, address.clone(), self.pushes.clone()))
    }

    fn recent(&self) -> MutexGuard<'_, RecentChanges> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
