//! From a bare socket to a connection that is ready for requests: HELLO 3 with AUTH and SETNAME in one step, SELECT,
//! and what the configuration wants set up. A server that does not know HELLO is spoken to in RESP2 (where a password
//! is wanted, some hide that behind NOAUTH).

use std::time::Duration;

use bytes::BytesMut;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::oneshot,
    time::Instant,
};

use super::transport::{Endpoint, Transport, within};
use crate::{
    command::{Command, cmd},
    config::Config,
    error::{ConnectError, ConnectStage, LostCause},
    resp::{Decoder, Frame, ServerError, Value},
    secret::Secret,
    trace::{RequestKind, RequestStart, RequestTrace, TraceHook, next_id},
};

/// A connection that is ready: the socket, what was read beyond the handshake, and what the server said of itself.
pub(crate) struct Established {
    pub(crate) endpoint: Endpoint,
    pub(crate) transport: Transport,
    pub(crate) decoder: Decoder,
    pub(crate) input: BytesMut,
    pub(crate) greeting: Greeting,
}

impl Established {
    /// Whether the server calls itself master; `None` if it does not say. One that knows no HELLO is asked by ROLE.
    pub(crate) async fn is_master(&mut self, limit: Option<Duration>) -> Option<bool> {
        if self.greeting.protocol >= 3 {
            return Some(self.greeting.role == "master");
        }
        let asked = within(limit, ConnectStage::Handshake, &self.endpoint, async {
            self.transport.write_all(b"*1\r\n$4\r\nROLE\r\n").await.ok()?;
            self.transport.flush().await.ok()?;
            read(&mut self.transport, &mut self.decoder, &mut self.input).await.ok()
        });
        let frame = asked.await.ok()??;
        frame.value().get(0).and_then(Value::as_str).map(|role| role == "master")
    }
}

/// What a server says of itself when greeted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Greeting {
    /// `redis` or `valkey`; empty if the server does not know HELLO.
    pub server: String,
    /// Its version, such as `7.0.15`.
    pub version: String,
    /// 3, or 2 if the server does not know HELLO.
    pub protocol: u8,
    /// The number of this connection at the server.
    pub connection_id: i64,
    /// `standalone`, `cluster` or `sentinel`.
    pub mode: String,
    /// `master` or `replica`.
    pub role: String,
}

impl Greeting {
    /// What matters of a modern server, for tests.
    #[cfg(test)]
    pub(crate) fn of_resp3() -> Self {
        Self { protocol: 3, ..Self::default() }
    }
}

/// Opens the socket and shakes hands, each within its time limit.
pub(crate) async fn establish(config: &Config, endpoint: Endpoint) -> Result<Established, ConnectError> {
    let transport = Transport::open(config, &endpoint).await?;
    let decoder = Decoder::new(config.reply_limits.clone());
    let password = config.password.as_ref();
    let trace = config.trace.as_ref().filter(|hook| hook.sees_handshakes());
    let mut talk = Talk { endpoint: &endpoint, password, trace, transport, decoder, input: BytesMut::new() };
    let limit = config.timeouts.handshake;
    let greeting = within(limit, ConnectStage::Handshake, &endpoint, talk.shake_hands(config)).await??;
    let Talk { transport, decoder, input, .. } = talk;
    Ok(Established { endpoint, transport, decoder, input, greeting })
}

/// The few questions and answers before the pipeline takes over.
struct Talk<'a> {
    endpoint: &'a Endpoint,
    password: Option<&'a Secret>,
    trace: Option<&'a TraceHook>,
    transport: Transport,
    decoder: Decoder,
    input: BytesMut,
}

