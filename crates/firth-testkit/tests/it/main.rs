//! The fixtures judged by themselves: what they promise to other tests is tested here.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod auth;
mod cluster;
mod lifetime;
mod proxy;
mod proxy_speed;
mod sentinel;
mod server;
mod tls;
mod waiting;
