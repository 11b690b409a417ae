//! The router on real engines and with real gateways.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by a panic")]

mod chaos;
mod gateway;
mod grpc;
mod leases;
mod limits;
mod losses;
mod modes;
mod nats;
mod nats_auth;
mod node;
mod peers;
mod receivers;
mod registered;
mod registry;
mod registry_grpc;
mod replays;
mod storm;
mod strays;
mod stream;
mod topics;
mod world;
mod zombies;
