//! The handle that users hold. It is cheap to clone, safe to share, and chooses the connection for
//! each request.

use crate::call::{Call, EvalCall, PipelineCall, RequestFuture};
use crate::cluster::{ClusterRouter, NodeInfo, slot};
use crate::command::{Command, CommandClass, Pipe};
use crate::config::{Address, Config, IntoConfig, Server};
use crate::connection::{Connection, ConnectionEvents, ConnectionState, PendingRequest, Request, ServerInfo};
use crate::error::{ConnectError, LostCause};
use crate::lanes::{NodeLanes, session_command};
use crate::mux::{ClientMuxes, Mux, MuxConfig};
use crate::resp::{Frame, FromValue};
use crate::script::ScriptCall;
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast;

/// A client of one server, of the master that sentinels name, or of a cluster.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use firth_redis::{Client, cmd, pipe};
///
/// let client = Client::connect("redis://localhost").await?;
/// client.call::<()>(cmd("SET").key("greeting").arg("hello")).await?;
/// let greeting: String = client.call(cmd("GET").key("greeting")).await?;
/// let (visits, missing) = client
///     .pipeline::<(i64, Option<String>)>(pipe().then(cmd("INCR").key("visits")).then(cmd("GET").key("none")))
///     .await?;
/// assert_eq!((greeting.as_str(), visits?, missing?), ("hello", 1, None));
/// client.close().await;
/// # Ok(())
/// # }
/// ```
///
/// **Order.** Requests of one task that are awaited one after the other run in that order. Requests
/// in flight at the same time may overtake each other, because big and blocking ones have
/// connections of their own. A pipeline keeps the order inside it; in a cluster, the order of the
/// commands of each slot.
///
/// **Cluster.** Each command goes to the node that owns the slot of its first key, one without a
/// key to any master. The client follows redirections and retries passing refusals, within the
/// request's time limit and [`max_redirects`](crate::config::ClusterOptions::max_redirects). It
/// never repeats a command that may have run.
///
/// A pipeline is split by node, and each command fails or succeeds by itself. A transaction, or a
/// pipeline marked [`together`](Pipe::together), goes to one node.
#[derive(Clone)]
pub struct Client {
    deployment: Deployment,
    muxes: Arc<ClientMuxes>,
}

/// One server, or a cluster.
#[derive(Clone)]
enum Deployment {
    Single(Arc<NodeLanes>),
    Cluster(Arc<ClusterRouter>),
}

impl Client {
    /// Connects. Returns when the server is ready for requests, or when the cluster's topology is
    /// known and every slot has an owner. Fails with the error of the first attempt; once
    /// connected, the client reconnects by itself.
    pub async fn connect(to: impl IntoConfig) -> Result<Self, ConnectError> {
        let client = Self::lazy(to)?;
        let opened = match &client.deployment {
            Deployment::Single(lanes) => lanes.shared().opened(true).await,
            Deployment::Cluster(router) => router.known(true).await,
        };
        if opened.is_err() {
            match &client.deployment {
                Deployment::Single(lanes) => lanes.shared().abort().await,
                Deployment::Cluster(router) => router.close().await,
            }
        }
        opened.map(|()| client)
    }

    /// Returns at once and connects in the background. Requests are queued until the connection
    /// stands.
    ///
    /// Must be called inside a tokio runtime.
    pub fn lazy(to: impl IntoConfig) -> Result<Self, ConnectError> {
        let config = to.into_config()?;
        let deployment = match config.server {
            Server::Cluster(_) => Deployment::Cluster(Arc::new(ClusterRouter::spawn(config))),
            _ => Deployment::Single(Arc::new(NodeLanes::spawn(config))),
        };
        Ok(Self { deployment, muxes: Arc::default() })
    }

