//! [`Client`]: what users hold. Cheap to clone, safe to share; chooses the connection for each request.

use std::{borrow::Cow, sync::Arc, time::Duration};

use tokio::sync::broadcast;

use crate::{
    call::{Call, Journey, PipelineCall, convert},
    cluster::monitor::Monitor,
    command::{Command, Nature, Pipe},
    config::{Config, IntoConfig, Server},
    connection::{Connection, ConnectionEvents, Flight, Greeting, Replies, Request, State},
    error::{CallError, ConnectError, LostCause},
    lanes::{NodeLanes, session_command},
    mux::{Mux, MuxConfig},
    resp::{Frame, FromValue},
    script::ScriptCall,
};

/// A client of one server, or of the master that sentinels name.
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
/// the order inside it.
#[derive(Clone)]
pub struct Client {
    lanes: Arc<NodeLanes>,
}

impl Client {
    /// Connects, and returns when the server is ready for requests. Fails with the first try's error; once connected,
    /// the client reconnects by itself.
    pub async fn connect(to: impl IntoConfig) -> Result<Self, ConnectError> {
        let client = Self::lazy(to)?;
        match client.lanes.shared().opened(true).await {
            Ok(()) => Ok(client),
            Err(error) => {
                client.lanes.shared().abort().await;
                Err(error)
            }
        }
    }

    /// Returns at once and connects in the background. Requests are queued until the connection stands.
    ///
    /// Must be called inside a tokio runtime.
    pub fn lazy(to: impl IntoConfig) -> Result<Self, ConnectError> {
        let config = to.into_config()?;
        Ok(Self { lanes: Arc::new(NodeLanes::spawn(config)) })
    }

