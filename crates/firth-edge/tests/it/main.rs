//! The edge over real sockets: a WebSocket client, plain HTTP, and the JavaScript client under Node
//! and in a browser.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by a panic")]

mod browser;
mod feed;
mod guarding;
mod javascript;
mod moving;
mod poll;
mod routed;
mod slow;
mod sse;
mod tls;
mod websocket;
mod world;