impl Talk<'_> {
    async fn shake_hands(&mut self, config: &Config) -> Result<Greeting, ConnectError> {
        let greeting = match self.hello(hello(config)).await? {
            Ok(greeting) => greeting,
            Err(error) if speaks_only_resp2(&error) => {
                self.log_in_by_resp2(config).await?;
                Greeting { protocol: 2, ..Greeting::default() }
            }
            // A server that minds a missing log-in although HELLO brings one has not understood it.
            Err(error) if &*error.code == "NOAUTH" && config.password.is_some() => {
                self.log_in_by_resp2(config).await?;
                match self.hello(cmd("HELLO").arg(3)).await? {
                    Ok(greeting) => greeting,
                    Err(error) if speaks_only_resp2(&error) => {
                        Greeting { protocol: 2, ..Greeting::default() }
                    }
                    Err(error) => return Err(self.refused("HELLO", error)),
                }
            }
            Err(error) => return Err(self.refused("HELLO", error)),
        };
        self.settle_in(config).await?;
        Ok(greeting)
    }

    async fn hello(&mut self, hello: Command) -> Result<Result<Greeting, ServerError>, ConnectError> {
        Ok(self.ask(&[hello]).await?.remove(0).map(|frame| greeting(&frame)))
    }

    async fn log_in_by_resp2(&mut self, config: &Config) -> Result<(), ConnectError> {
        if let Some(password) = &config.password {
            let auth = config
                .username
                .iter()
                .fold(cmd("AUTH"), |c, user| c.arg(user.as_str()))
                .arg(password.expose());
            self.ask(&[auth]).await?.remove(0).map_err(|e| self.refused("AUTH", e))?;
        }
        if let Some(name) = &config.client_name {
            self.ask(&[cmd("CLIENT").arg("SETNAME").arg(name.as_str())])
                .await?
                .remove(0)
                .map_err(|e| self.refused("CLIENT SETNAME", e))?;
        }
        Ok(())
    }

    /// What must succeed (SELECT, set-up commands) and what may fail (our name for `CLIENT LIST`, new in Redis 7.2).
    async fn settle_in(&mut self, config: &Config) -> Result<(), ConnectError> {
        let mut steps: Vec<Command> = Vec::new();
        if config.database != 0 {
            steps.push(cmd("SELECT").arg(config.database));
        }
        let selects = steps.len();
        steps.extend(config.setup.iter().cloned());
        let must = steps.len();
        steps.push(cmd("CLIENT").arg("SETINFO").arg("LIB-NAME").arg("firth-redis"));
        steps.push(cmd("CLIENT").arg("SETINFO").arg("LIB-VER").arg(env!("CARGO_PKG_VERSION")));
        for (i, answer) in self.ask(&steps).await?.into_iter().enumerate().take(must) {
            answer.map_err(|e| {
                self.refused(if i < selects { "SELECT" } else { "the connection's set-up" }, e)
            })?;
        }
        Ok(())
    }

    /// Sends some commands in one write and reads their answers, and tells of it.
    async fn ask(&mut self, commands: &[Command]) -> Result<Vec<Result<Frame, ServerError>>, ConnectError> {
        let mut out = Vec::new();
        commands.iter().for_each(|c| c.encode(&mut out));
        let Some(hook) = self.trace else { return self.exchange(commands, out).await };
        let start = RequestStart {
            id: next_id(),
            kind: RequestKind::Handshake,
            name: if let [one] = commands { one.name().to_owned() } else { "pipeline".to_owned() },
            commands: commands.len(),
            bytes: out.len(),
            node: Some(self.endpoint.to_string().into()),
        };
        let told = tell(hook.clone(), start);
        let answers = self.exchange(commands, out).await;
        // The task that tells lives on until it hears of the end.
        let _ = told.send(outcome(&answers));
        answers
    }

    /// Pushes that come between the answers are not ours.
    async fn exchange(
        &mut self,
        commands: &[Command],
        out: Vec<u8>,
    ) -> Result<Vec<Result<Frame, ServerError>>, ConnectError> {
        self.transport.write_all(&out).await.map_err(|e| self.broken(e.into()))?;
        self.transport.flush().await.map_err(|e| self.broken(e.into()))?;
        let mut answers = Vec::with_capacity(commands.len());
        while answers.len() < commands.len() {
            let frame = self.read().await.map_err(|cause| self.broken(cause))?;
            if !frame.is_push() {
                answers.push(ServerError::from_value(frame.value()).map_or(Ok(frame), Err));
            }
        }
        Ok(answers)
    }

    async fn read(&mut self) -> Result<Frame, LostCause> {
        read(&mut self.transport, &mut self.decoder, &mut self.input).await
    }

    /// Servers like to repeat the arguments of what they do not understand; a password must not come back that way.
    fn refused(&self, step: &'static str, mut error: ServerError) -> ConnectError {
        let betrays = |p: &&Secret| !p.expose().is_empty() && error.to_string().contains(p.expose());
        if self.password.filter(betrays).is_some() {
            error = ServerError::new("ERR", "(its words repeat the password)");
        }
        ConnectError::Refused { endpoint: self.endpoint.to_string(), step, error }
    }

    fn broken(&self, source: LostCause) -> ConnectError {
        ConnectError::Broken { endpoint: self.endpoint.to_string(), source }
    }
}

