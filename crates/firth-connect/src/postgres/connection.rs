//! [`Connection`]: one session with a server: login, queries, and the frames of a change stream.
//!
//! Values come as text under fixed settings, so that a stream, a query and a snapshot agree. One
//! task owns a connection; reading a frame is cancel-safe.

use super::decode::{Tuple, Value};
use super::server_error::ServerError;
use super::target::{Host, Target, TlsMode};
use super::tls;
use crate::error::{Error, ErrorKind, Result};
use bytes::{Buf, Bytes, BytesMut};
use postgres_protocol::IsNull;
use postgres_protocol::authentication::sasl::{ChannelBinding, SCRAM_SHA_256, ScramSha256};
use postgres_protocol::message::frontend;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

/// How long a login may take.
const LOGIN_LIMIT: Duration = Duration::from_secs(20);
/// How long a query of ours may take.
const QUERY_LIMIT: Duration = Duration::from_secs(60);
/// The largest frame: a row of the largest documents, and room for what is dropped from it.
pub(crate) const MAX_FRAME: usize = 64 << 20;
/// How much is kept of a longer one.
const BEGINNING: usize = 64 << 10;
/// Rows of an answer, at most: our queries ask for less.
const MAX_ROWS: usize = 200_000;

/// What makes values the same text in every session.
const SETTINGS: [(&str, &str); 6] = [
    ("client_encoding", "UTF8"),
    ("DateStyle", "ISO, YMD"),
    ("IntervalStyle", "iso_8601"),
    ("TimeZone", "UTC"),
    ("extra_float_digits", "1"),
    ("bytea_output", "hex"),
];

trait Io: AsyncRead + AsyncWrite + Send + Sync + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Sync + Unpin> Io for T {}

/// One message of the server.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) tag: u8,
    pub(crate) body: Bytes,
    /// The length of one that is too long to be read: the body is its beginning.
    pub(crate) cut_from: Option<usize>,
}

/// A row of an answer: values as text.
pub(crate) type Row = Vec<Option<String>>;

/// A session.
pub(crate) struct Connection {
    stream: Box<dyn Io>,
    input: BytesMut,
    /// Bytes to come that are left out.
    skip: usize,
    output: BytesMut,
}

/// What a session is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Queries.
    Query,
    /// A change stream, and the commands about it.
    Replication,
}

impl Connection {
    /// Logs in to one host.
    pub(crate) async fn open(
        target: &Target,
        host: &Host,
        purpose: Purpose,
        application: &str,
    ) -> Result<Self> {
        let login = async {
            let stream = connect(target, host).await?;
            let input = BytesMut::with_capacity(8 << 10);
            let output = BytesMut::new();
            let mut connection = Self { stream, input, skip: 0, output };
            connection.log_in(target, purpose, application).await?;
            Ok(connection)
        };
        let done = tokio::time::timeout(LOGIN_LIMIT, login).await;
        done.unwrap_or_else(|_| Err(Error::unavailable(format!("{host} did not finish a login in 20 s"))))
    }

    async fn log_in(&mut self, target: &Target, purpose: Purpose, application: &str) -> Result<()> {
        let mut parameters =
            vec![("user", &*target.user), ("database", &*target.database), ("application_name", application)];
        if purpose == Purpose::Replication {
            parameters.push(("replication", "database"));
        }
        parameters.extend(SETTINGS);
        frontend::startup_message(parameters, &mut self.output).map_err(unwritable)?;
        self.flush().await?;
        let mut scram = None;
        loop {
            let frame = self.answer().await?;
            match frame.tag {
                b'R' => self.authenticate(&frame.body, target, &mut scram).await?,
                b'Z' => return Ok(()),
                // Settings and the key for cancelling.
                b'S' | b'K' | b'N' => {}
                _ => return Err(unexpected()),
            }
        }
    }

