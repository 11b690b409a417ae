//! `firth`: the event server and the command line that goes with it.
//!
//! Commands speak to a server or to an engine of their own over one code path: the HTTP API, called
//! over a socket or inside this process. Exit codes follow the kind of error.

mod api;
mod app;
mod auth;
mod cli;
mod client;
mod config;
mod connect;
mod console;
mod delivery_leases;
mod demo;
mod events;
mod handle;
mod problem;
mod routing;
mod serve;
mod stats;
mod takeovers;
mod telemetry;
mod wire;
mod worker_sessions;

use std::process::ExitCode;

/// A request is allocated on one thread and freed on another; with the system's allocator, threads
/// wait for each other's locks then.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> ExitCode {
    cli::run().await
}
