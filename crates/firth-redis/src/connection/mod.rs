//! One connection: a task that owns the socket, and cloneable handles that give it requests.
//!
//! `state`, `pipeline`, `liveness` and `locked_state` are pure. `shared` holds the lock between
//! handles and task around `locked_state`. `driver` is the loop of an open connection, `actor` the
//! task over all its reconnections, and `pending_request` one request.

mod actor;
mod driver;
mod events;
mod handshake;
mod liveness;
mod locked_state;
mod pending_request;
pub(crate) mod pipeline;
mod probe;
pub(crate) mod push_queue;
mod read_buffer;
mod request;
mod shared;
mod state;
#[cfg(feature = "tls")]
mod tls;
mod transport;

use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast;

pub use self::events::{ConnectionEvent, ConnectionEventKind, ConnectionEvents, ConnectionPhase};
pub use self::handshake::ServerInfo;
pub(crate) use self::handshake::{Established, establish};
pub(crate) use self::pending_request::PendingRequest;
pub(crate) use self::pipeline::Replies;
use self::push_queue::PushQueue;
pub(crate) use self::request::Request;
use self::shared::{ConnectionShared, ConnectionStatus};
pub use self::state::ConnectionState;
#[cfg(feature = "tls")]
pub(crate) use self::tls::{TlsCache, check as check_tls};
pub(crate) use self::transport::Endpoint;
use crate::config::Config;
use crate::error::{CallError, ConnectError, LostCause};
use crate::lanes::PooledConnection;
use crate::resp::Frame;

/// A handle on a connection. When the last one is dropped, the connection is closed at once.
#[derive(Clone)]
pub(crate) struct Connection {
    shared: Arc<ConnectionShared>,
    /// Counts the handles, and only those.
    _close_guard: Arc<CloseOnLastHandle>,
}

struct CloseOnLastHandle(Arc<ConnectionShared>);

impl Drop for CloseOnLastHandle {
    fn drop(&mut self) {
        self.0.begin_close(true);
    }
}

impl Connection {
    /// Starts a connection. Requests may be sent at once.
    pub(crate) fn spawn(config: Config, lane: &'static str) -> Self {
        Self::run(ConnectionShared::new(config, lane, None))
    }

    /// Starts a connection whose pushes go to `pushes`, which other connections may share.
    pub(crate) fn spawn_pushing(
        config: Config,
        lane: &'static str,
        pushes: broadcast::Sender<Arc<Frame>>,
    ) -> Self {
        let mut shared = ConnectionShared::new(config, lane, None);
        shared.pushes = pushes;
        Self::run(shared)
    }

    /// Starts a connection without requests. All frames go to `push_queue`.
    pub(crate) fn spawn_subscriber(config: Config, lane: &'static str, push_queue: Arc<PushQueue>) -> Self {
        Self::run(ConnectionShared::new(config, lane, Some(push_queue)))
    }

    fn run(shared: ConnectionShared) -> Self {
        let shared = Arc::new(shared);
        let connection = Self { _close_guard: Arc::new(CloseOnLastHandle(shared.clone())), shared };
        connection.start();
        connection
    }

    /// Starts the task, for the first time or after the connection was closed. False if it runs.
    pub(crate) fn start(&self) -> bool {
        let fresh = self.shared.start();
        if fresh {
            tokio::spawn(actor::run(self.shared.clone()));
        }
        fresh
    }

    pub(crate) fn shared(&self) -> &Arc<ConnectionShared> {
        &self.shared
    }

