//! [`Client`]: what users hold. Cheap to clone, safe to share; chooses the connection for each request.

use std::{borrow::Cow, sync::Arc, time::Duration};

use tokio::sync::broadcast;

use crate::{
    call::{Call, EvalCall, Journey, PipelineCall},
    cluster::{NodeInfo, Router, slot},
    command::{Command, Nature, Pipe},
    config::{Config, IntoConfig, Server},
    connection::{Connection, ConnectionEvents, Flight, Greeting, Request, State},
    error::{ConnectError, LostCause},
    lanes::{NodeLanes, session_command},
    mux::{Mux, MuxConfig, Roster},
    resp::{Frame, FromValue},
    script::ScriptCall,
};

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
/// **Order.** Requests of one task that are awaited one after the other run in that order. Requests that are under way
/// at the same time may overtake each other (big and blocking ones have connections of their own); a pipeline keeps
/// the order inside it, in a cluster the order of the commands of each slot.
///
/// **Cluster.** Each command goes to the node that owns the slot of its first key, one without a key to any master.
/// Redirections are followed, and passing refusals tried again, within the request's time limit and
/// [`max_redirects`](crate::config::ClusterOptions::max_redirects); what may have run is never sent again. A pipeline is
/// split by node, and each command fails or succeeds by itself; a transaction, or a pipeline marked
/// [`together`](Pipe::together), goes to one node in one piece.
#[derive(Clone)]
pub struct Client {
    reach: Reach,
    muxes: Arc<Roster>,
}

/// What a client talks to.
#[derive(Clone)]
enum Reach {
    Single(Arc<NodeLanes>),
    Cluster(Arc<Router>),
}

impl Client {
    /// Connects, and returns when the server is ready for requests, or the cluster's topology is known and every slot
    /// has an owner. Fails with the first try's error; once connected, the client reconnects by itself.
    pub async fn connect(to: impl IntoConfig) -> Result<Self, ConnectError> {
        let client = Self::lazy(to)?;
        let opened = match &client.reach {
            Reach::Single(lanes) => lanes.shared().opened(true).await,
            Reach::Cluster(router) => router.known(true).await,
        };
        if opened.is_err() {
            match &client.reach {
                Reach::Single(lanes) => lanes.shared().abort().await,
                Reach::Cluster(router) => router.close().await,
            }
        }
        opened.map(|()| client)
    }

    /// Returns at once and connects in the background. Requests are queued until the connection stands.
    ///
    /// Must be called inside a tokio runtime.
    pub fn lazy(to: impl IntoConfig) -> Result<Self, ConnectError> {
        let config = to.into_config()?;
        let reach = match config.server {
            Server::Cluster(_) => Reach::Cluster(Arc::new(Router::spawn(config))),
            _ => Reach::Single(Arc::new(NodeLanes::spawn(config))),
        };
        Ok(Self { reach, muxes: Arc::default() })
    }

