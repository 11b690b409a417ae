//! Sends each request to the node that owns its slot. Holds the monitor and the topology cache;
//! [`Client`](crate::Client) calls it.

use super::info::{NodeInfo, NodeRole};
use super::monitor::Monitor;
use super::node::NodeClient;
use super::one_node::common_slot;
use super::parse::TopologyReader;
use super::redirect::{AnnouncedAddress, RetryBudget, RetryDecision, RetryReason};
use super::request::ClusterRequest;
use super::routing_table::RoutingTable;
use super::scatter::NodeBatch;
use super::slot::slot;
use super::topology_cache::{TopologyCache, TopologyHealth};
use crate::command::{Atomicity, Pipe};
use crate::config::{Address, Config, Server};
use crate::connection::{Connection, ConnectionEvents, ConnectionState, Request, RequestRoute, ServerInfo};
use crate::error::{CallError, ConnectError, LostCause};
use crate::resp::Frame;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast;
use tokio::task::JoinSet;

/// Masters that a session is tried at, one after the other, while the cluster changes.
const SESSION_TRIES: u32 = 3;

pub(crate) struct ClusterRouter {
    monitor: Monitor,
}

/// Where a request goes.
pub(crate) enum RoutePlan {
    /// Over this connection, in one request.
    Whole(RequestRoute<'static>),
    /// In several batches to several nodes.
    Split(Vec<NodeBatch>),
    /// No node is known yet.
    NoNode,
}

/// Where an attempt goes.
pub(crate) enum RetryTarget {
    /// To the owner of its slot at that time.
    Owner,
    /// To this node.
    Node(Arc<NodeClient>),
    /// To this node, behind an ASKING.
    Ask(Arc<NodeClient>),
}

impl ClusterRouter {
    /// Starts the monitor. Requests may be sent at once.
    pub(crate) fn spawn(config: Config) -> Self {
        Self { monitor: Monitor::spawn(config) }
    }

    pub(crate) fn monitor(&self) -> &Monitor {
        &self.monitor
    }

    pub(crate) fn cache(&self) -> &TopologyCache {
        self.monitor.cache()
    }

    pub(crate) fn config(&self) -> &Config {
        &self.cache().config
    }

