//! Laws of the client, checked against real servers.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
#![allow(unreachable_pub, reason = "the helpers are public to the laws")]

mod answers;
mod auth;
mod basics;
mod blocking;
mod bounds;
mod closing;
mod cluster;
mod coalescing;
mod deadlines;
mod demotion;
mod events;
mod fake;
mod faults;
mod handshake;
mod hostile;
mod interleaving;
mod mux;
mod pushes;
mod reconnect;
mod sentinel;
mod server_errors;
mod support;
mod tls;
mod transactions;
mod visibility;
