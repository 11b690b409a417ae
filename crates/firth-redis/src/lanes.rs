//! Connections to one server: the shared one, and on demand one for bulk and some for blocking
//! requests. No request waits behind a big or blocking request of another caller.

use crate::command::CommandClass;
use crate::config::Config;
use crate::connection::{Connection, ConnectionState, Request, RequestRoute};
use crate::error::CallError;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Idle connections of the blocking lane that are kept for the next blocking command.
const IDLE_KEPT: usize = 4;

pub(crate) struct NodeLanes {
    config: Config,
    shared: Connection,
    bulk: OnceLock<Connection>,
    blocking: Arc<BlockingPool>,
}

impl NodeLanes {
    /// Starts the shared connection.
    pub(crate) fn spawn(config: Config) -> Self {
        Self::over(Connection::spawn(config, "shared"))
    }

    /// Lanes beside a shared connection that was started already.
    pub(crate) fn over(shared: Connection) -> Self {
        let config = shared.config().clone();
        let blocking = Arc::new(BlockingPool { config: config.clone(), state: Mutex::default() });
        Self { shared, bulk: OnceLock::new(), blocking, config }
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) fn shared(&self) -> &Connection {
        &self.shared
    }

    /// Connection for a request, by its class and size.
    #[inline]
    pub(crate) fn route(&self, request: &Request<'_>) -> Result<RequestRoute<'_>, CallError> {
        match request.class() {
            CommandClass::Session => Err(session_command(request.culprit())),
            CommandClass::Stateful => Err(stateful_command(request.culprit())),
            CommandClass::Wait => Err(lone_wait(request.culprit())),
            CommandClass::AffectsNext => Err(for_next(request.culprit())),
            CommandClass::Blocking => self.blocking.acquire().map(RequestRoute::Pooled),
            _ if request.wire_len() >= self.config.lanes.bulk_from => self.bulk().map(RequestRoute::Borrowed),
            _ => Ok(RequestRoute::Borrowed(&self.shared)),
        }
    }

    /// Bulk connection. The check for `closed` comes after the connection is published, so that
    /// `close` sees it.
    fn bulk(&self) -> Result<&Connection, CallError> {
        let bulk = self.bulk.get_or_init(|| Connection::spawn(self.config.clone(), "bulk"));
        if self.is_closed() {
            bulk.begin_close();
            return Err(CallError::Closed { sent: false });
        }
        if bulk.state() == ConnectionState::Closed && self.config.reconnect.is_some() {
            bulk.start();
        }
        Ok(bulk)
    }

    /// Whether the lanes were closed and not opened again.
    pub(crate) fn is_closed(&self) -> bool {
        self.blocking.lock().closed
    }

    /// Requests whose answer has not come or not been picked up, on all lanes.
    pub(crate) fn in_flight(&self) -> usize {
        let blocking: usize = self.blocking.lock().in_use.iter().map(Connection::in_flight).sum();
        self.shared.in_flight() + self.bulk.get().map_or(0, Connection::in_flight) + blocking
    }

    /// Opens closed lanes again. False if the shared connection is not closed.
    pub(crate) fn reopen(&self) -> bool {
        let reopened = self.shared.start();
        if reopened {
            self.blocking.lock().closed = false;
            if let Some(bulk) = self.bulk.get() {
                bulk.start();
            }
        }
        reopened
    }

    /// Starts connections again that ended by themselves.
    pub(crate) fn revive(&self) {
        let all = self.bulk.get().into_iter().chain([&self.shared]);
        for connection in all.filter(|c| !self.is_closed() && c.state() == ConnectionState::Closed) {
            connection.start();
        }
    }

    /// Refuses new requests without waiting. Requests that were sent may still be answered; the
    /// others fail at once.
    pub(crate) fn begin_close(&self) {
        self.blocking.begin_close();
        self.shared.begin_close();
        if let Some(bulk) = self.bulk.get() {
            bulk.begin_close();
        }
    }

    /// Ends all requests in flight, without waiting for the tasks.
    pub(crate) fn close_now(&self) {
        self.blocking.end().iter().for_each(Connection::close_now);
        self.shared.close_now();
        if let Some(bulk) = self.bulk.get() {
            bulk.close_now();
        }
    }

    /// Finishes the requests in flight on all lanes. Blocking commands are aborted, because they
    /// may never end by themselves.
    pub(crate) async fn close(&self) {
        let bulk = async {
            if let Some(bulk) = self.bulk.get() {
                bulk.close().await;
            }
        };
        let blocking = self.blocking.close();
        tokio::join!(blocking, self.shared.close(), bulk);
    }
}

pub(crate) fn session_command(name: &str) -> CallError {
    let hint = match name.to_ascii_uppercase().as_str() {
        "HELLO" | "RESET" | "QUIT" => "the client does this itself; use the configuration and close()",
        "MONITOR" | "SYNC" | "PSYNC" => "it turns the connection into a one-way stream",
        "CLIENT" => "CLIENT REPLY would leave requests without replies",
        _ => "use Client::mux() for subscriptions",
    };
    CallError::Invalid(format!("{name} cannot be sent as a request: {hint}"))
}

fn stateful_command(name: &str) -> CallError {
    let hint = match name.to_ascii_uppercase().as_str() {
        "MULTI" | "EXEC" | "DISCARD" => "use Client::transaction(), or Client::session() with WATCH",
        "WATCH" | "UNWATCH" => "use Client::session(), whose transactions see what it watches",
        "READONLY" | "READWRITE" => "use ClusterOptions::reads and Command::read_only()",
        "ASKING" => "the client follows redirections itself",
        _ => "others share the connection; use the configuration, or Client::session()",
    };
    CallError::Invalid(format!("{name} cannot be sent over a shared connection: {hint}"))
}

fn lone_wait(name: &str) -> CallError {
    CallError::Invalid(format!(
        "{name} alone would wait for nothing: it counts the writes of its own connection; \
         put it behind them in one pipeline, or use Client::session()"
    ))
}

fn for_next(name: &str) -> CallError {
    CallError::Invalid(format!(
        "{name} CACHING alone would change the next command of another caller: \
         put it in front of its command in one pipeline, or use Client::session()"
    ))
}

/// The connections of the blocking lane. At most `lanes.blocking` at once.
struct BlockingPool {
    config: Config,
    state: Mutex<BlockingPoolState>,
}

#[derive(Default)]
struct BlockingPoolState {
    idle: Vec<Connection>,
    /// Connections in use, so that `close` can end them.
    in_use: Vec<Connection>,
    closed: bool,
}

impl BlockingPool {
    fn lock(&self) -> MutexGuard<'_, BlockingPoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn acquire(self: &Arc<Self>) -> Result<PooledConnection, CallError> {
        let mut state = self.lock();
        if state.closed {
            return Err(CallError::Closed { sent: false });
        }
        if state.in_use.len() >= self.config.lanes.blocking {
            return Err(CallError::Full {
                what: "the lane of blocking commands",
                limit: self.config.lanes.blocking,
            });
        }
        state.idle.retain(|c| c.state() == ConnectionState::Open);
        let connection =
            state.idle.pop().unwrap_or_else(|| Connection::spawn(self.config.clone(), "blocking"));
        state.in_use.push(connection.clone());
        Ok(PooledConnection { connection, pool: self.clone(), reusable: false })
    }

