//! From a database commit to a topic, exactly once.
//!
//! | module | what |
//! |---|---|
//! | [`control`] | what operators want of each source, kept in the engine |
//! | [`mapping`] | whose a row is, under which key, and which columns leave the database |
//! | [`pump`] | changes and time in, batches and the position to confirm out; pure |
//! | [`reports`] | how each source is, as its reader told last |
//! | [`rules`] | how a body of another program becomes an event |
//! | [`sink`] | partitions that store records and the source's mark in one step |
//! | [`section`] | the section `connect:` of a configuration |
//! | [`source`] | what a kind of source is, and the reader that kinds share |
//! | [`sources`] | the sources of a node, each read by one node at a time |
//! | [`postgres`] | PostgreSQL by logical replication |
//! | `mongodb` | change streams of MongoDB |
//! | [`nats`] | streams and subjects of NATS |
//! | [`redis_keys`] | keys of Redis, by their notifications |
//! | [`webhook`] | signed requests of other programs |

// Each kind uses its share of what they have in common.
#![cfg_attr(
    not(all(feature = "nats", feature = "postgres", feature = "redis")),
    allow(unused, irrefutable_let_patterns)
)]

mod config;
pub mod control;
mod copy_state;
mod dead_letter;
mod doctor;
mod error;
#[cfg(feature = "postgres")]
#[doc(hidden)]
pub mod fuzzing;
mod intake;
pub mod mapping;
#[cfg(feature = "mongodb")]
pub mod mongodb;
#[cfg(feature = "nats")]
pub mod nats;
mod outlets;
#[cfg(feature = "postgres")]
pub mod postgres;
mod progress;
pub mod pump;
mod record;
#[cfg(feature = "redis")]
pub mod redis_keys;
pub mod reports;
pub mod rules;
pub mod section;
mod sessions;
pub mod sink;
pub mod source;
pub mod sources;
mod state;
mod turns;
pub mod webhook;
mod writer;

pub use config::{SourceConfig, WEBHOOK, can_copy, examine};
pub use copy_state::{CopyState, RowKey, TableCopy};
pub use dead_letter::DeadLetter;
pub use doctor::{Finding, Level};
pub use error::{Error, ErrorKind, Result};
pub use intake::Intake;
pub use outlets::Outlets;
pub use progress::{Condition, Progress, SnapshotProgress, Status};
pub use state::{Allowed, Keep, Resync, State};
