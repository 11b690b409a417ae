//! From a bare socket to a connection that is ready for requests: HELLO 3 with AUTH and SETNAME in
//! one step, SELECT, and the configured commands.
//!
//! A server that does not know HELLO is spoken to in RESP2. Some servers that want a password hide
//! that behind NOAUTH.

use super::transport::{Endpoint, Transport, within};
use crate::command::{Command, cmd};
use crate::config::Config;
use crate::error::{ConnectError, ConnectStage, LostCause};
use crate::resp::{Decoder, Frame, ServerError, Value};
use crate::secret::Secret;
use crate::trace::{RequestKind, RequestStart, RequestTrace, TraceHook, next_id};
use bytes::BytesMut;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;
use tokio::time::Instant;

/// A ready connection: the socket, what was read beyond the handshake, and the server's
/// information.
pub(crate) struct Established {
    pub(crate) endpoint: Endpoint,
    pub(crate) transport: Transport,
    pub(crate) decoder: Decoder,
    pub(crate) input: BytesMut,
    pub(crate) server_info: ServerInfo,
}

impl Established {
    /// Whether the server calls itself master; `None` if it does not say. One that knows no HELLO
    /// is asked by ROLE.
    pub(crate) async fn is_master(&mut self, limit: Option<Duration>) -> Option<bool> {
        if self.server_info.protocol >= 3 {
            return Some(self.server_info.role == "master");
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

/// What a server tells about itself in the handshake.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerInfo {
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

impl ServerInfo {
    /// What matters of a modern server, for tests.
    #[cfg(test)]
    pub(crate) fn of_resp3() -> Self {
        Self { protocol: 3, ..Self::default() }
    }
}

/// Opens the socket and runs the handshake, each within its time limit.
pub(crate) async fn establish(config: &Config, endpoint: Endpoint) -> Result<Established, ConnectError> {
    let transport = Transport::open(config, &endpoint).await?;
    let decoder = Decoder::new(config.reply_limits.clone());
    let password = config.password.as_ref();
    let trace = config.trace.as_ref().filter(|hook| hook.sees_handshakes());
    let mut handshake =
        Handshake { endpoint: &endpoint, password, trace, transport, decoder, input: BytesMut::new() };
    let limit = config.timeouts.handshake;
    let server_info = within(limit, ConnectStage::Handshake, &endpoint, handshake.run(config)).await??;
    let Handshake { transport, decoder, input, .. } = handshake;
    Ok(Established { endpoint, transport, decoder, input, server_info })
}

/// Requests and answers before the pipeline takes over.
struct Handshake<'a> {
    endpoint: &'a Endpoint,
    password: Option<&'a Secret>,
    trace: Option<&'a TraceHook>,
    transport: Transport,
    decoder: Decoder,
    input: BytesMut,
}

impl Handshake<'_> {
    async fn run(&mut self, config: &Config) -> Result<ServerInfo, ConnectError> {
        let server_info = match self.hello(hello(config)).await? {
            Ok(server_info) => server_info,
            Err(error) if speaks_only_resp2(&error) => {
                self.authenticate_resp2(config).await?;
                ServerInfo { protocol: 2, ..ServerInfo::default() }
            }
            // A server that reports a missing log-in although HELLO brings one has not understood
            // it.
            Err(error) if &*error.code == "NOAUTH" && config.password.is_some() => {
                self.authenticate_resp2(config).await?;
                match self.hello(cmd("HELLO").arg(3)).await? {
                    Ok(server_info) => server_info,
                    Err(error) if speaks_only_resp2(&error) => {
                        ServerInfo { protocol: 2, ..ServerInfo::default() }
                    }
                    Err(error) => return Err(self.refused("HELLO", error)),
                }
            }
            Err(error) => return Err(self.refused("HELLO", error)),
        };
        self.configure(config).await?;
        Ok(server_info)
    }

    async fn hello(&mut self, hello: Command) -> Result<Result<ServerInfo, ServerError>, ConnectError> {
        Ok(self.ask(&[hello]).await?.remove(0).map(|frame| server_info(&frame)))
    }

    async fn authenticate_resp2(&mut self, config: &Config) -> Result<(), ConnectError> {
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

    /// What must succeed (SELECT, set-up commands) and what may fail (our name for `CLIENT LIST`,
    /// new in Redis 7.2).
    async fn configure(&mut self, config: &Config) -> Result<(), ConnectError> {
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

    /// Sends commands in one write, reads their answers, and traces them.
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
        let ended = trace_in_task(hook.clone(), start);
        let answers = self.exchange(commands, out).await;
        // The tracing task waits for the end.
        let _ = ended.send(outcome(&answers));
        answers
    }

    /// Sends commands and reads their answers; pushes between them are ignored.
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

    /// Error of a refused step. Servers may repeat the arguments of what they do not understand, so
    /// a text that holds the password is left out.
    fn refused(&self, step: &'static str, mut error: ServerError) -> ConnectError {
        let repeats = |p: &&Secret| !p.expose().is_empty() && error.to_string().contains(p.expose());
        if self.password.filter(repeats).is_some() {
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
type TraceOutcome = (usize, Option<String>);

fn outcome(answers: &Result<Vec<Result<Frame, ServerError>>, ConnectError>) -> TraceOutcome {
    match answers {
        Ok(answers) => {
            let code =
                |answer: &Result<Frame, ServerError>| answer.as_ref().err().map(|e| e.code.to_string());
            (answers.iter().filter(|answer| answer.is_ok()).count(), answers.iter().find_map(code))
        }
        Err(error) => (0, Some(error.to_string())),
    }
}

/// Traces a request in a task of its own: no user code runs in the connection's task (invariant 3).
fn trace_in_task(hook: TraceHook, start: RequestStart) -> oneshot::Sender<TraceOutcome> {
    let (sender, ended) = oneshot::channel();
    let begun = Instant::now();
    tokio::spawn(async move {
        hook.begin(|| start.clone());
        let (ok, first_error) = ended.await.unwrap_or_else(|_| (0, Some("given up".to_owned())));
        let RequestStart { id, kind, name, commands, bytes, node } = start;
        let duration = begun.elapsed();
        let errors = commands - ok;
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

/// `ERR unknown command` from servers before 6.0 and from some proxies, `NOPROTO` from those that
/// only speak RESP2.
fn speaks_only_resp2(error: &ServerError) -> bool {
    &*error.code == "NOPROTO" || (&*error.code == "ERR" && error.message.contains("unknown command"))
}

fn server_info(frame: &Frame) -> ServerInfo {
    let mut server_info = ServerInfo { protocol: 3, ..ServerInfo::default() };
    for (name, value) in frame.value().pairs().into_iter().flatten() {
        let text = || value.as_str().unwrap_or_default().to_owned();
        match name.as_str() {
            Some("server") => server_info.server = text(),
            Some("version") => server_info.version = text(),
            Some("mode") => server_info.mode = text(),
            Some("role") => server_info.role = text(),
            Some("id") => server_info.connection_id = value.as_i64().unwrap_or_default(),
            _ => {}
        }
    }
    server_info
}