    /// Sends one command and waits for its answer, converted to `T`.
    #[inline(always)]
    pub fn call<T: FromValue>(&self, command: Command) -> Call<'_, T> {
        let origin = command.origin();
        Call::new(self.start(command.into()), origin)
    }

    /// Sends commands in one request and waits for all answers: a tuple of as many types as
    /// commands, or `Vec<T>` for any number. Each answer is a `Result` of its own;
    /// [`Unpack`](crate::Unpack) joins them.
    pub fn pipeline<'c, R>(&'c self, pipe: impl Into<Cow<'c, Pipe>>) -> PipelineCall<'c, R> {
        PipelineCall::new(pipe.into(), |request| self.start(request))
    }

    /// Sends commands between MULTI and EXEC. The server runs all of them without other commands
    /// between, or none if one cannot be queued.
    pub fn transaction<R>(&self, pipe: Pipe) -> PipelineCall<'_, R> {
        PipelineCall::transaction(pipe, |request| self.start(request))
    }

    /// Runs a script by its digest, sending the source only if the server does not know it.
    pub fn eval<'c, T: FromValue>(&'c self, call: &'c ScriptCall) -> EvalCall<'c, T> {
        EvalCall::new(self, call, default_timeout(self.config(), &call.command().into()))
    }

    /// Runs a script by its digest only. A server that does not know it, for example after a
    /// restart, refuses with the code `NOSCRIPT`.
    #[inline(always)]
    pub fn eval_known<'c, T: FromValue>(&'c self, call: &'c ScriptCall) -> Call<'c, T> {
        Call::new(self.start(call.command().into()), call.command().origin())
    }

    #[inline(always)]
    fn start<'c>(&'c self, request: Request<'c>) -> RequestFuture<'c> {
        let timeout = default_timeout(self.config(), &request);
        match &self.deployment {
            Deployment::Cluster(router) => RequestFuture::Cluster(router.request(request, timeout)),
            Deployment::Single(lanes) => match lanes.route(&request) {
                Ok(route) => RequestFuture::Single(PendingRequest::new(route, request, timeout)),
                Err(error) => RequestFuture::Refused(Some(error)),
            },
        }
    }

    /// A connection of your own, for what belongs to a connection: WATCH, SELECT, AUTH and the
    /// like. In a cluster it is one to a random master; see [`session_for`](Self::session_for).
    ///
    /// It does not end with this client: close it, or drop it.
    pub async fn session(&self) -> Result<Session, ConnectError> {
        self.session_at(fastrand::u16(..16_384)).await
    }

    /// A connection of your own to the node that owns this key. It stays with the node: if the key
    /// moves away, the server's redirections come as errors.
    pub async fn session_for(&self, key: impl AsRef<[u8]>) -> Result<Session, ConnectError> {
        self.session_at(slot(key.as_ref())).await
    }

    async fn session_at(&self, slot: u16) -> Result<Session, ConnectError> {
        let connection = match &self.deployment {
            Deployment::Cluster(router) => router.session(slot).await?,
            Deployment::Single(lanes) if lanes.is_closed() => return Err(ConnectError::Closed),
            Deployment::Single(lanes) => {
                let config = Config { reconnect: None, ..lanes.config().clone() };
                let connection = Connection::spawn(config, "session");
                connection.opened(true).await?;
                connection
            }
        };
        Ok(Session { connection })
    }

    /// The nodes of the cluster as this client knows them at this moment, masters before their
    /// replicas. Empty for a client of a single server.
    pub fn nodes(&self) -> Vec<NodeInfo> {
        match &self.deployment {
            Deployment::Single(_) => Vec::new(),
            Deployment::Cluster(router) => router.nodes(),
        }
    }

    /// The address of the server: the configured one, or that of the master which the sentinels
    /// named last. `None` for a cluster and for a Unix socket.
    pub fn address(&self) -> Option<Address> {
        match (&self.config().server, &self.config().sentinel_resolver) {
            (Server::Tcp(address), _) => Some(address.clone()),
            (Server::Sentinel(_), Some(resolver)) => resolver.master(),
            _ => None,
        }
    }

    /// Number of replicas that the sentinels know, reachable or not; `None` for a client without
    /// sentinels.
    ///
    /// # Errors
    /// When no sentinel answers.
    pub async fn watched_replicas(&self) -> Result<Option<usize>, ConnectError> {
        match &self.config().sentinel_resolver {
            Some(sentinel_resolver) => sentinel_resolver.replicas(self.config()).await.map(Some),
            None => Ok(None),
        }
    }

    /// Everything that the server pushes on the shared connection from now on, for example for
    /// client-side caching. In a cluster, on the shared connections to all nodes.
    pub fn pushes(&self) -> Pushes {
        Pushes(match &self.deployment {
            Deployment::Single(lanes) => lanes.shared().pushes(),
            Deployment::Cluster(router) => router.pushes(),
        })
    }

    /// The pub/sub multiplexer of this client, made when first asked for. It closes with the
    /// client, and opens again with it.
    pub fn mux(&self) -> &Mux {
        self.muxes.shared(|| self.mux_with(MuxConfig::default()))
    }

    /// A multiplexer of its own, with its own settings and connections. It too closes with the
    /// client, and opens again with it.
    pub fn mux_with(&self, config: MuxConfig) -> Mux {
        let monitor = match &self.deployment {
            Deployment::Single(_) => None,
            Deployment::Cluster(router) => Some(router.monitor().clone()),
        };
        self.muxes.register(Mux::start(self.config().clone(), config, monitor))
    }

    /// Events of the shared connection, from now on. In a cluster they tell whether the topology
    /// can be kept up to date: connected when some node tells it, disconnected when none does.
    /// Single nodes come and go without an event here.
    pub fn events(&self) -> ConnectionEvents {
        match &self.deployment {
            Deployment::Single(lanes) => lanes.shared().events(),
            Deployment::Cluster(router) => router.events(),
        }
    }

    /// The state of the shared connection. In a cluster: connecting until the topology is known,
    /// open while it can be kept up to date, reconnecting while it cannot.
    pub fn state(&self) -> ConnectionState {
        match &self.deployment {
            Deployment::Single(lanes) => lanes.shared().state(),
            Deployment::Cluster(router) => router.state(),
        }
    }

    /// Waits until the shared connection stands, or every slot of the cluster has an owner; fails
    /// only if the client is closed.
    pub async fn ready(&self) -> Result<(), ConnectError> {
        match &self.deployment {
            Deployment::Single(lanes) => lanes.shared().opened(false).await,
            Deployment::Cluster(router) => router.known(false).await,
        }
    }

    /// Why the connection last broke, or could not be made. In a cluster, why the topology is out
    /// of reach.
    pub fn last_error(&self) -> Option<LostCause> {
        match &self.deployment {
            Deployment::Single(lanes) => lanes.shared().last_error(),
            Deployment::Cluster(router) => router.last_error(),
        }
    }

    /// Requests in flight on all lanes: their answers have not come, or were not picked up yet.
    /// Dropped requests count until their answers have come.
    pub fn in_flight(&self) -> usize {
        match &self.deployment {
            Deployment::Single(lanes) => lanes.in_flight(),
            Deployment::Cluster(router) => router.in_flight(),
        }
    }

    /// What the server, or some node of the cluster, told about itself in its last handshake.
    pub fn server(&self) -> Option<ServerInfo> {
        match &self.deployment {
            Deployment::Single(lanes) => lanes.shared().server_info(),
            Deployment::Cluster(router) => router.server_info(),
        }
    }

    /// The configuration that this client was made with.
    pub fn config(&self) -> &Config {
        match &self.deployment {
            Deployment::Single(lanes) => lanes.config(),
            Deployment::Cluster(router) => router.config(),
        }
    }

    /// Refuses new requests, finishes those in flight within the configured time, and ends every
    /// task. All clones of this client are closed with it.
    pub async fn close(&self) {
        self.muxes.close().await;
        match &self.deployment {
            Deployment::Single(lanes) => lanes.close().await,
            Deployment::Cluster(router) => router.close().await,
        }
    }

    /// Opens a closed client again, and its muxes. False if it is not closed. Subscriptions do not
    /// come back.
    ///
    /// Must be called inside a tokio runtime.
    pub fn reopen(&self) -> bool {
        let reopened = match &self.deployment {
            Deployment::Single(lanes) => lanes.reopen(),
            Deployment::Cluster(router) => router.reopen(),
        };
        if reopened {
            self.muxes.reopen();
        }
        reopened
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("server", &self.config().server).field("state", &self.state()).finish()
    }
}

