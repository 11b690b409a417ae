//! The laws on every engine of this workspace.

#![allow(clippy::unwrap_used, reason = "tests speak by panicking")]

mod backup;
mod checking;
mod crashes;
mod damage;
mod engines;
mod faults;
mod files;
mod journals;
mod models;
mod planted;
mod power;
mod redis;
