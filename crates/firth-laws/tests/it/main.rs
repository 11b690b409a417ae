//! The laws on every engine of this workspace.

#![allow(clippy::unwrap_used, reason = "tests speak by panicking")]

mod engines;
mod models;
mod planted;