/// Blocking commands have no limit unless the caller sets one.
fn default_timeout(config: &Config, request: &Request<'_>) -> Option<Duration> {
    config.timeouts.request.filter(|_| !request.is_blocking())
}

/// A connection of one caller. It does not reconnect, because the state that was set on it would be
/// lost.
pub struct Session {
    connection: Connection,
}

impl Session {
    /// See [`Client::call`].
    pub fn call<T: FromValue>(&mut self, command: Command) -> Call<'_, T> {
        let origin = command.origin();
        Call::new(self.start(command.into()), origin)
    }

    /// See [`Client::pipeline`].
    pub fn pipeline<'c, R>(&'c mut self, pipe: impl Into<Cow<'c, Pipe>>) -> PipelineCall<'c, R> {
        PipelineCall::new(pipe.into(), |request| self.start(request))
    }

    /// See [`Client::transaction`]. A watched key that changed gives
    /// [`CallError::Conflict`](crate::CallError::Conflict).
    pub fn transaction<R>(&mut self, pipe: Pipe) -> PipelineCall<'_, R> {
        PipelineCall::transaction(pipe, |request| self.start(request))
    }

    /// Closes the connection after the requests in flight.
    pub async fn close(self) {
        self.connection.close().await;
    }

    fn start<'c>(&'c self, request: Request<'c>) -> RequestFuture<'c> {
        if request.class() == CommandClass::Session {
            return RequestFuture::Refused(Some(session_command(request.culprit())));
        }
        let timeout = default_timeout(self.connection.config(), &request);
        RequestFuture::Single(self.connection.send(request, timeout))
    }
}

/// See [`Client::pushes`]. Bounded: a listener that falls behind is told how much it missed.
#[derive(Debug)]
pub struct Pushes(broadcast::Receiver<Arc<Frame>>);

/// A push, or the notice that some were missed.
#[derive(Debug, Clone)]
pub enum Push {
    /// What the server sent.
    Frame(Arc<Frame>),
    /// This listener was too slow and missed this many pushes.
    Lagged(u64),
}

impl Pushes {
    /// The next push, or `None` when the client is gone.
    pub async fn next(&mut self) -> Option<Push> {
        match self.0.recv().await {
            Ok(frame) => Some(Push::Frame(frame)),
            Err(broadcast::error::RecvError::Lagged(missed)) => Some(Push::Lagged(missed)),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}
