//! A minimal RESP2 client: one request, one reply, over any byte stream.
//!
//! It exists so that fixtures and tests can look at a server without the client under test. Frames
//! come from servers that we started, so lengths are trusted.

use std::fmt;
use std::io;
use tokio::io::{
    AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader,
};

/// One reply of a server.
#[derive(Clone, PartialEq, Eq)]
pub enum Reply {
    /// `+OK`
    Simple(String),
    /// `-ERR …`
    Error(String),
    /// `:1`
    Int(i64),
    /// `$3 …`
    Bulk(Vec<u8>),
    /// `*2 …`
    Array(Vec<Self>),
    /// `$-1` or `*-1`
    Nil,
}

impl Reply {
    /// The text of a simple, bulk or error reply.
    ///
    /// # Panics
    /// If the reply is of another kind.
    pub fn text(&self) -> String {
        match self {
            Self::Simple(text) | Self::Error(text) => text.clone(),
            Self::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            other => panic!("expected a string reply, got {other:?}"),
        }
    }

    /// The number of an integer reply, or of a string that spells one.
    ///
    /// # Panics
    /// If the reply is of another kind.
    pub fn int(&self) -> i64 {
        match self {
            Self::Int(number) => *number,
            other => other.text().parse().unwrap_or_else(|_| panic!("expected a number, got {other:?}")),
        }
    }

    /// The elements of an array reply.
    ///
    /// # Panics
    /// If the reply is of another kind.
    pub fn items(&self) -> &[Self] {
        match self {
            Self::Array(items) => items,
            other => panic!("expected an array, got {other:?}"),
        }
    }

    /// Whether the server answered with an error.
    pub fn is_error(&self) -> bool {
        matches!(self, Self::Error(_))
    }

    /// Whether the reply is a null.
    pub fn is_nil(&self) -> bool {
        matches!(self, Self::Nil)
    }

    /// The value that follows `name` in a flat list of names and values.
    pub fn field(&self, name: &str) -> Option<&Self> {
        let Self::Array(items) = self else { return None };
        items.chunks_exact(2).find(|pair| pair[0].text() == name).map(|pair| &pair[1])
    }
}

/// Bytes as text, so that a failed assertion can be read.
impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Simple(text) => write!(f, "+{text}"),
            Self::Error(text) => write!(f, "-{text}"),
            Self::Int(number) => write!(f, "{number}"),
            Self::Bulk(bytes) => write!(f, "\"{}\"", bytes.escape_ascii()),
            Self::Array(items) => f.debug_list().entries(items).finish(),
            Self::Nil => f.write_str("nil"),
        }
    }
}

/// A connection that sends one command at a time.
#[derive(Debug)]
pub struct Conn<S> {
    stream: BufReader<S>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Conn<S> {
    /// Speaks RESP2 over an open stream.
    pub fn over(stream: S) -> Self {
        Self { stream: BufReader::new(stream) }
    }

    /// Sends a command and reads its reply.
    ///
    /// # Errors
    /// When the stream fails or carries something that is not RESP2.
    pub async fn call<A: AsRef<[u8]>>(&mut self, args: &[A]) -> io::Result<Reply> {
        self.stream.write_all(&encode(args)).await?;
        self.stream.flush().await?;
        self.read().await
    }

    /// Reads one reply, for commands that answer more than once (subscriptions).
    ///
    /// # Errors
    /// When the stream fails or carries something that is not RESP2.
    pub async fn read(&mut self) -> io::Result<Reply> {
        read_reply(&mut self.stream).await
    }
}

/// A command as a RESP array of bulk strings.
pub fn encode<A: AsRef<[u8]>>(args: &[A]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args.iter().map(AsRef::as_ref) {
        out.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        out.extend_from_slice(arg);
        out.extend_from_slice(b"\r\n");
    }
    out
}

async fn read_reply<R: AsyncBufRead + Unpin>(from: &mut R) -> io::Result<Reply> {
    let mut line = String::new();
    if from.read_line(&mut line).await? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let line = line.trim_end();
    let (kind, rest) = line.split_at_checked(1).ok_or_else(|| not_resp(line))?;
    match kind {
        "+" => Ok(Reply::Simple(rest.to_owned())),
        "-" => Ok(Reply::Error(rest.to_owned())),
        ":" => Ok(Reply::Int(number(rest)?)),
        "$" => read_bulk(from, number(rest)?).await,
        "*" => Box::pin(read_array(from, number(rest)?)).await,
        _ => Err(not_resp(line)),
    }
}

async fn read_bulk<R: AsyncBufRead + Unpin>(from: &mut R, length: i64) -> io::Result<Reply> {
    let Ok(length) = usize::try_from(length) else { return Ok(Reply::Nil) };
    let mut bytes = vec![0; length + 2];
    from.read_exact(&mut bytes).await?;
    bytes.truncate(length);
    Ok(Reply::Bulk(bytes))
}

async fn read_array<R: AsyncBufRead + Unpin>(from: &mut R, length: i64) -> io::Result<Reply> {
    let Ok(length) = usize::try_from(length) else { return Ok(Reply::Nil) };
    let mut items = Vec::with_capacity(length);
    for _ in 0..length {
        items.push(read_reply(from).await?);
    }
    Ok(Reply::Array(items))
}

fn number(text: &str) -> io::Result<i64> {
    text.parse().map_err(|_| not_resp(text))
}

fn not_resp(line: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not a RESP2 line: {line:?}"))
}