    async fn authenticate(
        &mut self,
        body: &Bytes,
        target: &Target,
        scram: &mut Option<ScramSha256>,
    ) -> Result<()> {
        let (kind, rest) = body.split_first_chunk::<4>().ok_or_else(unexpected)?;
        let refused = |error: std::io::Error| {
            Error::new(ErrorKind::Unauthorized, format!("the login of role {} failed", target.user))
                .with_source(error)
        };
        match (u32::from_be_bytes(*kind), &mut *scram) {
            (0, _) => return Ok(()),
            (10, None) => {
                let offered = rest.split(|byte| *byte == 0).any(|name| name == SCRAM_SHA_256.as_bytes());
                let password = target.password.as_deref().filter(|_| offered).ok_or_else(|| {
                    let text = "the server asks for a password: give one in password_file";
                    Error::new(ErrorKind::Unauthorized, text)
                })?;
                let client = ScramSha256::new(password.as_bytes(), ChannelBinding::unsupported());
                frontend::sasl_initial_response(SCRAM_SHA_256, client.message(), &mut self.output)
                    .map_err(unwritable)?;
                *scram = Some(client);
            }
            (11, Some(client)) => {
                client.update(rest).map_err(refused)?;
                frontend::sasl_response(client.message(), &mut self.output).map_err(unwritable)?;
            }
            (12, Some(client)) => return client.finish(rest).map_err(refused),
            _ => {
                let text = "the server asks for a login that is not SCRAM-SHA-256: set the role's \
                            password with password_encryption = 'scram-sha-256'";
                return Err(Error::new(ErrorKind::Unauthorized, text));
            }
        }
        self.flush().await
    }

    /// Runs statements without parameters; the rows of all of them.
    pub(crate) async fn query(&mut self, sql: &str) -> Result<Vec<Row>> {
        frontend::query(sql, &mut self.output).map_err(unwritable)?;
        self.rows().await
    }

    /// Runs one statement with parameters as text. Not for a session of a change stream.
    pub(crate) async fn query_with(&mut self, sql: &str, values: &[&str]) -> Result<Vec<Row>> {
        self.write_query(sql, values)?;
        self.rows().await
    }

    /// As [`query_with`](Self::query_with) for answers of any length: each row is handed over, or
    /// that it is too long to be read.
    pub(crate) async fn read_rows(
        &mut self,
        sql: &str,
        values: &[&str],
        take: impl FnMut(Result<Tuple>) -> Result<()>,
    ) -> Result<()> {
        self.write_query(sql, values)?;
        self.each_row(take).await
    }

    fn write_query(&mut self, sql: &str, values: &[&str]) -> Result<()> {
        frontend::parse("", sql, [], &mut self.output).map_err(unwritable)?;
        let write = |value: &&str, out: &mut BytesMut| {
            out.extend_from_slice(value.as_bytes());
            Ok(IsNull::No)
        };
        frontend::bind("", "", [], values, write, [0], &mut self.output)
            .map_err(|_| Error::invalid("a query has a value that cannot be sent"))?;
        frontend::execute("", 0, &mut self.output).map_err(unwritable)?;
        frontend::sync(&mut self.output);
        Ok(())
    }