    /// Whether both are handles on the same connection.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    pub(crate) fn config(&self) -> &Config {
        &self.shared.config
    }

    pub(crate) fn state(&self) -> ConnectionState {
        self.shared.state()
    }

    /// Requests whose answer has not come or not been picked up.
    pub(crate) fn in_flight(&self) -> usize {
        self.shared.in_flight()
    }

    /// Asks for the end without waiting for it.
    pub(crate) fn begin_close(&self) {
        self.shared.begin_close(false);
    }

    pub(crate) fn last_error(&self) -> Option<LostCause> {
        self.shared.last_error()
    }

    pub(crate) fn server_info(&self) -> Option<ServerInfo> {
        self.shared.server_info()
    }

    pub(crate) fn events(&self) -> ConnectionEvents {
        ConnectionEvents(self.shared.watch_events())
    }

    pub(crate) fn pushes(&self) -> broadcast::Receiver<Arc<Frame>> {
        self.shared.pushes.subscribe()
    }

    /// Sends a request over this connection.
    pub(crate) fn send<'c>(&'c self, request: Request<'c>, timeout: Option<Duration>) -> PendingRequest<'c> {
        PendingRequest::new(RequestRoute::Borrowed(self), request, timeout)
    }

    /// Sends operations up to `op`, whose answers go to the push queue, if the connection of this
    /// generation is still open.
    pub(crate) fn send_unpaired(&self, generation: u64, op: u64, bytes: &[u8]) -> bool {
        self.shared.send_unpaired(generation, op, bytes)
    }

    /// Breaks the connection, which then reconnects.
    pub(crate) fn reset(&self) {
        self.shared.reset();
    }

    /// Waits until the connection is open or closed, or (with `fail_fast`, for a new connection)
    /// until an attempt failed.
    pub(crate) async fn opened(&self, fail_fast: bool) -> Result<(), ConnectError> {
        let mut status = self.shared.watch_status();
        let failures = if fail_fast { 0 } else { u64::MAX };
        let wanted = |c: &ConnectionStatus| {
            matches!(c.state, ConnectionState::Open | ConnectionState::Closing | ConnectionState::Closed)
                || c.failures > failures
        };
        let reached = status.wait_for(wanted).await.map_or(ConnectionState::Closed, |c| c.state);
        match (reached, self.shared.unexpected_error()) {
            (ConnectionState::Open, _) => Ok(()),
            (_, Some(LostCause::Reconnect(error))) => Err((*error).clone()),
            (_, Some(cause)) => Err(ConnectError::Broken { endpoint: "the server".into(), source: cause }),
            (_, None) => Err(ConnectError::Closed),
        }
    }

    /// Finishes the requests in flight, then ends; those not done within the configured time fail.
    /// Returns when the task is gone.
    pub(crate) async fn close(&self) {
        self.shared.begin_close(false);
        let mut running = self.shared.watch_running();
        if tokio::time::timeout(self.config().timeouts.close, running.wait_for(|r| !r)).await.is_err() {
            self.abort().await;
        }
    }

    /// Asks for the end at once, without waiting for it.
    pub(crate) fn close_now(&self) {
        self.shared.begin_close(true);
    }

    /// Ends at once; requests in flight fail. Returns when the task is gone.
    pub(crate) async fn abort(&self) {
        self.close_now();
        // The sender lives in `shared`, which we hold.
        let _ = self.shared.watch_running().wait_for(|r| !r).await;
    }
}

/// Connection of a request, kept alive while the request is in flight.
pub(crate) enum RequestRoute<'c> {
    Borrowed(&'c Connection),
    Owned(Connection),
    /// A connection of the blocking lane, returned when the answer has come.
    Pooled(PooledConnection),
}

impl RequestRoute<'_> {
    #[inline]
    fn shared(&self) -> &Arc<ConnectionShared> {
        match self {
            Self::Borrowed(connection) => connection.shared(),
            Self::Owned(connection) => connection.shared(),
            Self::Pooled(pooled) => pooled.connection().shared(),
        }
    }

    /// The request is over; a leased connection that gave its answer may be used again.
    #[inline]
    fn finished_request(&mut self, result: &Result<Replies, CallError>) {
        if let (Self::Pooled(pooled), Ok(_)) = (self, result) {
            pooled.mark_reusable();
        }
    }
}
