//! The two errors of this crate: [`ConnectError`] (no connection was made) and [`CallError`] (a
//! request got no answer). Both are cheap to clone, because one broken socket answers many
//! requests. Neither ever carries a password or a payload.

use crate::resp::{ConvertError, Execution, ProtocolError, ServerError};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Why no connection to a server came about.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The URL or the configuration cannot work.
    #[error("{field}: {problem}")]
    Config {
        /// The part of the URL or configuration.
        field: &'static str,
        /// What is wrong with it, and what would be right.
        problem: String,
    },
    /// The host name has no address.
    #[error("the name {host} could not be resolved")]
    Resolve {
        /// The host as configured.
        host: String,
        /// What the resolver said.
        #[source]
        source: Arc<io::Error>,
    },
    /// No socket could be opened to any of the host's addresses.
    #[error("could not connect to {endpoint}")]
    Connect {
        /// Host and port, or the path of the socket.
        endpoint: String,
        /// What the system said.
        #[source]
        source: Arc<io::Error>,
    },
    /// The TLS handshake failed.
    #[error("TLS with {endpoint} failed")]
    Tls {
        /// Host and port.
        endpoint: String,
        /// What rustls said.
        #[source]
        source: Arc<io::Error>,
    },
    /// The server answered the handshake with an error, for example a wrong password.
    #[error("{endpoint} refused {step}: {error}")]
    Refused {
        /// Host and port, or the path of the socket.
        endpoint: String,
        /// The command of the handshake that was refused (never its arguments).
        step: &'static str,
        /// The server's words.
        error: ServerError,
    },
    /// The connection broke during the handshake.
    #[error("{endpoint} was lost during the handshake")]
    Broken {
        /// Host and port, or the path of the socket.
        endpoint: String,
        /// What happened to the connection.
        #[source]
        source: LostCause,
    },
    /// A step took longer than its limit.
    #[error("{stage} of {endpoint} took longer than {limit:?}")]
    Timeout {
        /// The step that did not end.
        stage: ConnectStage,
        /// Host and port, or the path of the socket.
        endpoint: String,
        /// The configured limit.
        limit: Duration,
    },
    /// None of the sentinels names a reachable master.
    #[error("no sentinel names a usable master for \"{name}\": {problem}")]
    NoMaster {
        /// The name of the monitored master.
        name: String,
        /// What each sentinel said, in short.
        problem: String,
    },
    /// No node of the cluster could tell who owns which slot.
    #[error("no node could tell the cluster's topology: {problem}")]
    NoTopology {
        /// What each node said, in short.
        problem: String,
    },
    /// The client was closed before the connection stood.
    #[error("closed while connecting")]
    Closed,
}

/// The steps of connecting that have a time limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectStage {
    /// Asking for the addresses of a host name.
    Resolve,
    /// Opening the socket, TLS included.
    Connect,
    /// HELLO, AUTH, SELECT and what else the configuration asks for.
    Handshake,
}

impl std::fmt::Display for ConnectStage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Resolve => "name resolution",
            Self::Connect => "connection",
            Self::Handshake => "handshake",
        })
    }
}

impl ConnectError {
    pub(crate) fn config(field: &'static str, problem: impl Into<String>) -> Self {
        Self::Config { field, problem: problem.into() }
    }

    /// Whether a time limit ended the try.
    pub fn is_timeout(&self) -> bool {
        matches!(self, Self::Timeout { .. })
    }

    /// Whether the same try may succeed later without any change of configuration.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Config { .. } | Self::Closed => false,
            Self::Refused { error, .. } => !is_auth_code(&error.code),
            _ => true,
        }
    }

    /// Whether the server answered but refused the client: an immediate retry would only add load.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused { .. })
    }
}

fn is_auth_code(code: &str) -> bool {
    matches!(code, "WRONGPASS" | "NOAUTH" | "NOPERM" | "DENIED")
}

/// What ended a connection that stood.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum LostCause {
    /// The server closed the connection.
    #[error("the server closed the connection")]
    Eof,
    /// The socket failed.
    #[error("the socket failed")]
    Io(#[source] Arc<io::Error>),
    /// The server sent bytes that are not RESP, or that break a limit.
    #[error("the server broke the protocol")]
    Protocol(#[source] ProtocolError),
    /// A reply came that no request asked for.
    #[error("the server sent a reply that no request asked for")]
    Unsolicited,
    /// Not one byte came although a PING was sent.
    #[error("the server was silent for {0:?} although it was asked for a sign of life")]
    Silent(Duration),
    /// A reconnection failed.
    #[error("the reconnection failed")]
    Reconnect(#[source] Arc<ConnectError>),
    /// The server is not the right one any more: a demoted master behind a sentinel, a node that
    /// left its cluster.
    #[error("the server is no longer the master")]
    Demoted,
    /// The last handle was dropped, or `close` ran out of time.
    #[error("the client was closed")]
    Closed,
}

/// Prints an error with all its sources, for logs.
pub(crate) struct ErrorChain<'a>(pub(crate) &'a dyn std::error::Error);

impl std::fmt::Display for ErrorChain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)?;
        let mut next = self.0.source();
        while let Some(source) = next {
            write!(f, ": {source}")?;
            next = source.source();
        }
        Ok(())
    }
}

impl From<io::Error> for LostCause {
    fn from(error: io::Error) -> Self {
        Self::Io(Arc::new(error))
    }
}

impl From<ProtocolError> for LostCause {
    fn from(error: ProtocolError) -> Self {
        Self::Protocol(error)
    }
}

