//! An async client for Redis and Valkey. One task owns each socket; callers reach it by messages.
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

pub use self::{
    backoff::Backoff,
    call::{Call, EvalCall, FromReplies, PipelineCall, Unpack},
    client::{Client, Push, Pushes, Session},
    cluster::{NodeInfo, NodeRole, slot},
    command::{Command, Pipe, cmd, pipe},
    config::{Config, IntoConfig},
    connection::{
        ConnectionEvent, ConnectionEventKind, ConnectionEvents, ConnectionPhase, ConnectionState, ServerInfo,
    },
    error::{CallError, ConnectError, ConnectStage, Fault, LostCause},
    resp::{FromValue, ServerError, ToArg},
    script::{Script, ScriptCall},
    secret::Secret,
    trace::{RequestKind, RequestStart, RequestTrace, TraceHook},
};

/// The code of the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