    /// Sends one command and waits for its answer, converted to `T`.
    #[inline]
    pub fn call<T: FromValue>(&self, command: Command) -> Call<'_, T> {
        Call::new(self.journey(Request::One(command)))
    }

    /// Sends commands in one piece and waits for all their answers: a tuple of as many types as commands, or
    /// `Vec<T>` for any number. Each answer is a `Result` of its own; [`Unpack`](crate::Unpack) joins them.
    pub fn pipeline<'c, R>(&'c self, pipe: impl Into<Cow<'c, Pipe>>) -> PipelineCall<'c, R> {
        let pipe = pipe.into();
        let commands = pipe.len();
        PipelineCall::new(self.journey(Request::Many(pipe)), commands, false)
    }

    /// Sends commands in one piece between MULTI and EXEC: the server runs all of them without anything between, or,
    /// if one cannot even be queued, none.
    pub fn transaction<R>(&self, pipe: Pipe) -> PipelineCall<'_, R> {
        let commands = pipe.len();
        let journey = if commands == 0 {
            nothing()
        } else {
            self.journey(Request::Many(Cow::Owned(pipe.in_transaction())))
        };
        PipelineCall::new(journey, commands, true)
    }

    /// Runs a script by its digest, sending the source only if the server does not know it.
    pub async fn eval<T: FromValue>(&self, call: &ScriptCall) -> Result<T, CallError> {
        match self.call(call.command().clone()).await {
            Err(CallError::Server(error)) if &*error.code == "NOSCRIPT" => self.call(call.in_full()).await,
            answer => answer,
        }
    }

    #[inline]
    fn journey<'c>(&'c self, request: Request<'c>) -> Journey<'c> {
        let timeout = default_timeout(self.config(), &request);
        match self.lanes.route(&request) {
            Ok(route) => Journey::Flight(Flight::new(route, request, timeout)),
            Err(error) => Journey::Refused(Some(error)),
        }
    }

    /// A connection of your own, for what belongs to a connection: WATCH, SELECT, AUTH and the like.
    ///
    /// It does not end with this client: close it, or drop it.
    pub async fn session(&self) -> Result<Session, ConnectError> {
        if self.lanes.is_closed() {
            return Err(ConnectError::Closed);
        }
        let connection = Connection::spawn(Config { reconnect: None, ..self.config().clone() }, "session");
        connection.opened(true).await?;
        Ok(Session { connection })
    }

    /// Everything that the server pushes out of band on the shared connection (client-side caching and the like),
    /// from now on.
    pub fn pushes(&self) -> Pushes {
        Pushes(self.lanes.shared().pushes())
    }

    /// The pub/sub multiplexer of this client, made when first asked for.
    pub fn mux(&self) -> &Mux {
        self.lanes.mux(|| self.mux_with(MuxConfig::default()))
    }

    /// A multiplexer of its own, with its own settings and connections.
    pub fn mux_with(&self, config: MuxConfig) -> Mux {
        let base = self.config().clone();
        let monitor = matches!(base.server, Server::Cluster(_)).then(|| Monitor::spawn(base.clone()));
        Mux::start(base, config, monitor)
    }

    /// What happens to the shared connection, from now on.
    pub fn events(&self) -> ConnectionEvents {
        self.lanes.shared().events()
    }

    /// The state of the shared connection.
    pub fn state(&self) -> State {
        self.lanes.shared().state()
    }

    /// Waits until the shared connection stands; fails only if the client is closed.
    pub async fn ready(&self) -> Result<(), ConnectError> {
        self.lanes.shared().opened(false).await
    }

    /// Why the connection last broke, or could not be made.
    pub fn last_error(&self) -> Option<LostCause> {
        self.lanes.shared().last_error()
    }

    /// Requests under way on all lanes: their answers have not come, or were not picked up yet. Dropped requests count
    /// until their answers have come.
    pub fn in_flight(&self) -> usize {
        self.lanes.in_flight()
    }

    /// What the server said of itself when last greeted.
    pub fn server(&self) -> Option<Greeting> {
        self.lanes.shared().greeting()
    }

    /// The configuration that this client was made with.
    pub fn config(&self) -> &Config {
        self.lanes.config()
    }

    /// Takes no new requests, finishes those under way within the configured time, and ends every task. All clones of
    /// this client are closed with it.
    pub async fn close(&self) {
        self.lanes.close().await;
    }

    /// Opens a closed client again. False if it is not closed.
    pub fn reopen(&self) -> bool {
        self.lanes.reopen()
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

/// The journey of an empty pipeline, which is answered before it begins.
fn nothing<'c>() -> Journey<'c> {
    Journey::Refused(None)
}

/// A connection that nobody else uses. It does not reconnect: what was set on it would be lost.
pub struct Session {
    connection: Connection,
}

impl Session {
    /// See [`Client::call`].
    pub async fn call<T: FromValue>(&mut self, command: Command) -> Result<T, CallError> {
        match self.send(Request::One(command))?.await? {
            Replies::One(frame) => convert(frame),
            Replies::Many(_) => unreachable!("one command has one reply"),
        }
    }

    /// See [`Client::pipeline`].
    pub fn pipeline<'c, R>(&'c mut self, pipe: impl Into<Cow<'c, Pipe>>) -> PipelineCall<'c, R> {
        let pipe = pipe.into();
        let commands = pipe.len();
        PipelineCall::new(self.journey(Request::Many(pipe)), commands, false)
    }

    /// See [`Client::transaction`]. A watched key that changed gives [`CallError::Conflict`].
    pub fn transaction<R>(&mut self, pipe: Pipe) -> PipelineCall<'_, R> {
        let commands = pipe.len();
        let journey = if commands == 0 {
            nothing()
        } else {
            self.journey(Request::Many(Cow::Owned(pipe.in_transaction())))
        };
        PipelineCall::new(journey, commands, true)
    }

    /// Closes the connection after what is under way.
    pub async fn close(self) {
        self.connection.close().await;
    }

    fn journey<'c>(&'c self, request: Request<'c>) -> Journey<'c> {
        match self.send(request) {
            Ok(flight) => Journey::Flight(flight),
            Err(error) => Journey::Refused(Some(error)),
        }
    }

    fn send<'c>(&'c self, request: Request<'c>) -> Result<Flight<'c>, CallError> {
        if request.nature() == Nature::Session {
            return Err(session_command(request.culprit()));
        }
        let timeout = default_timeout(self.connection.config(), &request);
        Ok(self.connection.send(request, timeout))
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
