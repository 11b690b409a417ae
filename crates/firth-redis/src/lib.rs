//! An async client for Redis and Valkey: one task owns one socket, and everything else is messages.
#![doc = ""]
#![doc = include_str!("../docs/guide.md")]

pub mod backoff;
mod body;
mod call;
mod client;
mod cluster;
mod command;
pub mod config;
mod connection;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod lanes;
mod metrics;
pub mod mux;
mod refusal;
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
    connection::{ConnectionEvent, ConnectionEvents, EventKind, Greeting, Stage, State},
    error::{CallError, ConnectError, ConnectStage, Fault, LostCause},
    resp::{FromValue, ServerError, ToArg},
    script::{Script, ScriptCall},
    secret::Secret,
    trace::{RequestKind, RequestStart, RequestTrace, TraceHook},
};
