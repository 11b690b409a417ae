//! An async client for Redis and Valkey: one task owns one socket, and everything else is messages.
pub mod resp;
