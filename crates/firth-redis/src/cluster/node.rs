//! One node of the cluster and its connections, which are opened when first needed: for requests, and apart from them
//! for reads that a replica may answer (READONLY), so that no ordinary read is ever answered by a demoted master.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::sync::broadcast;

use crate::{
    command::cmd,
    config::{Address, Config, Server},
    connection::{Connection, Request, Route, State},
    error::CallError,
    lanes::NodeLanes,
    resp::Frame,
};

/// A node that comes back is to be found soon, however long it was away: its slots wait for nobody else.
const LONGEST_BACKOFF: Duration = Duration::from_secs(2);

/// A node and the lanes to it.
pub(crate) struct Node {
    address: Address,
    config: Config,
    pushes: broadcast::Sender<Arc<Frame>>,
    lines: OnceLock<Lines>,
    readers: OnceLock<Lines>,
}

impl Node {
    /// A node that nothing is connected to yet. What it pushes goes to `pushes`.
    pub(crate) fn new(cluster: &Config, address: Address, pushes: broadcast::Sender<Arc<Frame>>) -> Self {
        let mut config = cluster.at(Server::Tcp(address.clone()));
        if let Some(backoff) = &mut config.reconnect {
            backoff.max = backoff.max.min(LONGEST_BACKOFF);
        }
        Self { address, config, pushes, lines: OnceLock::new(), readers: OnceLock::new() }
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// The connection for a request.
    pub(crate) fn route(&self, request: &Request<'_>) -> Result<Route<'static>, CallError> {
        self.lines().route(request)
    }

    /// The connection for a request that only reads, at a replica.
    pub(crate) fn read_route(&self, request: &Request<'_>) -> Result<Route<'static>, CallError> {
        self.readers().route(request)
    }

    /// The shared connection, opened if it is not yet.
    pub(crate) fn shared(&self) -> Connection {
        self.lines().lanes.shared().clone()
    }

    /// The shared connection, if it was ever needed.
    pub(crate) fn existing(&self) -> Option<Connection> {
        self.lines.get().map(|lines| lines.lanes.shared().clone())
    }

    /// Whether reads may be sent there: nothing is known against it.
    pub(crate) fn reads_well(&self) -> bool {
        self.readers.get().is_none_or(Lines::are_well)
    }

    /// Whether requests may be sent there: nothing is known against it.
    pub(crate) fn works_well(&self) -> bool {
        self.lines.get().is_none_or(Lines::are_well)
    }

    pub(crate) fn in_flight(&self) -> usize {
        let more = self.all().flat_map(|lines| &lines.more).map(Connection::in_flight).sum::<usize>();
        more + self.all().map(|lines| lines.lanes.in_flight()).sum::<usize>()
    }

    /// Starts connections again that ended for good, where the configuration forbids them to do so themselves.
    pub(crate) fn revive(&self) {
        for lines in self.all() {
            lines.lanes.revive();
            for connection in lines.more.iter().filter(|c| c.state() == State::Closed) {
                connection.start();
            }
        }
    }

    /// The node left the cluster: what was not sent to it yet is refused, so that it can be sent elsewhere.
    pub(crate) fn retire(&self) {
        for lines in self.all() {
            lines.more.iter().for_each(Connection::begin_close);
            lines.lanes.begin_close();
        }
    }

    /// Ends whatever is still under way.
    pub(crate) fn end(&self) {
        for lines in self.all() {
            lines.more.iter().for_each(Connection::close_now);
            lines.lanes.close_now();
        }
    }

    /// Finishes what is under way and ends every connection.
    pub(crate) async fn close(&self) {
        for lines in self.all() {
            for connection in &lines.more {
                connection.close().await;
            }
            lines.lanes.close().await;
        }
    }

    fn lines(&self) -> &Lines {
        self.lines.get_or_init(|| Lines::open(&self.config, &self.pushes))
    }

    fn readers(&self) -> &Lines {
        self.readers.get_or_init(|| {
            let setup = self.config.setup.iter().cloned().chain([cmd("READONLY")]).collect();
            Lines::open(&Config { setup, ..self.config.clone() }, &self.pushes)
        })
    }

    fn all(&self) -> impl Iterator<Item = &Lines> {
        self.lines.get().into_iter().chain(self.readers.get())
    }
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.address.fmt(f)
    }
}

/// The lanes to a node, with as many shared connections as configured.
struct Lines {
    lanes: NodeLanes,
    more: Vec<Connection>,
    turn: AtomicUsize,
}

impl Lines {
    fn open(config: &Config, pushes: &broadcast::Sender<Arc<Frame>>) -> Self {
        let connect = || Connection::spawn_pushing(config.clone(), "shared", pushes.clone());
        let more = (1..config.cluster.connections_per_node).map(|_| connect()).collect();
        Self { lanes: NodeLanes::over(connect()), more, turn: AtomicUsize::new(0) }
    }

    fn route(&self, request: &Request<'_>) -> Result<Route<'static>, CallError> {
        match self.lanes.route(request)? {
            Route::Borrowed(connection) if !self.more.is_empty() && connection.is(self.lanes.shared()) => {
                let turn = self.turn.fetch_add(1, Ordering::Relaxed) % (self.more.len() + 1);
                Ok(Route::Owned(self.more.get(turn).unwrap_or(connection).clone()))
            }
            Route::Borrowed(connection) => Ok(Route::Owned(connection.clone())),
            Route::Owned(connection) => Ok(Route::Owned(connection)),
            Route::Leased(lease) => Ok(Route::Leased(lease)),
        }
    }

    /// A connection that is being made again may be so for long.
    fn are_well(&self) -> bool {
        matches!(self.lanes.shared().state(), State::Init | State::Connecting | State::Open)
    }
}