    /// A request on its way; begins when first polled.
    pub(crate) fn request<'c>(
        &'c self,
        request: Request<'c>,
        timeout: Option<Duration>,
    ) -> ClusterRequest<'c> {
        ClusterRequest::new(self, request, timeout)
    }

    // ---- where to ---------------------------------------------------------------------------

    /// Plan of a request's first attempt.
    pub(crate) fn plan(&self, request: &Request<'_>) -> Result<RoutePlan, CallError> {
        match request {
            Request::Many(pipe) if pipe.atomicity() == Atomicity::PerKey => {
                let mut batches = self.batches(pipe, 0..pipe.len(), true);
                match batches.len() {
                    0 => Ok(RoutePlan::NoNode),
                    1 => batches.remove(0).route(request).map(RoutePlan::Whole),
                    _ => Ok(RoutePlan::Split(batches)),
                }
            }
            _ => self.route(request, true).map(|route| route.map_or(RoutePlan::NoNode, RoutePlan::Whole)),
        }
    }

    /// Connection to the owner of the request's slot, or to a replica if the request only reads and
    /// this is the first attempt.
    pub(crate) fn route(
        &self,
        request: &Request<'_>,
        first: bool,
    ) -> Result<Option<RequestRoute<'static>>, CallError> {
        let slot = common_slot(request)?;
        let reads = first && matches!(request, Request::One(command) if command.reads());
        self.cache().with_table(|table| {
            if let Some(replica) = self.replica(table, slot.filter(|_| reads)) {
                return replica.read_route(request).map(Some);
            }
            owner(table, slot).map(|node| node.route(request)).transpose()
        })
    }

    /// Commands of a pipeline by node. Commands without a key go with the first that has one. Empty
    /// if no node is known.
    pub(crate) fn batches(
        &self,
        pipe: &Pipe,
        indices: impl Iterator<Item = usize>,
        first: bool,
    ) -> Vec<NodeBatch> {
        let mut all = pipe.commands();
        let mut at = 0;
        let mut wanted = indices.map(move |index| {
            let command = all.nth(index - at).expect("the pipeline holds this command");
            at = index + 1;
            (index, command.key.map(slot), first && command.reads)
        });
        self.cache().with_table(|table| {
            let mut batches: Vec<NodeBatch> = Vec::new();
            let mut keyless: Vec<usize> = Vec::new();
            for (index, slot, reads) in &mut wanted {
                let Some(slot) = slot else {
                    keyless.push(index);
                    continue;
                };
                let replica = self.replica(table, Some(slot).filter(|_| reads));
                let Some(node) = replica.or_else(|| owner(table, Some(slot))) else { return Vec::new() };
                NodeBatch::put(&mut batches, node, replica.is_some(), index);
            }
            let home = batches.iter().position(|batch| !batch.reads_from_replica());
            match (home, table.any_master()) {
                (Some(home), _) => batches[home].also(keyless),
                (None, Some(node)) => {
                    keyless.into_iter().for_each(|index| NodeBatch::put(&mut batches, node, false, index));
                }
                (None, None) => {}
            }
            batches
        })
    }

    fn replica<'v>(&self, table: &'v RoutingTable, slot: Option<u16>) -> Option<&'v Arc<NodeClient>> {
        table.replica(slot?, self.config().cluster.reads)
    }

    // ---- learning from answers --------------------------------------------------------------

    /// Decision after a failed attempt. `at` is the node that it went to.
    pub(crate) fn decide_failure(&self, error: &CallError, at: Option<&Address>) -> RetryDecision {
        if self.cache().is_closed() {
            return RetryDecision::Finish;
        }
        if RetryDecision::hints_at_change(error) {
            self.cache().refresh();
        }
        let decision = RetryDecision::of_failure(error);
        if let (RetryDecision::Retry(_), Some(at)) = (&decision, at) {
            self.cache().unreachable(at);
            if matches!(error, CallError::Closed { .. })
                && let Some(node) = self.cache().with_table(|table| table.node(at).cloned())
            {
                node.revive();
            }
        }
        decision
    }

    /// Learns from a decision, and returns where to go.
    pub(crate) fn learn(&self, decision: &RetryDecision, at: Option<&Address>) -> RetryTarget {
        self.cache().meter.redirected(decision);
        match decision {
            RetryDecision::Finish => RetryTarget::Owner,
            RetryDecision::Ask { to } => RetryTarget::Ask(self.cache().node(&self.reachable(to, at))),
            RetryDecision::Moved { slot, to } => {
                let to = self.reachable(to, at);
                let known =
                    self.cache().with_table(|table| table.master(*slot).is_some_and(|n| *n.address() == to));
                if !known {
                    self.cache().moved(*slot, &to);
                    self.cache().refresh();
                }
                RetryTarget::Node(self.cache().node(&to))
            }
            RetryDecision::Retry(RetryReason::TryAgain) => RetryTarget::Owner,
            RetryDecision::Retry(_) => {
                self.cache().refresh();
                RetryTarget::Owner
            }
        }
    }

    /// An announced address as this client can reach it.
    fn reachable(&self, announced: &AnnouncedAddress, at: Option<&Address>) -> Address {
        let nobody = Address::new("localhost", 0);
        let reader = TopologyReader::of(self.config(), at.unwrap_or(&nobody));
        reader.address(&announced.host, announced.port)
    }

    /// Error of an attempt as the caller sees it: in terms of the whole request, and of an open
    /// client.
    pub(crate) fn explain(&self, error: CallError, budget: &RetryBudget) -> CallError {
        let cause = LostCause::Demoted;
        match budget.in_whole_request(error) {
            CallError::Closed { sent: true } if !self.cache().is_closed() => {
                CallError::Lost { sent: true, cause }
            }
            CallError::Closed { sent: false } if !self.cache().is_closed() => CallError::Down { cause },
            error => error,
        }
    }

    /// Why there is no node to send to.
    pub(crate) fn no_node(&self) -> CallError {
        let health = self.cache().health();
        match health.problem {
            _ if health.closed => CallError::Closed { sent: false },
            Some(problem) => CallError::Down { cause: LostCause::Reconnect(problem) },
            None => CallError::Down { cause: LostCause::Closed },
        }
    }

    /// Waits for the first refresh, within the request's time.
    pub(crate) async fn first_refresh(&self, budget: &RetryBudget) {
        let mut health = self.cache().watch_health();
        let ended = health.wait_for(|h| h.refreshes > 0 || h.closed);
        // The next attempt shows whether the refresh ended or the time is up.
        match budget.time_left(tokio::time::Instant::now()) {
            Some(Some(left)) => drop(tokio::time::timeout(left, ended).await),
            Some(None) => drop(ended.await),
            None => {}
        }
    }

    // ---- the client's other wishes ----------------------------------------------------------

    /// Waits until every slot has an owner. With `fail_fast`, returns the first refresh's error.
    pub(crate) async fn known(&self, fail_fast: bool) -> Result<(), ConnectError> {
        let cache = self.cache();
        let complete = || cache.with_table(|table| table.topology().is_complete());
        let mut health = cache.watch_health();
        let reached = |h: &TopologyHealth| h.closed || (h.refreshes > 0 && (fail_fast || complete()));
        let health = health.wait_for(reached).await.map_or_else(|_| TopologyHealth::default(), |h| h.clone());
        match health.problem {
            _ if health.closed => Err(ConnectError::Closed),
            _ if complete() => Ok(()),
            Some(problem) => Err((*problem).clone()),
            None => {
                let missing = cache.with_table(|table| table.topology().orphaned_slots());
                Err(ConnectError::NoTopology { problem: format!("{missing} slots have no owner") })
            }
        }
    }

    /// A connection of its own to the master of a slot.
    pub(crate) async fn session(&self, slot: u16) -> Result<Connection, ConnectError> {
        let mut health = self.cache().watch_health();
        let mut refreshes = 0;
        let mut tries = 0;
        loop {
            tries += 1;
            // A refresh later than the last attempt; a closed client has no node.
            let refreshed = health.wait_for(|h| h.refreshes > refreshes || h.closed).await;
            let problem = refreshed.ok().and_then(|h| {
                refreshes = h.refreshes;
                h.problem.clone()
            });
            let Some(node) = self.cache().with_table(|table| owner(table, Some(slot)).cloned()) else {
                return Err(problem.map_or(ConnectError::Closed, |problem| (*problem).clone()));
            };
            let config = Config { reconnect: None, ..node.config().clone() };
            let connection = Connection::spawn(config, "session");
            match connection.opened(true).await {
                Ok(()) => return Ok(connection),
                Err(error) if tries >= SESSION_TRIES || !error.is_retryable() => return Err(error),
                Err(_) => self.cache().refresh(),
            }
        }
    }

    pub(crate) fn nodes(&self) -> Vec<NodeInfo> {
        let table = self.cache().table();
        let mut nodes = Vec::new();
        for (index, shard) in table.topology().shards().iter().enumerate() {
            let slots = table.topology().ranges_of(index);
            for address in shard.nodes() {
                let is_master = *address == shard.master;
                let role = if is_master { NodeRole::Master } else { NodeRole::Replica };
                nodes.push(NodeInfo { address: address.clone(), role, slots: slots.clone() });
            }
        }
        nodes
    }

    pub(crate) fn state(&self) -> ConnectionState {
        let health = self.cache().health();
        let known = !self.cache().with_table(|v| v.topology().is_empty());
        match (known, health.problem.is_some()) {
            _ if health.closed => ConnectionState::Closed,
            (true, false) => ConnectionState::Open,
            (true, true) => ConnectionState::Reconnecting,
            (false, false) => ConnectionState::Connecting,
            (false, true) => ConnectionState::Failed,
        }
    }

    pub(crate) fn pushes(&self) -> broadcast::Receiver<Arc<Frame>> {
        self.cache().pushes.subscribe()
    }

    pub(crate) fn events(&self) -> ConnectionEvents {
        self.cache().events()
    }

    pub(crate) fn last_error(&self) -> Option<LostCause> {
        self.cache().health().problem.map(LostCause::Reconnect)
    }

    /// Requests under way at all nodes of the topology.
    pub(crate) fn in_flight(&self) -> usize {
        self.cache().table().nodes().map(|node| node.in_flight()).sum()
    }

    /// Server information of some node.
    pub(crate) fn server_info(&self) -> Option<ServerInfo> {
        self.cache().table().nodes().find_map(|node| node.existing()?.server_info())
    }

    /// Opens a closed router again. False if it is not closed.
    pub(crate) fn reopen(&self) -> bool {
        self.monitor.start()
    }

    /// Finishes the requests in flight at all nodes, and ends every task.
    pub(crate) async fn close(&self) {
        self.monitor.close().await;
        let mut closing = JoinSet::new();
        for node in self.cache().clear() {
            closing.spawn(async move { node.close().await });
        }
        closing.join_all().await;
    }
}

/// Master of a slot. A slot without one, and a request without a slot, go to any master: it returns
/// the proper error.
fn owner(table: &RoutingTable, slot: Option<u16>) -> Option<&Arc<NodeClient>> {
    slot.and_then(|slot| table.master(slot)).or_else(|| table.any_master())
}

/// The address of a connection's node.
pub(crate) fn address_of(server: &Server) -> Option<&Address> {
    match server {
        Server::Tcp(address) => Some(address),
        _ => None,
    }
}
