//! One node of the cluster and its connections, which are opened on first use. Reads that a replica
//! may answer have connections of their own (READONLY), so that a demoted master never answers an
//! ordinary read.

use crate::command::cmd;
use crate::config::{Address, Config, Server};
use crate::connection::{Connection, ConnectionState, Request, RequestRoute};
use crate::error::CallError;
use crate::lanes::NodeLanes;
use crate::resp::Frame;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::broadcast;

/// Longest backoff to a node. No other node serves its slots, so the client must find it soon after
/// it comes back.
const LONGEST_BACKOFF: Duration = Duration::from_secs(2);

/// A node and the lanes to it.
pub(crate) struct NodeClient {
    address: Address,
    config: Config,
    pushes: broadcast::Sender<Arc<Frame>>,
    primary: OnceLock<NodeConnections>,
    read_only: OnceLock<NodeConnections>,
}

impl NodeClient {
    /// A node that nothing is connected to yet. What it pushes goes to `pushes`.
    pub(crate) fn new(cluster: &Config, address: Address, pushes: broadcast::Sender<Arc<Frame>>) -> Self {
        let mut config = cluster.at(Server::Tcp(address.clone()));
        if let Some(backoff) = &mut config.reconnect {
            backoff.max = backoff.max.min(LONGEST_BACKOFF);
        }
        Self { address, config, pushes, primary: OnceLock::new(), read_only: OnceLock::new() }
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// The connection for a request.
    pub(crate) fn route(&self, request: &Request<'_>) -> Result<RequestRoute<'static>, CallError> {
        self.primary().route(request)
    }

    /// The connection for a request that only reads, at a replica.
    pub(crate) fn read_route(&self, request: &Request<'_>) -> Result<RequestRoute<'static>, CallError> {
        self.read_only().route(request)
    }

    /// The shared connection, opened if it is not yet.
    pub(crate) fn shared(&self) -> Connection {
        self.primary().lanes.shared().clone()
    }

    /// The shared connection, if it was ever needed.
    pub(crate) fn existing(&self) -> Option<Connection> {
        self.primary.get().map(|connections| connections.lanes.shared().clone())
    }

    /// Whether reads may be sent there: no connection is known to be broken.
    pub(crate) fn can_read(&self) -> bool {
        self.read_only.get().is_none_or(NodeConnections::is_usable)
    }

    /// Whether requests may be sent there: no connection is known to be broken.
    pub(crate) fn can_serve(&self) -> bool {
        self.primary.get().is_none_or(NodeConnections::is_usable)
    }

    pub(crate) fn in_flight(&self) -> usize {
        let extra =
            self.all().flat_map(|connections| &connections.extra).map(Connection::in_flight).sum::<usize>();
        extra + self.all().map(|connections| connections.lanes.in_flight()).sum::<usize>()
    }

    /// Restarts connections that ended for good, if the configuration forbids them to reconnect.
    pub(crate) fn revive(&self) {
        for connections in self.all() {
            connections.lanes.revive();
            for connection in connections.extra.iter().filter(|c| c.state() == ConnectionState::Closed) {
                connection.start();
            }
        }
    }

    /// Refuses requests that were not sent yet, so that they can go elsewhere: the node left the
    /// cluster.
    pub(crate) fn retire(&self) {
        for connections in self.all() {
            connections.extra.iter().for_each(Connection::begin_close);
            connections.lanes.begin_close();
        }
    }

    /// Ends all requests in flight.
    pub(crate) fn end(&self) {
        for connections in self.all() {
            connections.extra.iter().for_each(Connection::close_now);
            connections.lanes.close_now();
        }
    }

    /// Finishes the requests in flight and ends every connection.
    pub(crate) async fn close(&self) {
        for connections in self.all() {
            for connection in &connections.extra {
                connection.close().await;
            }
            connections.lanes.close().await;
        }
    }

    fn primary(&self) -> &NodeConnections {
        self.primary.get_or_init(|| NodeConnections::open(&self.config, &self.pushes))
    }

    fn read_only(&self) -> &NodeConnections {
        self.read_only.get_or_init(|| {
            let setup = self.config.setup.iter().cloned().chain([cmd("READONLY")]).collect();
            NodeConnections::open(&Config { setup, ..self.config.clone() }, &self.pushes)
        })
    }

    fn all(&self) -> impl Iterator<Item = &NodeConnections> {
        self.primary.get().into_iter().chain(self.read_only.get())
    }
}

impl std::fmt::Debug for NodeClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.address.fmt(f)
    }
}

/// The lanes to a node, with as many shared connections as configured.
struct NodeConnections {
    lanes: NodeLanes,
    extra: Vec<Connection>,
    next: AtomicUsize,
}

impl NodeConnections {
    fn open(config: &Config, pushes: &broadcast::Sender<Arc<Frame>>) -> Self {
        let connect = || Connection::spawn_pushing(config.clone(), "shared", pushes.clone());
        let extra = (1..config.cluster.connections_per_node).map(|_| connect()).collect();
        Self { lanes: NodeLanes::over(connect()), extra, next: AtomicUsize::new(0) }
    }

    fn route(&self, request: &Request<'_>) -> Result<RequestRoute<'static>, CallError> {
        match self.lanes.route(request)? {
            RequestRoute::Borrowed(connection)
                if !self.extra.is_empty() && connection.is(self.lanes.shared()) =>
            {
                let next = self.next.fetch_add(1, Ordering::Relaxed) % (self.extra.len() + 1);
                Ok(RequestRoute::Owned(self.extra.get(next).unwrap_or(connection).clone()))
            }
            RequestRoute::Borrowed(connection) => Ok(RequestRoute::Owned(connection.clone())),
            RequestRoute::Owned(connection) => Ok(RequestRoute::Owned(connection)),
            RequestRoute::Pooled(pooled) => Ok(RequestRoute::Pooled(pooled)),
        }
    }

    /// A reconnection may take long, so the node does not count as usable until it ends.
    fn is_usable(&self) -> bool {
        matches!(
            self.lanes.shared().state(),
            ConnectionState::Init | ConnectionState::Connecting | ConnectionState::Open
        )
    }
}