async fn read(
    transport: &mut Transport,
    decoder: &mut Decoder,
    input: &mut BytesMut,
) -> Result<Frame, LostCause> {
    loop {
        if let Some(frame) = decoder.decode(input)? {
            return Ok(frame);
        }
        if transport.read_buf(input).await? == 0 {
            return Err(LostCause::Eof);
        }
    }
}

/// Answers that were no errors, and the first error.
type Told = (usize, Option<String>);

fn outcome(answers: &Result<Vec<Result<Frame, ServerError>>, ConnectError>) -> Told {
    match answers {
        Ok(answers) => {
            let code =
                |answer: &Result<Frame, ServerError>| answer.as_ref().err().map(|e| e.code.to_string());
            (answers.iter().filter(|answer| answer.is_ok()).count(), answers.iter().find_map(code))
        }
        Err(error) => (0, Some(error.to_string())),
    }
}

/// Tells of a request in a task of its own: no user code runs in the connection's (invariant 3).
fn tell(hook: TraceHook, start: RequestStart) -> oneshot::Sender<Told> {
    let (sender, ended) = oneshot::channel();
    let begun = Instant::now();
    tokio::spawn(async move {
        hook.begin(|| start.clone());
        let (ok, first_error) = ended.await.unwrap_or_else(|_| (0, Some("given up".to_owned())));
        let RequestStart { id, kind, name, commands, bytes, node } = start;
        let (duration, errors) = (begun.elapsed(), commands - ok);
        hook.tell(&RequestTrace { id, kind, name, commands, bytes, node, duration, ok, errors, first_error });
    });
    sender
}

fn hello(config: &Config) -> Command {
    let mut hello = cmd("HELLO").arg(3);
    if let Some(password) = &config.password {
        let user = config.username.as_deref().unwrap_or("default");
        hello = hello.arg("AUTH").arg(user).arg(password.expose());
    }
    match &config.client_name {
        Some(name) => hello.arg("SETNAME").arg(name.as_str()),
        None => hello,
    }
}

/// `ERR unknown command` from servers before 6.0 and from some proxies, `NOPROTO` from those that only speak RESP2.
fn speaks_only_resp2(error: &ServerError) -> bool {
    &*error.code == "NOPROTO" || (&*error.code == "ERR" && error.message.contains("unknown command"))
}

fn greeting(frame: &Frame) -> Greeting {
    let mut greeting = Greeting { protocol: 3, ..Greeting::default() };
    for (name, value) in frame.value().pairs().into_iter().flatten() {
        let text = || value.as_str().unwrap_or_default().to_owned();
        match name.as_str() {
            Some("server") => greeting.server = text(),
            Some("version") => greeting.version = text(),
            Some("mode") => greeting.mode = text(),
            Some("role") => greeting.role = text(),
            Some("id") => greeting.connection_id = value.as_i64().unwrap_or_default(),
            _ => {}
        }
    }
    greeting
}