    /// Sends one command and waits for its answer, converted to `T`.
    #[inline(always)]
    pub fn call<T: FromValue>(&self, command: Command) -> Call<'_, T> {
        let author = command.author();
        Call::new(self.journey(command.into()), author)
    }

    /// Sends commands in one piece and waits for all their answers: a tuple of as many types as commands, or
    /// `Vec<T>` for any number. Each answer is a `Result` of its own; [`Unpack`](crate::Unpack) joins them.
    pub fn pipeline<'c, R>(&'c self, pipe: impl Into<Cow<'c, Pipe>>) -> PipelineCall<'c, R> {
        PipelineCall::new(pipe.into(), |request| self.journey(request))
    }

    /// Sends commands in one piece between MULTI and EXEC: the server runs all of them without anything between, or,
    /// if one cannot even be queued, none.
    pub fn transaction<R>(&self, pipe: Pipe) -> PipelineCall<'_, R> {
        PipelineCall::transaction(pipe, |request| self.journey(request))
    }

    /// Runs a script by its digest, sending the source only if the server does not know it.
    pub fn eval<'c, T: FromValue>(&'c self, call: &'c ScriptCall) -> EvalCall<'c, T> {
        EvalCall::new(self, call, default_timeout(self.config(), &call.command().into()))
    }

    /// Runs a script by its digest only: a server that does not know it, for one because it was
    /// started again, refuses with the code `NOSCRIPT`.
    #[inline(always)]
    pub fn eval_known<'c, T: FromValue>(&'c self, call: &'c ScriptCall) -> Call<'c, T> {
        Call::new(self.journey(call.command().into()), call.command().author())
    }

    #[inline(always)]
    fn journey<'c>(&'c self, request: Request<'c>) -> Journey<'c> {
        let timeout = default_timeout(self.config(), &request);
        match &self.reach {
            Reach::Cluster(router) => Journey::Cluster(router.voyage(request, timeout)),
            Reach::Single(lanes) => match lanes.route(&request) {
                Ok(route) => Journey::Flight(Flight::new(route, request, timeout)),
                Err(error) => Journey::Refused(Some(error)),
            },
        }
    }

    /// A connection of your own, for what belongs to a connection: WATCH, SELECT, AUTH and the like. In a cluster it is
    /// one to a random master; see [`session_for`](Self::session_for).
    ///
    /// It does not end with this client: close it, or drop it.
    pub async fn session(&self) -> Result<Session, ConnectError> {
        self.session_at(fastrand::u16(..16_384)).await
    }

    /// A connection of your own to the node that owns this key. It stays with the node: if the key moves away, the
    /// server's redirections come as errors.
    pub async fn session_for(&self, key: impl AsRef<[u8]>) -> Result<Session, ConnectError> {
        self.session_at(slot(key.as_ref())).await
    }

    async fn session_at(&self, slot: u16) -> Result<Session, ConnectError> {
        let connection = match &self.reach {
            Reach::Cluster(router) => router.session(slot).await?,
            Reach::Single(lanes) if lanes.is_closed() => return Err(ConnectError::Closed),
            Reach::Single(lanes) => {
                let config = Config { reconnect: None, ..lanes.config().clone() };
                let connection = Connection::spawn(config, "session");
                connection.opened(true).await?;
                connection
            }
        };
        Ok(Session { connection })
    }

    /// The nodes of the cluster as this client knows them at this moment, masters before their replicas. Empty for a
    /// client of a single server.
    pub fn nodes(&self) -> Vec<NodeInfo> {
        match &self.reach {
            Reach::Single(_) => Vec::new(),
            Reach::Cluster(router) => router.nodes(),
        }
    }

    /// How many replicas the sentinels know of, in reach or not; `None` for a client that asks no sentinels.
    ///
    /// # Errors
    /// When no sentinel answers.
    pub async fn watched_replicas(&self) -> Result<Option<usize>, ConnectError> {
        match &self.config().guide {
            Some(guide) => guide.replicas(self.config()).await.map(Some),
            None => Ok(None),
        }
    }

    /// Everything that the server pushes out of band on the shared connection (client-side caching and the like),
    /// from now on. In a cluster, on the shared connections to all nodes.
    pub fn pushes(&self) -> Pushes {
        Pushes(match &self.reach {
            Reach::Single(lanes) => lanes.shared().pushes(),
            Reach::Cluster(router) => router.pushes(),
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
        let monitor = match &self.reach {
            Reach::Single(_) => None,
            Reach::Cluster(router) => Some(router.monitor().clone()),
        };
        self.muxes.enrol(Mux::start(self.config().clone(), config, monitor))
    }

    /// What happens to the shared connection, from now on. In a cluster, whether the topology can be kept up to date:
    /// connected when some node tells it, disconnected when none does. Single nodes come and go without an event here.
    pub fn events(&self) -> ConnectionEvents {
        match &self.reach {
            Reach::Single(lanes) => lanes.shared().events(),
            Reach::Cluster(router) => router.events(),
        }
    }

    /// The state of the shared connection. In a cluster: connecting until the topology is known, open while it can be
    /// kept up to date, reconnecting while it cannot.
    pub fn state(&self) -> State {
        match &self.reach {
            Reach::Single(lanes) => lanes.shared().state(),
            Reach::Cluster(router) => router.state(),
        }
    }

    /// Waits until the shared connection stands, or every slot of the cluster has an owner; fails only if the client is
    /// closed.
    pub async fn ready(&self) -> Result<(), ConnectError> {
        match &self.reach {
            Reach::Single(lanes) => lanes.shared().opened(false).await,
            Reach::Cluster(router) => router.known(false).await,
        }
    }

    /// Why the connection last broke, or could not be made. In a cluster, why the topology is out of reach.
    pub fn last_error(&self) -> Option<LostCause> {
        match &self.reach {
            Reach::Single(lanes) => lanes.shared().last_error(),
            Reach::Cluster(router) => router.last_error(),
        }
    }

    /// Requests under way on all lanes: their answers have not come, or were not picked up yet. Dropped requests count
    /// until their answers have come.
    pub fn in_flight(&self) -> usize {
        match &self.reach {
            Reach::Single(lanes) => lanes.in_flight(),
            Reach::Cluster(router) => router.in_flight(),
        }
    }

    /// What the server, or some node of the cluster, said of itself when last greeted.
    pub fn server(&self) -> Option<Greeting> {
        match &self.reach {
            Reach::Single(lanes) => lanes.shared().greeting(),
            Reach::Cluster(router) => router.greeting(),
        }
    }

    /// The configuration that this client was made with.
    pub fn config(&self) -> &Config {
        match &self.reach {
            Reach::Single(lanes) => lanes.config(),
            Reach::Cluster(router) => router.config(),
        }
    }

    /// Takes no new requests, finishes those under way within the configured time, and ends every task. All clones of
    /// this client are closed with it.
    pub async fn close(&self) {
        self.muxes.close().await;
        match &self.reach {
            Reach::Single(lanes) => lanes.close().await,
            Reach::Cluster(router) => router.close().await,
        }
    }

    /// Opens a closed client again, and its muxes. False if it is not closed. Subscriptions do not
    /// come back.
    ///
    /// Must be called inside a tokio runtime.
    pub fn reopen(&self) -> bool {
        let reopened = match &self.reach {
            Reach::Single(lanes) => lanes.reopen(),
            Reach::Cluster(router) => router.reopen(),
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
    config.timeouts.request.filter(|_| !request.is_patient())
}

/// A connection that nobody else uses. It does not reconnect: what was set on it would be lost.
pub struct Session {
    connection: Connection,
}

impl Session {
    /// See [`Client::call`].
    pub fn call<T: FromValue>(&mut self, command: Command) -> Call<'_, T> {
        let author = command.author();
        Call::new(self.journey(command.into()), author)
    }

    /// See [`Client::pipeline`].
    pub fn pipeline<'c, R>(&'c mut self, pipe: impl Into<Cow<'c, Pipe>>) -> PipelineCall<'c, R> {
        PipelineCall::new(pipe.into(), |request| self.journey(request))
    }

    /// See [`Client::transaction`]. A watched key that changed gives
    /// [`CallError::Conflict`](crate::CallError::Conflict).
    pub fn transaction<R>(&mut self, pipe: Pipe) -> PipelineCall<'_, R> {
        PipelineCall::transaction(pipe, |request| self.journey(request))
    }

    /// Closes the connection after what is under way.
    pub async fn close(self) {
        self.connection.close().await;
    }

    fn journey<'c>(&'c self, request: Request<'c>) -> Journey<'c> {
        if request.nature() == Nature::Session {
            return Journey::Refused(Some(session_command(request.culprit())));
        }
        let timeout = default_timeout(self.connection.config(), &request);
        Journey::Flight(self.connection.send(request, timeout))
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
    /// This listener was too slow for so many pushes.
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