/// Who caused an error: what a log line or an alert wants to know first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// The request was wrong: wrong type asked for, unknown command, no permission.
    Caller,
    /// The server could not serve: loading, out of memory, read only, busy.
    Server,
    /// The network, or a server that went away.
    Network,
    /// This process has more under way than its limits allow.
    Load,
}

/// Why a request did not give its answer.
///
/// [`may_have_run`](Self::may_have_run) tells whether the command may have taken effect all the
/// same; nothing is ever sent twice by the client itself.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The server answered with an error.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The answer is not of the type that was asked for.
    #[error("the answer has an unexpected form")]
    Convert(#[from] ConvertError),
    /// No answer came in time. A late answer is thrown away.
    #[error("no answer within {after:?}")]
    Timeout {
        /// The limit.
        after: Duration,
        /// Whether bytes of the request were handed to the network.
        sent: bool,
    },
    /// The connection broke while the request was under way.
    #[error("the connection was lost")]
    Lost {
        /// Whether bytes of the request were handed to the network.
        sent: bool,
        /// What happened to the connection.
        #[source]
        cause: LostCause,
    },
    /// There is no connection now, and the next try is not yet due. Nothing was sent.
    #[error("not connected")]
    Down {
        /// Why the last connection, or the last try, failed.
        #[source]
        cause: LostCause,
    },
    /// A limit on requests under way is reached. Nothing was sent.
    #[error("{what} is full: the limit is {limit}")]
    Full {
        /// What is full.
        what: &'static str,
        /// Its capacity.
        limit: usize,
    },
    /// The client was closed, or lost a connection that is not to be made again (a session, or no
    /// reconnection).
    #[error("the client is closed")]
    Closed {
        /// Whether bytes of the request were handed to the network.
        sent: bool,
    },
    /// The request cannot be sent this way.
    #[error("{0}")]
    Invalid(String),
    /// A watched key changed, so the transaction did not run.
    #[error("a watched key changed: the transaction did not run")]
    Conflict,
}

impl CallError {
    /// Whether the command may have run on the server although there is no good answer. `false` is
    /// a promise: it has not run and never will.
    ///
    /// **Scripts.** A script may write and then answer with any code. So an error of EVAL, EVALSHA
    /// or FCALL is a promise only if its words are those by which a server refuses a script before
    /// it runs. A server that refuses writes does so before a script runs only if that declares
    /// what it does by a first line `#!lua`.
    pub fn may_have_run(&self) -> bool {
        match self {
            Self::Server(e) => !rejected_before_running(e),
            Self::Convert(_) => true,
            Self::Timeout { sent, .. } | Self::Lost { sent, .. } | Self::Closed { sent } => *sent,
            Self::Down { .. } | Self::Full { .. } | Self::Invalid(_) | Self::Conflict => false,
        }
    }

    /// Whether the same request may succeed later. If [`may_have_run`](Self::may_have_run) is true
    /// as well, only an idempotent request should be repeated.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Server(e) => is_passing(&e.code),
            Self::Timeout { .. } | Self::Lost { .. } | Self::Full { .. } | Self::Conflict => true,
            Self::Down { cause } => match cause {
                LostCause::Reconnect(e) => e.is_retryable(),
                _ => true,
            },
            Self::Convert(_) | Self::Closed { .. } | Self::Invalid(_) => false,
        }
    }

    /// Whether a time limit ended the request.
    pub fn is_timeout(&self) -> bool {
        match self {
            Self::Timeout { .. } => true,
            Self::Down { cause: LostCause::Reconnect(e) } => e.is_timeout(),
            _ => false,
        }
    }

    /// Who caused it.
    pub fn fault(&self) -> Fault {
        match self {
            Self::Server(e) if is_passing(&e.code) || matches!(&*e.code, "MISCONF" | "NOREPLICAS") => {
                Fault::Server
            }
            Self::Server(_) | Self::Convert(_) | Self::Closed { .. } | Self::Invalid(_) => Fault::Caller,
            Self::Timeout { .. } | Self::Lost { .. } | Self::Down { .. } => Fault::Network,
            Self::Full { .. } | Self::Conflict => Fault::Load,
        }
    }

    /// The server's error, if the server answered with one.
    pub fn server(&self) -> Option<&ServerError> {
        match self {
            Self::Server(error) => Some(error),
            _ => None,
        }
    }

    /// The first word of the server's error: `WRONGTYPE`, `MOVED`, `NOSCRIPT`… Texts differ between
    /// servers; match on this only.
    pub fn code(&self) -> Option<&str> {
        self.server().map(|e| &*e.code)
    }
}

/// Errors that a server gives before it touches any data. Those of scripts are marked: a script may
/// have written before it, or one of its own commands, met such an error.
fn rejected_before_running(error: &ServerError) -> bool {
    let code = &*error.code;
    match error.execution {
        Execution::NotRun => true,
        Execution::MayHaveRun => false,
        Execution::Unknown => {
            is_passing(code)
                || is_auth_code(code)
                || matches!(code, "CROSSSLOT" | "NOSCRIPT" | "EXECABORT" | "NOREPLICAS" | "MISCONF")
        }
    }
}

/// Errors that pass by themselves: a node that loads, a slot that moves, a memory limit.
fn is_passing(code: &str) -> bool {
    matches!(
        code,
        "LOADING"
            | "BUSY"
            | "TRYAGAIN"
            | "CLUSTERDOWN"
            | "MASTERDOWN"
            | "READONLY"
            | "MOVED"
            | "ASK"
            | "OOM"
            | "UNBLOCKED"
    )
}
