//! An async client for Redis and Valkey. One task owns each socket; callers write to its buffer.
#![doc = ""]
#![doc = include_str!("../docs/guide.md")]

pub mod backoff;
mod call;
mod client;
mod cluster;
mod command;
pub mod config;
mod connection;
mod error;
mod error_origin;
#[doc(hidden)]
pub mod fuzzing;
mod inline_buffer;
mod lanes;
mod metrics;
pub mod mux;
pub mod resp;
mod script;
mod secret;
mod sentinel;
mod trace;

pub use self::backoff::Backoff;
pub use self::call::{Call, EvalCall, FromReplies, PipelineCall, Unpack};
pub use self::client::{Client, Push, Pushes, Session};
pub use self::cluster::{NodeInfo, NodeRole, slot};
pub use self::command::{Command, Pipe, cmd, pipe};
pub use self::config::{Config, IntoConfig};
pub use self::connection::{
    ConnectionEvent, ConnectionEventKind, ConnectionEvents, ConnectionPhase, ConnectionState, ServerInfo,
};
pub use self::error::{CallError, ConnectError, ConnectStage, Fault, LostCause};
pub use self::resp::{FromValue, ServerError, ToArg};
pub use self::script::{Script, ScriptCall};
pub use self::secret::Secret;
pub use self::trace::{RequestKind, RequestStart, RequestTrace, TraceHook};

/// The code of the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
