//! Sources on real databases.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod beside;
mod copy_only;
mod doctor;
mod failing;
mod failover;
mod flowing;
mod history;
mod limits;
#[cfg(feature = "mongodb")]
mod mongo;
#[cfg(feature = "mongodb")]
mod mongod;
mod nats;
mod nats_loss;
mod node;
mod once;
mod outbox;
mod parts;
mod redis_keys;
mod resync;
mod slot;
mod snapshot;
mod toast;
mod world;
