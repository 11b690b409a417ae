//! The real binary on a free port and a fresh directory, spoken to as users do.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by a panic")]

mod adopting;
mod backing_up;
mod bodies;
mod claiming;
mod commands;
mod configuring;
mod connecting;
mod console;
mod copying;
mod crowd;
mod damage;
mod disk;
mod documents;
mod executing;
mod feeding;
mod figures;
mod gateway;
mod gateways;
mod guarding;
mod health;
mod history;
mod hooking;
mod http;
mod input;
mod killing;
mod large;
mod live;
mod looking;
mod operating;
mod packaging;
mod pages;
mod reaching;
mod receiver;
mod returning;
mod routing;
mod scopes;
mod servers;
mod serving;
mod streaming;
mod talk;
mod tester;
mod tracing;
mod trying;
mod world;