    /// Reads an answer to its end.
    async fn rows(&mut self) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        let text = |value: Value| match value {
            Value::Text(text) => Some(String::from_utf8_lossy(&text).into_owned()),
            Value::Null | Value::Unchanged => None,
        };
        let take = |row: Result<Tuple>| {
            if rows.len() == MAX_ROWS {
                return Err(Error::invalid("an answer has too many rows"));
            }
            rows.push(row?.0.into_iter().map(text).collect());
            Ok(())
        };
        self.each_row(take).await?;
        Ok(rows)
    }

    async fn each_row(&mut self, mut take: impl FnMut(Result<Tuple>) -> Result<()>) -> Result<()> {
        let read = async {
            self.flush().await?;
            let mut failure = None;
            loop {
                let frame = self.frame().await?;
                match frame.tag {
                    b'D' => take(match frame.cut_from {
                        None => Ok(row(&frame.body)?),
                        Some(length) => {
                            let text = format!("a row has {length} bytes; at most {MAX_FRAME} are read");
                            Err(Error::poison(text))
                        }
                    })?,
                    b'E' => failure = Some(ServerError::read(&frame.body)),
                    b'Z' => return failure.map_or(Ok(()), |error| Err(error.into_error())),
                    _ => {}
                }
            }
        };
        let done = tokio::time::timeout(QUERY_LIMIT, read).await;
        done.unwrap_or_else(|_| Err(Error::unavailable("the server did not answer a query in 60 s")))
    }

    /// Starts a change stream: from here on, frames are read and replies are written.
    pub(crate) async fn start_stream(&mut self, command: &str) -> Result<()> {
        frontend::query(command, &mut self.output).map_err(unwritable)?;
        self.flush().await?;
        loop {
            match self.answer().await?.tag {
                b'W' => return Ok(()),
                b'N' | b'S' => {}
                _ => return Err(unexpected()),
            }
        }
    }

    /// Writes data of the stream.
    pub(crate) async fn send(&mut self, data: &[u8]) -> Result<()> {
        frontend::CopyData::new(data).map_err(unwritable)?.write(&mut self.output);
        self.flush().await
    }

    /// The next frame that is here already.
    pub(crate) fn ready_frame(&mut self) -> Result<Option<Frame>> {
        let skipped = self.skip.min(self.input.len());
        self.input.advance(skipped);
        self.skip -= skipped;
        let Some((head, _)) = self.input.split_first_chunk::<5>() else { return Ok(None) };
        let [tag, length @ ..] = *head;
        let length = u32::from_be_bytes(length) as usize;
        if length < 4 {
            return Err(unexpected());
        }
        let cut_from = Some(length).filter(|length| *length > MAX_FRAME);
        let kept = if cut_from.is_some() { BEGINNING } else { length };
        if self.input.len() <= kept {
            self.input.reserve(kept + 1 - self.input.len());
            return Ok(None);
        }
        let mut body = self.input.split_to(kept + 1);
        body.advance(5);
        self.skip = length - kept;
        Ok(Some(Frame { tag, body: body.freeze(), cut_from }))
    }

    /// Whether nothing of a further frame was read.
    pub(crate) fn is_drained(&self) -> bool {
        self.input.is_empty() && self.skip == 0
    }

    /// The next frame. Cancel-safe.
    pub(crate) async fn frame(&mut self) -> Result<Frame> {
        loop {
            if let Some(frame) = self.ready_frame()? {
                return Ok(frame);
            }
            if self.input.capacity() - self.input.len() < 4 << 10 {
                self.input.reserve(64 << 10);
            }
            match self.stream.read_buf(&mut self.input).await {
                Ok(0) => return Err(Error::unavailable("the server closed the connection")),
                Ok(_) => {}
                Err(error) => return Err(broken(&error)),
            }
        }
    }

    /// The next frame, unless the server refuses.
    async fn answer(&mut self) -> Result<Frame> {
        let frame = self.frame().await?;
        match frame.tag {
            b'E' => Err(ServerError::read(&frame.body).into_error()),
            _ => Ok(frame),
        }
    }

    async fn flush(&mut self) -> Result<()> {
        let written = self.stream.write_all(&self.output).await;
        self.output.clear();
        written.map_err(|error| broken(&error))?;
        self.stream.flush().await.map_err(|error| broken(&error))
    }
}

async fn connect(target: &Target, host: &Host) -> Result<Box<dyn Io>> {
    let unreachable =
        |error: std::io::Error| Error::unavailable(format!("{host} cannot be reached: {error}"));
    if host.is_unix() {
        let path = format!("{}/.s.PGSQL.{}", host.name, host.port);
        return Ok(Box::new(UnixStream::connect(path).await.map_err(unreachable)?));
    }
    let mut stream = TcpStream::connect((&*host.name, host.port)).await.map_err(unreachable)?;
    stream.set_nodelay(true).map_err(unreachable)?;
    if target.tls == TlsMode::Disable {
        return Ok(Box::new(stream));
    }
    let mut request = BytesMut::new();
    frontend::ssl_request(&mut request);
    stream.write_all(&request).await.map_err(unreachable)?;
    // Exactly one byte: what follows must be encrypted.
    if stream.read_u8().await.map_err(unreachable)? != b'S' {
        return Err(Error::new(
            ErrorKind::Unauthorized,
            format!("{host} does not speak TLS: turn `ssl` on there, or write sslmode=disable"),
        ));
    }
    Ok(Box::new(tls::encrypt(&target.files, &host.name, stream).await?))
}

fn row(body: &Bytes) -> Result<Tuple> {
    let mut rest = body.clone();
    let count = rest.try_get_u16().map_err(|_| unexpected())?;
    let mut values = Vec::with_capacity(usize::from(count));
    for _ in 0..count {
        let length = rest.try_get_i32().map_err(|_| unexpected())?;
        values.push(match usize::try_from(length) {
            Ok(length) if length <= rest.len() => Value::Text(rest.split_to(length)),
            Ok(_) => return Err(unexpected()),
            Err(_) => Value::Null,
        });
    }
    Ok(Tuple(values))
}

fn unexpected() -> Error {
    Error::corrupt("the server answers in a way that PostgreSQL does not")
}

fn unwritable(error: std::io::Error) -> Error {
    Error::invalid("a command to the server cannot be written").with_source(error)
}

fn broken(error: &std::io::Error) -> Error {
    Error::unavailable(format!("the connection broke: {error}"))
}
