//! One connection: a task that owns the socket, and cloneable handles that give it requests.
//!
//! `state`, `pipeline`, `pulse` and `inner` are pure; `shared` is the lock between handles and task around `inner`;
//! `driver` is the loop of an open connection; `actor` is its whole life; `flight` is one request.

mod actor;
mod driver;
mod events;
pub(crate) mod feed;
mod flight;
mod handshake;
mod inner;
mod input;
mod opinion;
pub(crate) mod pipeline;
mod pulse;
mod request;
mod shared;
mod state;
#[cfg(feature = "tls")]
mod tls;
mod transport;

use std::{sync::Arc, time::Duration};

use tokio::sync::broadcast;

#[cfg(feature = "tls")]
pub(crate) use self::tls::{TlsCache, check as check_tls};
pub use self::{
    events::{ConnectionEvent, ConnectionEvents, EventKind, Stage},
    handshake::Greeting,
    state::State,
};
use self::{
    feed::Feed,
    shared::{Condition, Shared},
};
pub(crate) use self::{
    flight::Flight,
    handshake::{Established, establish},
    pipeline::Replies,
    request::Request,
    transport::Endpoint,
};
use crate::{
    config::Config,
    error::{CallError, ConnectError, LostCause},
    lanes::Lease,
    resp::Frame,
};

/// A handle on a connection. When the last one is dropped, the connection is closed at once.
#[derive(Clone)]
pub(crate) struct Connection {
    shared: Arc<Shared>,
    /// Counts the handles, and only those.
    _alive: Arc<Alive>,
}

struct Alive(Arc<Shared>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.begin_close(true);
    }
}

impl Connection {
    /// Starts a connection; requests may be given to it at once.
    pub(crate) fn spawn(config: Config, lane: &'static str) -> Self {
        Self::run(Shared::new(config, lane, None))
    }

    /// Starts a connection whose pushes go to `pushes`, which others may share.
    pub(crate) fn spawn_pushing(
        config: Config,
        lane: &'static str,
        pushes: broadcast::Sender<Arc<Frame>>,
    ) -> Self {
        let mut shared = Shared::new(config, lane, None);
        shared.pushes = pushes;
        Self::run(shared)
    }

    /// Starts a connection without requests, whose every frame goes to `feed`.
    pub(crate) fn spawn_feeding(config: Config, lane: &'static str, feed: Arc<Feed>) -> Self {
        Self::run(Shared::new(config, lane, Some(feed)))
    }

    fn run(shared: Shared) -> Self {
        let shared = Arc::new(shared);
        let connection = Self { _alive: Arc::new(Alive(shared.clone())), shared };
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

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Whether both are handles on the same connection.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    pub(crate) fn config(&self) -> &Config {
        &self.shared.config
    }

    pub(crate) fn state(&self) -> State {
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

    pub(crate) fn greeting(&self) -> Option<Greeting> {
        self.shared.greeting()
    }

    pub(crate) fn events(&self) -> ConnectionEvents {
        ConnectionEvents(self.shared.watch_events())
    }

    pub(crate) fn pushes(&self) -> broadcast::Receiver<Arc<Frame>> {
        self.shared.pushes.subscribe()
    }

    /// Sends a request over this connection.
    pub(crate) fn send<'c>(&'c self, request: Request<'c>, timeout: Option<Duration>) -> Flight<'c> {
        Flight::new(Route::Borrowed(self), request, timeout)
    }

    /// Sends operations up to `op`, whose answers go to the feed, if the connection of this
    /// generation still stands.
    pub(crate) fn send_unpaired(&self, generation: u64, op: u64, bytes: &[u8]) -> bool {
        self.shared.send_unpaired(generation, op, bytes)
    }

    /// Breaks the connection, which then starts afresh.
    pub(crate) fn reset(&self) {
        self.shared.reset();
    }

    /// Waits until the connection stands, or is closed, or (with `fail_fast`, for a new connection) until a try failed.
    pub(crate) async fn opened(&self, fail_fast: bool) -> Result<(), ConnectError> {
        let mut condition = self.shared.watch_condition();
        let failures = if fail_fast { 0 } else { u64::MAX };
        let wanted = |c: &Condition| {
            matches!(c.state, State::Open | State::Closing | State::Closed) || c.failures > failures
        };
        let reached = condition.wait_for(wanted).await.map_or(State::Closed, |c| c.state);
        match (reached, self.shared.blame()) {
            (State::Open, _) => Ok(()),
            (_, Some(LostCause::Reconnect(error))) => Err((*error).clone()),
            (_, Some(cause)) => Err(ConnectError::Broken { endpoint: "the server".into(), source: cause }),
            (_, None) => Err(ConnectError::Closed),
        }
    }

    /// Finishes what is under way, then ends; what is not done within the configured time fails. Returns when the task
    /// is gone.
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

    /// Ends at once; whatever is under way fails. Returns when the task is gone.
    pub(crate) async fn abort(&self) {
        self.close_now();
        // The sender lives in `shared`, which we hold.
        let _ = self.shared.watch_running().wait_for(|r| !r).await;
    }
}

/// Which connection a request goes over, and who keeps that connection alive meanwhile.
pub(crate) enum Route<'c> {
    Borrowed(&'c Connection),
    Owned(Connection),
    /// A connection of the blocking lane, returned when the answer has come.
    Leased(Lease),
}

impl Route<'_> {
    #[inline]
    fn shared(&self) -> &Arc<Shared> {
        match self {
            Self::Borrowed(connection) => connection.shared(),
            Self::Owned(connection) => connection.shared(),
            Self::Leased(lease) => lease.connection().shared(),
        }
    }

    /// The request is over; a leased connection that gave its answer may be used again.
    #[inline]
    fn landed(&mut self, result: &Result<Replies, CallError>) {
        if let (Self::Leased(lease), Ok(_)) = (self, result) {
            lease.give_back();
        }
    }
}
