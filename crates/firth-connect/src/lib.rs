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

mod config;
pub mod control;
#[cfg(feature = "_reader")]
mod copy_state;
mod dead_letter;
mod doctor;
mod error;
#[cfg(feature = "postgres")]
#[doc(hidden)]
pub mod fuzzing;
mod intake;
#[cfg(feature = "_reader")]
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
#[cfg(feature = "_reader")]
mod record;
#[cfg(feature = "redis")]
pub mod redis_keys;
pub mod reports;
pub mod rules;
mod secrets;
pub mod section;
#[cfg(feature = "_reader")]
mod sessions;
pub mod sink;
#[cfg(feature = "_reader")]
pub mod source;
pub mod sources;
#[cfg(feature = "_reader")]
mod state;
mod turns;
pub mod webhook;
mod writer;

pub use config::{SourceConfig, WEBHOOK, can_copy, examine};
#[cfg(feature = "_reader")]
pub use copy_state::{CopyState, RowKey, TableCopy};
pub use dead_letter::DeadLetter;
pub use doctor::{Finding, Level};
pub use error::{Error, ErrorKind, Result};
pub use intake::Intake;
pub use outlets::Outlets;
pub use progress::{Condition, Progress, SnapshotProgress, Status};
#[cfg(feature = "_reader")]
pub use state::{Allowed, Keep, Resync, State};