    /// Leaves connections alone whose command was sent.
    fn begin_close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.idle.clear();
        state.in_use.iter().filter(|c| c.state() != ConnectionState::Open).for_each(Connection::begin_close);
    }

    /// Takes all connections out of the pool, to be closed.
    fn end(&self) -> Vec<Connection> {
        let mut state = self.lock();
        state.closed = true;
        let mut all = std::mem::take(&mut state.idle);
        all.append(&mut state.in_use);
        all
    }

    async fn close(&self) {
        let all = self.end();
        // Close all of them at once: each may need a moment.
        all.iter().for_each(Connection::close_now);
        for connection in all {
            connection.abort().await;
        }
    }
}

/// Use of one connection for one blocking command. If it is dropped before the answer came, the
/// connection is closed: the server must not hand an element to a caller that no longer waits.
pub(crate) struct PooledConnection {
    connection: Connection,
    pool: Arc<BlockingPool>,
    reusable: bool,
}

impl PooledConnection {
    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// The answer came: the connection may serve another command.
    pub(crate) fn mark_reusable(&mut self) {
        self.reusable = true;
    }
}

impl Drop for PooledConnection {
    fn drop(&mut self) {
        let mut state = self.pool.lock();
        let Some(at) = state.in_use.iter().position(|c| c.is(&self.connection)) else { return };
        let connection = state.in_use.swap_remove(at);
        if self.reusable && state.idle.len() < IDLE_KEPT {
            state.idle.push(connection);
        }
    }
}
